//! Shorthand for send requests.

use rxe_core::mem::Access;
use rxe_core::queue::{Payload, Placement, Remote, SendFlags, SendOp, SendRequest, Sge, SgeList};
use rxe_core::types::{Key, Qkey, Qpn};

use super::{QueuePair, invalid};
use crate::error::Result;
use crate::objects::ah::AddressHandle;

impl QueuePair {
    /// Begins a SEND of these bytes into the peer's next receive.
    pub fn send(&self, id: u64, from: &[Sge]) -> Request<'_> {
        self.request(id, SendOp::Send { imm: None }, Payload::Sges(from.into()))
    }

    /// Begins a SEND of bytes that are copied now (inline) and need not be registered.
    pub fn send_bytes(&self, id: u64, bytes: &[u8]) -> Request<'_> {
        self.request(id, SendOp::Send { imm: None }, Payload::Inline(bytes.into()))
    }

    /// Begins a WRITE of these bytes to the peer's memory.
    pub fn write(&self, id: u64, from: &[Sge], to: Remote) -> Request<'_> {
        let op = SendOp::Write { remote: to, imm: None };
        self.request(id, op, Payload::Sges(from.into()))
    }

    /// Begins a WRITE of bytes that are copied now (inline) and need not be registered.
    pub fn write_bytes(&self, id: u64, bytes: &[u8], to: Remote) -> Request<'_> {
        let op = SendOp::Write { remote: to, imm: None };
        self.request(id, op, Payload::Inline(bytes.into()))
    }

    /// Begins a READ of the peer's memory, of as many bytes as `into` has room for.
    pub fn read(&self, id: u64, into: &[Sge], from: Remote) -> Request<'_> {
        self.request(id, SendOp::Read { remote: from }, Payload::Sges(into.into()))
    }

    /// Begins an atomic compare-and-swap of a word of the peer's memory.
    ///
    /// If the word equals `compare`, it becomes `swap`. Its previous value is written to the 8
    /// bytes of `result`, in native byte order.
    pub fn compare_swap(
        &self,
        id: u64,
        result: Sge,
        word: Remote,
        compare: u64,
        swap: u64,
    ) -> Request<'_> {
        let op = SendOp::CompareSwap { remote: word, compare, swap };
        self.request(id, op, Payload::Sges([result].as_slice().into()))
    }

    /// Begins an atomic fetch-and-add on a word of the peer's memory.
    ///
    /// The addition wraps. The word's previous value is written to the 8 bytes of `result`, in
    /// native byte order.
    pub fn fetch_add(&self, id: u64, result: Sge, word: Remote, add: u64) -> Request<'_> {
        let op = SendOp::FetchAdd { remote: word, add };
        self.request(id, op, Payload::Sges([result].as_slice().into()))
    }

    /// Begins an ATOMIC WRITE of a word of the peer's memory, in native byte order.
    ///
    /// The peer never sees half of the word, nor the word before the effects of earlier WRITEs. The
    /// peer's queue pair and region must allow REMOTE_WRITE, and this queue pair 8 bytes of inline
    /// data.
    pub fn atomic_write(&self, id: u64, value: u64, word: Remote) -> Request<'_> {
        let bytes = value.to_ne_bytes();
        self.request(id, SendOp::AtomicWrite { remote: word }, Payload::Inline(bytes[..].into()))
    }

    /// Begins a FLUSH of `length` bytes of the peer's memory.
    ///
    /// It completes when earlier writes to these bytes have reached the level of `placement`.
    /// [`Placement::GLOBAL`] requires [`Access::FLUSH_GLOBAL`] of the peer's queue pair
    /// ([`crate::ConnectOptions::access`]) and region.
    pub fn flush(&self, id: u64, range: Remote, length: u32, placement: Placement) -> Request<'_> {
        let op = SendOp::Flush { remote: range, length, placement, whole_region: false };
        self.without_bytes(id, op)
    }

    /// Begins a FLUSH of the whole region with this key.
    pub fn flush_region(&self, id: u64, rkey: Key, placement: Placement) -> Request<'_> {
        let remote = Remote { addr: 0, rkey };
        self.without_bytes(id, SendOp::Flush { remote, length: 0, placement, whole_region: true })
    }

    /// Begins a request without data.
    pub(super) fn without_bytes(&self, id: u64, op: SendOp) -> Request<'_> {
        self.request(id, op, Payload::Sges(SgeList::new()))
    }

    fn request(&self, id: u64, op: SendOp, payload: Payload) -> Request<'_> {
        let request = SendRequest::new(id, op, payload);
        Request { qp: self, request, wrong: None, inline: false }
    }
}

/// A send request, to be refined and posted. It is signaled by default.
#[derive(Debug)]
#[must_use = "a request does nothing until post()"]
pub struct Request<'q> {
    qp: &'q QueuePair,
    request: SendRequest,
    /// Whether to copy the data when the request is built.
    inline: bool,
    /// Why the request is invalid, if it is.
    wrong: Option<&'static str>,
}

impl Request<'_> {
    /// Adds immediate data to a SEND or WRITE. A WRITE with immediate data consumes a receive of
    /// the peer.
    pub fn imm(mut self, data: u32) -> Self {
        match &mut self.request.op {
            SendOp::Send { imm } | SendOp::Write { imm, .. } => *imm = Some(data),
            SendOp::SendInvalidate { .. } => {
                self.wrong = Some("a SEND either carries immediate data or invalidates a key");
            }
            _ => self.wrong = Some("only SEND and WRITE carry immediate data"),
        }
        self
    }

    /// Makes a SEND invalidate a type 2 window that the peer has bound to its queue pair.
    ///
    /// The peer's completion reports it ([`crate::Immediate::Invalidated`]), so the peer knows that
    /// this side no longer uses the window. Not with immediate data.
    pub fn invalidate(mut self, rkey: Key) -> Self {
        match self.request.op {
            SendOp::Send { imm: None } | SendOp::SendInvalidate { .. } => {
                self.request.op = SendOp::SendInvalidate { rkey };
            }
            SendOp::Send { .. } => {
                self.wrong = Some("a SEND either carries immediate data or invalidates a key");
            }
            _ => self.wrong = Some("only SEND invalidates a key of the peer"),
        }
        self
    }

    /// Returns the key of the window after this bind request ([`QueuePair::bind`]).
    ///
    /// A SEND posted directly after the bind may tell the key to a peer.
    pub fn new_rkey(&self) -> Option<Key> {
        match self.request.op {
            SendOp::BindWindow { window, new_key, .. } => {
                Some(Key::new(window.value() & !0xff | u32::from(new_key)))
            }
            _ => None,
        }
    }

    /// Marks the request as invalid for this reason, if there is one.
    pub(super) fn refused(mut self, why: Option<&'static str>) -> Self {
        self.wrong = self.wrong.or(why);
        self
    }

    /// Sets the destination, for a datagram queue pair.
    ///
    /// `qpn` is the queue pair at that address, or [`Qpn::MULTICAST`] if the address is a multicast
    /// group. `qkey` is the Q_Key that it accepts.
    pub fn to(mut self, ah: &AddressHandle, qpn: Qpn, qkey: Qkey) -> Self {
        self.request.to = Some(ah.datagram(qpn, qkey));
        self
    }

    /// Sets the number of the peer's shared receive queue, for an XRC queue pair.
    ///
    /// WRITEs, READs and atomics name a queue ([`crate::SharedReceiveQueue::number`]) too: its
    /// protection domain decides which memory they may access.
    pub fn to_srq(mut self, number: u32) -> Self {
        self.request.xrc_srq = Some(number);
        self
    }

    /// Requests no completion if the request succeeds.
    pub fn unsignaled(mut self) -> Self {
        self.request.flags -= SendFlags::SIGNALED;
        self
    }

    /// Sets the solicited event flag, which wakes a peer that sleeps until a solicited completion.
    pub fn solicited(mut self) -> Self {
        self.request.flags |= SendFlags::SOLICITED;
        self
    }

    /// Delays the request until all earlier READs and atomics are complete (fence).
    pub fn fence(mut self) -> Self {
        self.request.flags |= SendFlags::FENCE;
        self
    }

    /// Copies the data when the request is posted, so that its memory may be reused immediately.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// Returns the request, for [`QueuePair::post_send`].
    ///
    /// # Errors
    /// Fails if the request is invalid, or if its inline data cannot be copied.
    pub fn build(mut self) -> Result<SendRequest> {
        if let Some(why) = self.wrong {
            return Err(invalid(why));
        }
        if self.inline
            && let Payload::Sges(list) = &self.request.payload
        {
            if self.request.op.fetches() {
                return Err(invalid("READ and atomics fetch data: they cannot be inline"));
            }
            self.request.payload = self.qp.copy(list)?;
        }
        Ok(self.request)
    }

    /// Posts the request.
    ///
    /// # Errors
    /// Fails like [`Request::build`] and [`QueuePair::post_send`].
    pub fn post(self) -> Result<()> {
        let qp = self.qp;
        Ok(qp.post_send([self.build()?])?)
    }
}

impl QueuePair {
    /// Copies the bytes that a gather list names.
    fn copy(&self, list: &[Sge]) -> Result<Payload> {
        let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
        // Checked before memory is allocated.
        if total > u64::from(self.cap().max_inline_data) {
            return Err(invalid(
                "more inline data than the queue pair was made for (max_inline_data)",
            ));
        }
        let guard = self.device().memory().guard();
        let mut bytes = Vec::new();
        for sge in list {
            let len = u64::from(sge.length);
            let span = guard
                .span(self.pd.id(), sge.lkey, sge.addr, len, Access::empty())
                .map_err(|e| invalid(e.explain()))?;
            span.append_to(&mut bytes).map_err(|e| invalid(e.explain()))?;
        }
        Ok(Payload::Inline(bytes.into()))
    }
}
