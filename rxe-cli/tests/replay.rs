//! `rxe send` and `rxe replay` on the command line, and with bad peers.
//! `tests/tests/replay_peers.rs` has live peers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;

mod decode_util;
use decode_util::{Pcapng, frames_of, run};

fn pcaps(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps").join(name).display().to_string()
}

/// Runs `rxe`, which must fail, and returns its one line of error.
fn error(args: &[&str]) -> String {
    let out = run(args);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), said.lines().count()), (Some(2), 1), "{args:?}: {said}");
    said
}

/// Starts a server that greets like a peer and answers each request with a line; `None` closes the
/// connection. `answer` gets the number of earlier requests and the first word.
fn somebody(answer: impl Fn(usize, &str) -> Option<&'static str> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"ok 2 dev0 1 ::ffff:127.0.0.1 1024 16 1 0x0\n").unwrap();
        let requests = BufReader::new(stream.try_clone().unwrap()).lines();
        for (before, request) in requests.map_while(Result::ok).enumerate() {
            let word = request.split(' ').next().unwrap_or_default();
            let Some(line) = answer(before, word) else { break };
            if writeln!(stream, "{line}").is_err() {
                break;
            }
        }
    });
    address
}

#[test]
fn a_wrong_file_or_command_line_is_one_line() {
    let write = pcaps("kernel-6.1/write.pcap");
    let both = pcaps("scenarios/huawei_send_imm.toml");
    let none = pcaps("scenarios/connectx_vf_ack_cnp.toml");
    let xrc = pcaps("scenarios/xrc_send.toml");
    let to = ["--to", "127.0.0.1:1"];
    for (args, what) in [
        (&["replay", &write][..], "--to"),
        (&["replay", "/nonexistent", to[0], to[1]], "/nonexistent: cannot be read"),
        (&["replay", "/etc/passwd", to[0], to[1]], "this is no capture"),
        (&["send", &write, to[0], to[1]], "write.pcap is no text: name a scenario"),
        (&["replay", &write, "--qp", "5", to[0], to[1]], "choose one with --qp: 10.47.91.11 >"),
        (&["send", &both, to[0], to[1]], "to 2 queue pairs: choose one with --qp: 192.168.70.4 >"),
        (&["send", &none, to[0], to[1]], "has no requests of RC, UC or UD"),
        (
            &["send", &xrc, to[0], to[1]],
            "belongs to XRC: only packets of RC, UC and UD can be played",
        ),
        (
            &["replay", &write, to[0], to[1]],
            "nobody listens there: start `./peer` there first; if it has another port (-p)",
        ),
        (&["replay", &write, "--count", "0", to[0], to[1]], "1..=1000000"),
        (&["replay", &write, "--access", "all", to[0], to[1]], "remote_write, remote_read"),
        (
            &["replay", &write, "--access", "none,remote_read", to[0], to[1]],
            "none together with a right: write none alone",
        ),
        (&["replay", &write, "--to", "127.0.0.1:0"], "[IPV6]:PORT, with a port from 1 to 65535"),
    ] {
        let said = error(args);
        assert!(said.contains(what), "{args:?}: {said}");
    }
}

#[test]
fn a_capture_that_is_cut_or_changed_is_said_and_never_crashes() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(pcaps("kernel-6.1/read.pcap")).unwrap();
    let file = |bytes: &[u8]| -> PathBuf {
        let path = dir.path().join("changed.pcap");
        fs::write(&path, bytes).unwrap();
        path
    };
    for len in [0, 10, 24, 30, 100, whole.len() - 1] {
        let path = file(&whole[..len]);
        let said = error(&["replay", path.to_str().unwrap(), "--to", "127.0.0.1:1"]);
        // The file is checked before the peer is connected.
        assert!(said.contains("changed.pcap") && !said.contains("nobody listens"), "{len}: {said}");
    }
    for at in (24..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        let path = file(&bytes);
        error(&["replay", path.to_str().unwrap(), "--to", "127.0.0.1:1"]);
    }
}

#[test]
fn a_frame_that_was_cut_too_much_is_named_before_the_peer_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapped.pcapng");
    // In frame 1, the RETH of the WRITE ends at byte 70 and the BTH at byte 54.
    for (snaplen, what) in [(64, "headers: capture whole frames (tcpdump -s 0)"), (50, "headers")] {
        let mut file = Pcapng::new();
        for (nth, frame) in (0..).zip(frames_of(Path::new(&pcaps("kernel-6.1/write.pcap")))) {
            file.packet(1, nth * 10_000, &frame[..frame.len().min(snaplen)], frame.len());
        }
        fs::write(&path, file.bytes).unwrap();
        let said = error(&["replay", path.to_str().unwrap(), "--to", "127.0.0.1:1"]);
        let frame = "frame 1 was captured without the end of its ";
        assert!(said.contains(&format!("{frame}{what}")), "{said}");
    }
}

#[test]
fn a_peer_that_lies_is_said() {
    let read = pcaps("kernel-6.1/read.pcap");
    for (answers, what) in [
        (&["err ibv_reg_mr: no"][..], "the peer refuses: ibv_reg_mr: no"),
        (&["ok 0x11 0x1000 0x77 64 0"], "use 320 B, and the peer's region has 64 B: send fewer"),
        (&["ok 0x11 what 0x77 64 0"], "the peer's answer to open is strange"),
        (&["ok 0x11 0x1000 0x77 99999999999999 0", "gibberish"], "in a way that no peer does"),
        (&["ok 0x11 0x1000 0x77 65536 0"], "the peer is gone"),
    ] {
        let peer = somebody(move |before, _| answers.get(before).copied());
        let said = error(&["replay", &read, "--to", &peer]);
        assert!(said.contains(what), "{answers:?}: {said}");
    }
}

#[test]
fn a_peer_that_says_more_or_less_than_it_was_asked_is_refused() {
    let file = pcaps("scenarios/uc_write.toml");
    for (request, lie) in [("poll", "ok 2 0:0:0:8 1:0:0:8"), ("read", "ok 10"), ("read", "ok")] {
        let peer = somebody(move |_, word| {
            Some(match word {
                _ if word == request => lie,
                "open" => "ok 0x11 0x1000 0x77 65536 0",
                "poll" => "ok 0",
                _ => "ok",
            })
        });
        let said = error(&["send", &file, "--timeout", "1", "--to", &peer]);
        let what = format!("the peer's answer to {request} is strange");
        assert!(said.contains(&what), "{lie}: {said}");
    }
}

/// The report is printed nevertheless.
#[test]
fn a_capture_that_can_not_be_written_is_an_error() {
    let peer = somebody(|_, word| {
        Some(match word {
            "open" => "ok 0x11 0x1000 0x77 65536 0",
            "poll" => "ok 0",
            _ => "ok",
        })
    });
    let file = pcaps("scenarios/ud_send.toml");
    let out = run(&["send", &file, "--timeout", "1", "--to", &peer, "-w", "/dev/full"]);
    let (shown, said) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(2), "{shown}{said}");
    assert!(shown.contains("sent 2 of 2"), "{shown}");
    let what =
        "the capture /dev/full is not whole: No space left on device (os error 28): name another";
    assert!(said.contains(what), "{said}");
}

#[test]
fn help_has_an_example() {
    for (command, example) in [
        ("send", "Example: rxe send pcaps/scenarios/rnr_nak.toml --to"),
        ("replay", "Example: rxe replay bug.pcapng --to"),
    ] {
        let text = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        assert!(text.contains(example), "{text}");
    }
}
