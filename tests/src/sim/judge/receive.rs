//! Receives, and the message that each of them holds.

use rxe_core::qp::{QpState, QpType};
use rxe_core::queue::{Completion, CompletionOp, Immediate, SendFlags, Status};
use rxe_core::wire::grh::{self, Grh};
use rxe_net::FaultAction;

use super::{Judge, Look, Verdict};
use crate::sim::memory::Place;
use crate::sim::script::{Deed, Flaw, GROUP_KEY, Op, Queue, To, Verb};

/// The bit that marks the ID of a receive. The other bits are the number of the step.
pub const RECEIVE: u64 = 1 << 63;

/// The receives posted to a queue.
#[derive(Debug, Default)]
pub(super) struct Receives {
    /// The number of receives posted so far.
    posted: usize,
    /// Receives that have not ended, the oldest first: the position among all posted ones, and the step.
    pub(super) waiting: Vec<(usize, usize)>,
    /// The position of the newest receive that has ended.
    newest: usize,
    /// The steps of receives that have ended, with the length of the message if there was one.
    pub(super) ended: Vec<(usize, Option<u32>)>,
    /// The number of receives that messages may have taken without a completion.
    pub(super) lost: usize,
    /// Whether completions were lost, so that it is not known which receives have ended.
    pub(super) loose: bool,
    /// Whether `loose` was ever set.
    pub(super) was_loose: bool,
}

impl Receives {
    /// Returns how many waiting receives were posted before one that has ended.
    pub(super) fn overtaken(&self) -> usize {
        self.waiting.iter().take_while(|(order, _)| *order < self.newest).count()
    }

    /// Returns the steps of all receives that were ever posted.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> + '_ {
        self.waiting.iter().map(|(_, step)| *step).chain(self.ended.iter().map(|(step, _)| *step))
    }
}

impl Judge<'_> {
    /// Records that a receive was posted to a queue.
    pub fn on_receive_posted(&mut self, queue: Queue, step: usize) {
        self.tick();
        let receives = self.queues.entry(queue).or_default();
        receives.waiting.push((receives.posted, step));
        receives.posted += 1;
    }

    /// Returns the places of a receive's buffers.
    pub(super) fn places(&self, step: usize) -> &[Place] {
        match &self.script.steps[step].deed {
            Deed::Receive(_, places) => places,
            _ => &[],
        }
    }

    /// Drops the receives of a queue pair that is reset. It may also have taken one of a shared queue.
    pub(super) fn forget_receives(&mut self, qp: usize) {
        let own = self.queues.entry(Queue::Own(qp)).or_default();
        own.ended.extend(own.waiting.drain(..).map(|(_, step)| (step, None)));
        own.loose = false;
        for srq in 0..self.script.srqs.len() {
            let queue = Queue::Shared(srq);
            if self.script.takers(queue).any(|taker| taker == qp) {
                self.queues.entry(queue).or_default().lost += 1;
            }
        }
    }

    /// Checks the completion of a receive, from completion queue `cq` of the queue pair's side.
    ///
    /// # Errors
    /// The completion should not exist, or should be different.
    pub fn on_receive(
        &mut self,
        qp: usize,
        cq: usize,
        completion: &Completion,
        look: &impl Look,
    ) -> Verdict {
        self.tick();
        let step = usize::try_from(completion.id & !RECEIVE).unwrap_or(usize::MAX);
        let Some(Deed::Receive(queue, _)) = self.script.steps.get(step).map(|s| &s.deed) else {
            return Err(format!("no receive has this number: {completion:?}"));
        };
        let queue = *queue;
        if !self.script.takers(queue).any(|taker| taker == qp) {
            return Err(format!("a receive of {queue:?} for another: {completion:?}"));
        }
        let of_srq = match queue {
            Queue::Shared(srq) => self.script.srqs[srq].cq,
            Queue::Own(_) => None,
        };
        if of_srq.unwrap_or(self.script.qps[qp].cqs[1]) != cq {
            return Err(format!("in the wrong completion queue: {completion:?}"));
        }
        self.take_receive(queue, step)?;
        let bytes = if completion.status == Status::Success {
            let len = self.match_message(qp, queue, step, completion, look)?;
            self.last_receive(queue, step, Some(len));
            return Ok(());
        } else {
            None
        };
        self.last_receive(queue, step, bytes);
        self.judge_receive_failure(qp, queue, step, completion.status, look)
    }

    /// Removes a receive that has ended from its queue. It must be the oldest, unless the queue is
    /// shared.
    fn take_receive(&mut self, queue: Queue, step: usize) -> Verdict {
        let receives = self.queues.entry(queue).or_default();
        let Some(place) = receives.waiting.iter().position(|(_, s)| *s == step) else {
            return Err(format!("receive {step} of {queue:?} ended twice or was never posted"));
        };
        // Each queue pair of a shared queue may hold one receive while later receives end.
        if place > 0 && !receives.loose && matches!(queue, Queue::Own(_)) {
            return Err(format!(
                "receive {step} of {queue:?} ended although {place} before it did not"
            ));
        }
        let (order, _) = receives.waiting.remove(place);
        receives.newest = receives.newest.max(order);
        Ok(())
    }

    fn last_receive(&mut self, queue: Queue, step: usize, len: Option<u32>) {
        self.queues.entry(queue).or_default().ended.push((step, len));
        if let Queue::Shared(srq) = queue {
            self.limits[srq].ended += 1;
        }
    }

    /// Finds the message that a receive holds. Returns how many bytes were written to the receive.
    fn match_message(
        &mut self,
        qp: usize,
        queue: Queue,
        step: usize,
        completion: &Completion,
        look: &impl Look,
    ) -> Result<u32, String> {
        let side = self.script.qps[qp].side;
        let is_ud = self.script.qps[qp].service == QpType::Ud;
        let got = completion.byte_len;
        let places = self.places(step).to_vec();
        let sender = match self.script.qps[qp].peer {
            Some(peer) => peer,
            None => self.who(completion.src_qp).ok_or("from a queue pair that never was")?,
        };
        if completion.grh != is_ud || completion.qpn != self.qps[qp].qpn {
            return Err(format!("not as it should be: {completion:?}"));
        }
        if !is_ud && self.who(completion.src_qp) != Some(sender) {
            return Err(format!("not from the peer: {completion:?}"));
        }
        let skip: u32 = if is_ud { 40 } else { 0 };
        let len = got.checked_sub(skip).ok_or("no room for a header")?;
        let filled = completion.op == CompletionOp::Recv;
        let capacity: u32 = places.iter().map(|p| p.len).sum();
        if filled && got > capacity {
            return Err(format!("receive {step} holds {capacity} bytes: {completion:?}"));
        }
        let there =
            if filled { self.actual(side, &places, got as usize, look) } else { Vec::new() };
        let found = self.candidates(qp, sender, queue).into_iter().find(|&index| {
            let op = self.op_of(sender, index);
            fits(op, completion, len, look)
                && (!filled || self.bytes_of(sender, op) == there[skip as usize..])
        });
        let Some(index) = found else {
            return Err(format!("receive {step} got what nobody sent: {completion:?}"));
        };
        let times = self.qps[sender].sends[index].delivered.iter().filter(|&&r| r == qp).count();
        let copies = 1 + usize::from(self.script.network.has(FaultAction::Duplicate));
        if times >= if self.is_reliable(qp) { 1 } else { copies } {
            return Err(format!("{} came once too often", self.name_of(sender, index)));
        }
        if is_ud {
            self.check_header(qp, sender, index, &there)?;
        }
        self.qps[sender].sends[index].delivered.push(qp);
        if !is_ud && self.is_ordered(qp) {
            self.qps[qp].next = index + 1;
        }
        let op = self.op_of(sender, index);
        if filled {
            self.take_over(side, &places, &there);
        } else if let Some((place, _)) = op.remote {
            let bytes = self.bytes_of(sender, op);
            self.must_hold(side, &[place], &bytes, look)?;
        }
        self.met(match (self.script.qps[qp].service, queue) {
            (QpType::Uc, Queue::Own(_)) => "UC messages",
            (QpType::Uc, Queue::Shared(_)) => "UC messages from an SRQ",
            (QpType::Ud, _) if matches!(op.to, Some(To::Group(_))) => "multicast datagrams",
            (QpType::Ud, Queue::Own(_)) => "UD messages",
            (QpType::Ud, Queue::Shared(_)) => "UD messages from an SRQ",
            (QpType::XrcRecv, _) => "XRC messages",
            (_, Queue::Own(_)) => "RC messages",
            (_, Queue::Shared(_)) => "RC messages from an SRQ",
        });
        if times > 0 {
            self.met("messages that came twice");
        }
        if sender == qp {
            self.met("datagrams to oneself");
        }
        Ok(if filled { got } else { 0 })
    }

    /// Returns whether messages to a queue pair cannot overtake one another or come twice.
    fn is_ordered(&self, qp: usize) -> bool {
        let disorders = [FaultAction::Reorder { by: 1 }, FaultAction::Duplicate];
        self.is_reliable(qp) || !disorders.iter().any(|&fault| self.script.network.has(fault))
    }

    /// Returns the messages of `sender` that queue pair `qp` may receive next.
    fn candidates(&self, qp: usize, sender: usize, queue: Queue) -> Vec<usize> {
        let service = self.script.qps[qp].service;
        let from = if service == QpType::Ud {
            0
        } else if service != QpType::XrcRecv && self.is_ordered(qp) {
            self.qps[qp].next
        } else {
            self.qps[sender].start
        };
        let all = from..self.qps[sender].sends.len();
        let mut list: Vec<_> = all.filter(|&index| self.is_for(qp, sender, index)).collect();
        if service == QpType::XrcRecv {
            // Messages to different shared queues complete in different completion queues.
            list.retain(|&index| {
                let op = self.op_of(sender, index);
                let new = self.qps[sender].sends[index].delivered.is_empty();
                new && self.script.queue_of(sender, op) == Some(queue)
            });
        }
        if self.is_reliable(qp) && !self.qps[qp].overflowed {
            list.truncate(1);
        }
        list
    }

    /// Returns whether `qp` may receive a request's message.
    fn is_for(&self, qp: usize, sender: usize, index: usize) -> bool {
        self.is_to(qp, sender, index) && self.has_key(qp, sender, self.op_of(sender, index))
    }

    /// Returns whether a request's message is addressed to `qp`.
    fn is_to(&self, qp: usize, sender: usize, index: usize) -> bool {
        let op = self.op_of(sender, index);
        match op.to {
            _ if !op.consumes() => false,
            None => true,
            Some(To::Qp(target)) => target == qp,
            Some(To::Reply) => self.qps[sender].sends[index].target == Some(qp),
            Some(To::Group(group)) => {
                let own = sender == qp && self.script.qps[qp].deaf;
                !own && self.qps[qp].heard[group]
            }
        }
    }

    /// Returns whether a message has the Q_Key of `qp`, if it needs one.
    fn has_key(&self, qp: usize, sender: usize, op: &Op) -> bool {
        let own = self.script.qps[qp].attr.qkey;
        match (op.flaw, op.to) {
            (_, None) => true,
            (Some(Flaw::WrongQkey), _) => false,
            (Some(Flaw::OwnQkey), _) => self.script.qps[sender].attr.qkey == own,
            (_, Some(To::Group(_))) => own == GROUP_KEY,
            _ => true,
        }
    }

    /// Returns whether a datagram was sent to `qp` with a Q_Key other than its own.
    pub(super) fn has_stranger(&self, qp: usize) -> bool {
        (0..self.qps.len()).any(|sender| {
            (0..self.qps[sender].sends.len()).any(|index| {
                let op = self.op_of(sender, index);
                op.to.is_some() && self.is_to(qp, sender, index) && !self.has_key(qp, sender, op)
            })
        })
    }

    /// Checks the addresses in the GRH in front of a datagram.
    fn check_header(&self, qp: usize, sender: usize, index: usize, there: &[u8]) -> Verdict {
        let header = there.first_chunk::<{ grh::LEN }>().ok_or("no header")?;
        let header = Grh::parse(header).map_err(|why| format!("a bad header: {why}"))?;
        let to = match self.op_of(sender, index).to {
            Some(To::Group(group)) => self.script.groups[group],
            _ => self.script.sides[self.script.qps[qp].side].ip,
        };
        let from = self.script.sides[self.script.qps[sender].side].ip;
        if (header.src, header.dst) != (from, to) {
            return Err(format!("a datagram from {from} to {to} is shown as {header:?}"));
        }
        Ok(())
    }

    fn judge_receive_failure(
        &mut self,
        qp: usize,
        queue: Queue,
        step: usize,
        status: Status,
        look: &impl Look,
    ) -> Verdict {
        let places = self.places(step);
        let capacity: u32 = places.iter().map(|p| p.len).sum();
        let side = self.script.side_of(queue);
        let excused = match status {
            Status::WorkRequestFlushed => {
                matches!(look.state(qp), QpState::Err) || self.qps[qp].stopped
            }
            Status::LocalLength => self.script.longest + 40 > capacity,
            Status::LocalProtection => self.in_deregistered(side, places),
            Status::RemoteInvalidRequest => {
                self.peer_has(qp, |verb| matches!(verb, Verb::SendInvalidate(_)))
            }
            Status::RemoteOperation => self.withdrawn.contains(&true),
            _ => false,
        };
        if status == Status::WorkRequestFlushed && excused {
            self.met("receives flushed");
        }
        excused.then_some(()).ok_or_else(|| format!("receive {step} failed: {status}"))
    }

    /// Returns whether the peer has posted a request for which `what` holds since it was connected.
    pub(super) fn peer_has(&self, qp: usize, what: impl Fn(Verb) -> bool) -> bool {
        self.script.qps[qp].peer.is_some_and(|peer| {
            let start = self.qps[peer].start;
            (start..self.qps[peer].sends.len()).any(|i| what(self.op_of(peer, i).verb))
        })
    }
}

/// Returns whether a receive's completion fits the message of `op`.
fn fits(op: &Op, completion: &Completion, len: u32, look: &impl Look) -> bool {
    let (kind, imm) = match op.verb {
        Verb::Send(imm) => (CompletionOp::Recv, imm.map(Immediate::Data)),
        Verb::Write(imm) => (CompletionOp::RecvRdmaWithImm, imm.map(Immediate::Data)),
        Verb::SendInvalidate(bind) => {
            (CompletionOp::Recv, Some(Immediate::Invalidated(look.key(bind))))
        }
        _ => return false,
    };
    completion.op == kind
        && completion.imm == imm
        && op.len() == len
        && completion.solicited == op.flags.contains(SendFlags::SOLICITED)
}
