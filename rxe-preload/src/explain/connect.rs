//! Explains failures to connect by address and port.

use std::net::SocketAddr;

use rxe_verbs::cm::{CmEventKind, PortSpace, RejReason};

use super::once::once;

/// Explains an event of librdmacm that reports a failure.
pub(crate) fn connecting(
    kind: CmEventKind,
    status: i32,
    peer: Option<SocketAddr>,
    ports: PortSpace,
) {
    let peer = peer.map_or("the peer".into(), |peer| peer.to_string());
    if let Some(told) = text(kind, status, &peer, ports) {
        once(kind.name(), &told);
    }
}

/// Explains that a peer has not answered a connection request for some time.
pub(crate) fn silent(peer: SocketAddr) {
    once("rdma_connect", &format!("{peer} has not answered yet: {SILENCE}"));
}

/// Advice for when no answer arrives.
const SILENCE: &str = "check that a program with an RDMA device runs at that address (`rxe run`, or a \
                       kernel's), that it takes its events (rdma_get_cm_event; while the backlog of \
                       rdma_listen is full, requests are dropped), and that UDP port 4791 is open both \
                       ways (firewalls, security groups)";

fn text(kind: CmEventKind, status: i32, peer: &str, ports: PortSpace) -> Option<String> {
    let ports = match ports {
        PortSpace::Tcp => "RDMA_PS_TCP",
        PortSpace::Udp => "RDMA_PS_UDP",
        PortSpace::Ipoib => "RDMA_PS_IPOIB",
        PortSpace::Ib => "RDMA_PS_IB",
    };
    Some(match kind {
        CmEventKind::Rejected => {
            let reason = u16::try_from(status).map_or(RejReason(0), RejReason);
            let todo = match reason {
                RejReason::INVALID_SERVICE_ID => format!(
                    "there is a host, but no program listens there on that port of {ports}: start the \
                     server first, and see that it binds that address and port (ports of RDMA are not \
                     those of TCP)"
                ),
                RejReason::CONSUMER_DEFINED => {
                    "the server's program refused (rdma_reject); the event's private data may tell why"
                        .into()
                }
                RejReason::NO_RESOURCES | RejReason::NO_QP => {
                    "the server cannot take one more: its program failed to create a queue pair".into()
                }
                RejReason::STALE_CONNECTION => {
                    "the server still has a connection of that queue pair: try again in a moment"
                        .into()
                }
                _ => format!("{} (reason {})", reason.text(), reason.0),
            };
            format!("{peer} refused: {todo}")
        }
        // The reply to a SIDR request, which resolves the queue pair for datagrams.
        CmEventKind::Unreachable if status > 0 => format!(
            "{peer} refused (status {status}): no program listens there on that port of {ports}, or it \
             called rdma_reject"
        ),
        CmEventKind::Unreachable => format!("{peer} did not answer: {SILENCE}"),
        CmEventKind::AddrError => {
            let why = std::io::Error::from_raw_os_error(status.abs());
            let todo = match status.abs() {
                libc::ENODEV => {
                    "the system would send there from an address that no device has: see `rxe \
                     devices` and, if only some devices are shown to the program, RXE_DEVICE"
                }
                libc::ENETUNREACH | libc::EHOSTUNREACH => {
                    "the system has no route there: see `ip route get`"
                }
                _ => "see `rxe devices` and `ip route get`",
            };
            format!("no way to {peer} ({why}): {todo}")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_connecting_tells_what_to_do() {
        let told = |kind, status| text(kind, status, "10.9.0.1:7471", PortSpace::Tcp);
        for (kind, status, part) in [
            (CmEventKind::Rejected, 8, "no program listens there on that port of RDMA_PS_TCP"),
            (CmEventKind::Rejected, 28, "rdma_reject"),
            (CmEventKind::Rejected, 3, "failed to create a queue pair"),
            (CmEventKind::Rejected, 10, "try again in a moment"),
            (CmEventKind::Rejected, 26, "the path MTU does not fit (reason 26)"),
            (CmEventKind::Unreachable, -libc::ETIMEDOUT, "UDP port 4791"),
            (CmEventKind::Unreachable, 1, "no program listens there"),
            (CmEventKind::AddrError, -libc::ENODEV, "RXE_DEVICE"),
            (CmEventKind::AddrError, -libc::ENETUNREACH, "ip route get"),
        ] {
            let told = told(kind, status).unwrap();
            assert!(told.contains("10.9.0.1:7471") && told.contains(part), "{told}");
        }
        assert_eq!(told(CmEventKind::Established, 0), None);
    }
}
