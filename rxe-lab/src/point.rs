//! Capture points: a packet captured at several points counts once.
//!
//! `tcpdump -i any` captures a packet at each interface that it passes, and `rxe capture --of all`
//! has one copy per program. A capture of an uplink and of the bridge behind it has a packet inside
//! its tunnel and outside of it. The capture point distinguishes a copy from a retransmission: the point that
//! saw the first packet of a direction is the only one whose packets of that direction are used.

use crate::frame::Frame;

/// Where a frame was captured: the interface, the place in a cooked capture header, and the tunnels
/// around the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Point {
    /// The interface number in the file.
    pub(crate) interface: u32,
    place: u32,
}

impl Point {
    /// Returns the capture point of a frame.
    pub(crate) fn of(interface: u32, frame: &Frame<'_>) -> Self {
        Self { interface, place: frame.place }
    }
}

/// The capture point used for one direction; `None` before the first packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakenFrom(Option<Point>);

impl TakenFrom {
    /// Returns whether a packet of this direction is a copy from another point.
    /// The first call selects the point that is used.
    pub(crate) fn is_copy(&mut self, point: Point) -> bool {
        *self.0.get_or_insert(point) != point
    }
}
