//! Checks the events of engines: each must be true, and must come when it is due.

use rxe_core::engine::{Event, ResponderError, RetryCause};
use rxe_core::qp::{QpState, QpType};
use rxe_core::wire::DropReason;
use rxe_net::FaultAction;

use super::blame::Right;
use super::{Binding, Judge, Look, Verdict};
use crate::sim::memory::Area;
use crate::sim::script::{Flaw, Queue, Verb};

/// The state of a shared receive queue's limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Limit {
    /// The armed limit, until its event comes.
    armed: Option<u32>,
    /// The number of receives that have ended.
    pub(super) ended: usize,
    /// The value of `ended` when the limit was armed.
    ended_then: usize,
    /// Whether the event has come since the last check.
    told: bool,
}

impl Judge<'_> {
    /// Records that the program armed a limit of a shared receive queue; 0 disarms it.
    pub fn on_limit(&mut self, srq: usize, limit: u32, look: &impl Look) {
        let state = &mut self.limits[srq];
        state.armed = (limit > 0).then_some(limit);
        state.ended_then = state.ended + look.unseen(self.script.srqs[srq].side);
    }

    /// Records that the program removed a shared receive queue from its domain.
    pub fn on_withdrawn(&mut self, srq: usize) {
        self.withdrawn[srq] = true;
    }

    /// Records that a queue pair was attached to a group (`hears` is true) or detached from it.
    pub fn on_group(&mut self, qp: usize, group: usize, hears: bool) {
        let known = &mut self.qps[qp];
        known.groups[group] = hears;
        known.heard[group] |= hears;
        known.left |= !hears;
    }

    /// Records that the victim area of a side was deregistered.
    pub fn on_deregistered(&mut self, side: usize, look: &impl Look) {
        let when = self.tick();
        let range = self.script.sides[side].layout.area_range(Area::Victim);
        let mut bytes = vec![0; range.len()];
        look.look(side, range.start, &mut bytes);
        self.deregistered[side].get_or_insert((when, bytes));
    }

    /// Checks a reregistration of the region to which a side's windows are bound.
    /// `windows` is the number of bound windows that the call reported; `allowed` says whether it
    /// succeeded.
    ///
    /// # Errors
    /// The number or the outcome is wrong.
    pub fn on_registered(&mut self, side: usize, windows: usize, allowed: bool) -> Verdict {
        let (mut least, mut most) = (0, 0);
        for window in 0..self.script.windows.len() {
            if self.script.windows[window].side != side {
                continue;
            }
            let open = |step: &usize| self.script.bind(*step).place.len > 0;
            let mut own = self.bindings.iter().filter(|(_, b)| b.window == window);
            let sure =
                |b: &Binding| b.bound.is_some() && b.gone.is_none() && b.disturbed.is_empty();
            least += usize::from(own.clone().any(|(step, b)| open(step) && sure(b)));
            most += usize::from(own.any(|(step, b)| open(step) && !b.failed && b.gone.is_none()));
        }
        if !(least..=most).contains(&windows) || allowed != (windows == 0) {
            let what = if allowed { "registered anew" } else { "not registered anew" };
            return Err(format!("{windows} windows are bound, of {least} to {most}: {what}"));
        }
        self.met(if allowed { "regions registered anew" } else { "regions held by windows" });
        Ok(())
    }

    /// Checks an event of an engine. `qp`: the queue pair of the event, if known.
    ///
    /// # Errors
    /// The event is not true, or must not happen.
    pub fn on_event(
        &mut self,
        side: usize,
        qp: Option<usize>,
        event: &Event,
        look: &impl Look,
    ) -> Verdict {
        match (event, qp) {
            (Event::SrqLimitReached { srq }, _) => self.on_limit_reached(*srq as usize),
            (Event::Dropped { reason, .. }, Some(qp)) => self.on_drop(qp, *reason, look),
            (Event::LastWqeReached { .. }, Some(qp)) => {
                self.qps[qp].last_taken += 1;
                let shared = self.script.qps[qp].srq.is_some();
                let wrong =
                    !shared || self.qps[qp].last_taken > 1 || look.state(qp) != QpState::Err;
                self.met("last receives taken");
                if wrong { Err(format!("{event} ({event:?})")) } else { Ok(()) }
            }
            (Event::CqOverflow { cq, .. }, Some(qp)) => {
                let cq = look.cq(side, *cq).ok_or("an overflow of no queue of this side")?;
                self.on_overflow(side, cq, qp, look)
            }
            (Event::ResponderFailed { error, .. }, Some(qp)) => {
                self.qps[qp].responder_failed = true;
                let excused = self.may_refuse(qp, *error);
                excused.then_some(()).ok_or_else(|| format!("the responder failed: {error}"))
            }
            (Event::Retry { cause, .. }, Some(qp)) if *cause != RetryCause::ReceiverNotReady => {
                let peer = self.script.qps[qp].peer;
                let gone = peer
                    .is_none_or(|peer| look.state(peer) == QpState::Err || self.qps[peer].stopped);
                if self.is_calm() && !gone {
                    return Err(format!("a retry on a perfect network: {event}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_limit_reached(&mut self, srq: usize) -> Verdict {
        self.met("SRQ limits reached");
        let limit = &mut self.limits[srq];
        limit.told = true;
        let Some(armed) = limit.armed.take() else {
            return Err(format!("SRQ {srq} told its limit without being asked to"));
        };
        let queue = Queue::Shared(srq);
        let takers = self.script.takers(queue).count();
        let receives = self.queues.entry(queue).or_default();
        let least = receives.waiting.len().saturating_sub(takers + receives.lost);
        // The completions of this moment are not polled yet. They cannot be more than all receives
        // ever posted.
        if least > armed as usize + receives.all().count() {
            return Err(format!("SRQ {srq} told its limit of {armed}, but holds {least}"));
        }
        Ok(())
    }

    /// Checks, after all events and completions of a moment, that every due limit event has come.
    ///
    /// # Errors
    /// A due event is missing.
    pub fn check_limits(&mut self, look: &impl Look) -> Verdict {
        for srq in 0..self.limits.len() {
            let queue = Queue::Shared(srq);
            let takers = self.script.takers(queue).count();
            let limit = &mut self.limits[srq];
            let told = std::mem::take(&mut limit.told);
            let Some(receives) = self.queues.get(&queue) else { continue };
            let waiting = look.waiting(queue) as usize;
            if receives.loose {
                continue;
            }
            if waiting > receives.waiting.len() {
                return Err(format!("SRQ {srq} holds more receives than were posted"));
            }
            let unseen = look.unseen(self.script.srqs[srq].side);
            if waiting + takers + receives.lost + unseen < receives.waiting.len() {
                return Err(format!("SRQ {srq} has lost receives"));
            }
            if receives.overtaken() > takers + receives.lost + unseen {
                return Err(format!("receives of SRQ {srq} are not taken in order"));
            }
            // A queue pair may take a receive long before it completes. The limit was reached for
            // certain only when more receives have ended than queue pairs could hold when it was armed.
            let taken = limit.ended > limit.ended_then + takers;
            if let Some(armed) = limit.armed
                && taken
                && receives.waiting.len() < armed as usize
                && !told
            {
                return Err(format!("SRQ {srq} did not tell its limit of {armed}"));
            }
        }
        Ok(())
    }

    /// Checks that completion queue `cq` of a side overflowed and lost a completion of `qp`.
    fn on_overflow(&mut self, side: usize, cq: usize, qp: usize, look: &impl Look) -> Verdict {
        self.met("completion queues overflowed");
        if !look.overflowed(side, cq) {
            return Err("an overflow that is none".into());
        }
        for other in 0..self.qps.len() {
            let spec = &self.script.qps[other];
            let behind = other == qp || (spec.side == side && spec.cqs.contains(&cq));
            let is_target = spec.side == side && spec.service == QpType::XrcRecv;
            if behind && !matches!(look.state(other), QpState::Err | QpState::Reset) {
                return Err(format!("QP {} goes on behind an overflow", self.qps[other].qpn));
            }
            if behind || is_target {
                self.lose_completions(other);
            }
        }
        Ok(())
    }

    /// Records that completions of a queue pair may be missing from now on.
    pub(super) fn lose_completions(&mut self, qp: usize) {
        self.qps[qp].overflowed = true;
        self.qps[qp].stopped = true;
        let shared = (0..self.script.srqs.len()).map(Queue::Shared);
        for queue in shared.chain([Queue::Own(qp)]) {
            if self.script.takers(queue).any(|taker| taker == qp) {
                let receives = self.queues.entry(queue).or_default();
                (receives.loose, receives.was_loose) = (true, true);
            }
        }
    }

    /// Returns whether a responder has a reason for this error.
    fn may_refuse(&self, qp: usize, error: ResponderError) -> bool {
        let Some(peer) = self.script.qps[qp].peer else { return false };
        let ops = self.qps[peer].start..self.qps[peer].sends.len();
        let mut wrong = ops.clone().filter(|&i| self.right(peer, i) != Right::Sure);
        let queues: Vec<_> = ops.filter_map(|i| self.queue_for(peer, i)).collect();
        match error {
            ResponderError::RemoteAccess(_) => wrong.next().is_some(),
            ResponderError::InvalidateRefused => {
                wrong.any(|i| matches!(self.op_of(peer, i).verb, Verb::SendInvalidate(_)))
            }
            ResponderError::MessageTooLong => {
                queues.iter().any(|&(queue, len)| self.has_short_receive(queue, len))
            }
            ResponderError::BadReceiveBuffer(_) => {
                queues.iter().any(|&(queue, _)| self.has_lost_receive(queue))
            }
            ResponderError::UnknownXrcSrq => {
                let start = self.qps[peer].start;
                (start..self.qps[peer].sends.len()).any(|i| {
                    let op = self.op_of(peer, i);
                    op.flaw == Some(Flaw::WrongSrq) || op.srq.is_some_and(|srq| self.withdrawn[srq])
                })
            }
            _ => false,
        }
    }

    fn peer_has_failed(&self, qp: usize) -> bool {
        self.script.qps[qp].peer.is_some_and(|peer| self.qps[peer].failed)
    }

    /// Returns whether the peer has posted a request that it may have no right to.
    fn may_refuse_peer(&self, qp: usize) -> bool {
        self.script.qps[qp].peer.is_some_and(|peer| {
            let mut posted = 0..self.qps[peer].sends.len();
            posted.any(|index| self.right(peer, index) != Right::Sure)
        })
    }

    fn queue_for(&self, qp: usize, index: usize) -> Option<(Queue, u32)> {
        let op = self.op_of(qp, index);
        self.script.queue_of(qp, op).map(|queue| (queue, op.len()))
    }

    /// Checks that there is a reason to drop a packet for a queue pair.
    fn on_drop(&mut self, qp: usize, reason: DropReason, look: &impl Look) -> Verdict {
        self.qps[qp].dropped += 1;
        let service = self.script.qps[qp].service;
        let excused = match reason {
            DropReason::ReceiveQueueEmpty => {
                // An incomplete UC message may still hold a receive.
                let held = u32::from(service == QpType::Uc);
                look.waiting(self.script.queue(qp)) <= held
            }
            DropReason::WrongQkey => service == QpType::Ud && self.has_stranger(qp),
            DropReason::ReceiveTooSmall => {
                let longest = self.script.longest + 40;
                self.has_short_receive(self.script.queue(qp), longest)
            }
            DropReason::AccessDenied => {
                self.may_refuse_peer(qp) || self.has_lost_receive(self.script.queue(qp))
            }
            DropReason::MessageBroken => service == QpType::Uc,
            DropReason::GapAlreadyReported => true,
            DropReason::IcrcMismatch => self.script.network.has(FaultAction::Corrupt),
            // The packet belongs to a connection that has ended or is just starting. A responder
            // that refuses a request answers earlier requests first, and drops later packets
            // although it is still in RTS.
            DropReason::WrongQpState | DropReason::UnknownQp => {
                !self.is_calm() || look.state(qp) != QpState::Rts || self.may_refuse_peer(qp)
            }
            // A queue pair that fails while READ data waits acknowledges the requests before the
            // READ. These may be acknowledged already.
            DropReason::StaleResponse => !self.is_calm() || self.peer_has_failed(qp),
            _ => !self.is_calm(),
        };
        if excused { Ok(()) } else { Err(format!("dropped without a reason: {reason}")) }
    }
}
