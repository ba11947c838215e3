//! The data path: what every way onto a wire can do, and what it says of itself.
//!
//! Invariants: nothing here blocks. A packet that the network can not take is lost and counted, as
//! on a wire; that is no error. An error means that this backend can not be used any more.

use std::os::fd::BorrowedFd;

use rxe_core::wire::{Frame, TxBatch, TxLimits};

use crate::{NetError, Sharing};

/// Moves frames between an engine and a network. A backend must implement the first five methods;
/// `watch` and `sharing` are for those that can do more.
///
/// The order of calls: `receive` until it returns 0, let the engine work, `send` what it made. On
/// [`SendStatus::Blocked`] wait until a descriptor is writable or readable; if there is nothing to
/// do, until one is readable.
pub trait Backend: Send {
    /// What this backend can do. `tx` may shrink after a [`Backend::send`] (a device that turns out
    /// not to segment), so make each [`TxBatch`] by the limits as they are then.
    fn capabilities(&self) -> &Capabilities;

    /// Hands frames that have arrived to `sink`, about `budget` packets at most (what one call of
    /// the system brought is always handed over whole), without blocking. Returns the number of
    /// packets handed over: 0 says that nothing is there.
    ///
    /// A frame borrows the backend's memory: what must outlive the call of `sink` is copied there.
    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError>;

    /// Sends pending bursts from the front of the batch and marks them sent. Packets that the network
    /// refuses are marked sent too, and counted in [`Counters`].
    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError>;

    /// Calls `f` with each descriptor that becomes readable when `receive` has something to do or a
    /// `send` that was [`SendStatus::Congested`] may go on, and writable when one that was
    /// [`SendStatus::Blocked`] may. Level-triggered. The set does not change during the backend's
    /// life.
    fn for_each_fd(&self, f: &mut dyn FnMut(BorrowedFd<'_>));

    /// What has happened so far.
    fn counters(&self) -> Counters;

    /// Whether a thread sleeps on the descriptors from now on. While none does, a backend may rely
    /// on calls of `receive` and need not make a descriptor readable.
    fn watch(&mut self, on: bool) {
        let _ = on;
    }

    /// The control path of a backend that shares its addresses; `None` for one that only moves
    /// frames. A wrapper returns that of the backend inside.
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

    fn for_each_fd(&self, f: &mut dyn FnMut(BorrowedFd<'_>)) {
        (**self).for_each_fd(f);
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }

    fn watch(&mut self, on: bool) {
        (**self).watch(on);
    }

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

/// What a backend says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `udp`, `packet`, …
    pub name: &'static str,
    /// What the process must be allowed to do, for a person; empty if nothing.
    pub privileges: &'static str,
    /// The largest IP packet the link carries, in bytes.
    pub link_mtu: usize,
    /// How large bursts and batches may be. `burst_segments` is 1 where the backend can not segment;
    /// then every packet leaves with the ID of its burst's [`rxe_core::wire::NetHeader`].
    pub tx: TxLimits,
    /// Which UDP source ports packets may leave with. The ICRC covers the port, so the engine must
    /// put into [`rxe_core::wire::NetHeader::src_port`] what will stand on the wire.
    pub src_port: SrcPort,
    /// Whether received IPv4 frames come with their ID ([`rxe_core::wire::IpId::Known`]), without
    /// which the ICRC is a 16-bit check.
    pub sees_ip_id: bool,
    /// Bytes of memory that the system keeps for packets that have arrived, headers and overhead
    /// included (about 2.3 times the payload at 1024 bytes when not merged); what comes while it is
    /// full is lost. 0 if there is no such bound.
    pub recv_buffer: usize,
    /// The high 8 bits of the QPNs whose packets reach this process
    /// ([`rxe_core::types::Qpn::block`]): other processes on the same addresses have others.
    /// ([`crate::PortGroups::lease`] gets further ones.) `None`: all reach it.
    pub qpn_block: Option<u8>,
}

/// Which UDP source ports a backend can send from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrcPort {
    /// Any, packet by packet.
    Any,
    /// Only this one.
    Fixed(u16),
}

/// What has happened on a backend since it was opened. Numbers of packets, where nothing else is
/// said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Handed to the sink.
    pub rx_packets: u64,
    /// UDP payload bytes handed to the sink.
    pub rx_bytes: u64,
    /// Lost because the receive buffer was full, as far as the system tells.
    pub rx_overflow: u64,
    /// Arrived, but not as something the backend can hand over (truncated, not UDP, …).
    pub rx_unusable: u64,
    /// Given to the network.
    pub tx_packets: u64,
    /// UDP payload bytes given to the network.
    pub tx_bytes: u64,
    /// Not sent: the device queue was full (ENOBUFS).
    pub tx_no_buffer: u64,
    /// Not sent: no route, no neighbour, or the peer's host answered so by ICMP.
    pub tx_unreachable: u64,
    /// Not sent: a firewall said no (EPERM, EACCES).
    pub tx_denied: u64,
    /// Not sent: the interface is down or gone.
    pub tx_down: u64,
    /// Not sent: larger than the MTU of the path.
    pub tx_too_big: u64,
    /// Not sent: no socket has this source address, or the families of the addresses differ.
    pub tx_bad_address: u64,
    /// Not sent for another reason.
    pub tx_other: u64,
    /// Dropped, duplicated, delayed or damaged on purpose by the fault wrapper.
    pub injected: u64,
}
