//! Device memory: memory of the device that requests and peers address by the offset from its
//! start. IBTA does not define it; libibverbs has `ibv_alloc_dm`.
//!
//! On an adapter, requests reach such memory without crossing the bus. Here it is ordinary memory
//! of the process and therefore no faster. It exists for programs that use it.

use std::fmt;
use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::mem::{Buffer, WritableSpan};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::observe::Permit;

/// Memory of a device. Freed with the last of its handles and regions.
#[derive(Clone)]
pub struct DeviceMemory {
    inner: Arc<DmInner>,
}

struct DmInner {
    device: Device,
    buffer: Buffer,
    _permit: Permit,
}

impl Device {
    /// Allocates `len` zero bytes of device memory. `ibv_alloc_dm`.
    ///
    /// The start is aligned to 2 to the power of `log_align` bytes.
    ///
    /// # Errors
    /// Fails if `len` is 0, if `log_align` is more than 12 (a page), or if less than `len` is left
    /// of [`max_dm_size`](crate::device::DeviceAttr::max_dm_size) (ENOMEM).
    pub fn alloc_dm(&self, len: usize, log_align: u32) -> Result<DeviceMemory> {
        const LARGEST_ALIGN: u32 = 12;
        self.shard().check()?;
        if len == 0 {
            return Err(invalid("length", "0: device memory has at least one byte"));
        }
        if log_align > LARGEST_ALIGN {
            return Err(invalid("log_align_req", "an alignment of more than 12 (a page)"));
        }
        let no_memory = || VerbsError::NoMemory {
            what: "so much device memory (max_dm_size is for all that is allocated)",
        };
        let bytes = u32::try_from(len).map_err(|_| no_memory())?;
        let permit = self.resources().dm_bytes.take_many(bytes).map_err(|_| no_memory())?;
        let buffer = Buffer::try_zeroed(len).ok_or_else(no_memory)?;
        let inner = DmInner { device: self.clone(), buffer, _permit: permit };
        Ok(DeviceMemory { inner: Arc::new(inner) })
    }
}

impl DeviceMemory {
    /// Returns the size in bytes, at least 1.
    pub fn size(&self) -> usize {
        self.inner.buffer.len()
    }

    /// Returns the number of other references: handles and memory regions.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Copies `bytes` into the memory from `offset` on. `ibv_memcpy_to_dm`.
    ///
    /// # Errors
    /// Fails if the bytes do not fit.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let written = self.span(offset, bytes.len())?.write(bytes);
        written.map_err(|why| Error::unusable(offset, why))
    }

    /// Copies bytes from `offset` on into `out`, until it is full. `ibv_memcpy_from_dm`.
    ///
    /// # Errors
    /// Fails if the range is not inside the memory.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.span(offset, out.len())?.read(out).map_err(|why| Error::unusable(offset, why))
    }

    /// Returns the device on which the memory was allocated.
    pub(crate) fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns `len` bytes from `offset` on, for a memory region.
    ///
    /// # Errors
    /// Fails if the range is not inside the memory.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<Buffer> {
        self.span(offset, len)?;
        self.inner.buffer.part(offset, len).ok_or_else(|| invalid("offset", "not in device memory"))
    }

    fn span(&self, offset: usize, len: usize) -> Result<WritableSpan<'_>> {
        let beyond = || VerbsError::LimitExceeded {
            what: "the end of the bytes in device memory",
            asked: (offset as u64).saturating_add(len as u64),
            limit: self.size() as u64,
        };
        Ok(self.inner.buffer.span(offset as u64, len as u64).ok_or_else(beyond)?)
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory").field("size", &self.size()).finish_non_exhaustive()
    }
}

fn invalid(name: &'static str, why: &str) -> Error {
    VerbsError::InvalidAttribute { name, why: why.into() }.into()
}
