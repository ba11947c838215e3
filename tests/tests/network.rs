//! Many hosts in one network: incast and all-to-all, with congestion control and without, in
//! virtual time. The simulation itself asserts that every message arrives once and in order, and
//! that every request completes once. `benches/network.rs` does the same with up to 1,000 hosts.

use rxe_tests::network::{Figures, Settings, Topology, Traffic};

/// Runs for `millis` milliseconds, and checks what must hold whatever the figures are. The first
/// tenth of the time is not counted.
fn run(topology: Topology, traffic: Traffic, on: bool, millis: u64) -> Figures {
    let (warm, end) = (millis * 100, millis * 1000);
    let settings = Settings { warm, end, ..Settings::new(topology, traffic, on) };
    let figures = settings.run();
    println!("{on}: {}", figures.summary());
    assert!(figures.longest_queue <= settings.queue.capacity);
    // A packet with its headers has at least 80 bytes. In addition to the packets in switches, each
    // host has packets on its link, in flight, and received since its last turn.
    let queue = usize::try_from(settings.queue.capacity).unwrap_or(usize::MAX) / 80;
    let hosts = topology.hosts() as usize;
    let receivers = if figures.connections < topology.hosts() { 1 } else { hosts };
    let room = receivers * queue + hosts * 200;
    assert!(figures.packets <= room, "{} packets on their way, room for {room}", figures.packets);
    assert_eq!(figures.failed, 0);
    figures
}

fn incast(senders: u32, on: bool) -> Figures {
    run(Topology::Star { hosts: senders + 1 }, Traffic::incast(senders), on, 150)
}

fn all_to_all(on: bool) -> Figures {
    let topology = Topology::LeafSpine { leaves: 4, hosts: 4, spines: 2, uplink: 20 };
    run(topology, Traffic { message: 16_384, ..Traffic::all_to_all(16, 15, 1) }, on, 30)
}

#[test]
fn incast_with_congestion_control_starves_nobody_and_loses_less() {
    for senders in [2, 10] {
        let (off, on) = (incast(senders, false), incast(senders, true));
        assert_eq!((off.marked, off.notifications), (0, 0));
        assert!(on.marked > 0 && on.notifications > 0);
        assert!(on.fewest > 0, "a sender starves");
        assert!(
            on.lost <= off.lost,
            "{} packets lost, without congestion control {}",
            on.lost,
            off.lost
        );
        assert!(on.mean_queue < off.mean_queue);
        assert!(on.goodput >= 0.6, "goodput {:.2} of the link", on.goodput);
    }
}

#[test]
fn all_to_all_starves_nobody() {
    for on in [false, true] {
        assert!(all_to_all(on).fewest > 0, "a connection starves");
    }
}

#[test]
fn a_run_depends_on_its_settings_alone() {
    assert_eq!(incast(10, true), incast(10, true));
}
