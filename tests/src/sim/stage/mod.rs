//! Runs a [script](super::script).
//! The stage takes the steps, runs the engines and reports everything to the [judge](super::judge).

mod deeds;
mod device;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use rxe_core::engine::{Engine, Event};
use rxe_core::qp::QpState;
use rxe_core::queue::Completion;
use rxe_core::types::{Qpn, Time};
use rxe_core::wire::Packet;
use rxe_core::wire::grh::Grh;

use self::device::Objects;
use super::judge::{Judge, Look, RECEIVE};
use super::ladder::name;
use super::network::{Wire, check_err};
use super::rng::Rng;
use super::script::{Deed, Queue, Script};
use super::world::{Failure, Report, qpn_of};

/// Runs a script. `record`: write a log.
///
/// # Errors
/// The first failure that the judge finds.
pub fn run(script: &Script, record: bool) -> Result<Report, Failure> {
    let mut stage = Stage::new(script, record);
    match stage.run() {
        Ok(()) => Ok(stage.report()),
        Err(what) => Err(Failure { what, ladder: stage.wire.ladder.print() }),
    }
}

struct Stage<'s> {
    script: &'s Script,
    now: Time,
    wire: Wire,
    objects: Objects<'s>,
    judge: Judge<'s>,
    /// The steps that were not taken yet, in reverse order.
    steps: Vec<usize>,
    /// The queue pairs to be connected with their peers, and when.
    connects: Vec<(Time, usize)>,
    /// The steps that wait for room in the send queue of each queue pair.
    sends: Vec<VecDeque<usize>>,
    receives: HashMap<Queue, VecDeque<usize>>,
    /// The completion queues that programs do not poll, and until when.
    paused: HashMap<(usize, usize), Time>,
    /// Whether each queue pair has reported that its send queue is drained.
    drained: Vec<bool>,
    /// The sender of the last datagram that each queue pair received.
    last_from: Vec<Option<Address>>,
    /// The generator of queue pair numbers.
    numbers: Rng,
    is_closing: bool,
    /// The number of connections so far.
    epoch: u32,
    turns: u64,
}

/// The destination of a datagram.
#[derive(Clone, Copy)]
struct Address {
    /// The destination queue pair. For a group, the sending one.
    target: usize,
    ip: IpAddr,
    qpn: Qpn,
}

impl<'s> Stage<'s> {
    fn new(script: &'s Script, record: bool) -> Self {
        let mut steps: Vec<_> = (0..script.steps.len()).collect();
        // The next step is at the end. Of several steps at one time, the first drawn is taken first.
        steps.reverse();
        steps.sort_by_key(|&step| std::cmp::Reverse(script.steps[step].at));
        let count = script.qps.len();
        let mut stage = Self {
            script,
            now: Time::ZERO,
            wire: Wire::new(&script.network, script.sides.iter().map(|s| s.ip).collect(), record),
            objects: Objects::new(script),
            judge: Judge::new(script),
            steps,
            connects: Vec::new(),
            sends: vec![VecDeque::new(); count],
            receives: HashMap::new(),
            paused: HashMap::new(),
            drained: vec![false; count],
            last_from: vec![None; count],
            numbers: Rng::new(script.network.seed ^ 0x0bec),
            is_closing: false,
            epoch: 0,
            turns: 0,
        };
        for qp in 0..count {
            stage.create(qp);
            if script.qps[qp].peer.is_none_or(|peer| peer > qp) {
                stage.connects.push((Time::ZERO, qp));
            }
        }
        stage
    }

    fn run(&mut self) -> Result<(), String> {
        const LIMIT: Duration = Duration::from_secs(60);
        loop {
            while self.turn()? {
                self.turns += 1;
                if self.turns > 400_000 {
                    return Err("the engines never come to rest".into());
                }
            }
            if self.steps.is_empty() && self.connects.is_empty() {
                if !self.is_closing {
                    self.close()?;
                    continue;
                }
                if self.is_over() && self.wire.fabric.next_delivery().is_none() {
                    break;
                }
            }
            let Some(next) = self.next() else {
                // A request that ended without a completion may have freed a slot for another.
                if self.turn()? {
                    continue;
                }
                break;
            };
            self.now = self.now.max(next);
            self.turns = 0;
            if self.is_closing {
                self.give_up_waiting()?;
            }
            if self.now.since(Time::ZERO) > LIMIT {
                return Err("no end after a minute".into());
            }
        }
        if !self.is_over() {
            return Err("nothing moves any more, but not every request has ended".into());
        }
        self.stop_all()?;
        while self.turn()? {}
        self.judge.finish(&self.objects)
    }

    /// Does everything that is due now once. Returns whether there was anything to do.
    fn turn(&mut self) -> Result<bool, String> {
        let mut any = self.take_steps()?;
        any |= self.post_waiting()?;
        let (now, objects) = (self.now, &mut self.objects);
        any |= self.wire.deliver(now, |side, frame| objects.devices[side].receive(now, frame));
        for engine in self.objects.engines_mut() {
            engine.handle_timeout(now);
        }
        any |= self.transmit()?;
        self.events()?;
        any |= self.completions(false)?;
        self.judge.check_limits(&self.objects)?;
        Ok(any)
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<Time> {
        let engines = self.objects.engines().filter_map(Engine::poll_timeout);
        let steps = self.steps.last().map(|&step| Time::ZERO + self.script.steps[step].at);
        let connects = self.connects.iter().map(|(at, _)| *at);
        let paused = self.paused.values().copied();
        let network = self.wire.fabric.next_delivery();
        engines.chain(steps).chain(connects).chain(paused).chain(network).min()
    }

    /// Returns whether every request that can end has ended.
    fn is_over(&self) -> bool {
        (0..self.script.qps.len()).all(|qp| {
            let Some(handle) = &self.objects.qps[qp] else { return true };
            let idle = handle.sends_outstanding() == 0 && self.sends[qp].is_empty();
            idle || handle.state() == QpState::Reset || self.judge.may_wait(qp, &self.objects)
        })
    }

    fn transmit(&mut self) -> Result<bool, String> {
        let mut any = self.transmit_once()?;
        // If a completion queue that two engines share overflows, one engine rings the other's doorbells.
        while self.objects.engines().any(|engine| !engine.doorbells().is_empty()) {
            any |= self.transmit_once()?;
        }
        Ok(any)
    }

    fn transmit_once(&mut self) -> Result<bool, String> {
        let mut any = false;
        let (judge, script, drained) = (&self.judge, self.script, &self.drained);
        let states: Vec<_> = (0..script.qps.len()).map(|qp| self.objects.state(qp)).collect();
        for (side, device) in self.objects.devices.iter_mut().enumerate() {
            // A queue pair that has reported "drained" must send no requests, and one in the error
            // state no data.
            let look = |bytes: &[u8]| {
                let packet = Packet::parse(bytes).map_err(|why| why.to_string())?;
                let from = match packet.deth() {
                    Some(deth) => judge.who(deth.src_qp),
                    None => judge.who(packet.dest_qp()).and_then(|qp| script.qps[qp].peer),
                };
                match from {
                    Some(from) if drained[from] && packet.info().is_request => {
                        Err(format!("a drained queue pair sent {}", packet.opcode().name()))
                    }
                    Some(from) if states[from] == QpState::Err => check_err(&packet),
                    _ => Ok(()),
                }
            };
            for engine in &mut device.engines {
                any |= self.wire.transmit(self.now, side, engine, look)?;
            }
        }
        Ok(any)
    }

    fn events(&mut self) -> Result<(), String> {
        for (side, shard) in self.script.shards() {
            while let Some(event) = self.objects.devices[side].engines[shard].poll_event() {
                self.wire.ladder.note(self.now, format!("{} {event} ({event:?})", name(side)));
                let qp = qpn_of(&event).and_then(|qpn| self.judge.who(qpn));
                let qp = qp.filter(|&qp| self.script.qps[qp].side == side);
                if let (Event::SqDrained { .. }, Some(qp)) = (&event, qp) {
                    self.drained[qp] = true;
                }
                self.judge
                    .on_event(side, qp, &event, &self.objects)
                    .map_err(|why| format!("{}: {why}", name(side)))?;
            }
        }
        Ok(())
    }

    /// Polls completions; `all`: also from paused queues. Returns whether there were any.
    fn completions(&mut self, all: bool) -> Result<bool, String> {
        let mut any = false;
        self.paused.retain(|_, until| *until > self.now);
        for side in 0..self.objects.devices.len() {
            for cq in 0..self.objects.devices[side].cqs.len() {
                if !all && self.paused.contains_key(&(side, cq)) {
                    continue;
                }
                while let Some(completion) = self.objects.devices[side].cqs[cq].poll() {
                    any = true;
                    if self.wire.ladder.is_on() {
                        let text = format!("{} completes {completion:?}", name(side));
                        self.wire.ladder.note(self.now, text);
                    }
                    let qp = self.judge.who(completion.qpn);
                    let Some(qp) = qp.filter(|&qp| self.script.qps[qp].side == side) else {
                        return Err(format!("a completion of no queue pair: {completion:?}"));
                    };
                    let result = if completion.id & RECEIVE != 0 {
                        self.last_from[qp] = self.sender_of(&completion).or(self.last_from[qp]);
                        self.judge.on_receive(qp, cq, &completion, &self.objects)
                    } else if self.script.qps[qp].cqs[0] == cq {
                        self.judge.on_send(qp, &completion, &self.objects)
                    } else {
                        Err(format!("in the wrong completion queue: {completion:?}"))
                    };
                    result.map_err(|why| format!("{}: {why}", name(side)))?;
                }
            }
        }
        Ok(any)
    }

    /// Returns the sender of a datagram as its receiver knows it.
    /// The completion has the sender's number, and the GRH in front of the datagram has its address.
    fn sender_of(&self, completion: &Completion) -> Option<Address> {
        let step = usize::try_from(completion.id & !RECEIVE).ok()?;
        let Deed::Receive(queue, places) = &self.script.steps.get(step)?.deed else { return None };
        let side = self.script.side_of(*queue);
        let layout = &self.script.sides[side].layout;
        let mut bytes = Vec::new();
        for place in places {
            bytes.extend(self.objects.devices[side].arena.bytes(layout.range(*place)));
        }
        let header = Grh::parse(bytes.first_chunk().filter(|_| completion.grh)?).ok()?;
        let qpn = completion.src_qp;
        Some(Address { target: self.judge.who(qpn)?, ip: header.src, qpn })
    }

    /// Begins the end of the run: no more steps; the network becomes good, and programs poll all queues.
    fn close(&mut self) -> Result<(), String> {
        self.is_closing = true;
        self.wire.ladder.note(self.now, "* the network is good from now on");
        self.wire.fabric.set_rules(&self.script.network.good());
        self.paused.clear();
        for qp in 0..self.script.qps.len() {
            self.deed(&Deed::Resume(qp))?;
        }
        Ok(())
    }

    /// Stops queue pairs that still wait for a receive that cannot come.
    fn give_up_waiting(&mut self) -> Result<(), String> {
        const TIMEOUT: Duration = Duration::from_millis(200);
        if self.now < Time::ZERO + self.script.closing + TIMEOUT {
            return Ok(());
        }
        for qp in 0..self.script.qps.len() {
            let state = self.objects.state(qp);
            if state == QpState::Rts && self.judge.may_wait(qp, &self.objects) {
                self.deed(&Deed::Error(qp))?;
            }
        }
        Ok(())
    }

    /// Moves all queue pairs to the error state.
    fn stop_all(&mut self) -> Result<(), String> {
        for qp in 0..self.script.qps.len() {
            self.sends[qp].clear();
            if self.objects.state(qp) != QpState::Reset {
                self.deed(&Deed::Error(qp))?;
            }
        }
        self.receives.clear();
        Ok(())
    }

    fn report(mut self) -> Report {
        let engines = self.objects.engines().map(|engine| engine.counters().clone()).collect();
        let Wire { weak_icrc, trace, .. } = self.wire;
        let ended = self.judge.ended();
        let met = std::mem::take(&mut self.judge.met);
        Report { fabric: self.wire.counters(), engines, weak_icrc, trace, ended, met, calms: 0 }
    }
}
