//! The completer: applies the peer's responses to the outstanding requests. IBTA 9.7.5.

use crate::event::{Event, RetryCause};
use crate::mem::Source;
use crate::queue::{Payload, SendOp, Status};
use crate::service::{ConnectionError, Ctx, QpView, complete_send};
use crate::types::Psn;
use crate::wire::{Aeth, DropReason, NakCode, OpKind, Packet, Syndrome};

use super::inflight::{ResponseSkipped, Wqe};
use super::requester::Requester;
use super::retry::{Due, Exhausted};

impl Requester {
    /// Takes a response: READ data, an atomic's value, an acknowledgement or a NAK.
    pub(crate) fn receive(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
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
        self.blocked = false;
        self.answered = true;
        let result = match packet.info().kind {
            OpKind::ReadResponse => self.data(view, ctx, packet),
            OpKind::AtomicAcknowledge => self.atomic(view, ctx, packet),
            _ => self.acknowledgement(view, ctx, packet),
        };
        result.and_then(|()| self.reap(view, ctx))
    }

    /// Takes a coalesced segment of READ data, if all of its packets are awaited and can be written; whether it has.
    /// Otherwise nothing has happened, but that some of the data may have been written: the packets can be received one
    /// by one.
    pub(crate) fn receive_coalesced(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<bool, ConnectionError> {
        let (psn, count) = (packet.psn(), u32::from(packet.count()));
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
        self.blocked = false;
        self.answered = true;
        self.inflight.answered_in_part(count - 1);
        let una = self.inflight.una();
        self.note_progress(view, ctx, 1);
        (1..count).for_each(|_| self.window.on_progress(1, una));
        self.answer_next(view, ctx);
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
                if self.inflight.una() != psn || self.has_gone_back() {
                    return Ok(());
                }
                // `acknowledge` comes first: progress resets the retry counts.
                match self.retry.receiver_not_ready(ctx.now, timer) {
                    Ok(()) => {
                        self.inflight.rewind();
                        self.retry.stop_timing();
                        Ok(())
                    }
                    Err(Exhausted) => {
                        Err(self.fail_front(view, ctx, Status::RnrRetryExceeded, None))
                    }
                }
            }
            Syndrome::Nak(code) => {
                ctx.events.emit(Event::NakReceived { qpn, psn, code });
                self.acknowledge(view, ctx, psn)?;
                if self.inflight.una() != psn {
                    return Ok(());
                }
                let status = match code {
                    NakCode::PsnSequenceError => {
                        if self.has_gone_back() {
                            return Ok(());
                        }
                        return self.retry_or_fail(view, ctx, RetryCause::SequenceNak);
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

    /// Whether the requester will send the oldest packet again anyway. A NAK that asks for it is then a
    /// late copy.
    fn has_gone_back(&self) -> bool {
        self.inflight.unacknowledged() == 0 || self.retry.is_waiting()
    }

    /// Handles a READ response packet.
    fn data(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        let psn = packet.psn();
        if !self.in_turn(view, ctx, psn)? {
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
        if !self.in_turn(view, ctx, packet.psn())? {
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

    /// A response acknowledges every request before its own. Returns whether it is then the next
    /// expected response; drops the packet if not.
    fn in_turn(
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

    /// The data for the oldest PSN is in the program's memory.
    fn answer_next(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        let una = self.inflight.una();
        if let Some(wqe) = self.inflight.answered() {
            complete_send(view, ctx, &wqe.request, Status::Success);
        }
        self.on_progress(view, ctx, una);
    }

    /// Completes everything before `to`. Starts a retry if `to` lies beyond a READ or atomic whose
    /// response was lost.
    fn acknowledge(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        to: Psn,
    ) -> Result<(), ConnectionError> {
        let una = self.inflight.una();
        let retire = |wqe: Wqe| complete_send(view, ctx, &wqe.request, Status::Success);
        let result = self.inflight.acknowledge(to, retire);
        if self.inflight.una() != una {
            self.on_progress(view, ctx, una);
        }
        match result {
            Ok(()) => Ok(()),
            Err(ResponseSkipped) => {
                let una = self.inflight.una();
                if self.skipped_at == Some(una) || self.inflight.unacknowledged() == 0 {
                    return Ok(());
                }
                self.skipped_at = Some(una);
                self.retry_or_fail(view, ctx, RetryCause::ImpliedNak)
            }
        }
    }

    fn on_progress(&mut self, view: &QpView<'_>, ctx: &Ctx<'_>, before: Psn) {
        let una = self.inflight.una();
        let packets = u32::try_from(una.diff(before)).unwrap_or(0);
        self.note_progress(view, ctx, packets);
        self.window.on_progress(packets, una);
    }

    /// Something was answered, at most so many packets by one response.
    fn note_progress(&mut self, view: &QpView<'_>, ctx: &Ctx<'_>, packets: u32) {
        let una = self.inflight.una();
        let outstanding = self.inflight.unacknowledged() > 0;
        let before = self.retry.on_progress(ctx.now, view.attr, una, outstanding);
        // After a round-trip timeout one packet was sent. If the response is for more, it is one to
        // what was sent before: nothing was lost but time or an acknowledgement (as in RFC 3522).
        if let Some(before) = before.filter(|_| packets > 1) {
            self.window.restore(before);
            self.inflight.forward();
            if self.inflight.unacknowledged() > 0 {
                self.retry.on_sent(ctx.now, view.attr);
            }
        }
        self.skipped_at = None;
    }

    /// Goes back to send again, or fails the oldest request if no retries are left.
    fn retry_or_fail(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        cause: RetryCause,
    ) -> Result<(), ConnectionError> {
        if self.retry.count_retry() == Err(Exhausted) {
            return Err(self.fail_front(view, ctx, Status::RetryExceeded, None));
        }
        if let Some(wqe) = self.inflight.front_started() {
            self.kernel_icrc ^= matches!(wqe.request.op, SendOp::Flush { .. });
        }
        let psn = self.inflight.una();
        ctx.events.emit(Event::Retry { qpn: view.qpn(), psn, cause });
        match cause {
            RetryCause::Timeout => {
                self.window.on_timeout(self.inflight.high());
                self.retry.on_loss(false);
            }
            _ => {
                self.window.on_loss(self.inflight.high());
                self.retry.on_loss(true);
            }
        }
        if cause == RetryCause::SequenceNak && self.retry.back_off(ctx.now, view.attr) {
            self.window.on_same_loss();
        }
        self.go_back();
        Ok(())
    }

    /// Sends the oldest packet again, because no response came for some round trips. It, its response or
    /// the NAK that named it was lost. The try goes on: this is no retry that counts.
    fn resend(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        let answered = self.inflight.front_started().is_some_and(|w| w.request.op.is_answered());
        if answered && !self.retry.has_lost() {
            // Nothing was lost yet, there was only a congestion notification. The peer sends responses,
            // unlike acknowledgements, at its own pace then.
            return;
        }
        let (psn, cause) = (self.inflight.una(), RetryCause::RoundTripTimeout);
        ctx.events.emit(Event::Retry { qpn: view.qpn(), psn, cause });
        self.skipped_at = None;
        let high = self.inflight.high();
        if answered {
            // Each packet of a READ's response is progress by itself, so nothing tells later whether
            // the first request was answered after all. The window is not given up for that.
            self.window.on_silence(high);
        } else {
            self.retry.save(self.window);
            self.window.on_timeout(high);
        }
        self.go_back();
    }

    /// Everything outstanding is sent again, from the oldest PSN without a response.
    fn go_back(&mut self) {
        self.inflight.rewind();
        self.retry.stop_timing();
        self.blocked = false;
    }

    /// Handles the timer that is due at `ctx.now`, if any.
    pub(crate) fn handle_timeout(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), ConnectionError> {
        match self.retry.due(ctx.now) {
            None => Ok(()),
            Some(Due::BackOffOver) => {
                self.blocked = false;
                Ok(())
            }
            Some(Due::RnrOver) => {
                let (qpn, psn) = (view.qpn(), self.inflight.una());
                let cause = RetryCause::ReceiverNotReady;
                ctx.events.emit(Event::Retry { qpn, psn, cause });
                self.blocked = false;
                Ok(())
            }
            Some(Due::AckTimeout) => {
                self.skipped_at = None;
                self.retry_or_fail(view, ctx, RetryCause::Timeout)
            }
            Some(Due::Resend) => {
                self.resend(view, ctx);
                Ok(())
            }
        }
    }
}
