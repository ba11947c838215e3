//! `rxe capture`: joins programs while they run, and they do not notice.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rxe_lab::capture::Reader;
use rxe_lab::frame::{self, Content, Icrc};
use serde_json::Value;

mod util;
use util::{Dir, LOOPBACK, RXE, in_namespace, skipped};

/// Starts `$program` as a server and as a client, which exchange packets for long enough; then captures.
/// Other programs of this host are not seen.
const SCRIPT: &str = r#"
    mount -t tmpfs none /dev/shm
    $program > server.out 2>&1 & server=$!
    until ss -Htln 'sport = :18515' | grep -q .; do sleep 0.05; done
    $program 127.0.0.1 > client.out 2>&1 & client=$!
    sent() { "$RXE" stat --json --of $client 2> stat.err; }
    until sent | grep '"sent_pkts"' | grep -q '[0-9][0-9][0-9]'; do sleep 0.05; done

    "$RXE" capture --of all -c 500 -w all.pcapng 2> all.err
    "$RXE" capture --of $client -c 5 > lines.out 2> lines.err
    "$RXE" capture --of $client -c 100 -w ring --ring 64Kx3 2> ring.err
    "$RXE" capture --of $client -c 10 --ladder > ladder.out 2> ladder.err
    "$RXE" capture --of $server -c 5 -w - 2> pipe.err | "$RXE" decode - > pipe.out
    "$RXE" capture --of $server -s 0.5 -w seconds.pcapng 2> seconds.err
    "$RXE" capture --of $server 2> closed.err | head -n 1 > closed.out

    "$RXE" capture --of all -w interrupted.pcapng 2> interrupted.err & capture=$!
    until grep -q capturing interrupted.err; do sleep 0.05; done
    "$RXE" capture --of $client -c 5 > taken.out 2> taken.err || echo refused >> taken.err
    kill -INT $capture
    wait $capture

    "$RXE" capture --of all -w killed.pcapng 2> killed.err & capture=$!
    until [ "$(grep -c capturing killed.err)" = 2 ]; do sleep 0.05; done
    kill -KILL $capture
    wait $capture || true
    sent > before.json
    sleep 0.2
    sent > after.json
    kill $client $server
    "$RXE" capture --of 1 2> nobody.err || echo refused >> nobody.err
"#;

#[test]
fn programs_are_captured_from_the_middle_and_do_not_notice() {
    let test = "programs_are_captured_from_the_middle_and_do_not_notice";
    captures(test, r#""$RXE" perf write bw -D 60 -d lo"#);
}

#[test]
fn unmodified_programs_are_captured() {
    let test = "unmodified_programs_are_captured";
    let there = Command::new("ib_write_bw").arg("--version").stdout(Stdio::null()).status();
    if there.is_err() {
        return skipped(test, "ib_write_bw is not installed");
    }
    captures(test, r#""$RXE" run --device rxe_lo -- ib_write_bw -d rxe_lo -x 0 -D 60"#);
}

fn captures(test: &str, program: &str) {
    let dir = Dir::new();
    let script = SCRIPT.replace("$program", program);
    let Some(out) = in_namespace(test, LOOPBACK, &script, &dir.file("")) else { return };
    let read = |name: &str| fs::read_to_string(dir.file(name)).unwrap_or_default();
    assert!(out.status.success(), "{out:?} {} {}", read("server.out"), read("client.out"));

    let all = whole(&dir.file("all.pcapng"));
    assert_eq!(all, 500);
    let said = read("all.err");
    assert_eq!(said.matches("rxe: capturing rxe_lo of process ").count(), 2, "{said}");
    assert!(said.contains("\nrxe: 500 packets of 2 devices in "), "{said}");

    let lines = read("lines.out");
    assert_eq!(lines.lines().count(), 5, "{lines}");
    assert!(lines.lines().all(|line| line.contains("127.0.0.1 > 127.0.0.1 0x")), "{lines}");
    assert!(read("lines.err").contains("5 packets of 1 device in "));

    let ring: Vec<_> = (1..=3).map(|n| whole(&dir.file(&format!("ring.{n}")))).collect();
    assert!(!dir.file("ring.4").exists() && !dir.file("ring").exists());
    assert!(ring.iter().all(|packets| *packets > 0));
    for n in 1..=3 {
        assert!(fs::metadata(dir.file(&format!("ring.{n}"))).unwrap().len() <= (64 << 10) + 100);
    }
    let ladder = read("ladder.out");
    assert!(ladder.contains("WRITE_") && ladder.contains("PSN 0x"), "{ladder}");
    assert!(read("pipe.out").ends_with(": 5 RDMA packets\n"), "{}", read("pipe.out"));
    whole(&dir.file("seconds.pcapng"));
    assert!(read("seconds.err").contains(" s, "), "{}", read("seconds.err"));
    assert_eq!(read("closed.out").lines().count(), 1);
    assert!(read("closed.err").contains(" packets of 1 device in "), "{}", read("closed.err"));

    let said = read("interrupted.err");
    assert!(said.contains(" packets of 2 devices in "), "{said}");
    whole(&dir.file("interrupted.pcapng"));
    let said = read("taken.err");
    assert!(said.contains("is captured by another command: end that first"), "{said}");
    assert!(said.ends_with("refused\n"), "{said}");

    let [before, after]: [Value; 2] = ["before.json", "after.json"]
        .map(|name| serde_json::from_str(&read(name)).unwrap_or_else(|e| panic!("{name}: {e}")));
    let [before, after] = [&before[0], &after[0]];
    let number = |of: &Value| of["hw_counters"]["sent_pkts"].as_u64().unwrap();
    assert!(number(after) > number(before), "it goes on");
    for counter in
        ["duplicate_request", "rcvd_seq_err", "out_of_seq_request", "completer_retry_err"]
    {
        assert_eq!(after["hw_counters"][counter], 0, "{counter}: {after}");
    }
    assert_eq!(after["dropped"], serde_json::json!({}));

    let said = read("nobody.err");
    assert_eq!(
        said,
        "rxe: process 1 has no device open: `rxe stat` lists the processes that have\nrefused\n"
    );
}

/// How many packets a capture has, all of RDMA, whole and with the right ICRC.
fn whole(path: &Path) -> u64 {
    let mut reader = Reader::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut count = 0;
    while let Some(record) = reader.next().unwrap_or_else(|e| panic!("{}: {e}", path.display())) {
        let frame = frame::decode(&record);
        let Content::Rdma(packets) = &frame.content else { panic!("{:?}", frame.content) };
        assert!(packets.iter().all(|packet| packet.icrc == Icrc::Right), "{}", path.display());
        count += 1;
    }
    count
}

#[test]
fn what_cannot_be_is_refused_in_a_line() {
    let dir = Dir::new();
    let link = dir.file("link");
    std::os::unix::fs::symlink(dir.file("file"), &link).unwrap();
    for (args, part) in [
        (&["capture"][..], "--of <PID|all>"),
        (&["capture", "--of", "me"], "a process's number, or all"),
        (&["capture", "--of", "all", "-s", "0"], "a number above 0"),
        (&["capture", "--of", "all", "-c", "0"], "0 is not in 1.."),
        (&["capture", "--of", "all", "--ring", "1Mx2"], "--write <FILE>"),
        (&["capture", "--of", "all", "-w", "a", "--ring", "1M"], "as in 100Mx5"),
        (&["capture", "--of", "all", "-w", "-", "--ring", "1Mx2"], "name a file with -w"),
        (&["capture", "--of", "all", "-w", "/nonexistent/a"], "cannot write /nonexistent/a: "),
        (&["capture", "--of", "all", "-w", link.to_str().unwrap()], "it is a symbolic link"),
    ] {
        let out = Command::new(RXE).args(args).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(matches!(out.status.code(), Some(1 | 2)), "{args:?}: {said}");
        assert!(said.lines().count() == 1 && said.contains(part), "{args:?}: {said}");
    }
    assert!(!dir.file("file").exists());
}
