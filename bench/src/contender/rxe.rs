//! `rxe perf`, as a user would run it.

use super::{Read, Reading, Times, words};
use crate::link::{Link, ServerAndClient};
use crate::tests::{Kind, Place, Test};
use rxe_harness::vm::{HOST_V4, LINK};

/// The default TCP port of `rxe perf`.
const PORT: u16 = 18515;

/// Runs `rxe perf` once, for about a second.
/// `backend` is `shm` for two processes on one host, and further options may follow it. If `bound`,
/// each process has its own CPU.
pub(super) fn run(rxe: &str, link: &Link, test: Test, backend: &str, bound: bool) -> Read {
    let server = words(&format!("{rxe} {} --backend {}", command(test), option(backend)));
    let client = [&server[..], &words(&client_options(link, test))].concat();
    let one_host = test.place == Place::Host;
    measure(
        link,
        test,
        &ServerAndClient { one_host, bound, ..ServerAndClient::new(&server, &client) },
    )
}

/// Runs `rxe perf` once over endpoints of layer 2 on the link's interfaces.
/// The endpoints have addresses of their own.
pub(super) fn run_layer2(rxe: &str, link: &Link, test: Test) -> Read {
    let [a, b, c, _] = HOST_V4.octets();
    let (command, mtu) = (command(test), test.link_mtu());
    let end = |last: u8, options: &str| {
        let script = format!(
            "export XDG_RUNTIME_DIR=$(mktemp -d) && trap 'rm -r $XDG_RUNTIME_DIR' EXIT
            {rxe} link add own0 type rxe l2 if:{LINK} address {a}.{b}.{c}.{last}/24 mtu {mtu} > /dev/null &&
            {rxe} {command} -d own0 {options}"
        );
        ["sh".into(), "-c".into(), script]
    };
    measure(
        link,
        test,
        &ServerAndClient::new(&end(201, ""), &end(202, &client_options(link, test))),
    )
}

/// Returns the argument of `--backend`.
/// Shared memory is used with any backend, which is for peers on other hosts.
fn option(backend: &str) -> String {
    backend.replacen("shm", "udp", 1)
}

/// Returns the command that both ends share.
fn command(test: Test) -> String {
    let kind = if test.kind == Kind::Latency { "lat" } else { "bw" };
    let buffer = test.recv_buffer.map_or(String::new(), |bytes| format!(" --recv-buffer {bytes}"));
    format!("perf {} {kind}{buffer}", test.op.to_lowercase())
}

/// Returns the options that only the client has, with the server's address.
fn client_options(link: &Link, test: Test) -> String {
    format!("-s{} -D1 -m{} -q{} --json {}", test.bytes, test.mtu, test.qps, link.host())
}

fn measure(link: &Link, test: Test, pair: &ServerAndClient<'_>) -> Read {
    let ran = link.run(&ServerAndClient { port: PORT, ..*pair })?;
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
            again: None,
        },
        _ => Reading {
            value: test.result_of_rate(result("messages_per_second")?),
            bytes,
            times: None,
            // An older version does not report it.
            again: result("retransmitted_pkts")
                .zip(result("sent_pkts"))
                .map(|(again, sent)| 100.0 * again / sent.max(1.0)),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_sent_again_is_a_share_of_what_was_sent() {
        let test = Test::bandwidth("WRITE", 65536, 4096).with_qps(64);
        let row = json!({ "iterations": 100, "messages_per_second": 20_000.0 });
        let again =
            |row: serde_json::Value| read(&json!({ "results": [row] }), test).unwrap().again;
        assert_eq!(again(row.clone()), None, "an older version");
        let mut counted = row;
        counted["sent_pkts"] = 1600.into();
        counted["retransmitted_pkts"] = 4.into();
        assert_eq!(again(counted), Some(0.25));
    }

    #[test]
    fn shared_memory_is_not_a_backend_of_its_own() {
        for (name, options) in [("packet --no-gso", "packet --no-gso"), ("shm", "udp")] {
            assert_eq!(option(name), options);
        }
    }

    #[test]
    fn both_ends_have_the_receive_buffer() {
        let test = Test::bandwidth("WRITE", 65536, 4096);
        assert_eq!(command(test), "perf write bw");
        let small = test.with_usual_recv_buffer();
        assert_eq!(command(small), "perf write bw --recv-buffer 212992");
    }
}
