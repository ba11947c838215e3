//! Registered memory: protection domains, memory regions, keys, and the checks before a key gives
//! access to memory. IBTA 10.6, 11.2.8.
//!
//! Invariants:
//! - A [`Span`] exists only while the read guard of the table is held, and deregistration takes the
//!   write guard. Once [`Memory::deregister`] returns, no copy into or out of the region is
//!   running, and none will start.
//! - Every span lies inside one region, in the right protection domain, with the requested rights.

mod access;
#[cfg(any(
    test,
    miri,
    fuzzing,
    sanitized,
    not(any(target_arch = "x86_64", target_arch = "aarch64"))
))]
mod copy;
mod guarded;
mod rights;
mod sge;
mod source;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, Ordering};

pub use crate::types::{Access, AccessError, FaultCause, MemoryFault};
pub use access::{Buffer, Span, WritableSpan};
pub use guarded::{load as load_shared, recovery, store as store_shared};
pub use sge::{Sge, SgeList};
pub(crate) use sge::{Spans, append_spans, write_spans};
pub use source::Source;
pub use window::{Binding, WindowError, WindowType};

use access::Unchecked;
use window::MemoryWindow;

use crate::error::VerbsError;
use crate::sync::{Mutex, ReadMostly, ReadMostlyGuard};
use crate::types::{Key, Qpn};

/// The number of a protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// The object that a key names.
#[derive(Debug)]
enum Entry {
    Region(Region),
    Window(MemoryWindow),
}

/// A memory region.
#[derive(Debug)]
struct Region {
    key: Key,
    pd: PdId,
    access: Access,
    /// The address of the first byte in work requests and requests of peers.
    start: u64,
    buffer: Buffer,
    /// The number of windows bound to the region. The counter is briefly negative if one thread
    /// binds a window and another unbinds it.
    windows: AtomicIsize,
}

/// Regions and windows by the upper 24 bits of their keys. Each binding of a window changes the
/// lower 8 bits of its key.
type Table = HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>;

const fn index(key: Key) -> u32 {
    key.value() >> 8
}

/// The bound type 2 windows of each queue pair, so that they are unbound with it.
type BoundByQp = Mutex<HashMap<Qpn, HashSet<u32>>>;

/// The registered memory of a device: all regions and windows by key. All engines of the device
/// share it.
#[derive(Debug, Default)]
pub struct Memory {
    table: ReadMostly<Table>,
    bound: BoundByQp,
}

impl Memory {
    /// Creates a table without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `buffer`; its first byte has the address `start`. The returned key is both the
    /// lkey and the rkey, as in kernel `rdma_rxe`.
    ///
    /// The key is taken from `random`, which must not be guessable: the peer of any QP in the
    /// protection domain may use a region with remote rights if it knows the key.
    ///
    /// # Errors
    /// [`AccessError::NotPermitted`] if remote write or atomic is requested without local write
    /// (C10-79), or local write for memory that was promised to be only read
    /// ([`Buffer::promised_for`]); [`AccessError::OutOfBounds`] if the addresses exceed the 64-bit
    /// address space.
    pub fn register(
        &self,
        pd: PdId,
        buffer: Buffer,
        start: u64,
        access: Access,
        random: impl FnMut() -> u32,
    ) -> Result<Key, AccessError> {
        let windows = AtomicIsize::new(0);
        let buffer = buffer.promised_for(access);
        let key = Key::default();
        let mut region = Region { key, pd, access, start, buffer, windows };
        region.check()?;
        let mut table = self.table.write();
        let key = free_key(&table, random);
        region.key = key;
        let old = table.insert(index(key), Entry::Region(region));
        debug_assert!(old.is_none(), "a key names one thing");
        Ok(key)
    }

    /// Changes a region atomically, under the same key: a copy uses either the old or the new
    /// region. Waits for running copies. IBTA 11.2.8.5.
    ///
    /// # Errors
    /// The region does not exist, windows are bound to it, or it could not be registered with the
    /// new values. Nothing is changed then.
    pub fn reregister(&self, key: Key, change: RegionChange) -> Result<(), VerbsError> {
        let mut table = self.table.write();
        let region = match table.get_mut(&index(key)) {
            Some(Entry::Region(region)) if region.key == key => region,
            _ => return Err(VerbsError::Registration(AccessError::UnknownKey)),
        };
        let windows = region.windows();
        if windows > 0 {
            let what =
                format!("{windows} windows are bound to the memory region: unbind them first");
            return Err(VerbsError::Busy { what });
        }
        let (buffer, start) =
            change.memory.unwrap_or_else(|| (region.buffer.clone(), region.start));
        let access = change.access.unwrap_or(region.access);
        let new = Region {
            key,
            pd: change.pd.unwrap_or(region.pd),
            access,
            start,
            buffer: buffer.promised_for(access),
            windows: AtomicIsize::new(0),
        };
        new.check().map_err(VerbsError::Registration)?;
        *region = new;
        Ok(())
    }

    /// Removes a region. Waits for running copies; afterwards the engine does not access the
    /// memory, and windows bound to the region give no access. Returns whether the region existed.
    pub fn deregister(&self, key: Key) -> bool {
        let mut table = self.table.write();
        let known = matches!(table.get(&index(key)), Some(Entry::Region(r)) if r.key == key);
        known && table.remove(&index(key)).is_some()
    }

    /// Creates a memory window, which gives no access until it is bound. IBTA 11.2.8.11.
    pub fn create_window(&self, pd: PdId, kind: WindowType, random: impl FnMut() -> u32) -> Key {
        let mut table = self.table.write();
        let key = free_key(&table, random);
        let old = table.insert(index(key), Entry::Window(MemoryWindow::new(pd, kind, key)));
        debug_assert!(old.is_none(), "a key names one thing");
        key
    }

    /// Removes a window, named by any key that it has had. Returns whether it existed.
    pub fn destroy_window(&self, key: Key) -> bool {
        let mut table = self.table.write();
        let Some(Entry::Window(window)) = table.get(&index(key)) else { return false };
        if let Some((region, qpn)) = window.bound() {
            if let Some(region) = region_of(&table, region) {
                region.windows.fetch_sub(1, Ordering::Relaxed);
            }
            forget_bound(&self.bound, qpn, key);
        }
        table.remove(&index(key)).is_some()
    }

    /// Returns the current key of a window, named by any key that it has had.
    pub fn window_key(&self, key: Key) -> Option<Key> {
        match self.table.read().get(&index(key)) {
            Some(Entry::Window(window)) => Some(window.key()),
            _ => None,
        }
    }

    /// Returns the number of windows bound to a region. Verbs refuse to deregister a region with
    /// bound windows.
    pub fn windows_of(&self, region: Key) -> usize {
        region_of(&self.table.read(), region).map_or(0, Region::windows)
    }

    /// Returns the number of regions and windows that belong to `pd`. A protection domain in use
    /// cannot be freed.
    pub fn regions_of(&self, pd: PdId) -> usize {
        let belongs = |entry: &&Entry| match entry {
            Entry::Region(region) => region.pd == pd,
            Entry::Window(window) => window.pd == pd,
        };
        self.table.read().values().filter(belongs).count()
    }

    /// Returns up to `max` regions, in no particular order. If there are many windows, it may
    /// return fewer: it visits only a multiple of `max` entries, because nothing can be
    /// deregistered meanwhile.
    pub fn list_regions(&self, max: usize) -> Vec<RegionInfo> {
        let table = self.table.read();
        let regions = table.values().take(max.saturating_mul(4)).filter_map(|entry| match entry {
            Entry::Region(region) => Some(RegionInfo {
                pd: region.pd,
                access: region.access,
                len: region.buffer.len() as u64,
                windows: region.windows(),
            }),
            Entry::Window(_) => None,
        });
        regions.take(max).collect()
    }

    /// Returns access for a batch of packets. Deregistration waits until the guard is dropped.
    pub fn guard(&self) -> MemoryGuard<'_> {
        MemoryGuard { table: self.table.read(), bound: &self.bound }
    }
}

/// The public properties of a region, without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// The protection domain.
    pub pd: PdId,
    /// The access rights.
    pub access: Access,
    /// The length in bytes.
    pub len: u64,
    /// The number of windows bound to the region.
    pub windows: usize,
}

/// The changes of a call of [`Memory::reregister`] (`ibv_rereg_mr`). `None` keeps the old value.
#[derive(Debug, Clone, Default)]
pub struct RegionChange {
    /// The new protection domain.
    pub pd: Option<PdId>,
    /// The new access rights.
    pub access: Option<Access>,
    /// The new memory, and the address of its first byte.
    pub memory: Option<(Buffer, u64)>,
}

fn region_of(table: &Table, key: Key) -> Option<&Region> {
    match table.get(&index(key)) {
        Some(Entry::Region(region)) if region.key == key => Some(region),
        _ => None,
    }
}

/// Removes a type 2 window from the windows that are bound to QP `qpn`.
fn forget_bound(bound: &BoundByQp, qpn: Qpn, window: Key) {
    let mut bound = bound.lock();
    if let Some(windows) = bound.get_mut(&qpn) {
        windows.remove(&index(window));
        if windows.is_empty() {
            bound.remove(&qpn);
        }
    }
}

/// A read lock on the table. Its holder may look up regions and copy.
#[derive(Debug)]
pub struct MemoryGuard<'m> {
    table: ReadMostlyGuard<'m, Table>,
    bound: &'m BoundByQp,
}

/// Returns an unused key. 0 is never a valid key, because programs pass 0 when they forget to set a
/// key.
fn free_key(table: &Table, mut random: impl FnMut() -> u32) -> Key {
    loop {
        let key = Key::new(random());
        if index(key) != 0 && !table.contains_key(&index(key)) {
            return key;
        }
    }
}

impl MemoryGuard<'_> {
    /// Returns `len` bytes at `addr` for reading by a QP of `pd`. The region must permit all of
    /// `need`. For writing, use [`MemoryGuard::writable`].
    ///
    /// # Errors
    /// The key is unknown, or the region belongs to another protection domain, lacks a right or is
    /// too short.
    pub fn span(
        &self,
        pd: PdId,
        key: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'_>, AccessError> {
        self.local(pd, key, need)?.readable(addr, len)
    }

    /// Like [`MemoryGuard::span`], but for writing: the region must also permit LOCAL_WRITE.
    ///
    /// # Errors
    /// As for [`MemoryGuard::span`], or the region lacks LOCAL_WRITE.
    #[inline]
    pub fn writable(
        &self,
        pd: PdId,
        key: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<WritableSpan<'_>, AccessError> {
        self.local(pd, key, need)?.writable(addr, len)
    }

    /// Returns `len` bytes that a peer of QP `qpn` names by `rkey`, for reading. `rkey` belongs to
    /// a region or a window. For writing, use [`MemoryGuard::remote_writable`].
    ///
    /// # Errors
    /// The key is unknown, or the region or window belongs to another protection domain or QP, lacks
    /// a right or is too short.
    pub fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'_>, AccessError> {
        let (region, at) = self.resolve(pd, qpn, rkey, addr, len, need)?;
        region.readable(at, len)
    }

    /// Like [`MemoryGuard::remote`], but for writing: the region must also permit LOCAL_WRITE, as
    /// every region does that peers may write.
    ///
    /// # Errors
    /// As for [`MemoryGuard::remote`], or the region lacks LOCAL_WRITE.
    pub fn remote_writable(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<WritableSpan<'_>, AccessError> {
        let (region, at) = self.resolve(pd, qpn, rkey, addr, len, need)?;
        region.writable(at, len)
    }

    /// Returns the region of `pd` with this key, if it permits all of `need`.
    #[inline]
    fn local(&self, pd: PdId, key: Key, need: Access) -> Result<&Region, AccessError> {
        let region = self.region(key).ok_or(AccessError::UnknownKey)?;
        if region.pd != pd {
            return Err(AccessError::OtherPd);
        }
        if !region.access.contains(need) {
            return Err(AccessError::NotPermitted);
        }
        Ok(region)
    }

    /// Returns the region and the address for a peer's access. A peer of QP `qpn` may use them for
    /// `need`.
    fn resolve(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(&Region, u64), AccessError> {
        match self.table.get(&index(rkey)) {
            Some(Entry::Window(window)) => {
                let (region, at) = window.resolve(pd, qpn, rkey, addr, len, need)?;
                Ok((self.region(region).ok_or(AccessError::UnknownKey)?, at))
            }
            _ => Ok((self.local(pd, rkey, need)?, addr)),
        }
    }

    /// Checks that a peer may use the whole region `rkey` for `need`, for a FLUSH of the region.
    ///
    /// # Errors
    /// The key is unknown, or the region belongs to another protection domain or lacks a right.
    pub fn remote_region(&self, pd: PdId, rkey: Key, need: Access) -> Result<(), AccessError> {
        self.local(pd, rkey, need).map(|_| ())
    }

    /// Returns the address in this process of bytes of an on-demand region. Returns `None` for
    /// other regions. For `ibv_advise_mr`; IBTA has no such verb.
    ///
    /// # Errors
    /// As for [`MemoryGuard::span`].
    pub fn on_demand(
        &self,
        pd: PdId,
        sge: Sge,
        need: Access,
    ) -> Result<Option<NonNull<u8>>, AccessError> {
        let region = self.local(pd, sge.lkey, need)?;
        let span = region.readable(sge.addr, sge.length.into())?;
        Ok(region.access.contains(Access::ON_DEMAND).then_some(span.as_ptr()))
    }

    /// Binds a window for a request on QP `qpn`. `window` is any key that the window has had; the
    /// low 8 bits of its key become `new_key`.
    ///
    /// # Errors
    /// The binding is not permitted: see [`WindowError`]. Nothing is changed then.
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
            // A window cannot give FLUSH rights that its region does not have.
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
        let before = target.bind(pd, qpn, new_key, binding)?;
        debug_assert!(target.pd == pd && (before.is_none() || target.kind == WindowType::Type1));
        if target.kind == WindowType::Type2 {
            self.bound.lock().entry(qpn).or_default().insert(index(window));
        }
        let after = (binding.length > 0).then_some(binding.region);
        self.count(after, 1);
        self.count(before, -1);
        Ok(())
    }

    /// Invalidates a type 2 window, for a request on QP `qpn` or from its peer.
    ///
    /// # Errors
    /// The key cannot be invalidated: see [`WindowError`]. The key of a region never can, because
    /// programs in user space have no way to make it valid again.
    pub fn invalidate(&self, qpn: Qpn, key: Key) -> Result<(), WindowError> {
        match self.table.get(&index(key)) {
            Some(Entry::Window(window)) => {
                let before = window.invalidate(qpn, key)?;
                debug_assert_eq!(window.kind, WindowType::Type2, "only those are invalidated");
                forget_bound(self.bound, qpn, key);
                self.count(Some(before), -1);
                Ok(())
            }
            Some(Entry::Region(_)) => Err(WindowError::WrongType),
            None => Err(WindowError::UnknownKey),
        }
    }

    /// Unbinds the type 2 windows of QP `qpn`, which is destroyed or reset. Neither its next peer
    /// nor the next QP with the number may inherit them.
    pub(crate) fn unbind_all(&self, qpn: Qpn) {
        let Some(windows) = self.bound.lock().remove(&qpn) else { return };
        for window in windows {
            if let Some(Entry::Window(window)) = self.table.get(&window) {
                self.count(window.unbind(), -1);
            }
        }
    }

    /// Adds `more` to the number of windows bound to `region`, if the region still exists.
    fn count(&self, region: Option<Key>, more: isize) {
        if let Some(region) = region.and_then(|key| self.region(key)) {
            region.windows.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn region(&self, key: Key) -> Option<&Region> {
        region_of(&self.table, key)
    }
}

impl Region {
    fn windows(&self) -> usize {
        usize::try_from(self.windows.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Checks that the values of the region are valid.
    fn check(&self) -> Result<(), AccessError> {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let may_write = self.access.contains(Access::LOCAL_WRITE);
        if self.access.intersects(writes) && !may_write || may_write && !self.buffer.is_writable() {
            return Err(AccessError::NotPermitted);
        }
        let end = self.start.checked_add(self.buffer.len() as u64);
        end.map(|_| ()).ok_or(AccessError::OutOfBounds)
    }

    #[inline]
    fn readable(&self, addr: u64, len: u64) -> Result<Span<'_>, AccessError> {
        self.span(addr, len).map(Unchecked::readable)
    }

    /// Checks LOCAL_WRITE, because the memory of a region without it may be mapped read-only.
    #[inline]
    fn writable(&self, addr: u64, len: u64) -> Result<WritableSpan<'_>, AccessError> {
        if !self.access.contains(Access::LOCAL_WRITE) {
            return Err(AccessError::NotPermitted);
        }
        self.span(addr, len).map(Unchecked::writable)
    }

    #[inline]
    fn span(&self, addr: u64, len: u64) -> Result<Unchecked<'_>, AccessError> {
        debug_assert!(self.start.checked_add(self.buffer.len() as u64).is_some(), "checked before");
        let offset = addr.checked_sub(self.start).ok_or(AccessError::OutOfBounds)?;
        self.buffer.registered(offset, len).ok_or(AccessError::OutOfBounds)
    }
}

/// A hasher that returns the keys unchanged, because they are already random.
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
        // The hash table selects the bucket by the low bits of the hash and the tag by the highest
        // 7; an index has 24 bits.
        self.0 = u64::from(index) << 40 | u64::from(index);
    }
}
