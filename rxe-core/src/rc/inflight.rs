//! The requests that were taken from the send queue and are not complete.
//!
//! Invariants (checked in debug builds by [`Inflight::check`]):
//! - the first `started` requests have PSNs, contiguous from the front's first to `assigned`;
//! - `una`, the oldest unacknowledged PSN, lies inside the front request, or equals `assigned` if
//!   none is started;
//! - the cursor, the next packet to send, is never before `una`;
//! - a READ or atomic completes only with its data, so `una` passes it only when the data arrives.
//!
//! The requester advances the cursor, and the completer advances `una`. Going back (go-back-N, IBTA
//! 9.7.5.1.1) sets the cursor to `una`.

use std::collections::VecDeque;

use crate::message::Outgoing;
use crate::prefetch;
use crate::queue::{SendRequest, Status};
use crate::service::QpView;
use crate::types::Psn;

/// Half of the PSN space. Of two PSNs that are further apart, either may be the later one.
const HALF: u32 = 1 << 23;

/// A send request that is not complete.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) request: SendRequest,
    /// Bytes of the message.
    pub(super) len: u32,
    /// The first PSN, once the request is started.
    pub(super) first: Psn,
    /// How many PSNs the request takes: its packets or, for a READ, those of the response. 0 if the
    /// request sends nothing.
    pub(super) packets: u32,
    /// Packets that one READ request packet asks for. A long READ is split, so that each response fits
    /// this host's receive buffer.
    pub(super) chunk: u32,
    /// Set if the request cannot be executed: it completes with this status when it is the oldest.
    pub(super) failed: Option<Status>,
}

impl Wqe {
    pub(super) fn new(request: SendRequest) -> Self {
        let len = request.message_len();
        Self { request, len, first: Psn::ZERO, packets: 0, chunk: 1, failed: None }
    }

    /// Returns the message, to be cut into packets.
    pub(super) fn outgoing(&self, view: &QpView<'_>) -> Outgoing<'_> {
        Outgoing {
            service: view.service(),
            request: &self.request,
            len: self.len,
            first: self.first,
            packets: self.packets,
            mtu: view.attr.path_mtu.bytes(),
            dest_qp: view.attr.dest_qp_num,
        }
    }

    /// Returns one past the last PSN.
    pub(super) fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    /// Returns whether packet `index` is the last that its READ request packet asked for.
    pub(super) fn ends_chunk(&self, index: u32) -> bool {
        self.left_in_chunk(index) == 1
    }

    /// Returns how many packets from `index` on the READ request packet asks for that covers `index`.
    pub(super) fn left_in_chunk(&self, index: u32) -> u32 {
        debug_assert!(self.chunk > 0 && index < self.packets, "{index} of {self:?}");
        (self.chunk - index % self.chunk).min(self.packets - index)
    }
}

/// The next packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Cursor {
    wqe: usize,
    packet: u32,
}

#[derive(Debug, Default)]
pub(super) struct Inflight {
    queue: VecDeque<Wqe>,
    started: usize,
    cursor: Cursor,
    una: Psn,
    /// The first PSN of the next request to start.
    assigned: Psn,
    /// One past the highest PSN ever sent. Responses to later PSNs are bogus.
    high: Psn,
    /// The last PSN of each READ request or atomic without a response.
    reads: VecDeque<Psn>,
}

impl Inflight {
    pub(super) fn new(psn: Psn) -> Self {
        Self { una: psn, assigned: psn, high: psn, ..Self::default() }
    }

    /// Adds a request that has no PSN yet.
    #[inline]
    pub(super) fn push(&mut self, wqe: Wqe) {
        debug_assert!(wqe.packets == 0, "a request gets its PSNs when it starts");
        self.queue.push_back(wqe);
    }

    /// Prefetches the slot of the next request, if the queue is empty.
    pub(super) fn prefetch(&self) {
        if self.queue.is_empty() && self.queue.capacity() > 0 {
            // The first slot of the empty queue: the address is prefetched, never dereferenced.
            let at = self.queue.as_slices().0.as_ptr().cast::<u8>();
            (0..size_of::<Wqe>())
                .step_by(64)
                .for_each(|line| prefetch::line(at.wrapping_add(line)));
        }
    }

    /// Returns the request whose packet is next, and whether it is started. `None` if everything is sent.
    #[inline]
    pub(super) fn current(&self) -> Option<(&Wqe, bool)> {
        self.queue.get(self.cursor.wqe).map(|wqe| (wqe, self.cursor.wqe < self.started))
    }

    /// Returns the request after the current one.
    pub(super) fn following(&self) -> Option<&Wqe> {
        self.queue.get(self.cursor.wqe + 1)
    }

    /// Starts the current request: assigns its PSNs.
    pub(super) fn start(&mut self, packets: u32, chunk: u32) {
        debug_assert!(self.started < self.queue.len(), "a request waits");
        debug_assert_eq!(self.cursor, Cursor { wqe: self.started, packet: 0 });
        debug_assert!(chunk >= 1, "a READ request asks for something");
        debug_assert!(packets <= HALF, "PSNs of one message are compared with each other");
        let wqe = &mut self.queue[self.started];
        wqe.first = self.assigned;
        wqe.packets = packets;
        wqe.chunk = chunk;
        self.assigned = wqe.end();
        debug_assert!(!self.assigned.before(self.una));
        self.started += 1;
        self.skip_local();
    }

    /// Marks the current request, started or not, as failed with `status`.
    pub(super) fn fail_current(&mut self, status: Status) {
        if let Some(wqe) = self.queue.get_mut(self.cursor.wqe) {
            debug_assert_ne!(status, Status::Success);
            wqe.failed = Some(status);
        }
    }

    /// Returns the index of the next packet within the current request.
    pub(super) fn packet_index(&self) -> u32 {
        self.cursor.packet
    }

    /// Returns the PSN of the next packet.
    #[inline]
    pub(super) fn next_psn(&self) -> Psn {
        match self.current() {
            Some((wqe, true)) => wqe.first.add(self.cursor.packet),
            _ => self.assigned,
        }
    }

    /// Records that `n` PSNs of the current request were sent. Returns how many of them had been sent
    /// before. `awaits_data`: the packet was a READ request or an atomic.
    #[inline]
    pub(super) fn sent(&mut self, n: u32, awaits_data: bool) -> u32 {
        let next = self.next_psn().add(n);
        debug_assert!(n > 0 && self.cursor.wqe < self.started, "only a started request is sent");
        if awaits_data {
            debug_assert!(self.reads.back().is_none_or(|last| last.before(next.sub(1))));
            self.reads.push_back(next.sub(1));
        }
        let mut again = n;
        if next.after(self.high) {
            let new = u32::try_from(next.diff(self.high)).unwrap_or(n);
            again = n.saturating_sub(new);
            self.high = next;
        }
        self.cursor.packet += n;
        let wqe = &self.queue[self.cursor.wqe];
        debug_assert!(self.cursor.packet <= wqe.packets);
        if self.cursor.packet == wqe.packets {
            self.cursor = Cursor { wqe: self.cursor.wqe + 1, packet: 0 };
            self.skip_local();
        }
        again
    }

    /// Moves the cursor past started requests that send nothing.
    fn skip_local(&mut self) {
        while self.cursor.wqe < self.started && self.queue[self.cursor.wqe].packets == 0 {
            self.cursor = Cursor { wqe: self.cursor.wqe + 1, packet: 0 };
        }
    }

    /// Takes out the oldest request, if it is started and sends nothing: then it is complete.
    #[inline]
    pub(super) fn pop_local(&mut self) -> Option<Wqe> {
        self.front_started().filter(|front| front.packets == 0)?;
        let wqe = self.pop_started();
        self.pull_cursor();
        Some(wqe)
    }

    /// Returns the oldest PSN without a response.
    pub(super) fn una(&self) -> Psn {
        self.una
    }

    /// Returns one past the highest PSN ever sent.
    pub(super) fn high(&self) -> Psn {
        self.high
    }

    /// Returns how many PSNs were sent since the last rewind and are unacknowledged.
    #[inline]
    pub(super) fn unacknowledged(&self) -> u32 {
        u32::try_from(self.next_psn().diff(self.una)).unwrap_or(0)
    }

    /// Returns how many READ requests and atomics are sent and have no response.
    pub(super) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Returns whether a started request is not complete.
    pub(super) fn is_busy(&self) -> bool {
        self.started > 0
    }

    /// Returns the oldest request.
    pub(super) fn front(&self) -> Option<&Wqe> {
        self.queue.front()
    }

    /// Returns the oldest request, if it is started.
    #[inline]
    pub(super) fn front_started(&self) -> Option<&Wqe> {
        if self.started > 0 { self.queue.front() } else { None }
    }

    /// Records that the peer has received everything before `to`, and passes requests that are now
    /// complete to `retire`. An acknowledgement has no data, so it cannot complete a READ or atomic.
    ///
    /// # Errors
    /// `to` lies beyond a READ or atomic without a response.
    pub(super) fn acknowledge(
        &mut self,
        to: Psn,
        mut retire: impl FnMut(Wqe),
    ) -> Result<(), ResponseSkipped> {
        while to.after(self.una) {
            let Some(front) = self.front_started() else { break };
            if front.packets == 0 {
                retire(self.pop_started());
                continue;
            }
            if front.request.op.is_answered() {
                return Err(ResponseSkipped);
            }
            let end = front.end();
            debug_assert!(!to.after(self.high), "the peer has not received what was not sent");
            if to.before(end) {
                self.una = to;
                break;
            }
            self.una = end;
            retire(self.pop_started());
        }
        self.pull_cursor();
        self.check_reads();
        Ok(())
    }

    /// Records that the data for PSN `una` of the oldest READ or atomic has arrived. Returns the request if
    /// it is complete now.
    pub(super) fn answered(&mut self) -> Option<Wqe> {
        let front = self.front_started()?;
        debug_assert!(front.request.op.is_answered(), "an acknowledgement brings no data");
        let end = front.end();
        debug_assert!(self.una.before(end) && self.una.before(self.high));
        self.una = self.una.next();
        while self.reads.front().is_some_and(|last| last.before(self.una)) {
            self.reads.pop_front();
        }
        let complete = self.una == end;
        let wqe = complete.then(|| self.pop_started());
        self.pull_cursor();
        self.check_reads();
        wqe
    }

    /// Records that the data for `count` PSNs from `una` on has arrived. None of them is the last of a READ
    /// request packet.
    pub(super) fn answered_in_part(&mut self, count: u32) {
        debug_assert!(count > 0 && !self.una.add(count).after(self.high));
        self.una = self.una.add(count);
        debug_assert!(self.front_started().is_some_and(|front| self.una.before(front.end())));
        debug_assert!(self.reads.front().is_none_or(|last| !last.before(self.una)));
        self.pull_cursor();
    }

    /// Takes out the oldest request, started or not.
    pub(super) fn pop(&mut self) -> Option<Wqe> {
        if self.started > 0 {
            let wqe = self.pop_started();
            self.una = wqe.end();
            self.pull_cursor();
            return Some(wqe);
        }
        self.pop_front()
    }

    /// Moves the cursor back to `una`: everything from there on will be sent again.
    pub(super) fn rewind(&mut self) {
        self.reads.clear();
        self.cursor = Cursor::default();
        self.pull_cursor();
        debug_assert!(self.unacknowledged() == 0, "everything is sent again");
    }

    /// Undoes [`Inflight::rewind`]: moves the cursor past packets that were sent before. Stops at a READ or
    /// atomic, which is requested again.
    pub(super) fn forward(&mut self) {
        while let Some((wqe, true)) = self.current() {
            let left = u32::try_from(self.high.diff(self.next_psn())).unwrap_or(0);
            let packets = left.min(wqe.packets - self.cursor.packet);
            if packets == 0 || wqe.request.op.is_answered() {
                break;
            }
            self.sent(packets, false);
        }
        debug_assert!(!self.next_psn().after(self.high), "only what was sent is not sent again");
        self.check();
    }

    fn pop_started(&mut self) -> Wqe {
        debug_assert!(self.started > 0 && self.started <= self.queue.len());
        self.started -= 1;
        if self.cursor.wqe == 0 {
            self.cursor.packet = 0;
        } else {
            self.cursor.wqe -= 1;
        }
        self.pop_front().expect("a started request is in the queue")
    }

    /// Takes out the oldest request. An empty queue restarts at its first slot, so that a queue pair with
    /// few outstanding requests always uses the same few cache lines.
    #[inline]
    fn pop_front(&mut self) -> Option<Wqe> {
        let wqe = self.queue.pop_front();
        if self.queue.is_empty() {
            self.queue.clear();
        }
        wqe
    }

    /// Moves the cursor up to `una`: after a rewind, responses to the first transmission may overtake it.
    #[inline]
    fn pull_cursor(&mut self) {
        if self.cursor.wqe == 0
            && let Some(front) = self.front_started()
        {
            let done = u32::try_from(self.una.diff(front.first)).unwrap_or(0);
            self.cursor.packet = self.cursor.packet.max(done);
        }
        self.skip_local();
        self.check();
    }

    fn check(&self) {
        debug_assert!(self.started <= self.queue.len() && self.cursor.wqe <= self.started);
        debug_assert!(match self.front_started() {
            Some(front) => {
                let within = self.una.before(front.end()) || front.packets == 0;
                !self.una.before(front.first) && within
            }
            None => self.una == self.assigned,
        });
        debug_assert!(!self.next_psn().before(self.una));
        debug_assert!(!self.next_psn().after(self.assigned), "only PSNs that requests have");
        debug_assert!(
            self.started < 2 || self.queue[0].end() == self.queue[1].first,
            "requests follow one another"
        );
        let packet = self.cursor.packet;
        debug_assert!(match self.current() {
            Some((wqe, true)) => packet < wqe.packets,
            _ => packet == 0,
        });
    }

    /// Checks that READs and atomics without a response lie between `una` and the cursor.
    fn check_reads(&self) {
        debug_assert!(self.reads.len() <= self.unacknowledged() as usize);
        debug_assert!(self.reads.front().is_none_or(|last| !last.before(self.una)));
        debug_assert!(self.reads.back().is_none_or(|last| last.before(self.next_psn())));
    }
}

/// An acknowledgement lies beyond a READ or atomic without a response, which must have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseSkipped;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Payload, Remote, SendFlags, SendOp};
    use crate::types::Key;

    fn wqe(id: u64, read: bool) -> Wqe {
        let remote = Remote { addr: 0, rkey: Key::new(1) };
        let op = if read { SendOp::Read { remote } } else { SendOp::Send { imm: None } };
        let payload = Payload::Sges(Default::default());
        Wqe::new(SendRequest { flags: SendFlags::empty(), ..SendRequest::new(id, op, payload) })
    }

    /// Requests of 3 packets each, all sent, from a PSN just before the wrap.
    fn sent(kinds: &[bool]) -> Inflight {
        let mut inflight = Inflight::new(Psn::new(0xff_fffe));
        for (id, &read) in (0..).zip(kinds) {
            inflight.push(wqe(id, read));
            inflight.start(3, 3);
            if read {
                inflight.sent(3, true);
            } else {
                for _ in 0..3 {
                    inflight.sent(1, false);
                }
            }
        }
        inflight
    }

    fn acknowledge(inflight: &mut Inflight, to: u32) -> (Vec<u64>, bool) {
        let mut ids = Vec::new();
        let result = inflight.acknowledge(Psn::new(to), |wqe| ids.push(wqe.request.id));
        (ids, result.is_ok())
    }

    #[test]
    fn acknowledgements_retire_in_order_and_in_part() {
        let mut inflight = sent(&[false, false]);
        assert_eq!(acknowledge(&mut inflight, 0), (vec![], true), "part of the first");
        assert_eq!(inflight.una(), Psn::new(0));
        assert_eq!(acknowledge(&mut inflight, 2), (vec![0], true), "and part of the second");
        assert_eq!(inflight.unacknowledged(), 2);
        assert_eq!(acknowledge(&mut inflight, 4), (vec![1], true));
        assert!(!inflight.is_busy());
    }

    #[test]
    fn an_acknowledgement_does_not_pass_a_read() {
        let mut inflight = sent(&[false, true, false]);
        assert_eq!(acknowledge(&mut inflight, 7), (vec![0], false));
        assert_eq!(inflight.una(), Psn::new(1), "the READ's first PSN");
        assert!(inflight.answered().is_none() && inflight.answered().is_none());
        assert_eq!(inflight.reads(), 1);
        assert_eq!(inflight.answered().map(|wqe| wqe.request.id), Some(1));
        assert_eq!(inflight.reads(), 0);
        assert_eq!(acknowledge(&mut inflight, 7), (vec![2], true));
    }

    #[test]
    fn a_rewind_is_undone_up_to_a_read() {
        let mut inflight = sent(&[false, false, true, false]);
        inflight.rewind();
        inflight.sent(1, false);
        acknowledge(&mut inflight, 0);
        assert_eq!(inflight.next_psn(), Psn::new(0));
        inflight.forward();
        assert_eq!(inflight.next_psn(), Psn::new(4), "the READ's");
        assert_eq!((inflight.una(), inflight.high()), (Psn::new(0), Psn::new(10)));

        let mut inflight = sent(&[false]);
        inflight.push(wqe(1, false));
        inflight.start(3, 3);
        inflight.sent(1, false);
        inflight.rewind();
        inflight.forward();
        assert_eq!((inflight.next_psn(), inflight.packet_index()), (inflight.high(), 1));
    }

    #[test]
    fn after_going_back_late_answers_pull_the_cursor_on() {
        let mut inflight = sent(&[false, false]);
        acknowledge(&mut inflight, 0);
        inflight.rewind();
        assert_eq!(inflight.next_psn(), Psn::new(0));
        acknowledge(&mut inflight, 2);
        assert_eq!(inflight.next_psn(), Psn::new(2));
        inflight.sent(1, false);
        assert_eq!(inflight.next_psn(), Psn::new(3));
        assert_eq!(inflight.high(), Psn::new(4), "sent before");
    }

    #[test]
    fn a_coalesced_segment_may_begin_with_packets_that_were_sent_before() {
        let mut inflight = Inflight::new(Psn::new(0xff_fffe));
        inflight.push(wqe(0, false));
        inflight.start(6, 1);
        assert_eq!(inflight.sent(3, false), 0, "all are new");
        inflight.rewind();
        assert_eq!(inflight.sent(1, false), 1);
        assert_eq!(inflight.sent(4, false), 2, "two are new");
        assert_eq!(inflight.sent(1, false), 0);
    }

    #[test]
    fn going_back_into_a_read_asks_for_the_rest() {
        let mut inflight = sent(&[true]);
        inflight.answered();
        inflight.rewind();
        assert_eq!((inflight.packet_index(), inflight.reads()), (1, 0));
        inflight.sent(2, true);
        assert_eq!((inflight.unacknowledged(), inflight.reads()), (2, 1));
    }
}
