//! Tests of `rxe conform` against this engine: the peer program runs under `rxe run`, as it would
//! on an adapter. `docs/en/reference/conformance-report.md` has the results of the cases with real
//! kernels.

mod common;

use common::{PEER, alone, start_peer};
use rxe_harness::c::Compiled;
use rxe_harness::conform::Over;
use rxe_harness::vm::KNOWN;
use rxe_harness::{everything, or_skip, skipped};
use serde_json::Value;

/// The compiler options of the peer, with the communication manager and without.
const WITH_CM: &[&str] = &["-DWITH_CM", "-libverbs", "-lrdmacm"];
const WITHOUT_CM: &[&str] = &["-libverbs"];

/// The addresses of the peer.
const V4: &str = "10.9.0.2";
const V6: &str = "fd09::2";

/// The cases in which this engine deviates, with the decision that explains why.
const EXPLAINED: [&str; 1] = [
    "retry_exhausted", // 038: within a try, the oldest packet is sent again earlier.
];

/// Runs the peer with `rxe run RUN`, then `rxe conform OPTIONS`, then the commands `after`. These
/// run in the directory of the peer's files. Returns the JSON, the exit code and the output of
/// `after`.
#[track_caller]
fn conform(test: &str, run: &str, options: &str, after: &str) -> Option<(Value, i32, String)> {
    conform_with(WITH_CM, V4, test, run, options, after)
}

#[track_caller]
fn conform_with(
    compiled: &[&str],
    peer: &str,
    test: &str,
    run: &str,
    options: &str,
    after: &str,
) -> Option<(Value, i32, String)> {
    let c = or_skip(Compiled::linked(&[PEER], compiled))?;
    let start = start_peer(&c, run);
    let script = format!(
        r#"
        set +e
        {start}
        timeout 100 $RXE conform --peer {peer} --json {options} > out 2> err
        code=$?
        kill $peer
        cat out err
        echo "--$code--"
        {after}
        exit 0
        "#
    );
    let said = alone(test, "cc", &script)?;
    let (json, rest) = said.split_once("\n--").expect("a line with the exit code");
    let (code, after) = rest.split_once("--").expect("the exit code");
    let json = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {said}"));
    Some((json, code.parse().unwrap(), after.to_owned()))
}

fn cases(json: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let all = json["cases"].as_array().unwrap().iter();
    all.map(|case| (case["name"].as_str().unwrap(), case["verdict"].as_str().unwrap(), case))
}

#[test]
fn our_engine_conforms_and_each_report_has_all_cases() {
    let options = "--timeout 15 -w captures --junit report.xml --html report.html";
    let after = r#"
        grep -c '<testcase' report.xml
        grep -c '<details' report.html
        ls captures | wc -l
        for file in captures/*; do $RXE decode $file > decoded || echo "$file: no capture"; done
        $RXE decode captures/duplicate_send.pcapng | grep -c SEND_ONLY"#;
    let Some((json, code, after)) = conform("conform", "", options, after) else { return };
    assert_conforms(&json);
    let count = cases(&json).count();
    assert!(count > 265, "{count} cases");
    let any = cases(&json).any(|(_, verdict, _)| verdict == "deviates");
    assert_eq!(code, i32::from(any));
    let after: Vec<_> = after.split_whitespace().collect();
    let count = count.to_string();
    assert_eq!(after, [&count, &count, &count, "2"], "JUnit, HTML, captures, SENDs in one of them");
}

#[test]
fn our_engine_conforms_over_ipv6() {
    let Some((json, ..)) = conform_with(WITH_CM, V6, "conform over IPv6", "", "", "") else {
        return;
    };
    assert_conforms(&json);
    assert_eq!(json["peer"], V6);
}

/// Checks that all cases conform, except those that are explained.
#[track_caller]
fn assert_conforms(json: &Value) {
    for (name, verdict, case) in cases(json) {
        let explained = verdict == "deviates" && EXPLAINED.contains(&name);
        assert!(verdict == "conforms" || explained, "{case:#}");
    }
}

#[test]
fn a_peer_that_does_something_else_deviates() {
    for (fault, name, found) in [
        // A missing answer, a superfluous one, and one in the wrong order.
        ("out: drop only opcode=ack", "send", "ACK +0 was expected, nothing came within 4 s"),
        ("out: dup only opcode=ack", "one_nak_for_a_gap", "NAK PSN sequence error +0 came, which"),
        ("out: dup only opcode=atomic_ack", "fetch_add", "value 0x1111111111111111 came"),
        // A superfluous request.
        (
            "out: dup only opcode=RC_SEND_ONLY",
            "coalesced_ack",
            "+1, 8 B was expected, SEND ONLY +0",
        ),
        // A missing request.
        ("wc=REM_OP@msg 1", "nak_remote_access", "SEND ONLY +0, 8 B was expected, nothing came"),
        // The peer's program is not notified, and its memory is not written.
        (
            "in: drop only opcode=UC_SEND_LAST",
            "uc_send",
            "should be [1: success, 264 B], but are []",
        ),
        ("in: drop only opcode=UC_WRITE_ONLY", "uc_write", "memory is 0x11, not 0x80"),
        // A window stays open, and a bind fails.
        (
            "in: drop only opcode=RC_SEND_ONLY_WITH_INVALIDATE",
            "send_with_invalidate",
            "ACK +0 was expected, nothing came",
        ),
        (
            "wc=LOC_QP_OP@msg 1",
            "window_type_2",
            "should be [90: success], but are [90: local QP operation error]",
        ),
        // A receive of a shared queue does not complete.
        ("in: drop only opcode=UD_SEND_ONLY", "srq_datagrams", "2: success, 48 B], but are []"),
        // XRC: an unexpected NAK, and a lost request.
        (
            "out: dup only opcode=XRC_ACKNOWLEDGE",
            "xrc_gap",
            "NAK PSN sequence error +0 came, which",
        ),
        (
            "out: drop only opcode=XRC_SEND_ONLY",
            "xrc_sequence_nak",
            "XRC SEND ONLY +0, 8 B was expected",
        ),
        // No answer to an ATOMIC WRITE, and a superfluous one to a FLUSH.
        (
            "out: drop only opcode=read_response",
            "atomic_write",
            "READ RESPONSE ONLY +0, 0 B was expected, nothing came within 4 s",
        ),
        (
            "out: dup only opcode=read_response",
            "duplicate_flush",
            "READ RESPONSE ONLY +0, 0 B came, which nothing allows",
        ),
        // The communication manager sends nothing, and too much.
        ("out: drop only opcode=UD_SEND_ONLY", "cm_connect", "REP was expected, nothing came"),
        ("out: dup only opcode=UD_SEND_ONLY", "cm_rep_within_retries", "the REP came a third time"),
    ] {
        let run = format!("--fault '{fault}'");
        // A missing packet costs the whole timeout.
        let options = format!("--timeout 4 --only {name}");
        let Some((json, code, _)) = conform(fault, &run, &options, "") else { return };
        let (_, verdict, case) = cases(&json).next().unwrap();
        assert_eq!((verdict, code), ("deviates", 1), "{fault}: {case:#}");
        let text = case["found"].as_str().unwrap();
        assert!(text.contains(found), "{fault}: {text}");
    }
}

#[test]
fn what_the_device_refuses_is_not_testable() {
    let fault = "--fault 'errno=ENOMEM@ibv_create_qp'";
    let only = "--only send,requests_flush,cm_connect";
    let Some((json, code, _)) = conform_with(WITHOUT_CM, V4, "refused", fault, only, "") else {
        return;
    };
    let found: Vec<_> = cases(&json)
        .map(|(_, verdict, case)| {
            assert_eq!((verdict, code), ("not testable", 0), "{case:#}");
            case["found"].as_str().unwrap()
        })
        .collect();
    let no_cm = "the peer has no librdmacm: cc -DWITH_CM peer.c -o peer -libverbs -lrdmacm";
    let no_pair = "ibv_create_qp: Cannot allocate memory";
    let no_flush = "ibv_create_qp_ex with send_ops_flags: Cannot allocate memory";
    assert_eq!(found, [no_pair, no_flush, no_cm]);
}

#[test]
fn the_peer_refuses_bad_requests_and_goes_on() {
    let Some(c) = or_skip(Compiled::linked(&[PEER], WITH_CM)) else { return };
    let start = start_peer(&c, "");
    let script = format!(
        r#"
        $RXE conform --print-peer > peer.c
        cc -Wall -Wextra -Werror peer.c -o peer -libverbs
        {start}
        cat > talk <<'END'
        exec 3<> /dev/tcp/10.9.0.2/18520
        read -u 3 line
        ask() {{ echo "$1" >&3; read -t 60 -u 3 line || line="no answer"; echo "$line"; }}
        ask ""
        ask "poll 1 1"
        ask "open xx 15"
        ask "open rc 99999999999999999999"
        ask "open rc 15" | cut -c 1-4
        ask "read 65536 1"
        ask "read 65000 1000"
        ask "read -1 1"
        ask "recv 1 65535 2 0"
        ask "poll 33 0"
        ask "poll 1 20001"
        ask "connect x 1 2 3 4 5 6 7 8 9 10 11"
        ask "post jump 1 0 8 0 0 0 0"
        ask "fill 0 65537 1"
        ask "write 65536 00"
        ask "write 0 123"
        ask "write 0 0G"
        ask "open rc 15 srqs"
        ask "open cm 15 flush"
        ask "open rc 65536"
        ask "post flush 1 0 8 0 0 1 0"
        ask "post send 1 0 8 0 0 0 0 16777216"
        ask "post atomic_write 1 0 8 0 0 0 0"
        ask "open cm 15 srq"
        ask "limit 1"
        ask "async x"
        ask "window 3"
        ask "bind 1 0 8 4"
        ask "bind 1 65537 8 4"
        ask "open rc 15 srq" | cut -c 1-4
        ask "limit 33"
        ask "limit 0"
        ask "async 0"
        ask "window 2" | cut -c 1-4
        ask "bind 1 0 8 65536"
        ask "reset"
        ask "close"
        ask "reset"
        ask "a b c d e f g h i j k l m n o p q r s t"
        ask "listen tcp 4000"
        ask "open cm x"
        ask "open cm 15" | cut -c 1-6
        ask "state"
        ask "listen tcp 0"
        ask "listen tcp 65536"
        ask "dial tcp here 4000 -"
        ask "dial tcp ::1 4000 0"
        ask "accept -"
        ask "reject xy"
        ask "accept $(printf '%0202d' 0)"
        ask "event -1"
        ask "disconnect"
        ask "event 0"
        ask "open rc 15" | cut -c 1-4
        ask "event 0"
        ask "state"
        ask "$(printf '%0300d' 0)"
        ask "state"
END
        bash talk
        # The connection is closed; the next is served.
        bash -c 'exec 3<> /dev/tcp/10.9.0.2/18520; read -u 3 line; echo "$line"' | cut -c 1-4
        kill $peer"#
    );
    let Some(said) = alone("bad requests", "cc", &script) else { return };
    let lines: Vec<_> = said.lines().map(str::trim_end).collect();
    let refused = |line: &&str| line.starts_with("err ");
    let [first @ .., state, too_long, gone, again] = &lines[..] else { panic!("{said}") };
    assert_eq!((*state, *gone, *again), ("ok RESET", "no answer", "ok 2"), "{said}");
    assert!(too_long.contains("at most 254 bytes"), "{said}");
    let good: Vec<_> = first.iter().filter(|line| !refused(line)).collect();
    let [opened, none] = ["ok 0", "ok 0x0"];
    let wanted = [opened, opened, "ok", "ok", opened, "ok", "ok", none, "ok", opened];
    assert!(good.into_iter().eq(&wanted), "{said}");
    assert_eq!(first.len(), 55, "{said}");
}

/// The page of `rxe conform` explains how to try it on one host.
#[test]
fn the_example_on_one_host_is_right() {
    let page = include_str!("../../docs/en/reference/commands/conform.md");
    let (_, rest) = page.split_once("Without another host, try it on this one:").unwrap();
    let block = rest.split("```").nth(1).unwrap();
    let lines: Vec<_> = block.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert_eq!(lines.len(), 3, "{block}");
    let script = format!(
        r#"
        rxe() {{ timeout 60 $RXE "$@"; }}
        {} --only send --json"#,
        lines.join("\n")
    );
    let Some(said) = alone("conform on one host", "cc", &script) else { return };
    let verdicts = said.lines().filter(|line| line.contains("\"verdict\""));
    assert!(verdicts.map(str::trim).eq(["\"verdict\": \"conforms\","]), "{said}");
}

/// `cargo xtask conform` writes the page.
#[test]
fn kernels_do_what_the_report_says() {
    if !everything() {
        return skipped("kernels_do_what_the_report_says", "only with --all");
    }
    let page = include_str!("../../docs/en/reference/conformance-report.md");
    for (kernel, over) in KNOWN.into_iter().flat_map(|kernel| Over::ALL.map(|over| (kernel, over)))
    {
        let Some(run) = or_skip(rxe_harness::conform::kernel(kernel, over, common::rxe())) else {
            continue;
        };
        let differences = rxe_harness::conform::differences(page, &run);
        assert!(differences.is_empty(), "{kernel} {over:?}:\n{}", differences.join("\n"));
    }
}
