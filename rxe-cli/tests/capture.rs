//! `rxe capture`: captures running programs without disturbing them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rxe_lab::capture::{Direction, Reader};
use rxe_lab::frame::{self, Content, Icrc};
use rxe_net::missing_before;
use rxe_test_support::skipped;
use serde_json::Value;

mod util;
use util::{Dir, LOOPBACK, RXE, VETH, in_namespace};

/// Starts `$program` as a server and as a client, which exchange packets long enough, then
/// captures. Other programs of this host are not visible.
const SCRIPT: &str = r#"
    mount -t tmpfs none /dev/shm
    $program > server.out 2>&1 & server=$!
    until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
    $program 127.0.0.1 > client.out 2>&1 & client=$!
    sent() { "$RXE" stat --json --of $client 2> stat.err; }
    until sent | grep '"sent_pkts"' | grep -q '[0-9][0-9][0-9]'; do sleep 0.05; done

    # One that has nothing to say, and answers late: that it is captured is said all the same.
    "$RXE" perf write bw -p 18516 -d lo > idle.out 2>&1 & idle=$!
    until "$RXE" stat --json --of $idle 2> stat.err | grep -q '"sent_pkts"'; do sleep 0.05; done
    kill -STOP $idle
    "$RXE" capture --of $idle 2> stopped.err || echo refused >> stopped.err
    # It goes on when the others are captured, and the capture waits for it.
    { until grep -q capturing all.err; do sleep 0.05; done; kill -CONT $idle; } 2> grep.err &
    "$RXE" capture --of all -c 500 -w all.pcapng 2> all.err
    kill $idle

    # What they exchange does not pass the interface, which may be named as the device.
    "$RXE" capture -i rxe_lo -s 0.1 2> shared.err

    # This script has no device, but has started programs that have.
    "$RXE" capture --of $$ 2> wrapper.err || echo refused >> wrapper.err

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

    # Without --of and -i: of all.
    "$RXE" capture -w killed.pcapng 2> killed.err & capture=$!
    until [ "$(grep -c capturing killed.err)" = 2 ]; do sleep 0.05; done
    kill -KILL $capture
    wait $capture || true
    sent > before.json
    count() { grep '"sent_pkts"' $1 | tr -cd 0-9; }
    # It goes on, or this script takes too long.
    until sent > after.json && [ $(count after.json) -gt $(count before.json) ]; do sleep 0.05; done

    # Packets come faster than they are taken, and then the program is killed.
    "$RXE" capture --of $client -w ended.pcapng 2> ended.err & capture=$!
    grown() { until [ "$(stat -c %s ended.pcapng 2> stat.err || echo 0)" -gt $1 ]; do sleep 0.05; done; }
    grown 1000000
    kill -STOP $capture
    sleep 0.3
    taken=$(stat -c %s ended.pcapng)
    kill -CONT $capture
    # More than was kept for it.
    grown $((taken + 20000000))
    kill -KILL $client
    wait $capture
    # It ends when its client has.
    kill $server 2> stat.err || true
    wait $client $server || true
    "$RXE" capture --of 1 2> nobody.err || echo refused >> nobody.err
"#;

#[test]
fn programs_are_captured_from_the_middle_and_do_not_notice() {
    let test = "programs_are_captured_from_the_middle_and_do_not_notice";
    captures(test, r#""$RXE" perf write bw -D 200 -d lo"#);
}

#[test]
fn unmodified_programs_are_captured() {
    let test = "unmodified_programs_are_captured";
    let there = Command::new("ib_write_bw").arg("--version").stdout(Stdio::null()).status();
    if there.is_err() {
        return skipped(test, "ib_write_bw is not installed");
    }
    // The program asks for retries of half a second in total; if these run out, this script would
    // wait without end.
    captures(
        test,
        r#""$RXE" run --ack-timeout 19 --device rxe_lo -- ib_write_bw -d rxe_lo -x 0 -D 200"#,
    );
}

fn captures(test: &str, program: &str) {
    let dir = Dir::new();
    let script = SCRIPT.replace("$program", program);
    let Some(out) = in_namespace(test, LOOPBACK, &script, &dir.file("")) else { return };
    let read = |name: &str| fs::read_to_string(dir.file(name)).unwrap_or_default();
    assert!(out.status.success(), "{out:?} {} {}", read("server.out"), read("client.out"));

    let said = read("stopped.err");
    let because = " (rxe) does not answer, because it is stopped: continue it with kill -CONT ";
    assert!(said.starts_with("rxe: process ") && said.contains(because), "{said}");
    assert!(said.lines().count() == 2 && said.ends_with("refused\n"), "{said}");

    let all = whole(&dir.file("all.pcapng"));
    assert_eq!(all, 500);
    let said = read("all.err");
    assert_eq!(said.matches("rxe: capturing rxe_lo of process ").count(), 3, "{said}");
    assert!(said.contains("\nrxe: 500 packets of 3 devices in "), "{said}");

    let said = read("shared.err");
    assert!(said.starts_with("rxe: capturing on lo\nrxe: no packet passed, but "), "{said}");
    assert!(said.contains("through shared memory: `rxe capture --of all` captures that"), "{said}");
    assert!(said.contains("\nrxe: 0 packets of 1 device in "), "{said}");

    let said = read("wrapper.err");
    assert!(said.contains(" has no device open: processes that it started have: "), "{said}");
    assert!(said.contains(": choose one, as in `rxe capture --of "), "{said}");
    assert!(said.ends_with("`\nrefused\n"), "{said}");

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
    // No packet was lost, unless the receiver was stalled until packets were given up, as on a busy
    // machine. There, answers may also be late and arrive twice.
    let [refused, given_up] =
        [&after["hw_counters"]["rcvd_seq_err"], &after["net"]["tx_no_buffer"]]
            .map(|counter| counter.as_u64().unwrap());
    assert!(refused <= given_up, "{after}");
    for counter in ["duplicate_request", "out_of_seq_request"] {
        assert_eq!(after["hw_counters"][counter], 0, "{counter}: {after}");
    }
    let timers = ["ack_timeout", "round_trip_timeout"];
    if given_up == 0 && timers.iter().all(|timer| after["counters"][timer] == 0) {
        assert_eq!(after["hw_counters"]["completer_retry_err"], 0, "{after}");
        assert_eq!(after["dropped"], serde_json::json!({}), "{after}");
    }

    let said = read("ended.err");
    let mut reader = Reader::open(dir.file("ended.pcapng")).unwrap();
    let (mut packets, mut missing) = (0, 0);
    while let Some(record) = reader.next().unwrap() {
        packets += 1;
        missing += record.comments.iter().filter_map(|c| missing_before(c)).sum::<u64>();
    }
    let expected = format!("\nrxe: {packets} packets of 1 device in ");
    let lost = format!(" s, {missing} dropped (too fast for the capture)\n");
    assert!(missing > 0 && said.contains(&expected) && said.ends_with(&lost), "{said}{missing}");

    let said = read("nobody.err");
    assert_eq!(
        said,
        "rxe: process 1 has no device open: `rxe stat` lists the processes that have\nrefused\n"
    );
}

/// The capture searches for devices twice a second; these programs end before that.
#[test]
fn short_programs_are_captured_from_their_first_packet() {
    let dir = Dir::new();
    let script = r#"
        mount -t tmpfs none /dev/shm
        "$RXE" capture --of all -w short.pcapng 2> short.err & capture=$!
        until grep -q waiting short.err; do sleep 0.05; done
        "$RXE" pingpong -s 64 -n 1 -d lo > server.out 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
        "$RXE" pingpong -s 64 -n 1 127.0.0.1 > client.out 2>&1
        wait $server
        kill -INT $capture
        wait $capture
    "#;
    let test = "short_programs_are_captured_from_their_first_packet";
    let Some(out) = in_namespace(test, LOOPBACK, script, &dir.file("")) else { return };
    let said = fs::read_to_string(dir.file("short.err")).unwrap();
    assert!(out.status.success(), "{out:?} {said}");
    let mut reader = Reader::open(dir.file("short.pcapng")).unwrap();
    // Each packet is captured at its sender and at its receiver.
    let mut seen = BTreeMap::new();
    while let Some(record) = reader.next().unwrap() {
        let frame = frame::decode(&record);
        let Content::Rdma(packets) = &frame.content else { panic!("{:?}", frame.content) };
        let bth = &packets[0].bth;
        let ends = seen.entry((bth.dest_qp.value(), bth.psn.value(), bth.opcode.name()));
        ends.or_insert_with(Vec::new).push(record.direction == Some(Direction::Outbound));
    }
    seen.values_mut().for_each(|ends: &mut Vec<_>| ends.sort_unstable());
    assert!(seen.values().all(|ends| *ends == [false, true]), "{seen:?} {said}");
    let sends = seen.keys().filter(|(.., opcode)| *opcode == "RC_SEND_ONLY").count();
    assert_eq!(sends, 2, "{seen:?} {said}");
}

/// Returns the number of packets in a capture, which must all be whole RDMA packets with a right
/// ICRC.
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

/// Returns the names of the interfaces in a pcapng file in this machine's byte order.
fn interfaces(file: &[u8]) -> Vec<String> {
    const INTERFACE: u32 = 1;
    const NAME: u16 = 2;
    let u32_at = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap());
    let u16_at = |at: usize| u16::from_ne_bytes(file[at..at + 2].try_into().unwrap());
    let (mut names, mut at) = (Vec::new(), 0);
    while at < file.len() {
        // The options follow the block's type and length, the link type and the snap length.
        let mut option = at + 16;
        while u32_at(at) == INTERFACE && u16_at(option) != 0 {
            let len = usize::from(u16_at(option + 2));
            if u16_at(option) == NAME {
                let name = &file[option + 4..option + 4 + len];
                names.push(String::from_utf8(name.to_vec()).unwrap());
            }
            option += 4 + len.next_multiple_of(4);
        }
        at += u32_at(at + 4) as usize;
    }
    names
}

#[test]
fn a_file_names_the_device_and_has_comments() {
    let dir = Dir::new();
    let script = r#"
        mount -t tmpfs none /dev/shm
        "$RXE" perf write bw -D 200 -d lo > server.out 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
        "$RXE" perf write bw -D 200 -d lo --fault 'out: drop 2%' 127.0.0.1 > client.out 2>&1 & client=$!
        until "$RXE" stat --json --of $client 2> stat.err | grep -q '"sent_pkts"'; do sleep 0.05; done
        "$RXE" capture --of $client -c 3000 -w lossy.pcapng 2> lossy.err
        kill $client $server
    "#;
    let test = "a_file_names_the_device_and_has_comments";
    let Some(out) = in_namespace(test, LOOPBACK, script, &dir.file("")) else { return };
    assert!(out.status.success(), "{out:?}");
    let path = dir.file("lossy.pcapng");
    assert_eq!(interfaces(&fs::read(&path).unwrap()), ["rxe_lo"]);
    let mut reader = Reader::open(&path).unwrap();
    let mut comments = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        comments.extend(record.comments.clone());
    }
    let again = comments.iter().any(|comment| comment.starts_with("sending again from PSN "));
    assert!(again, "{comments:?}");
}

#[test]
fn what_cannot_be_is_refused_in_a_line() {
    let dir = Dir::new();
    let link = dir.file("link");
    std::os::unix::fs::symlink(dir.file("file"), &link).unwrap();
    for (args, part) in [
        (&["capture", "-i", "no-such"][..], "no-such"),
        (&["capture", "-i", "lo", "--of", "all"], "cannot be used with"),
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

/// Captures the traffic of a link: packets over IPv4 and IPv6, and more than the kernel's buffer
/// holds. Then tries interfaces that are down, vanish, or may not be captured.
const LINK: &str = r#"
    "$RXE" capture -i veth0 -w link.pcapng 2> link.err & capture=$!
    until grep -q capturing link.err; do sleep 0.05; done
    for address in 10.9.0.1 fd09::1; do
        "$RXE" pingpong --address $address -n 20 > server.out 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
        ip netns exec far "$RXE" pingpong -n 20 $address > client.out 2>&1
        wait $server
    done
    kill -INT $capture
    wait $capture

    "$RXE" capture -i veth0 -w dropped.pcapng 2> dropped.err & capture=$!
    until grep -q capturing dropped.err; do sleep 0.05; done
    kill -STOP $capture
    "$RXE" perf write bw -s 1M -n 100 > server.out 2>&1 & server=$!
    until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
    ip netns exec far "$RXE" perf write bw -s 1M -n 100 10.9.0.1 > client.out 2>&1
    wait $server
    kill -INT $capture
    kill -CONT $capture
    wait $capture

    ip link add down0 type veth peer name down1
    "$RXE" capture -i down0 2> down.err || echo refused >> down.err
    ip link add gone0 type veth peer name gone1
    ip link set gone0 up
    "$RXE" capture -i gone0 2> gone.err & capture=$!
    until grep -q capturing gone.err; do sleep 0.05; done
    ip link delete gone0
    wait $capture || echo refused >> gone.err
    if ip tuntap add dev tun0 mode tun 2> tun.err; then
        "$RXE" capture -i tun0 2> tun.err || echo refused >> tun.err
    fi
    setpriv --bounding-set=-all --inh-caps=-all "$RXE" capture -i lo 2> refused.err \
        || echo refused >> refused.err
"#;

#[test]
fn the_rdma_packets_of_an_interface_are_captured() {
    let dir = Dir::new();
    let test = "the_rdma_packets_of_an_interface_are_captured";
    let Some(out) = in_namespace(test, VETH, LINK, &dir.file("")) else { return };
    let read = |name: &str| fs::read_to_string(dir.file(name)).unwrap_or_default();
    assert!(out.status.success(), "{out:?} {}{}", read("server.out"), read("client.out"));
    // `whole` also checks that every frame is a whole RDMA packet.
    let count = whole(&dir.file("link.pcapng"));
    let said = read("link.err");
    assert!(said.contains(&format!("\nrxe: {count} packets of 1 device in ")), "{said}");
    assert!(said.ends_with("none dropped\n"), "{said}");
    let mut reader = Reader::open(dir.file("link.pcapng")).unwrap();
    let mut kinds = BTreeMap::new();
    while let Some(record) = reader.next().unwrap() {
        let kind = [record.bytes[12], record.bytes[13]];
        *kinds.entry((kind, record.direction.unwrap() == Direction::Inbound)).or_insert(0) += 1;
        assert!(record.at.is_some_and(|at| !at.is_zero()));
    }
    for kind in [[0x08, 0x00], [0x86, 0xdd]] {
        for inbound in [false, true] {
            assert!(
                kinds.remove(&(kind, inbound)).is_some_and(|n| n >= 20),
                "{kind:x?}: {kinds:x?}"
            );
        }
    }
    assert!(kinds.is_empty(), "{kinds:x?}");
    let said = read("refused.err");
    assert!(said.starts_with("rxe: capturing on lo needs CAP_NET_RAW: run it as root"), "{said}");
    assert!(said.lines().count() == 2 && said.ends_with("refused\n"), "{said}");

    // Packets captured before the end are in the file.
    assert!(whole(&dir.file("dropped.pcapng")) > 0);
    let said = read("dropped.err");
    let dropped = dropped(&fs::read(dir.file("dropped.pcapng")).unwrap());
    let missing = format!(" s, {dropped} dropped (too fast for the capture)\n");
    assert!(dropped > 0 && said.ends_with(&missing), "{said}");
    let said = read("down.err");
    assert_eq!(said, "rxe: interface down0 is down: `ip link set down0 up`\nrefused\n");
    let said = read("gone.err");
    assert!(
        said.ends_with("there is no network interface gone0: see `ip link`\nrefused\n"),
        "{said}"
    );
    assert!(said.contains("\nrxe: 0 packets of 1 device in "), "{said}");
    let said = read("tun.err");
    if said.ends_with("refused\n") {
        assert!(said.starts_with("rxe: interface tun0 carries no Ethernet frames: "), "{said}");
    } else {
        skipped(test, format_args!("tun0: {said}"));
    }
}

/// Returns the number of dropped packets in the statistics of a pcapng file.
fn dropped(mut file: &[u8]) -> u64 {
    let word = |at: &[u8]| u32::from_ne_bytes(at[..4].try_into().unwrap());
    let mut dropped = 0;
    while !file.is_empty() {
        let (block, rest) = file.split_at(word(&file[4..]) as usize);
        // The block is an interface statistics block. Its first option is isb_osdrop.
        if word(block) == 5 {
            assert_eq!(block[20..24], [7u16.to_ne_bytes(), 8u16.to_ne_bytes()].concat());
            dropped += u64::from_ne_bytes(block[24..32].try_into().unwrap());
        }
        file = rest;
    }
    dropped
}
