//! Maps the addresses of a recording to places in the peer's region.

use std::collections::BTreeMap;

use super::Region;
use super::recording::Packet;

/// The alignment in bytes that a place keeps from the recorded address.
const ALIGNMENT: u64 = 64;

/// An error: the peer's region is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The frame of the first request that does not fit.
    pub frame: u64,
    /// The bytes that all requests up to this one need.
    pub needed: u64,
    /// The size of the peer's region in bytes.
    pub has: u64,
}

/// A range of recorded addresses under one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    /// The offset of the range in the peer's region.
    offset: u64,
}

/// The place that a request accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The offset from the start of the peer's region.
    /// The offset may be beyond the region's end or, wrapped, before its start.
    pub(super) offset: u64,
    /// Whether to send the key of the peer's region rather than a wrong one.
    pub(super) is_key_right: bool,
    /// Whether the place is inside the peer's region.
    pub(super) is_inside: bool,
}

/// All recorded memory, and its places in the peer's region.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    areas: BTreeMap<u32, Vec<Area>>,
    /// The recorded responder's region, if it is known.
    region: Option<Region>,
    /// The used part of the peer's region, in bytes.
    pub(super) used: u64,
    /// The size of the peer's region, in bytes.
    has: u64,
}

/// Memory that a request accesses: frame, key, first address, length in bytes.
pub(super) type Named = (u64, u32, u64, u64);

impl Layout {
    /// Assigns places to all memory in `named`, which leaves out requests that were refused.
    /// `region` is the recorded responder's region, if known; `has` is the size in bytes of the peer's.
    pub(super) fn new(
        named: impl Iterator<Item = Named>,
        region: Option<Region>,
        has: u64,
    ) -> Result<Self, TooLarge> {
        let mut this = Self { areas: BTreeMap::new(), region, used: 0, has };
        for (frame, rkey, va, len) in named {
            let Some(end) = va.checked_add(len).filter(|end| *end > va) else { continue };
            if region.is_some_and(|it| !it.has(rkey, va, end)) {
                continue;
            }
            let areas = this.areas.entry(rkey).or_default();
            let needed = this.used + add(areas, va, end);
            if needed > has {
                return Err(TooLarge { frame, needed, has });
            }
            this.used = needed;
        }
        let mut next = 0;
        for area in this.areas.values_mut().flatten() {
            area.offset = next + area.start % ALIGNMENT;
            next += padded(area.start, area.end);
        }
        Ok(this)
    }

    /// Returns the place of `len` bytes at a recorded address.
    pub(super) fn place(&self, rkey: u32, va: u64, len: u64) -> Place {
        let end = va.saturating_add(len);
        let areas = self.areas.get(&rkey);
        let area = areas.and_then(|all| all.iter().find(|it| it.start <= va && end <= it.end));
        if let Some(area) = area {
            let offset = area.offset + (va - area.start);
            return Place { offset, is_key_right: true, is_inside: true };
        }
        let region = self.region.filter(|region| region.rkey == rkey);
        let offset = match region {
            Some(region) if va < region.start => va.wrapping_sub(region.start),
            // As far beyond the end of the region as in the recording.
            Some(region) if end > region.end() => {
                self.has.wrapping_add(va.wrapping_sub(region.end()))
            }
            Some(_) => va % ALIGNMENT,
            None if areas.is_some() => self.has + va % ALIGNMENT,
            None => va % ALIGNMENT,
        };
        let is_key_right = areas.is_some() || region.is_some();
        Place { offset, is_key_right, is_inside: false }
    }

    /// Returns the offset of a place in the recorded responder's region, if that is known.
    pub(super) fn in_region(&self, at: u64) -> Option<u64> {
        let region = self.region?;
        let mut areas = self.areas.get(&region.rkey)?.iter();
        let area = areas.find(|it| (it.offset..it.offset + (it.end - it.start)).contains(&at))?;
        Some(area.start - region.start + (at - area.offset))
    }
}

/// Returns the memory that a packet accesses.
pub(super) fn named(packet: &Packet) -> Option<Named> {
    let (va, rkey) = packet.remote()?;
    Some((packet.number, rkey, va, packet.dma_len()))
}

/// Returns the place in the peer's region of the memory that a packet accesses.
pub(super) fn place(layout: &Layout, packet: &Packet) -> Option<Place> {
    let (_, rkey, va, len) = named(packet)?;
    Some(layout.place(rkey, va, len))
}

impl Region {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    fn has(&self, rkey: u32, start: u64, end: u64) -> bool {
        rkey == self.rkey && self.start <= start && end <= self.end()
    }
}

/// Adds a range to disjoint, sorted areas and merges the areas that it touches.
/// Returns the additional bytes that the areas take.
fn add(areas: &mut Vec<Area>, start: u64, end: u64) -> u64 {
    let from = areas.partition_point(|area| area.end < start);
    let to = areas.partition_point(|area| area.start <= end);
    let joined = &areas[from..to.max(from)];
    let before: u64 = joined.iter().map(|area| padded(area.start, area.end)).sum();
    let start = joined.first().map_or(start, |area| area.start.min(start));
    let end = joined.last().map_or(end, |area| area.end.max(end));
    areas.splice(from..to.max(from), [Area { start, end, offset: 0 }]);
    padded(start, end).saturating_sub(before)
}

/// Returns the bytes that an area takes in the peer's region.
fn padded(start: u64, end: u64) -> u64 {
    let len = (end - start).saturating_add(start % ALIGNMENT);
    len.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}
