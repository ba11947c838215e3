//! The requester: starts requests in order and sends their packets. IBTA 9.7.2 to 9.7.4.
//!
//! A request waits for a fence, for the limit of outstanding READs and atomics, and for the window of
//! the [`Controller`]. [`Segment`] builds a packet, and [`TxBatch::packets`] writes it into the batch.

use crate::event::{Event, FailedRequest, MemoryRange};
use crate::mem::AccessError;
use crate::queue::{SendFlags, SendOp, SendRequest, Status};
use crate::service::{
    ConnectionError, Ctx, Drain, QpHandle, QpView, bad_memory, check_memory, complete_send,
    completion_op, do_local,
};
use crate::types::{Psn, Time};
use crate::wire::TxBatch;

use super::controller::{Controller, Sent};
use super::inflight::{Inflight, Wqe};
use super::recovery::Recovery;
use crate::message::{Segment, packets};

/// The send side of an RC queue pair.
#[derive(Debug, Default)]
pub(crate) struct Requester<C = Recovery> {
    pub(super) inflight: Inflight,
    /// Decides how much may be sent, and what happens after a loss.
    pub(super) control: C,
    /// The doorbell rang after the send queue was last found empty. Every post rings the doorbell, so no
    /// post is missed, and a queue pair that only responds never reads its send queue.
    posted: bool,
    drain: Drain,
    /// Whether a FLUSH gets the ICRC that kernel `rdma_rxe` expects, which is not that of the
    /// specification: the kernel drops a FLUSH with the correct one. Each retry of a FLUSH tries the other
    /// kind, so the kind that the peer answers stays.
    pub(super) kernel_icrc: bool,
    /// Whether the peer has ever responded.
    pub(super) answered: bool,
    /// Why the memory of a request could not be read when it was to be sent. Boxed, because it is rare.
    unreadable: Option<Box<AccessError>>,
}

/// With at most this many packets in flight, and no more to send, a queue pair has no weight.
const LIGHT: u32 = 4;

impl<C: Controller> Requester<C> {
    /// Returns a requester that enters RTS.
    pub(crate) fn new(sq_psn: Psn, view: &QpView<'_>) -> Self {
        Self {
            inflight: Inflight::new(sq_psn),
            control: C::new(view),
            posted: !view.handle.sq.is_empty(),
            ..Self::default()
        }
    }

    /// Returns the PSN of the next packet.
    pub(crate) fn psn(&self) -> Psn {
        self.inflight.next_psn()
    }

    /// Returns how many packets are unacknowledged, and how many may be.
    pub(crate) fn outstanding(&self) -> (u32, u32) {
        (self.inflight.unacknowledged(), self.control.window(u32::MAX))
    }

    /// Sends up to about `budget` packets. Returns whether more may be sent.
    pub(crate) fn transmit(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> bool {
        if self.control.is_paused() {
            return false;
        }
        let mut left = u32::try_from(budget).unwrap_or(u32::MAX);
        while left > 0 {
            if batch.is_full() {
                return true;
            }
            let sent = self.send_next(view, ctx, batch, left);
            debug_assert!(sent <= left, "{sent} of at most {left}");
            left = left.saturating_sub(sent.max(1));
            if sent == 0 {
                // The last packet sent did not ask, because the next one was to follow immediately. That
                // one cannot be sent now: its memory is not readable, or the send queue began to drain.
                if self.control.must_ask_again(self.inflight.unacknowledged()) {
                    self.inflight.rewind();
                    continue;
                }
                self.control.note_idle();
                return false;
            }
        }
        true
    }

    /// Returns whether [`Requester::transmit`] may find something to send.
    pub(crate) fn has_work(&self) -> bool {
        self.control.is_open() && (self.inflight.current().is_some() || self.posted)
    }

    /// See [`Qp::inflight_weight`](crate::qp::Qp::inflight_weight).
    #[inline]
    pub(crate) fn inflight_weight(&self) -> u16 {
        let packets = self.inflight.unacknowledged();
        if packets > LIGHT || self.inflight.current().is_some() {
            u16::try_from(packets.max(1)).unwrap_or(u16::MAX)
        } else {
            0
        }
    }

    /// Prefetches the slot of the next request.
    pub(crate) fn prefetch(&self) {
        self.inflight.prefetch();
    }

    /// Records that the doorbell rang: the send queue may hold requests.
    pub(crate) fn posted(&mut self) {
        self.posted = true;
    }

    /// Sends one packet or a coalesced segment of at most `budget` packets, or executes one local request.
    /// Returns how much of the budget that takes; 0 if nothing may be done now.
    #[inline]
    fn send_next(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: u32,
    ) -> u32 {
        if self.inflight.current().is_none() {
            self.take(view, ctx);
        }
        let Some((wqe, started)) = self.inflight.current() else { return 0 };
        if wqe.failed.is_some() {
            return 0;
        }
        if !started {
            if self.drain != Drain::No || self.is_fenced(wqe) {
                return 0;
            }
            if wqe.request.op.is_local() {
                return u32::from(self.do_local(view, ctx));
            }
            // The program may have changed the limit since the request was taken.
            if wqe.request.op.is_answered() && view.attr.max_rd_atomic == 0 {
                self.inflight.fail_current(Status::LocalQpOperation);
                return 0;
            }
            let mtu = view.attr.path_mtu.bytes();
            let chunk = self.control.read_chunk(view.limits.peer_window, view.attr.max_rd_atomic);
            self.inflight.start(packets(wqe.len, mtu), chunk);
        }
        let Some(psns) = self.admitted(view) else { return 0 };
        let at_once = self.packets_at_once(view, ctx, budget);
        if at_once > 1 && self.emit_coalesced(view, ctx, batch, at_once) {
            return at_once;
        }
        u32::from(self.emit(view, ctx, batch, psns))
    }

    /// Executes a request that sends nothing. The request completes after all requests before it.
    fn do_local(&mut self, view: &QpView<'_>, ctx: &Ctx<'_>) -> bool {
        let Some((wqe, _)) = self.inflight.current() else { return false };
        match do_local(&wqe.request, view, ctx) {
            Ok(()) => {
                self.inflight.start(0, 1);
                true
            }
            Err(status) => {
                self.inflight.fail_current(status);
                false
            }
        }
    }

    /// Returns how many packets of a SEND or WRITE may be sent now as one coalesced segment: at most
    /// `budget`, within the window, up to the next packet that asks for an acknowledgement. 1 means a
    /// single packet.
    #[inline]
    fn packets_at_once(&self, view: &QpView<'_>, ctx: &mut Ctx<'_>, budget: u32) -> u32 {
        let Some((wqe, _)) = self.inflight.current() else { return 1 };
        let left = wqe.packets - self.inflight.packet_index();
        let left = match wqe.request.op {
            SendOp::Send { .. } | SendOp::Write { .. } => left,
            // The last packet stays apart: its invalidation could not be undone if the peer refused another
            // packet of the segment.
            SendOp::SendInvalidate { .. } => left - 1,
            _ => 1,
        };
        // This check comes first, because every packet passes it.
        let most = if left < 2 { 1 } else { u32::from(ctx.max_coalesced(view)) };
        if most < 2 {
            return 1;
        }
        let used = self.inflight.unacknowledged();
        let room = self.control.segment_room(used, view.limits.peer_window);
        let count = left.min(room).min(budget).min(most).max(1);
        debug_assert!(count <= wqe.packets - self.inflight.packet_index(), "of one message");
        count
    }

    /// Returns how many PSNs the next packet takes: one, or for a READ request those of its response.
    /// `None` if the packet may not be sent now.
    fn admitted(&self, view: &QpView<'_>) -> Option<u32> {
        let (wqe, _) = self.inflight.current()?;
        let used = self.inflight.unacknowledged();
        let room = self.control.room(used, view.limits.peer_window);
        let op = &wqe.request.op;
        if op.is_answered() && self.inflight.reads() >= usize::from(view.attr.max_rd_atomic) {
            return None;
        }
        if matches!(op, SendOp::Read { .. }) {
            let index = self.inflight.packet_index();
            let psns = wqe.left_in_chunk(index);
            debug_assert!(psns > 0, "a READ request asks for something");
            // A READ request larger than the present window is sent when nothing is outstanding.
            return (room >= psns || used == 0).then_some(psns);
        }
        (room > 0).then_some(1)
    }

    /// [`Requester::emit`], not inlined into the path of single packets.
    #[inline(never)]
    fn emit_coalesced(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        psns: u32,
    ) -> bool {
        self.emit(view, ctx, batch, psns)
    }

    /// Sends the next `psns` PSNs: a packet, a coalesced segment, or a READ request. Returns `false` if
    /// that is not possible. If it was a coalesced segment, nothing has changed, and its packets must be
    /// sent one by one.
    #[inline(always)]
    fn emit(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        psns: u32,
    ) -> bool {
        let index = self.inflight.packet_index();
        let Some((wqe, _)) = self.inflight.current() else { return false };
        debug_assert!(psns > 0 && index + psns <= wqe.packets, "{psns} from {index} on");
        let last = index + psns == wqe.packets;
        if last && self.inflight.following().is_none() {
            // `sets_ack_req` needs to know whether another request follows.
            self.take(view, ctx);
        }
        let Some((wqe, _)) = self.inflight.current() else { return false };
        let awaits_data = wqe.request.op.is_answered();
        let packets = if awaits_data { 1 } else { psns };
        let ack_req = !awaits_data && self.sets_ack_req(view, packets, last);
        let memory = (ctx.mem, view.identity.pd);
        let segment =
            Segment::new(wqe.outgoing(view), index, psns).with_kernel_icrc(self.kernel_icrc);
        let packets = u16::try_from(packets).expect("a segment at most");
        match segment.emit(memory, batch, ctx.direct(), view.net, ack_req, packets) {
            Ok(true) => {}
            Ok(false) => return false,
            // One by one, the packets before the unreadable one are still sent.
            Err(_) if packets > 1 => return false,
            Err(why) => {
                // The region was deregistered, or its memory unmapped, after the request was checked.
                self.unreadable = Some(Box::new(why));
                self.inflight.fail_current(Status::LocalProtection);
                return false;
            }
        }
        self.sent(ctx, psns, ack_req, awaits_data);
        true
    }

    /// Records that the next `psns` PSNs were sent. `ack_req`: the last packet asks for an
    /// acknowledgement. `awaits_data`: the packet was a READ request or an atomic.
    #[inline(always)]
    fn sent(&mut self, ctx: &mut Ctx<'_>, psns: u32, ack_req: bool, awaits_data: bool) {
        let asks = ack_req || awaits_data;
        let mut timed = None;
        if asks && self.control.is_timing() {
            let psn = self.inflight.next_psn().add(if awaits_data { 0 } else { psns - 1 });
            timed = Some(psn).filter(|psn| !psn.before(self.inflight.high()));
        }
        self.control.on_sent(ctx.now, Sent { psns, asks, timed });
        debug_assert!(!self.control.is_paused(), "nothing is sent in a pause");
        let again = self.inflight.sent(psns, awaits_data);
        debug_assert!(again <= psns, "{again} of {psns}");
        debug_assert!(self.inflight.unacknowledged() >= psns, "what was sent needs a response");
        if again > 0 {
            // A READ request is one packet, whatever number of PSNs its response takes.
            let packets = if awaits_data { 1 } else { again };
            ctx.events.counters.retransmitted_pkts += u64::from(packets);
        }
    }

    /// Returns whether the last of the next `count` packets asks for an acknowledgement. The last packet
    /// of a message asks unless another request follows immediately; any packet asks if the window would
    /// otherwise stop. `last`: that packet is the last of its message.
    #[inline(always)]
    fn sets_ack_req(&self, view: &QpView<'_>, count: u32, last: bool) -> bool {
        let used = self.inflight.unacknowledged() + count;
        if self.control.asks(used, count, view.limits.peer_window) {
            return true;
        }
        // A request that may have to wait (for a fence, for the READ limit, or because the queue drains)
        // does not follow immediately.
        let more = self.inflight.following().is_some_and(|next| {
            !next.request.op.is_answered()
                && !next.request.op.is_local()
                && !next.request.flags.contains(SendFlags::FENCE)
                && next.failed.is_none()
                && self.drain == Drain::No
        });
        last && !more
    }

    /// Moves the next posted request into `inflight`, unless the send queue drains.
    fn take(&mut self, view: &QpView<'_>, ctx: &Ctx<'_>) {
        if !self.posted || self.drain != Drain::No {
            return;
        }
        match view.handle.sq.take() {
            Some(request) => {
                debug_assert!(self.inflight.following().is_none(), "one request ahead is enough");
                let mut wqe = Wqe::new(request);
                wqe.failed = check_memory(&wqe.request, view, ctx).err();
                self.inflight.push(wqe);
            }
            None => self.posted = false,
        }
    }

    /// Returns whether a request must wait for the READs and atomics before it. IBTA 10.8.3.3.
    fn is_fenced(&self, wqe: &Wqe) -> bool {
        wqe.request.flags.contains(SendFlags::FENCE) && self.inflight.reads() > 0
    }

    /// Completes the oldest requests that send nothing. Fails the next request if it cannot be executed.
    #[inline]
    pub(crate) fn reap(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), ConnectionError> {
        self.reap_local(view, ctx);
        let Some(status) = self.inflight.front().and_then(|wqe| wqe.failed) else { return Ok(()) };
        // While the send queue drains, a request that is not started waits, even one that will fail.
        if self.drain != Drain::No && !self.inflight.is_busy() {
            return Ok(());
        }
        let detail = self.unreadable.take().map(|why| *why);
        if let Some(why) = detail {
            ctx.report_memory_fault(view, why);
        }
        Err(self.fail_front(view, ctx, status, detail))
    }

    fn reap_local(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        while let Some(wqe) = self.inflight.pop_local() {
            complete_send(view, ctx, &wqe.request, Status::Success);
        }
    }

    /// Completes the oldest request with `status`; the queue pair then goes into the error state.
    pub(super) fn fail_front(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        status: Status,
        detail: Option<AccessError>,
    ) -> ConnectionError {
        debug_assert_ne!(status, Status::Success);
        // Local requests before the failed one were executed, so they complete with success.
        self.reap_local(view, ctx);
        let una = self.inflight.una();
        if let Some(wqe) = self.inflight.pop() {
            let (detail, mut request) = self.describe(view, ctx, &wqe.request, status, detail);
            request.una = una;
            ctx.events.emit(Event::RequestFailed { qpn: view.qpn(), status, detail, request });
            complete_send(view, ctx, &wqe.request, status);
        }
        self.control.stop();
        ConnectionError
    }

    /// Describes a failed request for explanations: what was wrong with its memory, and which memory it
    /// named.
    fn describe(
        &self,
        view: &QpView<'_>,
        ctx: &Ctx<'_>,
        request: &SendRequest,
        status: Status,
        detail: Option<AccessError>,
    ) -> (Option<AccessError>, FailedRequest) {
        let local = match status {
            Status::LocalProtection => bad_memory(request, view, ctx),
            _ => None,
        };
        let own =
            local.map(|(sge, _)| MemoryRange { addr: sge.addr, len: sge.length, key: sge.lkey });
        let theirs = || {
            let remote = request.op.remote()?;
            let len = match request.op {
                SendOp::Flush { length, .. } => length,
                _ => request.message_len(),
            };
            Some(MemoryRange { addr: remote.addr, len, key: remote.rkey })
        };
        let failed = FailedRequest {
            op: completion_op(&request.op),
            range: own.or_else(theirs),
            peer: view.net.dst,
            peer_qp: view.attr.dest_qp_num,
            answered: self.answered,
            una: self.inflight.una(),
        };
        (detail.or(local.map(|(_, why)| why)), failed)
    }

    /// Completes all requests, started or not, as flushed. IBTA 10.3.1.6.
    pub(crate) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        self.control.stop();
        while let Some(wqe) = self.inflight.pop() {
            complete_send(view, ctx, &wqe.request, Status::WorkRequestFlushed);
        }
        debug_assert!(self.inflight.front().is_none() && !self.inflight.is_busy());
        while let Some(request) = view.handle.sq.take() {
            complete_send(view, ctx, &request, Status::WorkRequestFlushed);
        }
    }

    /// Drops all requests without completions, for RESET.
    pub(crate) fn forget(&mut self, handle: &QpHandle) {
        while self.inflight.pop().is_some() {
            handle.sq.release();
        }
        debug_assert!(self.inflight.front().is_none() && self.inflight.unacknowledged() == 0);
        handle.sq.forget();
    }

    /// RTS to SQD: no further request is started.
    pub(crate) fn drain(&mut self) {
        self.drain.begin();
    }

    /// SQD to RTS.
    pub(crate) fn resume(&mut self) {
        self.drain = Drain::No;
        self.control.reopen();
    }

    /// Returns whether the send queue has drained, once.
    pub(crate) fn take_drained(&mut self) -> bool {
        self.drain.take_drained(self.inflight.is_busy())
    }

    /// Returns whether the send queue drains and has not drained yet.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain == Drain::Draining
    }

    /// Returns the part that decides how much is sent and when it is sent again.
    pub(crate) fn control(&mut self) -> &mut C {
        &mut self.control
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.control.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Payload;

    #[test]
    fn a_weight_on_the_peer_is_more_than_a_few_packets_or_more_to_send() {
        for (packets, sent, weight) in [(4, 4, 0), (5, 5, 5), (9, 2, 2), (1, 0, 1)] {
            let mut requester = Requester::<Recovery>::default();
            let payload = Payload::Sges(Default::default());
            let request = SendRequest::new(1, SendOp::Send { imm: None }, payload);
            requester.inflight.push(Wqe::new(request));
            requester.inflight.start(packets, 1);
            if sent > 0 {
                requester.inflight.sent(sent, false);
            }
            assert_eq!(requester.inflight_weight(), weight, "{sent} of {packets} packets");
        }
    }
}
