//! The reference model for [scripts](super::script).
//! It states what verbs promise for every service, as simply as possible and independently of the
//! engines.
//!
//! The model is told everything that programs do and get, and checks:
//! - every send request ends exactly once and in order; after a failure all later ones are flushed;
//! - a request fails only for a reason in the script, and fails if it must not succeed (`blame`);
//! - every receive ends at most once, with one message that was sent to it. On a reliable
//!   connection this is the next message, on an unreliable one a later message, unless the network
//!   reordered packets. A datagram is received at most once for each copy that the network made
//!   (`receive`);
//! - events come exactly when they must (`events`);
//! - a range of memory holds its message or, if the message may not have arrived, a prefix of it;
//!   all other memory is unchanged (`settle`).

mod blame;
mod events;
mod receive;
mod settle;

use std::collections::{BTreeMap, HashMap};

use rxe_core::mem::WindowType;
use rxe_core::qp::{QpState, QpType};
use rxe_core::queue::{Completion, CompletionOp, SendFlags, Status};
use rxe_core::types::{Key, Qpn};

use super::memory::Place;
use super::script::{By, Deed, Op, Queue, Script, Verb};

pub use receive::RECEIVE;

type Verdict = Result<(), String>;

/// The situations that the runs of a test must meet. Without them the test would prove nothing.
pub const MUST_MEET: [&str; 24] = [
    "ATOMIC WRITEs done",
    "FLUSHes done",
    "RC messages",
    "RC messages from an SRQ",
    "SRQ limits reached",
    "UC messages",
    "UC messages from an SRQ",
    "UD messages",
    "UD messages from an SRQ",
    "XRC messages",
    "XRC queues refused",
    "completion queues overflowed",
    "datagrams to oneself",
    "last receives taken",
    "messages that came twice",
    "multicast datagrams",
    "receives flushed",
    "regions held by windows",
    "regions registered anew",
    "windows bound",
    "windows closed to a peer",
    "windows invalidated",
    "windows not bound",
    "windows used by a peer",
];

/// How the model reads the state of the engines.
pub trait Look {
    /// Fills `out` with the bytes of a side's memory from `at` on.
    fn look(&self, side: usize, at: usize, out: &mut [u8]);
    /// Returns the state of a queue pair; RESET if the queue pair does not exist.
    fn state(&self, qp: usize) -> QpState;
    /// Returns the number of receives in a queue that no message has taken.
    fn waiting(&self, queue: Queue) -> u32;
    /// Returns the number of completions of a side that the programs have not polled.
    fn unseen(&self, side: usize) -> usize;
    /// Returns which of a side's completion queues has this ID.
    fn cq(&self, side: usize, id: u64) -> Option<usize>;
    /// Returns whether a completion queue has lost completions.
    fn overflowed(&self, side: usize, cq: usize) -> bool;
    /// Returns the key that the bind request of step `bind` has given to its window.
    fn key(&self, bind: usize) -> Key;
}

/// The model of one run.
#[derive(Debug)]
pub struct Judge<'s> {
    script: &'s Script,
    /// A counter of calls, by which earlier and later ones are told apart.
    clock: u64,
    /// The expected contents of each side's memory, as far as known.
    memory: Vec<Vec<u8>>,
    qps: Vec<Known>,
    /// Receives posted to each queue.
    queues: HashMap<Queue, receive::Receives>,
    /// The bindings, by step.
    bindings: BTreeMap<usize, Binding>,
    /// When each side's victim area was deregistered, and its contents then.
    deregistered: Vec<Option<(u64, Vec<u8>)>>,
    /// Shared receive queues that were removed from their domain.
    withdrawn: Vec<bool>,
    limits: Vec<events::Limit>,
    /// Every queue pair number that was assigned, with its queue pair.
    numbers: HashMap<Qpn, usize>,
    /// How often the run has met each situation.
    pub met: BTreeMap<&'static str, u64>,
}

/// What the model knows of a queue pair.
#[derive(Debug, Default)]
struct Known {
    qpn: Qpn,
    /// All requests that were ever posted to it.
    sends: Vec<Sent>,
    /// The index of the first request since the queue pair was last connected.
    start: usize,
    /// The index of the first request that has not ended.
    ended: usize,
    /// Whether a request has failed since the queue pair was last connected or resumed.
    failed: bool,
    /// Whether the program took the queue pair out of service since it was last connected.
    stopped: bool,
    /// Whether the responder refused a request.
    responder_failed: bool,
    /// Whether completions of this queue pair were lost.
    overflowed: bool,
    /// The index of the peer's message that must or may be received next.
    next: usize,
    /// The value of the peer's word that the atomics of this queue pair use.
    word: u64,
    /// Which groups the queue pair is attached to, and which ones it was ever attached to.
    groups: Vec<bool>,
    heard: Vec<bool>,
    left: bool,
    /// The number of "last WQE reached" events since the queue pair was last connected.
    last_taken: u32,
    /// The number of dropped packets that were for this queue pair.
    dropped: u64,
}

/// A posted request.
#[derive(Clone, Debug)]
struct Sent {
    step: usize,
    posted: u64,
    outcome: Option<Status>,
    /// The receiver, if the script does not determine it.
    target: Option<usize>,
    /// The members of the group when it was posted.
    members: Vec<usize>,
    /// The queue pairs that received the message, one entry per copy.
    delivered: Vec<usize>,
}

/// A memory window's binding.
#[derive(Debug)]
struct Binding {
    window: usize,
    kind: WindowType,
    binder: usize,
    posted: u64,
    /// The time from which on the binding is certainly valid.
    bound: Option<u64>,
    /// Whether the bind request failed.
    failed: bool,
    /// Whether the bind request was flushed or dropped, so that it may have been executed or not.
    unknown: bool,
    /// Attempts to end the binding: when, and by which step.
    disturbed: Vec<(u64, usize)>,
    /// The time from which on the binding has certainly ended.
    gone: Option<u64>,
}

impl Binding {
    /// Returns whether the result of the bind request is known.
    fn is_settled(&self) -> bool {
        self.bound.is_some() || self.failed || self.gone.is_some()
    }
}

impl<'s> Judge<'s> {
    /// Creates a model in which nothing has happened.
    pub fn new(script: &'s Script) -> Self {
        let groups = vec![false; script.groups.len()];
        let known = |_| Known { groups: groups.clone(), heard: groups.clone(), ..Known::default() };
        Self {
            script,
            clock: 0,
            memory: script.sides.iter().map(|side| side.layout.initial()).collect(),
            qps: (0..script.qps.len()).map(known).collect(),
            queues: HashMap::new(),
            bindings: BTreeMap::new(),
            deregistered: vec![None; script.sides.len()],
            withdrawn: vec![false; script.srqs.len()],
            limits: vec![events::Limit::default(); script.srqs.len()],
            numbers: HashMap::new(),
            met: BTreeMap::new(),
        }
    }

    /// Returns how many requests succeeded, and how many failed.
    pub fn ended(&self) -> [u64; 2] {
        let all = self.qps.iter().flat_map(|qp| &qp.sends);
        let outcomes: Vec<_> = all.filter_map(|sent| sent.outcome).collect();
        let well = outcomes.iter().filter(|status| **status == Status::Success).count();
        [well as u64, (outcomes.len() - well) as u64]
    }

    /// Returns whether the network is perfect and no program makes mistakes.
    fn is_calm(&self) -> bool {
        !self.script.disturbed && !self.script.network.is_bad()
    }

    fn network_is_bad(&self) -> bool {
        self.script.network.is_bad()
    }

    fn met(&mut self, what: &'static str) {
        debug_assert!(MUST_MEET.contains(&what), "{what}");
        *self.met.entry(what).or_default() += 1;
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Records that a queue pair was created with this number.
    pub fn on_created(&mut self, qp: usize, qpn: Qpn) {
        self.numbers.insert(qpn, qp);
        self.qps[qp].qpn = qpn;
    }

    /// Returns the queue pair that has or had this number.
    pub fn who(&self, qpn: Qpn) -> Option<usize> {
        self.numbers.get(&qpn).copied()
    }

    /// Records an accepted send request. `target`: the receiver, if the script does not determine it.
    pub fn on_posted(&mut self, step: usize, target: Option<usize>) {
        let Deed::Send(qp, op) = &self.script.steps[step].deed else { return };
        let (qp, posted) = (*qp, self.tick());
        let members = match op.to {
            Some(super::script::To::Group(group)) => {
                (0..self.qps.len()).filter(|&m| self.qps[m].groups[group]).collect()
            }
            _ => Vec::new(),
        };
        let sent = Sent { step, posted, outcome: None, target, members, delivered: Vec::new() };
        self.qps[qp].sends.push(sent);
        match op.verb {
            Verb::Bind(bind) => {
                let kind = self.script.windows[bind.window].kind;
                let mut disturbed = Vec::new();
                if kind == WindowType::Type1 {
                    let same = self.bindings.iter_mut().filter(|(_, b)| b.window == bind.window);
                    for (&other, binding) in same {
                        binding.disturbed.push((posted, step));
                        // If two queue pairs bind the window simultaneously, either binding may be
                        // the last.
                        if binding.binder != qp && !binding.is_settled() {
                            disturbed.push((posted, other));
                        }
                    }
                }
                let binding = Binding {
                    window: bind.window,
                    kind,
                    binder: qp,
                    posted,
                    bound: None,
                    failed: false,
                    unknown: false,
                    disturbed,
                    gone: None,
                };
                self.bindings.insert(step, binding);
            }
            Verb::SendInvalidate(bind) | Verb::Invalidate(bind) => {
                if let Some(binding) = self.bindings.get_mut(&bind) {
                    binding.disturbed.push((posted, step));
                }
            }
            _ => {}
        }
    }

    /// Returns whether the bind request of a step was posted.
    pub fn is_posted(&self, step: usize) -> bool {
        self.bindings.contains_key(&step)
    }

    /// Records that the program took a queue pair out of service.
    pub fn on_stopped(&mut self, qp: usize) {
        self.qps[qp].stopped = true;
    }

    /// Records that a queue pair whose send queue had stopped sends again.
    pub fn on_resumed(&mut self, qp: usize) {
        self.qps[qp].failed = false;
    }

    /// Checks and records the state of a queue pair before it is reset or destroyed.
    /// All posted requests except for the last `outstanding` have ended.
    ///
    /// # Errors
    /// A request that has ended should have produced a completion.
    pub fn before_reset(&mut self, qp: usize, outstanding: usize, look: &impl Look) -> Verdict {
        let known = &self.qps[qp];
        let ended = known.sends.len().saturating_sub(outstanding).max(known.ended);
        self.ended_silently(qp, ended, false, look)?;
        let clock = self.tick();
        let known = &mut self.qps[qp];
        known.ended = known.sends.len();
        known.stopped = true;
        known.left = true;
        known.groups.fill(false);
        // The windows that this queue pair bound may stay bound or not.
        let own = self.bindings.values_mut().filter(|b| b.binder == qp);
        own.for_each(|b| {
            b.disturbed.push((clock, usize::MAX));
            b.unknown |= b.bound.is_none();
        });
        self.forget_receives(qp);
        Ok(())
    }

    /// Records that a queue pair was connected, again or for the first time.
    /// No packet of an earlier connection is left in the network.
    ///
    /// # Errors
    /// The memory shows that an earlier message did something wrong.
    pub fn on_connected(&mut self, qp: usize, look: &impl Look) -> Verdict {
        self.settle(qp, look)?;
        let known = &mut self.qps[qp];
        known.start = known.sends.len();
        known.ended = known.start;
        (known.failed, known.stopped, known.responder_failed) = (false, false, false);
        (known.overflowed, known.last_taken) = (false, 0);
        // If the completion queue has lost completions, more may be lost.
        let spec = &self.script.qps[qp];
        if spec.cqs.iter().any(|&cq| look.overflowed(spec.side, cq)) {
            self.lose_completions(qp);
        }
        let messages = self.script.qps[qp].peer.map_or(0, |peer| self.qps[peer].sends.len());
        self.qps[qp].next = messages;
        Ok(())
    }

    /// Checks the completion of a send request.
    ///
    /// # Errors
    /// The completion should not exist, or should be different.
    pub fn on_send(&mut self, qp: usize, completion: &Completion, look: &impl Look) -> Verdict {
        self.tick();
        let status = completion.status;
        let step = usize::try_from(completion.id).unwrap_or(usize::MAX);
        let known = &self.qps[qp];
        let index = (known.ended..known.sends.len()).find(|&i| known.sends[i].step == step);
        let Some(index) = index else {
            return Err(format!("no request {step} is outstanding: {completion:?}"));
        };
        if completion.qpn != known.qpn {
            return Err(format!("request {step} completes for another number: {completion:?}"));
        }
        self.ended_silently(qp, index, status == Status::Success, look)?;
        self.qps[qp].ended = index + 1;
        let op = self.op_of(qp, index);
        if status == Status::Success {
            if self.qps[qp].failed && !self.qps[qp].overflowed {
                return Err(format!("{} went well after a failure", self.name_of(qp, index)));
            }
            if !self.is_signalled(qp, op) {
                return Err(format!("{} is unsignalled", self.name_of(qp, index)));
            }
            if completion.op != kind_of(op.verb) || completion.byte_len != op.len() {
                return Err(format!("{op:?} completed as {completion:?}"));
            }
            return self.succeeded(qp, index, look);
        }
        if self.qps[qp].failed || self.qps[qp].overflowed {
            if status != Status::WorkRequestFlushed && !self.qps[qp].overflowed {
                return Err(format!("{}: {status} after a failure", self.name_of(qp, index)));
            }
        } else {
            self.judge_failure(qp, index, status, look)?;
        }
        self.qps[qp].failed = true;
        self.failed(qp, index, status);
        Ok(())
    }

    /// Ends all requests before `end`, which have no completion.
    /// They were unsignaled and succeeded, because a failure produces a completion. If completions
    /// were lost, they are known to have succeeded only if the next request did (`next_did`).
    fn ended_silently(
        &mut self,
        qp: usize,
        end: usize,
        next_did: bool,
        look: &impl Look,
    ) -> Verdict {
        for index in self.qps[qp].ended..end {
            self.qps[qp].ended = index + 1;
            if self.qps[qp].overflowed {
                if next_did {
                    self.succeeded(qp, index, look)?;
                }
                continue;
            }
            if self.qps[qp].failed || self.is_signalled(qp, self.op_of(qp, index)) {
                return Err(format!("{} has no completion", self.name_of(qp, index)));
            }
            self.succeeded(qp, index, look)?;
        }
        Ok(())
    }

    fn failed(&mut self, qp: usize, index: usize, status: Status) {
        self.qps[qp].sends[index].outcome = Some(status);
        let step = self.qps[qp].sends[index].step;
        if let Some(binding) = self.bindings.get_mut(&step) {
            // A flushed request may have been executed.
            binding.unknown = status == Status::WorkRequestFlushed;
            binding.failed = !binding.unknown;
        }
    }

    /// Records that a request succeeded, and checks that its bytes have arrived.
    fn succeeded(&mut self, qp: usize, index: usize, look: &impl Look) -> Verdict {
        let clock = self.clock;
        let op = self.op_of(qp, index);
        self.must_not_be_bad(qp, index)?;
        let step = self.qps[qp].sends[index].step;
        self.qps[qp].sends[index].outcome = Some(Status::Success);
        let reliable = self.is_reliable(qp);
        let side = self.script.qps[qp].side;
        match (op.verb, op.remote) {
            (Verb::Write(_), Some((place, by))) if reliable => {
                if let By::Window(_) = by {
                    self.met("windows used by a peer");
                }
                let bytes = self.bytes_of(qp, op);
                let peer = self.peer_side(qp);
                self.must_hold(peer, &[place], &bytes, look)
                    .map_err(|why| format!("{} completed, but {why}", self.name_of(qp, index)))?;
            }
            (Verb::Read, Some((place, _))) => {
                let bytes = self.known(self.peer_side(qp), &[place], place.len);
                self.must_hold(side, &op.local, &bytes, look)
                    .map_err(|why| format!("{} completed, but {why}", self.name_of(qp, index)))?;
            }
            (Verb::CompareSwap(..) | Verb::FetchAdd(_), _) => {
                let found = self.qps[qp].word.to_ne_bytes();
                self.must_hold(side, &op.local, &found, look).map_err(|why| {
                    format!("{} found something else: {why}", self.name_of(qp, index))
                })?;
                self.qps[qp].word = self.applied(qp, op, self.qps[qp].word);
            }
            (Verb::AtomicWrite, _) => {
                self.qps[qp].word = self.applied(qp, op, self.qps[qp].word);
                self.met("ATOMIC WRITEs done");
            }
            (Verb::Flush(_), _) => self.met("FLUSHes done"),
            (Verb::Bind(bind), _) => {
                self.met("windows bound");
                let posted = self.qps[qp].sends[index].posted;
                let same = self.bindings.iter_mut().filter(|(_, b)| b.window == bind.window);
                for (&other, binding) in same {
                    let before = binding.bound.is_some_and(|bound| bound < posted)
                        || (binding.binder == qp && binding.posted < posted);
                    if other == step {
                        binding.bound = Some(clock);
                    } else if before {
                        binding.gone.get_or_insert(clock);
                    }
                }
            }
            (Verb::Invalidate(bind) | Verb::SendInvalidate(bind), _) => {
                self.met("windows invalidated");
                if let Some(binding) = self.bindings.get_mut(&bind) {
                    binding.gone.get_or_insert(clock);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the value of a word after an atomic.
    fn applied(&self, qp: usize, op: &Op, before: u64) -> u64 {
        match op.verb {
            Verb::FetchAdd(add) => before.wrapping_add(add),
            Verb::CompareSwap(compare, swap) if compare == before => swap,
            Verb::AtomicWrite => {
                let bytes = <[u8; 8]>::try_from(self.bytes_of(qp, op));
                bytes.map_or(before, u64::from_ne_bytes)
            }
            _ => before,
        }
    }

    /// Checks that these places hold these bytes, and records them in the model.
    fn must_hold(
        &mut self,
        side: usize,
        places: &[Place],
        bytes: &[u8],
        look: &impl Look,
    ) -> Verdict {
        let there = self.actual(side, places, bytes.len(), look);
        if there != bytes {
            let first = there.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0);
            return Err(format!("byte {first} of {} of side {side} is wrong", bytes.len()));
        }
        self.take_over(side, places, bytes);
        Ok(())
    }

    /// Returns the first `len` bytes that these places hold.
    fn actual(&self, side: usize, places: &[Place], len: usize, look: &impl Look) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &place in places {
            let range = self.script.sides[side].layout.range(place);
            let mut piece = vec![0; range.len()];
            look.look(side, range.start, &mut piece);
            bytes.extend(piece);
        }
        bytes.truncate(len);
        bytes
    }

    /// Returns the first `len` bytes that these places must hold.
    fn known(&self, side: usize, places: &[Place], len: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &place in places {
            let range = self.script.sides[side].layout.range(place);
            bytes.extend_from_slice(&self.memory[side][range]);
        }
        bytes.truncate(len as usize);
        bytes
    }

    /// Records that these places must hold these bytes from now on.
    fn take_over(&mut self, side: usize, places: &[Place], bytes: &[u8]) {
        let mut rest = bytes;
        for &place in places {
            let range = self.script.sides[side].layout.range(place);
            let (here, after) = rest.split_at(range.len().min(rest.len()));
            self.memory[side][range.start..range.start + here.len()].copy_from_slice(here);
            rest = after;
        }
    }

    /// Returns the bytes of a message.
    fn bytes_of(&self, qp: usize, op: &Op) -> Vec<u8> {
        self.known(self.script.qps[qp].side, &op.local, op.len())
    }

    fn op_of(&self, qp: usize, index: usize) -> &'s Op {
        self.script.op(self.qps[qp].sends[index].step)
    }

    fn name_of(&self, qp: usize, index: usize) -> String {
        let sent = &self.qps[qp].sends[index];
        format!("request {} of QP {} ({:?})", sent.step, self.qps[qp].qpn, self.op_of(qp, index))
    }

    fn is_signalled(&self, qp: usize, op: &Op) -> bool {
        self.script.qps[qp].sig_all || op.flags.contains(SendFlags::SIGNALED)
    }

    fn is_reliable(&self, qp: usize) -> bool {
        !matches!(self.script.qps[qp].service, QpType::Uc | QpType::Ud)
    }

    fn peer_side(&self, qp: usize) -> usize {
        self.script.qps[qp].peer.map_or(0, |peer| self.script.qps[peer].side)
    }
}

fn kind_of(verb: Verb) -> CompletionOp {
    match verb {
        Verb::Send(_) | Verb::SendInvalidate(_) => CompletionOp::Send,
        Verb::Write(_) => CompletionOp::RdmaWrite,
        Verb::Read => CompletionOp::RdmaRead,
        Verb::CompareSwap(..) => CompletionOp::CompareSwap,
        Verb::FetchAdd(_) => CompletionOp::FetchAdd,
        Verb::AtomicWrite => CompletionOp::AtomicWrite,
        Verb::Flush(_) => CompletionOp::Flush,
        Verb::Bind(_) => CompletionOp::BindWindow,
        Verb::Invalidate(_) => CompletionOp::LocalInvalidate,
    }
}
