//! Runs a [plan](super::plan): engines with memory and queues, a network, virtual time.
//! The [model](super::model) checks the run.

mod device;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rxe_core::engine::{Counters, Event, RetryCause};
use rxe_core::qp::{AttrMask, QpAttr, QpHandle, QpState};
use rxe_core::queue::RecvRequest;
use rxe_core::types::{Gid, Psn, Qpn, Time};
use rxe_core::wire::Packet;
use rxe_net::FabricCounters;

use self::device::{Device, Devices, receive_request, send_request};
use super::ladder::name;
use super::memory::Area;
use super::model::{Model, RECEIVE};
use super::network::{Wire, check_err};
use super::plan::{Deed, Family, Plan};

pub use self::device::bring_to_rts;

/// The statistics of a successful run.
#[derive(Debug, Default)]
pub struct Report {
    /// The counters of the network.
    pub fabric: FabricCounters,
    /// The counters of each engine.
    pub engines: Vec<Counters>,
    /// Damaged packets that only the whole ICRC would have detected; see [`Wire::deliver`].
    pub weak_icrc: u64,
    /// How often the network was made better so that no requester gave up.
    pub calms: u64,
    /// How many requests succeeded, and how many failed.
    pub ended: [u64; 2],
    /// A hash of everything that happened.
    pub trace: u64,
    /// How often the run has met each situation.
    pub met: BTreeMap<&'static str, u64>,
}

/// The failure of a run.
#[derive(Debug)]
pub struct Failure {
    /// What is wrong.
    pub what: String,
    /// The log up to the failure; empty if none was recorded.
    pub ladder: String,
}

/// Runs a plan. `record`: write a log.
///
/// # Errors
/// The first failure that the model finds.
pub fn run(plan: &Plan, record: bool) -> Result<Report, Failure> {
    let mut world = World::new(plan, record);
    match world.run() {
        Ok(()) => Ok(world.report()),
        Err(what) => Err(Failure { what, ladder: world.wire.ladder.print() }),
    }
}

struct World<'p> {
    plan: &'p Plan,
    now: Time,
    wire: Wire,
    devices: Devices,
    ends: Vec<[End; 2]>,
    model: Model,
    /// The remaining steps, in reverse order.
    deeds: Vec<(Time, Step)>,
    calm_until: Option<Time>,
    /// The retries of each queue pair without progress, and the PSN that was retried.
    stuck: HashMap<(usize, Qpn), (Psn, u32)>,
    report: Report,
    turns: u64,
}

/// Something to do at a given time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Connect(usize, usize),
    Deed(Deed),
    Resume(usize, usize),
    Cut([usize; 2]),
    Heal([usize; 2]),
}

struct End {
    handle: Arc<QpHandle>,
    posted: usize,
    receives_posted: usize,
    /// Whether the queue pair has reported that its send queue is drained. It may send no request
    /// until it is resumed.
    drained: bool,
}

impl<'p> World<'p> {
    fn new(plan: &'p Plan, record: bool) -> Self {
        let mut devices: Vec<_> = (0..plan.sides.len()).map(|i| Device::new(plan, i)).collect();
        let mut ends = Vec::new();
        let mut deeds = Vec::new();
        for (l, link) in plan.links.iter().enumerate() {
            let pair = [0, 1].map(|e| {
                let end = &link.ends[e];
                deeds.push((Time::ZERO + end.connected, Step::Connect(l, e)));
                let handle = devices[end.side].create(end, (l, e));
                End { handle, posted: 0, receives_posted: 0, drained: false }
            });
            ends.push(pair);
        }
        deeds.extend(plan.actions.iter().map(|a| (Time::ZERO + a.at, Step::Deed(a.what))));
        for cut in &plan.cuts {
            deeds.push((Time::ZERO + cut.at, Step::Cut(cut.between)));
            if let Some(lasts) = cut.lasts {
                deeds.push((Time::ZERO + cut.at + lasts, Step::Heal(cut.between)));
            }
        }
        // The next step is at the end. Of several steps at one time, the first drawn is taken first.
        deeds.reverse();
        deeds.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
        Self {
            plan,
            now: Time::ZERO,
            wire: Wire::new(&plan.network, plan.sides.iter().map(|s| s.ip).collect(), record),
            devices: Devices(devices),
            ends,
            model: Model::new(plan),
            deeds,
            calm_until: None,
            stuck: HashMap::new(),
            report: Report::default(),
            turns: 0,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        /// Longer than all retries with the longest timeout that a plan has.
        const LIMIT: Duration = Duration::from_secs(60);
        loop {
            while self.turn()? {
                self.turns += 1;
                if self.turns > 400_000 {
                    return Err("the engines never come to rest".into());
                }
            }
            let Some(next) = self.next() else { break };
            self.now = self.now.max(next);
            if self.now.since(Time::ZERO) > LIMIT {
                return Err("no end after a minute".into());
            }
            if self.is_over() && self.wire.fabric.next_delivery().is_none() {
                break;
            }
        }
        self.finish()
    }

    /// Does everything that is due now once. Returns whether there was anything to do.
    fn turn(&mut self) -> Result<bool, String> {
        let mut any = self.steps()?;
        any |= self.post();
        any |= self.deliver();
        for device in &mut self.devices.0 {
            device.engine.handle_timeout(self.now);
        }
        any |= self.transmit()?;
        self.events()?;
        any |= self.completions()?;
        Ok(any)
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<Time> {
        let engines = self.devices.0.iter().filter_map(|device| device.engine.poll_timeout());
        let posts = self.ends.iter().flatten().zip(self.plan.links.iter().flat_map(|l| &l.ends));
        let posts = posts.flat_map(|(end, spec)| {
            let op = spec.ops.get(end.posted).map(|op| op.at);
            let receive = spec.receives.get(end.receives_posted).map(|receive| receive.at);
            [op, receive].into_iter().flatten().map(|at| Time::ZERO + at)
        });
        let posts = posts.filter(|at| *at > self.now);
        let steps = self.deeds.last().map(|(at, _)| *at);
        let calm = self.calm_until;
        let network = self.wire.fabric.next_delivery();
        engines.chain(posts).chain(steps).chain(calm).chain(network).min()
    }

    /// Returns whether every request has ended.
    fn is_over(&self) -> bool {
        let ended = |end: &End, spec: &super::plan::End| {
            end.handle.state() == QpState::Reset
                || (end.posted == spec.ops.len() && end.handle.sends_outstanding() == 0)
        };
        let links = self.ends.iter().zip(&self.plan.links);
        let mut ends = links.flat_map(|(ends, link)| ends.iter().zip(&link.ends));
        self.deeds.is_empty() && ends.all(|(end, spec)| ended(end, spec))
    }

    fn steps(&mut self) -> Result<bool, String> {
        let mut any = false;
        if self.calm_until.is_some_and(|until| until <= self.now) {
            self.calm_until = None;
            self.wire.fabric.set_rules(&self.plan.network.faults);
            any = true;
        }
        while let Some((_, step)) = self.deeds.pop_if(|(at, _)| *at <= self.now) {
            any = true;
            self.wire.ladder.note(self.now, format!("* {step:?}"));
            match step {
                Step::Connect(link, end) => self.connect(link, end),
                Step::Deed(deed) => self.deed(deed)?,
                Step::Resume(link, end) => {
                    if self.ends[link][end].handle.state() == QpState::Sqd {
                        self.ends[link][end].drained = false;
                        self.modify(link, end, QpState::Rts, QpAttr::default(), AttrMask::empty())?;
                    }
                }
                Step::Cut(between) => {
                    let [a, b] = between.map(|side| self.plan.sides[side].ip);
                    self.wire.fabric.cut(a, b);
                }
                Step::Heal(between) => {
                    let [a, b] = between.map(|side| self.plan.sides[side].ip);
                    self.wire.fabric.heal(a, b);
                }
            }
        }
        Ok(any)
    }

    fn connect(&mut self, link: usize, end: usize) {
        let [own, peer] = [end, 1 - end].map(|end| &self.plan.links[link].ends[end]);
        let mut attr = own.attr;
        attr.ah_attr.dgid = Gid::from(self.plan.sides[peer.side].ip);
        attr.dest_qp_num = peer.qpn;
        (attr.sq_psn, attr.rq_psn) = (own.psn, peer.psn);
        let engine = &mut self.devices.0[own.side].engine;
        bring_to_rts(engine, self.now, own.qpn, attr);
    }

    fn deed(&mut self, deed: Deed) -> Result<(), String> {
        let plain = AttrMask::empty();
        if let Deed::Error(link, end) | Deed::Reset(link, end) | Deed::Drain(link, end, _) = deed {
            let state = self.ends[link][end].handle.state();
            if !matches!(state, QpState::Rts | QpState::Sqd) {
                return Ok(());
            }
        }
        match deed {
            Deed::Error(link, end) => {
                self.modify(link, end, QpState::Err, QpAttr::default(), plain)?;
            }
            Deed::Reset(link, end) => {
                // The model must be told of earlier completions first.
                self.events()?;
                self.completions()?;
                let now = &self.ends[link][end];
                let outstanding = now.handle.sends_outstanding() as usize;
                let (plan, look) = (self.plan, &self.devices);
                self.model.before_reset(plan, (link, end), now.posted, outstanding, look)?;
                self.modify(link, end, QpState::Reset, QpAttr::default(), plain)?;
                let handle = &self.ends[link][end].handle;
                if handle.sends_outstanding() + handle.receives_outstanding() > 0 {
                    return Err("RESET left requests outstanding".into());
                }
            }
            Deed::Drain(link, end, time) => {
                if self.ends[link][end].handle.state() != QpState::Rts {
                    return Ok(());
                }
                let attr = QpAttr { en_sqd_async_notify: true, ..QpAttr::default() };
                let mask = AttrMask::EN_SQD_ASYNC_NOTIFY;
                self.modify(link, end, QpState::Sqd, attr, mask)?;
                let at = self.now + time;
                let place = self.deeds.partition_point(|(other, _)| *other > at);
                self.deeds.insert(place, (at, Step::Resume(link, end)));
            }
            Deed::Deregister(side) => {
                let key = self.plan.sides[side].layout.key(Area::Victim);
                self.devices.0[side].memory.deregister(key);
            }
        }
        self.model.on_deed(self.plan, deed, &self.devices);
        Ok(())
    }

    fn modify(
        &mut self,
        link: usize,
        end: usize,
        state: QpState,
        attr: QpAttr,
        mask: AttrMask,
    ) -> Result<(), String> {
        let own = &self.plan.links[link].ends[end];
        let attr = QpAttr { qp_state: state, ..attr };
        let engine = &mut self.devices.0[own.side].engine;
        engine
            .modify_qp(self.now, own.qpn, &attr, mask | AttrMask::STATE)
            .map_err(|why| format!("modify to {}: {why}", state.name()))
    }

    /// Posts requests that are due, until the queues are full.
    fn post(&mut self) -> bool {
        let mut any = false;
        for (l, link) in self.plan.links.iter().enumerate() {
            for e in 0..2 {
                let (spec, end) = (&link.ends[e], &mut self.ends[l][e]);
                while let Some(receive) = spec.receives.get(end.receives_posted) {
                    let request = receive_request(self.plan, spec.side, receive);
                    let id = RECEIVE | end.receives_posted as u64;
                    let due = Time::ZERO + receive.at <= self.now;
                    if !due || end.handle.post_recv(RecvRequest { id, sges: request }).is_err() {
                        break;
                    }
                    self.wire.ladder.note(
                        self.now,
                        format!("{} link {l}: receive {} posted", name(spec.side), id & !RECEIVE),
                    );
                    end.receives_posted += 1;
                    any = true;
                }
                while let Some(op) = spec.ops.get(end.posted) {
                    let memory = self.devices.0[spec.side].arena.reader();
                    let request = send_request(self.plan, link, e, op, end.posted as u64, memory);
                    let due = Time::ZERO + op.at <= self.now;
                    if !due || end.handle.post_send(request).is_err() {
                        break;
                    }
                    if self.wire.ladder.is_on() {
                        let side = name(spec.side);
                        let text = format!("{side} link {l}: posts {}: {op:?}", end.posted);
                        self.wire.ladder.note(self.now, text);
                    }
                    end.posted += 1;
                    any = true;
                }
            }
        }
        any
    }

    fn deliver(&mut self) -> bool {
        let (now, devices) = (self.now, &mut self.devices.0);
        self.wire.deliver(now, |side, frame| devices[side].engine.handle_frame(now, frame))
    }

    fn transmit(&mut self) -> Result<bool, String> {
        let mut any = false;
        let (plan, ends) = (self.plan, &self.ends);
        // The states before any engine sends.
        let states: Vec<_> = ends.iter().flatten().map(|end| end.handle.state()).collect();
        for (side, device) in self.devices.0.iter_mut().enumerate() {
            let look = |bytes: &[u8]| check_sent(plan, ends, &states, side, bytes);
            any |= self.wire.transmit(self.now, side, &mut device.engine, look)?;
        }
        Ok(any)
    }

    fn events(&mut self) -> Result<(), String> {
        for side in 0..self.devices.0.len() {
            while let Some(event) = self.devices.0[side].engine.poll_event() {
                self.wire.ladder.note(self.now, format!("{} {event} ({event:?})", name(side)));
                if self.plan.family == Family::Clean {
                    self.check_clean(&event)?;
                }
                if let Event::Retry { qpn, psn, cause } = event
                    && cause != RetryCause::ReceiverNotReady
                {
                    self.on_retry(side, qpn, psn);
                }
                let Some(&(link, end)) =
                    qpn_of(&event).and_then(|q| self.devices.0[side].qps.get(&q))
                else {
                    continue;
                };
                if let Event::SqDrained { .. } = event {
                    self.ends[link][end].drained = true;
                }
                self.model
                    .on_event(self.plan, link, end, &event)
                    .map_err(|why| format!("{} link {link}: {why}", name(side)))?;
            }
        }
        Ok(())
    }

    /// Checks that on a perfect network nothing is retransmitted or dropped, unless a receive was
    /// late.
    fn check_clean(&self, event: &Event) -> Result<(), String> {
        use rxe_core::engine::ResponderError;
        use rxe_core::wire::DropReason;
        match event {
            Event::Retry { cause, .. } if *cause != RetryCause::ReceiverNotReady => {
                Err(format!("a retry on a perfect network: {event}"))
            }
            Event::NakSent { error, .. } if *error != ResponderError::ReceiverNotReady => {
                Err(format!("a NAK on a perfect network: {event}"))
            }
            Event::Dropped { reason, .. } if *reason != DropReason::GapAlreadyReported => {
                Err(format!("a drop on a perfect network: {event}"))
            }
            _ => Ok(()),
        }
    }

    /// Makes the network better for a while if a requester is about to give up.
    fn on_retry(&mut self, side: usize, qpn: Qpn, psn: Psn) {
        let stuck = self.stuck.entry((side, qpn)).or_insert((psn, 0));
        *stuck = if stuck.0 == psn { (psn, stuck.1 + 1) } else { (psn, 1) };
        if stuck.1 >= 3 && self.plan.mercy {
            self.report.calms += 1;
            self.calm_until = Some(self.now + self.plan.calm);
            self.wire.fabric.set_rules(&self.plan.network.good());
            for cut in &self.plan.cuts {
                let [a, b] = cut.between.map(|side| self.plan.sides[side].ip);
                self.wire.fabric.heal(a, b);
            }
        }
    }

    fn completions(&mut self) -> Result<bool, String> {
        let mut any = false;
        for side in 0..self.devices.0.len() {
            for cq in 0..self.devices.0[side].cqs.len() {
                while let Some(completion) = self.devices.0[side].cqs[cq].poll() {
                    any = true;
                    self.wire
                        .ladder
                        .note(self.now, format!("{} completes {completion:?}", name(side)));
                    let Some(&(link, end)) = self.devices.0[side].qps.get(&completion.qpn) else {
                        return Err(format!("a completion of no queue pair: {completion:?}"));
                    };
                    let is_receive = usize::from(completion.id & RECEIVE != 0);
                    if self.plan.links[link].ends[end].cqs[is_receive] != cq {
                        return Err(format!("a completion in the wrong queue: {completion:?}"));
                    }
                    let end_now = &self.ends[link][end];
                    let posted = [end_now.posted, end_now.receives_posted];
                    let (plan, look) = (self.plan, &self.devices);
                    self.model
                        .on_completion(plan, link, end, &completion, posted, look)
                        .map_err(|why| format!("{} link {link}: {why}", name(side)))?;
                }
            }
        }
        Ok(any)
    }

    fn finish(&mut self) -> Result<(), String> {
        if !self.is_over() {
            return Err("nothing moves any more, but not every request has ended".into());
        }
        self.model.finish(self.plan, &self.devices)?;
        for (link, ends) in self.ends.iter().enumerate() {
            for (end, now) in ends.iter().enumerate() {
                let outcomes = &self.model.end(link, end).outcomes;
                let well = outcomes.iter().filter(|s| **s == rxe_core::queue::Status::Success);
                let well = well.count();
                self.report.ended[0] += well as u64;
                self.report.ended[1] += (outcomes.len() - well) as u64;
                if self.plan.must_succeed() && now.handle.receives_outstanding() > 0 {
                    return Err(format!("link {link} end {end}: receives are left"));
                }
            }
        }
        Ok(())
    }

    fn report(self) -> Report {
        let engines = self.devices.0.iter().map(|d| d.engine.counters().clone()).collect();
        let Wire { weak_icrc, trace, .. } = self.wire;
        Report { fabric: self.wire.counters(), engines, weak_icrc, trace, ..self.report }
    }
}

/// Returns the queue pair that an event is about.
pub(super) fn qpn_of(event: &Event) -> Option<Qpn> {
    match event {
        Event::Dropped { qpn, .. } => *qpn,
        Event::NakSent { qpn, .. }
        | Event::NakReceived { qpn, .. }
        | Event::RnrNakReceived { qpn, .. }
        | Event::Retry { qpn, .. }
        | Event::RequestFailed { qpn, .. }
        | Event::CommunicationEstablished { qpn }
        | Event::SqDrained { qpn }
        | Event::ResponderFailed { qpn, .. }
        | Event::LastWqeReached { qpn }
        | Event::CqOverflow { qpn, .. } => Some(*qpn),
        _ => None,
    }
}

/// Checks that a queue pair that has reported "drained" sends no requests, and one in ERR no data.
fn check_sent(
    plan: &Plan,
    ends: &[[End; 2]],
    states: &[QpState],
    side: usize,
    bytes: &[u8],
) -> Result<(), String> {
    let packet = Packet::parse(bytes).map_err(|why| why.to_string())?;
    for (l, (link, ends)) in plan.links.iter().zip(ends).enumerate() {
        for (e, end) in ends.iter().enumerate() {
            let to_peer = link.ends[1 - e].qpn == packet.dest_qp() && link.ends[e].side == side;
            if to_peer && packet.info().is_request && end.drained {
                return Err(format!("a drained queue pair sent {}", packet.opcode().name()));
            }
            if to_peer && states[2 * l + e] == QpState::Err {
                check_err(&packet)?;
            }
        }
    }
    Ok(())
}
