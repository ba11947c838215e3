//! `rxe perf`, as a user would run it.

use super::{Read, Reading, words};
use crate::cmd::bench::link::{Job, Link};
use crate::cmd::bench::tests::{Kind, Place, Test};

/// `rxe perf`'s default.
const PORT: u16 = 18515;

/// One run, of about a second. `backend` is `shm` for two processes on one host.
pub(super) fn run(rxe: &str, link: &Link, test: Test, backend: &str) -> Read {
    let backend = if backend == "shm" { "udp" } else { backend };
    let kind = if test.kind == Kind::Latency { "lat" } else { "bw" };
    let server =
        words(&format!("{rxe} perf {} {kind} --backend {backend}", test.op.to_lowercase()));
    let options = format!("-s{} -D1 -m{} -q{} --json", test.bytes, test.mtu, test.qps);
    let client = [&server[..], &words(&options), &[link.host()]].concat();
    let job = Job { one_host: test.place == Place::Host, port: PORT, ..Job::new(&server, &client) };
    let ran = link.run(&job)?;
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
            tail: result("percentile_99_9_usec"),
        },
        _ => Reading {
            value: test.result_of_rate(result("messages_per_second")?),
            bytes,
            tail: None,
        },
    })
}
