//! The queue pairs that may have something to send, in the order in which they send.
//!
//! All packets of one system call have one source port. If queue pairs are spread over a few ports
//! ([`SourcePort::InTurn`]), those of one port send one after another, so that their packets share a
//! burst although each QP may have only a few. A port's turn ends after a number of rounds that does not
//! depend on how many queue pairs share the port, so all queue pairs send equally often.

use std::collections::VecDeque;

use crate::config::SourcePort;
use crate::qp::Scheduled;
use crate::types::Qpn;

/// The most rounds of one port before the next port's turn. In a round each of its queue pairs sends
/// once.
const ROUNDS: u32 = 8;
/// Bytes after which no further round of a port begins: about one system call. Queue pairs with small
/// messages need several rounds to fill one.
const BYTES: u64 = 64 << 10;

/// The queue pairs that may have something to send.
#[derive(Debug)]
pub(super) struct Ready {
    /// One list for each source port from `first` on, or one list for all ports.
    lists: Vec<VecDeque<Qpn>>,
    first: u16,
    /// The list whose turn it is.
    at: usize,
    /// Queue pairs of that list that have not sent in this round.
    left: usize,
    /// Rounds of that list that have begun in this port's turn, and bytes sent in them.
    rounds: u32,
    bytes: u64,
    /// Queue pairs in all lists.
    len: usize,
}

impl Ready {
    pub(super) fn new(ports: SourcePort) -> Self {
        let (first, lists) = match ports {
            SourcePort::InTurn { first, count } => (first, count.clamp(1, 256)),
            SourcePort::Fixed(_) | SourcePort::PerQp => (0, 1),
        };
        let lists = vec![VecDeque::new(); lists.into()];
        Self { lists, first, at: 0, left: 0, rounds: 0, bytes: 0, len: 0 }
    }

    fn check(&self) {
        debug_assert_eq!(self.len, self.lists.iter().map(VecDeque::len).sum());
        debug_assert!(self.left <= self.lists[self.at].len(), "a round is of those in the list");
        debug_assert!(self.rounds <= ROUNDS, "a turn of a port ends");
        debug_assert!((1..=256).contains(&self.lists.len()), "a list's number has 8 bits");
    }

    /// Returns the number of the list for queue pairs with this source port.
    pub(super) fn list_of(&self, src_port: u16) -> u8 {
        let nth = usize::from(src_port.wrapping_sub(self.first));
        debug_assert!(self.lists.len() == 1 || src_port >= self.first, "a port of the range");
        // There are at most 256 lists.
        u8::try_from(nth % self.lists.len()).unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a queue pair, unless it is in the list already.
    #[inline]
    pub(super) fn push(&mut self, scheduled: &mut Scheduled, qpn: Qpn) {
        if !scheduled.ready {
            scheduled.ready = true;
            self.again(scheduled, qpn);
        }
    }

    /// Appends a queue pair that has sent and has more to send.
    #[inline]
    pub(super) fn again(&mut self, scheduled: &Scheduled, qpn: Qpn) {
        debug_assert!(scheduled.ready && usize::from(scheduled.list) < self.lists.len());
        self.lists[usize::from(scheduled.list)].push_back(qpn);
        self.len += 1;
        self.check();
    }

    /// Takes out the queue pair that sends next.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Qpn> {
        if self.len == 0 {
            return None;
        }
        if self.left == 0 || self.lists[self.at].is_empty() {
            self.next_round();
        }
        debug_assert!(0 < self.left && self.left <= self.len, "{} of {}", self.left, self.len);
        self.left -= 1;
        self.len -= 1;
        let next = self.lists[self.at].pop_front();
        debug_assert!(next.is_some(), "the list whose turn it is has a queue pair");
        self.check();
        next
    }

    /// Begins a round of the same list, or of the next list that is not empty.
    fn next_round(&mut self) {
        if self.rounds == ROUNDS || self.bytes >= BYTES || self.lists[self.at].is_empty() {
            let lists = self.lists.len();
            let others = (1..=lists).map(|ahead| (self.at + ahead) % lists);
            self.at = others.into_iter().find(|&at| !self.lists[at].is_empty()).unwrap_or(self.at);
            (self.rounds, self.bytes) = (0, 0);
        }
        self.rounds += 1;
        self.left = self.lists[self.at].len();
        debug_assert!(self.left > 0, "a round has a queue pair");
    }

    /// Counts `bytes` that the queue pair taken last has sent.
    #[inline]
    pub(super) fn sent(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Returns the queue pair that sends after `ahead` others of the same list, if that many wait.
    #[inline]
    pub(super) fn peek(&self, ahead: usize) -> Option<Qpn> {
        self.lists[self.at].get(ahead).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a ready list with queue pairs 2, 3 and so on, and their list notes.
    fn ready(ports: SourcePort, queue_pairs: u16) -> (Ready, Vec<Scheduled>) {
        let mut ready = Ready::new(ports);
        let enter = |nth| {
            let qpn = Qpn::from_wire(2 + u32::from(nth));
            let list = ready.list_of(ports.of(qpn, nth));
            let mut scheduled = Scheduled { list, ..Scheduled::default() };
            ready.push(&mut scheduled, qpn);
            scheduled
        };
        let all = (0..queue_pairs).map(enter).collect();
        (ready, all)
    }

    /// Returns the numbers of the next `count` queue pairs. Each sends `bytes` and has more to send.
    fn turns(ready: &mut Ready, all: &[Scheduled], bytes: u64, count: usize) -> Vec<u32> {
        let mut turn = || {
            let qpn = ready.pop().expect("one is ready");
            ready.sent(bytes);
            ready.again(&all[qpn.value() as usize - 2], qpn);
            qpn.value()
        };
        (0..count).map(|_| turn()).collect()
    }

    const THREE: SourcePort = SourcePort::InTurn { first: 7, count: 3 };

    #[test]
    fn queue_pairs_of_one_port_follow_one_another() {
        let (mut ready, all) = ready(THREE, 7);
        let order = turns(&mut ready, &all, 30_000, 10);
        assert_eq!(order, [2, 5, 8, 3, 6, 3, 6, 4, 7, 4], "as many rounds as fill a call");
        let order = turns(&mut ready, &all, 300_000, 8);
        assert_eq!(order, [7, 2, 5, 8, 3, 6, 4, 7]);
    }

    #[test]
    fn each_gets_as_many_turns_as_any_other() {
        // Turns without bytes count as well: such a queue pair has work on this host only.
        for bytes in [0, 8, 300_000] {
            let (mut ready, all) = ready(THREE, 7);
            let order = turns(&mut ready, &all, bytes, 7 * 80);
            let of = |qpn| order.iter().filter(|&&one| one == qpn).count();
            assert_eq!((2..9).map(of).collect::<Vec<_>>(), [80; 7], "{bytes} bytes");
        }
    }

    #[test]
    fn who_comes_in_the_middle_of_a_round_waits_for_the_next_one() {
        let (mut ready, all) = ready(THREE, 5);
        assert_eq!(turns(&mut ready, &all, 300_000, 1), [2]);
        ready.push(&mut Scheduled { list: 0, ..Scheduled::default() }, Qpn::from_wire(99));
        assert_eq!(turns(&mut ready, &all, 300_000, 5), [5, 3, 6, 4, 2]);
    }

    #[test]
    fn who_sends_little_does_not_lose_the_turn_of_its_port() {
        let (mut ready, _) = ready(SourcePort::InTurn { first: 7, count: 2 }, 5);
        let mut order = Vec::new();
        while let Some(qpn) = ready.pop() {
            ready.sent(1);
            order.push(qpn.value());
        }
        assert_eq!(order, [2, 4, 6, 3, 5]);
        assert!(ready.is_empty());
    }

    #[test]
    fn each_gets_its_turn_where_ports_are_not_in_turn() {
        for ports in [SourcePort::Fixed(1), SourcePort::PerQp] {
            let (mut ready, all) = ready(ports, 3);
            assert_eq!(turns(&mut ready, &all, 65_536, 5), [2, 3, 4, 2, 3]);
            assert_eq!(ready.peek(1), Some(Qpn::from_wire(2)));
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
