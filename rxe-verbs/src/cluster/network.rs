//! The network of a cluster: faults of packets, partitions, and hosts that crash.

use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_net::SwitchCounters;

use super::world::World;
use crate::error::Result;
use crate::faults::FaultPlan;

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

    /// Replaces the faults of packets on their way from a host to the switch: loss, duplicates,
    /// reordering, damage, marks, and a delay beyond that of the links. `only dst=` chooses the
    /// packets to one host. [`FaultPlan::default`] ends all faults.
    ///
    /// # Errors
    /// [`VerbsError::InvalidAttribute`] if the plan has faults of verbs, or a rule for one direction:
    /// packets in a network have none.
    pub fn set_faults(&self, faults: &FaultPlan) -> Result<()> {
        let why = if !faults.verbs().is_empty() {
            "faults of verbs belong to a device, not to the network"
        } else if faults.rules().iter().any(|rule| rule.direction.is_some()) {
            "packets in the network have no direction: leave out `in:` and `out:`"
        } else {
            self.world.state().star.set_rules(faults.rules());
            return Ok(());
        };
        Err(VerbsError::InvalidAttribute { name: "faults", why: why.into() }.into())
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
    pub fn counters(&self) -> SwitchCounters {
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
