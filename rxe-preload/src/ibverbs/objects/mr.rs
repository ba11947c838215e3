//! What a `struct ibv_mr` of a program is.

use rxe_verbs::MemoryRegion;

use super::{Ends, Handle};
use crate::ffi::Failure;
use crate::ibverbs::abi::ibv_mr;
use crate::ibverbs::mapping::Mapping;

/// A memory region as programs hold it.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) verbs: ibv_mr,
    pub(crate) made: Handle,
    /// `None` once a user of it has deregistered it, and others still have it imported.
    pub(crate) region: Option<MemoryRegion>,
    /// The memory, if it is that of a DMA buffer. It stays as long as `region`.
    pub(crate) mapping: Option<Mapping>,
}

known_by_handle!(Mr, ibv_mr, "the memory region");

impl Mr {
    /// The failure to use it after another user has deregistered it.
    pub(crate) fn gone() -> Failure {
        Failure::new(libc::ENOENT, "another user of the imported memory region has deregistered it")
    }
}

impl Ends for Mr {
    unsafe fn end(&mut self) {
        drop(self.region.take());
        // Nothing is copied there any more.
        drop(self.mapping.take());
    }
}
