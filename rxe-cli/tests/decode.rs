//! `rxe decode`: its output for good files, and its errors for bad ones.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

mod decode_util;
/// One frame inside each encapsulation. The unit tests of the decoder use the same table.
#[path = "../../rxe-lab/src/frame/tests/encapsulations.rs"]
#[allow(dead_code, reason = "the unit tests use all of it")]
mod encapsulations;
mod util;
use decode_util::{Pcapng, frames_of, run};
use util::RXE;

/// Returns the path of a capture of the project.
fn pcap(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps").join(name)
}

/// Returns the standard output of `rxe decode` with these arguments, which must succeed.
#[track_caller]
fn decoded(file: &Path, options: &[&str]) -> String {
    let out = run(&[&["decode", file.to_str().unwrap()], options].concat());
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn each_packet_is_a_line_and_the_last_line_counts() {
    let text = decoded(&pcap("kernel-6.1/rnr_late.pcap"), &[]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        "     1   0.000000 10.47.91.11 > 10.47.91.12 0x00001a 0xfffffc RC_SEND_FIRST len 256"
    );
    assert!(lines[2].ends_with("RC_ACKNOWLEDGE RNR NAK: try again after 2.56 ms, MSN 0"));
    assert!(lines[4].ends_with("RC_SEND_FIRST len 256, retransmitted"));
    let last = format!("{0} frames in 0.", lines.len() - 1);
    assert!(lines.last().unwrap().starts_with(&last), "{lines:?}");
    assert!(lines.last().unwrap().ends_with(&format!("{} RDMA packets", lines.len() - 1)));
}

#[test]
fn filters_take_what_they_say() {
    let file = pcap("kernel-6.1/rnr_late.pcap");
    let count = |options: &[&str]| decoded(&file, options).lines().count() - 1;
    let all = count(&[]);
    let sends = count(&["--opcode", "send"]);
    let acks = count(&["--opcode", "rc-acknowledge"]);
    assert!(sends > 0 && acks > 0 && sends + acks == all, "{sends} + {acks} of {all}");
    assert_eq!(count(&["--opcode", "0x11"]), acks);
    assert_eq!(count(&["--addr", "10.47.91.11"]), all);
    assert_eq!(count(&["--addr", "10.47.91.99"]), 0);
    assert_eq!((count(&["--qp", "0x1a"]), count(&["--qp", "26,9"]), count(&["--qp", "9"])), {
        (all, all, 0)
    });
    let first = count(&["--psn", "0xfffffc"]);
    assert!(first > 0 && first < all && count(&["--psn", "0xfffffc-5"]) == all);
    let again = count(&["--only", "retransmitted"]);
    let said = decoded(&file, &[]);
    assert_eq!(again, said.lines().filter(|line| line.ends_with("retransmitted")).count());
    assert_eq!(count(&["--only", "nak", "--opcode", "send"]), 0);
    assert!(decoded(&file, &["--only", "nak"]).contains(" shown)"));
}

#[test]
fn the_summary_alone_is_the_last_line() {
    let file = pcap("kernel-6.1/rnr_late.pcap");
    let last = |text: &str| text.lines().last().unwrap().to_owned() + "\n";
    let all = decoded(&file, &["--summary"]);
    assert_eq!(all, last(&decoded(&file, &[])));
    let sends = decoded(&file, &["--summary", "--opcode", "send"]);
    let shown = last(&decoded(&file, &["--opcode", "send"]));
    assert_eq!(sends, shown.replace(" shown)", " taken by the filters)"));
    assert!(sends.contains(" taken by the filters)"), "{sends}");
    let out = run(&["decode", file.to_str().unwrap(), "--summary", "-v"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("cannot be used with"), "{said}");
    let numbers = decoded(&file, &["--summary", "--json", "--opcode", "send"]);
    let numbers: serde_json::Value = serde_json::from_str(&numbers).unwrap();
    let [frames, packets, taken] =
        ["frames", "rdma_packets", "taken"].map(|name| numbers[name].as_u64().unwrap());
    assert!(frames >= packets && packets > taken && taken > 0, "{numbers}");
    assert!(sends.starts_with(&format!("{frames} frames ")), "{sends}");
    // The frames before the cut are counted.
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.pcap");
    let bytes = fs::read(&file).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let out = run(&["decode", "--summary", cut.to_str().unwrap()]);
    assert_eq!((out.status.code(), out.stdout.split(|b| *b == b'\n').count()), (Some(1), 2));
}

#[test]
fn the_help_says_of_each_value_of_only_what_it_takes() {
    let help = String::from_utf8(run(&["decode", "--help"]).stdout).unwrap();
    let (_, values) = help.split_once("- retransmitted:").unwrap();
    let (values, _) = values.split_once("\n\n").unwrap();
    let said: Vec<_> = values.split("\n          - ").skip(1).collect();
    let said: Vec<_> = said.iter().map(|value| value.split_once(": ").unwrap()).collect();
    let texts: BTreeSet<_> = said.iter().map(|(_, text)| text.trim()).collect();
    assert!(texts.len() == said.len() && !texts.contains(""), "{values}");
    let rnr = said.iter().find(|(name, _)| *name == "rnr-never").unwrap().1.trim();
    assert_eq!(rnr, "A message was refused by RNR NAKs and never taken");
}

#[test]
fn only_takes_the_frames_of_a_finding_and_reads_the_capture_twice() {
    let file = pcap("scenarios/ack_late.pcap");
    let shown = |options: &[&str]| {
        let text = decoded(&file, options);
        let number = |line: &str| line.split_whitespace().next()?.parse::<u64>().ok();
        // The last line is the summary.
        let lines: Vec<_> = text.lines().collect();
        lines[..lines.len() - 1].iter().filter_map(|line| number(line)).collect::<Vec<_>>()
    };
    let named = run(&["check", "--json", file.to_str().unwrap()]);
    let named: Value = serde_json::from_slice(&named.stdout).unwrap();
    let finding = &named[0]["findings"][0];
    assert_eq!(finding["kind"], "ack-late");
    let frames: Vec<_> =
        finding["frames"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!(shown(&["--only", "ack-late"]), frames);
    assert!(frames.len() == 3 && shown(&["--only", "rnr-nak"]).is_empty());
    // The finding together with properties of the packets themselves, and with other filters.
    let again = shown(&["--only", "retransmitted"]);
    assert_eq!(again, [frames[1]]);
    assert_eq!(shown(&["--only", "retransmitted,ack-late"]), frames);
    assert_eq!(shown(&["--only", "ack-late", "--opcode", "acknowledge"]), [frames[2]]);

    // Standard input can be read twice if it is a file.
    let decode = |stdin: Stdio| {
        let rxe = env!("CARGO_BIN_EXE_rxe");
        let args = ["decode", "-", "--only", "ack-late"];
        Command::new(rxe).args(args).stdin(stdin).output().unwrap()
    };
    let out = decode(fs::File::open(&file).unwrap().into());
    assert!(out.status.success(), "{out:?}");
    assert_eq!(String::from_utf8(out.stdout).unwrap(), decoded(&file, &["--only", "ack-late"]));
    let out = decode(Stdio::piped());
    let said = "rxe: --only with a finding of rxe check reads the capture twice, and standard input \
                is no file: save the capture to a file first\n";
    assert_eq!(String::from_utf8(out.stderr).unwrap(), said);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    // All frames before the cut are shown.
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.pcap");
    let bytes = fs::read(&file).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    let out = run(&["decode", cut.to_str().unwrap(), "--only", "ack-late"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(String::from_utf8(out.stdout).unwrap().lines().count(), frames.len() + 1);
}

/// A capture of two places is read once more, without the copies, as by `rxe check`.
#[test]
fn only_takes_the_frames_of_a_finding_in_a_capture_of_two_places() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("two.pcapng");
    let mut file = Pcapng::new();
    for (at, frame) in (0..).zip(frames_of(&pcap("kernel-6.1/rnr_late.pcap"))) {
        for copy in [0, 1000] {
            file.packet(1, at * 1_000_000 + copy, &frame, frame.len());
        }
    }
    fs::write(&path, &file.bytes).unwrap();
    let named = run(&["check", "--json", path.to_str().unwrap()]);
    let named: Value = serde_json::from_slice(&named.stdout).unwrap();
    let kinds: Vec<_> = named[0]["kinds"].as_array().unwrap().iter().collect();
    assert_eq!((&kinds[0]["kind"], &kinds[1]["kind"]), (&"rnr-nak".into(), &"two-places".into()));
    let text = decoded(&path, &["--only", "rnr-nak"]);
    // The last line is the summary.
    let lines: Vec<_> = text.lines().collect();
    let numbers = lines[..lines.len() - 1].iter().map(|line| line.split_whitespace().next());
    let shown: Vec<u64> = numbers.map(|number| number.unwrap().parse().unwrap()).collect();
    // Nine RNR NAKs and their requests, of which the first copies count.
    assert!(shown.len() == 18 && shown.iter().all(|number| number % 2 == 1), "{text}");
    let findings = named[0]["findings"].as_array().unwrap().iter();
    let frames = findings.filter(|it| it["kind"] == "rnr-nak").map(|it| it["frames"].as_array());
    for frame in frames.flat_map(Option::unwrap) {
        assert!(shown.contains(&frame.as_u64().unwrap()), "{frame}: {text}");
    }
}

#[test]
fn verbose_names_every_field_with_its_offset() {
    let text = decoded(&pcap("cm-kernel-6.1/rping.pcap"), &["-v"]);
    for line in [
        "           0  Destination ",
        "          42  OpCode                      100 (UD_SEND_ONLY)",
        "          51  PSN                         0x000000",
        "          54  Q_Key                       0x80010000",
        "          62  BaseVersion                 1",
        "          86  LocalCommunicationID        0x",
        "         100  DestinationPort             7174",
        "         226  MajorVersion                0",
        "         242  SourceAddress               10.47.91.",
        "         262  PrivateData                 ",
        "         318  ICRC                        0x",
    ] {
        assert!(text.lines().any(|l| l.starts_with(line)), "{line:?} is not in {text}");
    }
    let json = decoded(&pcap("cm-kernel-6.1/rping.pcap"), &["-v", "--json"]);
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["offsets"]["BTH"], &first["BTH"]["OpCode"]), (&42.into(), &100.into()));
    assert_eq!((&first["message"], &first["icrc"]), (&"REQ".into(), &"right".into()));
    let (service, addresses) = (&first["IP_CM_Service"], &first["IP_CM"]);
    assert_eq!((&service["DestinationPort"], &addresses["IPVersion"]), (&7174.into(), &4.into()));
    assert_eq!(&first["REQ"]["ServiceID"], "0x0000000001061c06");
    assert!(first["REQ"]["PrivateData"].is_null() && addresses["PrivateData"].is_string());
}

#[test]
fn packets_in_one_frame_are_shown_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gso.pcapng");
    let frames = frames_of(&pcap("kernel-6.1/write.pcap"));
    let ack = frames.iter().find(|frame| frame[42] == 0x11).unwrap();
    let mut frame = ack.clone();
    frame.extend_from_slice(&ack[42..]);
    let more = u16::try_from(ack.len() - 42).unwrap();
    for at in [16, 38] {
        let len = u16::from_be_bytes([frame[at], frame[at + 1]]) + more;
        frame[at..at + 2].copy_from_slice(&len.to_be_bytes());
    }
    let mut file = Pcapng::new();
    file.packet(1, 5, &frame, frame.len());
    fs::write(&path, file.bytes).unwrap();
    let text = decoded(&path, &[]);
    let lines: Vec<_> = text.lines().collect();
    for (nth, line) in lines[..2].iter().enumerate() {
        assert!(line.trim_start().starts_with(&format!("1.{} ", nth + 1)), "{line}");
        let said = format!("packet {} of 2 in one frame (GSO or GRO), ACK, MSN 1", nth + 1);
        assert!(line.contains(&said), "{line}");
    }
    assert!(lines[2].ends_with("2 RDMA packets, 1 frame with several packets (GSO or GRO)"));
    let json = decoded(&path, &["--json"]);
    let second: Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
    assert_eq!((&second["segment"], &second["segments"]), (&2.into(), &2.into()));
}

#[test]
fn bad_files_are_one_line_with_the_frame_after_everything_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let good = fs::read(pcap("kernel-6.1/send.pcap")).unwrap();
    let gzip = {
        let path = dir.path().join("send.pcap");
        fs::write(&path, &good).unwrap();
        let zipped = Command::new("gzip").arg("-c").arg(&path).output().unwrap().stdout;
        zipped[..zipped.len() - 30].to_vec()
    };
    let mut damaged = good.clone();
    damaged[24 + 8..24 + 12].fill(0xff);
    // The ranges count the printed lines: the frames before the defect, and the summary.
    let cases: [(&str, &[u8], std::ops::RangeInclusive<usize>, &str); 9] = [
        ("empty", b"", 0..=0, "the file is empty"),
        ("garbage", &[7; 1000], 0..=0, "this is no capture"),
        ("cut", &good[..good.len() - 3], 15..=15, "are left: the frames before it are shown"),
        ("damaged", &damaged, 1..=1, "frame 1, at byte 24: the file is damaged here"),
        ("header", &good[..20], 0..=0, "the file ends here: 20 of 24 bytes are left"),
        ("zipped", &gzip, 2..=15, "the compressed file ends here"),
        (
            "snoop",
            b"snoop\0\0\0\0\0\0\x02\0\0\0\x04",
            0..=0,
            "this is a snoop capture, which is not read here: `editcap -F pcapng FILE out.pcapng`",
        ),
        (
            "xz",
            b"\xfd7zXZ\0\0\x04",
            0..=0,
            "xz, which is not read here: `xz -dc FILE | rxe decode -`",
        ),
        ("bzip2", b"BZh9", 0..=0, "this is compressed with bzip2, which is not read here"),
    ];
    for (name, bytes, printed, said) in cases {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        for json in [&[][..], &["--json"]] {
            let out = run(&[&["decode", path.to_str().unwrap()], json].concat());
            let err = String::from_utf8_lossy(&out.stderr);
            let err = err.lines().filter(|l| l.starts_with("rxe: ")).collect::<Vec<_>>();
            assert_eq!(out.status.code(), Some(1), "{name}: {out:?}");
            assert!(err.len() == 1 && err[0].contains(said), "{name}: {err:?}");
            let lines = String::from_utf8_lossy(&out.stdout).lines().count();
            assert!(printed.contains(&lines) || !json.is_empty(), "{name}: {lines} lines");
        }
    }
    // The end of the message says what each command does with the frames before the cut.
    let cut = dir.path().join("cut");
    let cut = cut.to_str().unwrap();
    let sent = format!("nothing is sent; `editcap {cut} NEW` makes a file of the whole frames");
    for (args, before) in [
        (&["decode", cut, "--summary"][..], "the frames before it are counted"),
        (&["check", cut], "the frames before it are checked"),
        (&["ladder", cut], "the frames before it are drawn"),
        (&["replay", cut, "--to", "127.0.0.1:1"], &sent),
    ] {
        let err = String::from_utf8(run(args).stderr).unwrap();
        assert!(
            err.contains("frame 15, at byte ") && err.ends_with(&format!("{before}\n")),
            "{err}"
        );
    }
    let out = run(&["decode", "/nonexistent/x.pcap"]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.starts_with("rxe: /nonexistent/x.pcap: cannot be read: No such file"), "{err}");
    let out = run(&["decode", "/"]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let out = run(&["decode", "--psn", "5-x", "file"]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
}

#[test]
fn frames_cut_by_a_snap_length_are_shown_as_far_as_they_go() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapped.pcapng");
    let mut file = Pcapng::new();
    for (nth, frame) in (0..).zip(frames_of(&pcap("kernel-6.1/write.pcap"))) {
        file.packet(1, nth, &frame[..frame.len().min(60)], frame.len());
    }
    fs::write(&path, file.bytes).unwrap();
    let text = decoded(&path, &[]);
    let first = text.lines().next().unwrap();
    assert!(first.contains("RC_WRITE_ONLY") && !first.contains("VA "), "{first}");
    assert!(first.ends_with("ICRC not checked: not captured whole"), "{first}");
    assert!(decoded(&path, &["-v"]).contains(" bytes captured\n"));
}

#[test]
fn a_ladder_is_drawn_as_text_picture_and_page() {
    let dir = tempfile::tempdir().unwrap();
    let file = pcap("kernel-6.1/rnr_late.pcap");
    let file = file.to_str().unwrap();
    let drawn = |locale| {
        let mut rxe = Command::new(RXE);
        let out = rxe.args(["ladder", file, "--qp", "0x1a"]).env("LC_ALL", locale).output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    };
    let text = drawn("C");
    assert!(text.contains("|- SEND_FIRST ... SEND_LAST PSN 0xfffffc-0xfffffd x2 257 B"), "{text}");
    assert!(text.is_ascii(), "{text}");
    let text = drawn("C.UTF-8");
    assert!(text.contains("│─ SEND_FIRST … SEND_LAST PSN 0xfffffc–0xfffffd ×2 257 B"), "{text}");
    assert!(text.contains("RNR NAK: try again after 2.56 ms (QP 0x00001a) ─│"), "{text}");
    let (svg, html) = (dir.path().join("l.svg"), dir.path().join("l.html"));
    let [picture, page] = [&svg, &html].map(|path| path.to_str().unwrap());
    let out = run(&["ladder", file, "--svg", picture, "--html", page]);
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    let picture = fs::read_to_string(svg).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert!(fs::read_to_string(html).unwrap().contains(&picture));
    let svg = dir.path().join("nak.svg");
    let out = run(&[
        "ladder",
        pcap("scenarios/psn_sequence_nak.pcap").to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    assert!(out.status.success(), "{out:?}");
    let shown = fs::read_to_string(pcap("../docs/ladder/nak.svg")).unwrap();
    let drawn = fs::read_to_string(svg).unwrap();
    let piped =
        run(&["ladder", pcap("scenarios/psn_sequence_nak.pcap").to_str().unwrap(), "--svg", "-"]);
    assert!(piped.stdout == drawn.as_bytes() && !Path::new("-").exists(), "{piped:?}");
    assert!(drawn == shown, "the picture in the docs is another: cargo xtask docs --pictures");
    for (args, said) in [
        (&["ladder", file, "--qp", "9"][..], "rnr_late.pcap goes to the queue pairs of --qp: `"),
        (&["ladder", file, "--svg", "/nonexistent/l.svg"], "cannot write /nonexistent/l.svg"),
        (&["ladder", "/nonexistent/x.pcap"], "/nonexistent/x.pcap: cannot be read"),
    ] {
        let out = run(args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && err.contains(said), "{err}");
    }
}

#[test]
fn standard_input_is_read_as_it_comes_and_a_closed_output_is_no_error() {
    let file = fs::read(pcap("kernel-6.1/rnr_late.pcap")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_rxe"))
        .args(["decode", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    // The first packet is shown while the input is still open.
    let first = 24 + 16 + 14 + 20 + 8 + 12 + 256 + 4;
    input.write_all(&file[..first]).unwrap();
    let mut line = [0; 78];
    output.read_exact(&mut line).unwrap();
    assert!(line.starts_with(b"     1   0.000000 10.47.91.11 > "));
    drop(output);
    // The process ends by itself, whether or not it has read all input.
    for _ in 0..1000 {
        if input.write_all(&file[24..]).is_err() {
            break;
        }
    }
    drop(input);
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
}

#[test]
fn a_bar_on_the_terminal_shows_how_far_a_large_capture_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large.pcap");
    // Empty frames after some packets.
    let mut record = [0; 16 + 60_000];
    record[8..16].copy_from_slice(&[60_000u32.to_le_bytes(); 2].concat());
    let packets = fs::read(pcap("kernel-6.1/rnr_late.pcap")).unwrap();
    fs::write(&large, [packets, record.repeat(600)].concat()).unwrap();
    // Returns a terminal's output of a shell command.
    let terminal = |command: &str| {
        let command = command.replace("rxe", &util::reachable().to_string_lossy());
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").current_dir(&dir);
        let out = script.stdin(Stdio::null()).output().ok()?;
        assert!(out.status.success(), "{command}: {out:?}");
        Some(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let Some(said) = terminal("rxe check large.pcap") else {
        return rxe_test_support::skipped("a_bar_on_the_terminal", "script is not installed");
    };
    let (bar, rest) = said.rsplit_once(" left").expect("a bar");
    assert!(bar.contains(" of 34.35 MiB [") && bar.contains(" %, "), "{said:?}");
    assert!(rest.contains("large.pcap"), "the report comes behind the bar: {said:?}");
    assert!(terminal("rxe decode large.pcap > lines").unwrap().contains(" left"));
    for without in [
        "rxe decode large.pcap",
        "rxe decode large.pcap | cat > lines",
        "rxe check large.pcap | cat > lines",
        "rxe check large.pcap 2> errors",
    ] {
        let said = terminal(without).unwrap();
        assert!(!said.contains(" left"), "{without}: {said:?}");
    }
}

#[test]
fn tunnels_are_shown_and_chosen_and_other_frames_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tunnels.pcapng");
    let mut file = Pcapng::new();
    let frame = frames_of(&pcap("kernel-6.1/write.pcap")).swap_remove(0);
    let all = encapsulations::all(&frame);
    for (nth, wrapped) in (0..).zip(&all) {
        file.packet(wrapped.link, nth, &wrapped.bytes, wrapped.bytes.len());
    }
    let arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
    file.packet(1, 99, &arp, arp.len());
    fs::write(&path, file.bytes).unwrap();
    let text = decoded(&path, &[]);
    let end = text.lines().last().unwrap();
    assert!(end.ends_with(&format!(": {} RDMA packets, 1 frame of ARP", all.len())), "{end}");
    assert!(!text.contains("ICRC"), "{text}");
    let text = decoded(&path, &["-v", "--vni", "5001", "--session", "77"]);
    assert!(text.contains("  VNI                         5001\n"), "{text}");
    assert!(text.contains("  SessionID                   77\n"), "{text}");
    assert!(text.lines().last().unwrap().contains(" (1 shown)"), "{text}");
    let json = decoded(&path, &["--json", "--vni", "5001"]);
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["VXLAN"]["VNI"], 5001);
    assert_eq!(
        (&first["UDP"]["DestinationPort"], &first["UDP2"]["DestinationPort"]),
        (&4789.into(), &4791.into())
    );
    assert_eq!(first["IPv4_2"]["SourceAddress"], first["source"]);
    let numbers: Value = serde_json::from_str(&decoded(&path, &["--summary", "--json"])).unwrap();
    assert_eq!(numbers["other_protocols"], serde_json::json!({ "ARP": 1 }));
}
