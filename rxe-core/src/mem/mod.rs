//! Registered memory: protection domains, memory regions, keys, and the checks that stand between
//! a key from the wire and a byte of the program. IBTA 10.6, 11.2.8.
//!
//! Invariants:
//! - a [`Span`] exists only while the table's read guard is held, and deregistration takes the
//!   write guard: once [`Memory::deregister`] returns, no copy into or out of the region is running
//!   and none will start;
//! - every span lies inside one region, in the right protection domain, with the rights asked for.

mod access;
mod rights;
mod sge;
mod window;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub use access::{Buffer, Span};
pub use rights::Access;
pub use sge::Spans;
pub(crate) use sge::{read_spans, write_spans};
pub use window::{Binding, WindowError, WindowType};

use window::Window;

use crate::error::VerbsError;
use crate::sync::{RwLock, RwLockReadGuard};
use crate::types::{Key, Qpn};

/// Names a protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Why memory may not be used as asked. The same reasons serve local keys (a completion with
/// `LocalProtection`) and remote ones (a NAK "remote access error").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessError {
    /// No region has this key: never registered, or deregistered since.
    UnknownKey,
    /// The region belongs to another protection domain than the QP.
    OtherPd,
    /// Some of the bytes lie outside the region.
    OutOfBounds,
    /// The region was not registered for this kind of access.
    NotPermitted,
    /// An atomic's address is not a multiple of 8.
    Misaligned,
}

impl AccessError {
    /// The reason as part of a sentence.
    pub const fn explain(self) -> &'static str {
        match self {
            Self::UnknownKey => "no memory region has this key (wrong key, or deregistered)",
            Self::OtherPd => "the memory region belongs to another protection domain than the QP",
            Self::OutOfBounds => "the address range reaches outside the memory region",
            Self::NotPermitted => "the memory region was not registered with this access right",
            Self::Misaligned => "the address of an atomic must be a multiple of 8",
        }
    }
}

/// What a key names.
#[derive(Debug)]
enum Entry {
    Region(Region),
    Window(Window),
}

/// A memory region as the engine sees it.
#[derive(Debug)]
struct Region {
    key: Key,
    pd: PdId,
    access: Access,
    /// The address by which work requests and peers name the first byte.
    start: u64,
    buffer: Buffer,
}

/// Regions and windows by the upper 24 bits of their keys. The lower 8 bits of a window's key change
/// with each binding.
type Table = HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>;

const fn index(key: Key) -> u32 {
    key.value() >> 8
}

/// The memory of one device: all regions and windows by key. Shared by every engine of the device.
#[derive(Debug, Default)]
pub struct Memory {
    table: RwLock<Table>,
}

impl Memory {
    /// No regions yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `buffer`, to be named by addresses from `start` on. The one key returned serves
    /// as lkey and as rkey, as in kernel rxe.
    ///
    /// Keys come from `random`, which must not be guessable: whoever knows a key of a region with
    /// remote rights, and is the peer of a QP in its domain, may use the region.
    ///
    /// # Errors
    /// [`AccessError::NotPermitted`] where remote write or atomic is asked for without local
    /// write (IBTA C10-79 demands it), and [`AccessError::OutOfBounds`] where the addresses would
    /// pass the end of the 64-bit space.
    pub fn register(
        &self,
        pd: PdId,
        buffer: Buffer,
        start: u64,
        access: Access,
        random: impl FnMut() -> u32,
    ) -> Result<Key, AccessError> {
        let mut region = Region { key: Key::default(), pd, access, start, buffer };
        region.check()?;
        let mut table = self.table.write();
        let key = free_key(&table, random);
        region.key = key;
        table.insert(index(key), Entry::Region(region));
        Ok(key)
    }

    /// Changes what a region is, all at once and under the same key: no copy sees some of it. Waits
    /// for copies under way. IBTA 11.2.8.5.
    ///
    /// # Errors
    /// There is no such region, windows are bound to it, or it could not have been registered like
    /// this; it is as it was.
    pub fn reregister(&self, key: Key, change: RegionChange) -> Result<(), VerbsError> {
        let mut table = self.table.write();
        let windows = windows_of(&table, key);
        let Some(Entry::Region(region)) = table.get_mut(&index(key)) else {
            return Err(VerbsError::Registration(AccessError::UnknownKey));
        };
        if region.key != key {
            return Err(VerbsError::Registration(AccessError::UnknownKey));
        }
        if windows > 0 {
            let what =
                format!("{windows} windows are bound to the memory region: unbind them first");
            return Err(VerbsError::Busy { what });
        }
        let (buffer, start) =
            change.memory.unwrap_or_else(|| (region.buffer.clone(), region.start));
        let new = Region {
            key,
            pd: change.pd.unwrap_or(region.pd),
            access: change.access.unwrap_or(region.access),
            start,
            buffer,
        };
        new.check().map_err(VerbsError::Registration)?;
        *region = new;
        Ok(())
    }

    /// Forgets the region. Waits for copies under way; afterwards the memory is the caller's alone.
    /// Windows bound to it open nothing any more. Returns whether there was such a region.
    pub fn deregister(&self, key: Key) -> bool {
        let mut table = self.table.write();
        let known = matches!(table.get(&index(key)), Some(Entry::Region(r)) if r.key == key);
        known && table.remove(&index(key)).is_some()
    }

    /// Makes a memory window, which opens nothing until it is bound. IBTA 11.2.8.11.
    pub fn create_window(&self, pd: PdId, kind: WindowType, random: impl FnMut() -> u32) -> Key {
        let mut table = self.table.write();
        let key = free_key(&table, random);
        table.insert(index(key), Entry::Window(Window::new(pd, kind, key)));
        key
    }

    /// Removes a window, by any key that it has had. Returns whether there was such a window.
    pub fn destroy_window(&self, key: Key) -> bool {
        let mut table = self.table.write();
        let known = matches!(table.get(&index(key)), Some(Entry::Window(_)));
        known && table.remove(&index(key)).is_some()
    }

    /// A window's key of now, by any key that it has had.
    pub fn window_key(&self, key: Key) -> Option<Key> {
        match self.table.read().get(&index(key)) {
            Some(Entry::Window(window)) => Some(window.key()),
            _ => None,
        }
    }

    /// How many windows are bound to a region: verbs refuse to deregister it then.
    pub fn windows_of(&self, region: Key) -> usize {
        windows_of(&self.table.read(), region)
    }

    /// How many regions and windows belong to `pd`: a protection domain in use can not be freed.
    pub fn regions_of(&self, pd: PdId) -> usize {
        let belongs = |entry: &&Entry| match entry {
            Entry::Region(region) => region.pd == pd,
            Entry::Window(window) => window.pd == pd,
        };
        self.table.read().values().filter(belongs).count()
    }

    /// Access for a batch of packets. Deregistration waits until the guard is dropped.
    pub fn guard(&self) -> MemoryGuard<'_> {
        MemoryGuard { table: self.table.read() }
    }
}

/// What [`Memory::reregister`] changes. What is `None` stays. `ibv_rereg_mr`.
#[derive(Debug, Clone, Default)]
pub struct RegionChange {
    /// The protection domain.
    pub pd: Option<PdId>,
    /// The rights.
    pub access: Option<Access>,
    /// The memory, and the address that names its first byte.
    pub memory: Option<(Buffer, u64)>,
}

fn windows_of(table: &Table, region: Key) -> usize {
    let bound =
        |entry: &&Entry| matches!(entry, Entry::Window(window) if window.region() == Some(region));
    table.values().filter(bound).count()
}

/// The right to look regions up and copy.
#[derive(Debug)]
pub struct MemoryGuard<'m> {
    table: RwLockReadGuard<'m, Table>,
}

/// A key that names nothing yet. 0 is what forgetful programs pass: it is never a valid key.
fn free_key(table: &Table, mut random: impl FnMut() -> u32) -> Key {
    loop {
        let key = Key::new(random());
        if index(key) != 0 && !table.contains_key(&index(key)) {
            return key;
        }
    }
}

impl MemoryGuard<'_> {
    /// The `len` bytes at `addr`, for a QP of `pd`, if the region allows all of `need`.
    ///
    /// # Errors
    /// Why not.
    pub fn span(
        &self,
        pd: PdId,
        key: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'_>, AccessError> {
        let region = self.region(key).ok_or(AccessError::UnknownKey)?;
        if region.pd != pd {
            return Err(AccessError::OtherPd);
        }
        if !region.access.contains(need) {
            return Err(AccessError::NotPermitted);
        }
        region.span(addr, len)
    }

    /// The `len` bytes that a peer of QP `qpn` names by `rkey`: of a region or of a window.
    ///
    /// # Errors
    /// Why it may not use them so.
    pub fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'_>, AccessError> {
        match self.table.get(&index(rkey)) {
            Some(Entry::Window(window)) => {
                let (region, at) = window.resolve(pd, qpn, rkey, addr, len, need)?;
                let region = self.region(region).ok_or(AccessError::UnknownKey)?;
                region.span(at, len)
            }
            _ => self.span(pd, rkey, addr, len, need),
        }
    }

    /// The bytes of a whole region that a peer names by `rkey`, for a FLUSH of all of it.
    ///
    /// # Errors
    /// Why it may not.
    pub fn remote_region(&self, pd: PdId, rkey: Key, need: Access) -> Result<(), AccessError> {
        let region = self.region(rkey).ok_or(AccessError::UnknownKey)?;
        if region.pd != pd {
            return Err(AccessError::OtherPd);
        }
        if region.access.contains(need) { Ok(()) } else { Err(AccessError::NotPermitted) }
    }

    /// Binds a window, which any key names that it has had, for a request on QP `qpn`; its key's low
    /// 8 bits become `new_key`.
    ///
    /// # Errors
    /// Why not; it is as before then.
    pub fn bind(
        &self,
        pd: PdId,
        qpn: Qpn,
        window: Key,
        new_key: u8,
        binding: Binding,
    ) -> Result<(), WindowError> {
        let Some(Entry::Window(target)) = self.table.get(&index(window)) else {
            return Err(WindowError::UnknownKey);
        };
        if binding.length > 0 {
            let region = self.region(binding.region).ok_or(WindowError::Region)?;
            let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let lacks_write =
                binding.access.intersects(writes) && !region.access.contains(Access::LOCAL_WRITE);
            // Only the region knows how far its bytes can be brought.
            let flushes = binding.access & (Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
            let fits = region.pd == pd
                && region.access.contains(Access::MW_BIND)
                && !region.access.contains(Access::ZERO_BASED)
                && !lacks_write
                && region.access.contains(flushes)
                && region.span(binding.addr, binding.length).is_ok();
            if !fits {
                return Err(WindowError::Region);
            }
        }
        target.bind(pd, qpn, new_key, binding)
    }

    /// Takes a type 2 window's binding away, for a request on QP `qpn` or of its peer.
    ///
    /// # Errors
    /// Why not. Regions can not be invalidated: user space has none that could be made valid again.
    pub fn invalidate(&self, qpn: Qpn, key: Key) -> Result<(), WindowError> {
        match self.table.get(&index(key)) {
            Some(Entry::Window(window)) => window.invalidate(qpn, key),
            Some(Entry::Region(_)) => Err(WindowError::WrongType),
            None => Err(WindowError::UnknownKey),
        }
    }

    fn region(&self, key: Key) -> Option<&Region> {
        match self.table.get(&index(key)) {
            Some(Entry::Region(region)) if region.key == key => Some(region),
            _ => None,
        }
    }
}

impl Region {
    /// Whether there may be such a region.
    fn check(&self) -> Result<(), AccessError> {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if self.access.intersects(writes) && !self.access.contains(Access::LOCAL_WRITE) {
            return Err(AccessError::NotPermitted);
        }
        let end = self.start.checked_add(self.buffer.len() as u64);
        end.map(|_| ()).ok_or(AccessError::OutOfBounds)
    }

    fn span(&self, addr: u64, len: u64) -> Result<Span<'_>, AccessError> {
        let offset = addr.checked_sub(self.start).ok_or(AccessError::OutOfBounds)?;
        self.buffer.span(offset, len).ok_or(AccessError::OutOfBounds)
    }
}

/// Keys are random already: hashing them again would only cost time.
#[derive(Debug, Default, Clone, Copy)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = (self.0 << 8) | u64::from(b);
        }
    }

    fn write_u32(&mut self, index: u32) {
        // The table takes its bucket from the low bits and its tag from the highest 7; an index has
        // 24 bits.
        self.0 = u64::from(index) << 40 | u64::from(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(1);

    fn memory(access: Access) -> (Memory, Key) {
        let memory = Memory::new();
        let key = memory.register(PD, Buffer::zeroed(100), 0x1000, access, || 0x700).unwrap();
        (memory, key)
    }

    #[test]
    fn a_span_must_lie_inside_the_region() {
        let (memory, key) = memory(Access::empty());
        let guard = memory.guard();
        let span = |addr, len| guard.span(PD, key, addr, len, Access::empty()).map(|s| s.len());
        assert_eq!(span(0x1000, 100), Ok(100));
        assert_eq!(span(0x1064, 0), Ok(0));
        for (addr, len) in
            [(0xfff, 1), (0x1000, 101), (0x1063, 2), (u64::MAX, 2), (0x1001, u64::MAX)]
        {
            assert_eq!(span(addr, len), Err(AccessError::OutOfBounds), "{addr:#x} {len}");
        }
    }

    #[test]
    fn domain_right_and_key_are_checked() {
        let (memory, key) = memory(Access::REMOTE_READ);
        let guard = memory.guard();
        let err = |pd, key, need| guard.span(pd, key, 0x1000, 1, need).unwrap_err();
        assert_eq!(err(PdId(2), key, Access::REMOTE_READ), AccessError::OtherPd);
        assert_eq!(err(PD, key, Access::LOCAL_WRITE), AccessError::NotPermitted);
        assert_eq!(err(PD, Key::new(0x800), Access::empty()), AccessError::UnknownKey);
    }

    #[test]
    fn after_deregistration_the_key_is_unknown() {
        let (memory, key) = memory(Access::empty());
        assert_eq!(memory.regions_of(PD), 1);
        assert!(memory.deregister(key));
        assert!(!memory.deregister(key));
        let err = memory.guard().span(PD, key, 0x1000, 1, Access::empty()).unwrap_err();
        assert_eq!(err, AccessError::UnknownKey);
    }

    #[test]
    fn remote_write_without_local_write_is_refused() {
        let memory = Memory::new();
        let err = memory.register(PD, Buffer::zeroed(1), 0, Access::REMOTE_WRITE, || 0x100);
        assert_eq!(err, Err(AccessError::NotPermitted));
    }

    #[test]
    fn keys_are_never_zero_and_never_twice() {
        let memory = Memory::new();
        let mut numbers = [0, 0xff, 0x500, 0x5ff, 0x600].into_iter();
        let mut register = || {
            let access = Access::empty();
            memory.register(PD, Buffer::zeroed(1), 0, access, || numbers.next().unwrap()).unwrap()
        };
        assert_eq!(register(), Key::new(0x500));
        assert_eq!(register(), Key::new(0x600), "the upper 24 bits tell keys apart");
    }

    #[test]
    fn a_region_is_changed_wholly_or_not_at_all() {
        let (memory, key) = memory(Access::REMOTE_READ);
        let check = |pd, addr, need| memory.guard().span(pd, key, addr, 1, need).map(|_| ());
        let refused = [
            RegionChange { access: Some(Access::REMOTE_WRITE), ..Default::default() },
            RegionChange {
                pd: Some(PdId(2)),
                access: Some(Access::LOCAL_WRITE),
                memory: Some((Buffer::zeroed(2), u64::MAX)),
            },
        ];
        for change in refused {
            assert_eq!(memory.reregister(key, change).unwrap_err().errno(), 22);
            assert_eq!(check(PD, 0x1000, Access::REMOTE_READ), Ok(()));
        }
        let change = RegionChange {
            pd: Some(PdId(2)),
            access: Some(Access::LOCAL_WRITE),
            memory: Some((Buffer::zeroed(2), 0)),
        };
        memory.reregister(key, change).unwrap();
        assert_eq!(check(PdId(2), 1, Access::LOCAL_WRITE), Ok(()));
        assert_eq!(check(PD, 1, Access::LOCAL_WRITE), Err(AccessError::OtherPd));
        assert_eq!(check(PdId(2), 0x1000, Access::empty()), Err(AccessError::OutOfBounds));
        assert_eq!(check(PdId(2), 1, Access::REMOTE_READ), Err(AccessError::NotPermitted));
        memory.deregister(key);
        assert!(memory.reregister(key, RegionChange::default()).is_err());
    }

    const QPN: Qpn = Qpn::GSI;

    fn window(kind: WindowType) -> (Memory, Key, Key) {
        let memory = Memory::new();
        let access = Access::MW_BIND | Access::LOCAL_WRITE;
        let region = memory.register(PD, Buffer::zeroed(100), 0x1000, access, || 0x700).unwrap();
        let window = memory.create_window(PD, kind, || 0x900);
        (memory, region, window)
    }

    fn binding(region: Key, access: Access) -> Binding {
        Binding { region, addr: 0x1010, length: 20, access }
    }

    #[test]
    fn a_window_opens_its_range_for_its_rights_under_its_newest_key() {
        let (memory, region, window) = window(WindowType::Type1);
        let guard = memory.guard();
        let need = Access::REMOTE_READ;
        let get = |key, addr, len| guard.remote(PD, QPN, key, addr, len, need).map(|s| s.len());
        assert_eq!(get(window, 0x1010, 1), Err(AccessError::UnknownKey), "not bound");
        guard.bind(PD, QPN, window, 5, binding(region, need)).unwrap();
        assert_eq!(get(window, 0x1010, 1), Err(AccessError::UnknownKey), "the old key");
        let key = memory.window_key(window).unwrap();
        assert_eq!(key, Key::new(0x905));
        assert_eq!(get(key, 0x1010, 20), Ok(20));
        for (addr, len) in [(0x100f, 2), (0x1010, 21), (0x1024, 1), (u64::MAX, 2)] {
            assert_eq!(get(key, addr, len), Err(AccessError::OutOfBounds), "{addr:#x} {len}");
        }
        let write = guard.remote(PD, QPN, key, 0x1010, 1, Access::REMOTE_WRITE);
        assert_eq!(write.unwrap_err(), AccessError::NotPermitted);
        assert_eq!(memory.windows_of(region), 1);
        drop(guard);
        assert_eq!(memory.reregister(region, RegionChange::default()).unwrap_err().errno(), 16);
        let guard = memory.guard();
        assert_eq!(guard.invalidate(QPN, key), Err(WindowError::WrongType));
        let nothing = Binding { length: 0, ..binding(region, need) };
        guard.bind(PD, QPN, window, 6, nothing).unwrap();
        assert_eq!(memory.windows_of(region), 0);
    }

    #[test]
    fn a_type_2_window_belongs_to_its_queue_pair_until_it_is_invalidated() {
        let (memory, region, window) = window(WindowType::Type2);
        let guard = memory.guard();
        let access = Access::REMOTE_READ | Access::ZERO_BASED;
        guard.bind(PD, QPN, window, 1, binding(region, access)).unwrap();
        let key = memory.window_key(window).unwrap();
        let get = |qpn| guard.remote(PD, qpn, key, 0, 20, Access::REMOTE_READ).map(|s| s.len());
        let other = Qpn::new(77).unwrap();
        assert_eq!((get(QPN), get(other)), (Ok(20), Err(AccessError::OtherPd)));
        let again = guard.bind(PD, QPN, key, 2, binding(region, access));
        assert_eq!(again, Err(WindowError::Bound));
        assert_eq!(guard.invalidate(other, key), Err(WindowError::OtherQp));
        guard.invalidate(QPN, key).unwrap();
        assert_eq!(get(QPN), Err(AccessError::UnknownKey));
        assert_eq!(guard.invalidate(QPN, key), Err(WindowError::NotBound));
    }

    #[test]
    fn a_region_decides_whether_windows_may_be_bound_to_it() {
        let (memory, region, window) = window(WindowType::Type1);
        let plain = memory
            .register(PD, Buffer::zeroed(100), 0x1000, Access::LOCAL_WRITE, || 0xa00)
            .unwrap();
        let read_only =
            memory.register(PD, Buffer::zeroed(100), 0x1000, Access::MW_BIND, || 0xb00).unwrap();
        let guard = memory.guard();
        let bind = |binding| guard.bind(PD, QPN, window, 1, binding);
        let refused = Err(WindowError::Region);
        assert_eq!(bind(binding(plain, Access::REMOTE_READ)), refused);
        assert_eq!(bind(binding(read_only, Access::REMOTE_WRITE)), refused);
        assert_eq!(bind(binding(region, Access::FLUSH_PERSISTENT)), refused);
        let beyond = Binding { length: 85, ..binding(region, Access::REMOTE_READ) };
        assert_eq!(bind(beyond), refused);
        assert_eq!(
            guard.bind(PdId(9), QPN, window, 1, binding(region, Access::REMOTE_READ)),
            refused
        );
        bind(binding(region, Access::REMOTE_READ)).unwrap();
        drop(guard);
        let key = memory.window_key(window).unwrap();
        assert!(memory.deregister(region));
        let gone = memory.guard().remote(PD, QPN, key, 0x1010, 1, Access::REMOTE_READ).unwrap_err();
        assert_eq!(gone, AccessError::UnknownKey);
    }
}
