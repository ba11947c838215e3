//! The checks at the end of a run.
//! Failed requests may have been executed in part; the rest of the memory is known exactly.

use rxe_core::qp::QpState;
use rxe_core::queue::{SendFlags, Status};

use super::{Look, Model, Verdict};
use crate::sim::atomics;
use crate::sim::memory::Area;
use crate::sim::plan::{Flaw, Plan, Verb};

impl Model {
    /// Checks the end of the run, when nothing is in progress any more.
    /// On a queue pair without failures, requests without a completion were unsignaled and succeeded.
    pub fn finish(&mut self, plan: &Plan, look: &impl Look) -> Verdict {
        for (link, spec) in plan.links.iter().enumerate() {
            for end in 0..2 {
                let known = self.ends[link][end].outcomes.len();
                let well =
                    self.ends[link][end].outcomes.last().is_none_or(|s| *s == Status::Success);
                if well && look.state(link, end) == QpState::Rts {
                    for index in known..spec.ends[end].ops.len() {
                        let op = &spec.ends[end].ops[index];
                        if spec.ends[end].sig_all || op.flags.contains(SendFlags::SIGNALED) {
                            return Err(format!("link {link} end {end}: {index} never completed"));
                        }
                        self.succeeded(plan, link, end, index, look)?;
                    }
                }
            }
        }
        let mut actual: Vec<Vec<u8>> = Vec::new();
        for (side, memory) in self.memory.iter().enumerate() {
            let mut bytes = vec![0; memory.len()];
            look.look(side, 0, &mut bytes);
            actual.push(bytes);
        }
        for link in 0..plan.links.len() {
            for end in 0..2 {
                self.settle_uncertain(plan, link, end, &actual)
                    .map_err(|why| format!("link {link} end {end}: {why}"))?;
            }
        }
        let found = |link: usize, end: usize, index: usize| {
            let found = &self.ends[link][end].found;
            found.iter().find(|(at, _)| *at == index).map(|&(_, value)| value)
        };
        for (side, range) in atomics::check(plan, found, &actual)? {
            self.memory[side][range.clone()].copy_from_slice(&actual[side][range]);
        }
        for (side, (want, have)) in self.memory.iter().zip(&actual).enumerate() {
            if want != have {
                let at = want.iter().zip(have).position(|(a, b)| a != b).unwrap_or(0);
                let count = want.iter().zip(have).filter(|(a, b)| a != b).count();
                return Err(format!(
                    "{count} bytes of side {side} are not what they must be, from {at:#x} on \
                     ({} bytes in all)",
                    want.len()
                ));
            }
        }
        for (side, before) in self.deregistered.iter().enumerate() {
            if let Some(before) = before
                && *before != actual[side][plan.sides[side].layout.area_range(Area::Victim)]
            {
                return Err(format!("a region of side {side} changed after deregistration"));
            }
        }
        Ok(())
    }

    /// Finds out how much of the failed requests the peer has executed, and records it.
    fn settle_uncertain(
        &mut self,
        plan: &Plan,
        link: usize,
        end: usize,
        actual: &[Vec<u8>],
    ) -> Verdict {
        let ends = &plan.links[link].ends;
        let model = &self.ends[link][end];
        let first = model.outcomes.iter().take_while(|s| **s == Status::Success).count();
        let ops = &ends[end].ops;
        if first == ops.len() {
            return Ok(());
        }
        let mtu = u32::try_from(plan.mtu(link).bytes()).unwrap_or(256);
        self.settle_fetched(plan, (link, end), first, actual)?;
        // A message that the peer has received was executed.
        let received = self.ends[link][1 - end].received_well;
        let mut at_least = 0;
        let mut list = Vec::new();
        let mut messages = ops[..first].iter().filter(|op| op.consumes()).count();
        for (index, op) in ops.iter().enumerate().skip(first) {
            let reaches_peer = match op.flaw {
                None => true,
                // The part that fits into the receive is written before the rest is refused.
                Some(Flaw::TooLong) => true,
                Some(_) => false,
            };
            if reaches_peer && !op.verb.fetches() {
                let room = if op.flaw == Some(Flaw::TooLong) { op.len() - 1 } else { op.len() };
                let all = pieces(op.len(), mtu).filter(|&(_, to)| to <= room);
                list.extend(all.map(|(from, to)| (index, from, to)));
            }
            if op.flaw.is_some() {
                break;
            }
            if op.consumes() {
                messages += 1;
                if messages <= received {
                    at_least = list.len();
                }
            }
        }
        self.find_prefix(plan, (link, end), list, at_least, actual)
    }

    /// Finds out how much data the first failed request has fetched: a prefix of whole packets.
    fn settle_fetched(
        &mut self,
        plan: &Plan,
        (link, end): (usize, usize),
        index: usize,
        actual: &[Vec<u8>],
    ) -> Verdict {
        let spec = &plan.links[link].ends[end];
        let op = &spec.ops[index];
        if op.flaw == Some(Flaw::Beyond) && op.verb == Verb::Read {
            // A long READ is sent as several requests: the data before the bad part may have
            // arrived. The plan does not determine this data.
            for &place in &op.local {
                let range = plan.sides[spec.side].layout.range(place);
                self.memory[spec.side][range.clone()].copy_from_slice(&actual[spec.side][range]);
            }
        }
        if op.flaw.is_some() || op.verb != Verb::Read {
            return Ok(());
        }
        let mtu = u32::try_from(plan.mtu(link).bytes()).unwrap_or(256);
        let list = pieces(op.len(), mtu).map(|(from, to)| (index, from, to)).collect();
        self.find_prefix(plan, (link, end), list, 0, actual)
    }

    /// Finds out from the memory how many of these pieces were executed, and applies them to the model.
    /// At least the first `at_least` pieces were executed, and always a prefix of the list.
    fn find_prefix(
        &mut self,
        plan: &Plan,
        (link, end): (usize, usize),
        list: Vec<(usize, u32, u32)>,
        at_least: usize,
        actual: &[Vec<u8>],
    ) -> Verdict {
        let differs = |memory: &[Vec<u8>], side: usize, at: usize| {
            usize::from(memory[side][at] != actual[side][at])
        };
        // The number of bytes of all these ranges, each counted once, that differ from the memory.
        let mut seen: Vec<_> = self.memory.iter().map(|memory| vec![false; memory.len()]).collect();
        let mut wrong = 0;
        for &(index, from, to) in &list {
            for (side, at, bytes) in self.effect(plan, link, end, index, from, to) {
                for (at, seen) in (at..).zip(&mut seen[side][at..at + bytes.len()]) {
                    if !std::mem::replace(seen, true) {
                        wrong += differs(&self.memory, side, at);
                    }
                }
            }
        }
        for done in 0..=list.len() {
            if wrong == 0 && done >= at_least {
                return Ok(());
            }
            let Some(&(index, from, to)) = list.get(done) else { break };
            for (side, at, bytes) in self.effect(plan, link, end, index, from, to) {
                for (at, byte) in (at..).zip(bytes) {
                    wrong -= differs(&self.memory, side, at);
                    self.memory[side][at] = byte;
                    wrong += differs(&self.memory, side, at);
                }
            }
        }
        Err("what the memory holds is not what some first packets would have written".into())
    }
}

/// Returns the packets of a message, as ranges of its bytes.
fn pieces(len: u32, mtu: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..len.div_ceil(mtu)).map(move |i| (i * mtu, len.min((i + 1) * mtu)))
}
