//! A frame of an interface's capture.

use std::time::Duration;

use crate::wrappers::pcap::Direction;

/// A captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFrame<'a> {
    /// The time since 1970.
    pub at: Duration,
    /// The direction of the frame.
    pub direction: Direction,
    /// The frame, beginning with its Ethernet header. A frame that the host has not segmented yet,
    /// or has merged, holds several packets.
    pub bytes: &'a [u8],
}
