//! Capture points: one packet may be captured at several, and counts once.
//!
//! `tcpdump -i any` sees a packet at each interface that it passes, and `rxe capture --of all` has one copy of
//! each program. A copy is told from a packet that was sent again by where it was captured: the packets of one
//! direction are taken from the point at which the first of them was seen.

use crate::frame::Frame;

/// Where a frame was captured: the interface of the file, and the place that a cooked capture tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Point {
    /// The interface, as the file counts them.
    pub(crate) interface: u32,
    place: u32,
}

impl Point {
    /// That of a frame.
    pub(crate) fn of(interface: u32, frame: &Frame<'_>) -> Self {
        Self { interface, place: frame.place }
    }
}

/// The point that the packets of one direction are taken from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakenFrom(Option<Point>);

impl TakenFrom {
    /// Whether a packet of this direction is only a copy of what another point has.
    pub(crate) fn is_copy(&mut self, point: Point) -> bool {
        *self.0.get_or_insert(point) != point
    }
}
