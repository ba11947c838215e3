//! What happens to the network on purpose: impairments, partitions, hosts that crash.

use std::net::IpAddr;
use std::sync::Arc;

use rxe_net::{Impairments, StarCounters};

use super::world::World;

/// A host of a cluster, by its number and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId {
    pub(super) number: usize,
    pub(super) address: IpAddr,
}

impl HostId {
    /// Its number: the first host of a cluster is 0.
    pub fn index(self) -> usize {
        self.number
    }

    /// Its address.
    pub fn address(self) -> IpAddr {
        self.address
    }
}

/// The network of a cluster. What is changed holds for packets that are sent from now on.
#[derive(Clone)]
pub struct Network {
    world: Arc<World>,
}

impl Network {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    /// Sets the impairments of all paths: loss, duplicates, reordering, damage, and a delay beyond that
    /// of the links. Forgets [`Network::set_path_impairments`].
    pub fn set_impairments(&self, impairments: Impairments) {
        self.world.state().star.set_impairments(impairments);
    }

    /// Sets the impairments of packets from one host to another.
    pub fn set_path_impairments(&self, from: HostId, to: HostId, impairments: Impairments) {
        self.world.state().star.set_path_impairments(from.address, to.address, impairments);
    }

    /// Loses everything that hosts of the one side send to hosts of the other, both ways.
    pub fn partition(&self, one: &[HostId], other: &[HostId]) {
        let mut state = self.world.state();
        for (a, b) in pairs(one, other) {
            state.star.fabric().cut(a, b);
        }
    }

    /// Loses everything that the hosts `from` send to the hosts `to`; answers arrive.
    pub fn cut_one_way(&self, from: &[HostId], to: &[HostId]) {
        let mut state = self.world.state();
        for (from, to) in pairs(from, to) {
            state.star.fabric().cut_one_way(from, to);
        }
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.world.state().star.fabric().heal_all();
    }

    /// A host stops for ever: it sends nothing, receives nothing, and its program is not called any more.
    /// What a program does with its objects from then on has no meaning.
    pub fn crash(&self, host: HostId) {
        self.world.crash(host.number);
    }

    /// Packets that the network has handled.
    pub fn counters(&self) -> StarCounters {
        self.world.state().star.counters()
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("counters", &self.counters()).finish()
    }
}

fn pairs(one: &[HostId], other: &[HostId]) -> impl Iterator<Item = (IpAddr, IpAddr)> {
    one.iter().flat_map(|a| other.iter().map(|b| (a.address, b.address)))
}
