//! `rxe perf`, as a user would run it.

use super::{Read, Reading, Times, words};
use crate::cmd::bench::link::{Job, Link};
use crate::cmd::bench::tests::{Kind, Place, Test};
use xtask::vm::LINK;

/// `rxe perf`'s default.
const PORT: u16 = 18515;

/// One run, of about a second. `backend` is `shm` for two processes on one host. If `bound`, each process
/// has a CPU of its own.
pub(super) fn run(rxe: &str, link: &Link, test: Test, backend: &str, bound: bool) -> Read {
    let backend = if backend == "shm" { "udp" } else { backend };
    let kind = if test.kind == Kind::Latency { "lat" } else { "bw" };
    let server =
        words(&format!("{rxe} perf {} {kind} --backend {backend}", test.op.to_lowercase()));
    let options = format!("-s{} -D1 -m{} -q{} --json", test.bytes, test.mtu, test.qps);
    let client = [&server[..], &words(&options), &[link.host()]].concat();
    let one_host = test.place == Place::Host;
    let job = Job { one_host, port: PORT, bound, ..Job::new(&server, &client) };
    let ran = link.run(&job)?;
    let reading = serde_json::from_str(&ran.text).ok().and_then(|json| read(&json, test));
    Ok((ran, reading))
}

/// One run over endpoints of layer 2 on the link's interfaces, beside the host's own addresses.
pub(super) fn run_layer2(rxe: &str, link: &Link, test: Test) -> Read {
    let kind = if test.kind == Kind::Latency { "lat" } else { "bw" };
    let Test { bytes, mtu, .. } = test;
    let (op, host, link_mtu) = (test.op.to_lowercase(), link.host(), test.link_mtu());
    let end = |last: u8, rest: &str| {
        let address = format!("10.47.91.{last}/24");
        let script = format!(
            "export XDG_RUNTIME_DIR=$(mktemp -d) && trap 'rm -r $XDG_RUNTIME_DIR' EXIT
            {rxe} link add own0 type rxe l2 if:{LINK} address {address} mtu {link_mtu} > /dev/null &&
            {rxe} perf {op} {kind} -d own0 {rest}"
        );
        ["sh".into(), "-c".into(), script]
    };
    let server = end(201, "");
    let client = end(202, &format!("-s{bytes} -D1 -m{mtu} --json {host}"));
    let ran = link.run(&Job { port: PORT, ..Job::new(&server, &client) })?;
    let reading = serde_json::from_str(&ran.text).ok().and_then(|json| read(&json, test));
    Ok((ran, reading))
}

fn read(json: &serde_json::Value, test: Test) -> Option<Reading> {
    let result = |name| json["results"][0][name].as_f64();
    let bytes = result("iterations")? * f64::from(test.bytes);
    Some(match test.kind {
        Kind::Latency => Reading {
            value: result("t_typical_usec")?,
            bytes,
            times: Some(Times {
                average: result("t_avg_usec")?,
                p99: result("percentile_99_usec")?,
                p999: result("percentile_99_9_usec")?,
            }),
        },
        _ => Reading {
            value: test.result_of_rate(result("messages_per_second")?),
            bytes,
            times: None,
        },
    })
}
