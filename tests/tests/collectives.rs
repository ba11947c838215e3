//! Libraries of collective operations with verbs transports: gloo, from Debian's packages, and
//! NCCL, from PyPI's wheel. All ranks use our devices, on two hosts and on one address.

use std::process::Command;

use rxe_harness::debs::Unpacked;
use rxe_harness::{everything, or_skip, paths, wheel};
use rxe_test_support::skipped;

mod common;
use common::{Dir, Where, alone, installed, with_libraries};

/// The packages of gloo, and of a library that some machines lack.
const GLOO: [&str; 3] = ["libgloo-dev", "libgloo0", "libhiredis0.14"];

#[test]
fn gloo_between_two_hosts() {
    gloo(Where::TwoHosts);
}

#[test]
fn gloo_on_one_address() {
    gloo(Where::OneAddress);
}

/// Runs four ranks of `c/gloo.cc`, two on each host or all on one.
#[track_caller]
fn gloo(place: Where) {
    let test = format!("gloo ({place:?})");
    if !installed(&test, "g++") {
        return;
    }
    let Some(unpacked) = or_skip(Unpacked::fetch("gloo", &GLOO)) else { return };
    let dir = Dir::new();
    let program = dir.0.join("gloo");
    let libraries = unpacked.path("usr/lib/x86_64-linux-gnu");
    let mut compile = Command::new("g++");
    compile.args(["-O1", "-o"]).arg(&program).arg("-isystem").arg(unpacked.path("usr/include"));
    compile
        .arg(paths::checkout().join("tests/c/gloo.cc"))
        .arg(unpacked.path("usr/lib/libgloo.so.0"));
    compile
        .arg(format!("-Wl,-rpath-link,{}", libraries.display()))
        .args(["-libverbs", "-lpthread"]);
    assert!(compile.status().unwrap().success());
    let far = match place {
        Where::TwoHosts => "ip netns exec far",
        Where::OneAddress => "",
    };
    let script = format!(
        r#"
        export LD_LIBRARY_PATH={lib}:{libraries}
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        mkdir store
        start() {{ timeout -k 1 60 $2 $RXE run -- {program} rxe0 $PWD/store $1 4 > out.$1 2>&1; }}
        start 0 & start 1 & start 2 '{far}' & start 3 '{far}' & wait
        cat out.*"#,
        lib = unpacked.path("usr/lib").display(),
        libraries = libraries.display(),
        program = program.display(),
    );
    let Some(said) = alone(&test, "sh", &script) else { return };
    let ranks = (0..4).map(|rank| format!("{rank} of 4: all numbers are right\n"));
    assert_eq!(said, ranks.collect::<String>());
}

#[test]
fn nccl_between_two_hosts() {
    nccl(Where::TwoHosts, "NCCL_IB_QPS_PER_CONNECTION=1", "");
}

#[test]
fn nccl_with_four_queue_pairs_a_connection() {
    nccl(Where::TwoHosts, "NCCL_IB_QPS_PER_CONNECTION=4", "");
    nccl(Where::OneAddress, "NCCL_IB_QPS_PER_CONNECTION=4", "");
}

/// Each message is split into four parts, one for each queue pair.
#[test]
fn nccl_cuts_messages_between_lossy_hosts() {
    let variables = "NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1";
    nccl(Where::TwoHosts, variables, "--fault 'drop 0.5%' --seed 1");
}

#[test]
fn nccl_between_lossy_hosts() {
    nccl(Where::TwoHosts, "NCCL_IB_QPS_PER_CONNECTION=1", "--fault 'drop 0.5%' --seed 1");
}

/// Runs `python/nccl_bytes.py`: NCCL's InfiniBand transport from host memory to host memory.
#[track_caller]
fn nccl(place: Where, variables: &str, options: &str) {
    let test = format!("NCCL, {variables} {options} ({place:?})");
    if !everything() {
        return skipped(&test, "only with --all: the wheel has 350 MB");
    }
    if !installed(&test, "cc") {
        return;
    }
    let Some(wheel) = or_skip(wheel::fetch(wheel::NCCL)) else { return };
    let bin = with_libraries();
    let (enter, own) = match place {
        Where::TwoHosts => ("ip netns exec far", "10.9.0.2"),
        Where::OneAddress => ("", "10.9.0.1"),
    };
    let script = format!(
        r#"
        export NCCL_SOCKET_IFNAME=veth {variables}
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        run="timeout -k 1 100 {rxe} run"
        script="{script} {library}"
        $run {options} -- python3 $script 10.9.0.1 > server 2>&1 & server=$!
        trap 'kill $server || true' EXIT
        until ss -Htln 'sport = :4790' | grep -q .; do
            kill -0 $server || {{ cat server; exit 1; }}
            sleep 0.05
        done
        {enter} $run {options} -- python3 $script {own} 10.9.0.1 2>&1 || {{ cat server; exit 1; }}
        wait $server || {{ cat server; exit 1; }}
        trap - EXIT
        cat server"#,
        rxe = bin.0.join("rxe").display(),
        script = paths::checkout().join("tests/python/nccl_bytes.py").display(),
        library = wheel.join("nvidia/nccl/lib/libnccl.so.2").display(),
    );
    let Some(said) = alone(&test, "python3", &script) else { return };
    assert!(said.contains("35995272 bytes are the same\n"), "{said}");
    // Both ends report the packets that they dropped.
    let lost = if options.is_empty() { 0 } else { 2 };
    assert_eq!(said.matches("drop 0.5% hit ").count(), lost, "{said}");
}
