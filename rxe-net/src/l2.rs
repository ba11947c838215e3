//! RoCEv2 from an endpoint with an Ethernet address and IP addresses of its own, beside the host's
//! network stack: a neighbour of whatever else is on the link. Decision 045.
//!
//! UDP to port 4791 is the engine's. All other frames go to a small stack ([`stack`]) that answers ARP,
//! neighbour discovery and ping. One process has an endpoint: there is nothing to share.
//!
//! Invariants: frames from the link are checked before they are believed; what waits (frames to hosts
//! that are not known yet, answers, frames to itself) is bounded; nothing blocks after
//! [`L2Backend::open`].

mod config;
mod discovery;
mod link;
mod neighbours;
mod qemu;
mod stack;
mod stream;
mod tap;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rxe_core::types::Time;
use rxe_core::wire::{Burst, Ethernet, Frame, Mac, NetHeader, TxBatch, TxLimits, frame};

use self::discovery::{Sighting, claim, group_mac, probe, question, sighting};
use self::link::Link;
use self::neighbours::{Lookup, Neighbours};
use self::qemu::QemuLink;
use self::stack::{Lease, Stack};
use self::tap::TapLink;
use crate::backend::{Backend, Capabilities, SendStatus, SrcPort};
use crate::blocking::may_block;
use crate::counters::Counters;
use crate::loss::{Loss, count_lost};
use crate::packet::headers::Headers;
use crate::{
    Address, Interface, L2Failure, MacAddr, NetError, Scope, SharedFd, TimerFd, port_owner,
};

pub use config::{L2Config, L2ConfigError, L2Link};

/// RoCEv2 from an endpoint of layer 2.
pub struct L2Backend {
    link: Box<dyn Link>,
    endpoint: Endpoint,
    /// Readable when the endpoint has something to do without a frame.
    timer: TimerFd,
    start: Instant,
    capabilities: Capabilities,
    /// Held while it is open, against other processes.
    _lock: Option<SharedFd>,
}

/// All of it but the link and the clock.
struct Endpoint {
    name: String,
    mac: [u8; 6],
    addresses: Vec<Address>,
    gateways: Vec<IpAddr>,
    dhcp: bool,
    /// The address that a DHCP server has given.
    leased: Option<IpAddr>,
    stack: Stack,
    neighbours: Neighbours,
    /// Packets to itself.
    own: VecDeque<(NetHeader, Vec<u8>)>,
    own_bytes: usize,
    /// When something is due.
    deadline: Option<Time>,
    counters: Counters,
}

/// Bytes to itself that wait, at most.
const MAX_OWN: usize = 4 << 20;
/// How long to look for duplicates. RFC 4862, section 5.1: RetransTimer.
const DAD_TIME: Duration = Duration::from_secs(1);
/// How long to wait for a DHCP server. Its client repeats after 10 s.
const DHCP_TIME: Duration = Duration::from_secs(12);

impl L2Backend {
    /// Opens the link, makes sure that nobody else has the addresses, and waits for a DHCP server if it
    /// is to ask one. This takes a second with duplicate detection.
    ///
    /// # Errors
    /// [`NetError::L2`].
    pub fn open(config: &L2Config) -> Result<Self, NetError> {
        may_block("opening an endpoint of layer 2");
        let name = config.link.to_string();
        let failed = |reason| NetError::L2 { link: name.clone(), reason };
        let lock = lock(config).map_err(failed)?;
        let link: Box<dyn Link> = match &config.link {
            L2Link::Qemu(path) => Box::new(QemuLink::open(path)?),
            L2Link::Tap(name) => Box::new(TapLink::open(name)?),
        };
        let start = Instant::now();
        let mtu = usize::try_from(config.mtu).unwrap_or(1500);
        let mac = config.mac.0;
        let endpoint = Endpoint {
            name: name.clone(),
            mac,
            addresses: Vec::new(),
            gateways: config.gateways.clone(),
            dhcp: config.dhcp,
            leased: None,
            stack: Stack::new(mac, mtu, config.dhcp, Time::ZERO),
            neighbours: Neighbours::default(),
            own: VecDeque::new(),
            own_bytes: 0,
            deadline: Some(Time::ZERO),
            counters: Counters::default(),
        };
        let capabilities = Capabilities {
            name: "l2",
            privileges: "",
            link_mtu: mtu,
            tx: TxLimits::default(),
            src_port: SrcPort::Any,
            sees_ip_id: true,
            recv_buffer: 0,
            qpn_block: None,
        };
        let timer = TimerFd::new()?;
        let mut this = Self { link, endpoint, timer, start, capabilities, _lock: lock };
        let own = config.own_addresses();
        if config.dad {
            this.find_duplicates(&own)?;
        }
        this.endpoint.addresses = own;
        this.endpoint.configure();
        if config.dhcp {
            this.wait_for_lease()?;
        }
        this.endpoint.announce(&mut *this.link);
        this.link.flush()?;
        Ok(this)
    }

    /// Its addresses: those of its configuration, and the one by DHCP.
    pub fn addresses(&self) -> &[Address] {
        &self.endpoint.addresses
    }

    /// What it is as an interface.
    pub fn interface(&self, name: &str, index: u32) -> Interface {
        Interface {
            name: name.into(),
            index,
            mac: Some(MacAddr(self.endpoint.mac)),
            mtu: u32::try_from(self.capabilities.link_mtu).unwrap_or(u32::MAX),
            up: true,
            running: true,
            loopback: false,
            addresses: self.endpoint.addresses.clone(),
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Fails if another host has one of these addresses, or would like to have it too.
    fn find_duplicates(&mut self, addresses: &[Address]) -> Result<(), NetError> {
        let begun = self.now();
        for at in [Duration::ZERO, DAD_TIME / 2] {
            for address in addresses {
                self.link.push(&[&probe(self.endpoint.mac, address.ip)]);
            }
            self.link.flush()?;
            self.work_until(begun + at + DAD_TIME / 2, |endpoint, seen| {
                let (address, mac) = match seen? {
                    Sighting::Has(ip, mac) => (ip, Some(Mac(mac))),
                    Sighting::Probes(ip, [0, 0, 0, 0, 0, 0]) => (ip, None),
                    Sighting::Probes(ip, mac) => (ip, Some(Mac(mac))),
                };
                // A bridge may bring its own frames back.
                let other = mac.is_none_or(|mac| mac.0 != endpoint.mac);
                (other && addresses.iter().any(|a| a.ip == address))
                    .then_some(L2Failure::AddressTaken { address, mac })
                    .map(Err)
            })?;
        }
        Ok(())
    }

    fn wait_for_lease(&mut self) -> Result<(), NetError> {
        let until = self.now() + DHCP_TIME;
        self.work_until(until, |endpoint, _| endpoint.leased.is_some().then_some(Ok(())))?;
        // The link-local address is always there.
        if self.endpoint.addresses.len() <= 1 {
            return Err(self.endpoint.failed(L2Failure::NoLease));
        }
        Ok(())
    }

    /// Processes frames until `until`, or until `done` says otherwise. It is asked after each frame,
    /// with what that says.
    fn work_until(
        &mut self,
        until: Time,
        mut done: impl FnMut(&Endpoint, Option<Sighting>) -> Option<Result<(), L2Failure>>,
    ) -> Result<(), NetError> {
        loop {
            let now = self.now();
            self.endpoint.tick(&mut *self.link, now);
            let mut result = done(&self.endpoint, None);
            while result.is_none() {
                let mut seen = None;
                let endpoint = &mut self.endpoint;
                if !self.link.next(&mut |frame| seen = Some(endpoint.other(frame, now)))? {
                    break;
                }
                self.endpoint.after_input(&mut *self.link, now);
                result = done(&self.endpoint, seen.flatten());
            }
            self.link.flush()?;
            if let Some(result) = result {
                return result.map_err(|reason| self.endpoint.failed(reason));
            }
            let now = self.now();
            if now >= until {
                return Ok(());
            }
            let wake = self.endpoint.deadline.map_or(until, |at| at.min(until));
            let wait = wake.since(now).max(Duration::from_millis(1));
            let wait = Timespec::try_from(wait).ok();
            let _ = poll(&mut [PollFd::new(self.link.shared(), PollFlags::IN)], wait.as_ref());
        }
    }
}

/// Takes the lock of an endpoint, if it has one.
fn lock(config: &L2Config) -> Result<Option<SharedFd>, L2Failure> {
    let Some(path) = &config.lock else { return Ok(None) };
    let file = File::create(path).map_err(L2Failure::Listen)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(SharedFd::guarded(OwnedFd::from(file)))),
        Err(_) => {
            let found = file.metadata().ok();
            let owner = found.and_then(|meta| port_owner::of_flock(meta.dev(), meta.ino()));
            Err(L2Failure::InUse { owner })
        }
    }
}

impl Endpoint {
    fn failed(&self, reason: L2Failure) -> NetError {
        NetError::L2 { link: self.name.clone(), reason }
    }

    fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.ip == ip)
    }

    fn configure(&mut self) {
        self.stack.set_addresses(&self.addresses, &self.gateways);
    }

    /// Tells all hosts its addresses, in case they knew another endpoint under them.
    fn announce(&self, link: &mut dyn Link) {
        for address in &self.addresses {
            link.push(&[&claim(self.mac, address.ip)]);
        }
    }

    /// The packet in a frame from the link, if it is for the engine.
    fn packet<'a>(&self, bytes: &'a [u8]) -> Option<Frame<'a>> {
        let (ethernet, packet) = Ethernet::parse(bytes).ok()?;
        let is_ip = matches!(ethernet.ethertype, Ethernet::IPV4 | Ethernet::IPV6);
        // A tag names another network, unless it only carries a priority.
        let tagged = ethernet.inner_vlan.is_some() || ethernet.vlan.is_some_and(|t| t.vid() != 0);
        if !is_ip || tagged || ethernet.dst.0 != self.mac {
            return None;
        }
        let datagram = frame::parse_ip(packet).ok()?;
        let frame = datagram.frame().ok()?;
        (self.has(frame.net.dst) && !frame.payload.is_empty()).then_some(frame)
    }

    /// Processes a frame that is not for the engine, and tells what it says about who has an address.
    fn other(&mut self, bytes: &[u8], now: Time) -> Option<Sighting> {
        self.stack.input(bytes, now);
        sighting(bytes)
    }

    /// Does what follows from a frame that is not for the engine.
    fn after_input(&mut self, link: &mut dyn Link, now: Time) {
        self.take_lease();
        self.output(link);
        self.deadline = self.next_deadline(now);
    }

    fn heard(&mut self, seen: Sighting, link: &mut dyn Link, now: Time) {
        match seen {
            Sighting::Has(ip, mac) => {
                for frame in self.neighbours.learn(ip, mac, now) {
                    self.count_sent_frame(link, &frame);
                }
            }
            Sighting::Probes(ip, mac) if self.has(ip) && mac != self.mac => {
                link.push(&[&claim(self.mac, ip)]);
            }
            Sighting::Probes(..) => {}
        }
    }

    /// Frames that waited are counted when they are sent.
    fn count_sent_frame(&mut self, link: &mut dyn Link, frame: &[u8]) {
        if link.push(&[frame]) {
            self.counters.tx_packets += 1;
        } else {
            count_lost(&mut self.counters, Loss::Down, 1);
        }
    }

    /// Does what is due.
    fn tick(&mut self, link: &mut dyn Link, now: Time) {
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
        self.output(link);
        self.deadline = self.next_deadline(now);
    }

    fn next_deadline(&mut self, now: Time) -> Option<Time> {
        let waits = (!self.own.is_empty()).then_some(now);
        [self.stack.deadline(now), self.neighbours.deadline(), waits].into_iter().flatten().min()
    }

    fn output(&mut self, link: &mut dyn Link) {
        while let Some(frame) = self.stack.output() {
            link.push(&[&frame]);
        }
    }

    fn take_lease(&mut self) {
        if !self.dhcp {
            return;
        }
        let Some(change) = self.stack.take_lease() else { return };
        let old = self.leased.take();
        self.addresses.retain(|a| Some(a.ip) != old);
        if let Some(Lease { ip, prefix_len, router }) = change {
            let ip = ip.into();
            if !self.has(ip) {
                let scope = Scope::Global;
                self.addresses.insert(0, Address { ip, prefix_len, scope, tentative: false });
                self.leased = Some(ip);
            }
            if let Some(router) = router {
                self.gateways.retain(IpAddr::is_ipv6);
                self.gateways.push(router.into());
            }
        }
        self.configure();
    }

    /// Asks for a host on the link.
    fn ask(&self, ip: IpAddr, link: &mut dyn Link) {
        let of_family = |a: &&Address| a.ip.is_ipv4() == ip.is_ipv4();
        let mut own = self.addresses.iter().filter(of_family);
        let own = own.clone().find(|a| a.is_near(ip)).or_else(|| own.next());
        if let Some(own) = own {
            link.push(&[&question(self.mac, own.ip, ip)]);
        }
    }

    /// The host on the link that packets to `dst` go to.
    fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        if self.addresses.iter().any(|a| a.is_near(dst)) {
            return Some(dst);
        }
        let beyond = !matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let gateway = self.gateways.iter().find(|g| g.is_ipv4() == dst.is_ipv4());
        gateway.copied().filter(|_| beyond)
    }

    /// Sends the packets of a burst, or has them wait.
    fn send(&mut self, link: &mut dyn Link, batch: &TxBatch, burst: &Burst, now: Time) {
        let (dst, packets) = (burst.net.dst, burst.packets());
        if dst.is_ipv4() != burst.net.src.is_ipv4() || !self.has(burst.net.src) {
            return count_lost(&mut self.counters, Loss::BadAddress, packets as u64);
        }
        if self.has(dst) {
            return self.send_to_itself(batch, burst);
        }
        let lookup = if dst.is_multicast() {
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
        for (net, bytes) in batch_packets(batch, burst) {
            let headers = Headers::plain(&net, bytes, self.mac, mac);
            let [ethernet, ip] = headers.parts();
            if link.push(&[ethernet, ip, bytes]) {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += bytes.len() as u64;
            } else {
                count_lost(&mut self.counters, Loss::Down, 1);
            }
        }
    }

    fn hold(&mut self, host: IpAddr, batch: &TxBatch, burst: &Burst) {
        for (net, bytes) in batch_packets(batch, burst) {
            let headers = Headers::plain(&net, bytes, self.mac, [0; 6]);
            let [ethernet, ip] = headers.parts();
            if !self.neighbours.wait(host, [ethernet, ip, bytes].concat()) {
                count_lost(&mut self.counters, Loss::NoBuffer, 1);
            }
        }
    }

    fn send_to_itself(&mut self, batch: &TxBatch, burst: &Burst) {
        for (net, bytes) in batch_packets(batch, burst) {
            if self.own_bytes + bytes.len() > MAX_OWN {
                count_lost(&mut self.counters, Loss::NoBuffer, 1);
                continue;
            }
            self.own_bytes += bytes.len();
            self.own.push_back((net, bytes.to_vec()));
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += bytes.len() as u64;
        }
        self.deadline = Some(Time::ZERO);
    }

    fn count_received(&mut self, frame: &Frame<'_>) {
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += frame.payload.len() as u64;
    }
}

/// Each packet of a burst with its own headers.
fn batch_packets<'a>(
    batch: &'a TxBatch,
    burst: &Burst,
) -> impl Iterator<Item = (NetHeader, &'a [u8])> + use<'a> {
    let payload = batch.bytes(burst);
    Frame { segment: burst.segment, ..Frame::single(burst.net, payload) }.packets()
}

impl Backend for L2Backend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let now = self.now();
        let Self { link, endpoint, .. } = self;
        let before = endpoint.deadline;
        endpoint.tick(&mut **link, now);
        let mut packets = 0;
        while packets < budget
            && let Some((net, bytes)) = endpoint.own.pop_front()
        {
            endpoint.own_bytes -= bytes.len();
            let frame = Frame::single(net, &bytes);
            endpoint.count_received(&frame);
            sink(&frame);
            packets += 1;
        }
        while packets < budget {
            let mut other = None;
            let more = link.next(&mut |bytes| match endpoint.packet(bytes) {
                Some(frame) => {
                    endpoint.count_received(&frame);
                    sink(&frame);
                }
                None => other = Some(endpoint.other(bytes, now)),
            })?;
            if !more {
                break;
            }
            packets += 1;
            if let Some(seen) = other {
                endpoint.after_input(&mut **link, now);
                if let Some(seen) = seen {
                    endpoint.heard(seen, &mut **link, now);
                }
            }
        }
        link.flush()?;
        if endpoint.own.is_empty() && endpoint.deadline == Some(Time::ZERO) {
            endpoint.deadline = endpoint.next_deadline(now);
        }
        if endpoint.deadline != before {
            self.set_timer(now);
        }
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let now = self.now();
        let before = self.endpoint.deadline;
        while let Some(burst) = batch.pending().first().cloned() {
            if !self.link.has_room() {
                self.link.flush()?;
                if !self.link.has_room() {
                    return Ok(SendStatus::Congested);
                }
            }
            self.endpoint.send(&mut *self.link, batch, &burst, now);
            batch.mark_sent(1);
        }
        self.link.flush()?;
        if self.endpoint.deadline != before {
            self.set_timer(now);
        }
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        f(self.link.shared());
        f(self.timer.shared());
    }

    fn counters(&self) -> Counters {
        self.endpoint.counters
    }
}

impl L2Backend {
    /// Wakes whoever sleeps when something is due.
    fn set_timer(&self, now: Time) {
        self.timer.set_after(self.endpoint.deadline.map(|at| at.since(now)));
    }
}
