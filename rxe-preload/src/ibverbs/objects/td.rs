//! What a `struct ibv_td` of a program is.

use std::sync::Arc;

use crate::ibverbs::abi::{ibv_context, ibv_td};

/// A thread domain as programs hold it.
#[repr(C)]
pub(crate) struct Td {
    verbs: ibv_td,
    /// Shared with the parent domains that are made with it.
    users: Arc<()>,
}

found_by_pointer!(Td, ibv_td);

impl Td {
    /// Makes one for the program, which gives it up in `ibv_dealloc_td`.
    pub(crate) fn into_ptr(context: *mut ibv_context) -> *mut ibv_td {
        Box::into_raw(Box::new(Self { verbs: ibv_td { context }, users: Arc::default() })).cast()
    }

    /// Counts a parent domain as long as it keeps this.
    pub(crate) fn used(&self) -> Arc<()> {
        Arc::clone(&self.users)
    }

    /// The number of parent domains that are made with it.
    pub(crate) fn users(&self) -> usize {
        Arc::strong_count(&self.users) - 1
    }
}
