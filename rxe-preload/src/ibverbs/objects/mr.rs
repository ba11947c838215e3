//! What a `struct ibv_mr` of a program is.

use rxe_verbs::MemoryRegion;

use super::Handle;
use crate::ffi::Outcome;
use crate::ibverbs::abi::ibv_mr;

/// A memory region as programs hold it.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) verbs: ibv_mr,
    pub(crate) made: Handle,
    pub(crate) region: MemoryRegion,
}

impl Mr {
    /// The region, if the context and the handle are still those that it was made with.
    ///
    /// # Safety
    /// `mr` exists.
    pub(crate) unsafe fn known<'m>(mr: *mut ibv_mr) -> Outcome<&'m Self> {
        // SAFETY: the caller's promise.
        let (this, context, handle) = unsafe { (&*mr.cast::<Self>(), (*mr).context, (*mr).handle) };
        this.made.check("the memory region", context, handle)?;
        Ok(this)
    }
}
