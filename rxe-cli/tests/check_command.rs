//! `rxe check`: its output formats, its exit codes, and its behaviour for damaged files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

mod decode_util;
use decode_util::{Pcapng, frames_of, run};

/// Captures with an error, with a warning, with a note, and with no finding.
const ERROR: &str = "scenarios/write_wrong_rkey.pcap";
const WARNING: &str = "scenarios/psn_sequence_nak.pcap";
const NOTE: &str = "scenarios/icrc_not_computed.pcap";
const CLEAN: &str = "scenarios/rc_send.pcap";

fn pcap(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps").join(name)
}

/// Runs `rxe check` in English with options and files.
fn check(options: &[&str], files: &[&Path]) -> Output {
    let files = files.iter().map(|file| file.as_os_str());
    Command::new(env!("CARGO_BIN_EXE_rxe"))
        .arg("check")
        .args(options)
        .args(files)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Findings are colored in a terminal, unless `NO_COLOR` or `--color` says otherwise, and elsewhere
/// only with `--color`.
#[test]
fn colors_are_for_terminals() {
    const COLORED: &str = "\x1b[1m\x1b[31merror\x1b[0m: remote-access-error";
    let is_colored = |out: Output| {
        let said = text(&out.stdout).to_owned();
        assert!(said.contains(COLORED) || said.contains("  error: remote-access-error"), "{said}");
        said.contains(COLORED)
    };
    let file = pcap(ERROR);
    assert!(!is_colored(check(&[], &[&file])));
    assert!(is_colored(check(&["--color=always"], &[&file])));
    assert!(!text(&check(&["--color=always", "--json"], &[&file]).stdout).contains('\x1b'));
    let in_terminal = |options: &str, no_color: &str| {
        let line = format!("'{}' check {options} '{}'", env!("CARGO_BIN_EXE_rxe"), file.display());
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env("NO_COLOR", no_color);
        Some(is_colored(script.stdin(Stdio::null()).output().ok()?))
    };
    let Some(plainly) = in_terminal("", "") else {
        return rxe_test_support::skipped("colors_are_for_terminals", "script is not installed");
    };
    assert!(plainly);
    assert_eq!(in_terminal("--color never", ""), Some(false));
    assert_eq!(in_terminal("", "1"), Some(false));
    assert_eq!(in_terminal("--color always", "1"), Some(true));
}

#[test]
fn the_exit_code_tells_errors_and_with_strict_warnings_too() {
    let code = |options: &[&str], name| check(options, &[&pcap(name)]).status.code();
    for (name, usual, strict) in [
        (ERROR, 1, 1),
        (WARNING, 0, 1),
        (NOTE, 0, 0),
        (CLEAN, 0, 0),
        ("kernel-6.1/rnr_never.pcap", 1, 1),
        ("kernel-6.1/rnr_late.pcap", 0, 1),
    ] {
        assert_eq!(code(&[], name), Some(usual), "{name}");
        assert_eq!(code(&["--strict"], name), Some(strict), "{name}, --strict");
        assert_eq!(code(&["--json"], name), Some(usual), "{name}, --json");
    }
    // One file with an error is enough for 1; one that cannot be read gives 2.
    let (clean, fault) = (pcap(CLEAN), pcap(ERROR));
    assert_eq!(check(&[], &[&clean, &fault, &clean]).status.code(), Some(1));
    let none = Path::new("/nonexistent.pcap");
    let out = check(&[], &[&fault, none]);
    assert_eq!(out.status.code(), Some(2));
    assert_eq!(
        text(&out.stderr),
        "rxe: /nonexistent.pcap: cannot be read: No such file or directory (os error 2): give a file that can be read\n"
    );
    assert!(text(&out.stdout).contains("error: remote-access-error, certain; frames "));
    let out = run(&["check"]);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0));
}

#[test]
fn the_text_has_each_finding_and_the_causes_of_the_catalogue() {
    let out = check(&[], &[&pcap(ERROR)]);
    let said = text(&out.stdout);
    for part in [
        "  error: remote-access-error, certain; frames ",
        "(NAK, remote access error). [IBTA 9.7.5.2]\n",
        "  remote-access-error: usual causes (rxe explain remote-access-error)\n    - A wrong rkey ",
        "  errors 1, warnings 0, notes 0\n",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(
        said.lines().all(|line| line.chars().count() <= 80 || line.contains("/pcaps/")),
        "{said}"
    );
    assert!(!text(&check(&[], &[&pcap(CLEAN)]).stdout).contains("usual causes"));
    // The command named in the text exists, and prints the same words.
    let explained = run(&["explain", "--lang", "en", "remote-access-error"]);
    assert!(text(&explained.stdout).contains("A wrong rkey "), "{explained:?}");
    // The option and the locale can choose Chinese.
    let chinese = check(&["--lang", "zh"], &[&pcap(ERROR)]);
    assert!(
        text(&chinese.stdout)
            .contains("remote-access-error：常见原因（rxe explain remote-access-error）")
    );
    let by_locale = Command::new(env!("CARGO_BIN_EXE_rxe"))
        .args(["check", pcap(ERROR).to_str().unwrap()])
        .env("LC_ALL", "zh_CN.UTF-8")
        .output()
        .unwrap();
    assert_eq!(text(&by_locale.stdout), text(&chinese.stdout));
}

#[test]
fn the_topic_that_each_finding_names_is_explained() {
    for kind in rxe_lab::check::Kind::ALL {
        let out = run(&["explain", "--json", "--lang", "en", kind.name()]);
        assert!(out.status.success(), "{}: {out:?}", kind.name());
    }
}

#[test]
fn json_is_an_array_with_an_object_for_each_file() {
    let out = check(&["--json"], &[&pcap(ERROR), &pcap(CLEAN)]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    let [fault, clean] = &json.as_array().unwrap()[..] else { panic!("{json}") };
    assert!(fault["file"].as_str().unwrap().ends_with(ERROR), "{fault}");
    assert_eq!(fault["error"], Value::Null);
    let finding = &fault["findings"][0];
    for (field, value) in [
        ("kind", "remote-access-error"),
        ("severity", "error"),
        ("confidence", "certain"),
        ("rule", "IBTA 9.7.5.2"),
    ] {
        assert_eq!(finding[field], value, "{finding}");
    }
    let frames = finding["frames"].as_array().unwrap();
    assert!(!frames.is_empty() && frames.iter().all(Value::is_u64), "{finding}");
    assert!(finding["psn"].is_u64() && finding["dest_qp"].is_u64(), "{finding}");
    let explained = &fault["explained"][0];
    assert_eq!(explained["more"], "rxe explain remote-access-error");
    assert!(explained["causes"][0].as_str().unwrap().starts_with("A wrong rkey"), "{explained}");

    assert_eq!(
        (&clean["findings"], &clean["explained"]),
        (&Value::from([0; 0]), &Value::from([0; 0]))
    );
    assert_eq!(clean["frames"], frames_of(&pcap(CLEAN)).len());
    let way = &clean["directions"][0];
    assert_eq!(way["service"], "RC");
    assert_eq!(way["retransmitted"], 0);
    for field in ["round_trip_us", "latency_us"] {
        let times = &way[field];
        assert!(times["count"].as_u64().unwrap() > 0, "{field}: {way}");
        let at = |percentile: &str| times[percentile].as_f64().unwrap();
        assert!(at("p50") <= at("p90") && at("p90") <= at("p99") && at("p99") <= at("max"));
    }
    // Every message has a latency.
    assert_eq!(way["latency_us"]["count"], way["messages"]);
}

#[test]
fn junit_has_a_suite_for_each_file_and_a_case_for_each_kind() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.xml");
    let none = Path::new("/nonexistent<&>.pcap");
    let written = |options: &[&str]| {
        let options = [&["--junit", report.to_str().unwrap()], options].concat();
        let out = check(&options, &[&pcap(ERROR), &pcap(WARNING), none]);
        assert_eq!(out.status.code(), Some(2));
        fs::read_to_string(&report).unwrap()
    };
    let kinds = rxe_lab::check::Kind::ALL.len();
    for (options, failures) in [(&[][..], 1), (&["--strict"], 2)] {
        let xml = written(options);
        let count = |what: &str| xml.matches(what).count();
        assert_eq!((count("<testsuite "), count("</testsuite>")), (3, 3));
        assert_eq!(count("<testcase "), 3 * (kinds + 1));
        assert_eq!((count("<failure>"), count("<error>")), (failures, 1), "{xml}");
        assert!(xml.contains("name=\"/nonexistent&lt;&amp;&gt;.pcap\""), "{xml}");
        assert!(xml.contains("rxe explain remote-access-error"), "{xml}");
        for tag in ["testsuites", "testsuite", "failure", "error", "system-out"] {
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
    }
}

#[test]
fn reports_follow_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    let (link, capture) = (link.to_str().unwrap(), pcap(ERROR));
    let capture = capture.to_str().unwrap();
    for (args, code) in [
        (&["check", capture, "--junit", link][..], 2),
        (&["ladder", capture, "--svg", link], 1),
        (&["ladder", capture, "--html", link], 1),
    ] {
        let out = run(args);
        let said = text(&out.stderr);
        let expected = format!(
            "rxe: cannot write {link}: it is a symbolic link, which is not followed: name another file\n"
        );
        assert_eq!((out.status.code(), said), (Some(code), &expected[..]), "{args:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old", "{args:?}");
    }
}

#[test]
fn a_capture_without_rdma_packets_is_not_called_clean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it.pcap");
    let clean = fs::read(pcap(CLEAN)).unwrap();
    // The first file is a header without frames, the second has an unknown link type.
    let unknown = [&clean[..20], &[0xf0, 0, 0, 0], &clean[24..]].concat();
    for (bytes, frames) in [(&clean[..24], 0), (&unknown, frames_of(&pcap(CLEAN)).len())] {
        fs::write(&path, bytes).unwrap();
        let out = check(&[], &[&path]);
        assert_eq!(out.status.code(), Some(2), "{out:?}");
        let expected = format!(
            "rxe: {}: nothing was checked: none of its {frames} frames has an RDMA packet. `rxe \
             decode` says what they are\n",
            path.display()
        );
        assert_eq!(text(&out.stderr), expected);
    }
}

#[test]
fn a_report_that_cannot_be_written_is_no_error_of_the_capture() {
    let clean = pcap(CLEAN);
    let out = check(&["--junit", "/dev/full"], &[&clean]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let full = fs::File::create("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe"));
    let status = command.arg("check").arg(&clean).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn what_is_before_a_damaged_place_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it.pcap");
    let bytes = fs::read(pcap(ERROR)).unwrap();
    let frames = frames_of(&pcap(ERROR)).len();
    // The last frame is cut; the refusal is in it or before it.
    let whole = fs::read(pcap(CLEAN)).unwrap();
    let number = frames_of(&pcap(CLEAN)).len();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let out = check(&[], &[&path]);
    assert_eq!(out.status.code(), Some(2));
    let said = text(&out.stderr);
    assert!(said.starts_with(&format!("rxe: {}: ", path.display())), "{said}");
    assert!(said.contains(&format!("frame {number}")) && said.lines().count() == 1, "{said}");
    let counted = format!("{}: {} frames\n", path.display(), number - 1);
    assert!(text(&out.stdout).starts_with(&counted), "{out:?}");
    let out = check(&["--json"], &[&path]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), &json[0]["frames"]), (Some(2), &Value::from(number - 1)));
    assert!(json[0]["error"].as_str().unwrap().contains(&format!("frame {number}")), "{json}");

    // Garbage after good frames, and garbage alone.
    fs::write(&path, [&bytes[..], &[0xa5; 100]].concat()).unwrap();
    let out = check(&[], &[&path]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stdout).contains(": remote-access-error"), "{out:?}");
    assert!(text(&out.stderr).contains(&format!("frame {}", frames + 1)), "{out:?}");
    for garbage in [&b"not a capture"[..], &[0; 4096], &[]] {
        fs::write(&path, garbage).unwrap();
        let out = check(&[], &[&path]);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{out:?}");
        assert_eq!(text(&out.stderr).lines().count(), 1, "{out:?}");
    }
}

#[test]
fn frames_that_were_captured_in_part_have_no_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapped.pcapng");
    let mut file = Pcapng::new();
    for (nth, frame) in (0..).zip(frames_of(&pcap(CLEAN))) {
        file.packet(1, nth * 10_000, &frame[..frame.len().min(80)], frame.len());
    }
    fs::write(&path, file.bytes).unwrap();
    let out = check(&["--strict"], &[&path]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains(" packets: ICRC not checked (see decode)"), "{said}");
    assert!(said.contains("  errors 0, warnings 0, notes 0\n"), "{said}");
}
