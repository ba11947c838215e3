//! Devices over AF_XDP at the two ends of a cable, where all shards send and receive over AF_XDP.

mod common;

use std::collections::HashSet;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

use common::*;
use rxe_core::wire::DropReason;
use rxe_net::{FaultTally, XdpMode};
use rxe_verbs::*;

/// Creates a cable with both ends in this namespace, the near one with an address.
const CABLE: &str = "
    ip link add near0 type veth peer name far0
    ip link set near0 up
    ip address add 10.9.0.1/24 dev near0";
/// Creates the same cable with four queues in each direction.
const CABLE_OF_FOUR: &str = "
    ip link add near0 numtxqueues 4 numrxqueues 4 type veth peer name far0 numtxqueues 4 numrxqueues 4
    ip link set near0 up
    ip address add 10.9.0.1/24 dev near0";

/// Runs `make` with the far end's interface, in that end's namespace.
fn at_far<R: Send>(make: impl FnOnce(&str) -> R + Send) -> R {
    at_the_other_end("far0", || {
        sh("ip address add 10.9.0.2/24 dev far0; ip link set lo up; ip link set far0 up");
        make("far0")
    })
}

/// Creates `count` sides, each on a shard of its own if the kernel permits.
fn sides(device: &Device, count: usize) -> Vec<Side> {
    let sides: Vec<_> = (0..count).map(|_| Side::new(device.clone())).collect();
    let blocks: HashSet<_> = sides.iter().map(|side| side.qp.qpn().block()).collect();
    let count = if has_shards(device) { count } else { 1 };
    assert_eq!((device.shard_count(), blocks.len()), (count, count));
    sides
}

/// Returns whether the kernel supports several shards on this device.
fn has_shards(device: &Device) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    let kernel: [u32; 2] = [(); 2].map(|()| numbers.next().unwrap_or(0));
    kernel >= if device.backend_name() == "xdp:generic" { [6, 15] } else { [6, 0] }
}

/// Connects new queue pairs. The kernel may drop its first ARP request while the link comes up. It
/// repeats the request a second later, when the default retries are exhausted.
fn connected(near: &Side, far: &Side) -> [QueuePair; 2] {
    let [ours, theirs] = [near, far].map(|side| side.pd.qp(&side.cq).build().unwrap());
    let options =
        ConnectOptions { timeout: AckTimeout::new(18).unwrap(), ..ConnectOptions::default() };
    ours.connect(&theirs.endpoint(), &options).unwrap();
    theirs.connect(&ours.endpoint(), &options).unwrap();
    [ours, theirs]
}

/// Transfers messages of many packets in both directions, and READs them back. Returns the objects
/// used: a retransmitted request that arrives late must still find its queue pair and memory.
fn transfer(near: &Side, far: &Side, seed: u8) -> impl Sized {
    const LEN: usize = 300_000;
    let qps = connected(near, far);
    let [ours, theirs] = &qps;
    let regions = [(near, far, ours), (far, near, theirs)].map(|(from, to, qp)| {
        let [source, back, there] = [from, from, to].map(|side| side.region(LEN));
        source.write_at(0, &pattern(LEN, seed)).unwrap();
        qp.write(1, &[source.slice(..)], there.remote(0)).post().unwrap();
        qp.read(2, &[back.slice(..)], there.remote(0)).fence().post().unwrap();
        assert_eq!([from.ok().id, from.ok().id], [1, 2]);
        assert!(back.to_vec(..).unwrap() == pattern(LEN, seed));
        [source, back, there]
    });
    (qps, regions)
}

/// The reasons for drops when packets overtake others. They are requests behind a gap until it is
/// filled, responses behind a gap, and late responses. On an interface with several queues this
/// happens when the route to the neighbour changes. The device sends on a queue of its own; but
/// until the neighbour is known, and once a second after that, the kernel sends for it and chooses
/// another queue.
const OVERTAKEN: [DropReason; 3] =
    [DropReason::GapAlreadyReported, DropReason::ResponseGap, DropReason::StaleResponse];

/// Transfers data between each shard of one end and each of the other. Packets may be dropped only
/// for the reasons in `expected`.
fn shards_talk(mode: XdpMode, name: &str, expected: &[DropReason]) {
    let open = |netdev: &str| {
        let device = open_xdp(Device::options(netdev).shards(2), mode)?;
        Some(sides(&device, 2))
    };
    let Some(near) = open("near0") else { return };
    let far = at_far(open).expect("it is permitted here");
    let mut used = Vec::new();
    for (i, ours) in near.iter().enumerate() {
        for (j, theirs) in far.iter().enumerate() {
            used.push(transfer(ours, theirs, u8::try_from(2 * i + j).unwrap()));
        }
    }
    for side in [&near[0], &far[0]] {
        assert_eq!(side.device.backend_name(), name);
        // A packet for another shard would be counted as dropped.
        let counters = side.device.counters();
        let drops = counters.drops().filter(|(reason, _)| !expected.contains(reason));
        assert_eq!(drops.collect::<Vec<_>>(), []);
    }
}

#[test]
fn shards_share_a_queue_in_driver_mode() {
    in_bpf_namespace(CABLE, || shards_talk(XdpMode::Driver, "xdp:driver", &[]));
}

#[test]
fn shards_share_a_queue_in_generic_mode() {
    in_bpf_namespace(CABLE, || shards_talk(XdpMode::Generic, "xdp:generic", &[]));
}

#[test]
fn shards_have_queues_of_their_own() {
    in_bpf_namespace(CABLE_OF_FOUR, || shards_talk(XdpMode::Any, "xdp:driver", &OVERTAKEN));
}

#[test]
fn threads_have_shards_and_work_side_by_side() {
    in_bpf_namespace(CABLE, || {
        let Some(near) = open_xdp(Device::options("near0"), XdpMode::Any) else { return };
        let far = at_far(|netdev| {
            let device = open_xdp(Device::options(netdev).shards(2), XdpMode::Any);
            sides(&device.expect("it is permitted here"), 2)
        });
        assert_eq!(near.shard_count(), 1);
        let ready = Barrier::new(2);
        thread::scope(|scope| {
            for theirs in &far {
                scope.spawn(|| {
                    let ours = Side::new(near.clone());
                    ready.wait();
                    (0..20).for_each(|seed| drop(transfer(&ours, theirs, seed)));
                });
            }
        });
        let cpus = thread::available_parallelism().unwrap().get();
        assert_eq!(near.shard_count(), if has_shards(&near) { cpus.min(2) } else { 1 });
    });
}

#[test]
fn packets_with_faults_arrive_in_the_end() {
    in_bpf_namespace(CABLE, || {
        let plan = "drop 2%; dup 1%; out: reorder 2% by 3".parse().unwrap();
        let options = Device::options("near0").faults(1, plan);
        let Some(near) = open_xdp(options, XdpMode::Any) else { return };
        let far = at_far(|netdev| open_xdp(Device::options(netdev), XdpMode::Any));
        let (near, far) = (Side::new(near), Side::new(far.expect("it is permitted here")));
        assert_eq!(near.device.backend_name(), "xdp:driver");
        (0..3).for_each(|seed| drop(transfer(&near, &far, seed)));
        let faults = near.device.faults().unwrap();
        for (rule, [inbound, outbound]) in faults.report().tallies() {
            let both_ways = rule.direction.is_none();
            let hits = |tally: FaultTally| tally.seen > 500 && tally.hit > 0;
            assert!(hits(outbound) && hits(inbound) == both_ways, "{:?}", faults.lines());
        }
    });
}

#[test]
fn an_interface_is_as_it_was_when_all_shards_are_gone() {
    let shown = || {
        let shown = Command::new("ip").args(["-d", "link", "show", "near0"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    in_bpf_namespace(CABLE, || {
        sh(
            "ip link set far0 up; until ip link show near0 | grep -q 'state UP'; do sleep 0.01; done",
        );
        let before = shown();
        for _ in 0..2 {
            let options = Device::options("near0").shards(2);
            let Some(device) = open_xdp(options, XdpMode::Any) else { return };
            let sides = sides(&device, 2);
            assert!(shown().contains("xdp"));
            drop((device, sides));
            assert_eq!(shown(), before);
        }
    });
}
