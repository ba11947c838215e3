//! Several processes on one address: who has which queue pair numbers, and how they share UDP port
//! 4791. There is no daemon, and it does not matter who came first or who dies when.
//!
//! A QPN's high 8 bits are its *block*. A device leases one block, 1 to 255, on all of its
//! addresses, and further ones when that is full; its QPNs are random within them. Holding a lease is
//! having an abstract unix socket, the *door*, bound to a name made of the address and the block
//! ([`name`]). A process that dies loses it in that moment.
//!
//! On each address the processes share a group of SO_REUSEPORT sockets, of which a classic BPF
//! program chooses by the block in a packet's BTH: socket `i` of the group is block `i`'s
//! ([`group`]). Block 0 has no owner: it holds QPN 1, the CM's, and whoever looks first takes what
//! comes there to whom it is for ([`post`]).
//!
//! Invariants:
//! - A socket's place in its group changes when one before it is closed. So the holder of block `b`
//!   holds the sockets 0 to `b` and keeps them open; a newcomer gets them from any such holder,
//!   through its door ([`door`]). So long as a holder of `b` lives, nothing below moves.
//! - Who adds a socket to a group holds all that are in it, and the address's lock.
//! - Who finds a door knows that its owner holds its sockets, or holds the address's lock.
//! - All have the same user: the kernel demands it of a group.

mod blocks;
mod door;
mod group;
pub(crate) mod letter;
mod mad;
pub(crate) mod name;
mod outbox;
mod patience;
mod post;
mod share;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

pub(crate) use self::blocks::Blocks;
use self::name::Place;
pub(crate) use self::post::Post;
pub(crate) use self::share::Member;
pub use self::share::Share;
use crate::sys::fork::Held;
use crate::sys::unix::UnixSocket;

/// The sockets of a group up to one's own, by block.
type Group = Arc<[Arc<Held>]>;

/// The blocks there are; 0 is nobody's.
const BLOCKS: std::ops::RangeInclusive<u8> = 1..=u8::MAX;

/// A place in the group of an address.
#[derive(Debug)]
pub(crate) struct Station {
    place: Place,
    block: u8,
    group: Group,
    letterbox: UnixSocket,
}

impl Station {
    /// The address.
    pub(crate) fn address(&self) -> IpAddr {
        self.place.address
    }

    /// The socket that this process's packets of this block come to.
    pub(crate) fn own(&self) -> Arc<Held> {
        Arc::clone(&self.group[usize::from(self.block)])
    }

    /// The socket that packets to QP1 come to.
    pub(crate) fn first(&self) -> Arc<Held> {
        Arc::clone(&self.group[0])
    }
}
