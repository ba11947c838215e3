//! Who sends to whom, and when.

use super::Topology;
use crate::sim::rng::Rng;

/// The connections of a run, and how their senders post messages.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Sender and receiver of each connection.
    pub pairs: Vec<(u32, u32)>,
    /// When a sender posts.
    pub posts: Posts,
    /// The bytes of a message.
    pub message: u32,
}

/// When a sender posts messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posts {
    /// Each connection always has so many messages outstanding.
    Stream(u32),
    /// Each host always has so many messages outstanding, over its connections in turn.
    InTurn(u32),
    /// Each connection sends so many messages, all posted at the start.
    Once(u32),
}

/// Bytes of a message, unless a run says otherwise.
pub const MESSAGE: u32 = 65_536;

impl Traffic {
    /// Hosts 1 to `senders` send to host 0 without end.
    pub fn incast(senders: u32) -> Self {
        let pairs = (1..=senders).map(|from| (from, 0)).collect();
        Self { pairs, posts: Posts::Stream(2), message: MESSAGE }
    }

    /// Hosts 1 to `senders` send a message each to host 0, at the same time.
    pub fn burst(senders: u32) -> Self {
        Self { posts: Posts::Once(1), ..Self::incast(senders) }
    }

    /// Each host sends to `peers` others, and as many send to it. All others, if that many are asked for.
    /// In each turn all hosts send to hosts at the same distance, but hosts do not wait for each other.
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

    /// The same with its hosts in other places: consecutive ones at different leaves.
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
