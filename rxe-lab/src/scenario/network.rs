//! The network between the hosts, in virtual time.
//!
//! A packet passes the outgoing faults of its host, then the capture, then travels, then passes the
//! incoming faults of the destination. So a packet lost to an outgoing fault is missing from the
//! capture, and one lost to an incoming fault is in the capture but was not received.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::engine::Event;
use rxe_core::qp::QpHandle;
use rxe_core::queue::{Completion, CompletionQueue};
use rxe_core::types::{CompletionOp, Qpn, Status, Time};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet, parse_ethernet};
use rxe_core::wire::{DropReason, Ethernet, Frame, Mac, NetHeader, TxBatch, TxLimits, UDP_PORT};
use rxe_net::{Fabric, FaultAction, FaultAmount, FaultPath, FaultRule, PathCounters};

use super::error::{Mistake, Result};
use super::host::Device;
use super::{Bounds, Generated, GeneratedFrame};

/// A host and its end of the network.
pub(super) struct Port {
    pub(super) device: Device,
    pub(super) out: FaultPath,
    pub(super) into: FaultPath,
    pub(super) mac: Mac,
    /// The time at which the link is free again.
    free: Time,
}

impl Port {
    pub(super) fn new(index: u8, device: Device, out: FaultPath, into: FaultPath) -> Self {
        let mac = Mac([2, 0, 0, 0, 0, index]);
        Self { device, out, into, mac, free: Time::ZERO }
    }
}

/// Counts the completions and events of a host.
pub(super) struct Completions {
    pub(super) cq: Arc<CompletionQueue>,
    /// The name of the host.
    pub(super) host: String,
    /// The names of the host's queue pairs.
    pub(super) pairs: BTreeMap<Qpn, String>,
}

impl Completions {
    /// Counts the new completions.
    /// If they were caused by a packet, the latest frame with its bytes that left by the given time
    /// gets a comment.
    fn take(&self, made: &mut Generated, packet: Option<(Duration, &[u8])>) {
        while let Some(completion) = self.cq.poll() {
            let Some(pair) = self.pairs.get(&completion.qpn) else { continue };
            let key = (pair.clone(), completion.status.verbs_str());
            *made.completions.entry(key).or_default() += 1;
            let Some((left, bytes)) = packet else { continue };
            if let Some(frame) = captured(&mut made.frames, left, bytes) {
                frame.comments.push(format!("{pair}: {}", how(&completion)));
            }
        }
    }

    /// Counts a packet that the engine dropped or refused.
    fn note(&self, made: &mut Generated, event: &Event) {
        let what = match event {
            Event::Dropped { reason, .. } => dropped(*reason),
            Event::NakSent { error, .. } => format!("NAK: {error}"),
            _ => return,
        };
        self.count(made, event.qpn(), what);
    }

    /// Counts a packet under the name of its queue pair, or of the host if it has none.
    fn count(&self, made: &mut Generated, qpn: Option<Qpn>, what: String) {
        let pair = qpn.and_then(|qpn| self.pairs.get(&qpn)).cloned();
        let whose = pair.unwrap_or_else(|| format!("host {}", self.host));
        *made.unaccepted.entry((whose, what)).or_default() += 1;
    }
}

/// Returns the latest frame with these bytes that left by the given time.
fn captured<'f>(
    frames: &'f mut [GeneratedFrame],
    left: Duration,
    bytes: &[u8],
) -> Option<&'f mut GeneratedFrame> {
    frames.iter_mut().rev().find(|it| it.at <= left && it.bytes.ends_with(bytes))
}

/// Returns the names of the faults that were counted for one packet.
fn hits(before: PathCounters, after: PathCounters) -> impl Iterator<Item = &'static str> {
    let counts = [
        ("lost", before.lost, after.lost),
        ("duplicated", before.duplicated, after.duplicated),
        ("overtaken", before.reordered, after.reordered),
        ("damaged", before.corrupted, after.corrupted),
        ("marked", before.marked, after.marked),
    ];
    counts.into_iter().filter(|(_, before, after)| after > before).map(|(name, ..)| name)
}

/// Returns the reason under which a dropped packet is counted.
fn dropped(reason: DropReason) -> String {
    format!("dropped: {}", reason.name())
}

/// Returns why a device drops this frame because of its headers up to UDP, if it does.
fn spoiled(frame: &[u8]) -> Option<DropReason> {
    let (_, datagram) = match parse_ethernet(frame) {
        Ok(parsed) => parsed,
        Err(reason) => return Some(reason),
    };
    datagram.frame().err()
}

/// Describes a completion in words.
fn how(completion: &Completion) -> String {
    let what = match (completion.status, completion.op) {
        (Status::Success, CompletionOp::Recv | CompletionOp::RecvRdmaWithImm) => "receive complete",
        (Status::Success, _) => "request complete",
        // A completion with an error does not state whether it was a request or a receive.
        _ => "completed with an error",
    };
    format!("{what}: {}", completion.status.verbs_str())
}

/// The hosts and the network between them.
pub(super) struct World {
    pub(super) ports: Vec<Port>,
    pub(super) now: Time,
    /// The queue pairs of hosts with engines.
    pub(super) queue_pairs: Vec<Arc<QpHandle>>,
    /// The counters of each host.
    pub(super) completions: Vec<Completions>,
    /// The time that a packet travels.
    delay: Duration,
    fabric: Fabric,
    /// The rate at which a host sends, in bits per second.
    rate: u64,
    batch: TxBatch,
    start: Duration,
    origin: Time,
    bounds: Bounds,
    bytes: usize,
    pub(super) made: Generated,
}

impl World {
    pub(super) fn new(
        ports: Vec<Port>,
        delay: Duration,
        rate: u64,
        start: Duration,
        now: Time,
        bounds: Bounds,
    ) -> Self {
        let travel = FaultAction::Delay { base: delay, jitter: Duration::ZERO };
        let travel = FaultRule::new(travel, FaultAmount::ALL);
        Self {
            ports,
            now,
            queue_pairs: Vec::new(),
            completions: Vec::new(),
            delay,
            fabric: Fabric::new(0, &[travel]),
            rate,
            batch: TxBatch::new(TxLimits { burst_segments: 1, ..TxLimits::default() }),
            start,
            origin: now,
            bounds,
            bytes: 0,
            made: Generated::default(),
        }
    }

    /// Lets time pass until `until`.
    /// With `idle`, stops when nothing is in flight and no work request is outstanding.
    pub(super) fn run(&mut self, until: Time, idle: bool, step: &Range<usize>) -> Result<()> {
        loop {
            while self.turn(step)? {}
            if idle && self.is_idle() {
                return Ok(());
            }
            let engines = self.ports.iter().filter_map(|p| p.device.engine.poll_timeout());
            let paths = self.ports.iter().flat_map(|p| [&p.out, &p.into]);
            let paths = paths.filter_map(FaultPath::next_delivery);
            let next = engines.chain(paths).chain(self.fabric.next_delivery()).min();
            match next.filter(|next| *next <= until) {
                Some(next) => self.now = self.now.max(next),
                None => {
                    self.now = until;
                    return Ok(());
                }
            }
            for port in &mut self.ports {
                port.device.engine.handle_timeout(self.now);
            }
        }
    }

    /// Returns whether nothing is in flight and no work request is outstanding.
    fn is_idle(&self) -> bool {
        let paths = self.ports.iter().flat_map(|p| [&p.out, &p.into]);
        let under_way =
            paths.filter_map(FaultPath::next_delivery).chain(self.fabric.next_delivery());
        under_way.count() == 0 && self.queue_pairs.iter().all(|qp| qp.sends_outstanding() == 0)
    }

    /// Processes everything due at the current time. Returns whether there was anything.
    fn turn(&mut self, step: &Range<usize>) -> Result<bool> {
        let mut worked = false;
        self.take_completions();
        for at in 0..self.ports.len() {
            let port = &mut self.ports[at];
            port.device.engine.poll_transmit(self.now, &mut self.batch);
            for frame in self.batch.frames() {
                port.out.take(self.now, &frame);
                worked = true;
            }
            self.batch.clear();
            while let Some((net, bytes)) = self.ports[at].out.pop(self.now) {
                worked = true;
                self.leave(at, net, &bytes, None, step)?;
            }
        }
        // Take earlier completions first: the packets delivered below did not cause them.
        self.take_completions();
        // A packet that arrives now left its host at least `delay` ago.
        let left = self.start + self.now.since(self.origin + self.delay);
        let (ports, frames) = (&mut self.ports, &mut self.made.frames);
        let now = self.now;
        self.fabric.deliver(now, |net, bytes| {
            worked = true;
            // A multicast packet goes to every host but its sender.
            let is_for = |port: &&mut Port| match net.dst.is_multicast() {
                true => port.device.address != net.src,
                false => port.device.address == net.dst,
            };
            for port in ports.iter_mut().filter(is_for) {
                let before = port.into.counters();
                port.into.take(now, &Frame::single(net, bytes));
                let mut hits = hits(before, port.into.counters()).peekable();
                // Few packets are hit, so the frame is not looked for before.
                if hits.peek().is_some()
                    && let Some(frame) = captured(frames, left, bytes)
                {
                    frame.faults.extend(hits);
                }
            }
        });
        for (port, completions) in ports.iter_mut().zip(&self.completions) {
            while let Some((net, bytes)) = port.into.pop(now) {
                worked = true;
                if port.device.answers {
                    port.device.engine.handle_frame(now, &Frame::single(net, &bytes));
                    completions.take(&mut self.made, Some((left, &bytes)));
                }
            }
            // The scenario has no communication manager: discard what QP 1 received.
            while port.device.engine.poll_mad().is_some() {}
            while let Some(event) = port.device.engine.poll_event() {
                completions.note(&mut self.made, &event);
            }
        }
        Ok(worked)
    }

    /// Counts completions that no packet caused.
    pub(super) fn take_completions(&mut self) {
        for it in &self.completions {
            it.take(&mut self.made, None);
        }
    }

    /// Sends a packet from a host. `whole` is its frame if the frame is not the usual one.
    pub(super) fn leave(
        &mut self,
        at: usize,
        net: NetHeader,
        bytes: &[u8],
        whole: Option<Vec<u8>>,
        step: &Range<usize>,
    ) -> Result<()> {
        let spoiled = whole.as_ref().and_then(|frame| spoiled(frame));
        let frame = whole.unwrap_or_else(|| {
            let mut frame = Vec::new();
            let ethernet =
                Ethernet { src: self.ports[at].mac, dst: self.mac(net.dst), ..Ethernet::default() };
            emit_ethernet(&ethernet, &net, UDP_PORT, UdpChecksum::None, bytes, &mut frame);
            frame
        });
        self.bytes += frame.len();
        if self.made.frames.len() == self.bounds.frames || self.bytes > self.bounds.bytes {
            let Bounds { frames, bytes, .. } = self.bounds;
            let text =
                format!("more than {frames} frames or {bytes} bytes: make the scenario smaller");
            return Err(Mistake::new(step.clone(), text));
        }
        let port = &mut self.ports[at];
        let left = self.now.max(port.free);
        let nanos = frame.len() as u64 * 8 * 1_000_000_000 / self.rate;
        port.free = left + Duration::from_nanos(nanos);
        let at = self.wall(left);
        if at.as_secs() > u32::MAX.into() {
            let text = "the seconds since 1970 of a frame in a capture have 32 bits, and this one leaves \
                        later: let the scenario `start` earlier";
            return Err(Mistake::new(step.clone(), text));
        }
        self.made.frames.push(GeneratedFrame {
            at,
            bytes: frame,
            comments: Vec::new(),
            faults: Vec::new(),
        });
        match spoiled {
            None => self.fabric.send_frame(left, &Frame::single(net, bytes)),
            Some(reason) => self.drop_before_engine(net.dst, reason),
        }
        Ok(())
    }

    /// Counts a frame that the device with this address drops before its engine.
    fn drop_before_engine(&mut self, address: IpAddr, reason: DropReason) {
        let is_it = |(port, _): &(&Port, _)| port.device.address == address && port.device.answers;
        if let Some((_, host)) = self.ports.iter().zip(&self.completions).find(is_it) {
            host.count(&mut self.made, None, dropped(reason));
        }
    }

    /// Converts a virtual time to a time since the Unix epoch.
    pub(super) fn wall(&self, at: Time) -> Duration {
        self.start + at.since(self.origin)
    }

    /// Returns the time at which the last packet of a host has left.
    pub(super) fn left(&self, at: usize) -> Time {
        self.ports[at].free
    }

    /// Returns the Ethernet address of the host with this IP address.
    pub(super) fn mac(&self, address: IpAddr) -> Mac {
        let port = self.ports.iter().find(|port| port.device.address == address);
        port.map_or(Mac([2, 0, 0, 0, 0, 0xff]), |port| port.mac)
    }

    /// Returns the result, with frames in the order of time.
    pub(super) fn finish(mut self) -> Generated {
        self.made.frames.sort_by_key(|frame| frame.at);
        self.made
    }
}
