//! Device memory: memory of the device that requests and peers name by the offset from its start.
//! IBTA has no such thing; `ibv_alloc_dm`.
//!
//! An adapter has memory of its own, which its requests reach without crossing the bus. Here it is
//! memory of the process, so it is no faster. It is there for programs that use it.

use std::fmt;
use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::mem::{Buffer, WritableSpan};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::observe::Permit;

/// Memory of a device. It ends with the last of its handles and of the regions made of it.
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
    /// Allocates `len` zero bytes of device memory, whose start is a multiple of 2 to the power of
    /// `log_align`. `ibv_alloc_dm`.
    ///
    /// # Errors
    /// It is empty, the alignment is more than a page (12), or so much is not left of
    /// [`max_dm_size`](crate::device::DeviceAttr::max_dm_size) (ENOMEM).
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
    /// Its size in bytes, at least 1.
    pub fn size(&self) -> usize {
        self.inner.buffer.len()
    }

    /// How many others have it: handles and memory regions.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Copies bytes in. `ibv_memcpy_to_dm`.
    ///
    /// # Errors
    /// They do not fit.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let written = self.span(offset, bytes.len())?.write(bytes);
        written.map_err(|why| Error::unusable(offset, why))
    }

    /// Copies bytes out, as many as `out` has room for. `ibv_memcpy_from_dm`.
    ///
    /// # Errors
    /// There are not as many.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.span(offset, out.len())?.read(out).map_err(|why| Error::unusable(offset, why))
    }

    /// The device that it was allocated on.
    pub(crate) fn device(&self) -> &Device {
        &self.inner.device
    }

    /// `len` of its bytes, from `offset` on, for a region.
    ///
    /// # Errors
    /// There are not as many.
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
