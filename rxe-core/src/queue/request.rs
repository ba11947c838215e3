//! Work requests. IBTA 11.4.1.1, 11.4.1.2.

use std::sync::Arc;

use bitflags::bitflags;
use smallvec::SmallVec;

use crate::mem::{Binding, PdId, SgeList};
use crate::types::{Key, Qkey, Qpn};
use crate::wire::NetHeader;

/// The bytes of a send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Where they are (or, for READ and atomics, where the result goes).
    Sges(SgeList),
    /// The bytes themselves, copied when the request was posted (`IBV_SEND_INLINE`).
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

/// Where in the peer's memory.
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
    /// SEND that also takes one of the peer's memory windows from us: RC only.
    SendInvalidate {
        /// The window's key.
        rkey: Key,
    },
    /// RDMA WRITE; with immediate data it also consumes a receive of the peer.
    Write {
        /// Where to.
        remote: Remote,
        /// Immediate data, as a number in host order.
        imm: Option<u32>,
    },
    /// RDMA READ into the request's scatter list.
    Read {
        /// Where from.
        remote: Remote,
    },
    /// Atomic COMPARE AND SWAP of 8 bytes; the value before comes back.
    CompareSwap {
        /// Which word.
        remote: Remote,
        /// Swap only if the word equals this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Writes 8 bytes at once, after everything before it. The payload is the 8 bytes.
    AtomicWrite {
        /// Which word.
        remote: Remote,
    },
    /// Makes sure that what was written before has reached its place. No payload.
    Flush {
        /// The range.
        remote: Remote,
        /// Bytes of it; ignored where the whole region is meant.
        length: u32,
        /// How far the bytes must have come.
        placement: Placement,
        /// All of the region instead of the range.
        whole_region: bool,
    },
    /// Binds a memory window of ours. Nothing is sent.
    BindWindow {
        /// The window, by any key that it has had.
        window: Key,
        /// The low 8 bits of its key from then on.
        new_key: u8,
        /// What it opens.
        binding: Binding,
    },
    /// Takes the binding of a type 2 window of ours away. Nothing is sent.
    LocalInvalidate {
        /// The window's key.
        key: Key,
    },
    /// Atomic FETCH AND ADD on 8 bytes; the value before comes back.
    FetchAdd {
        /// Which word.
        remote: Remote,
        /// What to add, wrapping.
        add: u64,
    },
}

impl SendOp {
    /// READ and atomics: the payload is where the answer goes.
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
            | Self::LocalInvalidate { .. } => None,
        }
    }

    /// The peer answers with a response of its own, not an acknowledgement; the number of such
    /// outstanding is limited.
    pub const fn is_answered(&self) -> bool {
        self.fetches() || matches!(self, Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    /// Nothing is sent.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::BindWindow { .. } | Self::LocalInvalidate { .. })
    }

    /// COMPARE AND SWAP or FETCH AND ADD.
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// The way to peers at one address, for datagrams. Made by
/// [`Engine::create_ah`](crate::engine::Engine::create_ah). IBTA 11.2.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressHandle {
    pub(crate) pd: PdId,
    pub(crate) net: NetHeader,
}

/// Where a datagram goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// To which address.
    pub ah: Arc<AddressHandle>,
    /// To which QP there; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key that the receiver expects; one with the high bit set stands for the sending QP's
    /// own. IBTA 10.2.4.
    pub qkey: Qkey,
}

bitflags! {
    /// How far a FLUSH must bring bytes. The bits are those of `ib_placement_type`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Placement: u8 {
        /// Visible to all of the peer's processors and devices.
        const GLOBAL = 1;
        /// Safe from a loss of power.
        const PERSISTENT = 1 << 1;
    }
}

bitflags! {
    /// How a send request is carried out. The bits are those of `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Begin only when all earlier READs and atomics of the queue are complete.
        const FENCE = 1;
        /// Make a completion also on success.
        const SIGNALED = 1 << 1;
        /// Wake a receiver that waits for solicited completions.
        const SOLICITED = 1 << 2;
    }
}

/// A request to the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The program's own number for it, given back in the completion.
    pub id: u64,
    /// What to do.
    pub op: SendOp,
    /// With which bytes.
    pub payload: Payload,
    /// And how.
    pub flags: SendFlags,
    /// To whom, for datagrams; `None` on connected QPs.
    pub to: Option<Datagram>,
    /// Into which of the peer's shared receive queues, on XRC QPs.
    pub xrc_srq: Option<u32>,
}

impl SendRequest {
    /// A signalled request on a connected QP.
    pub fn new(id: u64, op: SendOp, payload: Payload) -> Self {
        Self { id, op, payload, flags: SendFlags::SIGNALED, to: None, xrc_srq: None }
    }

    /// Bytes of the message: those of the payload. An atomic has 8, however long its list is.
    pub(crate) fn message_len(&self) -> u32 {
        // A longer message is refused when it is posted.
        if self.op.is_atomic() { 8 } else { u32::try_from(self.payload.len()).unwrap_or(u32::MAX) }
    }
}

/// A request to the receive queue: where the next message may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvRequest {
    /// The program's own number for it, given back in the completion.
    pub id: u64,
    /// The memory, filled in this order.
    pub sges: SgeList,
}

impl RecvRequest {
    /// How many bytes it can take.
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}
