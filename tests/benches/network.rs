//! A simulated fabric of up to 1,000 hosts in virtual time: incast, bursts and all-to-all.
//! Each run is done with congestion control and without. `network NAME` does one run and prints its
//! results as JSON; without arguments, the names of all runs are printed, one per line.

use rxe_tests::network::{Settings, Topology, Traffic};

/// 32 leaves with 32 hosts each. The uplinks of a leaf together are as fast as its hosts. Hosts are
/// taken from all leaves in turn, because traffic between hosts of one leaf would not use the spines.
const FABRIC: Topology = Topology::LeafSpine { leaves: 32, hosts: 32, spines: 8, uplink: 40 };
const HOSTS: u32 = 1000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let runs = runs();
    match args.first() {
        None => runs.iter().for_each(|(name, _)| println!("{name}")),
        Some(asked) => {
            let (_, run) = runs.iter().find(|(name, _)| name == asked).expect("the name of a run");
            println!("{}", serde_json::to_string(&run.run()).expect("numbers"));
        }
    }
}

/// Returns all runs by name: pattern, number of sending hosts, and congestion control on or off.
fn runs() -> Vec<(String, Settings)> {
    let mut runs = Vec::new();
    let mut add = |work: &str, hosts: u32, traffic: &Traffic, warm: u64, end: u64| {
        for (on, name) in [(false, "off"), (true, "on")] {
            let settings = Settings { warm, end, ..Settings::new(FABRIC, traffic.clone(), on) };
            runs.push((format!("{work} {hosts} {name}"), settings));
        }
    };
    for senders in [2, 10, 100, HOSTS - 1] {
        // Long enough that each sender completes some messages.
        let end = if senders > 100 { 1_100_000 } else { 220_000 };
        add("incast", senders, &Traffic::incast(senders), end / 11, end);
    }
    for senders in [2, 10, 100, HOSTS - 1] {
        add("burst", senders, &Traffic::burst(senders), 0, 1_000_000);
    }
    for (hosts, peers, end) in [(32, 31, 50_000), (128, 127, 30_000), (HOSTS, 32, 5_000)] {
        let traffic = Traffic::all_to_all(hosts, peers, 1);
        add("all-to-all", hosts, &traffic, end / 5, end);
    }
    runs
}
