//! `rxe gen`: the file that it writes, and its errors for a wrong scenario.

use std::fs;
use std::path::{Path, PathBuf};

mod decode_util;
use decode_util::run;

fn scenario(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/scenarios").join(name)
}

#[test]
fn a_scenario_is_written_as_the_file_that_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("made.pcap");
    let toml = scenario("rc_send.toml");
    let out = run(&["gen", toml.to_str().unwrap(), "-w", file.to_str().unwrap()]);
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    let kept = fs::read(scenario("rc_send.pcap")).unwrap();
    assert!(fs::read(&file).unwrap() == kept);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.starts_with("rxe: "), "{said}");
    assert!(said.contains(" frames in ") && said.ends_with("  a: 7 x success\n  b: 7 x success\n"));
    let out = run(&["gen", toml.to_str().unwrap(), "-w", "-"]);
    assert!(out.status.success() && out.stdout == kept && out.stderr.is_empty());
}

#[test]
fn a_wrong_scenario_is_one_line_with_its_place_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (toml, file) = (dir.path().join("wrong.toml"), dir.path().join("made.pcap"));
    let hosts = "[hosts.a]\naddress = \"10.0.0.1\"\n";
    for (text, said) in [
        ("steps = [\n  { sned = { qp = \"a\" } },\n]\n", "wrong.toml:2:5: unknown variant `sned`"),
        (&format!("{hosts}faults = \"drop; dorp 1%\"\n"), "wrong.toml:3:17: `dorp`: not a fault"),
        (
            &format!("{hosts}faults = \"wc=RETRY_EXC@msg 1\"\n"),
            "wrong.toml:3:11: a host of a scenario has faults of packets only",
        ),
        ("seed = 1\nseed = 2\n", "wrong.toml:2:1: duplicate key"),
    ] {
        fs::write(&toml, text).unwrap();
        let out = run(&["gen", toml.to_str().unwrap(), "-w", file.to_str().unwrap()]);
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains(said), "{said:?} is not in {error}");
        assert!(!file.exists());
    }
    let out = run(&["gen", "/nonexistent.toml", "-w", file.to_str().unwrap()]);
    let error = String::from_utf8(out.stderr).unwrap();
    assert!(error.contains("cannot read /nonexistent.toml: No such file"), "{error}");
    assert!(!file.exists());
}

#[test]
fn help_has_an_example_and_fits_80_columns() {
    let out = run(&["gen", "--help"]);
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("Example: rxe gen pcaps/scenarios/rnr_nak.toml"), "{text}");
    assert!(scenario("rnr_nak.toml").exists());
    let long = text.lines().find(|line| line.chars().count() > 100);
    assert_eq!(long, None, "{text}");
}
