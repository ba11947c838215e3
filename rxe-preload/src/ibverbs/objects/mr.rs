//! What a `struct ibv_mr` of a program is.

use rxe_verbs::MemoryRegion;

use super::Handle;
use crate::ibverbs::abi::ibv_mr;

/// A memory region as programs hold it.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) verbs: ibv_mr,
    pub(crate) made: Handle,
    pub(crate) region: MemoryRegion,
}

known_by_handle!(Mr, ibv_mr, "the memory region");
