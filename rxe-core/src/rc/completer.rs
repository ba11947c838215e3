//! What an answer means for the requests outstanding. IBTA 9.7.5.

use crate::event::{Event, RetryCause};
use crate::mem::write_spans;
use crate::queue::{Payload, SendOp, Status};
use crate::service::{Ctx, Dead, Link, complete_send};
use crate::types::Psn;
use crate::wire::{DropReason, NakCode, OpKind, Packet, Syndrome};

use super::inflight::{AnswerSkipped, Wqe};
use super::requester::Requester;
use super::retry::{Due, Exhausted};

impl Requester {
    /// Takes a response: READ data, an atomic's value, an acknowledgement or a NAK.
    pub(crate) fn receive(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Dead> {
        let psn = packet.psn();
        if !psn.before(self.inflight.high()) {
            ctx.drop_packet(link, DropReason::GhostAck);
            return Ok(());
        }
        if psn.before(self.inflight.una()) {
            ctx.drop_packet(link, DropReason::StaleResponse);
            return Ok(());
        }
        let answers = packet.info().kind != OpKind::Acknowledge;
        if answers && packet.aeth().is_some_and(|a| !matches!(a.syndrome, Syndrome::Ack { .. })) {
            // Data refuses nothing, and what refuses has no data: neither can be believed.
            ctx.drop_packet(link, DropReason::ReservedSyndrome);
            return Ok(());
        }
        self.blocked = false;
        self.answered = true;
        let result = match packet.info().kind {
            OpKind::ReadResponse => self.data(link, ctx, packet),
            OpKind::AtomicAcknowledge => self.atomic(link, ctx, packet),
            _ => self.acknowledgement(link, ctx, packet),
        };
        result.and_then(|()| self.reap(link, ctx))
    }

    fn acknowledgement(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Dead> {
        let psn = packet.psn();
        let Some(aeth) = packet.aeth() else { return Ok(()) };
        let qpn = link.qpn();
        match aeth.syndrome {
            Syndrome::Ack { .. } => self.acknowledge(link, ctx, psn.next()),
            Syndrome::RnrNak { timer } => {
                ctx.events.emit(Event::RnrNakReceived { qpn, psn });
                self.acknowledge(link, ctx, psn)?;
                if self.inflight.una() != psn || self.retry.is_waiting() {
                    return Ok(());
                }
                // What was answered before counts as progress before the wait begins.
                match self.retry.receiver_not_ready(ctx.now, timer) {
                    Ok(()) => {
                        self.inflight.rewind();
                        Ok(())
                    }
                    Err(Exhausted) => {
                        Err(self.fail_front(link, ctx, Status::RnrRetryExceeded, None))
                    }
                }
            }
            Syndrome::Nak(code) => {
                ctx.events.emit(Event::NakReceived { qpn, psn, code });
                self.acknowledge(link, ctx, psn)?;
                if self.inflight.una() != psn {
                    return Ok(());
                }
                let status = match code {
                    NakCode::PsnSequenceError => {
                        if self.inflight.unacknowledged() == 0 || self.retry.is_waiting() {
                            // Gone back already.
                            return Ok(());
                        }
                        return self.again(link, ctx, RetryCause::SequenceNak);
                    }
                    NakCode::InvalidRequest | NakCode::InvalidRdRequest => {
                        Status::RemoteInvalidRequest
                    }
                    NakCode::RemoteAccessError => Status::RemoteAccess,
                    NakCode::RemoteOperationalError => Status::RemoteOperation,
                };
                Err(self.fail_front(link, ctx, status, None))
            }
            Syndrome::Reserved(_) => {
                ctx.drop_packet(link, DropReason::ReservedSyndrome);
                Ok(())
            }
        }
    }

    /// A packet of the answer to a READ.
    fn data(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Dead> {
        let psn = packet.psn();
        if !self.in_turn(link, ctx, psn)? {
            return Ok(());
        }
        let Some(wqe) = self.inflight.front_started() else { return Ok(()) };
        if wqe.request.op.is_atomic() || !wqe.request.op.is_answered() {
            ctx.drop_packet(link, DropReason::UnexpectedResponse);
            return Ok(());
        }
        let mtu = link.attr.path_mtu.bytes();
        let index = u32::try_from(psn.diff(wqe.first)).unwrap_or(0);
        let offset = u64::from(index) * mtu as u64;
        let expected = match wqe.request.op {
            SendOp::Read { .. } => (u64::from(wqe.len) - offset).min(mtu as u64),
            // ATOMIC WRITE and FLUSH are answered by a READ response without data.
            _ => 0,
        };
        let bytes = packet.payload();
        if bytes.len() as u64 != expected || packet.info().ends != wqe.ends_chunk(index) {
            return Err(self.fail_front(link, ctx, Status::BadResponse, None));
        }
        self.deliver(link, ctx, offset, bytes)
    }

    /// The answer to an atomic.
    fn atomic(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), Dead> {
        if !self.in_turn(link, ctx, packet.psn())? {
            return Ok(());
        }
        let Some(wqe) = self.inflight.front_started() else { return Ok(()) };
        let Some(value) = packet.atomic_ack().filter(|_| wqe.request.op.is_atomic()) else {
            ctx.drop_packet(link, DropReason::UnexpectedResponse);
            return Ok(());
        };
        // On the wire the value is a big-endian number, in memory it is the host's.
        self.deliver(link, ctx, 0, &value.to_ne_bytes())
    }

    /// An answer acknowledges every request before its own. Whether it is then the one awaited next.
    fn in_turn(&mut self, link: &Link<'_>, ctx: &mut Ctx<'_>, psn: Psn) -> Result<bool, Dead> {
        self.acknowledge(link, ctx, psn)?;
        let awaited = self.inflight.una() == psn;
        if !awaited {
            ctx.drop_packet(link, DropReason::ResponseGap);
        }
        Ok(awaited)
    }

    /// Puts the data for the oldest PSN into the program's memory.
    fn deliver(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Dead> {
        let Some(wqe) = self.inflight.front_started() else { return Ok(()) };
        if let Payload::Sges(list) = &wqe.request.payload
            && !bytes.is_empty()
        {
            let pd = link.made.pd;
            let spans = ctx.mem.scatter(pd, list, offset, bytes.len());
            if let Err(why) = spans.and_then(|spans| write_spans(&spans, bytes)) {
                ctx.faulted(link, why);
                return Err(self.fail_front(link, ctx, Status::LocalProtection, Some(why)));
            }
        }
        let una = self.inflight.una();
        if let Some(wqe) = self.inflight.answered() {
            complete_send(link, ctx, &wqe.request, Status::Success);
        }
        self.on_progress(link, ctx, una);
        Ok(())
    }

    /// Everything before `to` has been answered.
    fn acknowledge(&mut self, link: &Link<'_>, ctx: &mut Ctx<'_>, to: Psn) -> Result<(), Dead> {
        let una = self.inflight.una();
        let retire = |wqe: Wqe| complete_send(link, ctx, &wqe.request, Status::Success);
        let result = self.inflight.acknowledge(to, retire);
        if self.inflight.una() != una {
            self.on_progress(link, ctx, una);
        }
        match result {
            Ok(()) => Ok(()),
            Err(AnswerSkipped) => {
                let una = self.inflight.una();
                if self.skipped_at == Some(una) || self.inflight.unacknowledged() == 0 {
                    return Ok(());
                }
                self.skipped_at = Some(una);
                self.again(link, ctx, RetryCause::ImpliedNak)
            }
        }
    }

    fn on_progress(&mut self, link: &Link<'_>, ctx: &Ctx<'_>, before: Psn) {
        let una = self.inflight.una();
        let packets = u32::try_from(una.diff(before)).unwrap_or(0);
        self.window.on_progress(packets, una);
        self.retry.on_progress(ctx.now, link.attr, self.inflight.unacknowledged() > 0);
        self.skipped_at = None;
    }

    /// Goes back and sends again, unless it was tried often enough.
    fn again(&mut self, link: &Link<'_>, ctx: &mut Ctx<'_>, cause: RetryCause) -> Result<(), Dead> {
        if self.retry.again() == Err(Exhausted) {
            return Err(self.fail_front(link, ctx, Status::RetryExceeded, None));
        }
        if let Some(wqe) = self.inflight.front_started() {
            self.doubled ^= matches!(wqe.request.op, SendOp::Flush { .. });
        }
        let psn = self.inflight.una();
        ctx.events.emit(Event::Retry { qpn: link.qpn(), psn, cause });
        self.window.on_loss(self.inflight.high());
        if cause == RetryCause::SequenceNak && self.retry.back_off(ctx.now, link.attr) {
            self.window.on_same_loss();
        }
        self.inflight.rewind();
        self.blocked = false;
        Ok(())
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(
        &mut self,
        link: &Link<'_>,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), Dead> {
        match self.retry.due(ctx.now) {
            None => Ok(()),
            Some(Due::BackOffOver) => {
                self.blocked = false;
                Ok(())
            }
            Some(Due::RnrOver) => {
                let (qpn, psn) = (link.qpn(), self.inflight.una());
                let cause = RetryCause::ReceiverNotReady;
                ctx.events.emit(Event::Retry { qpn, psn, cause });
                self.blocked = false;
                Ok(())
            }
            Some(Due::AckTimeout) => {
                self.skipped_at = None;
                self.again(link, ctx, RetryCause::Timeout)
            }
        }
    }
}
