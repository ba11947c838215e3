//! Sending: takes doorbells, and lets ready queue pairs send, one after another. Each has a budget, so
//! that a QP with a gigabyte to send does not hold up one with eight bytes.

use smallvec::SmallVec;

use super::{Engine, PREFETCH_DISTANCE};
use crate::event::Counters;
use crate::qp::Qp;
use crate::queue::Doorbells;
use crate::service::{Ctx, SendLimits};
use crate::types::{Qpn, Time};
use crate::wire::{Direct, TxBatch};

/// Packets that a QP may send before the next QP sends: as many as one system call sends.
const TX_BUDGET_PER_QP: usize = 64;
/// How many doorbells are taken together, so that their QPs can be prefetched.
const DOORBELL_BATCH: usize = 16;

impl Engine {
    /// Returns whether [`Engine::poll_transmit`] may have something to do. If not, it need not be called.
    pub fn has_transmit_work(&self) -> bool {
        self.more_than_acks
            || !self.ready.is_empty()
            || !self.doorbells.is_empty()
            || self.gsi.has_work()
    }

    /// Appends packets to `batch`, until it is full or no QP has anything to send.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut TxBatch) {
        self.poll_transmit_with(now, batch, None);
    }

    /// Like [`Engine::poll_transmit`], but packets that `direct` accepts are sent immediately and are
    /// not appended.
    pub fn poll_transmit_with(
        &mut self,
        now: Time,
        batch: &mut TxBatch,
        direct: Option<&mut dyn Direct>,
    ) {
        self.take_doorbells();
        let before = batch.total();
        self.gsi.transmit(batch);
        count_sent(&mut self.events.counters, before, batch.total());
        if !self.ready.is_empty() {
            self.transmit_ready(now, batch, direct);
        }
        self.fail_behind_overflow(now);
        self.more_than_acks = !self.ready.is_empty() || self.gsi.has_work();
    }

    /// Lets ready queue pairs send, one after another ([`Qp::transmit`]). The memory table is locked once
    /// for all of them.
    fn transmit_ready(
        &mut self,
        now: Time,
        batch: &mut TxBatch,
        mut direct: Option<&mut dyn Direct>,
    ) {
        let limits = self.send_limits();
        let guard = self.memory.guard();
        while !batch.is_full() {
            let Some(qpn) = self.ready.pop() else { break };
            if let Some(next) = self.ready.peek(PREFETCH_DISTANCE) {
                self.qps.prefetch(next);
            }
            let Some(qp) = self.qps.get_mut(qpn) else { continue };
            // No congestion control: queue pairs to one address divide one window, by their packets in
            // flight (their weights), because all of these packets arrive in one receive buffer.
            let all = self.config.shared_window(qp.attr().path_mtu);
            let peer_window = self.peers.peer_window(&qp.scheduled, all);
            debug_assert!(peer_window > 0, "each QP gets on");
            let limits = SendLimits { peer_window, ..limits };
            let mut ctx = Ctx::new(now, &guard, &mut self.events, limits);
            if let Some(direct) = &mut direct {
                ctx.direct = Some(&mut **direct);
            }
            let before = batch.total();
            let more = qp.transmit(&mut ctx, batch, TX_BUDGET_PER_QP);
            count_sent(&mut self.events.counters, before, batch.total());
            self.ready.sent(batch.total().1 - before.1);
            let weight = qp.inflight_weight();
            self.peers.set_weight(&mut qp.scheduled, weight);
            if more {
                self.ready.again(&qp.scheduled, qpn);
            } else {
                qp.scheduled.ready = false;
            }
            if let Some(deadline) = qp.deadline() {
                self.timers.arm(&mut qp.scheduled.timer, deadline, qpn);
                debug_assert!(qp.scheduled.timer.is_some_and(|at| at <= deadline));
            }
        }
    }

    /// Moves queue pairs that were posted to into the ready list. Doorbells are taken in batches, so
    /// that the memory of all QPs of a batch is prefetched before the first QP is used.
    pub(super) fn take_doorbells(&mut self) {
        let mut rung = SmallVec::<[Qpn; DOORBELL_BATCH]>::new();
        while let Some(qpn) = self.doorbells.take() {
            if qpn == Doorbells::CQ_OVERFLOW {
                self.events.overflowed = true;
                continue;
            }
            rung.push(qpn);
            if rung.len() == DOORBELL_BATCH {
                self.serve(&rung);
                rung.clear();
            }
        }
        self.serve(&rung);
    }

    fn serve(&mut self, rung: &[Qpn]) {
        debug_assert!(rung.len() <= DOORBELL_BATCH && !rung.contains(&Doorbells::CQ_OVERFLOW));
        if self.qps.is_crowded() {
            rung.iter().for_each(|&qpn| self.qps.prefetch_index(qpn));
            rung.iter().for_each(|&qpn| self.qps.prefetch(qpn));
            rung.iter().filter_map(|&qpn| self.qps.get(qpn)).for_each(Qp::prefetch);
        }
        for &qpn in rung {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.posted();
                self.ready.push(&mut qp.scheduled, qpn);
            }
        }
    }
}

/// Counts the packets and bytes that were sent between two totals of a batch.
fn count_sent(counters: &mut Counters, before: (u64, u64), after: (u64, u64)) {
    debug_assert!(before.0 <= after.0 && before.1 <= after.1, "totals only grow");
    debug_assert_eq!(before.0 == after.0, before.1 == after.1, "each packet has bytes");
    counters.sent_pkts += after.0 - before.0;
    counters.sent_bytes += after.1 - before.1;
}

#[cfg(test)]
mod tests {
    use crate::queue::SendOp;
    use crate::testing::{Pair, Side};
    use crate::types::Time;
    use crate::wire::{Frame, OpKind, Packet, TxBatch, TxLimits};

    /// Returns the kinds of packets that a side sends, burst by burst.
    fn sent(from: &mut Side, to: &mut Side) -> Vec<Vec<OpKind>> {
        let mut batch = TxBatch::new(TxLimits::default());
        from.engine.poll_transmit(Time::ZERO, &mut batch);
        let mut bursts = Vec::new();
        for frame in batch.frames() {
            to.engine.handle_frame(Time::ZERO, &frame);
            let kinds = frame.packets().map(|(_, p)| Packet::parse(p).unwrap().info().kind);
            bursts.push(kinds.collect());
        }
        bursts
    }

    #[test]
    fn an_acknowledgement_can_wait_and_leaves_with_the_answer() {
        let Pair { mut a, mut b, .. } = Pair::new();
        b.receive(1, 0, 8);
        a.receive(2, 0, 8);
        a.post(3, SendOp::Send { imm: None }, 0, 8);
        assert!(!a.engine.can_wait(), "a request");
        assert_eq!(sent(&mut a, &mut b), [[OpKind::Send]]);
        assert_eq!(b.completions().len(), 1);
        assert!(b.engine.can_wait(), "an acknowledgement");
        b.post(4, SendOp::Send { imm: None }, 0, 8);
        assert!(!b.engine.can_wait());
        assert_eq!(sent(&mut b, &mut a), [[OpKind::Send, OpKind::Acknowledge]]);
        assert!(a.engine.can_wait() && b.engine.can_wait());
    }

    #[test]
    fn requests_that_fill_every_batch_do_not_keep_answers_back() {
        let Pair { mut a, mut b, .. } = Pair::new();
        a.post(1, SendOp::Read { remote: b.remote(0) }, 0, 8);
        sent(&mut a, &mut b);
        b.post(1, SendOp::Write { remote: a.remote(0), imm: None }, 0, 100_000);
        let mut batch = TxBatch::new(TxLimits { batch_bytes: 1, ..TxLimits::default() });
        let kinds: Vec<_> = (0..2)
            .map(|_| {
                batch.clear();
                b.engine.poll_transmit(Time::ZERO, &mut batch);
                let frame = batch.frames().next().unwrap();
                Packet::parse(frame.payload).unwrap().info().kind
            })
            .collect();
        assert_eq!(kinds, [OpKind::Write, OpKind::ReadResponse]);
    }

    #[test]
    fn what_the_peer_needs_to_go_on_can_not_wait() {
        let Pair { mut a, mut b, .. } = Pair::new();
        a.post(1, SendOp::Read { remote: b.remote(0) }, 0, 8);
        sent(&mut a, &mut b);
        assert!(!b.engine.can_wait(), "data");
        sent(&mut b, &mut a);
        a.post(2, SendOp::Send { imm: None }, 0, 8);
        sent(&mut a, &mut b);
        assert!(!b.engine.can_wait(), "a NAK: no receive is posted");
        // Packets that did not fit the batch must leave as soon as there is room.
        let Pair { mut a, mut b, .. } = Pair::new();
        a.post(1, SendOp::Write { remote: b.remote(0), imm: None }, 0, 100_000);
        let mut batch = TxBatch::new(TxLimits { batch_bytes: 1, ..TxLimits::default() });
        a.engine.poll_transmit(Time::ZERO, &mut batch);
        let frame: Frame<'_> = batch.frames().next().unwrap();
        b.engine.handle_frame(Time::ZERO, &frame);
        assert!(!a.engine.can_wait());
    }
}
