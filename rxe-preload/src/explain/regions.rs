//! The memory regions that the texts of explanations name.

use std::collections::HashMap;

use rxe_core::mem::Access;

/// Memory regions by their keys.
pub(super) type Regions = HashMap<u32, Region>;

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// The address by which requests name the region's first byte.
    pub(super) start: u64,
    pub(super) len: u64,
    /// The address of the region's first byte in this process.
    pub(super) at: usize,
    pub(super) access: Access,
}
