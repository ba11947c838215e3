//! Draws the requests, receives, mistakes and disturbances of a plan.
//!
//! Every request has its own bytes, so their final contents do not depend on the order of requests.
//! Only these bytes are shared: words for atomics; the source of a READ, which an earlier WRITE of
//! the same queue pair may have written; the target of a WRITE, which an earlier request of the
//! same queue pair may have written or read (then the WRITE is fenced, because a READ may be
//! executed late).

use std::time::Duration;

use rxe_core::mem::Access;
use rxe_core::queue::SendFlags;

use super::{Action, Deed, Flaw, Op, Plan, Receive, Verb};
use crate::sim::memory::{Area, Place};
use crate::sim::rng::Rng;

/// The places that one direction of a link has used so far.
#[derive(Default)]
struct Direction {
    /// The ranges of the peer's memory that were written.
    written: Vec<Place>,
    /// The ranges of the peer's memory that were read.
    read: Vec<Place>,
    /// A word of the peer that only this direction uses, and its value after the requests drawn so far.
    word: Option<(Place, u64)>,
}

impl Plan {
    pub(super) fn draw_workload(&mut self, rng: &mut Rng) {
        for link in 0..self.links.len() {
            for end in 0..2 {
                self.draw_direction(rng, link, end);
            }
        }
    }

    fn draw_direction(&mut self, rng: &mut Rng, link: usize, end: usize) {
        let count = rng.pick(&[0, 1, 3, 8, 16, 24]);
        let hurry = rng.chance(1, 2);
        let late = rng.pick(&[0, 0, 0, 0, 1, 5]);
        let mut budget: u32 = if rng.chance(1, 24) { 300_000 } else { 40_000 };
        let mut used = Direction::default();
        let mut at = Duration::ZERO;
        let mut receive_at = Duration::ZERO;
        for index in 0..count {
            if !hurry {
                at += Duration::from_nanos(rng.below(40_000));
            }
            let mut op = self.draw_op(rng, link, end, &mut used, &mut budget);
            op.at = at;
            if index + 1 == count {
                op.flags |= SendFlags::SIGNALED;
            }
            if op.consumes() {
                if rng.chance(late, 8) {
                    receive_at += Duration::from_nanos(rng.below(300_000));
                }
                let receive = self.draw_receive(rng, link, end, &op, receive_at);
                self.links[link].ends[1 - end].receives.push(receive);
            }
            self.links[link].ends[end].ops.push(op);
        }
    }

    fn draw_op(
        &mut self,
        rng: &mut Rng,
        link: usize,
        end: usize,
        used: &mut Direction,
        budget: &mut u32,
    ) -> Op {
        let mtu = u32::try_from(self.mtu(link).bytes()).unwrap_or(256);
        let (own, peer) = self.sides_of(link, end);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, rng.chance(2, 3));
        flags.set(SendFlags::SOLICITED, rng.chance(1, 4));
        flags.set(SendFlags::FENCE, rng.chance(1, 7));
        let imm = rng.word();
        let kind = rng.below(100);
        let verb = match kind {
            0..20 => Verb::Send { imm: None },
            20..30 => Verb::Send { imm: Some(imm) },
            30..52 => Verb::Write { imm: None },
            52..62 => Verb::Write { imm: Some(imm) },
            62..84 => Verb::Read,
            _ => return self.draw_atomic(rng, link, end, used, flags),
        };
        let mut len = draw_len(rng, mtu, *budget);
        let remote = match verb {
            Verb::Send { .. } => None,
            Verb::Read if !used.written.is_empty() && rng.chance(1, 3) => {
                // Reads a part of a range that was written before.
                let whole = rng.pick(&used.written);
                len = rng.below32(whole.len + 1);
                let skip = rng.below(u64::from(whole.len - len) + 1);
                Some(Place { at: whole.at + skip, len, ..whole })
            }
            Verb::Write { .. } if rng.chance(1, 6) => {
                let mut earlier = [&used.written[..], &used.read[..]].concat();
                earlier.retain(|place| place.area != Area::ReadOnly);
                (!earlier.is_empty()).then(|| {
                    flags |= SendFlags::FENCE;
                    let again = rng.pick(&earlier);
                    len = again.len;
                    again
                })
            }
            _ => None,
        };
        let remote = match verb {
            Verb::Send { .. } => None,
            _ => Some(remote.unwrap_or_else(|| {
                let area = self.draw_area(rng, verb == Verb::Read);
                self.sides[peer].layout.allocate(rng, area, len, 1)
            })),
        };
        match (verb, remote) {
            (Verb::Read, Some(place)) => used.read.push(place),
            (Verb::Write { .. }, Some(place)) => used.written.push(place),
            _ => {}
        }
        *budget = budget.saturating_sub(len);
        let area = self.draw_area(rng, false);
        let local =
            draw_list(rng, len, |rng, len| self.sides[own].layout.allocate(rng, area, len, 1));
        let fits = len <= self.links[link].ends[end].cap.max_inline_data;
        let inline = fits && verb != Verb::Read && rng.chance(1, 3);
        Op { at: Duration::ZERO, verb, local, inline, remote, flags, flaw: None }
    }

    fn draw_atomic(
        &mut self,
        rng: &mut Rng,
        link: usize,
        end: usize,
        used: &mut Direction,
        flags: SendFlags,
    ) -> Op {
        let (own, peer) = self.sides_of(link, end);
        let local = self.sides[own].layout.allocate(rng, Area::Open, 8, 1);
        let shared = rng.chance(1, 2);
        let (remote, value) = if shared {
            let words: Vec<_> = self.words.iter().filter(|word| word.side == peer).collect();
            let place = words[rng.index(words.len())].place;
            (place, 0)
        } else {
            *used.word.get_or_insert_with(|| (self.sides[peer].layout.allocate_word(rng), 0))
        };
        let verb = match rng.below(3) {
            0 => Verb::CompareSwap { compare: value, swap: rng.bits() },
            1 => Verb::CompareSwap { compare: rng.bits(), swap: rng.bits() },
            _ => Verb::FetchAdd { add: rng.bits() | 1 },
        };
        if !shared && let Some((_, value)) = &mut used.word {
            match verb {
                Verb::CompareSwap { compare, swap } if compare == *value => *value = swap,
                Verb::FetchAdd { add } => *value = value.wrapping_add(add),
                _ => {}
            }
        }
        let (at, local) = (Duration::ZERO, vec![local]);
        Op { at, verb, local, inline: false, remote: Some(remote), flags, flaw: None }
    }

    fn draw_receive(
        &mut self,
        rng: &mut Rng,
        link: usize,
        end: usize,
        op: &Op,
        at: Duration,
    ) -> Receive {
        let (_, peer) = self.sides_of(link, end);
        // The receive may be longer than the message. A WRITE with immediate data needs no buffer.
        let spare = rng.pick(&[0, 0, 1, 100]);
        let len = if matches!(op.verb, Verb::Send { .. }) { op.len() + spare } else { spare };
        let area = self.draw_area(rng, false);
        let places =
            draw_list(rng, len, |rng, len| self.sides[peer].layout.allocate(rng, area, len, 1));
        Receive { at, places, bad_key: false }
    }

    /// Draws an area: mostly the open one; the victim only if it may be deregistered.
    fn draw_area(&self, rng: &mut Rng, read_only: bool) -> Area {
        match rng.below(8) {
            0 if read_only => Area::ReadOnly,
            1 | 2 if self.family == super::Family::Disturbed => Area::Victim,
            _ => Area::Open,
        }
    }

    fn sides_of(&self, link: usize, end: usize) -> (usize, usize) {
        let ends = &self.links[link].ends;
        (ends[end].side, ends[1 - end].side)
    }

    /// Gives a flaw to one request.
    pub(super) fn draw_flaw(&mut self, rng: &mut Rng) {
        let mut all = Vec::new();
        for (l, link) in self.links.iter().enumerate() {
            for (e, end) in link.ends.iter().enumerate() {
                all.extend((0..end.ops.len()).map(|i| (l, e, i)));
            }
        }
        if all.is_empty() {
            return;
        }
        let (link, end, index) = rng.pick(&all);
        let op = &self.links[link].ends[end].ops[index];
        let kinds: &[Flaw] = match op.verb {
            _ if op.verb.is_atomic() => &[
                Flaw::WrongKey,
                Flaw::NoRight,
                Flaw::OtherDomain,
                Flaw::NotEnabled,
                Flaw::LocalKey,
            ],
            Verb::Send { .. } if op.is_empty() => return,
            Verb::Send { .. } if op.inline => &[Flaw::TooLong, Flaw::BadReceive],
            Verb::Send { .. } => {
                &[Flaw::TooLong, Flaw::BadReceive, Flaw::LocalKey, Flaw::LocalBeyond]
            }
            _ if op.is_empty() => &[Flaw::NotEnabled],
            Verb::Write { .. } if op.inline => {
                &[Flaw::WrongKey, Flaw::Below, Flaw::Beyond, Flaw::NoRight, Flaw::NotEnabled]
            }
            Verb::Write { .. } => &[
                Flaw::WrongKey,
                Flaw::Below,
                Flaw::Beyond,
                Flaw::NoRight,
                Flaw::OtherDomain,
                Flaw::NotEnabled,
                Flaw::LocalBeyond,
            ],
            _ => &[
                Flaw::WrongKey,
                Flaw::Below,
                Flaw::Beyond,
                Flaw::OtherDomain,
                Flaw::NotEnabled,
                Flaw::LocalKey,
                Flaw::LocalBeyond,
            ],
        };
        let flaw = rng.pick(kinds);
        let message =
            self.links[link].ends[end].ops[..index].iter().filter(|o| o.consumes()).count();
        let (_, peer) = self.sides_of(link, end);
        let [first, second] = &mut self.links[link].ends;
        let (own_end, peer_end) = if end == 0 { (first, second) } else { (second, first) };
        let verb = own_end.ops[index].verb;
        let len = own_end.ops[index].len();
        match flaw {
            Flaw::TooLong => {
                let layout = &mut self.sides[peer].layout;
                let place = layout.allocate(rng, Area::Open, len - 1, 1);
                peer_end.receives[message].places = vec![place];
            }
            Flaw::BadReceive => peer_end.receives[message].bad_key = true,
            Flaw::NoRight | Flaw::OtherDomain => {
                let area = if flaw == Flaw::NoRight { Area::ReadOnly } else { Area::Foreign };
                let place = self.sides[peer].layout.allocate(rng, area, len, 8);
                own_end.ops[index].remote = Some(place);
            }
            Flaw::NotEnabled => {
                // All operations of this kind then fail; the first of them counts.
                let right = right_of(verb);
                peer_end.attr.qp_access_flags -= right;
                for op in &mut own_end.ops {
                    if !matches!(op.verb, Verb::Send { .. }) && right_of(op.verb) == right {
                        op.flaw = Some(Flaw::NotEnabled);
                    }
                }
            }
            _ => {}
        }
        own_end.ops[index].flaw = Some(flaw);
    }

    pub(super) fn draw_actions(&mut self, rng: &mut Rng) {
        for _ in 0..rng.within(1..=2) {
            let span = rng.pick(&[20_000, 200_000, 800_000]);
            let at = Duration::from_nanos(rng.below(span));
            let (link, end) = (rng.index(self.links.len()), rng.index(2));
            let what = match rng.below(8) {
                0 | 1 => Deed::Error(link, end),
                2 => Deed::Reset(link, end),
                3..6 => Deed::Drain(link, end, Duration::from_nanos(rng.below(1_000_000))),
                _ => Deed::Deregister(rng.index(self.sides.len())),
            };
            self.actions.push(Action { at, what });
        }
        self.actions.sort_by_key(|action| action.at);
    }
}

/// Returns the access right that the peer's queue pair needs for the operation.
fn right_of(verb: Verb) -> Access {
    match verb {
        Verb::Read => Access::REMOTE_READ,
        Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => Access::REMOTE_ATOMIC,
        _ => Access::REMOTE_WRITE,
    }
}

/// Draws a length, mostly close to a multiple of the path MTU.
fn draw_len(rng: &mut Rng, mtu: u32, budget: u32) -> u32 {
    let len = match rng.below(16) {
        0..2 => 0,
        2 => rng.within(1..=4),
        3..5 => rng.below(u64::from(mtu) + 2),
        5..8 => u64::from(mtu) + rng.below(3) - 1,
        8..12 => u64::from(mtu) * rng.within(2..=5) + rng.below(3) - 1,
        12..14 => u64::from(mtu) * rng.within(2..=40) + rng.below(3) - 1,
        14 => rng.below(20_000),
        _ => rng.below(200_000),
    };
    u32::try_from(len).unwrap_or(u32::MAX).min(budget)
}

/// Splits a length into up to four pieces, some of them possibly empty, and allocates each.
fn draw_list(rng: &mut Rng, len: u32, mut place: impl FnMut(&mut Rng, u32) -> Place) -> Vec<Place> {
    let pieces = rng.pick(&[1, 1, 1, 2, 3, 4]);
    let mut left = len;
    let mut list = Vec::new();
    for i in 1..=pieces {
        let here = if i == pieces { left } else { rng.below32(left + 1) };
        list.push(place(rng, here));
        left -= here;
    }
    list
}
