//! `rxe demo` as a new user calls it, and its capture as Wireshark reads it.

mod util;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use rxe_test_support::skipped;
use serde_json::Value;
use util::{Dir, LOOPBACK, in_namespace};

#[test]
fn every_operation_is_verified_and_the_mistake_is_refused() {
    let name = "every_operation_is_verified_and_the_mistake_is_refused";
    let dir = Dir::new();
    let script = "\"$RXE\" demo --json";
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    assert!(out.status.success(), "{out:?}");
    let shown: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_ne!(shown["this"]["pid"], shown["peer"]["pid"]);
    assert_ne!(shown["this"]["address"], shown["peer"]["address"]);

    let operations = shown["operations"].as_array().unwrap();
    for op in ["SEND", "SEND with immediate", "WRITE", "WRITE with immediate", "READ"] {
        let of = operations.iter().filter(|d| d["operation"] == op);
        let sizes: Vec<_> = of.map(|d| d["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [0, 1, 1024, 1025, 1 << 20], "{op}");
    }
    for op in ["COMPARE-AND-SWAP", "COMPARE-AND-SWAP, unequal", "FETCH-AND-ADD"] {
        assert!(operations.iter().any(|d| d["operation"] == op && d["size"] == 8), "{op}");
    }
    for done in operations {
        assert_eq!(done["verified"], true, "{done}");
        let packets = done["packets_sent"].as_u64().max(done["packets_received"].as_u64());
        let least = done["size"].as_u64().unwrap().div_ceil(1024).max(1);
        assert!(packets >= Some(least), "{done}");
    }

    let mistake = &shown["mistake"];
    assert_eq!(mistake["here"]["status"], "remote access error");
    assert_eq!(mistake["peer"]["status"], "Work Request Flushed Error");
    let reason = mistake["peer"]["events"].to_string();
    assert!(reason.contains("outside the memory region"), "{reason}");
    for who in ["here", "peer"] {
        assert_eq!(mistake[who]["qp_state"], "ERR");
        assert_eq!(mistake[who]["memory_unchanged"], true);
    }

    assert_eq!(shown["pcap"], "rxe-demo.pcapng");
    let packets = usize::try_from(shown["packets"].as_u64().unwrap()).unwrap();
    dissect(name, &dir.file("rxe-demo.pcapng"), packets);
}

/// The first line names the path of the packets, and loopback's counters agree.
#[test]
fn the_headline_says_what_carries_the_packets() {
    let name = "the_headline_says_what_carries_the_packets";
    let script = r#"
        for option in "" --no-shm; do
            "$RXE" demo --no-pcap $option > shown || exit 1
            echo "$(head -n 1 shown) $(awk '$1 == "lo:" { print ($3 > 0) }' /proc/net/dev)"
        done
    "#;
    let dir = Dir::new();
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    assert!(out.status.success(), "{out:?}");
    let start = "Two processes, connected (RC) over";
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        format!(
            "{start} shared memory, path MTU 1024: 0\n{start} UDP sockets on loopback, path MTU \
             1024: 1\n"
        )
    );
}

/// On a full disk, the demo does not claim a capture, and does not replace the last one.
#[test]
fn a_capture_that_does_not_fit_on_the_disk_is_an_error() {
    let name = "a_capture_that_does_not_fit_on_the_disk_is_an_error";
    let script = r#"
        mkdir small
        mount -t tmpfs -o size=1m none small
        echo "yesterday's" > small/capture
        for option in "" --json; do
            ! "$RXE" demo --pcap small/capture $option > shown 2> said || exit 1
            grep -c wireshark shown || true
            tail -n 1 said
            cat small/*
            ls -A small
        done
    "#;
    let dir = Dir::new();
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    let said = "rxe: cannot write the capture small/capture: No space left on device (os error 28): \
                name another file with --pcap, or use --no-pcap";
    let expected = format!("0\n{said}\nyesterday's\ncapture\n");
    assert_eq!(String::from_utf8_lossy(&out.stdout), expected.repeat(2), "{out:?}");
}

/// Checks the capture with tshark: only RC packets, every expected opcode, nothing malformed.
fn dissect(test: &str, capture: &Path, packets: usize) {
    let tshark = |filter: &str| {
        Command::new("tshark")
            .args(["--disable-heuristic", "rpcrdma_infiniband", "-T", "fields"])
            .args(["-e", "infiniband.bth.opcode", "-Y", filter, "-r"])
            .arg(capture)
            .output()
    };
    let all = match tshark("frame") {
        Ok(out) => out,
        Err(e) => return skipped(test, format_args!("tshark: {e}; the capture was not looked at")),
    };
    assert!(all.status.success(), "{}", String::from_utf8_lossy(&all.stderr));
    let opcodes: Vec<String> =
        String::from_utf8(all.stdout).unwrap().lines().map(String::from).collect();
    assert_eq!(opcodes.len(), packets);
    let kinds: BTreeSet<u8> = opcodes.iter().map(|code| code.parse().unwrap()).collect();
    // 0x00 to 0x14 are SEND, WRITE, READ and its responses, ACK, atomic ACK, CAS and FETCH-AND-ADD.
    assert_eq!(kinds, (0x00..=0x14).collect());

    let malformed = tshark("_ws.malformed").unwrap();
    assert_eq!(String::from_utf8_lossy(&malformed.stdout), "");
}

#[test]
fn the_table_and_the_line_that_opens_the_capture_are_there() {
    let name = "the_table_and_the_line_that_opens_the_capture_are_there";
    let dir = Dir::new();
    let script = "\"$RXE\" demo --mtu 4096 --pcap 'my capture.pcapng'";
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text.matches("  by ").count(), 28, "{text}");
    assert!(text.contains("path MTU 4096"));
    assert!(text.contains("-r 'my capture.pcapng'\n"), "{text}");
    assert!(dir.file("my capture.pcapng").exists());
}

#[test]
fn the_two_processes_go_over_the_interface_packet_by_packet_where_that_is_asked_for() {
    let name = "the_two_processes_go_over_the_interface_packet_by_packet_where_that_is_asked_for";
    let dir = Dir::new();
    let frames = |options: &str| {
        let script = format!(
            "\"$RXE\" demo --json --no-pcap {options} > shown
            awk '$1 == \"lo:\" {{ print $3 }}' /proc/net/dev"
        );
        let out = in_namespace(name, LOOPBACK, &script, &dir.file(""))?;
        assert!(out.status.success(), "{out:?}");
        Some(String::from_utf8(out.stdout).unwrap().trim().parse::<u32>().unwrap())
    };
    let Some(none) = frames("") else { return };
    // The demo sends more than 5,000 packets.
    let (pieces, each) = (frames("--no-shm").unwrap(), frames("--no-shm --no-gso").unwrap());
    assert!(none < 50 && 50 < pieces && pieces < 2500 && 5000 < each, "{none}, {pieces}, {each}");
}

/// Two endpoints on one unix socket are neighbours, and need no privilege.
#[test]
fn two_endpoints_of_layer_2_run_the_demo() {
    let name = "two_endpoints_of_layer_2_run_the_demo";
    let dir = Dir::new();
    let script = r#"
        export XDG_RUNTIME_DIR=$PWD
        for n in 1 2; do
            "$RXE" link add own$n type rxe l2 qemu:$PWD/wire address 10.0.0.$n/24 nodad
        done
        "$RXE" demo -d own1 --peer-dev own2 --json
        "$RXE" demo -d own1 --peer-dev own2 --no-pcap | head -1
        ! "$RXE" demo -d own1 2>&1
    "#;
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    assert!(out.status.success(), "{out:?}");
    let text = String::from_utf8(out.stdout).unwrap();
    let (json, text) = text.split_at(text.rfind("\n}\n").unwrap() + 3);
    let shown: Value = serde_json::from_str(json).unwrap();
    assert_eq!((&shown["backend"], &shown["shared_memory"]), (&"l2".into(), &false.into()));
    assert_eq!(shown["peer"]["device"], "own2");
    assert!(shown["operations"].as_array().unwrap().iter().all(|done| done["verified"] == true));
    let head = "Two processes, connected (RC) over Ethernet, as own1 and own2, path MTU 1024:\n";
    let refused = "rxe: one process at a time can have own1 open: give the second process another endpoint \
                   on the same network with --peer-dev\n";
    assert_eq!(text, format!("{head}{refused}"));
    let packets = usize::try_from(shown["packets"].as_u64().unwrap()).unwrap();
    dissect(name, &dir.file("rxe-demo.pcapng"), packets);
}

#[test]
fn several_demos_at_once_find_addresses() {
    let name = "several_demos_at_once_find_addresses";
    let dir = Dir::new();
    let script = "
        \"$RXE\" demo --json --no-pcap > a & a=$!
        \"$RXE\" demo --json --no-pcap > b & b=$!
        wait $a; wait $b
    ";
    let Some(out) = in_namespace(name, LOOPBACK, script, &dir.file("")) else { return };
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn a_demo_that_is_refused_leaves_the_last_capture_as_it_was() {
    let name = "a_demo_that_is_refused_leaves_the_last_capture_as_it_was";
    let dir = Dir::new();
    let capture = dir.file("rxe-demo.pcapng");
    fs::write(&capture, "yesterday's").unwrap();
    for refused in ["demo -m 9000", "pingpong -d lo -m 9000 --pcap rxe-demo.pcapng"] {
        let script = format!("timeout 60 \"$RXE\" {refused}");
        let Some(out) = in_namespace(name, LOOPBACK, &script, &dir.file("")) else { return };
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(said.contains("9000 is not a path MTU"), "{said}");
        assert_eq!(fs::read_to_string(&capture).unwrap(), "yesterday's", "{refused}");
    }
}

#[test]
fn a_host_without_loopback_is_told_what_to_do() {
    let name = "a_host_without_loopback_is_told_what_to_do";
    let dir = Dir::new();
    let Some(out) = in_namespace(name, ":", "\"$RXE\" demo", &dir.file("")) else { return };
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.ends_with("`ip link set lo up`\n") && said.lines().count() == 1, "{said}");
}
