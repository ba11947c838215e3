//! The object behind a program's `struct ibv_mr`.

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
    /// The engine's region. `None` if a user has deregistered it while others have it imported.
    pub(crate) region: Option<MemoryRegion>,
    /// The mapping of the memory, if that is a DMA buffer. It stays as long as `region`.
    pub(crate) mapping: Option<Mapping>,
}

known_by_handle!(Mr, ibv_mr, "the memory region");

impl Mr {
    /// The failure to use the region after another user has deregistered it.
    pub(crate) fn gone() -> Failure {
        Failure::new(libc::ENOENT, "another user of the imported memory region has deregistered it")
    }
}

impl Ends for Mr {
    unsafe fn end(&mut self) {
        drop(self.region.take());
        // After the region ends, nothing is copied to the mapping any more.
        drop(self.mapping.take());
    }
}
