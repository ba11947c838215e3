//! A way out that takes each packet at once, into memory that the receiver reads, without a batch
//! between: shared memory between processes of one host.

use super::NetHeader;
use crate::mem::{AccessError, Source};

/// Sends single packets at once. A packet sent so has neither pad nor ICRC: memory is no wire, and whoever
/// could damage it could as well write a right ICRC.
pub trait Direct {
    /// Sends a packet with these headers, from the BTH on, if this is the way to its destination, and
    /// there is room.
    ///
    /// # Errors
    /// The payload's memory is not mapped; nothing was sent.
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
    ) -> Result<Placed, AccessError>;
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is sent.
    Sent,
    /// Its destination is reached in another way.
    Elsewhere,
    /// There is no room for it now.
    NoRoom,
}
