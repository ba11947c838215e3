//! Programs from PyPI, whose wheels bring libraries of their own: MPICH with its UCX and libfabric,
//! mpi4py, and Mooncake's transfer engine; and ibverbs, which loads that of the system by itself. Both sides
//! ours, on two hosts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rxe_tests::skip;
use xtask::everything;

mod common;
use common::{Dir, alone, installed, with_libraries};

const MPICH: &str = "mpich==5.0.2";
const MPI4PY: &str = "mpi4py==4.1.2";
const MOONCAKE: &str = "mooncake-transfer-engine-non-cuda==0.3.13.post1";
const IBVERBS: &str = "ibverbs==2026.10.22";

/// A wheel, fetched and unpacked; it is kept for the next run. `None` if there is none for this machine or
/// it cannot be fetched, which is then said.
fn wheel(test: &str, requirement: &str) -> Option<PathBuf> {
    if !installed(test, "python3") || !installed(test, "pip3") {
        return None;
    }
    let version = Command::new("python3").arg("--version").output().unwrap().stdout;
    let version = String::from_utf8_lossy(&version).trim().replace([' ', '.'], "-");
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{requirement}-{version}"));
    if kept.exists() {
        return Some(kept);
    }
    // Unpacked elsewhere first: another test may do the same now, and this one may be killed.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut fetch = Command::new("timeout");
    fetch.args([
        "120",
        "python3",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "download",
    ]);
    // Where there is no way to PyPI, that is known soon.
    fetch.args(["--retries", "1", "--timeout", "15"]);
    fetch.args(["--no-deps", "--only-binary", ":all:", "--dest"]).arg(dir.path()).arg(requirement);
    let out = fetch.output().unwrap();
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        let why = said.lines().rfind(|line| line.contains("ERROR")).or(said.lines().last());
        let why = why.unwrap_or("no answer in time");
        skip(test, &format!("{requirement} cannot be fetched: {why}"));
        return None;
    }
    let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let unpacked = dir.path().join("unpacked");
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "-e"]).arg(file).arg(&unpacked);
    assert!(unpack.status().unwrap().success());
    if fs::rename(unpacked, &kept).is_err() {
        assert!(kept.exists(), "{} cannot be made", kept.display());
    }
    Some(kept)
}

/// Makes a file executable; a zip file does not say which are.
fn executable(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// MPICH's programs, ready to be started.
fn mpich(test: &str) -> Option<PathBuf> {
    let wheel = wheel(test, MPICH)?;
    let data = wheel.join("mpich-5.0.2.data/data");
    for program in fs::read_dir(data.join("bin")).unwrap() {
        executable(&program.unwrap().path());
    }
    Some(data)
}

/// Starts a program as four ranks, two on each host. Returns what it printed.
#[track_caller]
fn four_ranks(test: &str, mpich: &Path, variables: &str, program: &str) -> Option<String> {
    let captures = Dir::new();
    // This replaces ssh: its arguments are options, the host and a shell command to run there.
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
        export {variables}
        timeout 120 unshare --uts sh -c "hostname here; exec {mpich}/bin/mpiexec -launcher ssh \
            -launcher-exec $PWD/agent -hosts 10.9.0.1:2,10.9.0.2:2 -n 4 \
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

/// `c/ranks.c` over one of MPICH's transports.
fn messages(transport: &str, variables: &str) {
    let test = format!("MPICH over {transport}");
    if !installed(&test, "gcc") {
        return;
    }
    let Some(mpich) = mpich(&test) else { return };
    let dir = Dir::new();
    let ranks = dir.0.join("ranks");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/c/ranks.c");
    let mut compile = Command::new(mpich.join("bin/mpicc"));
    assert!(compile.args(["-O1", "-o"]).arg(&ranks).arg(source).status().unwrap().success());
    let program = format!("{} 2", ranks.display());
    let Some(said) = four_ranks(&test, &mpich, variables, &program) else { return };
    assert!(said.contains("4 ranks on 2 hosts: all as MPI says"), "{said}");
}

#[test]
fn mpich_over_reliable_connections_of_ucx() {
    messages("UCX rc", "MPICH_CH4_NETMOD=ucx UCX_TLS=rc_verbs,ud_verbs:aux,self");
}

#[test]
fn mpich_over_datagrams_of_ucx() {
    if !everything() {
        return skip("MPICH over UCX ud", "only with --all");
    }
    // A rank that ends last waits so long for those that have gone.
    messages("UCX ud", "MPICH_CH4_NETMOD=ucx UCX_TLS=ud_verbs,self UCX_UD_TIMEOUT=5s");
}

#[test]
fn mpich_over_libfabric() {
    messages("libfabric", LIBFABRIC);
}

const LIBFABRIC: &str = "MPICH_CH4_NETMOD=ofi FI_PROVIDER='verbs;ofi_rxm'";

#[test]
fn mpi4py_over_libfabric() {
    let test = "mpi4py";
    let Some(mpich) = mpich(test) else { return };
    let Some(wheel) = wheel(test, MPI4PY) else { return };
    let variables = format!(
        "{LIBFABRIC} PYTHONPATH={} MPI4PY_LIBMPI={}/lib/libmpi.so.12",
        wheel.display(),
        mpich.display()
    );
    let program = concat!("python3 ", env!("CARGO_MANIFEST_DIR"), "/python/mpi4py_objects.py");
    let Some(said) = four_ranks(test, &mpich, &variables, program) else { return };
    assert!(said.contains("4 ranks on 2 hosts: all objects are the same"), "{said}");
}

/// The wheel of Mooncake, if what its libraries need is there.
fn mooncake(test: &str) -> Option<PathBuf> {
    let wheel = wheel(test, MOONCAKE)?;
    let out = Command::new("ldd").arg(wheel.join("mooncake/engine.so")).output().unwrap();
    let missing = String::from_utf8_lossy(&out.stdout);
    if let Some(line) = missing.lines().find(|line| line.contains("not found")) {
        skip(test, line.trim());
        return None;
    }
    Some(wheel)
}

#[test]
fn mooncake_moves_bytes_unchanged() {
    let test = "Mooncake's transfer engine";
    let Some(wheel) = mooncake(test) else { return };
    let script = format!(
        r#"
        export PYTHONPATH={wheel} MC_GID_INDEX=1
        script="timeout 60 $RXE run -- python3 {source}"
        mkfifo hold
        sleep 60 > hold & holds=$!
        $script rxe_veth0 10.9.0.1 < hold > server 2> said & server=$!
        until grep -q '^server ' server; do
            kill -0 $server || {{ cat said; exit 1; }}
            sleep 0.05
        done
        ip netns exec far $script rxe_veth1 10.9.0.2 $(sed -n 's/^server //p' server) 2>&1
        kill $holds
        wait $server
        "#,
        wheel = wheel.display(),
        source = concat!(env!("CARGO_MANIFEST_DIR"), "/python/mooncake_bytes.py"),
    );
    let Some(said) = alone(test, "python3", &script) else { return };
    assert!(said.contains("4264946 bytes are the same"), "{said}");
}

#[test]
fn mooncake_s_benchmark() {
    let test = "transfer_engine_bench";
    if !everything() {
        return skip(test, "only with --all");
    }
    let Some(wheel) = mooncake(test) else { return };
    let program = wheel.join("mooncake").join(test);
    executable(&program);
    let script = format!(
        r#"
        export MC_GID_INDEX=1
        bench="timeout 60 $RXE run -- {program} --metadata_server=P2PHANDSHAKE --protocol=rdma
            --buffer_size=33554432 --threads=2 --batch_size=8 --block_size=65536 --duration=1"
        $bench --mode=target --local_server_name=10.9.0.1:0 --device_name=rxe_veth0 > target 2>&1 & target=$!
        until grep -q 'DRAM is used' target; do
            kill -0 $target || {{ cat target; exit 1; }}
            sleep 0.05
        done
        segment=$(sed -n 's/.*listening on //p' target)
        for operation in write read; do
            ip netns exec far $bench --mode=initiator --local_server_name=10.9.0.2:0 \
                --device_name=rxe_veth1 --segment_id=$segment --operation=$operation 2>&1
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
    let test = "PyPI's ibverbs";
    let Some(wheel) = wheel(test, IBVERBS) else { return };
    if !installed(test, "cc") {
        return;
    }
    let bin = with_libraries();
    let script = format!(
        r#"
        export PYTHONPATH={wheel}
        script="timeout 60 {rxe} run -- python3 {source}"
        $script rxe_veth0 > server 2>&1 & server=$!
        until ss -Htln 'sport = :4790' | grep -q .; do
            kill -0 $server || {{ cat server; exit 1; }}
            sleep 0.05
        done
        ip netns exec far $script rxe_veth1 10.9.0.1 2>&1 || {{ cat server; exit 1; }}
        wait $server
        cat server
        "#,
        wheel = wheel.display(),
        rxe = bin.0.join("rxe").display(),
        source = concat!(env!("CARGO_MANIFEST_DIR"), "/python/ibverbs_bytes.py"),
    );
    let Some(said) = alone(test, "python3", &script) else { return };
    assert_eq!(said, "300001 bytes are the same\n");
}
