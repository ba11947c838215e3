//! The reference model for [plans](super::plan).
//! It states what verbs promise, as simply as possible and independently of the engines.
//!
//! The model is told of every completion, and checks the memory then and at the end:
//! - every request ends exactly once and in order; after the first failure all later ones are
//!   flushed;
//! - receives end in order, each with the length, kind, immediate data and solicited bit of its
//!   message;
//! - the data of a request is in memory when its completion is polled;
//! - a request fails only for a reason in the plan;
//! - at the end the memory is the result of the successful requests. Of a failed or flushed
//!   request, the peer has executed a prefix: the first packets, and nothing after them;
//! - the results of atomics are possible, see [`atomics`](super::atomics).
//!
//! The checks at the end are in `settle`.

mod settle;

use rxe_core::engine::{Event, ResponderError};
use rxe_core::qp::QpState;
use rxe_core::queue::{Completion, CompletionOp, Immediate, SendFlags, Status};

use super::memory::{Area, Place};
use super::plan::{Deed, Flaw, Op, Plan, Verb};

/// The bit that marks the ID of a receive. The other bits are the index of the receive.
pub const RECEIVE: u64 = 1 << 63;

/// The model of one run.
#[derive(Debug)]
pub struct Model {
    /// The expected contents of each side's memory, as far as known.
    memory: Vec<Vec<u8>>,
    ends: Vec<[EndModel; 2]>,
    /// The contents of each side's victim area when it was deregistered.
    deregistered: Vec<Option<Vec<u8>>>,
}

/// What the model knows of one queue pair.
#[derive(Debug, Default)]
pub struct EndModel {
    /// The outcomes of send requests, in order.
    pub outcomes: Vec<Status>,
    /// The values that atomics returned, with the index of the request.
    pub found: Vec<(usize, u64)>,
    /// The number of receives that have ended.
    received: usize,
    /// The number of receives that succeeded.
    received_well: usize,
    /// Whether a receive has failed.
    receive_failed: bool,
    /// Whether the engine reported a wrong request of the peer.
    responder_failed: bool,
    /// Whether the program took the queue pair out of service.
    stopped: bool,
}

/// How the model reads the real memory of a side.
pub trait Look {
    /// Fills `out` with the bytes of a side's memory from `at` on.
    fn look(&self, side: usize, at: usize, out: &mut [u8]);
    /// Returns the state of a queue pair.
    fn state(&self, link: usize, end: usize) -> QpState;
}

type Verdict = Result<(), String>;

impl Model {
    /// Creates a model in which nothing has happened.
    pub fn new(plan: &Plan) -> Self {
        Self {
            memory: plan.sides.iter().map(|side| side.layout.initial()).collect(),
            ends: plan.links.iter().map(|_| Default::default()).collect(),
            deregistered: vec![None; plan.sides.len()],
        }
    }

    /// Returns what the model knows of a queue pair.
    pub fn end(&self, link: usize, end: usize) -> &EndModel {
        &self.ends[link][end]
    }

    /// Records what the program did to a queue pair or a region.
    pub fn on_deed(&mut self, plan: &Plan, deed: Deed, look: &impl Look) {
        match deed {
            Deed::Error(link, end) | Deed::Reset(link, end) => self.ends[link][end].stopped = true,
            Deed::Drain(..) => {}
            Deed::Deregister(side) => {
                let range = plan.sides[side].layout.area_range(Area::Victim);
                let mut bytes = vec![0; range.len()];
                look.look(side, range.start, &mut bytes);
                self.deregistered[side].get_or_insert(bytes);
            }
        }
    }

    /// Checks the requests of a queue pair before it is reset.
    /// All posted requests except for the last `outstanding` have ended.
    ///
    /// # Errors
    /// A request that has ended should have produced a completion.
    pub fn before_reset(
        &mut self,
        plan: &Plan,
        (link, end): (usize, usize),
        posted: usize,
        outstanding: usize,
        look: &impl Look,
    ) -> Verdict {
        let spec = &plan.links[link].ends[end];
        for index in self.ends[link][end].outcomes.len()..posted.saturating_sub(outstanding) {
            if spec.sig_all || spec.ops[index].flags.contains(SendFlags::SIGNALED) {
                return Err(format!("request {index} ended without a completion"));
            }
            self.succeeded(plan, link, end, index, look)?;
        }
        Ok(())
    }

    /// Checks an event of an engine about a queue pair.
    pub fn on_event(&mut self, plan: &Plan, link: usize, end: usize, event: &Event) -> Verdict {
        match event {
            Event::ResponderFailed { error, .. } => {
                self.ends[link][end].responder_failed = true;
                let peer = &plan.links[link].ends[1 - end];
                let flaws = || peer.ops.iter().filter_map(|op| op.flaw);
                let side = plan.links[link].ends[end].side;
                let excused = match error {
                    ResponderError::RemoteAccess(_) => {
                        flaws().any(is_remote) || self.deregistered[side].is_some()
                    }
                    ResponderError::BadReceiveBuffer(_) => {
                        flaws().any(|f| f == Flaw::BadReceive) || self.deregistered[side].is_some()
                    }
                    ResponderError::MessageTooLong => flaws().any(|f| f == Flaw::TooLong),
                    ResponderError::OperationNotEnabled => flaws().any(|f| f == Flaw::NotEnabled),
                    _ => false,
                };
                excused.then_some(()).ok_or_else(|| format!("the responder failed: {error}"))
            }
            Event::CqOverflow { .. } => Err("a completion queue overflowed".into()),
            _ => Ok(()),
        }
    }

    /// Checks a completion that was polled from a queue.
    pub fn on_completion(
        &mut self,
        plan: &Plan,
        link: usize,
        end: usize,
        completion: &Completion,
        posted: [usize; 2],
        look: &impl Look,
    ) -> Verdict {
        let index = usize::try_from(completion.id & !RECEIVE).map_err(|_| "a strange id")?;
        let is_receive = completion.id & RECEIVE != 0;
        if index >= posted[usize::from(is_receive)] {
            return Err("completed before it was posted".into());
        }
        if is_receive {
            self.receive_ended(plan, link, end, index, completion, look)
        } else {
            self.send_ended(plan, link, end, index, completion, look)
        }
    }

    fn send_ended(
        &mut self,
        plan: &Plan,
        link: usize,
        end: usize,
        index: usize,
        completion: &Completion,
        look: &impl Look,
    ) -> Verdict {
        let spec = &plan.links[link].ends[end];
        let status = completion.status;
        let known = self.ends[link][end].outcomes.len();
        if index < known {
            return Err(format!("request {index} completed twice or out of order ({status})"));
        }
        let failed = self.ends[link][end].outcomes.last().is_some_and(|s| *s != Status::Success);
        // Requests in between were unsignaled and succeeded, because a failure produces a completion.
        for between in known..index {
            let op = &spec.ops[between];
            if failed || spec.sig_all || op.flags.contains(SendFlags::SIGNALED) {
                return Err(format!("request {index} completed, but {between} did not ({status})"));
            }
            self.succeeded(plan, link, end, between, look)?;
        }
        let op = &spec.ops[index];
        if status == Status::Success {
            if failed {
                return Err(format!("request {index} went well after a failure"));
            }
            if !spec.sig_all && !op.flags.contains(SendFlags::SIGNALED) {
                return Err(format!("request {index} is unsignalled, yet has a completion"));
            }
            if completion.byte_len != op.len() || completion.op != kind_of(op.verb) {
                return Err(format!("request {index}: {op:?} completed as {completion:?}"));
            }
            self.succeeded(plan, link, end, index, look)
        } else {
            if failed && status != Status::WorkRequestFlushed {
                return Err(format!("request {index}: {status} after an earlier failure"));
            }
            if !failed {
                self.judge(plan, link, end, index, status, look)?;
            }
            self.ends[link][end].outcomes.push(status);
            Ok(())
        }
    }

    /// Checks that this request may be the first failure of its queue pair, with this status.
    fn judge(
        &self,
        plan: &Plan,
        link: usize,
        end: usize,
        index: usize,
        status: Status,
        look: &impl Look,
    ) -> Verdict {
        let spec = &plan.links[link].ends[end];
        let op = &spec.ops[index];
        let own = &self.ends[link][end];
        let peer_side = plan.links[link].ends[1 - end].side;
        let peer_is_gone =
            matches!(look.state(link, 1 - end), QpState::Err | QpState::Reset | QpState::Init);
        let local_gone = self.deregistered[spec.side].is_some();
        let peer_gone = self.deregistered[peer_side].is_some();
        let in_victim = |places: &[Place]| places.iter().any(|p| p.area == Area::Victim);
        let receive_in_victim = || {
            let message = spec.ops[..index].iter().filter(|op| op.consumes()).count();
            let receive = plan.links[link].ends[1 - end].receives.get(message);
            receive.is_some_and(|receive| in_victim(&receive.places))
        };
        let excused = match status {
            Status::RetryExceeded => plan.may_give_up() || peer_is_gone,
            Status::RnrRetryExceeded => spec.attr.rnr_retry < 7,
            Status::WorkRequestFlushed => own.stopped || own.responder_failed,
            Status::LocalProtection => {
                matches!(op.flaw, Some(Flaw::LocalKey | Flaw::LocalBeyond))
                    || (local_gone && in_victim(&op.local))
            }
            Status::RemoteAccess => {
                op.flaw.is_some_and(is_remote)
                    || (peer_gone && op.remote.is_some_and(|p| p.area == Area::Victim))
            }
            Status::RemoteInvalidRequest => {
                matches!(op.flaw, Some(Flaw::TooLong | Flaw::NotEnabled))
            }
            Status::RemoteOperation => {
                op.flaw == Some(Flaw::BadReceive) || (peer_gone && receive_in_victim())
            }
            _ => false,
        };
        excused.then_some(()).ok_or_else(|| format!("request {index} failed: {status} ({op:?})"))
    }

    /// Records that a request succeeded, and checks that its bytes have arrived.
    fn succeeded(
        &mut self,
        plan: &Plan,
        link: usize,
        end: usize,
        index: usize,
        look: &impl Look,
    ) -> Verdict {
        let op = &plan.links[link].ends[end].ops[index];
        if op.flaw.is_some() {
            return Err(format!("request {index} went well although it is flawed: {op:?}"));
        }
        self.ends[link][end].outcomes.push(Status::Success);
        let own = plan.links[link].ends[end].side;
        if op.verb.is_atomic() {
            let range = plan.sides[own].layout.range(op.local[0]);
            let mut found = [0; 8];
            look.look(own, range.start, &mut found);
            self.memory[own][range].copy_from_slice(&found);
            self.ends[link][end].found.push((index, u64::from_ne_bytes(found)));
            return Ok(());
        }
        let effect = self.effect(plan, link, end, index, 0, op.len());
        for (side, at, bytes) in effect {
            let mut there = vec![0; bytes.len()];
            look.look(side, at, &mut there);
            // A later WRITE of the same queue pair may already have overwritten these bytes.
            let rewritten = matches!(op.verb, Verb::Write { .. })
                && later_writes(&plan.links[link].ends[end].ops[index + 1..], op.remote);
            if there != bytes && !rewritten {
                let first = there.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(0);
                return Err(format!(
                    "request {index} completed, but byte {first} of {} at {at:#x} of side {side} \
                     is wrong: {op:?}",
                    bytes.len()
                ));
            }
            self.memory[side][at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Returns the effect of bytes `from..to` of a request's message: side, offset in its memory, bytes.
    fn effect(
        &self,
        plan: &Plan,
        link: usize,
        end: usize,
        index: usize,
        from: u32,
        to: u32,
    ) -> Vec<(usize, usize, Vec<u8>)> {
        let ends = &plan.links[link].ends;
        let op = &ends[end].ops[index];
        let (own, peer) = (ends[end].side, ends[1 - end].side);
        let remote: Vec<Place> = match op.verb {
            Verb::Send { .. } => {
                let message = ends[end].ops[..index].iter().filter(|op| op.consumes()).count();
                ends[1 - end].receives[message].places.clone()
            }
            _ => op.remote.into_iter().collect(),
        };
        let local = (own, op.local.as_slice());
        let remote = (peer, remote.as_slice());
        let (source, sink) = if op.verb == Verb::Read { (remote, local) } else { (local, remote) };
        let mut bytes = Vec::new();
        for (at, len) in pieces(plan, source, from, to) {
            bytes.extend_from_slice(&self.memory[source.0][at..at + len]);
        }
        let mut effect = Vec::new();
        let mut rest = bytes.as_slice();
        for (at, len) in pieces(plan, sink, from, to) {
            let (here, after) = rest.split_at(len.min(rest.len()));
            effect.push((sink.0, at, here.to_vec()));
            rest = after;
        }
        effect
    }

    fn receive_ended(
        &mut self,
        plan: &Plan,
        link: usize,
        end: usize,
        index: usize,
        completion: &Completion,
        look: &impl Look,
    ) -> Verdict {
        let model = &mut self.ends[link][end];
        if index != model.received {
            let next = model.received;
            return Err(format!("receive {index} ended, the next is {next}: {completion:?}"));
        }
        model.received += 1;
        let peer = &plan.links[link].ends[1 - end];
        let message = peer.ops.iter().enumerate().filter(|(_, op)| op.consumes()).nth(index);
        let Some((sent, op)) = message else {
            return Err(format!("receive {index} ended, but no message is for it"));
        };
        if completion.status == Status::Success {
            let (kind, imm) = match op.verb {
                Verb::Write { imm } => (CompletionOp::RecvRdmaWithImm, imm),
                Verb::Send { imm } => (CompletionOp::Recv, imm),
                _ => return Err("no message".into()),
            };
            let want = Completion {
                status: Status::Success,
                op: kind,
                byte_len: op.len(),
                imm: imm.map(Immediate::Data),
                src_qp: peer.qpn,
                solicited: op.flags.contains(SendFlags::SOLICITED),
                ..*completion
            };
            if model.receive_failed || *completion != want || op.flaw.is_some() {
                return Err(format!("receive {index}: {completion:?}, but {want:?} was sent"));
            }
            model.received_well += 1;
            if !matches!(op.verb, Verb::Send { .. }) {
                return Ok(());
            }
            for (side, at, bytes) in self.effect(plan, link, 1 - end, sent, 0, op.len()) {
                let mut there = vec![0; bytes.len()];
                look.look(side, at, &mut there);
                if there != bytes {
                    return Err(format!("receive {index} ended, but its bytes are not there"));
                }
                self.memory[side][at..at + bytes.len()].copy_from_slice(&bytes);
            }
            return Ok(());
        }
        let side = plan.links[link].ends[end].side;
        let gone = self.deregistered[side].is_some();
        let flaw = op.flaw;
        let model = &mut self.ends[link][end];
        let excused = match completion.status {
            Status::WorkRequestFlushed => {
                model.receive_failed
                    || model.stopped
                    || model.responder_failed
                    || look.state(link, end) == QpState::Err
            }
            Status::LocalLength => !model.receive_failed && flaw == Some(Flaw::TooLong),
            Status::LocalProtection => {
                !model.receive_failed && (flaw == Some(Flaw::BadReceive) || gone)
            }
            _ => false,
        };
        model.receive_failed = true;
        excused
            .then_some(())
            .ok_or_else(|| format!("receive {index} failed: {}", completion.status))
    }
}

/// Returns the memory ranges that bytes `from..to` of a scatter/gather list occupy, as (offset, length).
fn pieces(
    plan: &Plan,
    (side, places): (usize, &[Place]),
    from: u32,
    to: u32,
) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let (mut skip, mut left) = (from as usize, (to - from) as usize);
    for &place in places {
        let range = plan.sides[side].layout.range(place);
        let here = range.len().saturating_sub(skip).min(left);
        if here > 0 {
            found.push((range.start + skip, here));
        }
        skip = skip.saturating_sub(range.len());
        left -= here;
    }
    found
}

/// Returns whether one of these requests WRITEs to `place`.
fn later_writes(ops: &[Op], place: Option<Place>) -> bool {
    let overlaps = |a: Place, b: Place| {
        a.area == b.area && a.at < b.at + u64::from(b.len) && b.at < a.at + u64::from(a.len)
    };
    let mut writes = ops.iter().filter(|op| matches!(op.verb, Verb::Write { .. }));
    writes.any(|op| op.remote.zip(place).is_some_and(|(a, b)| overlaps(a, b)))
}

/// Returns whether the peer refuses a request with this flaw with a remote access error.
fn is_remote(flaw: Flaw) -> bool {
    use Flaw::{Below, Beyond, NoRight, OtherDomain, WrongKey};
    matches!(flaw, WrongKey | Below | Beyond | NoRight | OtherDomain)
}

fn kind_of(verb: Verb) -> CompletionOp {
    match verb {
        Verb::Send { .. } => CompletionOp::Send,
        Verb::Write { .. } => CompletionOp::RdmaWrite,
        Verb::Read => CompletionOp::RdmaRead,
        Verb::CompareSwap { .. } => CompletionOp::CompareSwap,
        Verb::FetchAdd { .. } => CompletionOp::FetchAdd,
    }
}
