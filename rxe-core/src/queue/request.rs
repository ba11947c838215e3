//! Work requests. IBTA 11.4.1.1, 11.4.1.2.

use std::sync::Arc;

use bitflags::bitflags;
use smallvec::SmallVec;

use crate::mem::{Binding, PdId, SgeList};
use crate::types::{Key, Qkey, Qpn, Status};
use crate::wire::NetHeader;

/// The data of a send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A list of buffers that hold the data. For READ and atomics, the buffers of the result.
    Sges(SgeList),
    /// The bytes themselves, copied when the request is posted (`IBV_SEND_INLINE`).
    Inline(SmallVec<[u8; 32]>),
}

impl Payload {
    /// Returns the total size in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(list) => list.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A location in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address of the first byte, in the peer's address space.
    pub addr: u64,
    /// The key of the peer's region.
    pub rkey: Key,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND into a receive that the peer posted, optionally with immediate data.
    Send {
        /// Immediate data, as a number in host order.
        imm: Option<u32>,
    },
    /// SEND that also invalidates a key of the peer (RC only).
    SendInvalidate {
        /// The key of a memory window of the peer.
        rkey: Key,
    },
    /// RDMA WRITE. With immediate data it also consumes a receive of the peer.
    Write {
        /// The destination.
        remote: Remote,
        /// Immediate data, as a number in host order.
        imm: Option<u32>,
    },
    /// RDMA READ into the buffers of the request.
    Read {
        /// The source.
        remote: Remote,
    },
    /// Atomic COMPARE AND SWAP of 8 bytes. Returns the old value.
    CompareSwap {
        /// The 8-byte word.
        remote: Remote,
        /// The value that the word must have to be replaced.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// ATOMIC WRITE of 8 bytes, after all earlier requests. The payload is the 8 bytes.
    AtomicWrite {
        /// The 8-byte word.
        remote: Remote,
    },
    /// FLUSH: completes when earlier writes have reached the requested placement. It has no
    /// payload.
    Flush {
        /// The start of the range, and the key.
        remote: Remote,
        /// The length of the range in bytes; ignored with `whole_region`.
        length: u32,
        /// The placement that the bytes must have reached.
        placement: Placement,
        /// Whether to flush the whole region instead of the range.
        whole_region: bool,
    },
    /// Binds a local memory window. Nothing is sent.
    BindWindow {
        /// Any key that the window has had.
        window: Key,
        /// The low 8 bits of the window's new key.
        new_key: u8,
        /// The range and the access rights of the binding.
        binding: Binding,
    },
    /// Invalidates a local type 2 window. Nothing is sent.
    LocalInvalidate {
        /// The current key of the window.
        key: Key,
    },
    /// Fails with a given status when its turn comes, and fails the queue pair. Nothing is sent.
    /// For injected faults; [`Status::Success`] fails nothing.
    Fail {
        /// The completion status.
        status: Status,
    },
    /// Atomic FETCH AND ADD on 8 bytes; returns the old value.
    FetchAdd {
        /// The 8-byte word.
        remote: Remote,
        /// The addend; the addition wraps.
        add: u64,
    },
}

impl SendOp {
    /// Returns whether the response brings data into the request's buffers: for READ and atomics.
    pub const fn fetches(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Returns the location in the peer's memory that the operation names.
    pub const fn remote(&self) -> Option<Remote> {
        match *self {
            Self::Write { remote, .. }
            | Self::Read { remote }
            | Self::CompareSwap { remote, .. }
            | Self::FetchAdd { remote, .. }
            | Self::AtomicWrite { remote }
            | Self::Flush { remote, .. } => Some(remote),
            Self::Send { .. }
            | Self::SendInvalidate { .. }
            | Self::BindWindow { .. }
            | Self::LocalInvalidate { .. }
            | Self::Fail { .. } => None,
        }
    }

    /// Returns whether the peer sends a response instead of an acknowledgement. `max_rd_atomic`
    /// limits the number of outstanding requests of this kind.
    pub const fn is_answered(&self) -> bool {
        self.fetches() || matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Returns whether the request sends nothing.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::BindWindow { .. } | Self::LocalInvalidate { .. } | Self::Fail { .. })
    }

    /// Returns whether this is COMPARE AND SWAP or FETCH AND ADD.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// An address handle, which addresses datagrams to one destination. Created by
/// [`Engine::create_ah`](crate::engine::Engine::create_ah). IBTA 11.2.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressHandle {
    pub(crate) pd: PdId,
    /// The network header, except the source port, which is that of the sending QP.
    pub(crate) net: NetHeader,
}

/// The destination of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The address.
    pub ah: Arc<AddressHandle>,
    /// The QPN at that address; [`Qpn::MULTICAST`] for a multicast group.
    pub qpn: Qpn,
    /// The Q_Key that the receiver expects. If its high bit is set, the sending QP's own Q_Key is
    /// sent instead. IBTA 10.2.4.
    pub qkey: Qkey,
}

bitflags! {
    /// The placement that a FLUSH requests. The bits are those of `ib_placement_type`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Placement: u8 {
        /// The bytes are visible to all processors and devices of the peer.
        const GLOBAL = 1;
        /// The bytes survive a loss of power.
        const PERSISTENT = 1 << 1;
    }
}

bitflags! {
    /// Flags of a send request. The bits are those of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// The request starts when all earlier READs and atomics of the queue are complete.
        const FENCE = 1;
        /// The request generates a completion also on success.
        const SIGNALED = 1 << 1;
        /// The message wakes a receiver that waits for solicited completions.
        const SOLICITED = 1 << 2;
    }
}

/// A work request for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The number of the request (`wr_id`), which is returned in the completion.
    pub id: u64,
    /// The operation.
    pub op: SendOp,
    /// The data to send, or the buffers of the response.
    pub payload: Payload,
    /// The flags.
    pub flags: SendFlags,
    /// The destination of a datagram; `None` on connected QPs.
    pub to: Option<Datagram>,
    /// The number of the peer's shared receive queue, on XRC QPs.
    pub xrc_srq: Option<u32>,
}

impl SendRequest {
    /// Creates a signalled request on a connected QP.
    pub fn new(id: u64, op: SendOp, payload: Payload) -> Self {
        Self { id, op, payload, flags: SendFlags::SIGNALED, to: None, xrc_srq: None }
    }

    /// Returns the length of the message in bytes: that of the payload. For an atomic it is 8,
    /// whatever the length of its list.
    pub(crate) fn message_len(&self) -> u32 {
        // Longer messages are refused when they are posted.
        if self.op.is_atomic() { 8 } else { u32::try_from(self.payload.len()).unwrap_or(u32::MAX) }
    }
}

/// A work request for the receive queue: buffers for the next message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvRequest {
    /// The number of the request (`wr_id`), which is returned in the completion.
    pub id: u64,
    /// The buffers, filled in this order.
    pub sges: SgeList,
}

impl RecvRequest {
    /// Returns the number of bytes that the buffers can hold.
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}
