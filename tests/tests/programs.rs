//! Unmodified programs with the preloaded library: rdma-core's pingpongs and perftest, each between
//! two hosts, which are network namespaces of the test's own. A test whose program is not installed
//! is skipped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rxe_harness::c::{Compiled, TUTORIALS};
use rxe_harness::or_skip;
use rxe_test_support::skipped;

mod common;
use common::{Dir, Where, alone, both, rxe};

/// The libraries of programs that do not use librdmacm.
const VERBS: [&str; 2] = ["-libverbs", "-lpthread"];

#[test]
fn devices_are_listed_and_described() {
    let Some(out) = alone("devices", "ibv_devices", "$RXE run -- ibv_devices") else { return };
    assert!(out.contains("rxe_veth0       \t505400fffe000001"), "{out}");
    assert!(!out.contains("rxe_lo"), "loopback leads to no other host: {out}");
    let script = "$RXE run --device veth0 -- ibv_devinfo -v";
    let Some(out) = alone("devinfo", "ibv_devinfo", script) else { return };
    for line in [
        "vendor_id:\t\t\t0xffffff",
        "state:\t\t\tPORT_ACTIVE (4)",
        "active_mtu:\t\t1024 (3)",
        "link_layer:\t\tEthernet",
        "GID[  1]:\t\t::ffff:10.9.0.1, RoCE v2",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(!out.contains("rxe_lo"), "{out}");
}

#[test]
fn loopback_is_offered_where_nothing_else_is_or_where_it_is_asked_for() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        ls="ls /sys/class/infiniband"
        for options in '' '--device lo' '--device lo,veth0'; do
            $RXE run $options -- ibv_devices
            $RXE run $options -- $ls
            $RXE run $options -- rdma link
        done
        echo no other is up
        ip link set veth0 down
        $RXE run -- ibv_devices
        $RXE run -- $ls
    "#;
    let Some(out) = alone("loopback", "ibv_devices", script) else { return };
    let (up, down) = out.split_once("no other is up\n").unwrap();
    let count = |out: &str, name: &str| out.matches(name).count();
    assert_eq!([count(up, "rxe_veth0"), count(up, "rxe_lo")], [6, 6], "{out}");
    assert!(up.find("rxe_lo") > up.find("link rxe_veth0/1"), "not by default: {out}");
    assert_eq!([count(down, "rxe_veth0"), count(down, "rxe_lo")], [2, 2], "{out}");
}

#[test]
fn a_link_that_was_added_names_the_device_of_programs() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        $RXE link add rxe0 type rxe netdev lo
        $RXE run -- ibv_devices
        $RXE run -- ls /sys/class/infiniband
        timeout 60 $RXE run -- ibv_rc_pingpong -d rxe0 -g 0 -n 10 > server & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do
            kill -0 $server
            sleep 0.05
        done
        timeout 60 $RXE run -- ibv_rc_pingpong -d rxe0 -g 0 -n 10 127.0.0.1
        wait $server
    "#;
    let Some(out) = alone("links", "ibv_rc_pingpong", script) else { return };
    assert!(out.contains("rxe0            \t0200") && !out.contains("rxe_lo"), "{out}");
    assert!(out.contains("\nrxe0\n") && out.contains("10 iters"), "{out}");
}

#[test]
fn a_program_that_runs_rdma_link_sees_the_devices() {
    let script = r#"
        export XDG_RUNTIME_DIR="$PWD"
        $RXE link add rxe0 type rxe netdev veth0
        $RXE run -- rdma link
        $RXE run --device veth0 -- sh -c 'rdma link show -j; rdma -j link show; rdma link show rxe0/1'
        mkdir bin
        printf '#!/bin/sh\necho the real one: "$@"\n' > bin/rdma
        chmod +x bin/rdma
        PATH="$PWD/bin:$PATH" $RXE run -- sh -c 'rdma -j dev show link'
    "#;
    let Some(out) = alone("rdma link", "ibv_devices", script) else { return };
    let lines: Vec<_> = out.lines().collect();
    let rxe0 = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev veth0 ";
    assert_eq!(lines[0], rxe0, "{out}");
    let json = "\"ifname\":\"rxe0\",\"port\":1,\"state\":\"ACTIVE\",\"physical_state\":\"LINK_UP\"";
    assert!(lines[1].starts_with("[{") && lines[1].contains(json), "{out}");
    assert!(!lines[1].contains("lo") && lines[2] == lines[1], "{out}");
    assert_eq!(lines[3..], [rxe0, "the real one: -j dev show link"], "{out}");
}

#[test]
fn rxe_devinfo_says_what_ibv_devinfo_does() {
    let script = "
        $RXE devinfo -v > ours
        $RXE run --device veth0,lo -- ibv_devinfo -v > c
        # Flags younger than the program have no names there.
        for list in ours c; do
            grep -v 'Unknown flags' $list | grep -vE '^\t{5}[A-Z]' > $list.cut
        done
        diff ours.cut c.cut && wc -l < c.cut
    ";
    let Some(out) = alone("devinfo", "ibv_devinfo", script) else { return };
    assert!(out.trim().parse::<u32>().is_ok_and(|lines| lines > 100), "two devices: {out}");
}

#[test]
fn a_pingpong_of_c_talks_with_rxe_pingpong() {
    for (transport, program, options) in [
        ("rc", "ibv_rc_pingpong", "-n 100 -c -t"),
        ("uc", "ibv_uc_pingpong", "-n 100"),
        ("ud", "ibv_ud_pingpong", "-n 100 -e -s 1000"),
        ("srq", "ibv_srq_pingpong", "-n 100 -q 5"),
        ("xrc", "ibv_xsrq_pingpong", "-n 100"),
        ("xrc", "ibv_xsrq_pingpong", "-n 100 -e -s 50000"),
    ] {
        let ours = format!("$RXE pingpong --transport {transport} {options}");
        let c = |device: &str| format!("$RXE run -- {program} -d {device} -g 1 {options}");
        for (server, client) in [(ours.clone(), c("rxe_veth1")), (c("rxe_veth0"), ours)] {
            let script = format!(
                "
                timeout 60 {server} > server & server=$!
                until ss -Htln 'sport = :18515' | grep -q .; do
                    kill -0 $server
                    sleep 0.05
                done
                timeout 60 ip netns exec far {client} 10.9.0.1
                wait $server"
            );
            if alone(&format!("{server}; {client}"), program, &script).is_none() {
                return;
            }
        }
    }
}

#[test]
fn ibv_rc_pingpong() {
    for options in ["", "-e", "-c", "-t", "-e -c -s 100000 -n 100"] {
        pingpong("ibv_rc_pingpong", options);
    }
}

#[test]
fn ibv_uc_pingpong() {
    for options in ["-n 100", "-n 100 -e", "-n 100 -c"] {
        pingpong("ibv_uc_pingpong", options);
    }
}

#[test]
fn ibv_ud_pingpong() {
    for options in ["-n 100", "-n 100 -e", "-n 100 -c"] {
        pingpong("ibv_ud_pingpong", options);
    }
}

#[test]
fn ibv_srq_pingpong() {
    for options in ["-n 100", "-n 100 -e", "-n 100 -c -q 4"] {
        pingpong("ibv_srq_pingpong", options);
    }
}

#[test]
fn ibv_xsrq_pingpong() {
    for options in ["-n 100", "-n 100 -e"] {
        pingpong("ibv_xsrq_pingpong", options);
    }
}

#[test]
fn perftest_bandwidth() {
    for program in ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"] {
        perftest(program, "-n 200");
    }
}

#[test]
fn perftest_latency() {
    for program in ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"] {
        perftest(program, "-n 100");
    }
}

#[test]
fn perftest_over_unreliable_services() {
    for options in ["-c UC", "-c UD"] {
        perftest("ib_send_bw", &format!("-n 100 {options}"));
        perftest("ib_send_lat", &format!("-n 100 {options}"));
    }
    perftest("ib_write_bw", "-n 100 -c UC");
    perftest("ib_write_lat", "-n 100 -c UC");
}

#[test]
fn perftest_over_xrc() {
    for operation in ["send", "write", "read", "atomic"] {
        perftest(&format!("ib_{operation}_bw"), "-n 100 -c XRC");
        perftest(&format!("ib_{operation}_lat"), "-n 100 -c XRC");
    }
    perftest("ib_write_bw", "-n 100 -c XRC -q 8");
}

#[test]
fn perftest_with_many_queue_pairs_events_inline_and_both_ways() {
    perftest("ib_write_bw", "-n 100 -q 8");
    perftest("ib_send_bw", "-n 100 -e");
    perftest("ib_send_lat", "-n 100 -e");
    perftest("ib_write_lat", "-n 100 -I 64 -s 64");
    perftest("ib_send_bw", "-n 100 -b");
    perftest("ib_read_bw", "-n 100 -b");
    perftest("ib_send_bw", "-n 100 --use-srq");
}

#[test]
fn perftest_of_all_sizes() {
    perftest("ib_write_bw", "-n 5 -a");
}

#[test]
fn two_programs_on_one_address() {
    conversation("ibv_rc_pingpong", "-g 1", Where::OneAddress);
    conversation("ibv_rc_pingpong", "-g 1 -e", Where::OneAddress);
    conversation("ib_write_bw", "-x 1 -F -n 100", Where::OneAddress);
    conversation("ib_send_lat", "-x 1 -F -n 100", Where::OneAddress);
}

#[test]
fn counters_in_sysfs_are_those_of_the_programs_that_run() {
    let script = r#"
        port=/sys/class/infiniband/rxe_lo/ports/1
        read_counter() { $RXE run --device rxe_lo -- cat $port/$1; }
        echo "before $(read_counter hw_counters/rdma_sends)"
        $RXE perf send bw -D 200 > server 2>&1 & server=$!
        until ss -Htln 'sport = :18515' | grep -q .; do kill -0 $server; sleep 0.05; done
        $RXE perf send bw -D 200 127.0.0.1 > client 2>&1 & client=$!
        until [ "$(read_counter hw_counters/rdma_recvs)" -gt 0 ]; do sleep 0.05; done
        echo "sends $(read_counter hw_counters/rdma_sends)"
        echo "data $(read_counter counters/port_xmit_data)"
        echo "names $($RXE run --device rxe_lo -- ls $port/hw_counters | wc -l)"
        kill $server $client
        wait $server $client || true
        echo "after $(read_counter hw_counters/rdma_sends)"
    "#;
    let Some(out) = alone("sysfs-counters", "cat", script) else { return };
    let value = |name: &str| -> u64 {
        let line = out.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name}: {out}"))
    };
    assert_eq!((value("before"), value("after"), value("names")), (0, 0, 15));
    assert!(value("sends") > 0 && value("data") > value("sends"), "{out}");
}

#[test]
fn what_programs_read_in_sysfs_is_there() {
    let script = "
        for file in node_guid ports/1/state ports/1/gids/1 ports/1/gid_attrs/types/1 \
            ports/1/gid_attrs/ndevs/1 device/net/veth0/ifindex; do
            $RXE run -- cat /sys/class/infiniband/rxe_veth0/$file
        done
        $RXE run -- ls /sys/class/infiniband
        $RXE run -- test -c /dev/infiniband/uverbs0
        ! $RXE run -- cat /sys/class/infiniband/rxe_none/node_guid 2> error
    ";
    let Some(out) = alone("sysfs", "cat", script) else { return };
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(
        lines[..5],
        [
            "5054:00ff:fe00:0001",
            "4: ACTIVE",
            "0000:0000:0000:0000:0000:ffff:0a09:0001",
            "RoCE v2",
            "veth0",
        ]
    );
    assert_eq!(lines[6..], ["rxe_veth0"]);
}

#[test]
fn perftest_for_a_time() {
    perftest("ib_send_bw", "-D 2");
    perftest("ib_write_bw", "-D 2");
}

#[test]
fn a_program_that_uses_all_of_verbs() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/abi.c"], &VERBS)) else { return };
    let program = c.path("tests/c/abi.c").display().to_string();
    let script = format!("timeout 60 $RXE run -- {program} rxe_veth0 1 2>&1");
    let Some(out) = alone("abi", "cc", &script) else { return };
    assert!(out.contains("all as verbs say"), "{out}");
    // Mistakes of the program are explained once, at both ends of the connection.
    for explanation in [
        "ah_attr.is_global: is 0: RoCE peers are addressed by GID",
        "going from INIT to RTR also needs the attributes IBV_QP_MIN_RNR_TIMER",
        "the queue pair was made for 64 (max_inline_data)",
        "ibv_reg_mr: the memory cannot be registered: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE",
        "ibv_rereg_mr: the new memory is 0 bytes at",
        "ibv_dealloc_pd: the protection domain has the handle 0x",
        "failed: the peer does not let it use",
        "and was refused: ",
    ] {
        assert_eq!(out.matches(explanation).count(), 1, "{explanation}: {out}");
    }
    // Each of two children prints it once.
    assert_eq!(out.matches("the device was opened before fork()").count(), 2, "{out}");
    let script = format!("timeout 60 $RXE run --explain off -- {program} rxe_veth0 1 2>&1");
    assert_eq!(alone("abi", "cc", &script).unwrap(), "all as verbs say\n");
}

#[test]
fn calls_do_what_the_manual_pages_of_libibverbs_say() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/pages.c"], &VERBS)) else { return };
    let program = c.path("tests/c/pages.c").display().to_string();
    let script = format!("timeout 60 $RXE run --explain off -- {program} rxe_veth0 2>&1");
    let Some(out) = alone("pages", "cc", &script) else { return };
    assert_eq!(out, "all as the pages say\n");
}

/// Programs that know nothing about shards use them through their completion vectors.
#[test]
fn a_program_whose_main_thread_makes_all_has_a_shard_for_each_completion_vector() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/vectors.c"], &VERBS)) else { return };
    let program = c.path("tests/c/vectors.c").display().to_string();
    let cpus = std::thread::available_parallelism().unwrap().get().min(8);
    for (run, argument, shards) in [
        ("", "", cpus),
        ("", "alike", 1),
        ("--shards 3", "alike", cpus.min(3)),
        ("--shards 1", "", 1),
    ] {
        let script = format!("timeout 60 $RXE run {run} -- {program} rxe_veth0 {argument} 2>&1");
        let Some(out) = alone("vectors", "cc", &script) else { return };
        let last = out.lines().last().unwrap_or_default();
        assert_eq!(last, format!("{cpus} vectors, {shards} shards"), "{run}: {out}");
    }
}

#[test]
fn programs_run_with_several_shards_as_with_one() {
    let shards = "export RXE_SHARDS=2";
    for (program, options) in [
        ("ibv_rc_pingpong", "-g 1 -n 100 -e"),
        ("ibv_ud_pingpong", "-g 1 -n 100 -e"),
        ("ibv_srq_pingpong", "-g 1 -n 100 -e -q 4"),
        ("ibv_xsrq_pingpong", "-g 1 -n 100"),
        ("ib_write_bw", "-x 1 -F -n 100 -q 4"),
        ("ib_send_bw", "-x 1 -F -n 100 -q 4 -b -e"),
        ("ib_read_lat", "-x 1 -F -n 100"),
    ] {
        let server = format!("{program} -d rxe_veth0 {options}");
        let client = format!("{program} -d rxe_veth1 {options} 10.9.0.1");
        both(program, 18515, shards, &server, &client, Where::TwoHosts);
    }
    let Some(c) = or_skip(Compiled::linked(&["tests/c/abi.c"], &VERBS)) else { return };
    let program = c.path("tests/c/abi.c").display().to_string();
    let script =
        format!("timeout 60 $RXE run --explain off --shards 2 -- {program} rxe_veth0 1 2>&1");
    let Some(out) = alone("abi", "cc", &script) else { return };
    assert_eq!(out, "all as verbs say\n");
}

#[test]
fn a_program_that_only_looks_at_its_memory_sees_what_is_written_there() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/looks.c"], &VERBS)) else { return };
    let program = c.path("tests/c/looks.c").display().to_string();
    for gap in [0, 2000] {
        let script = format!("timeout 60 $RXE run -- {program} rxe_veth0 1 {gap} 100 - - 2>&1");
        let Some(out) = alone("looks", "cc", &script) else { return };
        assert!(out.starts_with(&format!("{gap} us apart: median ")), "{out}");
    }
}

#[test]
fn fortified_and_old_programs_find_the_devices_files() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/paths.c"], &["-ldl"])) else { return };
    let script = format!("$RXE run -- {} rxe_veth0 2>&1", c.path("tests/c/paths.c").display());
    let Some(out) = alone("paths", "cc", &script) else { return };
    assert!(out.contains("all paths lead there"), "{out}");
}

#[test]
fn threads_that_sleep_in_what_another_destroys() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/sleepers.c"])) else { return };
    let program = c.path("tests/c/sleepers.c");
    let script = format!("timeout 60 $RXE run -- {} rxe_veth0 2>&1", program.display());
    let Some(out) = alone("sleepers", "cc", &script) else { return };
    assert_eq!(out, "all slept well\n");
}

#[test]
fn a_first_program_reads_and_writes_the_memory_of_its_server() {
    let Some(c) = or_skip(Compiled::new(&TUTORIALS[..1])) else { return };
    let program = c.path(TUTORIALS[0]).display().to_string();
    conversation(&program, "-g 1", Where::TwoHosts);
    conversation(&program, "-g 1", Where::OneAddress);
}

#[test]
fn a_program_that_becomes_another_by_exec_holds_nothing_any_more() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/again.c"], &VERBS)) else { return };
    let program = c.path("tests/c/again.c");
    for options in ["--backend udp", "--backend packet"] {
        let script =
            format!("timeout 60 $RXE run {options} -- {} rxe_veth0 2>&1", program.display());
        let Some(out) = alone("again", "cc", &script) else { return };
        let lines: Vec<_> = out.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("block 1, descriptors "), "{out}");
        assert_eq!(lines[0], lines[1], "{options}: it begins as the first time");
    }
}

#[test]
fn a_pingpong_that_gets_it_wrong_is_told_why() {
    for (server, client, explanation) in [
        ("", "", "RoCE peers are addressed by GID"),
        ("-g 9", "-g 1", "the GID table has no such entry"),
        ("-g 1 -m 4096", "-g 1 -m 4096", "path_mtu"),
    ] {
        let script = format!(
            "
            set +e
            timeout 60 $RXE run -- ibv_rc_pingpong -d rxe_veth0 {server} > server 2>&1 & server=$!
            # It listens, or has ended.
            until ss -Htln 'sport = :18515' | grep -q . || ! kill -0 $server 2> gone; do
                sleep 0.05
            done
            timeout 60 ip netns exec far $RXE run -- ibv_rc_pingpong -d rxe_veth1 {client} 10.9.0.1 \
                > client 2>&1
            kill $server 2> gone
            wait
            cat server client"
        );
        let Some(out) = alone("pingpong", "ibv_rc_pingpong", &script) else { return };
        assert!(out.contains(explanation), "{explanation}: {out}");
    }
}

#[test]
fn what_can_not_be_run_is_refused_with_the_reason() {
    let script = r#"
        set +e
        printf '\177ELF\002\001\001\000\000\000\000\000\000\000\000\000\002\000\363\000%044d' 0 > riscv
        printf '#!/nonexistent/python\n' > script
        : > plain
        chmod +x riscv script plain
        cp "$(command -v true)" setuid && chmod 4755 setuid && chown 1 setuid 2> refused
        for program in ./riscv ./script ./plain ./none no-such-program .; do
            $RXE run -- $program 2>&1
            echo "$?"
        done
    "#;
    let Some(out) = alone("refusals", "true", script) else { return };
    for (what, reason) in [
        ("riscv", "RISC-V (64 bit)"),
        ("script", "/nonexistent/python"),
        ("plain", "neither a program nor a script"),
        ("none", "there is no such file"),
        ("no-such-program", "there is no such program in PATH"),
    ] {
        let said =
            |line: &str| line.starts_with("rxe: ") && line.contains(what) && line.contains(reason);
        assert!(out.lines().any(said), "{what}: {out}");
    }
    // The exit codes of a shell: the program cannot be executed, or does not exist.
    let codes: Vec<_> = out.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    assert_eq!(codes, ["126", "126", "126", "127", "127", "126"], "{out}");
}

#[test]
fn a_setuid_program_is_refused_to_all_but_its_owner() {
    const TEST: &str = "a_setuid_program_is_refused_to_all_but_its_owner";
    if Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout != b"0\n") {
        return skipped(TEST, "only root can make a program of another user's");
    }
    let dir = Dir::new();
    let program = dir.0.join("setuid");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    // The owner gains no rights through the setuid bit, so the loader still preloads.
    let owner = Command::new(rxe()).args(["run", "--"]).arg(&program).output().unwrap();
    assert!(owner.status.success(), "{owner:?}");
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(rxe());
    other.args(["run", "--"]).arg(&program).env("XDG_RUNTIME_DIR", "");
    let other = match other.output() {
        Err(e) => return skipped(TEST, format_args!("setpriv: {e}")),
        Ok(out) => out,
    };
    let said = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(126), "{said}");
    assert!(
        said.starts_with(&format!("rxe: {} is setuid or setgid: ", program.display())),
        "{said}"
    );
    assert!(said.contains("run it as its owner, or a copy without that bit"), "{said}");
}

#[test]
fn a_static_program_and_one_without_its_library_are_told_plainly() {
    let script = r#"
        set +e
        echo 'int gone(void) { return 0; }' > gone.c
        echo 'int gone(void); int main(void) { return gone(); }' > main.c
        cc -static -o static main.c gone.c 2> static.log || echo no static: $(tail -n 1 static.log)
        cc -shared -fPIC -o libgone.so gone.c
        cc -o needy main.c -L. -lgone
        rm libgone.so
        $RXE run -- ./static 2>&1; echo "static: $?"
        $RXE run -- ./needy 2>&1; echo "needy: $?"
    "#;
    let Some(out) = alone("libraries", "cc", script) else { return };
    if let Some(why) = out.lines().find(|line| line.starts_with("no static")) {
        skipped("a_static_program_and_one_without_its_library_are_told_plainly", why);
    } else {
        assert!(
            out.contains("rxe: ./static is statically linked: nothing can be preloaded"),
            "{out}"
        );
        assert!(out.contains("static: 126"), "{out}");
    }
    assert!(
        out.contains("libgone.so: cannot open shared object file") && out.contains("needy: 127")
    );
}

#[track_caller]
fn pingpong(program: &str, options: &str) {
    conversation(program, &format!("-g 1 {options}"), Where::TwoHosts);
}

#[track_caller]
fn perftest(program: &str, options: &str) {
    conversation(program, &format!("-x 1 -F {options}"), Where::TwoHosts);
}

/// Runs a program with the options of the pingpongs and perftest.
#[track_caller]
fn conversation(program: &str, options: &str, place: Where) {
    let server = format!("{program} -d rxe_veth0 {options}");
    let client = match place {
        Where::TwoHosts => format!("{program} -d rxe_veth1 {options} 10.9.0.1"),
        Where::OneAddress => format!("{server} 10.9.0.1"),
    };
    both(program, 18515, "", &server, &client, place);
}
