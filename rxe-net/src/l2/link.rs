//! What a link of layer 2 is to an endpoint: frames in, frames out.

use crate::{NetError, SharedFd};

/// Carries Ethernet frames. Nothing here blocks.
pub(super) trait Link: Send {
    /// Hands the next frame to `f`. Whether there was one.
    ///
    /// # Errors
    /// The link cannot be used any more.
    fn next(&mut self, f: &mut dyn FnMut(&[u8])) -> Result<bool, NetError>;

    /// Takes a frame, in parts, to be sent by the next [`Link::flush`]. `false` where it is lost, since
    /// nobody is at the other end.
    fn push(&mut self, parts: &[&[u8]]) -> bool;

    /// Whether it takes more frames. While it does not, its descriptor becomes readable when it does
    /// again.
    fn has_room(&self) -> bool;

    /// Sends what was pushed, as far as there is room.
    ///
    /// # Errors
    /// The link cannot be used any more.
    fn flush(&mut self) -> Result<(), NetError>;

    /// The descriptor that is readable when there is a frame.
    fn shared(&self) -> &SharedFd;
}
