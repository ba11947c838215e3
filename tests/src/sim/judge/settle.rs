//! Checks that are possible only when nothing is in progress any more.
//! They find out how much of the failed requests was executed and which unacknowledged messages
//! arrived, and that all other memory is unchanged.

use rxe_core::qp::{QpState, QpType};
use rxe_core::queue::Status;

use super::blame::Right;
use super::{Judge, Look, Verdict};
use crate::sim::memory::{Area, Place};
use crate::sim::script::{Flaw, Queue, To, Verb};

/// How much of a message a range holds: a prefix of whole packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// Whether any packet was written.
    touched: bool,
    /// Whether all packets were written.
    complete: bool,
}

impl Judge<'_> {
    /// Checks the end of the run, when all completions were polled.
    /// Every queue pair is in the error state or does not exist.
    ///
    /// # Errors
    /// What is wrong.
    pub fn finish(&mut self, look: &impl Look) -> Verdict {
        for qp in 0..self.qps.len() {
            self.tick();
            self.ended_silently(qp, self.qps[qp].sends.len(), false, look)?;
            let known = &self.qps[qp];
            let shared = self.script.qps[qp].srq.is_some();
            let in_error = look.state(qp) == QpState::Err;
            if shared && in_error && known.last_taken != 1 {
                return Err(format!("QP {} did not say that it takes no more", known.qpn));
            }
            let own = self.queues.get(&Queue::Own(qp));
            if in_error && !known.overflowed && own.is_some_and(|own| !own.waiting.is_empty()) {
                return Err(format!("receives of QP {} never ended", known.qpn));
            }
        }
        if self.is_calm() {
            self.check_delivered()?;
        }
        for qp in 0..self.qps.len() {
            self.settle(qp, look)?;
        }
        self.settle_receives(look)?;
        self.check_memory(look)
    }

    /// Checks that a message that was not delivered was dropped with an event, if the network loses
    /// nothing.
    fn check_delivered(&self) -> Verdict {
        for qp in (0..self.qps.len()).filter(|&qp| !self.is_reliable(qp)) {
            for (index, sent) in self.qps[qp].sends.iter().enumerate() {
                let op = self.op_of(qp, index);
                if sent.outcome != Some(Status::Success) || !op.consumes() || op.is_flawed() {
                    continue;
                }
                let targets = match (op.to, self.script.qps[qp].peer) {
                    (Some(To::Group(_)), _) => {
                        let mut members = sent.members.clone();
                        members.retain(|&member| member != qp || !self.script.qps[qp].deaf);
                        members
                    }
                    (Some(To::Qp(target)), _) | (None, Some(target)) => vec![target],
                    _ => sent.target.into_iter().collect(),
                };
                for target in targets {
                    let known = &self.qps[target];
                    let excused = known.dropped > 0 || known.left || known.failed;
                    if !excused && !sent.delivered.contains(&target) {
                        let name = self.name_of(qp, index);
                        return Err(format!("{name} was lost on a perfect network"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Finds out how far the requests of a queue pair were executed, and records it.
    /// No packet of the queue pair is left in the network.
    pub(super) fn settle(&mut self, qp: usize, look: &impl Look) -> Verdict {
        let Some(peer) = self.script.qps[qp].peer else { return Ok(()) };
        let (side, peer_side) = (self.script.qps[qp].side, self.script.qps[peer].side);
        let reliable = self.is_reliable(qp);
        let mtu = self.script.mtu(qp);
        let mut words = vec![self.qps[qp].word];
        // If a request was not executed completely, no later request was started.
        let mut broken = false;
        for index in self.qps[qp].start..self.qps[qp].sends.len() {
            let op = self.op_of(qp, index);
            let sent = self.qps[qp].sends[index].clone();
            let well = sent.outcome == Some(Status::Success);
            if well && reliable {
                let lost = self.qps[peer].overflowed;
                if op.consumes() && sent.delivered.is_empty() && !lost && !self.qps[peer].left {
                    return Err(format!("{} went well and nobody got it", self.name_of(qp, index)));
                }
                continue;
            }
            let never = self.right(qp, index) == Right::Never || op.is_flawed();
            let extent = match (op.verb, op.remote) {
                (Verb::Write(_), Some((place, _))) => {
                    let bytes = self.bytes_of(qp, op);
                    self.extent(peer_side, &[place], &bytes, mtu, look)
                }
                (Verb::Read, _) if op.flaw == Some(Flaw::Beyond) => {
                    // A long READ is sent as several requests: the data before the bad part may
                    // have arrived.
                    let actual = self.actual(side, &op.local, usize::MAX, look);
                    self.take_over(side, &op.local, &actual);
                    broken = true;
                    continue;
                }
                (Verb::Read, Some((place, _))) => {
                    let bytes = self.known(peer_side, &[place], place.len);
                    self.extent(side, &op.local, &bytes, mtu, look)
                }
                (Verb::FetchAdd(_) | Verb::CompareSwap(..), _) => {
                    let before: Vec<_> = words.iter().map(|word| word.to_ne_bytes()).collect();
                    let found = self.actual(side, &op.local, 8, look);
                    if before.iter().any(|bytes| bytes[..] == found) {
                        self.take_over(side, &op.local, &found);
                    }
                    if !never {
                        let last = words[words.len() - 1];
                        words.push(self.applied(qp, op, last));
                    }
                    continue;
                }
                (Verb::AtomicWrite, _) => {
                    if !never {
                        let last = words[words.len() - 1];
                        words.push(self.applied(qp, op, last));
                    }
                    continue;
                }
                _ => continue,
            };
            let extent = extent.ok_or_else(|| {
                format!("{} has left something else than a beginning", self.name_of(qp, index))
            })?;
            if extent.touched && (never || (broken && reliable)) {
                let why = if never { "that may not be" } else { "what was before it was not" };
                return Err(format!("{} was carried out, but {why}", self.name_of(qp, index)));
            }
            // An incomplete READ may have been executed: its data may have been lost on the way back.
            broken |= !extent.complete && op.verb != Verb::Read;
        }
        if let Some(place) = self.script.qps[qp].word {
            let actual = self.actual(peer_side, &[place], 8, look);
            let value = <[u8; 8]>::try_from(&actual[..]).map_or(0, u64::from_ne_bytes);
            if !words.contains(&value) {
                return Err(format!(
                    "the word of QP {} holds {value:#x}, which no number of its requests makes: \
                     {words:x?}",
                    self.qps[qp].qpn
                ));
            }
            self.qps[qp].word = value;
            self.take_over(peer_side, &[place], &actual);
        }
        Ok(())
    }

    /// Finds out how much of a message the places hold, and records their contents.
    /// Returns `None` if they hold neither a prefix of the message nor their old contents.
    fn extent(
        &mut self,
        side: usize,
        places: &[Place],
        bytes: &[u8],
        mtu: u32,
        look: &impl Look,
    ) -> Option<Extent> {
        let before = self.known(side, places, u32::MAX);
        let actual = self.actual(side, places, before.len(), look);
        let size = mtu as usize;
        let chunks = || bytes.chunks(size).zip(actual.chunks(size)).zip(before.chunks(size));
        let new = chunks().take_while(|((new, now), _)| new == now).count();
        let rest = chunks().skip(new).all(|((_, now), old)| now == old);
        let touched = chunks().any(|((_, now), old)| now != old);
        if !rest || actual.len() != bytes.len() {
            return None;
        }
        let complete = new == bytes.len().div_ceil(size);
        self.take_over(side, places, &actual);
        Some(Extent { touched, complete })
    }

    /// Checks receives without a message, and the bytes after a message in its receive.
    /// Each byte is unchanged, or belongs to a message that was broken off there.
    fn settle_receives(&mut self, look: &impl Look) -> Verdict {
        let queues: Vec<_> = self.queues.keys().copied().collect();
        for queue in queues {
            let side = self.script.side_of(queue);
            let receives = &self.queues[&queue];
            let waiting = receives.waiting.iter().map(|&(_, step)| (step, None));
            let all: Vec<_> = waiting.chain(receives.ended.iter().copied()).collect();
            for (step, len) in all {
                let places = self.places(step).to_vec();
                let before = self.known(side, &places, u32::MAX);
                let actual = self.actual(side, &places, before.len(), look);
                if before == actual {
                    continue;
                }
                if self.queues[&queue].was_loose {
                    // The receive may hold a message whose completion was lost.
                    self.take_over(side, &places, &actual);
                    continue;
                }
                let broken = self.broken_messages(queue);
                let from = len.unwrap_or(0) as usize;
                let explained = (0..actual.len()).all(|at| {
                    actual[at] == before[at]
                        || (at >= from && broken.iter().any(|m| m.get(at) == Some(&actual[at])))
                });
                if !explained {
                    return Err(format!("receive {step} of {queue:?} holds what nobody sent"));
                }
                self.take_over(side, &places, &actual);
            }
        }
        Ok(())
    }

    /// Returns the bytes of all SENDs to a queue. Each may have been broken off in any receive of
    /// the queue.
    fn broken_messages(&self, queue: Queue) -> Vec<Vec<u8>> {
        let mut list = Vec::new();
        for taker in self.script.takers(queue) {
            let Some(peer) = self.script.qps[taker].peer else { continue };
            for index in 0..self.qps[peer].sends.len() {
                let op = self.op_of(peer, index);
                if op.verb.is_send() && self.script.queue_of(peer, op) == Some(queue) {
                    list.push(self.bytes_of(peer, op));
                }
            }
        }
        list
    }

    fn check_memory(&self, look: &impl Look) -> Verdict {
        for (side, want) in self.memory.iter().enumerate() {
            let mut have = vec![0; want.len()];
            look.look(side, 0, &mut have);
            if *want != have {
                let at = want.iter().zip(&have).position(|(a, b)| a != b).unwrap_or(0);
                let count = want.iter().zip(&have).filter(|(a, b)| a != b).count();
                return Err(format!(
                    "{count} bytes of side {side} are not what they must be, from {at:#x} on"
                ));
            }
            let Some((_, before)) = &self.deregistered[side] else { continue };
            if *before != have[self.script.sides[side].layout.area_range(Area::Victim)] {
                return Err(format!("a region of side {side} changed after deregistration"));
            }
        }
        Ok(())
    }

    /// Returns whether a request that is outstanding at the end waits for a receive that cannot come.
    pub fn may_wait(&self, qp: usize, look: &impl Look) -> bool {
        if !matches!(self.script.qps[qp].service, QpType::Rc | QpType::XrcSend) {
            return false;
        }
        let known = &self.qps[qp];
        (known.ended..known.sends.len()).any(|index| {
            let queue = self.script.queue_of(qp, self.op_of(qp, index));
            queue.is_some_and(|queue| look.waiting(queue) == 0)
        })
    }
}
