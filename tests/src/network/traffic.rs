//! The traffic of a run: who sends to whom, and when.

use super::Topology;
use crate::sim::rng::Rng;

/// The connections of a run, and how their senders post messages.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// The sender and the receiver of each connection.
    pub pairs: Vec<(u32, u32)>,
    /// When senders post messages.
    pub posts: Posts,
    /// The length of a message in bytes.
    pub message: u32,
}

/// When a sender posts messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posts {
    /// Each connection always has this number of messages outstanding.
    Stream(u32),
    /// Each host always has this number of messages outstanding, spread over its connections in turn.
    InTurn(u32),
    /// Each connection sends this number of messages, all posted at the start.
    Once(u32),
}

/// The default length of a message in bytes.
pub const MESSAGE: u32 = 65_536;

impl Traffic {
    /// Returns traffic in which hosts 1 to `senders` continuously send to host 0.
    pub fn incast(senders: u32) -> Self {
        let pairs = (1..=senders).map(|from| (from, 0)).collect();
        Self { pairs, posts: Posts::Stream(2), message: MESSAGE }
    }

    /// Returns traffic in which hosts 1 to `senders` send one message each to host 0 at the start.
    pub fn burst(senders: u32) -> Self {
        Self { posts: Posts::Once(1), ..Self::incast(senders) }
    }

    /// Returns traffic in which each host sends to `peers` others, and receives from as many.
    /// If `peers` exceeds the number of other hosts, each host sends to all others. In each turn
    /// all hosts send to the host at the same distance, but hosts do not wait for each other.
    pub fn all_to_all(hosts: u32, peers: u32, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut distances: Vec<u32> = (1..hosts).collect();
        for at in (1..distances.len()).rev() {
            distances.swap(at, rng.index(at + 1));
        }
        distances.truncate(peers as usize);
        let of = |from| distances.iter().map(move |by| (from, (from + by) % hosts));
        let pairs = (0..hosts).flat_map(of).collect();
        Self { pairs, posts: Posts::InTurn(8), message: MESSAGE }
    }

    /// Moves the hosts of each pair so that consecutive hosts are at different leaves.
    pub fn spread(mut self, topology: Topology) -> Self {
        let place = |host: &mut u32| *host = topology.spread(*host);
        self.pairs.iter_mut().for_each(|(from, to)| {
            place(from);
            place(to);
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_all_to_all_each_host_sends_and_receives_as_much_as_any_other() {
        let Traffic { mut pairs, .. } = Traffic::all_to_all(20, 7, 1);
        assert!(pairs.iter().all(|(from, to)| from != to && *to < 20));
        for host in 0..20 {
            assert_eq!(pairs.iter().filter(|(from, _)| *from == host).count(), 7);
            assert_eq!(pairs.iter().filter(|(_, to)| *to == host).count(), 7);
        }
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), 140);
    }
}
