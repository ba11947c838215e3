//! The fabric as a backend: several devices of one process on a simulated network, in real time.
//! Each port has a timer descriptor, which becomes readable when a packet is due.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rxe_core::types::Time;
use rxe_core::wire::{Frame, TxBatch, TxLimits};

use super::{Fabric, Faults};
use crate::TimerFd;
use crate::backend::{Backend, Capabilities, SendStatus, SrcPort};
use crate::counters::Counters;
use crate::{Joiner, Membership, NetError, SharedFd, Sharing, rng::Rng};

/// A simulated network that [`FabricPort`]s are attached to.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    start: Instant,
    /// The link to each address: faults happen on it, and it ends at the port with that address.
    ways: Mutex<Ways>,
}

struct Ways {
    rng: Rng,
    faults: Faults,
    to: HashMap<IpAddr, Way>,
    /// The members of each multicast group: per port, one address of the group's family.
    groups: HashMap<IpAddr, Vec<IpAddr>>,
}

struct Way {
    fabric: Fabric,
    timer: Arc<TimerFd>,
}

impl Hub {
    /// A network without ports.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let ways = Ways { rng: Rng::new(seed), faults, to: HashMap::new(), groups: HashMap::new() };
        Self(Arc::new(Shared { start: Instant::now(), ways: Mutex::new(ways) }))
    }

    /// Makes a port with these addresses. An address that another port has moves to the new one.
    pub fn port(&self, addresses: &[IpAddr]) -> Result<FabricPort, NetError> {
        let timer = Arc::new(TimerFd::new()?);
        let mut ways = self.ways();
        for address in addresses {
            let fabric = Fabric::new(ways.rng.next(), ways.faults.clone());
            ways.to.insert(*address, Way { fabric, timer: timer.clone() });
        }
        let capabilities = Capabilities {
            name: "fabric",
            privileges: "",
            link_mtu: 65_535,
            tx: TxLimits::default(),
            src_port: SrcPort::Any,
            sees_ip_id: !ways.faults.hide_ids,
            recv_buffer: 0,
            qpn_block: None,
        };
        drop(ways);
        Ok(FabricPort {
            hub: self.clone(),
            addresses: addresses.to_vec(),
            timer,
            capabilities,
            counters: Counters::default(),
        })
    }

    /// Changes the faults for packets sent from now on.
    pub fn set_faults(&self, faults: &Faults) {
        let mut ways = self.ways();
        ways.faults = faults.clone();
        for way in ways.to.values_mut() {
            way.fabric.set_faults(faults.clone());
        }
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.0.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::ZERO + self.0.start.elapsed()
    }
}

/// One end of a [`Hub`].
pub struct FabricPort {
    hub: Hub,
    addresses: Vec<IpAddr>,
    timer: Arc<TimerFd>,
    capabilities: Capabilities,
    counters: Counters,
}

impl Backend for FabricPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let now = self.hub.now();
        let mut arrived = Vec::new();
        let mut packets = 0;
        let mut ways = self.hub.ways();
        let mut next = None;
        for address in &self.addresses {
            let Some(way) = ways.to.get_mut(address) else { continue };
            while packets < budget
                && let Some(delivery) = way.fabric.pop(now)
            {
                packets += delivery.frame().packets().count();
                arrived.push(delivery);
            }
            next = [next, way.fabric.next_delivery()].into_iter().flatten().min();
        }
        self.timer.set_after(next.map(|at| at.since(now)));
        drop(ways);
        for delivery in &arrived {
            let frame = delivery.frame();
            self.counters.rx_bytes += frame.payload.len() as u64;
            sink(&frame);
        }
        self.counters.rx_packets += packets as u64;
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let now = self.hub.now();
        let mut ways = self.hub.ways();
        for frame in batch.frames() {
            let packets = frame.packets().count() as u64;
            let dst = frame.net.dst;
            let receivers = match ways.groups.get(&dst) {
                Some(members) => members.clone(),
                // Sending to a group without members succeeds.
                None if dst.is_multicast() => Vec::new(),
                None if ways.to.contains_key(&dst) => vec![dst],
                None => {
                    self.counters.tx_unreachable += packets;
                    continue;
                }
            };
            self.counters.tx_packets += packets;
            self.counters.tx_bytes += frame.payload.len() as u64;
            for receiver in receivers {
                let Some(way) = ways.to.get_mut(&receiver) else { continue };
                way.fabric.send_frame(now, &frame);
                let timer = way.timer.clone();
                let mine = ways.to.values().filter(|way| Arc::ptr_eq(&way.timer, &timer));
                let next = mine.filter_map(|way| way.fabric.next_delivery()).min();
                timer.set_after(next.map(|at| at.since(now)));
            }
        }
        batch.mark_sent(batch.pending().len());
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        f(self.timer.shared());
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        Some(self)
    }
}

impl Sharing for FabricPort {
    fn joiner(&self) -> Joiner {
        Joiner::default()
    }

    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError> {
        let group = membership.group();
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == group.is_ipv4();
        let Some(&own) = self.addresses.iter().find(of_family) else {
            let source = std::io::ErrorKind::AddrNotAvailable.into();
            return Err(NetError::Join { group, source });
        };
        let mut ways = self.hub.ways();
        let members = ways.groups.entry(group).or_default();
        if !members.contains(&own) {
            members.push(own);
        }
        Ok(None)
    }

    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        let mut ways = self.hub.ways();
        ways.groups.get_mut(&group)?.retain(|member| !self.addresses.contains(member));
        Some(Membership::without_socket(group))
    }
}

impl Drop for FabricPort {
    fn drop(&mut self) {
        let mut ways = self.hub.ways();
        ways.to.retain(|_, way| !Arc::ptr_eq(&way.timer, &self.timer));
        for members in ways.groups.values_mut() {
            members.retain(|member| !self.addresses.contains(member));
        }
    }
}
