//! The UC responder. A packet with an unexpected PSN ends the message that it belongs to. The next
//! First or Only packet begins a new message, whatever its PSN. IBTA 9.8.2.2.

use crate::event::ResponderError;
use crate::message::{Assembly, Delivered, check};
use crate::queue::Status;
use crate::service::{Ctx, QpHandle, QpView};
use crate::types::Psn;
use crate::wire::{DropReason, OpKind, Packet};

/// The receive side of a UC queue pair.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    expected: Psn,
    message: Assembly,
    /// Whether the rest of a broken message is being skipped.
    skipping: bool,
}

impl Responder {
    /// Creates the responder of a QP in RTR.
    pub(crate) fn new(rq_psn: Psn) -> Self {
        Self { expected: rq_psn, ..Self::default() }
    }

    /// Returns the PSN of the next request.
    pub(crate) fn expected(&self) -> Psn {
        self.expected
    }

    /// Receives a request. UC sends no responses.
    pub(crate) fn receive(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>, packet: &Packet<'_>) {
        debug_assert!(packet.info().is_request && packet.count() == 1);
        let info = packet.info();
        let in_sequence = packet.psn() == self.expected;
        self.expected = packet.psn().next();
        if info.starts {
            // An incomplete message before this packet will never be completed.
            self.message.requeue_receive();
            self.skipping = false;
        } else if !in_sequence || self.skipping {
            self.message.requeue_receive();
            self.skipping = true;
            return ctx.drop_packet(view, DropReason::MessageBroken);
        }
        if let Err(reason) = self.execute(view, ctx, packet) {
            self.skipping = true;
            ctx.drop_packet(view, reason);
        }
        debug_assert!(!self.skipping || !self.message.is_arriving(), "its rest is skipped");
    }

    /// Receives a coalesced segment, if all of its packets can be executed. Otherwise returns
    /// `false` and changes nothing, except that some of the payload may have been written: the
    /// caller can deliver the packets one by one.
    pub(crate) fn receive_coalesced(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        if packet.psn() != self.expected || packet.ieth().is_some() {
            return false;
        }
        // While the rest of a message is skipped, there is no current message, so `deliver` refuses
        // its packets.
        debug_assert!(packet.count() > 1 && (!self.skipping || !self.message.is_arriving()));
        let Ok(delivered) = self.deliver(view, ctx, packet) else { return false };
        ctx.events.counters.rcvd_uc_msgs += u64::from(delivered == Delivered::Whole);
        self.expected = packet.next_psn();
        self.skipping = false;
        true
    }

    fn execute(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        match self.deliver(view, ctx, packet) {
            Ok(Delivered::Part) => Ok(()),
            Ok(Delivered::Whole) => {
                ctx.events.counters.rcvd_uc_msgs += 1;
                Ok(())
            }
            Err(error) => {
                if let ResponderError::RemoteAccess(why) | ResponderError::BadReceiveBuffer(why) =
                    error
                {
                    ctx.report_memory_fault(view, why);
                }
                let (reason, status) = consequence(error);
                match status {
                    Some(status) => self.message.fail(view, ctx, status),
                    None => self.message.requeue_receive(),
                }
                Err(reason)
            }
        }
    }

    /// Checks a packet or a coalesced segment, and adds it to its message.
    fn deliver(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<Delivered, ResponderError> {
        let info = packet.info();
        check::sequence(self.message.assembling(), info)?;
        check::enabled(packet, view.attr.qp_access_flags)?;
        check::length(packet, view.attr.path_mtu.bytes())?;
        match info.kind {
            OpKind::Send => self.message.send(view, ctx, packet),
            OpKind::Write => self.message.write(view, ctx, packet),
            _ => Err(ResponderError::OperationNotEnabled),
        }
    }

    /// Completes every receive as flushed.
    pub(crate) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        self.message.flush(view, ctx);
    }

    /// Drops the message and all posted receives without completions, for RESET.
    pub(crate) fn forget(&mut self, handle: &QpHandle) {
        self.message.forget(handle);
    }
}

/// Returns the reason to drop the message, and the status of its receive. Only an error of the
/// program completes the receive. IBTA 9.9.3, table 60.
fn consequence(error: ResponderError) -> (DropReason, Option<Status>) {
    match error {
        ResponderError::ReceiverNotReady => (DropReason::ReceiveQueueEmpty, None),
        ResponderError::MessageTooLong => (DropReason::ReceiveTooSmall, Some(Status::LocalLength)),
        ResponderError::BadReceiveBuffer(_) => {
            (DropReason::AccessDenied, Some(Status::LocalProtection))
        }
        ResponderError::RemoteAccess(_)
        | ResponderError::OperationNotEnabled
        | ResponderError::MisalignedAtomic => (DropReason::AccessDenied, None),
        ResponderError::BadLength => (DropReason::WrongLength, None),
        ResponderError::SequenceGap
        | ResponderError::OpcodeOutOfSequence
        | ResponderError::TooManyReads
        | ResponderError::InvalidateRefused
        | ResponderError::UnknownXrcSrq => (DropReason::MessageBroken, None),
    }
}
