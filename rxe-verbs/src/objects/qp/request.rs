//! Send requests, said in few words.

use rxe_core::mem::Access;
use rxe_core::queue::{Payload, Placement, Remote, SendFlags, SendOp, SendRequest, Sge, SgeList};
use rxe_core::types::{Key, Qkey, Qpn};

use super::{QueuePair, invalid};
use crate::error::Result;
use crate::objects::ah::AddressHandle;

impl QueuePair {
    /// A SEND of these bytes into the next receive of the peer.
    pub fn send(&self, id: u64, from: &[Sge]) -> Request<'_> {
        self.request(id, SendOp::Send { imm: None }, Payload::Sges(from.into()))
    }

    /// A SEND of bytes that need not be registered: they are copied now (inline).
    pub fn send_bytes(&self, id: u64, bytes: &[u8]) -> Request<'_> {
        self.request(id, SendOp::Send { imm: None }, Payload::Inline(bytes.into()))
    }

    /// A WRITE of these bytes to the peer's memory.
    pub fn write(&self, id: u64, from: &[Sge], to: Remote) -> Request<'_> {
        let op = SendOp::Write { remote: to, imm: None };
        self.request(id, op, Payload::Sges(from.into()))
    }

    /// A WRITE of bytes that need not be registered: they are copied now (inline).
    pub fn write_bytes(&self, id: u64, bytes: &[u8], to: Remote) -> Request<'_> {
        let op = SendOp::Write { remote: to, imm: None };
        self.request(id, op, Payload::Inline(bytes.into()))
    }

    /// A READ of the peer's memory, as many bytes as `into` has room for.
    pub fn read(&self, id: u64, into: &[Sge], from: Remote) -> Request<'_> {
        self.request(id, SendOp::Read { remote: from }, Payload::Sges(into.into()))
    }

    /// Puts `swap` into a word of the peer's memory if that equals `compare`, atomically. What it was
    /// before comes into the 8 bytes of `result`, in the machine's byte order.
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

    /// Adds to a word of the peer's memory, wrapping, atomically. What it was before comes into the 8
    /// bytes of `result`, in the machine's byte order.
    pub fn fetch_add(&self, id: u64, result: Sge, word: Remote, add: u64) -> Request<'_> {
        let op = SendOp::FetchAdd { remote: word, add };
        self.request(id, op, Payload::Sges([result].as_slice().into()))
    }

    /// Writes a word of the peer's memory at once, in the machine's byte order: nobody there sees half
    /// of it, or sees it before what was written before. Needs REMOTE_WRITE of the peer's queue pair
    /// and region, and 8 bytes of inline data.
    pub fn atomic_write(&self, id: u64, value: u64, word: Remote) -> Request<'_> {
        let bytes = value.to_ne_bytes();
        self.request(id, SendOp::AtomicWrite { remote: word }, Payload::Inline(bytes[..].into()))
    }

    /// Completes when what was written to `length` bytes of the peer's memory has come as far as
    /// `placement` says: [`Placement::GLOBAL`] needs [`Access::FLUSH_GLOBAL`] of the peer's queue pair
    /// ([`crate::ConnectOptions::access`]) and region.
    pub fn flush(&self, id: u64, range: Remote, length: u32, placement: Placement) -> Request<'_> {
        let op = SendOp::Flush { remote: range, length, placement, whole_region: false };
        self.without_bytes(id, op)
    }

    /// The same for all of the region that has this key.
    pub fn flush_region(&self, id: u64, rkey: Key, placement: Placement) -> Request<'_> {
        let remote = Remote { addr: 0, rkey };
        self.without_bytes(id, SendOp::Flush { remote, length: 0, placement, whole_region: true })
    }

    /// A request without bytes.
    pub(super) fn without_bytes(&self, id: u64, op: SendOp) -> Request<'_> {
        self.request(id, op, Payload::Sges(SgeList::new()))
    }

    fn request(&self, id: u64, op: SendOp, payload: Payload) -> Request<'_> {
        let request = SendRequest::new(id, op, payload);
        Request { qp: self, request, wrong: None, inline: false }
    }
}

/// A send request, to be refined and posted. It makes a completion unless told otherwise.
#[derive(Debug)]
#[must_use = "a request does nothing until post()"]
pub struct Request<'q> {
    qp: &'q QueuePair,
    request: SendRequest,
    /// Copy the bytes when posted.
    inline: bool,
    /// What was asked for and does not exist.
    wrong: Option<&'static str>,
}

impl Request<'_> {
    /// Gives the peer this number with the message. A WRITE with one consumes a receive of the peer.
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

    /// Also takes this type 2 window, bound by the peer to its end of the connection, from us: the
    /// peer's completion tells it ([`crate::Immediate::Invalidated`]), and needs not look whether we
    /// still use it. For a SEND without immediate data.
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

    /// The key that a window will have once it is bound by this request ([`QueuePair::bind`]). It may
    /// be told to a peer by a SEND right behind.
    pub fn new_rkey(&self) -> Option<Key> {
        match self.request.op {
            SendOp::BindWindow { window, new_key, .. } => {
                Some(Key::new(window.value() & !0xff | u32::from(new_key)))
            }
            _ => None,
        }
    }

    /// It cannot be posted, for this reason.
    pub(super) fn refused(mut self, why: Option<&'static str>) -> Self {
        self.wrong = self.wrong.or(why);
        self
    }

    /// To whom it goes, on a datagram queue pair: which address, which queue pair there (or
    /// [`Qpn::MULTICAST`], where the address is a group's), and the Q_Key that lets it in.
    pub fn to(mut self, ah: &AddressHandle, qpn: Qpn, qkey: Qkey) -> Self {
        self.request.to = Some(ah.datagram(qpn, qkey));
        self
    }

    /// Into which of the peer's shared receive queues it goes, by number
    /// ([`crate::SharedReceiveQueue::number`]), on an XRC queue pair. WRITEs, READs and atomics name
    /// one too: its protection domain says which memory they may reach.
    pub fn to_srq(mut self, number: u32) -> Self {
        self.request.xrc_srq = Some(number);
        self
    }

    /// Makes no completion if it succeeds.
    pub fn unsignaled(mut self) -> Self {
        self.request.flags -= SendFlags::SIGNALED;
        self
    }

    /// Wakes a peer that sleeps until a solicited completion comes.
    pub fn solicited(mut self) -> Self {
        self.request.flags |= SendFlags::SOLICITED;
        self
    }

    /// Begins only when all earlier READs and atomics are complete.
    pub fn fence(mut self) -> Self {
        self.request.flags |= SendFlags::FENCE;
        self
    }

    /// Copies the bytes when posted, so that their memory may be used again at once.
    pub fn inline(mut self) -> Self {
        self.inline = true;
        self
    }

    /// The request, for [`QueuePair::post_send`].
    ///
    /// # Errors
    /// It contradicts itself, or its bytes cannot be copied now.
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

    /// Posts it.
    ///
    /// # Errors
    /// As [`Request::build`] and [`QueuePair::post_send`].
    pub fn post(self) -> Result<()> {
        let qp = self.qp;
        Ok(qp.post_send([self.build()?])?)
    }
}

impl QueuePair {
    /// The bytes that a gather list names.
    fn copy(&self, list: &[Sge]) -> Result<Payload> {
        let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
        // Before anything is allocated.
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
