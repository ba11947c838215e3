//! Hosts connected to one switch, in virtual time. Each host has a link with a rate and a delay.
//! The switch has a queue for each link, which marks and drops packets. Between a host and the
//! switch, packets pass a [`Fabric`] with fault rules.
//!
//! Invariants: the result depends only on the seed and on the calls. No packet arrives before the
//! delays of both links have passed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::Time;
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Ethernet, Frame, Mac, NetHeader, TxBatch, UDP_PORT};

use super::{Delivery, Egress, EgressQueue, Fabric, FabricCounters, Marking, Passage};
use crate::backend::SendStatus;
use crate::rng::Rng;
use crate::wrappers::fault::FaultRule;
use crate::wrappers::pcap::{Direction, PacketBlock, PcapWriter};

/// The number of unsent bytes on a host's link above which the host must wait.
const AHEAD: u64 = 16 << 10;

/// The configuration of the link between a host and the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The rate in each direction in Gbit/s, from 1 to 8,000.
    pub gigabits: u64,
    /// The propagation delay of the link.
    pub delay: Duration,
    /// The queue at the switch port towards the host.
    pub queue: EgressQueue,
}

/// 10 Gbit/s, 1 µs, and a queue of 300 kB with marking between 40 and 160 kB, as in the DCQCN
/// paper.
impl Default for LinkConfig {
    fn default() -> Self {
        let marking = Marking { kmin: 40_000, kmax: 160_000, pmax: 200 };
        let queue = EgressQueue { capacity: 300_000, marking };
        Self { gigabits: 10, delay: Duration::from_micros(1), queue }
    }
}

/// Counts of the packets that a [`SwitchedNetwork`] has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounters {
    /// The counts of the network's [`Fabric`].
    pub fabric: FabricCounters,
    /// Packets lost because a queue of the switch was full.
    pub overflowed: u64,
    /// Packets marked by the switch.
    pub marked: u64,
    /// Packets lost because no host has their destination address, or because a host is detached.
    pub unreachable: u64,
}

/// A network of hosts connected to one switch, in virtual time.
pub struct SwitchedNetwork {
    fabric: Fabric,
    rng: Rng,
    hosts: Vec<Host>,
    by_address: HashMap<IpAddr, usize>,
    /// Arrivals at hosts: the time, an order for simultaneous arrivals, and the host.
    arrivals: BinaryHeap<Reverse<(Time, u64, usize)>>,
    order: u64,
    counters: SwitchCounters,
    fingerprint: u64,
    capture: Option<PcapWriter<Box<dyn Write + Send>>>,
    capture_error: Option<io::Error>,
}

#[derive(Debug)]
struct Host {
    to_switch: Egress,
    from_switch: Egress,
    /// Packets that have arrived or will arrive, the earliest first.
    inbox: VecDeque<Delivery>,
    up: bool,
}

impl SwitchedNetwork {
    /// Creates a switch without hosts. All random decisions follow from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            fabric: Fabric::new(rng.next(), &[]),
            rng,
            hosts: Vec::new(),
            by_address: HashMap::new(),
            arrivals: BinaryHeap::new(),
            order: 0,
            counters: SwitchCounters::default(),
            fingerprint: 0xcbf2_9ce4_8422_2325,
            capture: None,
            capture_error: None,
        }
    }

    /// Connects a host and returns its number, counted from 0. An address that another host has
    /// moves to the new host.
    pub fn attach(&mut self, addresses: &[IpAddr], link: &LinkConfig) -> usize {
        let delay = u64::try_from(link.delay.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4);
        let number = self.hosts.len();
        self.hosts.push(Host {
            to_switch: Egress::new(link.gigabits, delay, None),
            from_switch: Egress::new(link.gigabits, delay, Some(link.queue)),
            inbox: VecDeque::new(),
            up: true,
        });
        self.by_address.extend(addresses.iter().map(|&address| (address, number)));
        number
    }

    /// Disconnects a host. Packets in transit to the host are lost, and so is everything it sends.
    pub fn detach(&mut self, host: usize) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.up = false;
            host.inbox.clear();
        }
    }

    /// Replaces the fault rules for packets sent from now on.
    pub fn set_rules(&mut self, rules: &[FaultRule]) {
        self.fabric.set_rules(rules);
    }

    /// Returns the fabric, which can cut and restore links.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Returns the counts so far.
    pub fn counters(&self) -> SwitchCounters {
        SwitchCounters { fabric: self.fabric.counters(), ..self.counters }
    }

    /// Returns a hash of all packets so far and their times. Equal hashes mean equal runs.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Starts a pcapng capture in `out` of each packet as it leaves its host, with virtual times.
    ///
    /// # Errors
    /// Fails if `out` cannot be written.
    pub fn capture(&mut self, out: Box<dyn Write + Send>) -> io::Result<()> {
        self.capture = Some(PcapWriter::new(out, "cluster")?);
        Ok(())
    }

    /// Ends the capture and flushes its output.
    ///
    /// # Errors
    /// Fails if a packet could not be written, also earlier.
    pub fn end_capture(&mut self) -> io::Result<()> {
        let Some(mut capture) = self.capture.take() else { return Ok(()) };
        match self.capture_error.take() {
            Some(e) => Err(e),
            None => capture.flush(),
        }
    }

    /// Sends packets of a host from the front of the batch. On [`SendStatus::Blocked`], the host's
    /// link is busy until [`SwitchedNetwork::idle_at`].
    pub fn send(&mut self, now: Time, from: usize, batch: &mut TxBatch) -> SendStatus {
        let mut sent = 0;
        for frame in batch.frames() {
            let nanos = now.as_nanos();
            if self.hosts.get(from).is_some_and(|host| host.to_switch.length(nanos) > AHEAD) {
                break;
            }
            for (net, bytes) in frame.packets() {
                self.leave(now, from, net, bytes);
            }
            sent += 1;
        }
        let all = sent == batch.pending().len();
        batch.mark_sent(sent);
        if all { SendStatus::Done } else { SendStatus::Blocked }
    }

    /// Returns the time at which the host's link has sent everything.
    pub fn idle_at(&self, host: usize) -> Time {
        let nanos = self.hosts.get(host).map_or(0, |host| host.to_switch.idle_at());
        Time::from_nanos(nanos)
    }

    /// Returns the time of the next event: a packet reaches the switch or a host.
    pub fn next_event(&self) -> Option<Time> {
        let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        [self.fabric.next_delivery(), arrival].into_iter().flatten().min()
    }

    /// Processes all events until `now`, or until a packet arrives at a host. Returns that host;
    /// call again until `None`.
    pub fn advance(&mut self, now: Time) -> Option<usize> {
        while let Some(delivery) = self.fabric.pop(now) {
            self.forward(delivery);
        }
        while let Some(&Reverse((at, _, host))) = self.arrivals.peek()
            && at <= now
        {
            self.arrivals.pop();
            let waits = self.hosts.get(host).and_then(|host| host.inbox.front());
            if waits.is_some_and(|delivery| delivery.at() <= now) {
                return Some(host);
            }
        }
        None
    }

    /// Removes the next packet that has arrived at a host by `now`.
    pub fn receive(&mut self, now: Time, host: usize) -> Option<Delivery> {
        let inbox = &mut self.hosts.get_mut(host)?.inbox;
        if inbox.front()?.at() <= now { inbox.pop_front() } else { None }
    }

    /// Sends a packet from its host towards the switch.
    fn leave(&mut self, now: Time, from: usize, net: NetHeader, bytes: &[u8]) {
        let Some(host) = self.hosts.get_mut(from).filter(|host| host.up) else {
            self.counters.unreachable += 1;
            return;
        };
        let size = Egress::size_on_link(bytes.len());
        let passage = host.to_switch.send(now.as_nanos(), size, false, &mut self.rng);
        let Passage::Sent { arrives, .. } = passage else { return };
        self.note(arrives, &net, bytes);
        self.write(now, from, &net, bytes);
        self.fabric.send_frame(Time::from_nanos(arrives), &Frame::single(net, bytes));
    }

    /// Forwards a packet that has reached the switch to its destination host.
    fn forward(&mut self, mut delivery: Delivery) {
        let to = self.by_address.get(&delivery.net.dst).copied();
        let Some((to, host)) = to.and_then(|to| Some((to, self.hosts.get_mut(to)?))) else {
            self.counters.unreachable += 1;
            return;
        };
        if !host.up {
            self.counters.unreachable += 1;
            return;
        }
        let size = Egress::size_on_link(delivery.bytes.len());
        let capable = delivery.net.tos & 0b11 != 0;
        match host.from_switch.send(delivery.at.as_nanos(), size, capable, &mut self.rng) {
            Passage::Lost => self.counters.overflowed += 1,
            Passage::Sent { arrives, marked } => {
                if marked {
                    self.counters.marked += 1;
                    delivery.net.tos |= 0b11;
                }
                delivery.at = Time::from_nanos(arrives);
                self.order += 1;
                self.arrivals.push(Reverse((delivery.at, self.order, to)));
                host.inbox.push_back(delivery);
            }
        }
    }

    /// Adds a packet to the fingerprint. The packet's ICRC stands for its contents.
    fn note(&mut self, at: u64, net: &NetHeader, bytes: &[u8]) {
        let icrc = bytes.last_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
        let ports = u64::from(net.src_port) << 32 ^ u64::from(net.tos);
        for word in [at, icrc, bytes.len() as u64, ports] {
            self.fingerprint = Rng::new(self.fingerprint ^ word).next();
        }
    }

    fn write(&mut self, now: Time, from: usize, net: &NetHeader, bytes: &[u8]) {
        let Some(capture) = &mut self.capture else { return };
        let mac = |host: usize| {
            let [.., a, b, c] = host.to_be_bytes();
            Mac([2, 0, 0, a, b, c])
        };
        let to = self.by_address.get(&net.dst).map_or(Mac([0xff; 6]), |&to| mac(to));
        let ethernet = Ethernet { src: mac(from), dst: to, ..Ethernet::default() };
        let mut frame = Vec::new();
        emit_ethernet(&ethernet, net, UDP_PORT, UdpChecksum::None, bytes, &mut frame);
        let at = now.since(Time::ZERO);
        let block = PacketBlock {
            at,
            interface: 0,
            direction: Direction::Outbound,
            frame: &frame,
            comments: &[],
        };
        if let Err(e) = capture.write(&block) {
            self.capture_error.get_or_insert(e);
        }
    }
}

#[cfg(test)]
mod tests;
