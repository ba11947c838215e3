//! Sharing of an address, with its QPNs and UDP port 4791, by several processes. There is no
//! daemon, and processes may start and end in any order.
//!
//! A QPN's high 8 bits are its *block*. A device leases one block, 1 to 255, on all of its
//! addresses, and further blocks when that is full; its QPNs are random within them. A process has
//! leased a block while it listens under a path that is made of the address and the block, in a
//! directory of the user ([`directory`]). All these paths belong to one socket, the device's
//! *control socket* ([`control`]). A process that dies loses its leases immediately, because no
//! process listens there any more.
//!
//! On each address the processes share a *port group* of SO_REUSEPORT sockets. A classic BPF
//! program selects the socket by the block in a packet's BTH: socket `i` of the group serves block
//! `i` ([`group`]). Block 0 has no owner, because it holds QPN 1, the CM's. The first process that
//! polls receives its packets and forwards them to the process that they are for ([`forward`]).
//!
//! Invariants:
//! - The place of a socket in its group changes when an earlier one is closed. So the holder of
//!   block `b` holds the sockets 0 to `b` and keeps them open; a newcomer gets them from any such
//!   holder, through its control socket. While a holder of `b` lives, no socket up to `b` moves.
//! - A process that leases a block or adds a socket to a group holds the address's lock, and all
//!   sockets that are in the group.
//! - A process that listens under a block's path holds the block's sockets, or the address's lock.
//! - All processes have the same user: the kernel requires it of a group, and no other user can
//!   enter the directory.

pub mod ask;
mod blocks;
mod control;
mod deadline;
pub(crate) mod directory;
mod forward;
mod forwarder;
mod group;
mod lock;
mod mad;
pub(crate) mod membership;
pub(crate) mod message;
mod opened;
pub(crate) mod peer_probes;
mod port_groups;
pub(crate) mod port_owner;
pub(crate) mod report;
mod services;
pub(crate) mod sharing;
mod source;
mod stream;
mod sweep;
#[cfg(test)]
mod tests;
mod timeout;
mod tx_queue;
pub(crate) mod udp_socket;
pub mod untrusted;

use std::net::IpAddr;
use std::sync::Arc;

pub(crate) use self::blocks::Blocks;
use self::directory::ScopedAddr;
pub(crate) use self::forward::Forwarding;
pub(crate) use self::port_groups::Handle;
pub use self::port_groups::PortGroups;
pub use self::source::{CaptureMessage, CaptureSource};
pub use self::stream::CaptureStream;

use rxe_sys::SharedFd;
use rxe_sys::unix::UnixSocket;

/// The epoll data of a device's sockets and of its forwarding (inboxes and timer). Other code may
/// add descriptors with other data to the same epoll descriptor.
pub(crate) const READY: u64 = 0;

/// The sockets of a group, by block, up to the holder's own.
type Group = Arc<[SharedFd]>;

/// The blocks that can be leased. Block 0 has no owner.
const BLOCKS: std::ops::RangeInclusive<u8> = 1..=u8::MAX;

/// A leased block on an address: its socket in the group, and the device's inbox there.
#[derive(Debug)]
pub(crate) struct Endpoint {
    addr: ScopedAddr,
    block: u8,
    group: Group,
    inbox: Option<Arc<UnixSocket>>,
}

impl Endpoint {
    /// Returns the address.
    pub(crate) fn address(&self) -> IpAddr {
        self.addr.address
    }

    /// Returns the socket that receives this block's packets.
    pub(crate) fn own(&self) -> SharedFd {
        self.group[usize::from(self.block)].clone()
    }

    /// Returns the socket that receives packets to QP1.
    pub(crate) fn first(&self) -> SharedFd {
        self.group[0].clone()
    }
}
