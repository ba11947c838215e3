//! Open MPI over UCX with the preloaded library: four ranks on two hosts, and two on one. The hosts
//! are network namespaces of the test's own; or one is a VM, whose ranks use the kernel's
//! `rdma_rxe`. All traffic between ranks uses RDMA devices, also within a host. The captures of our
//! ranks prove it.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use common::{Dir, alone, installed, rxe};
use rxe_core::types::Qpn;
use rxe_core::wire::frame::parse_ethernet;
use rxe_core::wire::{Packet, Service};
use rxe_harness::or_skip;
use rxe_harness::programs::Launcher;
use rxe_harness::vm::{HOST_V4, Kernel, LINK, Net, Spec, Vm};
use rxe_lab::capture::{Capture, Direction};
use rxe_test_support::skipped;

#[test]
fn four_ranks_over_reliable_connections() {
    four_ranks("rc_verbs,ud_verbs:aux", Service::Rc);
}

#[test]
fn four_ranks_over_datagrams() {
    four_ranks("ud_verbs", Service::Ud);
}

/// The minimum number of bytes that each rank sends to each other rank: those of `MPI_Alltoall`.
/// The one-sided operations send at least as many.
const TO_EACH: usize = 1 + 8 + 1000 + 1024 + 8191 + 65536 + 300_001;

/// Runs `c/ranks.c` with two ranks on each host. UCX may use only these transports and `self`. Most
/// packets must belong to the transport service `service`.
fn four_ranks(transports: &str, service: Service) {
    let test = format!("Open MPI over {transports}");
    let Some(program) = compile(&test) else { return };
    let dir = program.0.display();
    // This script replaces ssh: its arguments are the host and a shell command to run there.
    let script = format!(
        r#"
        cat > agent <<'END'
#!/bin/sh
shift
exec ip netns exec far unshare --uts sh -c "hostname far; $*"
END
        chmod +x agent
        # mpirun has files in a directory that it names by the host, and removes it.
        export XDG_RUNTIME_DIR="$PWD" TMPDIR="$PWD"
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        export UCX_TLS={transports},self UCX_NET_DEVICES=rxe0:1 LAUNCHER="
            mpirun --allow-run-as-root -n 4 --host 10.9.0.1:2,10.9.0.2:2
            --mca plm_rsh_agent $PWD/agent --mca oob_tcp_if_include 10.9.0.0/24
            {OVER_UCX} -x UCX_TLS -x UCX_NET_DEVICES"
        timeout 240 unshare --uts sh -c "hostname here; exec \$LAUNCHER \
            $RXE run --pcap {dir}/%p.pcapng -- {dir}/ranks 2" 2>&1
        "#
    );
    let Some(said) = alone(&test, "mpirun", &script) else { return };
    assert!(said.contains("4 ranks on 2 hosts: all as MPI says"), "{said}");
    // Open MPI has looked for a GID in a table with empty entries.
    assert!(!said.contains("rxe: ibv_query_gid"), "{said}");

    check_captures(&program.0, 4, service, &[false, false, true]);
}

/// Uses the command on the page of the book; only the program and a capture differ.
#[test]
fn two_ranks_on_one_host() {
    let test = "Open MPI on one host";
    let Some(program) = compile(test) else { return };
    let dir = program.0.display();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/en/do/mpi-ucx.md");
    let page = fs::read_to_string(page).unwrap();
    let command = page.split("```").find(|block| block.contains("mpirun -n 2 ")).unwrap();
    let command = command.strip_prefix("sh\n").unwrap();
    let command = command.replace("rxe run", &format!("$RXE run --pcap {dir}/%p.pcapng"));
    let command = command.replace("./program", &format!("{dir}/ranks 1"));
    let script = format!(
        r#"
        export XDG_RUNTIME_DIR="$PWD" TMPDIR="$PWD"
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        # Ranks yield the CPU while they wait.
        export OMPI_MCA_mpi_yield_when_idle=1
        cat > command <<'END'
{command}END
        timeout 120 sh -e command 2>&1
        "#
    );
    let Some(said) = alone(test, "mpirun", &script) else { return };
    assert!(said.contains("2 ranks on 1 hosts: all as MPI says"), "{said}");
    check_captures(&program.0, 2, Service::Rc, &[true]);
}

#[test]
fn two_ranks_on_kernel_6_1_and_two_on_ours() {
    two_ranks_and_two_on_kernel("6.1");
}

#[test]
fn two_ranks_on_kernel_7_2_and_two_on_ours() {
    two_ranks_and_two_on_kernel("7.2");
}

fn two_ranks_and_two_on_kernel(kernel: &str) {
    let test = format!("Open MPI with kernel {kernel}");
    if !installed(&test, "mpirun") {
        return;
    }
    let Some(program) = compile(&test) else { return };
    let Some(found) = or_skip(Kernel::find(kernel)) else { return };
    let Some(net) = or_skip(Net::tap(1500)) else { return };
    let Some(vm) = or_skip(Vm::boot(&net, &found, &Spec::default())) else { return };

    let dir = program.0.display();
    let launcher = Launcher::new().unwrap();
    let ours = format!("{} run --device {LINK} --pcap {dir}/%p.pcapng --", rxe().display());
    let start = format!("[ $(hostname) = here ] || exec {dir}/ranks 2; exec {ours} {dir}/ranks 2");
    let start = launcher.script("start", &start).unwrap();
    let variables = "-x UCX_TLS=rc_verbs,ud_verbs:aux,self -x UCX_UD_VERBS_ETH_DGID_CHECK=n";
    let launch = format!(
        "mpirun --allow-run-as-root -n 4 --host {HOST_V4}:2,{}:2 \
            --mca plm_rsh_agent {} --mca oob_tcp_if_include {HOST_V4}/24 \
            --mca orte_leave_session_attached 1 {OVER_UCX} {variables} {}",
        vm.v4(),
        launcher.path("agent").display(),
        start.display(),
    );
    let (good, said) = launcher.run(&net, &vm, &[], &launch).unwrap();
    assert!(good && said.contains("4 ranks on 2 hosts: all as MPI says"), "{said}");
    check_captures(&program.0, 2, Service::Rc, &[false, false, true]);
}

/// The options of `mpirun` that permit no other transport. Ranks yield the CPU while they wait.
const OVER_UCX: &str = "--mca pml ucx --mca osc ucx --mca btl self --mca mpi_yield_when_idle 1";

/// Checks the captures of `ranks` ranks. Each has opened the device twice, for messages and for
/// one-sided operations. `others` states for each other rank whether it is on the same host.
fn check_captures(dir: &Path, ranks: usize, service: Service, others: &[bool]) {
    let mut checked = 0;
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.to_string_lossy().contains(".pcapng") {
            checked += usize::from(reaches(&path, service, others));
        }
    }
    assert_eq!(checked, 2 * ranks);
}

/// Returns whether the device of a capture was used. If so, checks that packets went to all other
/// ranks.
fn reaches(path: &Path, service: Service, others: &[bool]) -> bool {
    let capture = Capture::open(path).unwrap();
    let mut sent: BTreeMap<(bool, IpAddr, Qpn), usize> = BTreeMap::new();
    for packet in &capture.frames {
        let (_, datagram) = parse_ethernet(&packet.frame).unwrap();
        let frame = datagram.frame().unwrap();
        let packet_of = Packet::parse(frame.payload).unwrap();
        if packet.direction == Some(Direction::Outbound) && packet_of.info().service == service {
            let here = frame.net.src == frame.net.dst;
            let to = (here, frame.net.dst, packet_of.dest_qp());
            *sent.entry(to).or_default() += packet_of.payload().len();
        }
    }
    if sent.is_empty() {
        return false;
    }
    let reached = sent.iter().filter(|(_, bytes)| **bytes >= TO_EACH);
    let here: Vec<bool> = reached.map(|((here, ..), _)| *here).collect();
    assert_eq!(here, others, "{}: {sent:?}", path.display());
    true
}

/// Compiles the ranks' program, in a directory for their captures.
fn compile(test: &str) -> Option<Dir> {
    if !installed(test, "mpicc") {
        return None;
    }
    let dir = Dir::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/c/ranks.c");
    let ranks = dir.0.join("ranks");
    let out = Command::new("mpicc").args(["-O1", "-o"]).arg(ranks).arg(source).output().unwrap();
    if out.status.success() {
        return Some(dir);
    }
    let why = String::from_utf8_lossy(&out.stderr);
    assert!(why.contains("mpi.h: No such"), "{why}");
    skipped(test, "mpi.h is not installed");
    None
}
