//! The queue pairs that may have something to send. Each gets its turn, so that one with a gigabyte to send
//! does not hold up one with eight bytes.
//!
//! Packets that leave in one call of the system have one source port. Where queue pairs have a few ports in
//! turn ([`SourcePort::InTurn`]), those of one port follow one another, and their packets share a burst
//! although each may have only few. When they have sent what fills a call, it is the next port's turn.

use std::collections::VecDeque;

use crate::config::SourcePort;
use crate::qp::Scheduled;
use crate::types::Qpn;

/// Packets and bytes of one source port before it is the next one's turn, whichever takes longer. With large
/// packets it is several bursts, and with small ones a quarter of a batch.
const TURN: (u64, u64) = (64, 64 << 10);

/// The queue pairs that may have something to send.
#[derive(Debug)]
pub(super) struct Ready {
    /// One for each source port, or one for all.
    lists: Vec<VecDeque<Qpn>>,
    /// The list whose turn it is, and what is left of its turn.
    at: usize,
    left: (u64, u64),
    len: usize,
}

impl Ready {
    pub(super) fn new(ports: SourcePort) -> Self {
        let lists = match ports {
            SourcePort::InTurn { count, .. } => count.clamp(1, 256).into(),
            SourcePort::Fixed(_) | SourcePort::PerQp => 1,
        };
        Self { lists: vec![VecDeque::new(); lists], at: 0, left: TURN, len: 0 }
    }

    /// The list of a queue pair, before which the engine has had `earlier` others.
    pub(super) fn list_of(&self, earlier: u16) -> u8 {
        // There are no more than 256.
        u8::try_from(usize::from(earlier) % self.lists.len()).unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Enters a queue pair, unless it is in already.
    #[inline]
    pub(super) fn push(&mut self, scheduled: &mut Scheduled, qpn: Qpn) {
        if !scheduled.ready {
            scheduled.ready = true;
            self.again(scheduled, qpn);
        }
    }

    /// Enters a queue pair that has had its turn, and has more to send.
    #[inline]
    pub(super) fn again(&mut self, scheduled: &Scheduled, qpn: Qpn) {
        self.lists[usize::from(scheduled.list)].push_back(qpn);
        self.len += 1;
    }

    /// The queue pair whose turn it is.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Qpn> {
        if self.len == 0 {
            return None;
        }
        while self.left == (0, 0) || self.lists[self.at].is_empty() {
            self.at = (self.at + 1) % self.lists.len();
            self.left = TURN;
        }
        self.len -= 1;
        self.lists[self.at].pop_front()
    }

    /// The queue pair that has just been taken has sent so many packets and bytes.
    #[inline]
    pub(super) fn sent(&mut self, packets: u64, bytes: u64) {
        let (packets_left, bytes_left) = self.left;
        self.left = (packets_left.saturating_sub(packets), bytes_left.saturating_sub(bytes));
    }

    /// The queue pair whose turn will come after `ahead` others, if that many wait and it is known.
    #[inline]
    pub(super) fn later(&self, ahead: usize) -> Option<Qpn> {
        self.lists[self.at].get(ahead).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queue pairs 2, 3 and so on, and the list that they are in.
    fn ready(ports: SourcePort, queue_pairs: u16) -> (Ready, Vec<Scheduled>) {
        let mut ready = Ready::new(ports);
        let enter = |nth| {
            let mut scheduled = Scheduled { list: ready.list_of(nth), ..Scheduled::default() };
            ready.push(&mut scheduled, Qpn::from_wire(2 + u32::from(nth)));
            scheduled
        };
        let all = (0..queue_pairs).map(enter).collect();
        (ready, all)
    }

    /// The next so many, each of which sends so many packets of so many bytes and has more.
    fn turns(
        ready: &mut Ready,
        all: &[Scheduled],
        (packets, len): (u64, u64),
        count: usize,
    ) -> Vec<u32> {
        let mut turn = || {
            let qpn = ready.pop().expect("one is ready");
            ready.sent(packets, packets * len);
            ready.again(&all[qpn.value() as usize - 2], qpn);
            qpn.value()
        };
        (0..count).map(|_| turn()).collect()
    }

    #[test]
    fn queue_pairs_of_one_port_follow_one_another() {
        let (mut ready, all) = ready(SourcePort::InTurn { first: 7, count: 3 }, 7);
        let order = turns(&mut ready, &all, (16, 4096), 16);
        assert_eq!(order, [2, 5, 8, 2, 3, 6, 3, 6, 4, 7, 4, 7, 5, 8, 2, 5]);
        // Small packets: 64 KiB.
        let order = turns(&mut ready, &all, (64, 512), 6);
        assert_eq!(order, [3, 6, 4, 7, 8, 2]);
    }

    #[test]
    fn who_sends_little_does_not_lose_the_turn_of_its_port() {
        let (mut ready, _) = ready(SourcePort::InTurn { first: 7, count: 2 }, 5);
        let mut order = Vec::new();
        while let Some(qpn) = ready.pop() {
            ready.sent(1, 1);
            order.push(qpn.value());
        }
        assert_eq!(order, [2, 4, 6, 3, 5]);
        assert!(ready.is_empty());
    }

    #[test]
    fn each_gets_its_turn_where_ports_are_not_in_turn() {
        for ports in [SourcePort::Fixed(1), SourcePort::PerQp] {
            let (mut ready, all) = ready(ports, 3);
            assert_eq!(turns(&mut ready, &all, (64, 1024), 5), [2, 3, 4, 2, 3]);
            assert_eq!(ready.later(1), Some(Qpn::from_wire(2)));
        }
    }

    #[test]
    fn nobody_is_in_it_twice() {
        let (mut ready, mut all) = ready(SourcePort::PerQp, 1);
        ready.push(&mut all[0], Qpn::from_wire(2));
        assert!(ready.pop().is_some());
        assert_eq!(ready.pop(), None);
    }
}
