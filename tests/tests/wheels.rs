//! Programs from PyPI whose wheels contain libraries of their own: MPICH with its UCX and
//! libfabric, mpi4py, Mooncake's transfer engine, NIXL, DLSlime and InfiniStore; and ibverbs, which
//! loads the system's library by itself. Both sides use our devices, on two hosts and on one
//! address.

use std::fs;
use std::path::Path;
use std::process::Command;

use rxe_harness::{everything, or_skip, paths, vm, wheel};
use rxe_test_support::skipped;

mod common;
use common::{Dir, Where, alone, both, installed, with_libraries};

/// Starts a program as four ranks, two on each of two hosts or all on one. Returns the output.
#[track_caller]
fn four_ranks(
    test: &str,
    mpich: &Path,
    variables: &str,
    program: &str,
    place: Where,
) -> Option<String> {
    let captures = Dir::new();
    let (hosts, local) = match place {
        Where::TwoHosts => ("10.9.0.1:2,10.9.0.2:2", ""),
        // Each rank counts as a host. Otherwise the ranks would use MPICH's own shared memory.
        Where::OneAddress => ("10.9.0.1:4", "MPIR_CVAR_NOLOCAL=1"),
    };
    // This script replaces ssh: its arguments are options, the host and a shell command to run
    // there.
    let script = format!(
        r#"
        cat > agent <<'END'
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1
shift
case $host in
10.9.0.1) exec unshare --uts sh -c "hostname here; $*" ;;
*) exec ip netns exec far unshare --uts sh -c "hostname far; $*" ;;
esac
END
        chmod +x agent
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        export {local} {variables}
        timeout 120 unshare --uts sh -c "hostname here; exec {mpich}/bin/mpiexec -launcher ssh \
            -launcher-exec $PWD/agent -hosts {hosts} -n 4 \
            $RXE run --pcap {captures}/%p.pcapng -- {program}" 2>&1
        "#,
        mpich = mpich.display(),
        captures = captures.0.display(),
    );
    let said = alone(test, "python3", &script)?;
    // Each rank sent its messages by RDMA: 300 kB at least.
    let files = fs::read_dir(&captures.0).unwrap().map(|file| file.unwrap());
    let large = files.filter(|file| file.metadata().unwrap().len() > 300_000).count();
    assert_eq!(large, 4, "{said}");
    Some(said)
}

/// Runs `c/ranks.c` over one of MPICH's transports.
fn messages(transport: &str, variables: &str, place: Where) {
    let test = format!("MPICH over {transport} ({place:?})");
    if !installed(&test, "gcc") {
        return;
    }
    let Some(mpich) = or_skip(wheel::mpich()) else { return };
    let dir = Dir::new();
    let ranks = dir.0.join("ranks");
    // MPICH's compiler is a shell script that does not quote its arguments.
    let source = paths::checkout().join("tests/c/ranks.c");
    let mut compile = Command::new(mpich.join("bin/mpicc"));
    assert!(compile.args(["-O1", "-o"]).arg(&ranks).arg(source).status().unwrap().success());
    let hosts = match place {
        Where::TwoHosts => 2,
        Where::OneAddress => 4,
    };
    let program = format!("{} {hosts}", ranks.display());
    let Some(said) = four_ranks(&test, &mpich, variables, &program, place) else { return };
    assert!(said.contains(&format!("4 ranks on {hosts} hosts: all as MPI says")), "{said}");
}

const UCX_RC: &str = "MPICH_CH4_NETMOD=ucx UCX_TLS=rc_verbs,ud_verbs:aux,self";
// The last rank waits this long for ranks that have ended.
const UCX_UD: &str = "MPICH_CH4_NETMOD=ucx UCX_TLS=ud_verbs,self UCX_UD_TIMEOUT=5s";
const LIBFABRIC: &str = "MPICH_CH4_NETMOD=ofi FI_PROVIDER='verbs;ofi_rxm'";

#[test]
fn mpich_over_reliable_connections_of_ucx() {
    messages("UCX rc", UCX_RC, Where::TwoHosts);
}

#[test]
fn mpich_over_reliable_connections_of_ucx_on_one_host() {
    messages("UCX rc", UCX_RC, Where::OneAddress);
}

#[test]
fn mpich_over_datagrams_of_ucx() {
    if !everything() {
        return skipped("MPICH over UCX ud", "only with --all");
    }
    messages("UCX ud", UCX_UD, Where::TwoHosts);
    messages("UCX ud", UCX_UD, Where::OneAddress);
}

#[test]
fn mpich_over_libfabric() {
    messages("libfabric", LIBFABRIC, Where::TwoHosts);
}

#[test]
fn mpich_over_libfabric_on_one_host() {
    messages("libfabric", LIBFABRIC, Where::OneAddress);
}

#[test]
fn mpi4py_over_libfabric() {
    objects(Where::TwoHosts);
}

#[test]
fn mpi4py_over_libfabric_on_one_host() {
    objects(Where::OneAddress);
}

/// Returns the command that runs a script of `tests/python`.
fn python(script: &str) -> String {
    format!("python3 {}/tests/python/{script}", paths::checkout().display())
}

/// Runs `python/mpi4py_objects.py` over libfabric.
fn objects(place: Where) {
    let test = format!("mpi4py ({place:?})");
    let Some(mpich) = or_skip(wheel::mpich()) else { return };
    let Some(wheel) = or_skip(wheel::fetch(wheel::MPI4PY)) else { return };
    let variables = format!(
        "{LIBFABRIC} PYTHONPATH={} MPI4PY_LIBMPI={}/lib/libmpi.so.12",
        wheel.display(),
        mpich.display()
    );
    let program = python("mpi4py_objects.py");
    let Some(said) = four_ranks(&test, &mpich, &variables, &program, place) else { return };
    let hosts = match place {
        Where::TwoHosts => 2,
        Where::OneAddress => 1,
    };
    let all = format!("4 ranks on {hosts} hosts: all objects are the same");
    assert!(said.contains(&all), "{said}");
}

/// Returns the command prefix, the device and the address of a client. The server is at 10.9.0.1 of
/// rxe_veth0.
fn client(place: Where) -> (&'static str, &'static str, &'static str) {
    match place {
        Where::TwoHosts => ("ip netns exec far", "rxe_veth1", "10.9.0.2"),
        Where::OneAddress => ("", "rxe_veth0", "10.9.0.1"),
    }
}

#[test]
fn mooncake_moves_bytes_unchanged() {
    mooncake_bytes(Where::TwoHosts);
}

#[test]
fn mooncake_moves_bytes_unchanged_on_one_host() {
    mooncake_bytes(Where::OneAddress);
}

/// Runs `python/mooncake_bytes.py`.
fn mooncake_bytes(place: Where) {
    let Some(wheel) = or_skip(wheel::mooncake()) else { return };
    let setup = format!("export PYTHONPATH={} MC_GID_INDEX=1", wheel.display());
    let script = python("mooncake_bytes.py");
    let (_, device, address) = client(place);
    let server = format!("{script} rxe_veth0 10.9.0.1");
    let client = format!("{script} {device} {address} 10.9.0.1");
    let Some(said) = both("python3", 4790, &setup, &server, &client, place) else { return };
    assert!(said.contains("4264946 bytes are the same"), "{said}");
}

#[test]
fn mooncake_s_benchmark() {
    let test = "transfer_engine_bench";
    if !everything() {
        return skipped(test, "only with --all");
    }
    let Some(wheel) = or_skip(wheel::mooncake()) else { return };
    let program = wheel.join("mooncake").join(test);
    wheel::executable(&program).unwrap();
    for place in [Where::TwoHosts, Where::OneAddress] {
        benchmark(&format!("{test} ({place:?})"), &program, place);
    }
}

/// Runs a target, and an initiator that writes and then reads. The numbers of workers and threads
/// are those that the book recommends for one host.
fn benchmark(test: &str, program: &Path, place: Where) {
    let (enter, device, address) = client(place);
    let threads = match place {
        Where::TwoHosts => 2,
        Where::OneAddress => 1,
    };
    let script = format!(
        r#"
        export MC_GID_INDEX=1 MC_WORKERS_PER_CTX={threads}
        bench="timeout 60 $RXE run -- {program} --metadata_server=P2PHANDSHAKE --protocol=rdma
            --buffer_size=33554432 --threads={threads} --batch_size=8 --block_size=65536 --duration=1"
        $bench --mode=target --local_server_name=10.9.0.1:0 --device_name=rxe_veth0 > target 2>&1 & target=$!
        until grep -q 'DRAM is used' target; do
            kill -0 $target || {{ cat target; exit 1; }}
            sleep 0.05
        done
        segment=$(sed -n 's/.*listening on //p' target)
        for operation in write read; do
            {enter} $bench --mode=initiator --local_server_name={address}:0 \
                --device_name={device} --segment_id=$segment --operation=$operation 2>&1
        done
        kill $target
        "#,
        program = program.display(),
    );
    let Some(said) = alone(test, "python3", &script) else { return };
    assert_eq!(said.matches("Test completed: ").count(), 2, "{said}");
    assert!(!said.contains("batch count 0"), "{said}");
}

#[test]
fn a_wheel_that_loads_libibverbs_by_itself() {
    loads_by_itself(Where::TwoHosts);
}

#[test]
fn a_wheel_that_loads_libibverbs_by_itself_on_one_host() {
    loads_by_itself(Where::OneAddress);
}

/// Runs `python/ibverbs_bytes.py`.
fn loads_by_itself(place: Where) {
    let test = &format!("PyPI's ibverbs ({place:?})");
    let (enter, device, _) = client(place);
    let Some(wheel) = or_skip(wheel::fetch(wheel::IBVERBS)) else { return };
    if !installed(test, "cc") {
        return;
    }
    let bin = with_libraries();
    let script = format!(
        r#"
        export PYTHONPATH={wheel}
        script="timeout 60 {rxe} run -- {source}"
        $script rxe_veth0 > server 2>&1 & server=$!
        until ss -Htln 'sport = :4790' | grep -q .; do
            kill -0 $server || {{ cat server; exit 1; }}
            sleep 0.05
        done
        {enter} $script {device} 10.9.0.1 2>&1 || {{ cat server; exit 1; }}
        wait $server
        cat server
        "#,
        wheel = wheel.display(),
        rxe = bin.0.join("rxe").display(),
        source = python("ibverbs_bytes.py"),
    );
    let Some(said) = alone(test, "python3", &script) else { return };
    assert_eq!(said, "300001 bytes are the same\n");
}

#[test]
fn nixl_moves_bytes_unchanged() {
    nixl(Where::TwoHosts);
}

#[test]
fn nixl_moves_bytes_unchanged_on_one_host() {
    nixl(Where::OneAddress);
}

/// Runs `python/nixl_bytes.py`.
#[track_caller]
fn nixl(place: Where) {
    let Some(path) = or_skip(python_path(&[wheel::NIXL, wheel::NUMPY])) else { return };
    let (_, device, address) = client(place);
    // No other transport and no other device are available to it.
    let setup =
        format!("{path} UCX_TLS=rc_verbs,ud_verbs:aux UCX_NET_DEVICES=rxe_veth0:1,{device}:1");
    let server = format!("{} 10.9.0.1", python("nixl_bytes.py"));
    let client = format!("{} {address} 10.9.0.1", python("nixl_bytes.py"));
    let Some(said) = both("python3", 4790, &setup, &server, &client, place) else { return };
    assert!(said.contains("8998818 bytes are the same"), "{said}");
}

#[test]
fn dlslime_moves_bytes_unchanged() {
    dlslime(Where::TwoHosts);
}

#[test]
fn dlslime_moves_bytes_unchanged_on_one_host() {
    dlslime(Where::OneAddress);
}

/// Runs `python/dlslime_bytes.py`. DLSlime sets `min_rnr_timer` to 32, of which devices use the low
/// five bits.
#[track_caller]
fn dlslime(place: Where) {
    let Some(setup) = or_skip(python_path(&[wheel::DLSLIME])) else { return };
    let (_, device, address) = client(place);
    let server = format!("{} rxe_veth0 10.9.0.1", python("dlslime_bytes.py"));
    let client = format!("{} {device} {address} 10.9.0.1", python("dlslime_bytes.py"));
    let Some(said) = both("python3", 4790, &setup, &server, &client, place) else { return };
    assert!(said.contains("13498227 bytes are the same"), "{said}");
}

#[test]
fn infinistore_keeps_bytes_unchanged() {
    infinistore(Where::TwoHosts);
}

#[test]
fn infinistore_keeps_bytes_unchanged_on_one_host() {
    infinistore(Where::OneAddress);
}

/// Runs `python/infinistore_bytes.py`.
#[track_caller]
fn infinistore(place: Where) {
    let wheels = [wheel::INFINISTORE, wheel::UVLOOP, wheel::NUMPY];
    let Some(setup) = or_skip(python_path(&wheels)) else { return };
    let (_, device, _) = client(place);
    let server = format!("{} rxe_veth0", python("infinistore_bytes.py"));
    let client = format!("{} {device} 10.9.0.1", python("infinistore_bytes.py"));
    let Some(said) = both("python3", 4790, &setup, &server, &client, place) else { return };
    assert!(said.contains("4194304 bytes are the same"), "{said}");
}

/// Returns a line of a shell script that makes Python find these wheels.
fn python_path(wheels: &[&str]) -> vm::Result<String> {
    let mut line = "export PYTHONPATH=".to_owned();
    for wheel in wheels {
        line = format!("{line}{}:", wheel::fetch(wheel)?.display());
    }
    Ok(line)
}
