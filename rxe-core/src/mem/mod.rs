//! Registered memory: protection domains, memory regions, keys, and the checks that stand between
//! a key from the wire and a byte of the program. IBTA 10.6, 11.2.8.
//!
//! Invariants:
//! - a [`Span`] exists only while the table's read guard is held, and deregistration takes the
//!   write guard: once [`Memory::deregister`] returns, no copy into or out of the region is running
//!   and none will start;
//! - every span lies inside one region, in the right protection domain, with the rights asked for.

mod access;
mod sge;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use bitflags::bitflags;
use parking_lot::{RwLock, RwLockReadGuard};

pub use access::{Buffer, Span};
pub use sge::Spans;
pub(crate) use sge::{read_spans, write_spans};

use crate::types::Key;

bitflags! {
    /// What may be done to a memory region, or through a QP. The bits are those of
    /// `ibv_access_flags`. Local read is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The own adapter may write: needed for receives, and for the data of READ and atomics.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0 at the region's start.
        const ZERO_BASED = 1 << 5;
        /// Accepted and without effect, as for an adapter that always orders.
        const RELAXED_ORDERING = 1 << 20;
    }
}

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

/// A memory region as the engine sees it.
#[derive(Debug)]
struct Region {
    pd: PdId,
    access: Access,
    /// The address by which work requests and peers name the first byte.
    start: u64,
    buffer: Buffer,
}

/// The memory of one device: all regions by key. Shared by every engine of the device.
#[derive(Debug, Default)]
pub struct Memory {
    table: RwLock<HashMap<u32, Region, BuildHasherDefault<KeyHasher>>>,
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
        mut random: impl FnMut() -> u32,
    ) -> Result<Key, AccessError> {
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(AccessError::NotPermitted);
        }
        if start.checked_add(buffer.len() as u64).is_none() {
            return Err(AccessError::OutOfBounds);
        }
        let mut table = self.table.write();
        let key = loop {
            let key = random();
            // 0 is what forgetful programs pass; it must never be a valid key.
            if key != 0 && !table.contains_key(&key) {
                break key;
            }
        };
        table.insert(key, Region { pd, access, start, buffer });
        Ok(Key::new(key))
    }

    /// Forgets the region. Waits for copies under way; afterwards the memory is the caller's alone.
    /// Returns whether there was such a region.
    pub fn deregister(&self, key: Key) -> bool {
        let removed = self.table.write().remove(&key.value());
        removed.is_some()
    }

    /// How many regions belong to `pd`: a protection domain in use can not be freed.
    pub fn regions_of(&self, pd: PdId) -> usize {
        self.table.read().values().filter(|r| r.pd == pd).count()
    }

    /// Access for a batch of packets. Deregistration waits until the guard is dropped.
    pub fn guard(&self) -> MemoryGuard<'_> {
        MemoryGuard { table: self.table.read() }
    }
}

/// The right to look regions up and copy.
#[derive(Debug)]
pub struct MemoryGuard<'m> {
    table: RwLockReadGuard<'m, HashMap<u32, Region, BuildHasherDefault<KeyHasher>>>,
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
        let region = self.table.get(&key.value()).ok_or(AccessError::UnknownKey)?;
        if region.pd != pd {
            return Err(AccessError::OtherPd);
        }
        if !region.access.contains(need) {
            return Err(AccessError::NotPermitted);
        }
        let offset = addr.checked_sub(region.start).ok_or(AccessError::OutOfBounds)?;
        region.buffer.span(offset, len).ok_or(AccessError::OutOfBounds)
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

    fn write_u32(&mut self, key: u32) {
        // The table takes its bucket from the low bits and its tag from the high ones.
        self.0 = u64::from(key) << 32 | u64::from(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(1);

    fn memory(access: Access) -> (Memory, Key) {
        let memory = Memory::new();
        let key = memory.register(PD, Buffer::zeroed(100), 0x1000, access, || 7).unwrap();
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
        assert_eq!(err(PD, Key::new(8), Access::empty()), AccessError::UnknownKey);
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
        let err = memory.register(PD, Buffer::zeroed(1), 0, Access::REMOTE_WRITE, || 1);
        assert_eq!(err, Err(AccessError::NotPermitted));
    }

    #[test]
    fn keys_are_never_zero_and_never_twice() {
        let memory = Memory::new();
        let mut numbers = [0, 5, 5, 6].into_iter();
        let mut register = || {
            let access = Access::empty();
            memory.register(PD, Buffer::zeroed(1), 0, access, || numbers.next().unwrap()).unwrap()
        };
        assert_eq!(register(), Key::new(5));
        assert_eq!(register(), Key::new(6));
    }
}
