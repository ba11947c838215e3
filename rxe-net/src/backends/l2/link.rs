//! What a link of layer 2 is to an endpoint: frames in, frames out.

use rxe_core::wire::{Frame, TxLimits};

use crate::backends::loss::{Loss, count_lost};
use crate::backends::packet::headers::Headers;
use crate::counters::Counters;
use crate::error::NetError;
use rxe_sys::SharedFd;

/// A frame from the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    /// The frame.
    pub(super) bytes: &'a [u8],
    /// Bytes of payload per packet, if the system has merged several; 0 for one.
    pub(super) gso_size: usize,
    /// How many frames were lost before it.
    pub(super) lost: u32,
}

impl<'a> Arrival<'a> {
    /// A frame as it was on the wire.
    pub(super) fn single(bytes: &'a [u8]) -> Self {
        Self { bytes, gso_size: 0, lost: 0 }
    }
}

/// Carries Ethernet frames. Nothing here blocks.
pub(super) trait Link: Send {
    /// How many packets it takes at once.
    fn limits(&self) -> TxLimits {
        TxLimits::default()
    }

    /// Hands the next frame to `f`. Whether there was one.
    ///
    /// # Errors
    /// The link cannot be used any more.
    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError>;

    /// Takes a frame, in parts, to be sent by the next [`Link::flush`].
    ///
    /// # Errors
    /// Why it is lost.
    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Loss>;

    /// Takes packets to the Ethernet address `dst` in the same way, and counts them.
    fn push_packets(
        &mut self,
        packets: &Frame<'_>,
        src: [u8; 6],
        dst: [u8; 6],
        counters: &mut Counters,
    ) {
        for (net, bytes) in packets.packets() {
            let headers = Headers::plain(&net, bytes, src, dst);
            let [ethernet, ip] = headers.parts();
            match self.push(&[ethernet, ip, bytes]) {
                Ok(()) => counters.count_sent(bytes.len(), bytes.len(), 0..1),
                Err(loss) => count_lost(counters, loss, 1),
            }
        }
    }

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

    /// The number of the interface that must be asked for the frames to multicast groups.
    fn interface(&self) -> Option<u32> {
        None
    }
}
