//! `rxe conform` on the command line, and with bad peers. `tests/tests/conform_peers.rs` plays the
//! cases.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::thread;

fn conform(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rxe")).arg("conform").args(options).output().unwrap()
}

/// Runs `rxe conform`, which must fail, and returns its one line of error.
fn error(options: &[&str]) -> String {
    let out = conform(options);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    assert!(out.stdout.is_empty() || options.contains(&"--only"), "{out:?}");
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

/// Starts a server that sends a greeting, gives these answers to requests, and closes the
/// connection.
fn somebody(greeting: &'static str, answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(greeting.as_bytes()).unwrap();
        let mut requests = BufReader::new(stream.try_clone().unwrap()).lines();
        for answer in answers {
            requests.next();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

const GREETING: &str = "ok 2 dev0 1 ::ffff:127.0.0.1 1024 16 1 0x0\n";

#[test]
fn mistakes_are_one_line_and_say_what_to_do() {
    assert!(error(&[]).contains("--peer"));
    let unknown = error(&["--peer", "127.0.0.1", "--only", "sendd"]);
    assert!(unknown.contains("no case or group \"sendd\": see `rxe conform --list`"), "{unknown}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let nobody = error(&["--peer", &closed]);
    assert!(
        nobody.contains(
            "nobody listens there: start `./peer` there first; if it has another port (-p)"
        ),
        "{nobody}"
    );
    assert!(error(&["--peer", "[::1"]).contains("names no peer: write HOST, HOST:PORT"));
    assert!(error(&["--peer", "127.0.0.1", "--timeout", "0"]).contains("1..=15"));
}

#[test]
fn a_peer_that_is_none_or_ends_is_said() {
    for (greeting, answers, what) in [
        ("SSH-2.0-OpenSSH\n", &[][..], "it answers in a way that no peer does"),
        (
            "ok 1 dev0 1 ::1 1024 16 1 0x0\n",
            &[],
            "speaks another version, or is no peer: compile what",
        ),
        ("ok 2 dev0 1 ::1 1024 16 1\n", &[], "speaks another version, or is no peer: compile what"),
        ("ok 2 dev0 1 ::1 1024 16 1 0y\n", &[], "says things that are no numbers"),
        ("ok 2 dev0 1 nowhere 1024 16 1 0x0\n", &[], "says things that are no numbers"),
        ("err no device has it: start the peer with -d\n", &[], "no device has it: start the peer"),
        ("", &[], "it has closed the connection"),
        (GREETING, &[], "case send could not be played: the peer is gone"),
        (
            GREETING,
            &["ok 0x11 0x1000 0x77 65536 0x0\n", "gibberish\n"],
            "in a way that no peer does",
        ),
        (
            "ok 2 dev0 1 fd00::1 1024 16 1 0x0\n",
            &[],
            "differ in address family: start the peer with -g",
        ),
        ("ok 2 dev0 1 ::ffff:127.0.0.1 128 16 1 0x0\n", &[], "the port of dev0 is not active"),
    ] {
        let somebody = somebody(greeting, answers);
        let said = error(&["--peer", &somebody, "--only", "send"]);
        assert!(said.contains(what), "{greeting}{answers:?}: {said}");
    }
}

#[test]
fn what_was_found_before_the_peer_is_gone_is_reported() {
    const OPENED: &str = "ok 0x11 0x1000 0x77 65536 0x0\n";
    // `send` cannot be set up, `rnr_nak` loses its peer, and `rnr_timer` is not played.
    let somebody = somebody(GREETING, &["err no more queue pairs\n", OPENED, "ok\n"]);
    let only = ["--only", "send,rnr_nak,rnr_timer"];
    let out = conform(&[&["--peer", &somebody, "--json"], &only[..]].concat());
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let found: Vec<_> = report["cases"].as_array().unwrap().iter().collect();
    let [send, gone] = found[..] else { panic!("{report:#}") };
    assert_eq!(
        (send["name"].as_str(), send["verdict"].as_str()),
        (Some("send"), Some("not testable"))
    );
    assert_eq!(
        (gone["name"].as_str(), gone["verdict"].as_str()),
        (Some("rnr_nak"), Some("deviates"))
    );
    assert!(gone["found"].as_str().unwrap().starts_with("the peer is gone after that"), "{gone:#}");
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("case rnr_nak could not be played: the peer is gone"), "{said}");
}

#[test]
fn what_the_device_does_not_have_is_not_testable() {
    let somebody = somebody(GREETING, &[]);
    let only = "flush,atomic_write,requests_flush,requests_atomic_write";
    let out = conform(&["--peer", &somebody, "--json", "--only", only]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let cases = report["cases"].as_array().unwrap();
    assert!(cases.iter().all(|case| case["verdict"] == "not testable"), "{report:#}");
    let found: Vec<_> = cases.iter().map(|case| case["found"].as_str().unwrap()).collect();
    let [write, flush] = ["the device has no ATOMIC WRITE", "the device has no FLUSH"];
    assert_eq!(found, [write, write, flush, flush]);
}

/// A report must not name the capture of an earlier run with another device.
#[test]
fn a_case_that_sends_nothing_has_no_capture() {
    let dir = tempfile::tempdir().unwrap();
    let earlier = dir.path().join("flush.pcapng");
    std::fs::write(&earlier, "of another device").unwrap();
    let somebody = somebody(GREETING, &[]);
    let captures = ["-w", dir.path().to_str().unwrap()];
    let args = [&["--peer", &somebody, "--json", "--only", "flush"][..], &captures].concat();
    let out = conform(&args);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    for case in report["cases"].as_array().unwrap() {
        assert_eq!((case["verdict"].as_str(), case.get("capture")), (Some("not testable"), None));
    }
    assert_eq!(std::fs::read_to_string(&earlier).unwrap(), "of another device");
}

#[test]
fn a_device_has_the_own_address() {
    for (chosen, what) in [
        (&["-d", "nobody"][..], "nobody"),
        (
            &["--device", "rxe_lo", "--address", "192.0.2.1"],
            "rxe_lo does not have the address 192.0.2.1: choose one that `rxe gids rxe_lo` lists",
        ),
        // These options are accepted, and the run begins.
        (&["--device", "lo", "--address", "127.0.0.3"], "case send could not be played"),
        (&["-d", "rxe_lo"], "case send could not be played"),
    ] {
        let somebody = somebody(GREETING, &[]);
        let said = error(&[&["--peer", &somebody, "--only", "send"], chosen].concat());
        assert!(said.contains(what), "{chosen:?}: {said}");
    }
}

#[test]
fn the_list_has_each_case_with_its_rule() {
    let list = String::from_utf8(conform(&["--list", "--only", "psn"]).stdout).unwrap();
    assert!(list.starts_with("psn\n  psn_wrap [9.7.1]\n"), "{list}");
    let json = conform(&["--list", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let first = &json[0];
    assert_eq!((first["name"].as_str(), first["group"].as_str()), (Some("send"), Some("messages")));
    assert!(first["rule"].is_string() && first["allows"].is_string(), "{first}");
}

#[test]
fn the_peer_program_is_printed() {
    let source = String::from_utf8(conform(&["--print-peer"]).stdout).unwrap();
    assert!(source.contains("int main(") && source.contains("infiniband/verbs.h"), "{source}");
}
