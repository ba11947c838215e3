//! Memory regions: memory that the engine and, where allowed, peers may read and write.
//! IBTA 10.6, 11.2.8.
//!
//! Invariant: no Rust slice of a region's memory is ever created, because a peer may write it at
//! any time. The program copies bytes in and out.

use std::fmt;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;

use rxe_core::VerbsError;
use rxe_core::mem::{Access, Buffer, RegionChange, Span, WritableSpan};
use rxe_core::queue::{Remote, Sge};
use rxe_core::types::Key;

use crate::error::{Error, Result};
use crate::objects::dm::DeviceMemory;
use crate::objects::pd::{ProtectionDomain, keys};
use crate::observe::{Counted, Kind, Permit, UseCounts, Used, closed};

/// Registered memory. Dropping the region deregisters it.
///
/// Nothing accesses the memory afterwards, and windows bound to the region grant no access.
pub struct MemoryRegion {
    pd: Used<ProtectionDomain>,
    buffer: Buffer,
    start: u64,
    key: Key,
    access: Access,
    /// The device memory, if the region was registered from it.
    device_memory: Option<DeviceMemory>,
    _permit: Permit,
}

impl MemoryRegion {
    /// Returns whether the region was registered from device memory.
    pub fn is_device_memory(&self) -> bool {
        self.device_memory.is_some()
    }

    fn new(
        pd: Used<ProtectionDomain>,
        buffer: Buffer,
        start: u64,
        key: Key,
        access: Access,
        permit: Permit,
    ) -> Self {
        Self { pd, buffer, start, key, access, device_memory: None, _permit: permit }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the address of the region's first byte, as work requests and peers must give it.
    pub fn addr(&self) -> u64 {
        self.start
    }

    /// Returns the key for local work requests.
    pub fn lkey(&self) -> Key {
        self.key
    }

    /// Returns the key for a peer's work requests.
    pub fn rkey(&self) -> Key {
        self.key
    }

    /// Returns the access rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Copies `bytes` into the region from `offset` on.
    ///
    /// # Errors
    /// Fails if the bytes do not fit, or if the memory is the program's and was registered
    /// read-only.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let written = self.writable(offset, bytes.len(), |span| span.write(bytes))?;
        written.map_err(|why| Error::unusable(offset, why))
    }

    /// Copies bytes from `offset` on into `out`, until it is full.
    ///
    /// # Errors
    /// Fails if the range is not inside the region.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let read = self.readable(offset, out.len(), |span| span.read(out))?;
        read.map_err(|why| Error::unusable(offset, why))
    }

    /// Returns a copy of a range of bytes.
    ///
    /// # Errors
    /// Fails if the range is not inside the region.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>> {
        let (offset, len) = self.resolve(&range);
        let mut bytes = Vec::new();
        // The range is checked before memory is allocated.
        let read = self.readable(offset, len, |span| span.append_to(&mut bytes))?;
        read.map_err(|why| Error::unusable(offset, why))?;
        Ok(bytes)
    }

    /// Reads 8 bytes atomically, in native byte order: never half of a peer's atomic operation.
    ///
    /// # Errors
    /// Fails if the bytes are not inside the region or not aligned to 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.readable(offset, 8, |span| span.load())?.map_err(|why| Error::unusable(offset, why))
    }

    /// Writes 8 bytes atomically, in native byte order.
    ///
    /// # Errors
    /// Fails if the bytes are not inside the region or not aligned to 8, or if the memory is the
    /// program's and was registered read-only.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        let stored = self.writable(offset, 8, |span| span.store(value.to_ne_bytes()))?;
        stored.map_err(|why| Error::unusable(offset, why))
    }

    /// Returns an element that names a range of bytes in a work request.
    ///
    /// The range is not checked here. If it is not inside the region, the request fails when it is
    /// executed (`LocalProtection`), as with verbs.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Sge {
        let (offset, len) = self.resolve(&range);
        Sge {
            addr: self.start.wrapping_add(offset as u64),
            length: u32::try_from(len).unwrap_or(u32::MAX),
            lkey: self.key,
        }
    }

    /// Returns the address and key with which a peer can access the bytes from `offset` on.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.start.wrapping_add(offset as u64), rkey: self.key }
    }

    /// Changes protection domain, access rights, memory, or several of them. `ibv_rereg_mr`.
    ///
    /// The key stays the same. Waits for copies in progress; afterwards nothing accesses the
    /// region's previous memory.
    ///
    /// # Errors
    /// Fails, without a change, if memory windows are bound to the region, if the protection domain
    /// belongs to another device, or if the new values cannot be registered. Memory of the program
    /// that was registered without LOCAL_WRITE gets that right only with
    /// [`Reregistration::writable`].
    pub fn reregister(&mut self, change: Reregistration) -> Result<()> {
        let device = self.pd.device();
        device.shard().check()?;
        if let Some(pd) = &change.pd {
            device.owns(pd.device(), "the protection domain")?;
        }
        let mut access = change.access.unwrap_or(self.access);
        let stays = change.memory.is_none();
        if stays && self.is_device_memory() {
            access |= Access::ZERO_BASED;
        }
        check_access(access)?;
        let (buffer, start) = match change.memory {
            Some(NewMemory::Allocate(len)) => {
                let buffer = allocate(len)?;
                let start = start_of(&buffer, access);
                (buffer, start)
            }
            Some(NewMemory::Raw { buffer, iova }) => {
                check_length(buffer.len())?;
                (buffer.promised_for(access), iova)
            }
            None => {
                let zero_based = Access::ZERO_BASED;
                let moved = access.contains(zero_based) != self.access.contains(zero_based);
                let start = if moved { start_of(&self.buffer, access) } else { self.start };
                let mut buffer = self.buffer.clone();
                if change.writable {
                    // SAFETY: the caller of `Reregistration::writable` has promised it.
                    buffer = unsafe { buffer.promised_writable() };
                }
                (buffer.promised_for(access), start)
            }
        };
        let pd = match change.pd {
            Some(pd) => pd.used_as(Kind::MemoryRegion),
            None => self.pd.clone(),
        };
        let all = RegionChange {
            pd: Some(pd.id()),
            access: Some(access),
            memory: Some((buffer.clone(), start)),
        };
        device.memory().reregister(self.key, all)?;
        (self.pd, self.access, self.buffer, self.start) = (pd, access, buffer, start);
        self.device_memory = self.device_memory.take().filter(|_| stays);
        Ok(())
    }

    /// Returns the number of memory windows bound to the region.
    pub fn windows(&self) -> usize {
        self.pd.device().memory().windows_of(self.key)
    }

    /// Deregisters the region, like dropping it, and waits for copies in progress.
    ///
    /// # Errors
    /// Fails if windows are bound to the region. It is deregistered nevertheless, and the windows
    /// grant no access any more.
    pub fn close(self) -> Result<()> {
        closed(UseCounts::of(Kind::MemoryWindow, self.windows()), 0, "the memory region")
    }

    /// Calls `f` with a range of bytes to read. Memory that the region owns lives as long as the
    /// region. The program's memory may be used only while it is registered, which the guard
    /// ensures.
    fn readable<R>(&self, offset: usize, len: usize, f: impl FnOnce(Span<'_>) -> R) -> Result<R> {
        if self.buffer.is_owned() {
            let span = self.buffer.span(offset as u64, len as u64);
            return Ok(f(*span.ok_or_else(|| self.outside(offset, len))?));
        }
        let (addr, len64) = (self.start.saturating_add(offset as u64), len as u64);
        let guard = self.pd.device().memory().guard();
        let span = guard.span(self.pd.id(), self.key, addr, len64, Access::empty());
        Ok(f(span.map_err(|_| self.outside(offset, len))?))
    }

    /// Like `readable`, for writing. The program's memory may be read-only: without LOCAL_WRITE,
    /// its registration promised only reads.
    fn writable<R>(
        &self,
        offset: usize,
        len: usize,
        f: impl FnOnce(WritableSpan<'_>) -> R,
    ) -> Result<R> {
        if self.buffer.is_owned() {
            let span = self.buffer.span(offset as u64, len as u64);
            return Ok(f(span.ok_or_else(|| self.outside(offset, len))?));
        }
        if !self.access.contains(Access::LOCAL_WRITE) {
            let why = "the memory was registered without LOCAL_WRITE: it cannot be written";
            return Err(VerbsError::InvalidRequest { why }.into());
        }
        let (addr, len64) = (self.start.saturating_add(offset as u64), len as u64);
        let guard = self.pd.device().memory().guard();
        let span = guard.writable(self.pd.id(), self.key, addr, len64, Access::LOCAL_WRITE);
        Ok(f(span.map_err(|_| self.outside(offset, len))?))
    }

    fn outside(&self, offset: usize, len: usize) -> Error {
        VerbsError::LimitExceeded {
            what: "the end of the bytes in a memory region",
            asked: (offset as u64).saturating_add(len as u64),
            limit: self.buffer.len() as u64,
        }
        .into()
    }

    /// Returns the offset and the length of a range, which need not be inside the region.
    pub(crate) fn resolve(&self, range: &impl RangeBounds<usize>) -> (usize, usize) {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n.saturating_add(1),
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.buffer.len(),
        };
        (start, end.saturating_sub(start))
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // A forked child would wait for a copy that a thread of its parent was making.
        if self.pd.device().shard().is_own() {
            self.pd.device().memory().deregister(self.key);
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("addr", &format_args!("{:#x}", self.start))
            .field("len", &self.len())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// The changes that [`MemoryRegion::reregister`] makes; everything else stays as it is.
#[derive(Debug, Default)]
#[must_use = "nothing changes until MemoryRegion::reregister()"]
pub struct Reregistration {
    pd: Option<ProtectionDomain>,
    access: Option<Access>,
    memory: Option<NewMemory>,
    /// Whether the present memory may be written. Set only by the promise of
    /// [`Reregistration::writable`].
    writable: bool,
}

#[derive(Debug)]
enum NewMemory {
    Allocate(usize),
    Raw { buffer: Buffer, iova: u64 },
}

impl Reregistration {
    /// Returns a reregistration without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the region into another protection domain.
    pub fn pd(mut self, pd: &ProtectionDomain) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    /// Changes the access rights. To add LOCAL_WRITE to memory of the program that was registered
    /// without it, call [`Reregistration::writable`] too.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Replaces the memory by `len` zero bytes, as in [`ProtectionDomain::register`].
    pub fn memory(mut self, len: usize) -> Self {
        self.memory = Some(NewMemory::Allocate(len));
        self
    }

    /// Replaces the memory by memory of the program, named by addresses from `iova` on.
    ///
    /// # Safety
    /// As for [`ProtectionDomain::register_raw`]. If it replaces other memory of the program, the
    /// promise for that memory ends when [`MemoryRegion::reregister`] has returned without an
    /// error.
    pub unsafe fn raw_memory(mut self, ptr: NonNull<u8>, len: usize, iova: u64) -> Self {
        // SAFETY: the caller's promise is the one that is asked for here.
        let buffer = unsafe { Buffer::from_raw(ptr, len) };
        self.memory = Some(NewMemory::Raw { buffer, iova });
        self
    }

    /// Allows write rights for memory of the program that was registered without them.
    ///
    /// # Safety
    /// Until the region is dropped or gets other memory, the memory must be valid for writes too, if
    /// the region has a right to write.
    pub unsafe fn writable(mut self) -> Self {
        self.writable = true;
        self
    }
}

impl ProtectionDomain {
    /// Allocates `len` zero bytes and registers them.
    ///
    /// Requests name them by their own address or, with [`Access::ZERO_BASED`], by addresses from 0
    /// on.
    ///
    /// # Errors
    /// Fails if `len` is 0, if REMOTE_WRITE or REMOTE_ATOMIC is requested without LOCAL_WRITE, if
    /// FLUSH_PERSISTENT is requested, or if there is no memory or no room for another region.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let buffer = allocate(len)?;
        let start = start_of(&buffer, access);
        self.register_buffer(buffer, start, access)
    }

    /// Registers memory of the program, named by addresses from `iova` on.
    ///
    /// A region may be empty: its keys then fit requests of length 0.
    ///
    /// # Errors
    /// Fails if REMOTE_WRITE or REMOTE_ATOMIC is requested without LOCAL_WRITE, if FLUSH_PERSISTENT
    /// is requested, if the addresses pass the end of the address space, or if the device allows no
    /// more regions.
    ///
    /// # Safety
    /// `ptr..ptr + len` must stay valid for reads, and for writes if the region has a right to
    /// write, until the region is dropped. The program must not hold Rust references to it while it
    /// or a peer may change it. With [`Access::ON_DEMAND`] it may also be unmapped or protected, if
    /// memory faults are handled ([`handle_memory_faults`](crate::handle_memory_faults)).
    pub unsafe fn register_raw(
        &self,
        ptr: NonNull<u8>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller's promise is the one that is asked for here.
        let buffer = unsafe { Buffer::from_raw(ptr, len) };
        self.register_buffer(buffer.promised_for(access), iova, access)
    }

    /// Registers `len` bytes of device memory from `offset` on. `ibv_reg_dm_mr`.
    ///
    /// Their addresses count from 0. [`Access::ZERO_BASED`] is implied.
    ///
    /// # Errors
    /// Fails if the bytes are not inside the device memory, if the memory belongs to another
    /// device, if [`Access::ON_DEMAND`] is requested, or like [`ProtectionDomain::register`].
    pub fn register_dm(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion> {
        self.device().owns(memory.device(), "the device memory")?;
        if access.contains(Access::ON_DEMAND) {
            let why = "ON_DEMAND: device memory is always there".into();
            return Err(VerbsError::InvalidAttribute { name: "access", why }.into());
        }
        let part = memory.part(offset, len)?;
        let mut region = self.register_buffer(part, 0, access | Access::ZERO_BASED)?;
        region.device_memory = Some(memory.clone());
        Ok(region)
    }

    pub(crate) fn register_buffer(
        &self,
        buffer: Buffer,
        start: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        self.device().shard().check()?;
        check_access(access)?;
        let permit = self.device().resources().mrs.take()?;
        let memory = self.device().memory();
        let environment = self.device().shard().environment();
        let key = memory
            .register(self.id(), buffer.clone(), start, access, keys(environment)?)
            .map_err(VerbsError::Registration)?;
        Ok(MemoryRegion::new(self.used_as(Kind::MemoryRegion), buffer, start, key, access, permit))
    }
}

/// Allocates zero bytes for a region.
fn allocate(len: usize) -> Result<Buffer> {
    check_length(len)?;
    let no_memory = || Error::io("allocate a memory region", io::ErrorKind::OutOfMemory);
    Buffer::try_zeroed(len).ok_or_else(no_memory)
}

/// Returns the address of a region's first byte if the program names none.
fn start_of(buffer: &Buffer, access: Access) -> u64 {
    if access.contains(Access::ZERO_BASED) { 0 } else { buffer.as_ptr().addr() as u64 }
}

/// Fails if a region cannot have this length.
fn check_length(len: usize) -> Result<()> {
    if len == 0 {
        let why = "0: a memory region has at least one byte".into();
        return Err(VerbsError::InvalidAttribute { name: "length", why }.into());
    }
    Ok(())
}

/// Fails if a right is not available for this kind of memory.
fn check_access(access: Access) -> Result<()> {
    if access.contains(Access::FLUSH_PERSISTENT) {
        let why = "FLUSH_PERSISTENT: this memory is lost with the power; use FLUSH_GLOBAL".into();
        return Err(VerbsError::InvalidAttribute { name: "access", why }.into());
    }
    Ok(())
}
