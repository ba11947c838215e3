//! `cargo xtask bench --live`: measures what `rxe capture` costs the captured program.
//! `ib_write_bw` runs without a capture and with one that begins while it runs, in turns.

use std::fmt::Write as _;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use rxe_harness::checkout;
use rxe_harness::pages;
use rxe_harness::vm::{Error, Result, spawn};
use serde_json::Value;

use super::contender::perftest::sample;
use super::link::{Link, ServerAndClient};
use super::report::Spread;
use super::shared_cache::SharedCacheGate;
use super::tests::{Place, Test};

const PORT: u16 = 18518;

/// How long the program runs, in seconds. It measures between its first and last second.
const SECONDS: u32 = 3;
/// When the capture begins after the client's start, and how long it lasts.
/// It covers all the time that the program measures.
const BEFORE: Duration = Duration::from_millis(500);
const CAPTURED: Duration = Duration::from_millis(1800);

/// The programs, each with the captures that are compared. An empty text means no capture.
const TRAFFICS: [(&str, Test, &[&str]); 2] = [
    ("one host", Test::bandwidth("WRITE", 65536, 4096).on_one_host(), &["", "--of all"]),
    ("link MTU 4200", Test::bandwidth("WRITE", 65536, 4096), &["", "--of all", "-i link0"]),
];

/// The goal for the least share of the bandwidth that a program keeps while it is captured.
const GOAL: f64 = 0.5;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measurement {
    /// The rate in GB/s.
    rate: f64,
    /// The number of retransmissions, whatever their cause.
    retries: u64,
    /// The share of the packets that the capture contains.
    captured: Option<f64>,
}

/// Measures and prints a table. With `write`, puts it into docs/en/project/performance.md.
pub(super) fn run(rounds: u32, write: bool, cache_gate: &SharedCacheGate) -> Result<()> {
    let root = checkout::root()?;
    let rxe =
        checkout::build(&root, &["-p", "rxe-cli", "-p", "rxe-preload"])?.display().to_string();
    let mut rows = Vec::new();
    for (name, test, captures) in TRAFFICS {
        let link = Link::new(test.link_mtu())?;
        let mut runs = Vec::new();
        for round in 1..=rounds {
            let mut order: Vec<_> = (0..captures.len()).collect();
            // Every second round is in reverse order, so that no capture is always first.
            if round % 2 == 0 {
                order.reverse();
            }
            let mut made = vec![Measurement::default(); captures.len()];
            for at in order {
                eprint!("\r\x1b[K{name}, {}: round {round} of {rounds}", told(captures[at]));
                let run = || measure(&rxe, &link, test, captures[at]);
                made[at] = cache_gate.run(run).map_err(Error::Failed)?;
            }
            runs.push(made);
        }
        eprint!("\r\x1b[K");
        rows.extend(captures.iter().enumerate().map(|(at, capture)| row(name, capture, at, &runs)));
    }
    let text = table(&rows, rounds);
    println!("{text}");
    match write {
        true => pages::write(&root, super::PAGE, "bench --live --write", &text),
        false => Ok(()),
    }
}

/// Returns a capture's cell in the table.
fn told(capture: &str) -> String {
    if capture.is_empty() { "no capture".into() } else { format!("`rxe capture {capture}`") }
}

fn table(rows: &[String], rounds: u32) -> String {
    format!(
        "The median of {rounds} rounds, in brackets the least and the greatest:\n\n\
         | `ib_write_bw` | captured by | GB/s | beside no capture, goal ≥ {GOAL} | \
         packets in the capture | sent again |\n\
         | --- | --- | --- | --- | --- | --- |\n{}",
        rows.concat()
    )
}

/// Returns the row of the capture at index `at`.
/// It is compared with index 0, which is no capture, in each round.
fn row(name: &str, capture: &str, at: usize, rounds: &[Vec<Measurement>]) -> String {
    let spread = |value: &dyn Fn(&[Measurement]) -> Option<f64>| {
        Spread::of(rounds.iter().filter_map(|round| value(round)).collect())
    };
    let mut row = format!("| {name} | {}", told(capture));
    let mut add = |cell: Option<String>| {
        // Writing to a string does not fail.
        let _ = write!(row, " |{}", cell.map_or(String::new(), |cell| format!(" {cell}")));
    };
    let two = |Spread { median, min, max }| format!("{median:.2} ({min:.2}–{max:.2})");
    let percent = |Spread { median, min, max }| format!("{median:.0} % ({min:.0}–{max:.0})");
    add(spread(&|round| Some(round[at].rate)).map(two));
    add(spread(&|round| Some(round[at].rate / round[0].rate)).filter(|_| at > 0).map(two));
    add(spread(&|round| Some(100.0 * round[at].captured?)).map(percent));
    let retries: u64 = rounds.iter().map(|round| round[at].retries).sum();
    add(Some(retries.to_string()));
    row + " |\n"
}

fn measure(
    rxe: &str,
    link: &Link,
    test: Test,
    capture: &str,
) -> std::result::Result<Measurement, String> {
    let program = format!(
        "{rxe} run --backend udp -- ib_write_bw -F -s {} -m {} -D {SECONDS} -f 1 -p {PORT}",
        test.bytes, test.mtu
    );
    let server: Vec<_> = program.split(' ').map(String::from).collect();
    let client = [&server[..], &[link.host()]].concat();
    let pair = ServerAndClient {
        one_host: test.place == Place::Host,
        port: PORT,
        ..ServerAndClient::new(&server, &client)
    };
    let (text, (retries, captured)) = link.run_while(&pair, |pids| {
        thread::sleep(BEFORE);
        let capturing = match capture {
            "" => None,
            method => Some(start(rxe, link, method)?),
        };
        thread::sleep(CAPTURED);
        let retries =
            pids.iter().map(|pid| retries(rxe, link, *pid)).sum::<std::result::Result<_, _>>()?;
        Ok((retries, capturing.map(ended).transpose()?))
    })?;
    let sample = sample(&text, test).ok_or_else(|| format!("not understood: {text}"))?;
    Ok(Measurement { rate: sample.value, retries, captured })
}

/// Starts a capture to /dev/null.
fn start(rxe: &str, link: &Link, method: &str) -> std::result::Result<Child, String> {
    let mut cmd = link.at_client(rxe);
    cmd.arg("capture").args(method.split(' ')).args(["-w", "/dev/null"]);
    cmd.args(["-s", &CAPTURED.as_secs_f64().to_string()]);
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    spawn(cmd).map_err(|e| format!("{rxe}: {e}"))
}

/// Returns the share of the packets that an ended capture contains.
fn ended(capture: Child) -> std::result::Result<f64, String> {
    let out = capture.wait_with_output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    share(&said).filter(|_| out.status.success()).ok_or_else(|| format!("rxe capture: {said}"))
}

/// Returns the share of the packets that a capture contains, from its last line: `rxe: 12 packets
/// of 2 devices in 1.8 s, 3 dropped (…)`, or `none dropped`. Returns `None` if it has no packets.
fn share(said: &str) -> Option<f64> {
    let line = said.lines().rfind(|line| line.contains(" dropped"))?;
    let packets: f64 = line.strip_prefix("rxe: ")?.split(' ').next()?.parse().ok()?;
    let dropped = match line.split_once(" s, ")?.1.split(' ').next()? {
        "none" => 0.0,
        number => number.parse().ok()?,
    };
    (packets > 0.0).then(|| packets / (packets + dropped))
}

/// Returns how often the queue pairs of this process have retransmitted.
fn retries(rxe: &str, link: &Link, pid: u32) -> std::result::Result<u64, String> {
    let mut cmd = link.at_client(rxe);
    let out = cmd.args(["stat", "--json", "--of", &pid.to_string()]).output();
    let out = out.map_err(|e| format!("{rxe}: {e}"))?;
    let devices: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let count = |device: &Value| device["hw_counters"]["completer_retry_err"].as_u64();
    let counts = devices.as_array().and_then(|all| all.iter().map(count).sum::<Option<u64>>());
    counts.ok_or_else(|| String::from_utf8_lossy(&out.stderr).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_harness::vm::LINK;

    #[test]
    fn what_a_capture_says_is_understood() {
        let line = "rxe: capturing on link0\nrxe: 3 packets of 1 device in 1.8 s, ";
        assert_eq!(share(&format!("{line}none dropped\n")), Some(1.0));
        let missing = "1 dropped (too fast for the capture)\n";
        assert_eq!(share(&format!("{line}{missing}")), Some(0.75));
        assert_eq!(share("rxe: 0 packets of 0 devices in 1.8 s, none dropped"), None);
        assert_eq!(share("rxe: there is no interface link0"), None);
    }

    #[test]
    fn a_capture_stands_beside_the_run_without_one_of_its_round() {
        let ran = |rate, captured| Measurement { rate, retries: 1, captured };
        let rounds = [(4.0, 3.0), (2.0, 1.0), (1.0, 0.9)]
            .map(|(without, with)| vec![ran(without, None), ran(with, Some(0.5))]);
        assert_eq!(row("x", "", 0, &rounds), "| x | no capture | 2.00 (1.00–4.00) | | | 3 |\n");
        assert_eq!(
            row("x", "--of all", 1, &rounds),
            "| x | `rxe capture --of all` | 1.00 (0.90–3.00) | 0.75 (0.50–0.90) | \
             50 % (50–50) | 3 |\n"
        );
    }

    #[test]
    fn the_link_is_the_one_that_is_captured() {
        let named = TRAFFICS.iter().flat_map(|(_, _, captures)| captures.iter());
        let named: Vec<_> = named.filter_map(|method| method.strip_prefix("-i ")).collect();
        assert_eq!(named, [LINK]);
    }
}
