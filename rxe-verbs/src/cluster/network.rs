//! The network of a cluster: packet faults, partitions, and hosts that crash.

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
    /// Returns the number of the host: the first host of a cluster is 0.
    pub fn index(self) -> usize {
        self.number
    }

    /// Returns the address of the host.
    pub fn address(self) -> IpAddr {
        self.address
    }
}

/// The network of a cluster. Changes apply to packets sent from now on.
#[derive(Clone)]
pub struct Network {
    world: Arc<World>,
}

impl Network {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    /// Replaces the packet faults between hosts and the switch: loss, duplicates, reordering,
    /// corruption, ECN marks, and a delay in addition to that of the links. `only dst=` selects the
    /// packets to one host. [`FaultPlan::default`] ends all faults.
    ///
    /// # Errors
    /// [`VerbsError::InvalidAttribute`] if the plan has faults at the verbs, or a rule for one
    /// direction: packets in a network have no direction.
    pub fn set_faults(&self, faults: &FaultPlan) -> Result<()> {
        let why = if !faults.verbs().is_empty() {
            "faults of verbs belong to a device, not to the network"
        } else if faults.rules().iter().any(|rule| rule.direction.is_some()) {
            "packets in the network have no direction: leave out `in:` and `out:`"
        } else {
            self.world.state().switch.set_rules(faults.rules());
            return Ok(());
        };
        Err(VerbsError::InvalidAttribute { name: "faults", why: why.into() }.into())
    }

    /// Drops all packets between the two groups of hosts, in both directions.
    pub fn partition(&self, one: &[HostId], other: &[HostId]) {
        let mut state = self.world.state();
        for (a, b) in pairs(one, other) {
            state.switch.fabric().cut(a, b);
        }
    }

    /// Drops all packets from the hosts `from` to the hosts `to`; packets in the other direction
    /// arrive.
    pub fn cut_one_way(&self, from: &[HostId], to: &[HostId]) {
        let mut state = self.world.state();
        for (from, to) in pairs(from, to) {
            state.switch.fabric().cut_one_way(from, to);
        }
    }

    /// Ends all partitions.
    pub fn heal(&self) {
        self.world.state().switch.fabric().heal_all();
    }

    /// Crashes a host: it sends and receives nothing any more, and its program is not called again.
    /// Later use of the host's objects has no defined effect.
    pub fn crash(&self, host: HostId) {
        self.world.crash(host.number);
    }

    /// Returns the counters of the packets that the network has handled.
    pub fn counters(&self) -> SwitchCounters {
        self.world.state().switch.counters()
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
