//! Which queue pair sends next. Every QP that has something gets a budget in turn, so that one with
//! a gigabyte to send does not hold up one with eight bytes.

use super::Engine;
use crate::qp::Ctx;
use crate::types::Time;
use crate::wire::TxBatch;

/// Packets that a QP may send before it is the next one's turn: as many as go in one call.
const BUDGET: usize = 64;

impl Engine {
    /// Appends packets to `batch`, until it is full or nobody has anything to send.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut TxBatch) {
        let window = self.window();
        while let Some(qpn) = self.doorbells.take() {
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.handle.answered();
                if !qp.scheduled.ready {
                    qp.scheduled.ready = true;
                    self.ready.push_back(qpn);
                }
            }
        }
        let guard = self.memory.guard();
        while !batch.is_full() {
            let Some(qpn) = self.ready.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            let mut ctx = Ctx::new(now, &guard, &mut self.events, window);
            let before = batch.total();
            let more = qp.transmit(&mut ctx, batch, BUDGET);
            let after = batch.total();
            self.events.counters.sent_pkts += after.0 - before.0;
            self.events.counters.sent_bytes += after.1 - before.1;
            if more {
                self.ready.push_back(qpn);
            } else {
                qp.scheduled.ready = false;
            }
            if let Some(deadline) = qp.deadline() {
                self.timers.arm(&mut qp.scheduled.timer, deadline, qpn);
            }
        }
    }
}
