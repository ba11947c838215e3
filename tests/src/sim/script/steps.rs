//! Draws the steps of a script.

use std::time::Duration;

use rxe_core::mem::{Access, WindowType};
use rxe_core::qp::QpType;
use rxe_core::queue::SendFlags;

use super::{Bind, By, Deed, Flaw, Op, Queue, Script, Step, To, Verb};
use crate::sim::memory::{Area, Place};
use crate::sim::rng::Rng;

/// A bind request, and how many bytes of its range are used.
struct Bound {
    step: usize,
    binder: usize,
    used: u32,
}

struct Drawer<'s> {
    script: &'s mut Script,
    rng: &'s mut Rng,
    at: Duration,
    /// Whether some of the requests are flawed.
    flawed: bool,
    bound: Vec<Bound>,
    /// The number of bind requests for each window.
    bindings: Vec<u8>,
}

impl Script {
    pub(super) fn draw_steps(&mut self, rng: &mut Rng) {
        let count = rng.pick(&[4, 12, 24, 40]);
        let gap = rng.pick(&[0, 1000, 20_000, 100_000]);
        let flawed = rng.chance(1, 3);
        let (bound, bindings) = (Vec::new(), vec![0; self.windows.len()]);
        let mut drawer = Drawer { script: self, rng, at: Duration::ZERO, flawed, bound, bindings };
        drawer.attach_some();
        for _ in 0..count {
            drawer.at += Duration::from_nanos(drawer.rng.below(gap + 1));
            drawer.draw_step();
        }
        drawer.close();
    }
}

impl Drawer<'_> {
    fn push(&mut self, at: Duration, deed: Deed) -> usize {
        self.script.steps.push(Step { at, deed });
        self.script.steps.len() - 1
    }

    /// Draws a time less than `nanos` nanoseconds after the current one.
    fn soon(&mut self, nanos: u64) -> Duration {
        self.at + Duration::from_nanos(self.rng.below(nanos))
    }

    fn attach_some(&mut self) {
        for qp in 0..self.script.qps.len() {
            for group in 0..self.script.groups.len() {
                if self.script.qps[qp].service == QpType::Ud && self.rng.chance(1, 2) {
                    self.push(Duration::ZERO, Deed::Attach(qp, group));
                }
            }
        }
    }

    fn draw_step(&mut self) {
        let qp = self.rng.index(self.script.qps.len());
        match self.rng.below(100) {
            0..70 => self.draw_send(qp),
            70..84 => self.draw_bind(qp),
            84..88 if !self.script.srqs.is_empty() => {
                let srq = self.rng.index(self.script.srqs.len());
                let limit = self.rng.below32(self.script.srqs[srq].depth + 1);
                self.push(self.at, Deed::Limit(srq, limit));
            }
            88..91 if self.script.qps[qp].service == QpType::Ud => {
                let group = self.rng.index(self.script.groups.len());
                let join = self.rng.chance(1, 2);
                let deed = if join { Deed::Attach(qp, group) } else { Deed::Detach(qp, group) };
                self.push(self.at, deed);
            }
            91..94 => {
                self.push(self.at, Deed::Drain(qp));
                let later = self.soon(300_000);
                self.push(later, Deed::Resume(qp));
            }
            94..96 => self.draw_upkeep(),
            _ if self.script.disturbed => self.disturb(qp),
            _ => self.draw_send(qp),
        }
    }

    fn draw_upkeep(&mut self) {
        let side = self.rng.index(self.script.sides.len());
        let deed = if self.rng.chance(1, 2) {
            Deed::Register(side)
        } else {
            let cq = self.rng.index(self.script.sides[side].cqs.len());
            // So large that the queue does not overflow while programs poll.
            let least = self.script.sides[side].cqs[cq];
            let shrink = self.script.disturbed && self.rng.chance(1, 2);
            let depth = if shrink { 1 + self.rng.below32(4) } else { least + 10 };
            Deed::Resize(side, cq, depth)
        };
        self.push(self.at, deed);
    }

    fn disturb(&mut self, qp: usize) {
        let side = self.script.qps[qp].side;
        let deed = match self.rng.below(12) {
            0..3 => Deed::Error(qp),
            3..5 => Deed::Reset(qp),
            5..7 => Deed::Destroy(qp),
            7 => Deed::Deregister(side),
            8 => match &self.script.srqs_of(side, true)[..] {
                [] => return,
                list => Deed::Withdraw(self.rng.pick(list)),
            },
            _ => {
                let cq = self.rng.index(self.script.sides[side].cqs.len());
                let time = Duration::from_nanos(self.rng.below(500_000));
                Deed::Pause(side, cq, time)
            }
        };
        self.push(self.at, deed);
        self.revive_later(qp);
    }

    fn revive_later(&mut self, qp: usize) {
        if self.rng.chance(3, 4) {
            let later = self.soon(400_000);
            self.push(later, Deed::Revive(qp));
        }
    }

    fn draw_send(&mut self, qp: usize) {
        let service = self.script.qps[qp].service;
        let qp = match (service, self.script.qps[qp].peer) {
            (QpType::XrcRecv, Some(initiator)) => initiator,
            _ => qp,
        };
        let flaw = self.flawed && self.rng.chance(1, 12);
        let Some(op) = self.draw_op(qp, flaw) else { return };
        let (queue, bad) = (self.script.queue_of(qp, &op), op.is_flawed());
        let step = self.push(self.at, Deed::Send(qp, op));
        if let Some(queue) = queue {
            self.draw_receive(queue);
        }
        if let Some(To::Group(_)) = self.script.op(step).to {
            for member in 0..self.script.qps.len() {
                if self.script.qps[member].service == QpType::Ud && self.rng.chance(1, 2) {
                    let queue = self.script.queue(member);
                    self.draw_receive(queue);
                }
            }
        }
        if bad {
            self.revive_later(qp);
        }
    }

    fn draw_op(&mut self, qp: usize, bad: bool) -> Option<Op> {
        let service = self.script.qps[qp].service;
        let imm = self.rng.word();
        let imm = self.rng.chance(1, 3).then_some(imm);
        let verb = match service {
            QpType::Ud => Verb::Send(imm),
            QpType::Uc => match self.rng.below(10) {
                0..6 => Verb::Send(imm),
                _ => Verb::Write(imm),
            },
            _ => match self.rng.below(100) {
                0..30 => Verb::Send(imm),
                30..52 => Verb::Write(imm),
                52..60 => Verb::Read,
                60..69 => Verb::FetchAdd(self.rng.bits() | 1),
                69..74 => Verb::CompareSwap(0, self.rng.bits()),
                74..85 => Verb::AtomicWrite,
                85..92 => Verb::Flush(self.rng.chance(1, 3)),
                _ => self.draw_invalidation(qp)?,
            },
        };
        let mut op = self.blank(verb);
        if service == QpType::XrcSend {
            let target = self.script.qps[qp].peer?;
            let srqs = self.script.srqs_of(self.script.qps[target].side, true);
            op.srq = Some(self.rng.pick(&srqs));
        }
        if let Verb::Flush(_) = verb {
            op.remote = self.draw_remote(qp, verb, 0);
            return Some(op);
        }
        if let Verb::Invalidate(_) = verb {
            return Some(op);
        }
        let len = self.draw_len(qp, verb);
        op.remote = self.draw_remote(qp, verb, len);
        if verb.is_atomic() {
            op.remote = self.script.qps[qp].word.map(|word| (word, By::Region));
        }
        let side = self.script.qps[qp].side;
        let victim = self.script.disturbed && self.rng.chance(1, 8);
        let area = if victim { Area::Victim } else { Area::Open };
        let pieces = if verb.is_atomic() { 1 } else { self.rng.pick(&[1, 1, 2, 3]) };
        op.local = self.draw_list(side, area, len, pieces);
        let fits = len <= self.script.qps[qp].cap.max_inline_data;
        let fetches = matches!(verb, Verb::Read | Verb::CompareSwap(..) | Verb::FetchAdd(_));
        op.inline = fits && !fetches && self.rng.chance(1, 3);
        if service == QpType::Ud {
            op.to = Some(self.draw_to()?);
        }
        if bad {
            self.spoil(qp, &mut op);
        }
        Some(op)
    }

    fn blank(&mut self, verb: Verb) -> Op {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.rng.chance(3, 4));
        flags.set(SendFlags::SOLICITED, self.rng.chance(1, 4));
        flags.set(SendFlags::FENCE, self.rng.chance(1, 8));
        let local = Vec::new();
        Op { verb, local, inline: false, flags, remote: None, to: None, srq: None, flaw: None }
    }

    fn draw_len(&mut self, qp: usize, verb: Verb) -> u32 {
        if verb.is_atomic() {
            return 8;
        }
        let mtu = self.script.mtu(qp);
        let rng = &mut *self.rng;
        let len = match rng.below(8) {
            0 => rng.below(9),
            1 => rng.below(u64::from(mtu) + 2),
            2..4 => u64::from(mtu) + rng.below(3) - 1,
            4..6 => u64::from(mtu) * rng.within(2..=5) + rng.below(3) - 1,
            _ => rng.below(u64::from(self.script.longest)),
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX).min(self.script.longest);
        match self.script.qps[qp].service {
            QpType::Ud => len.clamp(8, 4096),
            // UC does not report losses, so every message must be recognisable by its contents.
            QpType::Uc => len.max(8),
            _ => len,
        }
    }

    /// Splits a length into pieces, some of them possibly empty, and allocates each.
    fn draw_list(&mut self, side: usize, area: Area, len: u32, pieces: u32) -> Vec<Place> {
        let mut left = len;
        let mut list = Vec::new();
        for i in 1..=pieces {
            let here = if i == pieces { left } else { self.rng.below32(left + 1) };
            list.push(self.script.sides[side].layout.allocate(self.rng, area, here, 1));
            left -= here;
        }
        list
    }

    fn draw_remote(&mut self, qp: usize, verb: Verb, len: u32) -> Option<(Place, By)> {
        if !matches!(verb, Verb::Write(_) | Verb::Read | Verb::Flush(_)) {
            return None;
        }
        let peer = self.script.qps[qp].peer?;
        if !matches!(verb, Verb::Flush(_)) && self.rng.chance(2, 3) {
            let windowed = self.draw_windowed(peer, verb, len);
            if windowed.is_some() {
                return windowed;
            }
        }
        let victim = self.script.disturbed && self.rng.chance(1, 8);
        let area = if victim { Area::Victim } else { Area::Open };
        let layout = &mut self.script.sides[self.script.qps[peer].side].layout;
        Some((layout.allocate(self.rng, area, len, 1), By::Region))
    }

    /// Draws a part of a bound window of the peer's side. The second half of a window's range is
    /// only read.
    fn draw_windowed(&mut self, peer: usize, verb: Verb, len: u32) -> Option<(Place, By)> {
        let side = self.script.qps[peer].side;
        // Sometimes chooses a type 2 window that this queue pair may not use.
        let stranger = self.rng.chance(1, 8);
        let may = |bound: &&mut Bound| {
            let bind = self.script.bind(bound.step);
            let window = self.script.windows[bind.window];
            let fits = window.kind == WindowType::Type1 || bound.binder == peer || stranger;
            window.side == side && fits && bind.place.len > 0
        };
        let mut choices: Vec<_> = self.bound.iter_mut().filter(may).collect();
        // Mostly the newest binding, because older ones may have ended.
        let newest = choices.len().checked_sub(1)?;
        let at = if self.rng.chance(2, 3) { newest } else { self.rng.index(choices.len()) };
        let bound = &mut choices[at];
        let place = self.script.bind(bound.step).place;
        let half = place.len / 2;
        let skip = if verb == Verb::Read {
            half + self.rng.below32(half.checked_sub(len)? + 1)
        } else {
            bound.used.checked_add(len).filter(|end| *end <= half)?;
            bound.used += len;
            bound.used - len
        };
        Some((Place { at: place.at + u64::from(skip), len, ..place }, By::Window(bound.step)))
    }

    fn draw_invalidation(&mut self, qp: usize) -> Option<Verb> {
        let qps = &self.script.qps;
        let own = |bound: &&Bound| bound.binder == qp;
        let peers = |bound: &&Bound| Some(bound.binder) == qps[qp].peer;
        if self.rng.chance(1, 2) && qps[qp].service == QpType::Rc {
            return self.bound.iter().rfind(peers).map(|b| Verb::SendInvalidate(b.step));
        }
        // Type 1 windows cannot be invalidated.
        let step = self.bound.iter().rfind(own)?.step;
        let window = self.script.bind(step).window;
        let is_type_2 = self.script.windows[window].kind == WindowType::Type2;
        is_type_2.then_some(Verb::Invalidate(step))
    }

    fn draw_to(&mut self) -> Option<To> {
        if self.rng.chance(1, 4) {
            return Some(To::Group(self.rng.index(self.script.groups.len())));
        }
        if self.rng.chance(1, 6) {
            return Some(To::Reply);
        }
        let is_ud = |qp: &usize| self.script.qps[*qp].service == QpType::Ud;
        let all: Vec<_> = (0..self.script.qps.len()).filter(is_ud).collect();
        Some(To::Qp(self.rng.pick(&all)))
    }

    /// Gives a flaw to a request, so that it cannot succeed.
    fn spoil(&mut self, qp: usize, op: &mut Op) {
        let windowed = matches!(op.remote, Some((_, By::Window(_))));
        let kinds: &[Flaw] = match (self.script.qps[qp].service, op.verb) {
            (QpType::Ud, _) => &[Flaw::WrongQkey, Flaw::WrongQkey, Flaw::OwnQkey, Flaw::LocalKey],
            (QpType::XrcSend, _) if self.rng.chance(1, 2) => &[Flaw::WrongSrq],
            (_, Verb::Write(_) | Verb::Read) if windowed => {
                &[Flaw::WrongKey, Flaw::Below, Flaw::Beyond]
            }
            (_, Verb::Write(_) | Verb::Read) => {
                &[Flaw::WrongKey, Flaw::Beyond, Flaw::NoRight, Flaw::LocalKey]
            }
            (_, Verb::Send(_)) => &[Flaw::LocalKey],
            (_, verb) if verb.is_atomic() => &[Flaw::WrongKey],
            _ => return,
        };
        let flaw = self.rng.pick(kinds);
        let has_bytes = !op.is_empty();
        if !has_bytes && !matches!(flaw, Flaw::WrongSrq | Flaw::WrongQkey | Flaw::OwnQkey) {
            // A request of no bytes needs no rights.
            return;
        }
        if flaw == Flaw::LocalKey && op.inline {
            return;
        }
        if flaw == Flaw::NoRight {
            let area = if op.verb == Verb::Read { Area::Foreign } else { Area::ReadOnly };
            let Some(peer) = self.script.qps[qp].peer else { return };
            let layout = &mut self.script.sides[self.script.qps[peer].side].layout;
            op.remote = Some((layout.allocate(self.rng, area, op.len(), 1), By::Region));
        }
        op.flaw = Some(flaw);
    }

    /// Draws a bind request for a window of the queue pair's side.
    fn draw_bind(&mut self, qp: usize) {
        let (side, service) = (self.script.qps[qp].side, self.script.qps[qp].service);
        let windows = &self.script.windows;
        let of_side: Vec<_> = (0..windows.len()).filter(|w| windows[*w].side == side).collect();
        if of_side.is_empty() || matches!(service, QpType::Ud | QpType::XrcRecv) {
            return self.draw_send(qp);
        }
        let window = self.rng.pick(&of_side);
        let kind = windows[window].kind;
        let Some(key) = self.bindings[window].checked_add(1) else { return };
        self.bindings[window] = key;
        let unbinds = kind == WindowType::Type1 && self.rng.chance(1, 6);
        let longest = self.script.longest;
        let len = if unbinds { 0 } else { longest + self.rng.below32(longest * 4) };
        let layout = &mut self.script.sides[side].layout;
        let place = layout.allocate(self.rng, Area::Windowed, len, 1);
        let mut access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        match self.rng.below(8) {
            0 => access = Access::REMOTE_READ,
            1 => access = Access::REMOTE_WRITE,
            2..4 if kind == WindowType::Type2 => access |= Access::ZERO_BASED,
            _ => {}
        }
        let mut op = self.blank(Verb::Bind(Bind { window, place, access, key }));
        if self.flawed && self.rng.chance(1, 8) && len > 0 {
            op.flaw = Some(self.rng.pick(&[Flaw::WrongKey, Flaw::Beyond, Flaw::NoRight]));
            self.revive_later(qp);
        }
        let step = self.push(self.at, Deed::Send(qp, op));
        if kind == WindowType::Type2 && self.rng.chance(3, 4) {
            // A bound type 2 window must be invalidated before it is bound again.
            if let Some(before) = self
                .bound
                .iter()
                .rfind(|b| self.script.bind(b.step).window == window && b.binder == qp)
            {
                let invalidate = Verb::Invalidate(before.step);
                let mut op = self.blank(invalidate);
                op.flags |= SendFlags::SIGNALED;
                let bind = std::mem::replace(&mut self.script.steps[step].deed, Deed::Send(qp, op));
                let step = self.push(self.at, bind);
                self.bound.push(Bound { step, binder: qp, used: 0 });
                return self.draw_uses(qp);
            }
        }
        self.bound.push(Bound { step, binder: qp, used: 0 });
        self.draw_uses(qp);
    }

    /// Draws requests of the peer that use a window, before or after the peer can know its key.
    fn draw_uses(&mut self, binder: usize) {
        let Some(peer) = self.script.qps[binder].peer else { return };
        let service = self.script.qps[peer].service;
        if service == QpType::XrcRecv {
            return;
        }
        for _ in 0..self.rng.below(4) {
            let read = service != QpType::Uc && self.rng.chance(1, 2);
            let verb = if read { Verb::Read } else { Verb::Write(None) };
            let len = self.rng.below32(self.script.longest / 2);
            let mut op = self.blank(verb);
            op.remote = self.draw_windowed(binder, verb, len);
            if op.remote.is_none() {
                continue;
            }
            op.local = self.draw_list(self.script.qps[peer].side, Area::Open, len, 1);
            if self.flawed && self.rng.chance(1, 5) {
                self.spoil(peer, &mut op);
            }
            let later = self.soon(80_000);
            self.push(later, Deed::Send(peer, op));
        }
    }

    /// Draws a receive for a message: early, in time, or late.
    fn draw_receive(&mut self, queue: Queue) {
        let at = match self.rng.below(8) {
            0..4 => Duration::ZERO,
            4..6 => self.at,
            6 => self.soon(200_000),
            // `close` posts the receive at the end.
            _ => return,
        };
        let places = self.draw_places(queue);
        self.push(at, Deed::Receive(queue, places));
    }

    fn draw_places(&mut self, queue: Queue) -> Vec<Place> {
        // Includes the 40 bytes of a datagram's GRH.
        let mut len = self.script.longest + 40;
        if self.flawed && self.rng.chance(1, 24) {
            len = self.rng.below32(len);
        }
        let side = self.script.side_of(queue);
        let victim = self.script.disturbed && self.rng.chance(1, 16);
        let area = if victim { Area::Victim } else { Area::Open };
        let pieces = self.rng.pick(&[1, 1, 2, 3]);
        self.draw_list(side, area, len, pieces)
    }

    /// Adds receives at the end: one for each message that still needs one, and two more.
    fn close(&mut self) {
        let last = self.script.steps.iter().map(|step| step.at).max().unwrap_or_default();
        self.script.closing = last + Duration::from_micros(1);
        let qps = self.script.qps.len();
        let own = (0..qps).map(Queue::Own);
        let queues: Vec<_> = own.chain((0..self.script.srqs.len()).map(Queue::Shared)).collect();
        for queue in queues {
            let takes = |step: &&Step| match &step.deed {
                Deed::Send(qp, op) => self.script.queue_of(*qp, op) == Some(queue),
                _ => false,
            };
            let posts = |step: &&Step| matches!(&step.deed, Deed::Receive(to, _) if *to == queue);
            let messages = self.script.steps.iter().filter(takes).count();
            let posted = self.script.steps.iter().filter(posts).count();
            if messages == 0 && posted == 0 {
                continue;
            }
            for _ in 0..messages.saturating_sub(posted) + 2 {
                let places = self.draw_places(queue);
                self.push(self.script.closing, Deed::Receive(queue, places));
            }
        }
    }
}
