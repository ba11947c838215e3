//! One direction of traffic between two processes. The sender creates a ring and offers it over a
//! connection; the end of the connection tells either process that the other is gone.
//!
//! An event descriptor that comes with the ring wakes the receiver. The sender signals it only
//! while the receiver says that it sleeps ([`Incoming::prepare_sleep`]), so two polling ends make
//! no system call for a message.

mod incoming;
mod outgoing;
mod tag;

use rxe_sys::unix::UnixSocket;

pub(super) use incoming::{Incoming, Offered};
pub(super) use outgoing::{DirectSend, MAX_COALESCED, Outgoing, Pushed, SendError};

/// The message that accompanies the descriptors of a ring and its wake-up. The last byte is the
/// version of the ring's format, which must be the same at both ends.
pub(super) const OFFER: [u8; 4] = *b"rxm\x06";

/// The tag of a record that holds a frame in the format of [`message`].
pub(super) const FRAME: u32 = 1;

/// Returns whether a connection has ended that carries no more messages.
pub(super) fn is_gone(line: &UnixSocket) -> bool {
    // Any further message violates the protocol, so it counts as the end too.
    !matches!(line.receive(&mut [0; 1]), Ok(None))
}
