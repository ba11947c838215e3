//! Executes the steps of a scenario.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::qp::QpState;
use rxe_core::queue::{
    Datagram, Payload, Placement, RecvRequest, Remote, SendFlags, SendOp, SendRequest,
};
use rxe_core::types::{AddressVector, Gid, Key, Qkey, Time};
use rxe_net::{Direction, FaultPath, FaultRule, Rng};
use toml::Spanned;

use crate::check::Kind;
use crate::replay::{self, Responder};

use super::description::{Description, Operation, Packet, Receive, Service, Step, time};
use super::error::{Mistake, Result};
use super::faults::faults;
use super::field::Place;
use super::host::{self, Made, PD, Pair};
use super::network::{Completions, Port, World};
use super::packet::{self, Ends};
use super::{Bounds, Generated};

/// The deepest nesting of repetitions.
const MAX_DEPTH: usize = 8;

/// The longest duration of a scenario, in virtual time.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// A scenario that is being executed.
struct Run<'d> {
    names: Vec<&'d String>,
    world: World,
    pairs: BTreeMap<String, Pair>,
    rng: Rng,
    /// How many packets each step has built, by the step's position in the text.
    counts: BTreeMap<usize, u64>,
    /// How long to wait for packets and requests in flight.
    limit: Duration,
    steps_left: usize,
    /// Warnings, by the position of the step in the text and the index of the host.
    warnings: RefCell<BTreeMap<(usize, usize), Mistake>>,
}

/// Executes a scenario. Returns warnings too.
pub(super) fn run(it: &Description, bounds: Bounds) -> Result<(Generated, Vec<Mistake>)> {
    let names: Vec<_> = it.hosts.keys().collect();
    if names.len() > 64 {
        return Err(Mistake::new(0..0, "a scenario has at most 64 hosts"));
    }
    host::check_addresses(&it.hosts)?;
    let origin = Time::from_nanos(1_000_000);
    let mut memory = bounds.memory;
    let mut devices = Vec::new();
    for (index, host) in (0..).zip(it.hosts.values()) {
        devices.push(host::device(index, host, &mut memory)?);
    }
    let pairs = host::pairs(it, &names, &mut devices, origin)?;
    let mut rng = Rng::new(it.seed);
    let mut ports = Vec::new();
    for (index, (host, device)) in (1..).zip(it.hosts.values().zip(devices)) {
        let rules = match &host.faults {
            None => Vec::new(),
            Some(text) => read_faults(text)?,
        };
        let seed = rng.next();
        let path = |direction| FaultPath::new(seed, &rules, direction);
        let (out, into) = (path(Direction::Outbound), path(Direction::Inbound));
        ports.push(Port::new(index, device, out, into));
    }
    let delay = it.network.delay.as_ref().map_or(Ok(Duration::from_micros(10)), time)?;
    let rate = match &it.network.rate {
        None => 10_000_000_000,
        Some(rate) if *rate.get_ref() < 1000 => {
            return Err(Mistake::at(rate, "a rate in bits a second: at least 1000"));
        }
        Some(rate) => *rate.get_ref(),
    };
    let limit = it.limit.as_ref().map_or(Ok(Duration::from_secs(10)), time)?;
    let start = Duration::from_secs(it.start.into());
    let mut world = World::new(ports, delay, rate, start, origin, bounds);
    let made = pairs.values().filter_map(|pair| pair.made.as_ref());
    world.queue_pairs = made.map(|made| made.handle.clone()).collect();
    world.completions = completions(&world.ports, &names, &pairs);
    world.made.findings = findings(&it.findings)?;
    let counts = BTreeMap::new();
    let steps_left = bounds.frames;
    if it.steps.is_empty() {
        return Err(Mistake::new(
            0..0,
            "it has no steps, so it makes no packets: write `steps = [ … ]`",
        ));
    }
    let warnings = RefCell::default();
    let mut run = Run { names, world, pairs, rng, counts, limit, steps_left, warnings };
    run.steps(&it.steps, 0)?;
    let last = it.steps.last().map_or(0..0, Spanned::span);
    let end = run.world.now + run.limit;
    run.world.run(end, true, &last)?;
    run.world.take_completions();
    let responders = run.pairs.values().map(|pair| run.responder(pair, delay)).collect();
    let states = run.states();
    let mut made = run.world.finish();
    made.states = states;
    made.responders = responders;
    Ok((made, run.warnings.into_inner().into_values().collect()))
}

/// Creates the completion counters of each host.
fn completions(
    ports: &[Port],
    names: &[&String],
    pairs: &BTreeMap<String, Pair>,
) -> Vec<Completions> {
    let named = |host| {
        let here = pairs.iter().filter(move |(_, pair)| pair.host == host);
        here.map(|(name, pair)| (pair.qpn, name.clone())).collect()
    };
    let of = |(host, port): (usize, &Port)| Completions {
        cq: Arc::clone(&port.device.cq),
        host: names[host].clone(),
        pairs: named(host),
    };
    ports.iter().enumerate().map(of).collect()
}

/// Returns the findings that the scenario announces.
fn findings(names: &[Spanned<String>]) -> Result<Vec<Kind>> {
    let find = |name: &Spanned<String>| {
        let found = Kind::ALL.iter().find(|kind| kind.name() == name.get_ref()).copied();
        found.ok_or_else(|| {
            let all: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            let text = format!("there is no finding {:?}: {}", name.get_ref(), all.join(", "));
            Mistake::at(name, text)
        })
    };
    names.iter().map(find).collect()
}

fn read_faults(text: &Spanned<String>) -> Result<Vec<FaultRule>> {
    // The column counts from the opening quotation mark, at which the span begins.
    faults(text.get_ref()).map_err(|(column, why)| Mistake::at(text, why).beyond(column))
}

impl Run<'_> {
    fn steps(&mut self, steps: &[Spanned<Step>], depth: usize) -> Result<()> {
        for step in steps {
            let span = step.span();
            self.steps_left = self.steps_left.checked_sub(1).ok_or_else(|| {
                Mistake::new(span.clone(), "there are too many steps: repeat fewer of them")
            })?;
            self.step(step.get_ref(), &span, depth)?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, span: &Range<usize>, depth: usize) -> Result<()> {
        match step {
            Step::Receive(receive) => self.receive(receive, span),
            Step::Packet(packet) => {
                for _ in 0..packet.count {
                    self.packet(packet, span)?;
                }
                Ok(())
            }
            Step::Wait(text) if text.get_ref().is_empty() => {
                let end = self.world.now + self.limit;
                self.world.run(end, true, span)?;
                self.world.take_completions();
                self.in_time(span)
            }
            Step::Wait(text) => {
                let end = self.world.now + time(text)?;
                self.world.run(end, false, span)?;
                self.world.take_completions();
                self.in_time(span)
            }
            Step::Repeat(repeat) => {
                if depth == MAX_DEPTH {
                    let text = format!("repetitions are nested at most {MAX_DEPTH} deep");
                    return Err(Mistake::new(span.clone(), text));
                }
                if repeat.steps.is_empty() {
                    return Ok(());
                }
                (0..repeat.times).try_for_each(|_| self.steps(&repeat.steps, depth + 1))
            }
            Step::Send(op)
            | Step::SendInvalidate(op)
            | Step::Write(op)
            | Step::Read(op)
            | Step::CompareSwap(op)
            | Step::FetchAdd(op)
            | Step::AtomicWrite(op)
            | Step::Flush(op) => (0..op.count).try_for_each(|_| self.operation(step, op, span)),
        }
    }

    /// Returns the states of the queue pairs that engines have.
    fn states(&self) -> BTreeMap<String, QpState> {
        let state = |(name, pair): (&String, &Pair)| {
            let engine = &self.world.ports[pair.host].device.engine;
            Some((name.clone(), engine.qp_state(pair.qpn)?))
        };
        self.pairs.iter().filter_map(state).collect()
    }

    /// Returns a queue pair as responder. Packets arrive `delay` after they have left.
    fn responder(&self, pair: &Pair, delay: Duration) -> Responder {
        let peer = pair.peer.as_ref().and_then(|name| self.pairs.get(name));
        let region = self.world.ports[pair.host].device.region;
        let engine = pair.made.as_ref().map(|_| replay::Region {
            start: region.start,
            len: region.len,
            rkey: region.key.value(),
            access: u8::try_from(region.access.bits() & 0xf).unwrap_or(0),
        });
        let receives = pair.receives.borrow();
        let receives =
            receives.iter().map(|(at, it)| (self.world.wall(*at).saturating_sub(delay), *it));
        Responder {
            address: self.world.ports[pair.host].device.address,
            qpn: pair.qpn.value(),
            peer_qpn: peer.map(|peer| peer.qpn.value()),
            first_psn: peer.map_or(0, |peer| peer.psn.value()),
            path_mtu: pair.path_mtu,
            engine,
            receives: receives.collect(),
        }
    }

    /// Checks that the scenario has not lasted longer than [`MAX_TIME`].
    fn in_time(&self, span: &Range<usize>) -> Result<()> {
        if self.world.now.since(Time::ZERO) < MAX_TIME {
            return Ok(());
        }
        Err(Mistake::new(span.clone(), "the scenario lasts longer than an hour: wait less"))
    }

    fn pair(&self, name: &Spanned<String>) -> Result<&Pair> {
        let missing = || Mistake::at(name, format!("there is no [qps.{}]", name.get_ref()));
        self.pairs.get(name.get_ref()).ok_or_else(missing)
    }

    /// Returns a queue pair and the engine's part of it; fails if the host has no engine.
    fn made(&self, name: &Spanned<String>) -> Result<(&Pair, &Made)> {
        let pair = self.pair(name)?;
        let text = "its host has no engine (engine = false): only packets can be sent from it";
        Ok((pair, pair.made.as_ref().ok_or_else(|| Mistake::at(name, text))?))
    }

    fn receive(&self, it: &Receive, span: &Range<usize>) -> Result<()> {
        let (pair, made) = self.made(&it.qp)?;
        let region = self.world.ports[pair.host].device.region;
        if it.lkey.is_none() {
            self.check_memory(pair.host, it.offset, *it.bytes.get_ref(), span);
        }
        for id in 0..it.count {
            let sges = [region.sge(it.offset, *it.bytes.get_ref(), it.lkey)].into_iter().collect();
            let request = RecvRequest { id: id.into(), sges };
            let posted = match &made.srq {
                Some(srq) => srq.post_recv(request),
                None => made.handle.post_recv(request),
            };
            posted.map_err(|e| Mistake::of_post(&e, span))?;
            let is_usable = it.lkey.is_none_or(|key| key == region.key.value());
            let receive = replay::Receive { len: (*it.bytes.get_ref()).into(), is_usable };
            pair.receives.borrow_mut().push((self.world.now, receive));
        }
        Ok(())
    }

    /// Warns if a host has too little memory for `length` bytes at this offset.
    fn check_memory(&self, host: usize, offset: u64, length: u32, span: &Range<usize>) {
        let device = &self.world.ports[host].device;
        let needed = offset.saturating_add(length.into());
        if length == 0 || needed <= device.region.len || !device.answers {
            return;
        }
        let (name, memory) = (self.names[host], device.region.len);
        let warning = || {
            let text = format!(
                "[hosts.{name}] has {memory} bytes of memory, and this step accesses {length} bytes at \
                 offset {offset}, which fails: write `memory = {needed}` there if it should not"
            );
            Mistake::new(span.clone(), text)
        };
        self.warnings.borrow_mut().entry((span.start, host)).or_insert_with(warning);
    }

    /// Posts a work request.
    fn operation(&self, step: &Step, it: &Operation, span: &Range<usize>) -> Result<()> {
        let (pair, made) = self.made(&it.qp)?;
        let device = &self.world.ports[pair.host].device;
        let peer_name = it.to.as_ref().map(|to| to.get_ref()).or(pair.peer.as_ref());
        let peer = match (&it.to, peer_name) {
            (Some(to), _) => Some(self.pair(to)?),
            (None, Some(name)) => self.pairs.get(name),
            (None, None) => None,
        };
        let region = peer.map(|peer| self.world.ports[peer.host].device.region);
        let offset = it.remote_offset.as_ref().map_or(0, |offset| *offset.get_ref());
        let start = region.map_or(0, |region| region.start);
        let remote = Remote {
            addr: it.va.as_ref().map_or(start.wrapping_add(offset), |va| *va.get_ref()),
            rkey: match (&it.rkey, region) {
                (Some(key), _) => Key::new(*key.get_ref()),
                (None, Some(region)) => region.key,
                (None, None) => Key::new(0),
            },
        };
        let imm = it.imm.as_ref().map(|imm| *imm.get_ref());
        let number = |value: &Option<Spanned<u64>>| value.as_ref().map_or(0, |n| *n.get_ref());
        let bytes = it.bytes.as_ref().map_or(0, |bytes| *bytes.get_ref());
        let (op, length, used) = match step {
            Step::Send(_) => (SendOp::Send { imm }, bytes, "bytes imm to"),
            Step::SendInvalidate(_) => {
                (SendOp::SendInvalidate { rkey: remote.rkey }, bytes, "bytes rkey")
            }
            Step::Write(_) => (SendOp::Write { remote, imm }, bytes, "bytes imm remote"),
            Step::Read(_) => (SendOp::Read { remote }, bytes, "bytes remote"),
            Step::CompareSwap(_) => {
                let (compare, swap) = (number(&it.compare), number(&it.swap));
                (SendOp::CompareSwap { remote, compare, swap }, 8, "remote compare swap")
            }
            Step::FetchAdd(_) => {
                (SendOp::FetchAdd { remote, add: number(&it.add) }, 8, "remote add")
            }
            Step::AtomicWrite(_) => (SendOp::AtomicWrite { remote }, 8, "remote"),
            _ => {
                let placement = Placement::GLOBAL;
                let whole_region = false;
                let op = SendOp::Flush { remote, length: bytes, placement, whole_region };
                (op, 0, "bytes remote")
            }
        };
        unused(it, used)?;
        self.check_memory(pair.host, it.offset, length, span);
        // With `va` or `rkey`, the access may be meant to fail.
        if let Some(peer) = peer
            && used.contains("remote")
            && it.va.is_none()
            && it.rkey.is_none()
        {
            let length = if let SendOp::Flush { length, .. } = &op { *length } else { length };
            self.check_memory(peer.host, offset, length, span);
        }
        let sges = match length {
            0 => Payload::Sges(std::iter::empty().collect()),
            _ => Payload::Sges([device.region.sge(it.offset, length, None)].into_iter().collect()),
        };
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SOLICITED, it.solicited);
        flags.set(SendFlags::FENCE, it.fence);
        let mut request = SendRequest { flags, ..SendRequest::new(0, op, sges) };
        match (pair.service, peer) {
            (Service::Ud, Some(to)) => {
                let address = self.world.ports[to.host].device.address;
                host::check_versions(device.address, address)
                    .map_err(|text| Mistake::at(it.to.as_ref().unwrap_or(&it.qp), text))?;
                let av = AddressVector {
                    sgid_index: 0,
                    dgid: Gid::from(address),
                    flow_label: 0,
                    traffic_class: 0,
                    hop_limit: 64,
                };
                let ah = device.engine.create_ah(PD, &av);
                let ah = ah.map_err(|e| Mistake::at(&it.qp, e.to_string()))?;
                request.to = Some(Datagram { ah, qpn: to.qpn, qkey: Qkey::new(to.qkey) });
            }
            (Service::Ud, None) => {
                return Err(Mistake::at(&it.qp, "a datagram needs a destination: to = \"QP\""));
            }
            (Service::XrcSend, Some(to)) => request.xrc_srq = Some(to.qpn.value()),
            _ => {}
        }
        let posted = made.handle.post_send(request);
        posted.map_err(|e| Mistake::of_post(&e, span))
    }

    fn packet(&mut self, it: &Packet, span: &Range<usize>) -> Result<()> {
        if let Some(after) = &it.after {
            let end = self.world.now + time(after)?;
            self.world.run(end, false, span)?;
            self.in_time(span)?;
        }
        let (from, ends) = self.ends(it, span)?;
        let nth = self.counts.entry(span.start).or_default();
        let mut place = Place { nth: *nth, psn: 0, rng: &mut self.rng };
        *nth += 1;
        let built = packet::build(it, span, &ends, &mut place)?;
        self.world.leave(from, built.net, &built.bytes, Some(built.frame), span)?;
        // Let time pass until the packet has left, so that packets of several hosts keep their order.
        let left = self.world.left(from);
        self.world.run(left, false, span)
    }

    /// Returns the index of the sending host, and the source and destination of a packet.
    fn ends(&self, it: &Packet, span: &Range<usize>) -> Result<(usize, Ends)> {
        let host = |name: &Spanned<String>| {
            let found = self.names.iter().position(|host| *host == name.get_ref());
            let text = format!("there is no [hosts.{}]", name.get_ref());
            found.ok_or_else(|| Mistake::at(name, text))
        };
        let pair = it.qp.as_ref().map(|name| self.pair(name)).transpose()?;
        let peer = pair.and_then(|pair| self.pairs.get(pair.peer.as_ref()?));
        let from = it.from.as_ref().map(host).transpose()?.or(pair.map(|pair| pair.host));
        let to = it.to.as_ref().map(host).transpose()?.or(peer.map(|peer| peer.host));
        let (Some(from), Some(to)) = (from, to) else {
            let text = "where is this packet from and to? Give qp = \"NAME\", or from and to";
            return Err(Mistake::new(span.clone(), text));
        };
        let ports = &self.world.ports;
        let (src, dst) = (ports[from].device.address, ports[to].device.address);
        host::check_versions(src, dst).map_err(|text| Mistake::new(span.clone(), text))?;
        let src_qp = pair.map_or(0, |pair| pair.qpn.value());
        let [_, _, high, low] = src_qp.to_be_bytes();
        let ends = Ends {
            src,
            dst,
            macs: (ports[from].mac, ports[to].mac),
            src_port: 0xc000 | u16::from_be_bytes([high, low]) & 0x3fff,
            dest_qp: peer.map_or(0, |peer| peer.qpn.value()),
            src_qp,
            qkey: pair.map_or(0, |pair| pair.qkey),
            psns: (pair.map_or(0, |p| p.psn.value()), peer.map_or(0, |p| p.psn.value())),
        };
        Ok((from, ends))
    }
}

/// Checks that only fields of this operation are given.
fn unused(it: &Operation, used: &str) -> Result<()> {
    let given: [(&str, &str, Option<Range<usize>>); 9] = [
        ("bytes", "bytes", it.bytes.as_ref().map(Spanned::span)),
        ("imm", "imm", it.imm.as_ref().map(Spanned::span)),
        ("remote_offset", "remote", it.remote_offset.as_ref().map(Spanned::span)),
        ("va", "remote", it.va.as_ref().map(Spanned::span)),
        ("rkey", "rkey", it.rkey.as_ref().map(Spanned::span)),
        ("compare", "compare", it.compare.as_ref().map(Spanned::span)),
        ("swap", "swap", it.swap.as_ref().map(Spanned::span)),
        ("add", "add", it.add.as_ref().map(Spanned::span)),
        ("to", "to", it.to.as_ref().map(Spanned::span)),
    ];
    let has = |class: &str| {
        used.split(' ').any(|word| word == class || class == "rkey" && word == "remote")
    };
    for (name, class, span) in given {
        if let Some(span) = span.filter(|_| !has(class)) {
            let text = format!("this operation has no `{name}`: leave it out");
            return Err(Mistake::new(span, text));
        }
    }
    Ok(())
}
