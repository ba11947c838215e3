//! Decides which requests may fail, with which status, and which must fail.

use rxe_core::mem::{Access, WindowType};
use rxe_core::qp::QpState;
use rxe_core::queue::Status;

use super::{Judge, Look, Sent, Verdict};
use crate::sim::memory::{Area, Place};
use crate::sim::script::{By, Flaw, Op, Queue, Verb};

/// Whether an access is allowed, as far as the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// The access must succeed.
    Sure,
    /// The access may succeed or fail.
    Maybe,
    /// The access must fail.
    Never,
}

impl Judge<'_> {
    /// Checks that a request that succeeded was allowed to succeed.
    pub(super) fn must_not_be_bad(&self, qp: usize, index: usize) -> Verdict {
        let op = self.op_of(qp, index);
        if op.flaw == Some(Flaw::WrongQkey) {
            // Only the receiver can detect a wrong Q_Key.
            return Ok(());
        }
        let local = op.flaw == Some(Flaw::LocalKey) || matches!(op.verb, Verb::Bind(_));
        let flawed = op.is_flawed() && (local || self.is_reliable(qp));
        let refused =
            (self.is_reliable(qp) || op.remote.is_none()) && self.right(qp, index) == Right::Never;
        if flawed || refused {
            let why = if flawed { "it is flawed" } else { "it had no right to" };
            return Err(format!("{} went well, but {why}", self.name_of(qp, index)));
        }
        Ok(())
    }

    /// Checks that this request may be the first failure of its queue pair, with this status.
    pub(super) fn judge_failure(
        &mut self,
        qp: usize,
        index: usize,
        status: Status,
        look: &impl Look,
    ) -> Verdict {
        let op = self.op_of(qp, index);
        let known = &self.qps[qp];
        let excused = match status {
            Status::RetryExceeded => self.network_is_bad() || self.peer_is_gone(qp, look),
            Status::WorkRequestFlushed => {
                known.stopped || known.responder_failed || known.overflowed
            }
            Status::LocalProtection => {
                let side = self.script.qps[qp].side;
                op.flaw == Some(Flaw::LocalKey) || self.in_deregistered(side, &op.local)
            }
            Status::RemoteAccess => self.right(qp, index) != Right::Sure,
            Status::RemoteInvalidRequest => {
                let queue = self.script.queue_of(qp, op);
                queue.is_some_and(|queue| self.has_short_receive(queue, op.len()))
            }
            Status::RemoteOperation => self.peer_can_not(qp, op),
            Status::MemoryWindowBind => {
                matches!(op.verb, Verb::Bind(_)) && self.right(qp, index) != Right::Sure
            }
            Status::LocalQpOperation => {
                matches!(op.verb, Verb::Invalidate(_)) && self.right(qp, index) != Right::Sure
            }
            _ => false,
        };
        if !excused {
            return Err(format!("{} failed: {status}", self.name_of(qp, index)));
        }
        match status {
            Status::RemoteAccess if matches!(op.remote, Some((_, By::Window(_)))) => {
                self.met("windows closed to a peer");
            }
            Status::MemoryWindowBind => self.met("windows not bound"),
            Status::RemoteOperation if op.srq.is_some() => self.met("XRC queues refused"),
            _ => {}
        }
        Ok(())
    }

    fn peer_is_gone(&self, qp: usize, look: &impl Look) -> bool {
        self.script.qps[qp].peer.is_none_or(|peer| {
            let known = &self.qps[peer];
            !matches!(look.state(peer), QpState::Rts | QpState::Rtr | QpState::Sqd)
                || known.stopped
                || known.failed
        })
    }

    /// Returns whether the peer may be unable to execute the request because of its own memory or queues.
    fn peer_can_not(&self, qp: usize, op: &Op) -> bool {
        if op.flaw == Some(Flaw::WrongSrq) || op.srq.is_some_and(|srq| self.withdrawn[srq]) {
            return true;
        }
        let queue = self.script.queue_of(qp, op);
        queue.is_some_and(|queue| self.has_lost_receive(queue))
    }

    /// Returns whether the queue had a receive that is too short for a message of `len` bytes.
    pub(super) fn has_short_receive(&self, queue: Queue, len: u32) -> bool {
        let receives = self.queues.get(&queue);
        let short = |places: &[Place]| places.iter().map(|p| p.len).sum::<u32>() < len;
        receives.is_some_and(|receives| receives.all().any(|step| short(self.places(step))))
    }

    /// Returns whether the memory of any receive of the queue was deregistered.
    pub(super) fn has_lost_receive(&self, queue: Queue) -> bool {
        let side = self.script.side_of(queue);
        let receives = self.queues.get(&queue);
        receives.is_some_and(|receives| {
            receives.all().any(|step| self.in_deregistered(side, self.places(step)))
        })
    }

    pub(super) fn in_deregistered(&self, side: usize, places: &[Place]) -> bool {
        let in_victim = places.iter().any(|p| p.area == Area::Victim && p.len > 0);
        self.deregistered[side].is_some() && in_victim
    }

    /// Returns whether a request has the right to the memory that it names.
    pub(super) fn right(&self, qp: usize, index: usize) -> Right {
        let op = self.op_of(qp, index);
        let sent = &self.qps[qp].sends[index];
        match (op.verb, op.remote) {
            (Verb::Bind(_), _) => self.right_to_bind(qp, index),
            (Verb::SendInvalidate(bind) | Verb::Invalidate(bind), _) => {
                self.right_to_invalidate(bind, sent.posted, sent.step, qp)
            }
            _ if op.is_flawed() => Right::Never,
            (verb, Some((place, By::Window(bind)))) => {
                self.right_by_window(qp, index, bind, verb, place)
            }
            (_, Some((place, By::Region))) => {
                let gone = &self.deregistered[self.peer_side(qp)];
                match gone {
                    // A deregistered region refuses a range of one byte or more. A FLUSH with an
                    // empty range may still name the region.
                    Some((when, _)) if place.area == Area::Victim => {
                        let touches = place.len > 0;
                        let late = *when < sent.posted && touches;
                        if late { Right::Never } else { Right::Maybe }
                    }
                    _ => Right::Sure,
                }
            }
            _ => Right::Sure,
        }
    }

    fn right_by_window(
        &self,
        qp: usize,
        index: usize,
        bind: usize,
        verb: Verb,
        place: Place,
    ) -> Right {
        let sent = &self.qps[qp].sends[index];
        let Some(binding) = self.bindings.get(&bind) else { return Right::Never };
        let need = if verb == Verb::Read { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
        if place.len == 0 {
            return Right::Sure;
        }
        let other =
            binding.kind == WindowType::Type2 && self.script.qps[qp].peer != Some(binding.binder);
        let lacks = !self.script.bind(bind).access.contains(need);
        // Whether an earlier request of the same queue pair has invalidated the window.
        let taken = binding.disturbed.iter().any(|&(when, step)| {
            let mut own = self.qps[qp].sends.iter();
            let by = own.find(|s| s.step == step && when < sent.posted);
            by.is_some_and(|by| by.outcome == Some(Status::Success))
        });
        let gone = binding.gone.is_some_and(|gone| gone < sent.posted);
        if binding.failed || other || lacks || taken || gone {
            return Right::Never;
        }
        let bound = binding.bound.is_some_and(|bound| bound < sent.posted);
        if bound && binding.disturbed.is_empty() { Right::Sure } else { Right::Maybe }
    }

    fn right_to_invalidate(&self, bind: usize, posted: u64, step: usize, qp: usize) -> Right {
        let Some(binding) = self.bindings.get(&bind) else { return Right::Never };
        if binding.kind == WindowType::Type1 {
            return Right::Never;
        }
        if binding.failed || binding.gone.is_some_and(|gone| gone < posted) {
            return Right::Never;
        }
        // If the same queue pair has bound the window, the bind is executed before this request.
        let in_order = binding.binder == qp && binding.bound.is_some();
        let bound = in_order || binding.bound.is_some_and(|bound| bound < posted);
        let others = binding.disturbed.iter().any(|&(_, by)| by != step);
        if bound && !others && binding.gone.is_none() { Right::Sure } else { Right::Maybe }
    }

    fn right_to_bind(&self, qp: usize, index: usize) -> Right {
        let op = self.op_of(qp, index);
        let sent = &self.qps[qp].sends[index];
        let Verb::Bind(bind) = op.verb else { return Right::Sure };
        if op.is_flawed() {
            return Right::Never;
        }
        let mut right = Right::Sure;
        for (&step, other) in &self.bindings {
            if other.window != bind.window || step == sent.step || other.failed {
                continue;
            }
            // Whether the other binding ended before this request was posted, or by an earlier
            // request of this queue pair.
            let own = &self.qps[qp].sends;
            let in_turn = other.disturbed.iter().any(|&(when, by)| {
                let ended = |s: &Sent| s.step == by && s.outcome == Some(Status::Success);
                when < sent.posted && own.iter().any(ended)
            });
            let closed = other.gone.is_some_and(|gone| gone < sent.posted || in_turn);
            let open = self.script.bind(step).place.len > 0 && !closed;
            let earlier = other.posted < sent.posted;
            let settled = other.bound.is_some() || other.gone.is_some();
            if other.kind == WindowType::Type2 && earlier && open {
                let held = other.bound.is_some_and(|bound| bound < sent.posted);
                if held && other.disturbed.is_empty() {
                    return Right::Never;
                }
                right = Right::Maybe;
            }
            // If two queue pairs bind the window simultaneously, only one of them knows its key.
            let later = |when: Option<u64>| when.is_some_and(|when| when > sent.posted);
            let rivals =
                other.binder != qp && (!settled || later(other.bound) || later(other.gone));
            let lost = other.disturbed.iter().any(|&(_, by)| by == usize::MAX);
            if rivals || lost || other.unknown {
                right = Right::Maybe;
            }
        }
        right
    }
}
