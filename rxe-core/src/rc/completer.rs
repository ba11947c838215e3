//! The completer: applies the peer's responses to the outstanding requests. IBTA 9.7.5.

use crate::event::{Event, RetryCause};
use crate::mem::Source;
use crate::queue::{Payload, SendOp, Status};
use crate::service::{ConnectionError, Ctx, QpView, complete_send};
use crate::types::Psn;
use crate::wire::{Aeth, DropReason, NakCode, OpKind, Packet, Syndrome};

use super::controller::{Acknowledged, Controller, Loss, Sent, Verdict};
use super::inflight::{ResponseSkipped, Wqe};
use super::requester::Requester;

/// Responses that arrived together.
struct Progress {
    responses: u32,
    /// How many packets each response acknowledges.
    packets_each: u32,
}

impl<C: Controller> Requester<C> {
    /// Receives a response: READ data, an atomic's value, an acknowledgement or a NAK.
    pub(crate) fn receive(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        debug_assert!(!packet.info().is_request, "requests are for the responder");
        let psn = packet.psn();
        if !psn.before(self.inflight.high()) {
            ctx.drop_packet(view, DropReason::GhostAck);
            return Ok(());
        }
        if psn.before(self.inflight.una()) {
            ctx.drop_packet(view, DropReason::StaleResponse);
            return Ok(());
        }
        let has_data = packet.info().kind != OpKind::Acknowledge;
        if has_data && packet.aeth().is_some_and(|a| !matches!(a.syndrome, Syndrome::Ack { .. })) {
            // A response with data must carry an ACK syndrome: this packet contradicts itself.
            ctx.drop_packet(view, DropReason::ReservedSyndrome);
            return Ok(());
        }
        self.control.reopen();
        self.answered = true;
        let result = match packet.info().kind {
            OpKind::ReadResponse => self.data(view, ctx, packet),
            OpKind::AtomicAcknowledge => self.atomic(view, ctx, packet),
            _ => self.acknowledgement(view, ctx, packet),
        };
        result.and_then(|()| self.reap(view, ctx))
    }

    /// Receives a coalesced segment of READ data, if all of its packets are expected and can be written.
    /// Returns `false` if not. Then its packets can be received one by one; some of the data may have been
    /// written already.
    pub(crate) fn receive_coalesced(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<bool, ConnectionError> {
        let (psn, count) = (packet.psn(), u32::from(packet.count()));
        debug_assert!(count > 1 && !packet.info().is_request);
        let awaited = psn == self.inflight.una() && !packet.next_psn().after(self.inflight.high());
        let Some(wqe) = self.inflight.front_started().filter(|_| awaited) else {
            return Ok(false);
        };
        let (SendOp::Read { .. }, Payload::Sges(list)) = (&wqe.request.op, &wqe.request.payload)
        else {
            return Ok(false);
        };
        let index = u32::try_from(psn.diff(wqe.first)).unwrap_or(0);
        let left = wqe.left_in_chunk(index);
        let mtu = view.attr.path_mtu.bytes();
        let offset = u64::from(index) * mtu as u64;
        let bytes = packet.source();
        let expected = (u64::from(wqe.len) - offset).min(u64::from(count) * mtu as u64);
        let fits = packet.payload_len() == mtu
            && bytes.len() as u64 == expected
            && count <= left
            && packet.info().ends == (count == left);
        let acknowledges = |a: Aeth| matches!(a.syndrome, Syndrome::Ack { .. });
        if !fits || !packet.aeth().is_none_or(acknowledges) {
            return Ok(false);
        }
        let spans = ctx.mem.scatter(view.identity.pd, list, offset, bytes.len());
        if spans.and_then(|spans| bytes.write_to(&spans)).is_err() {
            return Ok(false);
        }
        self.control.reopen();
        self.answered = true;
        self.inflight.answered_in_part(count - 1);
        self.acknowledged(ctx, Progress { responses: count - 1, packets_each: 1 });
        self.answer_next(view, ctx);
        debug_assert_eq!(self.inflight.una(), packet.next_psn(), "each packet is progress");
        self.reap(view, ctx)?;
        Ok(true)
    }

    /// Handles an ACK, an RNR NAK or another NAK.
    fn acknowledgement(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        let psn = packet.psn();
        let Some(aeth) = packet.aeth() else { return Ok(()) };
        let qpn = view.qpn();
        match aeth.syndrome {
            Syndrome::Ack { .. } => self.acknowledge(view, ctx, psn.next()),
            Syndrome::RnrNak { timer } => {
                ctx.events.emit(Event::RnrNakReceived { qpn, psn });
                self.acknowledge(view, ctx, psn)?;
                if self.inflight.una() != psn {
                    return Ok(());
                }
                // `acknowledge` comes first: progress resets the retry counts.
                let outstanding = self.inflight.unacknowledged() > 0;
                let verdict = self.control.on_not_ready(ctx.now, timer, outstanding);
                self.obey(view, ctx, verdict)
            }
            Syndrome::Nak(code) => {
                ctx.events.emit(Event::NakReceived { qpn, psn, code });
                self.acknowledge(view, ctx, psn)?;
                if self.inflight.una() != psn {
                    return Ok(());
                }
                let status = match code {
                    NakCode::PsnSequenceError => {
                        return self.lost(view, ctx, RetryCause::SequenceNak);
                    }
                    NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
                        Status::RemoteInvalidRequest
                    }
                    NakCode::RemoteAccessError => Status::RemoteAccess,
                    NakCode::RemoteOperationalError => Status::RemoteOperation,
                };
                Err(self.fail_front(view, ctx, status, None))
            }
            Syndrome::Reserved(_) => {
                ctx.drop_packet(view, DropReason::ReservedSyndrome);
                Ok(())
            }
        }
    }

    /// Handles a READ response.
    fn data(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        let psn = packet.psn();
        if !self.is_next_response(view, ctx, psn)? {
            return Ok(());
        }
        let Some(wqe) = self.inflight.front_started() else { return Ok(()) };
        if wqe.request.op.is_atomic() || !wqe.request.op.is_answered() {
            ctx.drop_packet(view, DropReason::UnexpectedResponse);
            return Ok(());
        }
        let mtu = view.attr.path_mtu.bytes();
        let index = u32::try_from(psn.diff(wqe.first)).unwrap_or(0);
        let offset = u64::from(index) * mtu as u64;
        let expected = match wqe.request.op {
            SendOp::Read { .. } => (u64::from(wqe.len) - offset).min(mtu as u64),
            // ATOMIC WRITE and FLUSH are answered by a READ response without data.
            _ => 0,
        };
        let bytes = packet.source();
        if bytes.len() as u64 != expected || packet.info().ends != wqe.ends_chunk(index) {
            return Err(self.fail_front(view, ctx, Status::BadResponse, None));
        }
        self.deliver(view, ctx, offset, bytes)
    }

    /// Handles the response to an atomic.
    fn atomic(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        if !self.is_next_response(view, ctx, packet.psn())? {
            return Ok(());
        }
        let Some(wqe) = self.inflight.front_started() else { return Ok(()) };
        let Some(value) = packet.atomic_ack().filter(|_| wqe.request.op.is_atomic()) else {
            ctx.drop_packet(view, DropReason::UnexpectedResponse);
            return Ok(());
        };
        // The value is big-endian on the wire and in host order in memory.
        self.deliver(view, ctx, 0, Source::Bytes(&value.to_ne_bytes()))
    }

    /// Acknowledges every request before the response's own. Returns whether the response is the next one
    /// expected; if not, the packet is dropped.
    fn is_next_response(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        psn: Psn,
    ) -> Result<bool, ConnectionError> {
        self.acknowledge(view, ctx, psn)?;
        let awaited = self.inflight.una() == psn;
        if !awaited {
            ctx.drop_packet(view, DropReason::ResponseGap);
        }
        Ok(awaited)
    }

    /// Writes the data for the oldest PSN into the program's memory.
    fn deliver(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        offset: u64,
        bytes: Source<'_>,
    ) -> Result<(), ConnectionError> {
        let Some(wqe) = self.inflight.front_started() else { return Ok(()) };
        debug_assert!(offset + bytes.len() as u64 <= u64::from(wqe.len).max(8), "checked before");
        if let Payload::Sges(list) = &wqe.request.payload
            && !bytes.is_empty()
        {
            let pd = view.identity.pd;
            let spans = ctx.mem.scatter(pd, list, offset, bytes.len());
            if let Err(why) = spans.and_then(|spans| bytes.write_to(&spans)) {
                ctx.report_memory_fault(view, why);
                return Err(self.fail_front(view, ctx, Status::LocalProtection, Some(why)));
            }
        }
        self.answer_next(view, ctx);
        Ok(())
    }

    /// Records that the data for the oldest PSN is in the program's memory.
    fn answer_next(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        let una = self.inflight.una();
        if let Some(wqe) = self.inflight.answered() {
            complete_send(view, ctx, &wqe.request, Status::Success);
        }
        self.on_progress(ctx, una);
    }

    /// Completes all requests before `to`. Starts a retry if `to` lies beyond a READ or atomic without a
    /// response: that response was lost.
    fn acknowledge(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        to: Psn,
    ) -> Result<(), ConnectionError> {
        debug_assert!(!to.after(self.inflight.high()), "a response is to what was sent");
        let una = self.inflight.una();
        let retire = |wqe: Wqe| complete_send(view, ctx, &wqe.request, Status::Success);
        let result = self.inflight.acknowledge(to, retire);
        debug_assert!(!self.inflight.una().before(una), "what is acknowledged stays so");
        if self.inflight.una() != una {
            self.on_progress(ctx, una);
        }
        match result {
            Ok(()) => Ok(()),
            Err(ResponseSkipped) => self.lost(view, ctx, RetryCause::ImpliedNak),
        }
    }

    fn on_progress(&mut self, ctx: &Ctx<'_>, before: Psn) {
        let packets = u32::try_from(self.inflight.una().diff(before)).unwrap_or(0);
        debug_assert!(packets > 0 && packets < 1 << 23, "progress: {packets}");
        self.acknowledged(ctx, Progress { responses: 1, packets_each: packets });
    }

    /// Reports progress to the controller.
    fn acknowledged(&mut self, ctx: &Ctx<'_>, progress: Progress) {
        let Progress { responses, packets_each: packets } = progress;
        let (una, outstanding) = (self.inflight.una(), self.inflight.unacknowledged() > 0);
        let acknowledged = Acknowledged { una, packets, responses, outstanding };
        if self.control.on_acknowledged(ctx.now, acknowledged) {
            // Nothing was lost after all, so the packets that were about to be sent again are skipped,
            // and their timer is restarted.
            self.inflight.forward();
            if self.inflight.unacknowledged() > 0 {
                self.control.on_sent(ctx.now, Sent { psns: 0, asks: false, timed: None });
            }
        }
    }

    /// Reports a loss to the controller, and obeys its verdict.
    fn lost(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        cause: RetryCause,
    ) -> Result<(), ConnectionError> {
        let high = self.inflight.high();
        let (outstanding, awaits_data) = (self.inflight.unacknowledged() > 0, self.awaits_data());
        debug_assert!(self.inflight.is_busy(), "only what was sent is lost");
        let loss = Loss { cause, high, outstanding, awaits_data };
        let verdict = self.control.on_loss(ctx.now, loss);
        if verdict == Verdict::GoBack {
            let flush = |wqe: &Wqe| matches!(wqe.request.op, SendOp::Flush { .. });
            // The peer may have dropped the FLUSH because it expects the other ICRC. A round-trip timeout
            // does not show that: the response may only be late.
            if cause != RetryCause::RoundTripTimeout {
                self.kernel_icrc ^= self.inflight.front_started().is_some_and(flush);
            }
            ctx.events.emit(Event::Retry { qpn: view.qpn(), psn: self.inflight.una(), cause });
        }
        self.obey(view, ctx, verdict)
    }

    /// Sends again, gives up, or does nothing, as the controller says.
    fn obey(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        verdict: Verdict,
    ) -> Result<(), ConnectionError> {
        match verdict {
            Verdict::Ignore => Ok(()),
            Verdict::GoBack => {
                self.inflight.rewind();
                debug_assert_eq!(self.inflight.next_psn(), self.inflight.una());
                Ok(())
            }
            Verdict::GiveUp(status) => Err(self.fail_front(view, ctx, status, None)),
        }
    }

    /// Returns whether the oldest request is a READ or atomic.
    fn awaits_data(&self) -> bool {
        self.inflight.front_started().is_some_and(|wqe| wqe.request.op.is_answered())
    }

    /// Handles the timer that is due at `ctx.now`, if any.
    pub(crate) fn handle_timeout(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), ConnectionError> {
        let awaits_data = self.awaits_data();
        match self.control.take_due(ctx.now, awaits_data) {
            None => Ok(()),
            Some(cause @ RetryCause::ReceiverNotReady) => {
                let (qpn, psn) = (view.qpn(), self.inflight.una());
                ctx.events.emit(Event::Retry { qpn, psn, cause });
                Ok(())
            }
            Some(cause) => self.lost(view, ctx, cause),
        }
    }
}
