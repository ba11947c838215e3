//! Builds a packet of a request: opcode, headers and payload. IBTA 9.4, 9.7.2.

use crate::mem::{AccessError, MemoryGuard, PdId, Source};
use crate::queue::{Payload, SendFlags, SendOp, SendRequest};
use crate::types::{Psn, Qpn};
use crate::wire::{
    AtomicEth, Bth, Direct, Ext, Feth, NetHeader, Opcode, Position, Reth, SendExtra, Service,
    TxBatch, emit,
};

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) service: Service,
    pub(crate) request: &'a SendRequest,
    /// The length of the message in bytes.
    pub(crate) len: u32,
    /// The PSN of the first packet.
    pub(crate) first: Psn,
    /// The number of PSNs that the message uses.
    pub(crate) packets: u32,
    pub(crate) mtu: usize,
    pub(crate) dest_qp: Qpn,
}

/// A packet of a request, or a coalesced segment of packets. Its payload is still in the program's
/// memory. See [`Coalesced`](crate::wire::Coalesced).
pub(crate) struct Segment<'a> {
    bth: Bth,
    ext: Ext,
    payload: &'a Payload,
    /// The offset in the payload of the first byte that the segment carries.
    start: u64,
    len: usize,
    /// Whether the segment gets the ICRC of kernel `rdma_rxe` for FLUSH ([`crate::wire::icrc`]).
    kernel_icrc: bool,
}

/// Returns the number of packets of a message of `len` bytes: one for an empty message.
pub(crate) fn packets(len: u32, mtu: usize) -> u32 {
    let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
    debug_assert!(mtu > 0, "a packet carries something");
    len.div_ceil(mtu).max(1)
}

impl<'a> Segment<'a> {
    /// Creates packet `index` of the message. For a READ, this is a request for `packets` response
    /// packets from there on; for other operations, a coalesced segment of `packets` packets.
    #[inline]
    pub(crate) fn new(message: Outgoing<'a>, index: u32, packets: u32) -> Self {
        let wqe = &message;
        let Outgoing { service, mtu, dest_qp, .. } = message;
        debug_assert!(packets > 0 && index + packets <= wqe.packets, "{packets} from {index} on");
        let psn = wqe.first.add(index);
        let start = u64::from(index) * mtu as u64;
        let rest = u64::from(wqe.len) - start.min(u64::from(wqe.len));
        let most = u64::from(packets) * mtu as u64;
        let here = match wqe.request.op {
            SendOp::Read { .. } => Position::of(index, wqe.packets),
            _ => Position::of_some(index, packets, wqe.packets),
        };
        let ends = matches!(here, Position::Last | Position::Only);
        let starts = matches!(here, Position::First | Position::Only);
        let mut ext = Ext { xrc_srq: wqe.request.xrc_srq, ..Ext::default() };
        let mut len = 0;
        let opcode = match wqe.request.op {
            SendOp::Send { imm } => {
                len = rest.min(most);
                let extra = if imm.is_some() { SendExtra::Immediate } else { SendExtra::None };
                ext.imm = imm.filter(|_| ends);
                Opcode::send(service, here, extra)
            }
            SendOp::SendInvalidate { rkey } => {
                len = rest.min(most);
                ext.ieth = ends.then_some(rkey.value());
                Opcode::send(service, here, SendExtra::Invalidate)
            }
            SendOp::AtomicWrite { remote } => {
                len = rest.min(most);
                let (va, rkey) = (remote.addr, remote.rkey);
                ext.reth = Some(Reth { va, rkey, dma_len: wqe.len });
                Some(Opcode::RC_ATOMIC_WRITE.in_connected(service))
            }
            SendOp::Flush { remote, length, placement, whole_region } => {
                let (va, rkey) = (remote.addr, remote.rkey);
                ext.reth = Some(Reth { va, rkey, dma_len: length });
                let selectivity = if whole_region { Feth::REGION } else { Feth::RANGE };
                ext.feth = Some(Feth { placement: placement.bits(), selectivity, resv26: 0 });
                Some(Opcode::RC_FLUSH.in_connected(service))
            }
            SendOp::BindWindow { .. } | SendOp::LocalInvalidate { .. } | SendOp::Fail { .. } => {
                None
            }
            SendOp::Write { remote, imm } => {
                len = rest.min(most);
                if starts {
                    let (va, rkey) = (remote.addr, remote.rkey);
                    ext.reth = Some(Reth { va, rkey, dma_len: wqe.len });
                }
                ext.imm = imm.filter(|_| ends);
                Opcode::write(service, here, imm.is_some())
            }
            SendOp::Read { remote } => {
                let asked = rest.min(most);
                ext.reth = Some(Reth {
                    va: remote.addr.wrapping_add(start),
                    rkey: remote.rkey,
                    dma_len: u32::try_from(asked).unwrap_or(wqe.len),
                });
                Some(Opcode::RC_READ_REQUEST.in_connected(service))
            }
            SendOp::CompareSwap { remote, compare, swap } => {
                let (va, rkey) = (remote.addr, remote.rkey);
                ext.atomic = Some(AtomicEth { va, rkey, swap_add: swap, compare });
                Some(Opcode::RC_COMPARE_SWAP.in_connected(service))
            }
            SendOp::FetchAdd { remote, add } => {
                let (va, rkey) = (remote.addr, remote.rkey);
                ext.atomic = Some(AtomicEth { va, rkey, swap_add: add, compare: 0 });
                Some(Opcode::RC_FETCH_ADD.in_connected(service))
            }
        };
        let opcode = opcode.expect("a QP accepts only what its service sends");
        let len = usize::try_from(len).expect("a segment at most");
        debug_assert!(len as u64 <= most && start + len as u64 <= u64::from(wqe.len).max(start));
        debug_assert!(ends || len == 0 || len as u64 == most, "only the last packet is short");
        debug_assert!(!starts || index == 0, "a message starts once");
        let mut bth = Bth::new(opcode, dest_qp, psn);
        bth.solicited = ends && wqe.request.flags.contains(SendFlags::SOLICITED);
        let payload = &message.request.payload;
        Self { bth, ext, payload, start, len, kernel_icrc: false }
    }

    /// Gives a FLUSH the ICRC that kernel `rdma_rxe` expects, if `kernel_icrc` is true.
    #[inline]
    pub(crate) fn with_kernel_icrc(mut self, kernel_icrc: bool) -> Self {
        self.kernel_icrc = kernel_icrc && self.bth.opcode == Opcode::RC_FLUSH;
        self
    }

    /// Sends the segment directly, or appends it to the batch ([`TxBatch::packets`]). `count` is
    /// its number of packets. Returns `false` for a coalesced segment that cannot be sent as one.
    ///
    /// # Errors
    /// The program's memory may not, or no longer, be read. The batch is not changed.
    #[inline]
    pub(crate) fn emit(
        mut self,
        memory: (&MemoryGuard<'_>, PdId),
        batch: &mut TxBatch,
        direct: Option<&mut (dyn Direct + '_)>,
        net: &NetHeader,
        ack_req: bool,
        count: u16,
    ) -> Result<bool, AccessError> {
        debug_assert!(count > 0 && (count == 1 || !self.kernel_icrc));
        self.bth.ack_req = ack_req;
        if !self.kernel_icrc {
            return self.with_payload(memory, |payload| {
                batch.packets(direct, net, &self.bth, &self.ext, payload, count)
            });
        }
        // Only a FLUSH comes here; it has no payload.
        let total = emit::len(self.bth.opcode, 0);
        batch.push_to(*net, self.bth.dest_qp, total, |net, buf| {
            let start = buf.len();
            emit::packet(net, buf, &self.bth, &self.ext, 0, |_| {});
            net.double(buf, start);
        });
        Ok(true)
    }

    /// Calls `f` with the payload of the segment.
    #[inline]
    fn with_payload<R>(
        &self,
        (mem, pd): (&MemoryGuard<'_>, PdId),
        f: impl FnOnce(Source<'_>) -> Result<R, AccessError>,
    ) -> Result<R, AccessError> {
        match self.payload {
            _ if self.len == 0 => f(Source::Bytes(&[])),
            Payload::Inline(bytes) => {
                let start = usize::try_from(self.start).map_err(|_| AccessError::OutOfBounds)?;
                let bytes = bytes.get(start..start + self.len);
                f(Source::Bytes(bytes.ok_or(AccessError::OutOfBounds)?))
            }
            Payload::Sges(list) => {
                let spans = mem.gather(pd, list, self.start, self.len)?;
                f(Source::Spans(&spans))
            }
        }
    }
}
