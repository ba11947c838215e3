//! A layer 2 endpoint without its link and its clock: how it reacts to frames and to time.

use std::collections::VecDeque;
use std::net::IpAddr;

use rxe_core::types::Time;
use rxe_core::wire::{Burst, Ethernet, Frame, NetHeader, TxBatch, frame};

use super::discovery::{AddressInfo, address_info, announcement, solicitation, solicited_node};
use super::groups::Groups;
use super::link::{Arrival, Link};
use super::neighbours::{Lookup, Neighbours};
use super::stack::{Lease, Stack};
use crate::backends::l2::L2Config;
use crate::backends::loss::{Loss, count_lost};
use crate::backends::packet::headers::Headers;
use crate::backends::packet::socket::unmerged;
use crate::counters::Counters;
use crate::error::{L2Failure, NetError};
use crate::host::membership::group_mac;
use crate::interface::Address;

/// The state of an endpoint, without its link and its clock.
pub(super) struct Endpoint {
    name: String,
    pub(super) mac: [u8; 6],
    pub(super) addresses: Vec<Address>,
    gateways: Vec<IpAddr>,
    dhcp: bool,
    /// The address from a DHCP server that is in use.
    leased: Option<IpAddr>,
    /// The backend is being opened: an address from DHCP is only offered.
    opening: bool,
    /// The lease that a DHCP server has granted while the backend is being opened.
    pub(super) offer: Option<Lease>,
    stack: Stack,
    neighbours: Neighbours,
    groups: Groups,
    /// The packets to the endpoint itself.
    own: VecDeque<(NetHeader, Vec<u8>)>,
    own_bytes: usize,
    /// When the endpoint next has work.
    pub(super) deadline: Option<Time>,
    pub(super) counters: Counters,
}

/// The maximum number of waiting bytes to the endpoint itself.
const MAX_OWN: usize = 4 << 20;

impl Endpoint {
    /// Creates an endpoint without addresses.
    pub(super) fn new(config: &L2Config) -> Self {
        let mac = config.mac.0;
        let mtu = usize::try_from(config.mtu).unwrap_or(1500);
        Self {
            name: config.link.to_string(),
            mac,
            addresses: Vec::new(),
            gateways: config.gateways.clone(),
            dhcp: config.dhcp,
            leased: None,
            opening: true,
            offer: None,
            stack: Stack::new(mac, mtu, config.dhcp, Time::ZERO),
            neighbours: Neighbours::default(),
            groups: Groups::default(),
            own: VecDeque::new(),
            own_bytes: 0,
            deadline: Some(Time::ZERO),
            counters: Counters::default(),
        }
    }

    pub(super) fn failed(&self, reason: L2Failure) -> NetError {
        NetError::L2 { link: self.name.clone(), reason }
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.ip == ip)
    }

    /// Replaces the addresses.
    pub(super) fn set_addresses(&mut self, addresses: Vec<Address>) {
        self.addresses = addresses;
        self.configure();
    }

    fn configure(&mut self) {
        self.stack.set_addresses(&self.addresses, &self.gateways);
    }

    /// Announces the addresses to all hosts, in case another endpoint had them before.
    pub(super) fn announce(&mut self, link: &mut dyn Link, now: Time) {
        for address in &self.addresses {
            let _ = link.push(&[&announcement(self.mac, address.ip)]);
        }
        self.groups.join_solicited(&self.addresses, now);
        self.deadline = self.next_deadline(now);
    }

    #[cfg(test)]
    pub(super) fn hears(&self, group: IpAddr) -> bool {
        self.groups.hears(group)
    }

    /// Starts receiving a multicast group.
    pub(super) fn join(&mut self, group: IpAddr, now: Time) {
        self.groups.join(group, now);
        self.deadline = self.next_deadline(now);
    }

    /// Undoes [`Endpoint::join`].
    pub(super) fn leave(&mut self, group: IpAddr, now: Time) {
        // Neighbours ask for the endpoint's addresses in these groups, so they must not be left.
        let is_asked = |a: &Address| matches!(a.ip, IpAddr::V6(ip) if group == solicited_node(ip));
        if !self.addresses.iter().any(is_asked) {
            self.groups.leave(group, now);
        }
        self.deadline = self.next_deadline(now);
    }

    /// Returns the packets in a frame from the link, if they are for the engine.
    fn packet<'a>(&self, arrival: &Arrival<'a>) -> Option<Frame<'a>> {
        let (ethernet, packet) = Ethernet::parse(arrival.bytes).ok()?;
        let is_ip = matches!(ethernet.ethertype, Ethernet::IPV4 | Ethernet::IPV6);
        // A tag belongs to another network, unless it only carries a priority.
        let tagged = ethernet.inner_vlan.is_some() || ethernet.vlan.is_some_and(|t| t.vid() != 0);
        if !is_ip || tagged {
            return None;
        }
        let to = ethernet.dst.0;
        let to_group = to[0] & 1 != 0;
        // A bridge may return our own frames.
        if !to_group && to != self.mac || ethernet.src.0 == self.mac {
            return None;
        }
        let datagram = frame::parse_ip(packet).ok()?;
        let frame = datagram.frame().ok()?;
        let dst = frame.net.dst;
        let is_ours = match to_group {
            true => to == group_mac(dst) && self.groups.hears(dst),
            false => self.has(dst),
        };
        (is_ours && !frame.payload.is_empty()).then(|| unmerged(frame, arrival.gso_size))
    }

    /// Hands the next packet to the endpoint itself to `sink`. Returns whether there was one.
    pub(super) fn take_own(&mut self, sink: &mut dyn FnMut(&Frame<'_>)) -> bool {
        let Some((net, bytes)) = self.own.pop_front() else { return false };
        self.own_bytes -= bytes.len();
        let frame = Frame::single(net, &bytes);
        self.count_received(&frame);
        sink(&frame);
        true
    }

    /// Hands the packets in a frame from the link to `sink`. Returns their number, or `None` if the
    /// frame is not for the engine.
    pub(super) fn take_packets(
        &mut self,
        arrival: &Arrival<'_>,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Option<usize> {
        self.counters.rx_overflow += u64::from(arrival.lost);
        let frame = self.packet(arrival)?;
        self.count_received(&frame);
        sink(&frame);
        Some(frame.count())
    }

    /// Processes a frame that is not for the engine, and returns what it tells about an address.
    pub(super) fn process_other(&mut self, bytes: &[u8], now: Time) -> Option<AddressInfo> {
        let plain = without_priority(bytes);
        let bytes = plain.as_deref().unwrap_or(bytes);
        self.stack.input(bytes, now);
        if bytes.get(6..12) != Some(&self.mac) {
            self.groups.input(bytes, self.mac, now);
        }
        address_info(bytes)
    }

    /// Takes a new lease and sends answers after a frame that is not for the engine.
    pub(super) fn after_input(&mut self, link: &mut dyn Link, now: Time) {
        self.take_lease();
        self.output(link, now);
        self.deadline = self.next_deadline(now);
    }

    /// Processes what a frame told about an address.
    pub(super) fn process_address_info(
        &mut self,
        info: AddressInfo,
        link: &mut dyn Link,
        now: Time,
    ) {
        match info {
            AddressInfo::Has(ip, mac) => {
                for frame in self.neighbours.learn(ip, mac, now) {
                    self.count_sent_frame(link, &frame);
                }
            }
            AddressInfo::Probes(ip, mac) if self.has(ip) && mac != self.mac => {
                let _ = link.push(&[&announcement(self.mac, ip)]);
            }
            AddressInfo::Probes(..) => {}
        }
    }

    /// Sends a frame that has waited for a neighbour, and counts it.
    fn count_sent_frame(&mut self, link: &mut dyn Link, frame: &[u8]) {
        match link.push(&[frame]) {
            Ok(()) => {
                let payload =
                    frame::parse_ethernet(frame).and_then(|(_, datagram)| datagram.frame());
                let bytes = payload.map_or(0, |frame| frame.payload.len());
                self.counters.count_sent(bytes, bytes, 0..1);
            }
            Err(loss) => count_lost(&mut self.counters, loss, 1),
        }
    }

    /// Does the work that is due, if any.
    pub(super) fn tick(&mut self, link: &mut dyn Link, now: Time) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        self.stack.poll(now);
        self.take_lease();
        let due = self.neighbours.due(now);
        count_lost(&mut self.counters, Loss::Unreachable, due.dropped);
        for ip in due.ask {
            self.ask(ip, link);
        }
        self.output(link, now);
        self.deadline = self.next_deadline(now);
    }

    pub(super) fn next_deadline(&mut self, now: Time) -> Option<Time> {
        let waits = (!self.own.is_empty()).then_some(now);
        let (stack, neighbours) = (self.stack.deadline(now), self.neighbours.deadline());
        [stack, neighbours, self.groups.deadline(), waits].into_iter().flatten().min()
    }

    fn output(&mut self, link: &mut dyn Link, now: Time) {
        for frame in self.groups.due(self.mac, &self.addresses, now) {
            let _ = link.push(&[&frame]);
        }
        while let Some(frame) = self.stack.output() {
            let _ = link.push(&[&frame]);
        }
    }

    fn take_lease(&mut self) {
        if !self.dhcp {
            return;
        }
        let Some(change) = self.stack.take_lease() else { return };
        if self.opening {
            self.offer = change;
        } else {
            self.change_lease(change);
        }
    }

    /// Uses the address that a DHCP server has offered, and later ones immediately.
    pub(super) fn accept(&mut self) {
        self.opening = false;
        if let Some(lease) = self.offer.take() {
            self.change_lease(Some(lease));
        }
    }

    fn change_lease(&mut self, change: Option<Lease>) {
        let old = self.leased.take();
        self.addresses.retain(|a| Some(a.ip) != old);
        if let Some(lease) = change {
            let address = lease.address();
            if !self.has(address.ip) {
                self.addresses.insert(0, address);
                self.leased = Some(address.ip);
            }
            if let Some(router) = lease.router {
                self.gateways.retain(IpAddr::is_ipv6);
                self.gateways.push(router.into());
            }
        }
        self.configure();
    }

    /// Asks for the Ethernet address of a host on the link.
    fn ask(&self, ip: IpAddr, link: &mut dyn Link) {
        let of_family = |a: &&Address| a.ip.is_ipv4() == ip.is_ipv4();
        let mut own = self.addresses.iter().filter(of_family);
        let own = own.clone().find(|a| a.is_near(ip)).or_else(|| own.next());
        if let Some(own) = own {
            let _ = link.push(&[&solicitation(self.mac, own.ip, ip)]);
        }
    }

    /// Returns the host on the link that packets to `dst` go to: `dst` itself or a gateway.
    pub(super) fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        if self.addresses.iter().any(|a| a.is_near(dst)) {
            return Some(dst);
        }
        let beyond = !matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let gateway = self.gateways.iter().find(|g| g.is_ipv4() == dst.is_ipv4());
        gateway.copied().filter(|_| beyond)
    }

    /// Sends the packets of a burst, or queues them until the neighbour is known.
    pub(super) fn send(&mut self, link: &mut dyn Link, batch: &TxBatch, burst: &Burst, now: Time) {
        let (dst, packets) = (burst.net.dst, burst.packets());
        if dst.is_ipv4() != burst.net.src.is_ipv4() || !self.has(burst.net.src) {
            return count_lost(&mut self.counters, Loss::BadAddress, packets as u64);
        }
        if self.has(dst) {
            return self.send_to_itself(batch, burst);
        }
        let lookup = if dst.is_multicast() {
            // A member of a group also receives what it sends to the group.
            if self.groups.hears(dst) {
                let [.., lost] = self.loop_back(batch, burst);
                self.counters.rx_overflow += lost;
            }
            Lookup::Known(group_mac(dst))
        } else {
            let Some(host) = self.next_hop(dst) else {
                return count_lost(&mut self.counters, Loss::Unreachable, packets as u64);
            };
            let lookup = self.neighbours.lookup(host, now);
            if lookup == Lookup::Ask {
                self.ask(host, link);
                self.deadline = self.next_deadline(now);
            }
            if !matches!(lookup, Lookup::Known(_)) {
                return self.hold(host, batch, burst);
            }
            lookup
        };
        let Lookup::Known(mac) = lookup else { return };
        link.push_packets(&packets_of(batch, burst), self.mac, mac, &mut self.counters);
    }

    /// Queues the packets of a burst until the Ethernet address of `host` is known.
    fn hold(&mut self, host: IpAddr, batch: &TxBatch, burst: &Burst) {
        for (net, bytes) in packets_of(batch, burst).packets() {
            let headers = Headers::plain(&net, bytes, self.mac, [0; 6]);
            let [ethernet, ip] = headers.parts();
            if !self.neighbours.wait(host, [ethernet, ip, bytes].concat()) {
                count_lost(&mut self.counters, Loss::NoBuffer, 1);
            }
        }
    }

    fn send_to_itself(&mut self, batch: &TxBatch, burst: &Burst) {
        let [packets, bytes, lost] = self.loop_back(batch, burst);
        count_lost(&mut self.counters, Loss::NoBuffer, lost);
        self.counters.tx_packets += packets;
        self.counters.tx_bytes += bytes;
    }

    /// Queues packets to the endpoint itself. Returns the number of packets, of bytes, and of lost
    /// packets.
    fn loop_back(&mut self, batch: &TxBatch, burst: &Burst) -> [u64; 3] {
        let [mut taken, mut len, mut lost] = [0; 3];
        for (net, bytes) in packets_of(batch, burst).packets() {
            if self.own_bytes + bytes.len() > MAX_OWN {
                lost += 1;
                continue;
            }
            self.own_bytes += bytes.len();
            self.own.push_back((net, bytes.to_vec()));
            taken += 1;
            len += bytes.len() as u64;
        }
        self.deadline = Some(Time::ZERO);
        [taken, len, lost]
    }

    fn count_received(&mut self, frame: &Frame<'_>) {
        self.counters.rx_packets += frame.count() as u64;
        self.counters.rx_bytes += frame.payload.len() as u64;
    }
}

/// Removes a tag that only carries a priority. Returns `None` if the frame has no such tag. IEEE
/// 802.1Q, 6.9.
fn without_priority(frame: &[u8]) -> Option<Vec<u8>> {
    const TAG: usize = 4;
    let (ethernet, _) = Ethernet::parse(frame).ok()?;
    ethernet.vlan.filter(|tag| tag.vid() == 0)?;
    let (addresses, rest) = frame.split_at_checked(12)?;
    Some([addresses, rest.get(TAG..)?].concat())
}

fn packets_of<'a>(batch: &'a TxBatch, burst: &Burst) -> Frame<'a> {
    Frame { segment: burst.segment, ..Frame::single(burst.net, batch.bytes(burst)) }
}
