//! The responder: checks requests in order, executes them and responds. IBTA 9.7.4, 9.7.5.1.
//!
//! Invariants: memory changes only after all checks of a packet have passed; a packet is executed only
//! at the expected PSN, and only once; responses are sent in the order of PSNs.

use crate::bounds::max_responses;
use crate::event::{Event, MemoryRange, ResponderError};
use crate::mem::{Access, AccessError, Source, Span};
use crate::message::{Assembly, Delivered, check, packets};
use crate::service::{ConnectionError, Ctx, QpHandle, QpView};
use crate::types::Psn;
use crate::wire::{Aeth, Bth, DropReason, Ext, Feth, OpKind, Opcode, Packet, Position, TxBatch};

use super::errors::effect;
use super::replay::{Replay, Saved, SavedKind};
use super::response::{MSN_MASK, ReadResponse, Response, Responses};

/// The receive side of an RC queue pair.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The PSN of the next request.
    expected: Psn,
    /// Messages completed, 24 bits.
    msn: u32,
    /// The SEND or WRITE that is arriving.
    message: Assembly,
    /// A NAK for `expected` is queued or sent: sequence error or "receiver not ready". Later packets are
    /// dropped until that packet arrives.
    nak_outstanding: bool,
    /// One past the highest PSN dropped since the oldest NAK that is queued and not sent. The peer must
    /// send everything before it again.
    dropped_to: Psn,
    responses: Responses,
    replay: Replay,
    /// The request that will put the queue pair into the error state once the responses to earlier READs
    /// and atomics, and then its NAK, are sent. Meanwhile nothing more is received.
    pending_fatal_nak: Option<Box<FatalNak>>,
}

/// A request that was refused with a fatal NAK.
#[derive(Debug)]
struct FatalNak {
    error: ResponderError,
    /// The memory that the request named.
    asked: Option<MemoryRange>,
}

impl Responder {
    /// Returns a responder that enters RTR.
    pub(crate) fn new(rq_psn: Psn) -> Self {
        Self { expected: rq_psn, ..Self::default() }
    }

    /// Returns the PSN of the next request.
    pub(crate) fn expected(&self) -> Psn {
        self.expected
    }

    /// Returns the message sequence number: messages completed, modulo 2²⁴. IBTA 9.7.5.1.4.
    pub(crate) fn msn(&self) -> u32 {
        self.msn
    }

    /// Receives a request.
    pub(crate) fn receive(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ConnectionError> {
        debug_assert!(packet.info().is_request && packet.count() == 1);
        if self.pending_fatal_nak.is_some() {
            ctx.drop_packet(view, DropReason::WrongQpState);
            return Ok(());
        }
        let ahead = packet.psn().diff(self.expected);
        if ahead < 0 {
            self.duplicate(view, ctx, packet);
            return Ok(());
        }
        if ahead > 0 && self.nak_outstanding {
            // Each gap is reported by one NAK only. C9-113.
            self.note_dropped(packet.psn());
            ctx.drop_packet(view, DropReason::GapAlreadyReported);
            return Ok(());
        }
        // A NAK that is queued and not sent is obsolete if this is the missing packet.
        let withdrew_nak = self.nak_outstanding && self.responses.take_resend();
        let result = if ahead > 0 {
            Err(ResponderError::SequenceGap)
        } else {
            self.execute(view, ctx, packet)
        };
        match result {
            Ok(()) => {
                debug_assert!(packet.psn().before(self.expected), "what is executed is done");
                self.nak_outstanding = false;
                if withdrew_nak {
                    self.report_again();
                }
                Ok(())
            }
            Err(error) => {
                debug_assert!(!packet.psn().before(self.expected), "what is refused is to come");
                if !withdrew_nak {
                    self.dropped_to = self.expected;
                }
                self.note_dropped(packet.psn());
                self.refuse(view, ctx, error, asked(packet))
            }
        }
    }

    /// Receives a coalesced segment, if all of its packets can be executed. Returns `false` if not. Then
    /// its packets can be received one by one; some of the payload may have been written already.
    #[inline(never)]
    pub(crate) fn receive_coalesced(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> bool {
        if self.nak_outstanding || packet.psn() != self.expected || packet.ieth().is_some() {
            return false;
        }
        debug_assert!(packet.count() > 1 && self.pending_fatal_nak.is_none());
        self.execute(view, ctx, packet).is_ok()
    }

    /// Records that the packet at `psn` was dropped.
    fn note_dropped(&mut self, psn: Psn) {
        if !psn.before(self.dropped_to) {
            self.dropped_to = psn.next();
        }
        debug_assert!(psn.before(self.dropped_to));
    }

    /// Replaces a NAK that was not sent before its missing packet arrived. If packets behind that one were
    /// dropped, the new NAK names the first of them: after a mere acknowledgement the peer would send
    /// them again only after its timeout.
    fn report_again(&mut self) {
        debug_assert!(!self.nak_outstanding, "the packet that was missing has come");
        self.nak_outstanding = self.expected.before(self.dropped_to);
        if self.nak_outstanding {
            self.responses.refuse(self.expected, ResponderError::SequenceGap, self.msn);
        } else {
            self.responses.acknowledge(self.expected.sub(1), self.msn);
        }
    }

    /// Checks a packet or segment at the expected PSN and executes it.
    #[inline(always)]
    fn execute(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ResponderError> {
        let info = packet.info();
        if info.has_xrceth && view.target.is_none() {
            return Err(ResponderError::UnknownXrcSrq);
        }
        check::sequence(self.message.assembling(), info)?;
        check::enabled(packet, view.attr.qp_access_flags)?;
        check::length(packet, view.attr.path_mtu.bytes())?;
        match info.kind {
            OpKind::Send => {
                let delivered = self.message.send(view, ctx, packet)?;
                self.delivered(packet, delivered);
                Ok(())
            }
            OpKind::Write => {
                let delivered = self.message.write(view, ctx, packet)?;
                self.delivered(packet, delivered);
                Ok(())
            }
            OpKind::ReadRequest => self.read(view, ctx, packet),
            OpKind::AtomicWrite => self.atomic_write(view, ctx, packet),
            OpKind::Flush => self.flush_memory(view, ctx, packet),
            OpKind::CompareSwap | OpKind::FetchAdd => self.atomic(view, ctx, packet),
            _ => Err(ResponderError::OperationNotEnabled),
        }
    }

    /// Advances after a packet or segment of a SEND or WRITE was executed, and queues the acknowledgement
    /// that it asks for.
    fn delivered(&mut self, packet: &Packet<'_>, delivered: Delivered) {
        debug_assert_eq!(packet.psn(), self.expected, "a packet is executed when it is expected");
        if delivered == Delivered::Whole {
            self.message_done();
        }
        self.advance_by(packet.count().into());
        if packet.ack_req() {
            self.responses.acknowledge(packet.next_psn().sub(1), self.msn);
        }
    }

    fn read(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ResponderError> {
        let reth = packet.reth().ok_or(ResponderError::BadLength)?;
        self.check_room(view)?;
        if u64::from(reth.dma_len) > view.identity.max_message {
            return Err(ResponderError::BadLength);
        }
        if reth.dma_len > 0 {
            let need = check::right(OpKind::ReadRequest);
            let span = ctx.remote(view, reth.rkey, reth.va, u64::from(reth.dma_len), need);
            span.map_err(ResponderError::RemoteAccess)?;
        }
        let count = packets(reth.dma_len, view.attr.path_mtu.bytes());
        debug_assert!(count > 0 && packet.psn() == self.expected);
        let (va, rkey, len) = (reth.va, reth.rkey, reth.dma_len);
        let pd = view.pd();
        let kind = SavedKind::Read { pd, va, rkey, len };
        self.message_done();
        self.save(view, Saved { first: packet.psn(), packets: count, kind });
        let empty = ReadResponse::empty(packet.psn(), self.msn);
        let read = ReadResponse { packets: count, pd, va, rkey, len, ..empty };
        self.responses.push(Response::Read(read));
        self.advance_by(count);
        Ok(())
    }

    fn atomic(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ResponderError> {
        let operands = packet.atomic().ok_or(ResponderError::BadLength)?;
        self.check_room(view)?;
        if !operands.va.is_multiple_of(8) {
            return Err(ResponderError::MisalignedAtomic);
        }
        let need = Access::REMOTE_ATOMIC;
        let span = ctx.remote_writable(view, operands.rkey, operands.va, 8, need);
        let span = span.map_err(ResponderError::RemoteAccess)?;
        let value = match packet.info().kind {
            OpKind::CompareSwap => span.compare_swap(operands.compare, operands.swap_add),
            _ => span.fetch_add(operands.swap_add),
        };
        // Alignment is checked again there: a region's addresses may be aligned differently from its memory.
        let value = value.map_err(ResponderError::RemoteAccess)?;
        self.message_done();
        let kind = SavedKind::Atomic { value };
        self.save(view, Saved { first: packet.psn(), packets: 1, kind });
        self.responses.push(Response::Atomic {
            psn: packet.psn(),
            msn: self.msn,
            value,
            duplicate: false,
        });
        self.advance_by(1);
        Ok(())
    }

    fn atomic_write(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ResponderError> {
        let reth = packet.reth().ok_or(ResponderError::BadLength)?;
        let bytes = packet
            .source()
            .read()
            .map_err(ResponderError::RemoteAccess)?
            .ok_or(ResponderError::BadLength)?;
        self.check_room(view)?;
        if reth.dma_len != 8 {
            return Err(ResponderError::BadLength);
        }
        if !reth.va.is_multiple_of(8) {
            return Err(ResponderError::MisalignedAtomic);
        }
        let need = check::right(OpKind::AtomicWrite);
        let span = ctx.remote_writable(view, reth.rkey, reth.va, 8, need);
        let span = span.map_err(ResponderError::RemoteAccess)?;
        span.store(bytes).map_err(ResponderError::RemoteAccess)?;
        self.respond_empty(view, packet.psn());
        Ok(())
    }

    fn flush_memory(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        packet: &Packet<'_>,
    ) -> Result<(), ResponderError> {
        let (reth, feth) = packet.reth().zip(packet.feth()).ok_or(ResponderError::BadLength)?;
        self.check_room(view)?;
        let need = check::flush_right(packet)?;
        let checked = match feth.selectivity {
            Feth::REGION => ctx.mem.remote_region(view.pd(), reth.rkey, need),
            Feth::RANGE => {
                ctx.remote(view, reth.rkey, reth.va, u64::from(reth.dma_len), need).map(|_| ())
            }
            _ => return Err(ResponderError::OperationNotEnabled),
        };
        checked.map_err(ResponderError::RemoteAccess)?;
        // Earlier writes are in memory already. The fence orders them before the response.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.respond_empty(view, packet.psn());
        Ok(())
    }

    /// Queues a READ response without data to the request at `psn`.
    fn respond_empty(&mut self, view: &QpView<'_>, psn: Psn) {
        self.message_done();
        self.save(view, Saved { first: psn, packets: 1, kind: SavedKind::Nothing });
        self.responses.push(Response::Read(ReadResponse::empty(psn, self.msn)));
        self.advance_by(1);
    }

    /// Checks that the peer has fewer than `max_dest_rd_atomic` READs and atomics outstanding. C9-152.
    fn check_room(&self, view: &QpView<'_>) -> Result<(), ResponderError> {
        let limit = usize::from(view.attr.max_dest_rd_atomic);
        if self.responses.reads() < limit { Ok(()) } else { Err(ResponderError::TooManyReads) }
    }

    fn save(&mut self, view: &QpView<'_>, saved: Saved) {
        debug_assert_eq!(saved.first, self.expected, "in the order of PSNs");
        self.replay.save(saved, view.attr.max_dest_rd_atomic);
    }

    fn message_done(&mut self) {
        self.msn = (self.msn + 1) & MSN_MASK;
        debug_assert!(self.pending_fatal_nak.is_none(), "a queue pair that ends executes nothing");
    }

    fn advance_by(&mut self, count: u32) {
        debug_assert!(count > 0 && count < 1 << 23, "{count} packets of a message");
        self.expected = self.expected.add(count);
    }

    /// Responds again to a request that was executed before: its response may have been lost.
    /// IBTA 9.7.5.1.5.
    fn duplicate(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>, packet: &Packet<'_>) {
        debug_assert!(packet.psn().before(self.expected), "it was executed before");
        ctx.events.counters.duplicate_request += 1;
        let (psn, msn) = (packet.psn(), self.msn);
        let response = match packet.info().kind {
            OpKind::Send | OpKind::Write => {
                self.responses.acknowledge(self.expected.sub(1), msn);
                return;
            }
            OpKind::ReadRequest => self.duplicate_read(view, packet),
            OpKind::CompareSwap | OpKind::FetchAdd => {
                match self.replay.find(psn).map(|saved| saved.kind) {
                    Some(SavedKind::Atomic { value }) => {
                        Some(Response::Atomic { psn, msn, value, duplicate: true })
                    }
                    _ => None,
                }
            }
            OpKind::AtomicWrite | OpKind::Flush => {
                match self.replay.find(psn).map(|saved| saved.kind) {
                    Some(SavedKind::Nothing) => Some(Response::Read(ReadResponse {
                        duplicate: true,
                        ..ReadResponse::empty(psn, msn)
                    })),
                    _ => None,
                }
            }
            _ => None,
        };
        let limit = usize::from(view.attr.max_dest_rd_atomic);
        match response {
            None => ctx.drop_packet(view, DropReason::DuplicateUnanswerable),
            Some(response) if self.responses.repeat(response, limit) => {}
            // The peer cannot have this many outstanding: the network must have duplicated packets.
            Some(_) => ctx.drop_packet(view, DropReason::NoRoom),
        }
    }

    /// Returns the response to a duplicate READ, which may begin in the middle of the first one. `None` if
    /// no saved READ covers it, or if it is an XRC request whose shared queue, and with that its protection
    /// domain, is gone. The latter is not the peer's error, so there is no NAK.
    fn duplicate_read(&self, view: &QpView<'_>, packet: &Packet<'_>) -> Option<Response> {
        let (first, mtu) = (packet.psn(), view.attr.path_mtu.bytes());
        if packet.info().has_xrceth && view.target.is_none() {
            return None;
        }
        let reth = packet.reth()?;
        let (va, rkey, len) = (reth.va, reth.rkey, reth.dma_len);
        let saved = self.replay.find(first)?;
        let packets = packets(len, mtu);
        let (pd, msn) = (view.pd(), self.msn);
        let read =
            ReadResponse { first, packets, sent: 0, pd, va, rkey, len, msn, duplicate: true };
        saved.covers(first, mtu, pd, va, rkey, len).then_some(Response::Read(read))
    }

    /// Queues the NAK, and fails the queue pair if the error is fatal. If responses with data wait, the
    /// queue pair fails only after they are sent: if the NAK overtook a response, the requester would
    /// believe that response lost, request it again, and never learn the reason of the NAK.
    fn refuse(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        error: ResponderError,
        asked: Option<MemoryRange>,
    ) -> Result<(), ConnectionError> {
        debug_assert!(self.pending_fatal_nak.is_none(), "nothing is received after a fatal NAK");
        self.nak_outstanding = true;
        self.responses.refuse(self.expected, error, self.msn);
        if effect(error, view.attr.min_rnr_timer).fatal.is_none() {
            return Ok(());
        }
        self.pending_fatal_nak = Some(Box::new(FatalNak { error, asked }));
        if self.responses.has_data() { Ok(()) } else { self.end(view, ctx) }
    }

    /// Fails the queue pair if a fatal NAK is pending.
    fn end(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) -> Result<(), ConnectionError> {
        let Some(nak) = self.pending_fatal_nak.take() else { return Ok(()) };
        let FatalNak { error, asked } = *nak;
        if let ResponderError::RemoteAccess(why) | ResponderError::BadReceiveBuffer(why) = error {
            ctx.report_memory_fault(view, why);
        }
        ctx.events.emit(Event::ResponderFailed { qpn: view.qpn(), error, asked });
        if let Some(status) = effect(error, view.attr.min_rnr_timer).fatal {
            self.message.fail(view, ctx, status);
        }
        Err(ConnectionError)
    }

    /// Sends responses, among them at most `budget` packets with READ data. Returns whether more wait.
    pub(crate) fn transmit(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        batch: &mut TxBatch,
        budget: usize,
    ) -> (bool, Result<(), ConnectionError>) {
        let mut budget = budget;
        while !batch.is_full() {
            let Some(response) = self.responses.front_mut() else { break };
            match *response {
                Response::Ack { psn, msn } => {
                    let ext = Ext { aeth: Some(Aeth::ack(msn)), ..Ext::default() };
                    send_response(view, ctx, batch, Opcode::RC_ACKNOWLEDGE, psn, &ext);
                    self.responses.pop();
                }
                Response::Nak { psn, error, msn } => {
                    let syndrome = effect(error, view.attr.min_rnr_timer).syndrome;
                    let ext = Ext { aeth: Some(Aeth { syndrome, msn }), ..Ext::default() };
                    send_response(view, ctx, batch, Opcode::RC_ACKNOWLEDGE, psn, &ext);
                    // The event is emitted only now: until here, the missing packet could have arrived.
                    ctx.events.emit(Event::NakSent { qpn: view.qpn(), psn, error });
                    self.responses.pop();
                }
                Response::Atomic { psn, msn, value, .. } => {
                    let aeth = Some(Aeth::ack(msn));
                    let ext = Ext { aeth, atomic_ack: Some(value), ..Ext::default() };
                    send_response(view, ctx, batch, Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, &ext);
                    self.responses.pop();
                }
                Response::Read(_) if budget == 0 => break,
                Response::Read(mut read) => match send_data(view, ctx, batch, &mut read, budget) {
                    Ok(sent) => {
                        debug_assert!(sent > 0 && sent <= budget, "{sent} of at most {budget}");
                        debug_assert!(read.sent <= read.packets, "{read:?}");
                        budget = budget.saturating_sub(sent);
                        if read.sent == read.packets {
                            self.responses.pop();
                        } else {
                            *response = Response::Read(read);
                        }
                    }
                    Err(why) => return (true, Err(self.fail_read(view, ctx, &read, why))),
                },
            }
        }
        let more = !self.responses.is_empty();
        (more, if more { Ok(()) } else { self.end(view, ctx) })
    }

    /// Fails the queue pair because the memory of a READ in progress was deregistered or unmapped. A NAK
    /// replaces the next response packet. Nothing follows it, not even a pending NAK to a later request.
    fn fail_read(
        &mut self,
        view: &QpView<'_>,
        ctx: &mut Ctx<'_>,
        read: &ReadResponse,
        why: AccessError,
    ) -> ConnectionError {
        debug_assert!(read.sent < read.packets, "a READ in progress: {read:?}");
        let error = ResponderError::RemoteAccess(why);
        self.pending_fatal_nak = None;
        self.responses.clear();
        self.responses.refuse(read.first.add(read.sent), error, self.msn);
        ctx.report_memory_fault(view, why);
        let asked = Some(MemoryRange { addr: read.va, len: read.len, key: read.rkey });
        ctx.events.emit(Event::ResponderFailed { qpn: view.qpn(), error, asked });
        ConnectionError
    }

    pub(crate) fn has_work(&self) -> bool {
        debug_assert!(self.responses.len() <= max_responses(u8::MAX), "responses are bounded");
        !self.responses.is_empty()
    }

    /// Returns whether the next response has no READ data.
    pub(crate) fn has_small_work(&self) -> bool {
        self.responses.front().is_some_and(|response| !matches!(response, Response::Read(_)))
    }

    /// Returns whether nothing but acknowledgements waits to be sent.
    pub(crate) fn can_wait(&self) -> bool {
        self.responses.can_wait()
    }

    /// Completes every receive as flushed, and drops READ data and atomic values. IBTA 10.3.1.6.
    /// Acknowledgements and a pending NAK are still sent: the peer must learn the results of its requests.
    pub(crate) fn flush(&mut self, view: &QpView<'_>, ctx: &mut Ctx<'_>) {
        // The program may have changed the state to ERR while a fatal NAK was pending.
        let _ = self.end(view, ctx);
        self.responses.drop_data();
        debug_assert!(self.pending_fatal_nak.is_none() && !self.responses.has_data());
        self.message.flush(view, ctx);
    }

    /// Drops everything without completions, for RESET.
    pub(crate) fn forget(&mut self, handle: &QpHandle) {
        self.message.forget(handle);
    }
}

/// Returns the memory that a request names, if any.
fn asked(packet: &Packet<'_>) -> Option<MemoryRange> {
    let of_reth = packet.reth().map(|r| MemoryRange { addr: r.va, len: r.dma_len, key: r.rkey });
    of_reth.or_else(|| packet.atomic().map(|a| MemoryRange { addr: a.va, len: 8, key: a.rkey }))
}

/// Sends the next packet of a READ's data, or a coalesced segment of at most `budget` packets. Returns
/// the number of packets sent.
fn send_data(
    view: &QpView<'_>,
    ctx: &mut Ctx<'_>,
    batch: &mut TxBatch,
    read: &mut ReadResponse,
    budget: usize,
) -> Result<usize, AccessError> {
    let left = usize::try_from(read.packets - read.sent).unwrap_or(usize::MAX).min(budget);
    // The comparison comes first, because every packet passes it.
    let at_once = if left > 1 { left.min(ctx.max_coalesced(view).into()) } else { 1 };
    // If a part of the memory cannot be read, the packets before that part are still sent one by one.
    if at_once > 1 && send_some(view, ctx, batch, read, at_once) == Ok(true) {
        return Ok(at_once);
    }
    send_some(view, ctx, batch, read, 1).map(|_| 1)
}

/// Sends `count` packets of a READ's data. Returns `false` if they cannot be sent as one segment.
fn send_some(
    view: &QpView<'_>,
    ctx: &mut Ctx<'_>,
    batch: &mut TxBatch,
    read: &mut ReadResponse,
    count: usize,
) -> Result<bool, AccessError> {
    let packets = u16::try_from(count).expect("a segment at most");
    let position = Position::of_some(read.sent, packets.into(), read.packets);
    let has_aeth = position != Position::Middle;
    let ext = Ext { aeth: has_aeth.then(|| Aeth::ack(read.msn)), ..Ext::default() };
    debug_assert!(count > 0 && read.sent + u32::from(packets) <= read.packets, "{read:?}");
    let span = data(view, ctx, read, count * view.attr.path_mtu.bytes())?;
    let psn = read.first.add(read.sent);
    let opcode = Opcode::read_response(position).in_connected(view.service());
    let bth = Bth::new(opcode, view.attr.dest_qp_num, psn);
    let payload = Source::Spans(span.as_slice());
    let sent = batch.packets(ctx.direct(), view.net, &bth, &ext, payload, packets)?;
    if sent {
        read.sent += u32::from(packets);
    }
    Ok(sent)
}

/// Returns the memory of the next bytes of a READ's data, at most `most`; `None` if there are none.
fn data<'a>(
    view: &QpView<'_>,
    ctx: &Ctx<'a>,
    read: &ReadResponse,
    most: usize,
) -> Result<Option<Span<'a>>, AccessError> {
    let offset = u64::from(read.sent) * view.attr.path_mtu.bytes() as u64;
    let left = u64::from(read.len) - offset.min(u64::from(read.len));
    let len = left.min(most as u64);
    debug_assert!(len > 0 || read.len == 0, "only an empty READ has a packet without data");
    if len == 0 {
        return Ok(None);
    }
    let at = read.va.wrapping_add(offset);
    let need = check::right(OpKind::ReadRequest);
    ctx.mem.remote(read.pd, view.qpn(), read.rkey, at, len, need).map(Some)
}

/// Sends a response without payload.
fn send_response(
    view: &QpView<'_>,
    ctx: &mut Ctx<'_>,
    batch: &mut TxBatch,
    opcode: Opcode,
    psn: Psn,
    ext: &Ext,
) {
    let opcode = opcode.in_connected(view.service());
    let bth = Bth::new(opcode, view.attr.dest_qp_num, psn);
    // A packet without payload reads no memory, so this cannot fail.
    let _ = batch.packet(ctx.direct(), view.net, &bth, ext, Source::Bytes(&[]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_messages_has_24_bits() {
        let mut responder = Responder { msn: 0xff_fffe, ..Responder::default() };
        let mut next = || {
            responder.message_done();
            responder.msn()
        };
        assert_eq!([next(), next()], [0xff_ffff, 0]);
    }
}
