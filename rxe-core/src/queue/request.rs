//! Work requests. IBTA 11.4.1.1, 11.4.1.2.

use std::sync::Arc;

use bitflags::bitflags;
use smallvec::SmallVec;

use crate::mem::{Binding, PdId, SgeList};
use crate::types::{Key, Qkey, Qpn, Status};
use crate::wire::NetHeader;

/// The bytes of a send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A list of buffers that hold them. For READ and atomics, the result goes there.
    Sges(SgeList),
    /// The bytes themselves, copied when the request is posted (`IBV_SEND_INLINE`).
    Inline(SmallVec<[u8; 32]>),
}

impl Payload {
    /// Total bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Sges(list) => list.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A place in the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The peer's address of the first byte.
    pub addr: u64,
    /// The key that the peer gave for its region.
    pub rkey: Key,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND into a receive that the peer posted, with immediate data if given.
    Send {
        /// Immediate data, as a number in host order.
        imm: Option<u32>,
    },
    /// SEND that also invalidates a key of the peer's: RC only.
    SendInvalidate {
        /// The key of a memory window.
        rkey: Key,
    },
    /// RDMA WRITE. With immediate data it also consumes a receive of the peer.
    Write {
        /// The destination.
        remote: Remote,
        /// Immediate data, as a number in host order.
        imm: Option<u32>,
    },
    /// RDMA READ into the request's scatter list.
    Read {
        /// The source.
        remote: Remote,
    },
    /// Atomic COMPARE AND SWAP of 8 bytes; returns the old value.
    CompareSwap {
        /// The 8-byte word.
        remote: Remote,
        /// The word is replaced only if it equals this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Writes 8 bytes atomically, after everything before it. The payload is the 8 bytes.
    AtomicWrite {
        /// The 8-byte word.
        remote: Remote,
    },
    /// Completes when earlier writes have reached the placement asked for. It has no payload.
    Flush {
        /// The start of the range, and the key.
        remote: Remote,
        /// Bytes of the range; ignored with `whole_region`.
        length: u32,
        /// How far the bytes must have come.
        placement: Placement,
        /// Flushes the whole region instead of the range.
        whole_region: bool,
    },
    /// Binds a local memory window. Nothing is sent.
    BindWindow {
        /// Any key that the window has had.
        window: Key,
        /// The low 8 bits of its new key.
        new_key: u8,
        /// The range and the rights that it gives.
        binding: Binding,
    },
    /// Invalidates a local type 2 window. Nothing is sent.
    LocalInvalidate {
        /// The window's key.
        key: Key,
    },
    /// Fails with this status at its turn, as if it had been tried, and with it the queue pair. Nothing is
    /// sent. For faults on purpose; [`Status::Success`] fails nothing.
    Fail {
        /// How it ends.
        status: Status,
    },
    /// Atomic FETCH AND ADD on 8 bytes; returns the old value.
    FetchAdd {
        /// The 8-byte word.
        remote: Remote,
        /// What to add, wrapping.
        add: u64,
    },
}

impl SendOp {
    /// Whether the answer brings data, which goes into the request's buffers: READ and atomics.
    pub const fn fetches(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// The peer's memory that it names.
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

    /// Whether the peer answers with a response instead of an acknowledgement. `max_rd_atomic` limits
    /// how many such requests may be outstanding.
    pub const fn is_answered(&self) -> bool {
        self.fetches() || matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Whether the request sends nothing.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::BindWindow { .. } | Self::LocalInvalidate { .. } | Self::Fail { .. })
    }

    /// Whether this is COMPARE AND SWAP or FETCH AND ADD.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// An address handle: how datagrams to one address are addressed. Made by
/// [`Engine::create_ah`](crate::engine::Engine::create_ah). IBTA 11.2.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressHandle {
    pub(crate) pd: PdId,
    /// But for the source port, which is that of the QP that sends.
    pub(crate) net: NetHeader,
}

/// The destination of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The address.
    pub ah: Arc<AddressHandle>,
    /// The QP at that address; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key that the receiver expects. If its high bit is set, the sending QP's own Q_Key is
    /// sent instead. IBTA 10.2.4.
    pub qkey: Qkey,
}

bitflags! {
    /// How far a FLUSH must bring bytes. The bits are those of `ib_placement_type`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Placement: u8 {
        /// Visible to all of the peer's processors and devices.
        const GLOBAL = 1;
        /// Kept through a loss of power.
        const PERSISTENT = 1 << 1;
    }
}

bitflags! {
    /// Flags of a send request. The bits are those of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// The request starts only when all earlier READs and atomics of the queue are complete.
        const FENCE = 1;
        /// The request makes a completion also on success.
        const SIGNALED = 1 << 1;
        /// The message wakes a receiver that waits for solicited completions.
        const SOLICITED = 1 << 2;
    }
}

/// A request to the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The program's own number (`wr_id`), given back in the completion.
    pub id: u64,
    /// The operation.
    pub op: SendOp,
    /// The bytes to send, or the buffers for the answer.
    pub payload: Payload,
    /// Flags.
    pub flags: SendFlags,
    /// The destination of a datagram; `None` on connected QPs.
    pub to: Option<Datagram>,
    /// On XRC QPs, the number of the peer's shared receive queue.
    pub xrc_srq: Option<u32>,
}

impl SendRequest {
    /// A signalled request on a connected QP.
    pub fn new(id: u64, op: SendOp, payload: Payload) -> Self {
        Self { id, op, payload, flags: SendFlags::SIGNALED, to: None, xrc_srq: None }
    }

    /// Bytes of the message: the length of the payload. For an atomic 8, however long its list is.
    pub(crate) fn message_len(&self) -> u32 {
        // A longer message is refused when it is posted.
        if self.op.is_atomic() { 8 } else { u32::try_from(self.payload.len()).unwrap_or(u32::MAX) }
    }
}

/// A request to the receive queue: buffers for the next message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvRequest {
    /// The program's own number (`wr_id`), given back in the completion.
    pub id: u64,
    /// The buffers, filled in this order.
    pub sges: SgeList,
}

impl RecvRequest {
    /// How many bytes it can take.
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}
