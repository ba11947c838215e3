//! Recognises packets that were also captured at another point.

use std::collections::{HashMap, VecDeque};

use crate::frame::{Address, Transport};
use crate::point::{Point, TakenFrom};

/// The most directions that are followed; all packets of further directions are drawn.
const MAX_DIRECTIONS: usize = 1 << 16;

/// The number of management datagrams that are remembered.
const MAX_MANAGEMENT: usize = 64;

/// A direction: both addresses, the destination QP and, for datagrams, the source QP.
type Key = (Address, Address, u32, Option<u32>);

/// The capture points of all directions.
#[derive(Debug, Default)]
pub(super) struct Copies {
    points: HashMap<Key, TakenFrom>,
    /// The latest management datagrams: direction, PSN, bytes and capture point.
    /// Bytes are compared because all programs of a host send management datagrams from QP 1.
    management: VecDeque<(Key, u32, Vec<u8>, Point)>,
}

impl Copies {
    /// Returns whether a packet is a copy of one from another capture point.
    pub(super) fn is_copy(
        &mut self,
        point: Point,
        (src, dst): (Address, Address),
        packet: &Transport<'_>,
    ) -> bool {
        let dest_qp = packet.bth.dest_qp.value();
        let key = (src, dst, dest_qp, packet.source_qp().map(|qp| qp.value()));
        if dest_qp <= 1 {
            return self.is_known(point, key, packet);
        }
        if self.points.len() >= MAX_DIRECTIONS && !self.points.contains_key(&key) {
            return false;
        }
        self.points.entry(key).or_default().is_copy(point)
    }

    /// Returns whether another point captured a management datagram with the same bytes.
    fn is_known(&mut self, point: Point, key: Key, packet: &Transport<'_>) -> bool {
        let (psn, bytes) = (packet.bth.psn.value(), packet.payload());
        let same = |it: &&(Key, u32, Vec<u8>, Point)| (it.0, it.1, &it.2[..]) == (key, psn, bytes);
        if self.management.iter().rfind(same).is_some_and(|(.., first)| *first != point) {
            return true;
        }
        if self.management.len() == MAX_MANAGEMENT {
            self.management.pop_front();
        }
        self.management.push_back((key, psn, bytes.to_vec(), point));
        false
    }
}
