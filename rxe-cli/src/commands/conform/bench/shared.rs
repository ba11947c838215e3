//! Shared receive queues and their asynchronous events.

use std::time::{Duration, Instant};

use rxe_verbs::AsyncKind;

use super::super::verdict::Outcome;
use super::{Bench, deviates};

impl Bench<'_> {
    /// Lets the peer arm the limit of its shared receive queue.
    pub(in super::super) fn arm_limit(&mut self, limit: u32) -> Outcome {
        self.log.push(format!("peer arms the limit {limit}"));
        self.ask(&format!("limit {limit}")).map(drop)
    }

    /// Requires the peer to receive this asynchronous event.
    pub(in super::super) fn is_told(&mut self, wanted: AsyncKind) -> Outcome {
        if self.find_event(wanted, self.wait)? {
            return Ok(());
        }
        deviates(format!("{} was not reported within {}", wanted.name(), self.waited()))
    }

    /// Requires that the peer did not receive this event since its last query.
    pub(in super::super) fn is_not_told(&mut self, kind: AsyncKind) -> Outcome {
        if self.find_event(kind, Duration::ZERO)? {
            return deviates(format!("{} was reported, which nothing allows", kind.name()));
        }
        Ok(())
    }

    /// Returns whether this event arrives within `wait`. Other events before it are skipped.
    fn find_event(&mut self, wanted: AsyncKind, wait: Duration) -> Outcome<bool> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let found = self.peer.async_event(left)?;
            let Some(number) = found else {
                if left.is_zero() {
                    return Ok(false);
                }
                continue;
            };
            match AsyncKind::ALL.iter().find(|kind| **kind as u32 == number) {
                Some(kind) => self.log.push(format!("peer is told: {}", kind.name())),
                None => self.log.push(format!("peer is told: event {number}")),
            }
            if number == wanted as u32 {
                return Ok(true);
            }
        }
    }

    /// Lets the peer reset its queue pair and connect it again as before.
    pub(in super::super) fn join_again(&mut self) -> Outcome {
        self.log.push("peer resets its queue pair and connects it again".into());
        self.peer.reset()?;
        self.peer.join(&self.given, self.end.net().src, self.target.own_qpn)?;
        self.acknowledged = -1;
        Ok(())
    }
}
