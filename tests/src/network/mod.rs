//! A network of many hosts in virtual time.
//! Each host has an engine and a link; switches have queues that mark and drop. A run depends only
//! on its [`Settings`].
//!
//! Computing takes no virtual time, but a host handles arrived packets only once every
//! [`Settings::turn`]. A host hands its link one small batch at a time, so the host has no queue of
//! its own.
//!
//! Every run asserts what must hold whatever the figures are: each message arrives once and in
//! order, and each request completes once and in order, after its message has arrived.

mod events;
mod figures;
mod host;
mod topology;
mod traffic;
mod wire;
mod world;

use rxe_core::types::Mtu;
use rxe_net::{EgressQueue, Marking};

pub use figures::{Figures, Sample};
pub use topology::Topology;
pub use traffic::{MESSAGE, Posts, Traffic};

use world::Network;

/// Everything that determines a run. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The switches.
    pub topology: Topology,
    /// The messages.
    pub traffic: Traffic,
    /// Whether the engines take part in congestion control. If not, their packets are not
    /// ECN-capable, and switches do not mark them.
    pub congestion_control: bool,
    /// The rate of a host's link in Gbit/s.
    pub gigabits: u64,
    /// The delay of a link.
    pub delay: u64,
    /// The time between a packet's arrival at an idle host and the turn that handles it.
    pub turn: u64,
    /// The queues of the switches.
    pub queue: EgressQueue,
    /// The path MTU.
    pub mtu: Mtu,
    /// The warm-up time, in which nothing is counted.
    pub warm: u64,
    /// When senders stop posting. The run continues until every request has completed.
    pub end: u64,
    /// The length of a sampling interval.
    pub sample: u64,
    /// The seed of all random decisions.
    pub seed: u64,
}

impl Settings {
    /// Returns the default settings: links of 10 Gbit/s with a delay of 1 µs, and a path MTU of 1024.
    /// Switches have 300 kB for each port and mark as in the DCQCN paper.
    pub fn new(topology: Topology, traffic: Traffic, congestion_control: bool) -> Self {
        Self {
            topology,
            traffic,
            congestion_control,
            gigabits: 10,
            delay: 1,
            turn: 2,
            queue: EgressQueue {
                capacity: 300_000,
                marking: Marking { kmin: 40_000, kmax: 160_000, pmax: 200 },
            },
            mtu: Mtu::M1024,
            warm: 10_000,
            end: 100_000,
            sample: 100,
            seed: 1,
        }
    }

    /// Runs the network.
    ///
    /// # Panics
    /// If a check fails that must hold whatever the figures are.
    pub fn run(&self) -> Figures {
        let mut network = Network::new(self);
        network.run();
        network.finish()
    }
}
