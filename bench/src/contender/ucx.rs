//! `ucx_perftest`.

use super::{Read, Reading, words};
use crate::link::{Link, ServerAndClient};
use crate::tests::{Kind, Place, Test};

const PORT: u16 = 13337;

/// Runs `ucx_perftest` once over `transport`.
pub(super) fn run(link: &Link, test: Test, transport: &'static str, quick: bool) -> Read {
    let name = match (test.op, test.kind) {
        ("WRITE", Kind::Latency) => "ucp_put_lat",
        ("WRITE", _) => "ucp_put_bw",
        ("READ", _) => "ucp_get",
        (_, Kind::Latency) => "tag_lat",
        (_, _) => "tag_bw",
    };
    let iterations = match (test.kind, test.bytes) {
        (Kind::Latency, 4096..) => 20_000,
        (Kind::Latency, _) => 50_000,
        _ => test.messages(),
    } / if quick { 4 } else { 1 };
    // UCX looks up interfaces in /sys, which shows those of the network namespace that mounted it.
    let own_sys = "mount -t sysfs sysfs /sys 2>/dev/null; exec ucx_perftest \"$@\"";
    let wrapper = ["unshare", "-m", "sh", "-c", own_sys, "ucx_perftest"].map(String::from);
    let server = [&wrapper[..], &words("-f")].concat();
    let client = [
        &wrapper[..],
        &words(&format!(
            "{} -t {name} -s {} -n {iterations} -w {} -f -v",
            link.host(),
            test.bytes,
            iterations / 20
        )),
    ]
    .concat();
    let env = match transport {
        "tcp" => &[("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", rxe_harness::vm::LINK)][..],
        _ => &[("UCX_TLS", "posix")],
    };
    let one_host = test.place == Place::Host;
    let ran = link.run(&ServerAndClient {
        one_host,
        port: PORT,
        env,
        ..ServerAndClient::new(&server, &client)
    })?;
    // The warm-up (`-w`) adds a twentieth of the iterations.
    let bytes = f64::from(iterations) * 1.05 * f64::from(test.bytes);
    let reading =
        result(&ran.text, test.kind).map(|value| Reading { value, bytes, ..Reading::default() });
    Ok((ran, reading))
}

/// Reads the last line: iterations; percentile, average and overall latency in µs; average and
/// overall bandwidth in MiB/s; average and overall rate.
fn result(text: &str, kind: Kind) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.contains(','))?;
    let fields: Vec<f64> = line.split(',').map_while(|f| f.trim().parse().ok()).collect();
    match (kind, &fields[..]) {
        (Kind::Latency, &[_, typical, ..]) => Some(typical),
        (Kind::Bandwidth, &[_, _, _, _, _, overall, ..]) => {
            Some(overall * f64::from(1 << 20) / 1e9)
        }
        (Kind::Rate, &[.., overall]) if fields.len() >= 8 => Some(overall / 1e6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints_is_understood() {
        let line = "20000,29.235,148.017,574.472,422.25,108.80,6756,1741\n";
        assert_eq!(result(line, Kind::Latency), Some(29.235));
        let bandwidth = result(line, Kind::Bandwidth).unwrap();
        assert!((0.1140..0.1141).contains(&bandwidth), "{bandwidth}");
        assert_eq!(result(line, Kind::Rate), Some(0.001_741));
        assert_eq!(result("error", Kind::Latency), None);
    }
}
