//! Where the addresses of a recording are in the peer's region.

use std::collections::BTreeMap;

use super::Region;
use super::recording::Packet;

/// Places keep their distance from a multiple of this.
const ALIGNMENT: u64 = 64;

/// The peer's region is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The request with which it is full.
    pub frame: u64,
    /// Bytes that all requests up to it need.
    pub needed: u64,
    /// Bytes that the region has.
    pub has: u64,
}

/// Recorded memory: a key, and addresses under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    /// Its place in the peer's region.
    offset: u64,
}

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From the start of the peer's region; may be outside of it, also before it.
    pub(super) offset: u64,
    /// Whether the key is the peer's.
    pub(super) is_key_right: bool,
    /// Whether it is inside.
    pub(super) is_inside: bool,
}

/// All recorded memory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    areas: BTreeMap<u32, Vec<Area>>,
    /// The responder's region, if it is known.
    region: Option<Region>,
    /// Bytes of the peer's region that are used, and that it has.
    pub(super) used: u64,
    has: u64,
}

/// Memory that a request names: its frame, key, first address and length.
pub(super) type Named = (u64, u32, u64, u64);

impl Layout {
    /// Finds places for all memory that requests name which were not refused. `region` is the responder's, if
    /// it is known; the peer's has `has` bytes.
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

    /// The place of so many bytes.
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
            // As far behind the end as it was.
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

    /// Where a place was in the responder's region, if that is known.
    pub(super) fn in_region(&self, at: u64) -> Option<u64> {
        let region = self.region?;
        let mut areas = self.areas.get(&region.rkey)?.iter();
        let area = areas.find(|it| (it.offset..it.offset + (it.end - it.start)).contains(&at))?;
        Some(area.start - region.start + (at - area.offset))
    }
}

/// The memory that a packet names.
pub(super) fn named(packet: &Packet) -> Option<Named> {
    let (va, rkey) = packet.remote()?;
    Some((packet.number, rkey, va, packet.dma_len()))
}

/// Where the memory that a packet names is in the peer's region.
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

/// Adds addresses to areas, which do not touch each other and are in order. Returns how many bytes more are
/// used.
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

/// Bytes that an area takes.
fn padded(start: u64, end: u64) -> u64 {
    let len = (end - start).saturating_add(start % ALIGNMENT);
    len.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}
