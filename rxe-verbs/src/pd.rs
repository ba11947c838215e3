//! Protection domains: what is in one can be used together. IBTA 11.2.1.5.

use std::ptr::NonNull;
use std::sync::Arc;

use rxe_core::VerbsError;
use rxe_core::mem::{Access, Buffer, PdId, WindowType};

use crate::cq::CompletionQueue;
use crate::device::{Device, Permit, closed};
use crate::error::Result;
use crate::mr::{self, MemoryRegion};
use crate::mw::MemoryWindow;
use crate::os::random_u64;
use crate::qp::QpBuilder;

/// A protection domain. Queue pairs reach the memory regions of their own domain, no others.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<PdInner>,
}

#[derive(Debug)]
struct PdInner {
    device: Device,
    id: PdId,
    _permit: Permit,
}

impl ProtectionDomain {
    pub(crate) fn new(device: Device, id: PdId, permit: Permit) -> Self {
        Self { inner: Arc::new(PdInner { device, id, _permit: permit }) }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Allocates `len` zero bytes and registers them, to be named by their own address. (Or, with
    /// [`Access::ZERO_BASED`], from 0 on.)
    ///
    /// # Errors
    /// It is empty, REMOTE_WRITE or REMOTE_ATOMIC is asked for without LOCAL_WRITE, or FLUSH_PERSISTENT,
    /// or there is not as much memory or room for another region.
    pub fn register(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        let buffer = mr::allocate(len)?;
        let start = mr::start_of(&buffer, access);
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
    /// change it.
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

    fn register_buffer(&self, buffer: Buffer, start: u64, access: Access) -> Result<MemoryRegion> {
        self.inner.device.shard().check()?;
        mr::check_access(access)?;
        let permit = self.inner.device.quotas().mrs.take()?;
        let memory = self.inner.device.memory();
        let key = memory
            .register(self.inner.id, buffer.clone(), start, access, keys()?)
            .map_err(VerbsError::Registration)?;
        Ok(MemoryRegion::new(self.clone(), buffer, start, key, access, permit))
    }

    /// Makes a memory window, which opens nothing until it is bound ([`QueuePair::bind`]).
    ///
    /// # Errors
    /// There are as many as the device allows, or it has failed.
    ///
    /// [`QueuePair::bind`]: crate::QueuePair::bind
    pub fn create_window(&self, kind: WindowType) -> Result<MemoryWindow> {
        self.inner.device.shard().check()?;
        let permit = self.inner.device.quotas().mws.take()?;
        let key = self.inner.device.memory().create_window(self.inner.id, kind, keys()?);
        Ok(MemoryWindow::new(self.clone(), kind, key, permit))
    }

    /// Begins a queue pair whose requests all complete on one queue.
    pub fn qp(&self, cq: &CompletionQueue) -> QpBuilder {
        self.qp_with(cq, cq)
    }

    /// Begins a queue pair.
    pub fn qp_with(&self, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self.clone(), send_cq.clone(), recv_cq.clone())
    }

    /// How many others have it: handles, memory regions and windows, queue pairs, address handles.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Ends it.
    ///
    /// # Errors
    /// Something still uses it; it then ends with the last of these.
    pub fn close(self) -> Result<()> {
        closed(self.users(), "the protection domain")
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }
}

/// Keys that a stranger can not guess.
fn keys() -> Result<impl FnMut() -> u32> {
    let mut random = random_u64()?;
    Ok(move || {
        let [a, b, c, d, ..] = random.to_le_bytes();
        // Further ones only where a key is taken.
        random = random.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        u32::from_le_bytes([a, b, c, d])
    })
}
