//! The data path: what every backend can do, and how it describes itself.
//!
//! Invariants: nothing here blocks. A packet that the network cannot take is lost and counted, as
//! on a wire; that is no error. An error means that this backend cannot be used any more.

use rxe_core::wire::{Direct, Frame, TxBatch, TxLimits};

use crate::counters::Counters;
use crate::error::NetError;
#[cfg(target_os = "linux")]
use crate::host::sharing::Sharing;
#[cfg(target_os = "linux")]
use rxe_sys::SharedFd;

/// The largest UDP payload over IPv4.
pub(crate) const MAX_DATAGRAM: usize = 65_507;

/// Moves frames between an engine and a network. A backend must implement the methods without a
/// default; `direct`, `watch` and `sharing` are optional.
///
/// The order of calls: `receive` until it returns 0, let the engine work, `send` what it made. On
/// [`SendStatus::Blocked`] wait until a descriptor is writable or readable; if there is nothing to
/// do, until one is readable.
pub trait Backend: Send {
    /// What this backend can do. `tx` may shrink after a [`Backend::send`] (a device that turns out
    /// not to segment), so make each [`TxBatch`] by the limits as they are then.
    fn capabilities(&self) -> &Capabilities;

    /// Hands received frames to `sink`, at most about `budget` packets (those of one system call are
    /// always handed over together). It does not block. Returns the number of packets, with those that
    /// are of no use; 0 means that nothing is there.
    ///
    /// A frame borrows the backend's memory, so `sink` must copy what is needed later. Packets from
    /// processes of this host may stand apart from their payload ([`rxe_core::wire::Coalesced`]);
    /// [`Frame::for_each_whole`] makes ordinary frames of them.
    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError>;

    /// Sends pending bursts from the front of the batch and marks them sent. Packets that the network
    /// refuses are marked sent too, and counted in [`Counters`].
    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError>;

    /// The way for packets that this backend takes at once, without a batch. After some were sent so,
    /// [`Backend::send`] is to be called, with an empty batch if nothing else is to be sent. `None` for a
    /// backend that has no such way, and for a wrapper that looks at packets or changes them.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }

    /// Calls `f` with each descriptor. A descriptor becomes readable when `receive` has something to
    /// do or when a [`SendStatus::Congested`] send may continue, and writable when a
    /// [`SendStatus::Blocked`] send may continue. Descriptors are level-triggered, and their set never
    /// changes.
    ///
    /// A thread that sleeps on a descriptor keeps a clone of it.
    #[cfg(target_os = "linux")]
    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd));

    /// What has happened so far.
    fn counters(&self) -> Counters;

    /// Says whether a thread sleeps on the descriptors from now on. While none does, a backend may rely
    /// on calls of `receive` and need not make a descriptor readable.
    fn watch(&mut self, on: bool) {
        let _ = on;
    }

    /// The control path of a backend that shares its addresses; `None` for one that only moves
    /// frames. A wrapper returns that of the backend inside.
    #[cfg(target_os = "linux")]
    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        None
    }
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    fn capabilities(&self) -> &Capabilities {
        (**self).capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        (**self).receive(budget, sink)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        (**self).send(batch)
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        (**self).direct()
    }

    #[cfg(target_os = "linux")]
    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        (**self).for_each_fd(f);
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }

    fn watch(&mut self, on: bool) {
        (**self).watch(on);
    }

    #[cfg(target_os = "linux")]
    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        (**self).sharing()
    }
}

/// How far [`Backend::send`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// The batch is empty.
    Done,
    /// The socket is full; the rest of the batch is pending. Wait until a descriptor is writable.
    Blocked,
    /// The receiver's queue is full; the rest of the batch is pending. Wait until a descriptor is
    /// readable, which happens soon; no descriptor tells it by being writable.
    Congested,
}

/// The properties of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `udp`, `packet`, `xdp:driver`, …
    pub name: &'static str,
    /// The largest IP packet the link carries, in bytes.
    pub link_mtu: usize,
    /// How large bursts and batches may be. `burst_segments` is 1 if the backend cannot segment; then
    /// every packet leaves with the ID of its burst's [`rxe_core::wire::NetHeader`].
    pub tx: TxLimits,
    /// The UDP source ports that packets may leave with. The ICRC covers the port, so the engine must
    /// put the real one into [`rxe_core::wire::NetHeader::src_port`].
    pub src_port: SrcPort,
    /// Bytes of the system's buffer for received packets, with headers and overhead (about 2.3 times
    /// the payload at 1024 bytes when not merged). While it is full, packets are lost. 0 if there is
    /// no such bound.
    pub recv_buffer: usize,
    /// The high 8 bits of the QPNs whose packets reach this process
    /// ([`rxe_core::types::Qpn::block`]). Other processes on the same addresses have other blocks;
    /// [`crate::PortGroups::lease`] gets further ones. `None` if all packets reach this process.
    pub qpn_block: Option<u8>,
}

/// The UDP source ports that a backend can send from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrcPort {
    /// Any port, for each packet.
    Any,
    /// Only this one.
    Fixed(u16),
    /// Only these.
    Range {
        /// The first.
        first: u16,
        /// How many there are.
        count: u16,
    },
}

impl SrcPort {
    /// Of a backend that can send from any port, but sends the packets of a burst from one: 16 for each
    /// block of QPNs. If each of many queue pairs had its own, each packet would be a burst.
    pub(crate) fn of_bursts(block: u8) -> Self {
        const COUNT: u16 = 16;
        Self::Range { first: 0xc000 + u16::from(block) * COUNT, count: COUNT }
    }
}
