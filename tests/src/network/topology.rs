//! The switches of a network, and the path of a packet through them.

use rxe_net::{Egress, EgressQueue};

/// The switches and how they are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// All hosts at one switch.
    Star {
        /// The number of hosts.
        hosts: u32,
    },
    /// Hosts at leaf switches, each of which has a link to each spine switch.
    /// Flows are spread over the spines by their addresses and UDP source port (ECMP).
    LeafSpine {
        /// The number of leaf switches.
        leaves: u32,
        /// The number of hosts at each leaf.
        hosts: u32,
        /// The number of spine switches.
        spines: u32,
        /// The rate of a link between leaf and spine in Gbit/s.
        uplink: u64,
    },
}

/// Where a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Host(u32),
    Leaf(u32),
    Spine(u32),
}

impl Topology {
    /// Returns the number of hosts.
    pub fn hosts(self) -> u32 {
        match self {
            Self::Star { hosts } => hosts,
            Self::LeafSpine { leaves, hosts, .. } => leaves * hosts,
        }
    }

    /// Returns the host at position `index` when hosts are taken from all leaves in turn.
    pub(super) fn spread(self, index: u32) -> u32 {
        let (leaves, hosts, ..) = self.sizes();
        index % leaves * hosts + index / leaves
    }

    /// Returns the leaves, the hosts of a leaf, the spines, and the uplink rate in Gbit/s.
    fn sizes(self) -> (u32, u32, u32, u64) {
        match self {
            Self::Star { hosts } => (1, hosts, 0, 1),
            Self::LeafSpine { leaves, hosts, spines, uplink } => (leaves, hosts, spines, uplink),
        }
    }

    /// Returns all ports, in this order: from each host, to each host, from each leaf to each
    /// spine, from each spine to each leaf.
    pub(super) fn ports(self, gigabits: u64, delay: u64, queue: EgressQueue) -> Vec<Egress> {
        let (leaves, _, spines, uplink) = self.sizes();
        let hosts = self.hosts() as usize;
        let from_host = Egress::new(gigabits, delay, None);
        let to_host = Egress::new(gigabits, delay, Some(queue));
        let between = Egress::new(uplink, delay, Some(queue));
        let mut ports = vec![from_host; hosts];
        ports.resize(2 * hosts, to_host);
        ports.resize(2 * hosts + 2 * (leaves * spines) as usize, between);
        ports
    }

    /// Returns the index of the port from a host to its leaf.
    pub(super) fn of_host(host: u32) -> usize {
        host as usize
    }

    /// Returns the index of the port from a leaf to a host.
    pub(super) fn to_host(self, host: u32) -> usize {
        (self.hosts() + host) as usize
    }

    /// Returns the port that a packet to host `to` takes from `at`, and the node behind that port.
    /// `hash` must be equal for all packets of a flow.
    pub(super) fn next(self, at: Node, to: u32, hash: u32) -> (usize, Node) {
        let (leaves, hosts, spines, _) = self.sizes();
        let first = 2 * self.hosts();
        match at {
            Node::Host(host) => (Self::of_host(host), Node::Leaf(host / hosts)),
            Node::Leaf(leaf) if leaf == to / hosts => (self.to_host(to), Node::Host(to)),
            Node::Leaf(leaf) => {
                let spine = hash % spines;
                ((first + leaf * spines + spine) as usize, Node::Spine(spine))
            }
            Node::Spine(spine) => {
                let leaf = to / hosts;
                let port = first + leaves * spines + spine * leaves + leaf;
                (port as usize, Node::Leaf(leaf))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_net::Marking;
    use std::collections::HashSet;

    #[test]
    fn every_host_reaches_every_other_and_flows_use_all_spines() {
        let topology = Topology::LeafSpine { leaves: 3, hosts: 4, spines: 2, uplink: 40 };
        let queue = EgressQueue { capacity: 1, marking: Marking { kmin: 1, kmax: 2, pmax: 1 } };
        let ports = topology.ports(10, 500, queue).len();
        let mut used = HashSet::new();
        for (from, to) in (0..12).flat_map(|from| (0..12).map(move |to| (from, to))) {
            for hash in 0..2 {
                let (mut at, mut hops) = (Node::Host(from), 0);
                while at != Node::Host(to) || hops == 0 {
                    let (port, next) = topology.next(at, to, hash);
                    used.insert(port);
                    (at, hops) = (next, hops + 1);
                }
                assert_eq!(hops, if from / 4 == to / 4 { 2 } else { 4 }, "{from} to {to}");
            }
        }
        assert_eq!((used.len(), used.into_iter().max()), (ports, Some(ports - 1)));
        assert_eq!([0, 1, 2, 3, 11].map(|index| topology.spread(index)), [0, 4, 8, 1, 11]);
    }
}
