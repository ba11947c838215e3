//! The object behind a program's `struct ibv_td`.

use std::sync::Arc;

use crate::ibverbs::abi::{ibv_context, ibv_td};

/// A thread domain as programs hold it.
#[repr(C)]
pub(crate) struct Td {
    verbs: ibv_td,
    /// A reference count, shared with the parent domains that use the thread domain.
    users: Arc<()>,
}

found_by_pointer!(Td, ibv_td);

impl Td {
    /// Creates a thread domain for the program, which frees it with `ibv_dealloc_td`.
    pub(crate) fn into_ptr(context: *mut ibv_context) -> *mut ibv_td {
        Box::into_raw(Box::new(Self { verbs: ibv_td { context }, users: Arc::default() })).cast()
    }

    /// Counts a parent domain as a user while it keeps the returned value.
    pub(crate) fn used(&self) -> Arc<()> {
        Arc::clone(&self.users)
    }

    /// Returns the number of parent domains that use the thread domain.
    pub(crate) fn users(&self) -> usize {
        Arc::strong_count(&self.users) - 1
    }
}
