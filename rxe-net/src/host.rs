//! Several processes on one address: how they divide the queue pair numbers and share UDP port 4791.
//! There is no daemon, and processes may start and end in any order.
//!
//! A QPN's high 8 bits are its *block*. A device leases one block, 1 to 255, on all of its
//! addresses, and further ones when that is full; its QPNs are random within them. A process has
//! leased a block while it listens under a path made of the address and the block, in a directory of
//! the user's ([`directory`]). All these paths are of one socket, the device's *control socket*
//! ([`control`]). A process that dies loses the lease in that moment: nobody listens there any more.
//!
//! On each address the processes share a *port group* of SO_REUSEPORT sockets. A classic BPF program
//! chooses one by the block in a packet's BTH: socket `i` of the group is block `i`'s ([`group`]).
//! Block 0 has no owner: it holds QPN 1, the CM's. The first process that looks receives its packets
//! and forwards them to the process that they are for ([`forward`]).
//!
//! Invariants:
//! - A socket's place in its group changes when one before it is closed. So the holder of block `b`
//!   holds the sockets 0 to `b` and keeps them open; a newcomer gets them from any such holder,
//!   through its control socket. So long as a holder of `b` lives, nothing below moves.
//! - A process that leases a block or adds a socket to a group holds the address's lock, and all
//!   sockets that are in the group.
//! - A process that listens under a block's path holds the block's sockets, or the address's lock.
//! - All have the same user: the kernel demands it of a group, and the directory lets nobody else in.

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
mod patience;
mod port_groups;
pub(crate) mod port_owner;
pub(crate) mod questions;
pub(crate) mod report;
mod services;
pub(crate) mod sharing;
mod source;
mod stream;
mod sweep;
#[cfg(test)]
mod tests;
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

/// The data of the events of a device's sockets and of what it forwards. Others may watch more by the
/// same epoll descriptor.
pub(crate) const READY: u64 = 0;

/// The sockets of a group up to one's own, by block.
type Group = Arc<[SharedFd]>;

/// The blocks there are; 0 is nobody's.
const BLOCKS: std::ops::RangeInclusive<u8> = 1..=u8::MAX;

/// A block on an address: its socket in the group, and the device's inbox as the block's there.
#[derive(Debug)]
pub(crate) struct Endpoint {
    addr: ScopedAddr,
    block: u8,
    group: Group,
    inbox: Option<Arc<UnixSocket>>,
}

impl Endpoint {
    /// The address.
    pub(crate) fn address(&self) -> IpAddr {
        self.addr.address
    }

    /// The socket that this process's packets of this block come to.
    pub(crate) fn own(&self) -> SharedFd {
        self.group[usize::from(self.block)].clone()
    }

    /// The socket that packets to QP1 come to.
    pub(crate) fn first(&self) -> SharedFd {
        self.group[0].clone()
    }
}
