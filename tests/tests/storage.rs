//! Programs that move data in bulk with the preloaded library. Both sides use our devices, on two
//! hosts and on one. The programs are fio; iperf 2 and netcat, which know only TCP, over rsockets;
//! QEMU, which migrates a guest; and a disk over iSER.

use std::fs;
use std::process::Command;

use rxe_harness::vm::{Cmd, Kernel, Net, Spec, Vm};
use rxe_harness::{everything, or_skip, paths, programs};
use rxe_test_support::skipped;

mod common;
use common::{Dir, Where, alone, installed, rxe};

/// Waits until the server listens, runs the client, and prints how both ended. The client is on the
/// other host, unless `far` is empty.
const ENDS: &str = r#"
    far="ip netns exec far"
    listeners() { $RXE resource show cm_id 2> none | grep LISTEN | grep -c rxe_veth0; }
    ends() {
        until [ "$(listeners)" -ge ${jobs:-1} ]; do
            kill -0 $server
            sleep 0.05
        done
        client=0
        timeout -k 1 30 $far $RXE run -- "$@" > client 2>&1 || client=$?
        code=0
        wait $server || code=$?
        echo "exit codes: server $code, client $client"
        cat server client
    }
"#;

/// Runs fio's sender and its receiver, which compares checksums if `verify` is set.
///
/// Each job has a port of its own. A receiver has receives for all 64 messages: fio does not retry
/// after an RNR NAK (it sets `rnr_retry_count` to 0), and a comment in its source demands that the
/// receiving side be deeper.
#[track_caller]
fn fio(verb: &str, verify: &str, jobs: u16, place: Where, expected: &[&str]) {
    let far = far(place);
    let options = "--ioengine=rdma --bs=64k --size=4m";
    let ports: String =
        (0..jobs).map(|nth| format!(" --name=job{nth} --port={}", 4711 + nth)).collect();
    let script = format!(
        "{ENDS}
        {far}
        jobs={jobs}
        timeout -k 1 30 $RXE run -- fio {options} --rw=read --verb=recv --iodepth=64 {verify} {ports} \
            > server 2>&1 & server=$!
        ends fio {options} --rw=write --verb={verb} --iodepth=4 --hostname=10.9.0.1 \
            {verify} --do_verify=0 {ports}"
    );
    let Some(out) = alone(&format!("fio {verb} ({place:?})"), "fio", &script) else { return };
    for text in expected.iter().chain(&["exit codes: server 0, client 0"]) {
        assert!(out.contains(text), "{text}: {out}");
    }
    assert!(!out.contains("verify: bad"), "{out}");
}

#[test]
fn fio_sends_and_compares() {
    fio("send", "--verify=crc32c", 1, Where::TwoHosts, &["READ: bw=", "WRITE: bw=", "io=4096KiB"]);
}

#[test]
fn fio_writes() {
    fio_of_one_side("write");
}

#[test]
fn fio_reads() {
    // With `--verb=read`, the sender of the data is the server: fio's client always has
    // `--rw=write`.
    fio_of_one_side("read");
}

/// fio cannot verify these operations, because its passive side does not use the data. Therefore
/// the memory of both ends is in files, which are compared at the end: each block at the
/// destination must be a block of the source.
#[track_caller]
fn fio_of_one_side(verb: &str) {
    const BLOCK: usize = 64 << 10;
    const BLOCKS: usize = 4;
    let dir = Dir::new();
    let path = |name: &str| dir.0.join(name);
    let before = ["here", "there"].map(|end| {
        let memory: Vec<u8> = Command::new("head")
            .args(["-c", &(BLOCK * BLOCKS).to_string(), "/dev/urandom"])
            .output()
            .unwrap()
            .stdout;
        fs::write(path(end), &memory).unwrap();
        // fio removes its file at the end.
        fs::hard_link(path(end), path(&format!("{end}-kept"))).unwrap();
        memory
    });
    let options = format!(
        "--ioengine=rdma --bs={BLOCK} --size=4m --iodepth={BLOCKS} --scramble_buffers=0 \
         --name=job --port=4711 --mem=mmapshared:{}",
        dir.0.display()
    );
    let script = format!(
        "{ENDS}
        timeout -k 1 30 $RXE run -- fio {options}/here --rw=read --verb=recv > server 2>&1 & server=$!
        ends fio {options}/there --rw=write --verb={verb} --hostname=10.9.0.1"
    );
    let Some(out) = alone(&format!("fio {verb}"), "fio", &script) else { return };
    for text in ["WRITE: bw=", "io=4096KiB", "exit codes: server 0, client 0"] {
        assert!(out.contains(text), "{text}: {out}");
    }
    let after = ["here-kept", "there-kept"].map(|end| fs::read(path(end)).unwrap());
    let (source, sink) = if verb == "write" { (1, 0) } else { (0, 1) };
    let blocks = |end: usize| after[end].chunks(BLOCK).take(BLOCKS);
    assert_eq!(blocks(sink).len(), BLOCKS, "{verb}: all of the memory");
    for (number, block) in blocks(sink).enumerate() {
        assert!(
            blocks(source).any(|one| one == block),
            "{verb}: block {number} is none of the peer's"
        );
        assert_ne!(block, &before[sink][number * BLOCK..][..BLOCK], "{verb}: block {number}");
    }
}

#[test]
fn fio_has_several_jobs() {
    for place in [Where::TwoHosts, Where::OneAddress] {
        fio("send", "--verify=crc32c", 3, place, &["READ: bw=", "WRITE: bw=", "io=12.0MiB"]);
    }
}

/// Returns the library that turns sockets of TCP programs into rsockets.
fn rsockets(test: &str) -> Option<String> {
    let library = programs::rsockets();
    if library.is_none() {
        skipped(test, "librspreload.so is not installed");
    }
    library.map(|path| path.display().to_string())
}

/// Returns the lines that a script sets after [`ENDS`].
fn far(place: Where) -> &'static str {
    match place {
        Where::TwoHosts => "",
        Where::OneAddress => "far=",
    }
}

#[test]
fn a_file_by_tcp_over_rsockets() {
    netcat(Where::TwoHosts);
    netcat(Where::OneAddress);
}

fn netcat(place: Where) {
    let test = format!("netcat over rsockets ({place:?})");
    let Some(library) = rsockets(&test) else { return };
    let far = far(place);
    let script = format!(
        "{ENDS}
        {far}
        head -c 5000001 /dev/urandom > file
        over_rsockets='LD_PRELOAD={library}:$LD_PRELOAD exec nc.traditional'
        timeout -k 1 30 $RXE run -- sh -c \"$over_rsockets -l -s 10.9.0.1 -p 5002 > copy\" \
            > server 2>&1 & server=$!
        ends sh -c \"ss -Htln 'sport = :5002'; $over_rsockets -q 1 10.9.0.1 5002 < file\"
        cmp file copy && echo the same"
    );
    let Some(out) = alone(&test, "nc.traditional", &script) else { return };
    // Nothing else was printed, which shows that no TCP socket listened either.
    assert_eq!(out, "exit codes: server 0, client 0\nthe same\n");
}

#[test]
fn a_tcp_program_over_rsockets() {
    iperf(Where::TwoHosts);
    iperf(Where::OneAddress);
}

fn iperf(place: Where) {
    let test = format!("iperf over rsockets ({place:?})");
    let Some(library) = rsockets(&test) else { return };
    let far = far(place);
    let script = format!(
        "{ENDS}
        {far}
        over_rsockets='LD_PRELOAD={library}:$LD_PRELOAD exec iperf \"$@\"'
        timeout -k 1 30 $RXE run -- sh -c \"$over_rsockets\" sh -s -B 10.9.0.1 -P 1 > server 2>&1 & server=$!
        ends sh -c \"ss -Htln 'sport = :5001'; $over_rsockets\" sh -c 10.9.0.1 -n 4M"
    );
    let Some(out) = alone(&test, "iperf", &script) else { return };
    assert!(out.contains("exit codes: server 0, client 0"), "{out}");
    // Both ends have counted all bytes, and no TCP socket listened.
    assert_eq!(out.matches("sec  4.00 MBytes").count(), 2, "{out}");
    assert!(!out.contains("*:5001") && !out.contains("10.9.0.1:5001 "), "{out}");
}

/// Runs `python/migrate.py`, which compares the guest's memory.
fn qemu_moves_a_guest(pin: &str, place: Where) {
    let test = format!("migration by QEMU, rdma-pin-all {pin} ({place:?})");
    if !installed(&test, "python3") {
        return;
    }
    let source = paths::checkout().join("tests/python/migrate.py");
    let source = source.display();
    let to = match place {
        Where::TwoHosts => "10.9.0.2 ip netns exec far",
        Where::OneAddress => "10.9.0.1",
    };
    let script = format!("timeout 100 python3 {source} $RXE {pin} {to} 2>&1");
    let Some(out) = alone(&test, "qemu-system-x86_64", &script) else { return };
    assert!(out.contains("the guest has moved: "), "{out}");
}

#[test]
fn qemu_moves_a_guest_page_by_page() {
    qemu_moves_a_guest("off", Where::TwoHosts);
}

#[test]
fn qemu_moves_a_guest_whose_memory_is_registered_at_once() {
    qemu_moves_a_guest("on", Where::TwoHosts);
}

#[test]
fn qemu_moves_a_guest_on_one_host() {
    qemu_moves_a_guest("off", Where::OneAddress);
    qemu_moves_a_guest("on", Where::OneAddress);
}

/// The guest migrates to a QEMU in a VM, whose device is a kernel's.
#[test]
fn qemu_moves_a_guest_to_a_kernel() {
    let test = "migration by QEMU to a kernel";
    if !everything() {
        return skipped(test, "only with --all");
    }
    if !["python3", "qemu-system-x86_64"].iter().all(|program| installed(test, program)) {
        return;
    }
    let Some(kernel) = or_skip(Kernel::find("6.1")) else { return };
    let Some(net) = or_skip(Net::tap(1500)) else { return };
    let dir = Dir::new();
    let spec = Spec { shares: vec![dir.0.clone()], ..Spec::default() };
    let Some(vm) = or_skip(Vm::boot(&net, &kernel, &spec)) else { return };
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/python/migrate.py");
    for pin in ["off", "on"] {
        let destination = "
            until [ -s boot ]; do sleep 0.1; done
            exec 2>&1; exec qemu-system-x86_64 -accel tcg -nodefaults -display none -m 64M \
                -object memory-backend-ram,id=ram,size=64M -machine pc,memory-backend=ram \
                -drive file=boot,format=raw,if=floppy,read-only=on \
                -qmp tcp:0.0.0.0:4445,server=on,wait=off -S -incoming defer";
        let there = vm.spawn(Cmd::sh(destination).cwd(dir.0.display().to_string())).unwrap();
        let mut migrate = net.command("timeout");
        migrate.args(["300", "python3", source]).arg(rxe()).arg(pin);
        let out = migrate.arg(format!("{}:4445", vm.v4())).current_dir(&dir.0).output().unwrap();
        let [said, errors] =
            [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        if !out.status.success() {
            there.kill("KILL");
        }
        let there = there.output().unwrap();
        assert!(
            said.contains("the guest has moved: "),
            "pin {pin}: {said}{errors}{}",
            there.text()
        );
    }
}

/// libiscsi's own tests read, write and compare blocks of tgtd's disk.
#[test]
fn a_disk_by_iser() {
    let Some(functions) = or_skip(programs::iser_functions()) else { return };
    let script = format!(
        r#"{functions}
        export TGT_IPC_SOCKET=$PWD/socket
        $RXE run -- tgtd -f > tgtd.log 2>&1 & server=$!
        trap 'kill -9 $server' EXIT
        until new_target; do
            kill -0 $server
            sleep 0.05
        done
        head -c 16M /dev/urandom > disk
        serve $PWD/disk
        for name in Read16 Write16 Verify16 WriteVerify16; do
            timeout 60 ip netns exec far $RXE run -- $libiscsi iscsi-test-cu --dataloss -i $me \
                -t SCSI.$name iser://10.9.0.1:3260/$disk/1 2>&1
        done"#
    );
    let Some(out) = alone("iSER", "sh", &script) else { return };
    assert!(out.matches("Test: Simple ...passed").count() == 4, "{out}");
    assert!(out.contains("Test: Mismatch ...passed") && !out.contains("FAILED"), "{out}");
}
