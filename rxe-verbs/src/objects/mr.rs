//! Memory regions: memory that the engine and, where allowed, peers may read and write.
//! IBTA 10.6, 11.2.8.
//!
//! Invariant: a region's memory is never lent as a slice, since a peer may write it at any time. The
//! program copies bytes in and out.

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

/// A registered piece of memory. Dropped, it is deregistered: nothing touches the memory any more, and
/// windows that are bound to it open nothing.
pub struct MemoryRegion {
    pd: Used<ProtectionDomain>,
    buffer: Buffer,
    start: u64,
    key: Key,
    access: Access,
    /// The device memory that it was made of.
    device_memory: Option<DeviceMemory>,
    _permit: Permit,
}

impl MemoryRegion {
    /// Whether it was made of device memory.
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

    /// Bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The address of its first byte, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.start
    }

    /// The key that names it in the own work requests.
    pub fn lkey(&self) -> Key {
        self.key
    }

    /// The key that names it in a peer's work requests.
    pub fn rkey(&self) -> Key {
        self.key
    }

    /// What may be done to it.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The domain it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// They do not fit; or the memory is the program's own, registered to be read only.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let written = self.writable(offset, bytes.len(), |span| span.write(bytes))?;
        written.map_err(|why| Error::unusable(offset, why))
    }

    /// Copies bytes out, as many as `out` has room for.
    ///
    /// # Errors
    /// There are not as many.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let read = self.readable(offset, out.len(), |span| span.read(out))?;
        read.map_err(|why| Error::unusable(offset, why))
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// The range is not inside the region.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>> {
        let (offset, len) = self.resolve(&range);
        let mut bytes = Vec::new();
        // Checked before anything is allocated.
        let read = self.readable(offset, len, |span| span.append_to(&mut bytes))?;
        read.map_err(|why| Error::unusable(offset, why))?;
        Ok(bytes)
    }

    /// Reads 8 bytes at once, in the machine's byte order: never half of a peer's atomic.
    ///
    /// # Errors
    /// They are not inside the region or not at a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.readable(offset, 8, |span| span.load())?.map_err(|why| Error::unusable(offset, why))
    }

    /// Writes 8 bytes at once, in the machine's byte order.
    ///
    /// # Errors
    /// They are not inside the region or not at a multiple of 8; or the memory is the program's own,
    /// registered to be read only.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        let stored = self.writable(offset, 8, |span| span.store(value.to_ne_bytes()))?;
        stored.map_err(|why| Error::unusable(offset, why))
    }

    /// Names some of its bytes for a work request. What is not inside the region shows when the
    /// request is carried out (`LocalProtection`), as with verbs.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Sge {
        let (offset, len) = self.resolve(&range);
        Sge {
            addr: self.start.wrapping_add(offset as u64),
            length: u32::try_from(len).unwrap_or(u32::MAX),
            lkey: self.key,
        }
    }

    /// What a peer must be told in order to use the bytes from `offset` on.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.start.wrapping_add(offset as u64), rkey: self.key }
    }

    /// Changes its protection domain, rights or memory, or several of them at once, under the same key.
    /// Waits for copies under way; afterwards nothing touches memory that it had before. `ibv_rereg_mr`.
    ///
    /// # Errors
    /// Memory windows are bound to it, the protection domain belongs to another device, or it could not
    /// be registered with the new values. Nothing is changed then. Memory of the program that was
    /// registered without LOCAL_WRITE gets that right only with [`Reregistration::writable`].
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
                    // SAFETY: `Reregistration::writable` was promised it.
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

    /// How many memory windows are bound to it.
    pub fn windows(&self) -> usize {
        self.pd.device().memory().windows_of(self.key)
    }

    /// Deregisters it, as dropping it does: waits for copies under way.
    ///
    /// # Errors
    /// Windows are bound to it: it is deregistered nevertheless, and they open nothing any more.
    pub fn close(self) -> Result<()> {
        closed(UseCounts::of(Kind::MemoryWindow, self.windows()), 0, "the memory region")
    }

    /// Calls `f` with some of its bytes. The region's own memory is there as long as the region. The
    /// program's may be used only while it is registered, which the guard sees to.
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

    /// The same with bytes to be written. The program's own memory may be read-only, and was then
    /// promised to be only read.
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

    /// The offset and the length of a range of it, which need not be inside.
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
        // A forked child would wait for a copy that its parent was making.
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

/// What [`MemoryRegion::reregister`] changes; the rest stays.
#[derive(Debug, Default)]
#[must_use = "nothing changes until MemoryRegion::reregister()"]
pub struct Reregistration {
    pd: Option<ProtectionDomain>,
    access: Option<Access>,
    memory: Option<NewMemory>,
    /// The memory that it has may be written. Set only by the promise of [`Reregistration::writable`].
    writable: bool,
}

#[derive(Debug)]
enum NewMemory {
    Allocate(usize),
    Raw { buffer: Buffer, iova: u64 },
}

impl Reregistration {
    /// Changes nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts it into this domain.
    pub fn pd(mut self, pd: &ProtectionDomain) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    /// Gives it these rights. LOCAL_WRITE, where memory of the program was registered without, takes
    /// [`Reregistration::writable`] too.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Gives it `len` zero bytes, as [`ProtectionDomain::register`] does.
    pub fn memory(mut self, len: usize) -> Self {
        self.memory = Some(NewMemory::Allocate(len));
        self
    }

    /// Gives it memory of the program, to be named by addresses from `iova` on.
    ///
    /// # Safety
    /// As for [`ProtectionDomain::register_raw`]; where it replaces other memory of the program, the
    /// promise for that ends when [`MemoryRegion::reregister`] has returned without an error.
    pub unsafe fn raw_memory(mut self, ptr: NonNull<u8>, len: usize, iova: u64) -> Self {
        // SAFETY: the caller's promise is the one that is asked for here.
        let buffer = unsafe { Buffer::from_raw(ptr, len) };
        self.memory = Some(NewMemory::Raw { buffer, iova });
        self
    }

    /// Lets it have a right to write although its memory, which is the program's, was registered
    /// without one.
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
    /// Allocates `len` zero bytes and registers them, to be named by their own address. (Or, with
    /// [`Access::ZERO_BASED`], from 0 on.)
    ///
    /// # Errors
    /// It is empty, REMOTE_WRITE or REMOTE_ATOMIC is asked for without LOCAL_WRITE, or FLUSH_PERSISTENT,
    /// or there is not as much memory or room for another region.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let buffer = allocate(len)?;
        let start = start_of(&buffer, access);
        self.register_buffer(buffer, start, access)
    }

    /// Registers memory of the program, to be named by addresses from `iova` on. A region may be
    /// empty: its keys then fit requests of length 0.
    ///
    /// # Errors
    /// REMOTE_WRITE or REMOTE_ATOMIC is asked for without LOCAL_WRITE, or FLUSH_PERSISTENT,
    /// the addresses pass the end of the address space, or there are as many regions as the device
    /// allows.
    ///
    /// # Safety
    /// `ptr..ptr + len` must stay valid for reads, and with a right to write for writes, until the
    /// region is dropped, and the program must not hold Rust references to it while it or a peer may
    /// change it. With [`Access::ON_DEMAND`] it may also be unmapped or protected, if memory faults are
    /// handled ([`handle_memory_faults`](crate::handle_memory_faults)).
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

    /// Registers `len` bytes of device memory from `offset` on. Their addresses count from 0
    /// ([`Access::ZERO_BASED`], which need not be named). `ibv_reg_dm_mr`.
    ///
    /// # Errors
    /// The bytes are not inside the device memory, or that belongs to another device;
    /// [`Access::ON_DEMAND`] is asked for; or as for [`ProtectionDomain::register`].
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

/// Zero bytes of its own.
fn allocate(len: usize) -> Result<Buffer> {
    check_length(len)?;
    let no_memory = || Error::io("allocate a memory region", io::ErrorKind::OutOfMemory);
    Buffer::try_zeroed(len).ok_or_else(no_memory)
}

/// By which address memory is named where the program does not say.
fn start_of(buffer: &Buffer, access: Access) -> u64 {
    if access.contains(Access::ZERO_BASED) { 0 } else { buffer.as_ptr().addr() as u64 }
}

/// Whether there are regions of so many bytes.
fn check_length(len: usize) -> Result<()> {
    if len == 0 {
        let why = "0: a memory region has at least one byte".into();
        return Err(VerbsError::InvalidAttribute { name: "length", why }.into());
    }
    Ok(())
}

/// Whether there are such rights to memory of this kind.
fn check_access(access: Access) -> Result<()> {
    if access.contains(Access::FLUSH_PERSISTENT) {
        let why = "FLUSH_PERSISTENT: this memory is lost with the power; use FLUSH_GLOBAL".into();
        return Err(VerbsError::InvalidAttribute { name: "access", why }.into());
    }
    Ok(())
}
