//! Tests of `rxe replay` and `rxe send` with a live peer: this engine under `rxe run`, and a real
//! kernel.

mod common;

use std::fs;
use std::path::Path;

use common::{PEER, alone, start_peer};
use rxe_harness::c::Compiled;
use rxe_harness::{everything, or_skip};
use serde_json::Value;

/// Captures of kernel 6.1 in which this engine answers as the kernel did. The two with RNR NAKs are
/// excluded: after an RNR NAK, the kernel sends a NAK (PSN sequence error) for the next packet,
/// which must be dropped silently.
const AS_KERNEL_6_1: [&str; 15] = [
    "atomic_no_permission",
    "cas",
    "fetch_add",
    "peer_gone",
    "read",
    "read_out_of_bounds",
    "read_wrong_rkey",
    "send",
    "send_imm",
    "send_too_long",
    "write",
    "write_imm",
    "write_ipv6",
    "write_out_of_bounds",
    "write_wrong_rkey",
];

/// Scenarios in which a peer answers as the engines of the scenario do.
const SCENARIOS: [&str; 16] = [
    "ack_lost",
    "credits",
    "duplicated",
    "icrc_wrong",
    "implied_nak",
    "psn_sequence_nak",
    "rc_atomic",
    "rc_read",
    "rc_send",
    "rc_write",
    "read_no_permission",
    "reordered",
    "rnr_nak",
    "uc_lost",
    "uc_write",
    "ud_send",
];

fn path(dir: &str, name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps");
    root.join(dir).join(name).display().to_string()
}

fn capture(name: &str) -> Vec<String> {
    vec!["replay".into(), path("kernel-6.1", &format!("{name}.pcap"))]
}

fn scenario(name: &str) -> Vec<String> {
    vec!["send".into(), path("scenarios", &format!("{name}.toml"))]
}

/// Runs these commands with `--json`, and a peer in `far` that `rxe run RUN` starts. Returns the
/// exit code and the output of each; then the output of `after`.
#[track_caller]
fn with_ours(
    test: &str,
    run: &str,
    all: &[Vec<String>],
    after: &str,
) -> Option<(Vec<(i32, Value)>, String)> {
    let c = or_skip(Compiled::linked(&[PEER], &["-libverbs"]))?;
    let start = start_peer(&c, run);
    let commands: String = (all.iter())
        .map(|command| {
            let words: String = command.iter().map(|word| format!(" '{word}'")).collect();
            format!("timeout 60 $RXE{words} --to 10.9.0.2 --json 2>&1; echo \"--$?--\"\n")
        })
        .collect();
    let script = format!(
        r#"
        set +e
        {start}
        {commands}
        {after}
        kill $peer
        exit 0
        "#
    );
    let said = alone(test, "cc", &script)?;
    let mut rest = said.as_str();
    let mut found = Vec::new();
    for command in all {
        let (json, more) = rest.split_once("--").expect("a line with the exit code");
        let (code, more) = more.split_once("--").expect("the exit code");
        let json =
            serde_json::from_str(json).unwrap_or_else(|e| panic!("{command:?}: {e}: {said}"));
        found.push((code.parse().unwrap(), json));
        rest = more;
    }
    Some((found, rest.to_owned()))
}

#[track_caller]
fn assert_same(command: &[String], (code, json): &(i32, Value)) {
    assert_eq!(
        (*code, &json["differences"]),
        (0, &Value::Array(Vec::new())),
        "{command:?}: {json:#}"
    );
    assert_eq!(json["sent"], json["packets"], "{command:?}: {json:#}");
    assert_eq!(json["received"], json["messages"], "{command:?}: {json:#}");
}

#[test]
fn our_engine_answers_as_kernel_6_1_and_as_the_engines_of_scenarios() {
    let mut all: Vec<_> = AS_KERNEL_6_1.into_iter().map(capture).collect();
    all.extend(SCENARIOS.into_iter().map(scenario));
    let read = capture("read");
    all.push([&read[..], &["-w", "run.pcapng", "--psn", "0xfffffe"].map(String::from)].concat());
    all.push([&read[..], &["--pace", "recorded"].map(String::from)].concat());
    let after =
        "$RXE decode run.pcapng | grep -c RC_READ_REQUEST; $RXE check run.pcapng | grep errors";
    let Some((found, after)) = with_ours("replays", "", &all, after) else { return };
    for (command, found) in all.iter().zip(&found) {
        assert_same(command, found);
    }
    assert_eq!(after.trim(), "5\n  errors 0, warnings 0, notes 0", "the run itself has no error");
    let answers: u64 = found.iter().filter_map(|(_, json)| json["same"].as_u64()).sum();
    assert!(answers > 80, "{answers} answers were compared");
}

#[test]
fn payload_that_was_not_captured_is_no_difference() {
    let mut all = Vec::new();
    let dir = tempfile::tempdir().unwrap();
    for (at, name) in ["rc_send", "rc_write", "rc_read"].into_iter().enumerate() {
        let file = dir.path().join(format!("{at}.pcap"));
        fs::write(&file, snapped(&fs::read(path("scenarios", &format!("{name}.pcap"))).unwrap()))
            .unwrap();
        all.push(vec!["replay".into(), file.display().to_string()]);
    }
    let Some((found, _)) = with_ours("snapped", "", &all, "") else { return };
    for (command, found) in all.iter().zip(&found) {
        assert_same(command, found);
        let notes = found.1["notes"].to_string();
        assert!(notes.contains("was not captured"), "{command:?}: {notes}");
    }
}

/// Returns a pcap file with the first 96 bytes of each frame of another, as `tcpdump -s 96`
/// captures them.
fn snapped(file: &[u8]) -> Vec<u8> {
    let (head, mut rest) = file.split_at(24);
    let mut snapped = head.to_vec();
    while let Some((record, frames)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(record[8..12].try_into().unwrap());
        let (frame, after) = frames.split_at(len as usize);
        let kept = len.min(96);
        snapped.extend(&record[..8]);
        snapped.extend(kept.to_le_bytes());
        snapped.extend(&record[12..]);
        snapped.extend(&frame[..kept as usize]);
        rest = after;
    }
    snapped
}

#[test]
fn a_peer_that_answers_otherwise_is_reported() {
    let options = |more: &[&str]| {
        let more = more.iter().map(|word| (*word).to_owned());
        capture("write").into_iter().chain(more).collect::<Vec<_>>()
    };
    for (run, command, recorded, came) in [
        ("", options(&["--access", "remote_read"]), "ACK +1", "NAK remote access error +1"),
        ("--fault 'out: drop only opcode=ack'", options(&["--timeout", "1"]), "ACK +0", "null"),
        ("--fault 'out: dup only opcode=ack'", options(&[]), "null", "ACK +0 again"),
        ("--fault 'in: drop only opcode=UC_SEND_LAST'", scenario("uc_send"), "7", "5"),
        ("--fault 'in: drop only opcode=UC_WRITE_FIRST'", scenario("uc_write"), "0x", "0x11"),
    ] {
        let all = [command];
        let Some((found, _)) = with_ours(run, run, &all, "") else { return };
        let (code, json) = &found[0];
        let text = |value: &Value| value.as_str().map_or("null".into(), str::to_owned);
        let is_it =
            |it: &Value| text(&it["recorded"]).starts_with(recorded) && text(&it["came"]) == came;
        let found = json["differences"].as_array().unwrap().iter().any(is_it);
        assert!(*code == 1 && found, "{run}: {json:#}");
    }
}

/// The answers of a kernel whose region does not permit what the recorded one did. Each row has the
/// name of the capture, the access rights, the recorded answer, and the actual answer.
const REFUSED: [(&str, &str, &str, &str); 3] = [
    ("write", "remote_read", "ACK +1", "NAK remote access error +1"),
    ("read", "remote_write", "READ RESPONSE ONLY +1", "NAK remote access error +1"),
    ("fetch_add", "none", "ATOMIC ACKNOWLEDGE +0", "NAK remote access error +0"),
];

#[test]
fn a_kernel_answers_as_recorded_and_is_reported_if_not() {
    let mut all: Vec<_> = AS_KERNEL_6_1.into_iter().map(capture).collect();
    all.extend(["rnr_late", "rnr_never"].map(capture));
    all.extend(
        ["rc_send", "rc_write", "rc_read", "rc_atomic", "uc_write", "ud_send"].map(scenario),
    );
    let as_recorded = all.len();
    all.extend(REFUSED.map(|(name, access, ..)| {
        [&capture(name)[..], &["--access".to_owned(), access.to_owned()]].concat()
    }));
    for kernel in if everything() { &["6.1", "7.2"][..] } else { &["6.1"] } {
        let Some(found) = or_skip(rxe_harness::conform::replays(kernel, common::rxe(), &all))
        else {
            continue;
        };
        for (command, found) in all.iter().zip(&found[..as_recorded]) {
            assert_same(command, found);
        }
        for ((name, _, recorded, came), (code, json)) in REFUSED.iter().zip(&found[as_recorded..]) {
            let differences = json["differences"].as_array().unwrap();
            let is_it = |it: &Value| {
                let recorded_is = |text: &str| text.starts_with(recorded);
                it["recorded"].as_str().is_some_and(recorded_is) && it["came"] == *came
            };
            assert!(*code == 1 && differences.iter().any(is_it), "{kernel}, {name}: {json:#}");
        }
    }
}
