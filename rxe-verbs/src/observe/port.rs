//! The counters of a device's port, as the kernel shows them in sysfs.

use std::time::Duration;

use super::{DeviceReport, Subject, ask_device};

/// The counter files of a port, as pairs of directory and name.
///
/// Those in `hw_counters/` are the counters of kernel `rdma_rxe`. Those in `counters/` are the
/// InfiniBand port counters that a RoCE port can have (IBTA 16.1.3.5, 16.1.4); data is counted in
/// words of 4 bytes.
pub const PORT_COUNTERS: [(&str, &str); 21] = [
    ("hw_counters", "sent_pkts"),
    ("hw_counters", "rcvd_pkts"),
    ("hw_counters", "duplicate_request"),
    ("hw_counters", "out_of_seq_request"),
    ("hw_counters", "rcvd_rnr_err"),
    ("hw_counters", "send_rnr_err"),
    ("hw_counters", "rcvd_seq_err"),
    ("hw_counters", "retry_exceeded_err"),
    ("hw_counters", "retry_rnr_exceeded_err"),
    ("hw_counters", "completer_retry_err"),
    ("hw_counters", "rdma_sends"),
    ("hw_counters", "rdma_recvs"),
    ("hw_counters", "send_err"),
    ("hw_counters", "link_downed"),
    ("counters", "port_xmit_packets"),
    ("counters", "port_rcv_packets"),
    ("counters", "port_xmit_data"),
    ("counters", "port_rcv_data"),
    ("counters", "port_rcv_errors"),
    ("counters", "port_xmit_discards"),
    ("counters", "link_downed"),
];

/// Returns the values of [`PORT_COUNTERS`] for the device of this name.
///
/// They are sums over the processes that have the device open in this network namespace and reply
/// within `timeout`.
pub fn port_counters(device: &str, timeout: Duration) -> [u64; PORT_COUNTERS.len()] {
    let reports = ask_device(device, Subject::Counters, timeout);
    PORT_COUNTERS.map(|(directory, name)| {
        let values = reports.iter().map(|report| value(report, directory, name));
        values.fold(0, u64::saturating_add)
    })
}

fn value(report: &DeviceReport, directory: &str, name: &str) -> u64 {
    let of = |kind: &str, name: &str| report.record(kind).and_then(|r| r.number(name)).unwrap_or(0);
    match (directory, name) {
        ("counters", "port_xmit_packets") => of("hw_counters", "sent_pkts"),
        ("counters", "port_rcv_packets") => of("hw_counters", "rcvd_pkts"),
        ("counters", "port_xmit_data") => of("counters", "sent_bytes") / 4,
        ("counters", "port_rcv_data") => of("counters", "rcvd_bytes") / 4,
        ("counters", "port_rcv_errors") => {
            let values = report.record("dropped").into_iter().flat_map(|record| record.fields());
            values.fold(0, |sum, (_, value)| sum.saturating_add(value.parse().unwrap_or(0)))
        }
        ("counters", "port_xmit_discards") => of("hw_counters", "send_err"),
        (_, name) => of("hw_counters", name),
    }
}
