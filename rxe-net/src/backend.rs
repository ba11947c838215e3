//! The data path: the operations of every backend, and the description of its properties.
//!
//! Invariants: nothing here blocks. A packet that the network cannot take is lost and counted, as
//! on a wire; that is not an error. An error means that the backend cannot be used any more.

use rxe_core::wire::{Direct, Frame, TxBatch, TxLimits};

use crate::counters::Counters;
use crate::error::NetError;
#[cfg(target_os = "linux")]
use crate::host::sharing::Sharing;
#[cfg(target_os = "linux")]
use rxe_sys::SharedFd;

/// The largest UDP payload over IPv4, in bytes.
pub(crate) const MAX_DATAGRAM: usize = 65_507;

/// Moves frames between an engine and a network. `direct`, `watch` and `sharing` are optional; a
/// backend must implement all other methods.
///
/// Order of calls: `receive` until it returns 0, let the engine work, then `send` the packets that
/// it produced. After [`SendStatus::Blocked`], wait until a descriptor is writable or readable. If
/// there is nothing to do, wait until one is readable.
pub trait Backend: Send {
    /// Returns what this backend can do. `tx` may shrink after a [`Backend::send`], when a device
    /// turns out not to segment, so build each [`TxBatch`] with the limits of that moment.
    fn capabilities(&self) -> &Capabilities;

    /// Hands received frames to `sink`, at most about `budget` packets, without blocking. All
    /// packets of one system call are handed over together. Returns the number of packets,
    /// including unusable ones; 0 means that nothing has arrived.
    ///
    /// A frame borrows the backend's memory, so `sink` must copy what it needs later. A packet from
    /// a process of this host may have its payload in a separate place
    /// ([`rxe_core::wire::Coalesced`]); [`Frame::for_each_whole`] turns such packets into ordinary
    /// frames.
    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError>;

    /// Sends pending bursts from the front of the batch and marks them sent. A packet that the
    /// network refuses is marked sent too, and counted in [`Counters`].
    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError>;

    /// Returns the path for packets that this backend takes immediately, without a batch. After
    /// packets were sent this way, call [`Backend::send`], with an empty batch if nothing else is
    /// to be sent. `None` for a backend without such a path, and for a wrapper that inspects or
    /// changes packets.
    fn direct(&mut self) -> Option<&mut dyn Direct> {
        None
    }

    /// Calls `f` with each descriptor. A descriptor becomes readable when `receive` has work or
    /// when a [`SendStatus::Congested`] send may continue, and writable when a
    /// [`SendStatus::Blocked`] send may continue. Descriptors are level-triggered, and the set of
    /// descriptors never changes.
    ///
    /// A thread that sleeps on a descriptor keeps a clone of it.
    #[cfg(target_os = "linux")]
    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd));

    /// Returns the counters since the backend was opened.
    fn counters(&self) -> Counters;

    /// Tells the backend whether a thread sleeps on its descriptors from now on. While no thread
    /// does, the backend may rely on calls of `receive` and need not make a descriptor readable.
    fn watch(&mut self, on: bool) {
        let _ = on;
    }

    /// Returns the control path of a backend that shares its addresses. `None` if the backend only
    /// moves frames. A wrapper returns the control path of the backend inside.
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

/// The result of [`Backend::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// All of the batch was sent.
    Done,
    /// The socket is full; the rest of the batch is pending. Wait until a descriptor is writable.
    Blocked,
    /// The receiver's queue is full; the rest of the batch is pending. Wait until a descriptor is
    /// readable, which happens soon. No descriptor becomes writable for this.
    Congested,
}

/// The properties of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The name of the backend: `udp`, `packet`, `xdp:driver`, …
    pub name: &'static str,
    /// The largest IP packet that the link carries, in bytes.
    pub link_mtu: usize,
    /// The maximum size of bursts and batches. `burst_segments` is 1 if the backend cannot segment;
    /// every packet then leaves with the IP ID in the [`rxe_core::wire::NetHeader`] of its burst.
    pub tx: TxLimits,
    /// The UDP source ports that packets can leave with. The ICRC covers the port, so the engine
    /// must put the real port into [`rxe_core::wire::NetHeader::src_port`].
    pub src_port: SrcPort,
    /// The size of the kernel's receive buffer in bytes, or 0 if there is no limit. Headers and
    /// overhead count too: about 2.3 times the payload at 1024 bytes if packets are not merged.
    /// Packets are lost while the buffer is full.
    pub recv_buffer: usize,
    /// The high 8 bits of the QPNs whose packets reach this process. See
    /// [`rxe_core::types::Qpn::block`]. Other processes on the same addresses have other blocks;
    /// [`crate::PortGroups::lease`] leases further blocks. `None` if all packets reach this
    /// process.
    pub qpn_block: Option<u8>,
}

/// The UDP source ports that a backend can send from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrcPort {
    /// Any port, chosen per packet.
    Any,
    /// Only this port.
    Fixed(u16),
    /// A range of ports.
    Range {
        /// The first port.
        first: u16,
        /// The number of ports.
        count: u16,
    },
}

impl SrcPort {
    /// Returns 16 ports for each block of QPNs. For a backend that can send from any port, but
    /// sends each burst from a single one. If each of many queue pairs had its own port, each
    /// packet would be a burst of its own.
    pub(crate) fn of_bursts(block: u8) -> Self {
        const COUNT: u16 = 16;
        Self::Range { first: 0xc000 + u16::from(block) * COUNT, count: COUNT }
    }
}
