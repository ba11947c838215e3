//! Compares `rxe devinfo` and `rxe gids` with `ibv_devinfo` and the GID table of a kernel device,
//! on the same interfaces in a VM.

use rxe_harness::vm::{Cmd, Error, Kernel, Net, Spec, Vm};
use rxe_test_support::skipped;
use serde_json::Value;

#[test]
fn gids_and_devinfo_agree_with_a_real_kernel() {
    agrees("6.1");
}

#[test]
fn gids_and_devinfo_agree_with_a_newer_kernel() {
    agrees("7.2");
}

fn agrees(kernel: &str) {
    let net_and_vm = Net::tap(1500).and_then(|net| {
        let vm = Vm::boot(&net, &Kernel::find(kernel)?, &Spec::default())?;
        Ok((net, vm))
    });
    let (_net, vm) = match net_and_vm {
        Ok(both) => both,
        Err(Error::Missing(why)) => {
            return skipped(&format!("gids and devinfo beside kernel {kernel}"), why);
        }
        Err(e) => panic!("{e}"),
    };
    gids_stand_in_the_kernels_order(&vm);
    devinfo_is_that_of_ibv_devinfo(&vm);
    doctor_names_the_kernel_s_device(&vm);
}

/// Runs `rxe doctor` with a kernel device on the same interface, and after its deletion.
fn doctor_names_the_kernel_s_device(vm: &Vm) {
    let kernel_devices = || {
        let said = sh(vm, &format!("'{RXE}' doctor eth0 --json || true"));
        let findings: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        let all = findings.as_array().unwrap().clone();
        all.into_iter().filter(|f| f["check"] == "kernel devices").collect::<Vec<_>>()
    };
    let found = kernel_devices();
    assert_eq!(found[0]["status"], "note", "{found:?}");
    let text = "the kernel's rdma_rxe (rxe0, rxe1) holds UDP port 4791 on all addresses";
    assert_eq!(found[0]["text"], text);
    let remedy =
        "`sudo rdma link delete rxe0; sudo rdma link delete rxe1; sudo modprobe -r rdma_rxe`";
    assert_eq!(found[0]["remedy"], remedy);
    sh(vm, "rdma link delete rxe0; rdma link delete rxe1");
    assert_eq!(kernel_devices()[0]["remedy"], "`sudo modprobe -r rdma_rxe`");
    // The VM has no directory of modules for modprobe.
    sh(vm, "busybox rmmod rdma_rxe");
    assert!(kernel_devices().iter().all(|f| f["status"] == "ok"));
}

/// Adds many addresses of all scopes in an order that no criterion sorts by, without the link-local
/// address of the default GID.
const VETH: &str = "
    ip link add veth0 address 52:54:00:12:34:56 type veth peer name veth1
    ip link set veth0 addrgenmode none
    ip link set veth1 up
    ip link set veth0 up
    ip address add 10.0.0.1/24 dev veth0
    ip address add fd00::1/64 dev veth0 nodad
    ip address add 192.168.7.1/16 dev veth0
    ip address add 10.0.0.2/24 dev veth0
    ip address add fd00::2/64 dev veth0 nodad
    ip address add fe80::77/64 dev veth0 nodad
    ip address add fd00::3/64 dev veth0 nodad
    ip address add 169.254.1.1/16 scope link dev veth0
    rdma link add rxe1 type rxe netdev veth0
    n=0
    until [ $n = 100 ] || grep -q ^fe80.*:0077$ /sys/class/infiniband/rxe1/ports/1/gids/8; do
        n=$((n + 1)); sleep 0.1
    done
    for i in 0 1 2 3 4 5 6 7 8 9; do cat /sys/class/infiniband/rxe1/ports/1/gids/$i; done
";

const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

fn gids_stand_in_the_kernels_order(vm: &Vm) {
    let kernel = sh(vm, VETH);
    let kernel: Vec<_> = kernel.lines().filter(|gid| *gid != EMPTY).collect();
    assert_eq!(kernel.len(), 9, "a default GID and eight addresses: {kernel:?}");
    let ours = sh(vm, &format!("'{RXE}' gids veth0 --json"));
    let ours: Value = serde_json::from_str(&ours).unwrap();
    let ours: Vec<_> = ours.as_array().unwrap().iter().map(|row| &row["gid"]).collect();
    assert_eq!(ours, kernel);
}

/// Checks that names, tabs and order are equal, and so are the values except those in
/// [`DIFFERENT`].
fn devinfo_is_that_of_ibv_devinfo(vm: &Vm) {
    let kernel = sh(vm, "ibv_devinfo -v -d rxe0");
    let ours = sh(vm, &format!("'{RXE}' devinfo -v eth0"));
    compare_values(&kernel, &ours);
    let ours = layout(&ours);
    for (a, b) in layout(&kernel).iter().zip(&ours) {
        assert_eq!(a, b);
    }
    assert_eq!(layout(&kernel).len(), ours.len());
    assert!(ours.iter().any(|line| line.contains("GID[  1]:\t\t::ffff:10.")));
}

/// How a value of rxe relates to the kernel's where the two differ.
#[derive(Clone, Copy, Debug)]
enum Beside {
    /// rxe's value is at least the kernel's.
    AtLeast,
    /// The values differ, for this reason.
    Other(&'static str),
}
use Beside::{AtLeast, Other};

const DIFFERENT: &[(&str, Beside)] = &[
    ("hca_id", Other("named after the interface")),
    ("fw_ver", Other("this project's version")),
    ("max_qp", Other("as many as one process has numbers for, where several share an address")),
    ("device_cap_flags", Other("XRC is there; path migration, which no rxe has, is not claimed")),
    ("device_cap_flags_ex", Other("as above, and memory is not persistent")),
    ("max_pkeys", Other("RoCE uses one partition")),
    ("max_cqe", AtLeast),
    ("max_mr", AtLeast),
    ("max_mw", AtLeast),
    ("max_ah", AtLeast),
    ("max_srq", AtLeast),
    ("max_srq_sge", AtLeast),
    ("max_res_rd_atom", AtLeast),
    ("atomic_cap", AtLeast),
    ("max_msg_sz", AtLeast),
];

/// Compares field by field, and checks that rxe has every field of the kernel's device.
fn compare_values(kernel: &str, ours: &str) {
    let theirs = values(kernel);
    let ours = values(ours);
    assert!(theirs.len() > 60, "{theirs:?}");
    for (name, value) in &theirs {
        let own = ours.iter().find(|(own, _)| own == name);
        let own = own.unwrap_or_else(|| panic!("{name} is missing: {ours:?}")).1;
        match DIFFERENT.iter().find(|(different, _)| different == name) {
            None => assert_eq!(own, *value, "{name}"),
            Some((_, Other(why))) => assert_ne!(own, *value, "{name} is no longer other: {why}"),
            Some((_, AtLeast)) => {
                assert!(number(own) >= number(value), "{name}: {own} beside {value}");
            }
        }
    }
}

fn values(text: &str) -> Vec<(&str, &str)> {
    let fields = text.lines().filter_map(|line| line.split_once(":\t"));
    fields.map(|(name, value)| (name.trim(), value.trim())).collect()
}

/// Parses a value's number, which may be in parentheses after a name.
fn number(value: &str) -> u64 {
    let inner = value.split_once('(').map_or(value, |(_, rest)| rest.trim_end_matches(')'));
    let hex = inner.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16));
    hex.unwrap_or_else(|| inner.parse()).unwrap_or_else(|e| panic!("{value}: {e}"))
}

/// Returns the lines without parts that may differ: values, names of capabilities, and lines that
/// exist only with a feature (limits of shared receive queues, timestamps and their clock, device
/// memory).
fn layout(text: &str) -> Vec<&str> {
    let other = ["max_srq_", "timestamp_mask", "core clock", "core_clock", "device memory"];
    let same = |line: &&str| {
        !line.is_empty()
            && !line.starts_with("\t\t\t\t\t")
            && !other.iter().any(|part| line.contains(part))
    };
    let cut = |line| {
        if ["GID[", "guid"].iter().any(|keep| str::contains(line, keep)) {
            return line;
        }
        let value = line.rfind('\t').map_or(line.len(), |tab| tab + 1);
        if line.contains(":\t") { &line[..value] } else { line }
    };
    text.lines().filter(same).map(cut).collect()
}

const RXE: &str = env!("CARGO_BIN_EXE_rxe");

fn sh(vm: &Vm, script: &str) -> String {
    let script = format!("set -e; PATH=$PATH:/usr/sbin:/sbin; {script}");
    vm.run(Cmd::sh(script)).and_then(rxe_harness::vm::Output::ok).unwrap()
}
