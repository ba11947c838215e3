//! The fabric as a backend. Several devices of one process share a simulated network in real time.
//! Each port has a timer descriptor, which becomes readable when a packet is due.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use rxe_core::types::Time;
use rxe_core::wire::{Frame, TxBatch, TxLimits};

use super::Fabric;
use crate::backend::{Backend, Capabilities, SendStatus, SrcPort};
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::membership::{Membership, MulticastJoiner};
use crate::host::sharing::Sharing;
use crate::rng::Rng;
use crate::wrappers::fault::FaultRule;
use rxe_sys::SharedFd;
use rxe_sys::TimerFd;

/// A simulated network that [`FabricPort`]s are attached to.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    start: Instant,
    /// The link to each address, which ends at the port with that address.
    links: Mutex<Links>,
}

struct Links {
    rng: Rng,
    rules: Vec<FaultRule>,
    like_udp: bool,
    to: HashMap<IpAddr, Link>,
    /// The members of each multicast group: one address per port.
    groups: HashMap<IpAddr, Vec<IpAddr>>,
}

struct Link {
    fabric: Fabric,
    timer: Arc<TimerFd>,
}

impl Links {
    /// Returns the link to this address, if it ends at the port with this timer.
    fn of(&mut self, port: &Arc<TimerFd>, address: &IpAddr) -> Option<&mut Link> {
        self.to.get_mut(address).filter(|link| Arc::ptr_eq(&link.timer, port))
    }

    /// Returns the addresses of the port with this timer.
    fn addresses_of(&self, port: &Arc<TimerFd>) -> Vec<IpAddr> {
        let own = self.to.iter().filter(|(_, link)| Arc::ptr_eq(&link.timer, port));
        own.map(|(address, _)| *address).collect()
    }

    /// Removes these addresses from all multicast groups.
    fn leave(&mut self, addresses: &[IpAddr]) {
        for members in self.groups.values_mut() {
            members.retain(|member| !addresses.contains(member));
        }
    }
}

impl Hub {
    /// Creates a network without ports.
    pub fn new(seed: u64, rules: &[FaultRule]) -> Self {
        let (to, groups) = (HashMap::new(), HashMap::new());
        let links =
            Links { rng: Rng::new(seed), rules: rules.to_vec(), like_udp: false, to, groups };
        Self(Arc::new(Shared { start: Instant::now(), links: Mutex::new(links) }))
    }

    /// Makes future ports deliver packets as UDP sockets do. Consecutive packets are merged into
    /// one frame, and IPv4 packets have no identification.
    pub fn like_udp(&self) {
        self.links().like_udp = true;
    }

    /// Creates a port with these addresses. If another port has one of them, the address moves to
    /// the new port.
    pub fn port(&self, addresses: &[IpAddr]) -> Result<FabricPort, NetError> {
        let timer = Arc::new(TimerFd::new()?);
        let mut links = self.links();
        links.leave(addresses);
        for address in addresses {
            let mut fabric = Fabric::new(links.rng.next(), &links.rules);
            fabric.hide_ids(links.like_udp);
            fabric.merge(links.like_udp);
            links.to.insert(*address, Link { fabric, timer: timer.clone() });
        }
        let capabilities = Capabilities {
            name: "fabric",
            link_mtu: 65_535,
            tx: TxLimits::default(),
            src_port: SrcPort::Any,
            recv_buffer: 0,
            qpn_block: None,
        };
        drop(links);
        Ok(FabricPort {
            hub: self.clone(),
            addresses: addresses.to_vec(),
            timer,
            capabilities,
            counters: Counters::default(),
        })
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.0.links.lock()
    }

    fn now(&self) -> Time {
        Time::ZERO + self.0.start.elapsed()
    }
}

/// A port of a [`Hub`].
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
        let mut links = self.hub.links();
        let mut next = None;
        for address in &self.addresses {
            let Some(link) = links.of(&self.timer, address) else { continue };
            while packets < budget
                && let Some(delivery) = link.fabric.pop(now)
            {
                packets += delivery.frame().packets().count();
                arrived.push(delivery);
            }
            next = [next, link.fabric.next_delivery()].into_iter().flatten().min();
        }
        self.timer.set_after(next.map(|at| at.since(now)));
        drop(links);
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
        let mut links = self.hub.links();
        for frame in batch.frames() {
            let packets = frame.packets().count() as u64;
            let dst = frame.net.dst;
            let receivers = match links.groups.get(&dst) {
                Some(members) => members.clone(),
                // Sending to a group without members succeeds.
                None if dst.is_multicast() => Vec::new(),
                None if links.to.contains_key(&dst) => vec![dst],
                None => {
                    self.counters.tx_unreachable += packets;
                    continue;
                }
            };
            self.counters.tx_packets += packets;
            self.counters.tx_bytes += frame.payload.len() as u64;
            for receiver in receivers {
                let Some(link) = links.to.get_mut(&receiver) else { continue };
                link.fabric.send_frame(now, &frame);
                let timer = link.timer.clone();
                let mine = links.to.values().filter(|link| Arc::ptr_eq(&link.timer, &timer));
                let next = mine.filter_map(|link| link.fabric.next_delivery()).min();
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
    fn joiner(&self) -> MulticastJoiner {
        MulticastJoiner::default()
    }

    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError> {
        let group = membership.group();
        let mut links = self.hub.links();
        let mut own = self.addresses.iter().filter(|ip| ip.is_ipv4() == group.is_ipv4());
        let Some(&own) = own.find(|ip| links.of(&self.timer, ip).is_some()) else {
            let source = std::io::ErrorKind::AddrNotAvailable.into();
            return Err(NetError::Join { group, source });
        };
        let members = links.groups.entry(group).or_default();
        if !members.contains(&own) {
            members.push(own);
        }
        Ok(None)
    }

    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        let mut links = self.hub.links();
        let own = links.addresses_of(&self.timer);
        links.groups.get_mut(&group)?.retain(|member| !own.contains(member));
        Some(Membership::without_socket(group))
    }
}

impl Drop for FabricPort {
    fn drop(&mut self) {
        let mut links = self.hub.links();
        let own = links.addresses_of(&self.timer);
        links.leave(&own);
        links.to.retain(|address, _| !own.contains(address));
    }
}
