//! A hundred hosts write to one host simultaneously, with congestion control (DCQCN) and without it.
//!
//! Run it: `cargo run --release -p rxe-verbs --example cluster_incast`

use std::time::Duration;

use rxe_verbs::cluster::{Cluster, HostOptions, SwitchCounters};
use rxe_verbs::{Access, ConnectOptions, Result, Status};

/// The number of messages of each sender.
const MESSAGES: u64 = 16;
/// The length of a message in bytes.
const BYTES: usize = 64 << 10;

fn main() -> Result<()> {
    for congestion_control in [true, false] {
        println!("{}", run(1, 100, congestion_control)?.0);
    }
    Ok(())
}

/// Runs the whole example. Returns the result as text, and the counters of the switch.
pub(crate) fn run(
    seed: u64,
    senders: usize,
    congestion_control: bool,
) -> Result<(String, SwitchCounters)> {
    let mut cluster = Cluster::new(seed);
    let options = HostOptions { congestion_control, ..HostOptions::default() };
    let receiver = cluster.add_host_with(&options)?;
    let (pd, cq) = (receiver.create_pd()?, receiver.create_cq(16)?);
    let target = pd.register(BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    let mut ends = Vec::new();
    for _ in 0..senders {
        let host = cluster.add_host_with(&options)?;
        let (from, done) = (host.create_pd()?, host.create_cq(16)?);
        let (qp, their) = (from.qp(&done).build()?, pd.qp(&cq).build()?);
        qp.connect(&their.endpoint(), &ConnectOptions::default())?;
        their.connect(&qp.endpoint(), &ConnectOptions::default())?;
        ends.push((qp, their, done, from.register(BYTES, Access::LOCAL_WRITE)?));
    }
    for (qp, _, _, memory) in &ends {
        for id in 0..MESSAGES {
            qp.write(id, &[memory.slice(..)], target.remote(0)).post()?;
        }
    }
    for (_, _, done, _) in &ends {
        for _ in 0..MESSAGES {
            assert_eq!(done.wait_one(Duration::from_secs(60))?.status, Status::Success);
        }
    }
    let counters = cluster.network().counters();
    let (sent, lost, marked) = (counters.fabric.path.sent, counters.overflowed, counters.marked);
    let percent = |part: u64| part as f64 * 100.0 / sent.max(1) as f64;
    let found = format!(
        "{senders} senders, DCQCN {}: done after {:.1?}; {sent} packets, {:.1} % lost in the queue, {:.1} % marked",
        if congestion_control { "on" } else { "off" },
        cluster.now(),
        percent(lost),
        percent(marked),
    );
    Ok((found, counters))
}
