//! The interface between an endpoint and its layer 2 link, which exchanges frames.

use rxe_core::wire::{Frame, TxLimits};

use crate::backends::loss::{Loss, count_lost};
use crate::backends::packet::headers::Headers;
use crate::counters::Counters;
use crate::error::NetError;
use rxe_sys::SharedFd;

/// A frame from the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    /// The bytes of the frame.
    pub(super) bytes: &'a [u8],
    /// The payload bytes per packet, if the kernel has merged several; 0 for a single packet.
    pub(super) gso_size: usize,
    /// The number of frames lost before this one.
    pub(super) lost: u32,
}

impl<'a> Arrival<'a> {
    /// Returns a frame as it was on the wire.
    pub(super) fn single(bytes: &'a [u8]) -> Self {
        Self { bytes, gso_size: 0, lost: 0 }
    }
}

/// A carrier of Ethernet frames. No method blocks.
pub(super) trait Link: Send {
    /// Returns the limits of bursts that the link accepts.
    fn limits(&self) -> TxLimits {
        TxLimits::default()
    }

    /// Hands the next frame to `f`. Returns whether there was one.
    ///
    /// # Errors
    /// The link cannot be used any more.
    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError>;

    /// Accepts a frame, in parts, to be sent by the next [`Link::flush`].
    ///
    /// # Errors
    /// The reason why the frame is lost.
    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Loss>;

    /// Accepts packets to the Ethernet address `dst` like [`Link::push`], and counts them.
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

    /// Returns whether the link accepts more frames. If not, its descriptor becomes readable when
    /// it does again.
    fn has_room(&self) -> bool;

    /// Sends the accepted frames, as far as there is room.
    ///
    /// # Errors
    /// The link cannot be used any more.
    fn flush(&mut self) -> Result<(), NetError>;

    /// Returns the descriptor that is readable when there is a frame.
    fn shared(&self) -> &SharedFd;

    /// Returns the index of the interface that must receive multicast groups, if the link is on
    /// one.
    fn interface(&self) -> Option<u32> {
        None
    }
}
