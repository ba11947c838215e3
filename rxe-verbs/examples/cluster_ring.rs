//! A thousand hosts in one process pass a token around a ring, over a network that loses packets.
//!
//! Run it: `cargo run --release -p rxe-verbs --example cluster_ring`

use std::time::{Duration, Instant};

use rxe_verbs::cluster::Cluster;
use rxe_verbs::{Access, ConnectOptions, Result, Status};

fn main() -> Result<()> {
    run(1, 1000)
}

/// Runs the whole example.
pub(crate) fn run(seed: u64, hosts: usize) -> Result<()> {
    let began = Instant::now();
    let mut cluster = Cluster::new(seed);
    cluster.network().set_faults(&"drop 1%".parse().expect("a plan"))?;

    // Each host has a queue pair to the next host, and one to the previous host.
    let mut ring = Vec::new();
    for _ in 0..hosts {
        let host = cluster.add_host()?;
        let (pd, cq) = (host.create_pd()?, host.create_cq(16)?);
        let (next, previous) = (pd.qp(&cq).build()?, pd.qp(&cq).build()?);
        let memory = pd.register(8, Access::LOCAL_WRITE)?;
        ring.push((next, previous, cq, memory));
    }
    for at in 0..hosts {
        let ((next, ..), (_, previous, _, memory)) = (&ring[at], &ring[(at + 1) % hosts]);
        next.connect(&previous.endpoint(), &ConnectOptions::default())?;
        previous.connect(&next.endpoint(), &ConnectOptions::default())?;
        previous.recv(0, &[memory.slice(..)])?;
    }

    // Each host adds 1 to the token and passes it on.
    ring[0].0.send_bytes(1, &1u64.to_ne_bytes()).post()?;
    let mut token = 0;
    let back = cluster.run_until(Duration::from_secs(60), |step| {
        let (next, _, cq, memory) = &ring[step.host().index()];
        while let Some(done) = cq.poll_one().expect("the device works") {
            assert_eq!(done.status, Status::Success);
            if done.id == 0 {
                token = memory.load_u64(0).expect("8 bytes");
                if step.host().index() == 0 {
                    return true;
                }
                next.send_bytes(1, &(token + 1).to_ne_bytes()).post().expect("connected");
            }
        }
        false
    });
    assert!(back && token == hosts as u64, "the token is {token}");
    let counters = cluster.network().counters();
    println!(
        "{hosts} hosts: the token is back after {:.1?} of virtual time; {} packets, {} lost ({:.0?} in all)",
        cluster.now(),
        counters.fabric.path.sent,
        counters.fabric.path.lost,
        began.elapsed(),
    );
    Ok(())
}
