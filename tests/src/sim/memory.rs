//! The memory of one side of a simulation: one allocation, divided into areas.
//! Each area is a memory region. Guard bytes before, between and after the areas must never change.

use rxe_core::mem::{Access, Buffer, Memory, PdId};
use rxe_core::queue::Sge;
use rxe_core::types::Key;

use super::rng::Rng;

/// The protection domain of the queue pairs.
pub const PD: PdId = PdId(1);
/// A protection domain without queue pairs.
pub const OTHER_PD: PdId = PdId(2);

/// Local write, and the remote rights of WRITE, READ and atomics.
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// A memory region of a side, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// A region with all rights.
    Open = 0,
    /// A region that peers may only read.
    ReadOnly = 1,
    /// A region with all rights that may be deregistered at any time.
    Victim = 2,
    /// A region with all rights in a protection domain that no queue pair belongs to.
    Foreign = 3,
    /// A region that peers may access only through memory windows.
    Windowed = 4,
}

impl Area {
    /// All areas, in their order in memory.
    pub const ALL: [Self; 5] =
        [Self::Open, Self::ReadOnly, Self::Victim, Self::Foreign, Self::Windowed];

    fn access(self) -> Access {
        match self {
            Self::ReadOnly => Access::LOCAL_WRITE | Access::REMOTE_READ,
            Self::Windowed => Access::LOCAL_WRITE | Access::MW_BIND,
            _ => ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
        }
    }

    fn pd(self) -> PdId {
        if self == Self::Foreign { OTHER_PD } else { PD }
    }
}

/// A range of bytes in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The area.
    pub area: Area,
    /// The offset in the area in bytes.
    pub at: u64,
    /// The length in bytes.
    pub len: u32,
}

/// The addresses, keys and sizes of the areas of one side, and the allocated places.
#[derive(Clone, Debug)]
pub struct Layout {
    areas: [AreaLayout; 5],
    /// The seed from which the initial contents are drawn.
    pattern: u64,
    /// The words for atomics, which are initially zero.
    words: Vec<Place>,
}

#[derive(Clone, Copy, Debug)]
struct AreaLayout {
    start: u64,
    key: Key,
    len: u64,
}

/// The number of guard bytes before, between and after the areas.
const GUARD: usize = 256;

impl Layout {
    /// Creates a layout without places.
    pub fn new(rng: &mut Rng) -> Self {
        let area = |rng: &mut Rng, i: u64| AreaLayout {
            // The addresses are unrelated to real ones. They are multiples of 8, as atomics require.
            start: (i + 1) << 40 | rng.below(1 << 37) << 3,
            // The keys differ in their upper 24 bits, which select the region.
            key: Key::new(rng.word() & !0x700 | u32::try_from(i << 8).unwrap_or(0)),
            len: 0,
        };
        let areas = [0, 1, 2, 3, 4].map(|i| area(rng, i));
        Self { areas, pattern: rng.bits(), words: Vec::new() }
    }

    /// Reserves `len` bytes at a multiple of `align`, with a gap of at least one byte before them.
    pub fn allocate(&mut self, rng: &mut Rng, area: Area, len: u32, align: u64) -> Place {
        let layout = &mut self.areas[area as usize];
        let at = (layout.len + rng.within(1..=9)).next_multiple_of(align);
        layout.len = at + u64::from(len);
        Place { area, at, len }
    }

    /// Reserves an 8-byte word for atomics.
    pub fn allocate_word(&mut self, rng: &mut Rng) -> Place {
        let word = self.allocate(rng, Area::Open, 8, 8);
        self.words.push(word);
        word
    }

    /// Returns the key of an area.
    pub fn key(&self, area: Area) -> Key {
        self.areas[area as usize].key
    }

    /// Returns the address of a place's first byte.
    pub fn address(&self, place: Place) -> u64 {
        self.areas[place.area as usize].start + place.at
    }

    /// Returns the address of an area's first byte.
    pub fn start(&self, area: Area) -> u64 {
        self.areas[area as usize].start
    }

    /// Returns the address one past an area's last byte.
    pub fn end(&self, area: Area) -> u64 {
        self.start(area) + self.areas[area as usize].len
    }

    /// Returns the place as a scatter/gather element.
    pub fn sge(&self, place: Place) -> Sge {
        Sge { addr: self.address(place), length: place.len, lkey: self.key(place.area) }
    }

    /// Returns the offset of the area in the allocation.
    fn base(&self, area: Area) -> usize {
        let before = Area::ALL.iter().take_while(|&&a| a != area);
        before.fold(GUARD, |base, &a| base + self.size(a).next_multiple_of(8) + GUARD)
    }

    fn size(&self, area: Area) -> usize {
        usize::try_from(self.areas[area as usize].len).expect("a simulation is small")
    }

    /// Returns the range of the place in the allocation.
    pub fn range(&self, place: Place) -> std::ops::Range<usize> {
        let start = self.base(place.area) + usize::try_from(place.at).expect("inside");
        start..start + place.len as usize
    }

    /// Returns the range of the whole area in the allocation.
    pub fn area_range(&self, area: Area) -> std::ops::Range<usize> {
        let base = self.base(area);
        base..base + self.size(area)
    }

    /// Returns the size of the allocation in bytes.
    pub fn total(&self) -> usize {
        self.base(Area::Windowed) + self.size(Area::Windowed).next_multiple_of(8) + GUARD
    }

    /// Returns the initial contents of the allocation.
    pub fn initial(&self) -> Vec<u8> {
        let mut rng = Rng::new(self.pattern);
        let mut bytes = vec![0; self.total()];
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&rng.bits().to_le_bytes()[..chunk.len()]);
        }
        for &word in &self.words {
            bytes[self.range(word)].fill(0);
        }
        bytes
    }
}

/// The allocated memory of a side.
#[derive(Debug)]
pub struct Arena {
    whole: Buffer,
}

impl Arena {
    /// Allocates memory for the layout, fills it with `initial` and registers its areas with
    /// `memory`.
    pub fn new(layout: &Layout, initial: &[u8], memory: &Memory) -> Self {
        let whole = Buffer::zeroed(layout.total());
        whole.span(0, initial.len() as u64).expect("as large").write(initial).expect("mapped");
        let arena = Self { whole };
        for area in Area::ALL {
            let range = layout.area_range(area);
            let at = std::ptr::NonNull::new(arena.whole.as_ptr().wrapping_add(range.start));
            // SAFETY: the range lies inside `whole`, which the world that owns both keeps until
            // after the engine is gone; nothing holds references to its bytes.
            let buffer = unsafe { Buffer::from_raw(at.expect("not null"), range.len()) };
            let (start, key) = (layout.start(area), layout.key(area));
            let registered =
                memory.register(area.pd(), buffer, start, area.access(), || key.value());
            assert_eq!(registered, Ok(key));
        }
        arena
    }

    /// Returns the bytes of a part of the allocation.
    pub fn bytes(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        self.read(range.start, &mut out);
        out
    }

    /// Returns a function that reads the allocation.
    pub fn reader(&self) -> impl Fn(usize, &mut [u8]) + '_ {
        |at, out| self.read(at, out)
    }

    /// Fills `out` with the bytes of the allocation from offset `at` on.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        self.whole.span(at as u64, out.len() as u64).expect("inside").read(out).expect("mapped");
    }
}
