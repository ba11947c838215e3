//! What a `struct ibv_ah` of a program is.

use rxe_verbs::AddressHandle;

use super::Handle;
use crate::ffi::Outcome;
use crate::ibverbs::abi::{ibv_ah, ibv_context, ibv_pd};

/// An address handle as programs hold it.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) verbs: ibv_ah,
    made: Handle,
    pub(crate) handle: AddressHandle,
}

impl Ah {
    /// # Safety
    /// `ah` exists.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: programs only have the address of the first field of an `Ah`.
        unsafe { &*ah.cast() }
    }

    /// As [`Ah::of`], if the context and the handle are still those that it was made with.
    ///
    /// # Safety
    /// As for [`Ah::of`].
    pub(crate) unsafe fn known<'a>(ah: *mut ibv_ah) -> Outcome<&'a Self> {
        // SAFETY: the caller's promise.
        let (this, context, handle) = unsafe { (Self::of(ah), (*ah).context, (*ah).handle) };
        this.made.check("the address handle", context, handle)?;
        Ok(this)
    }

    /// Makes one for the program, which gives it up in `ibv_destroy_ah`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: AddressHandle,
    ) -> *mut ibv_ah {
        let made = Handle::new(context);
        let verbs = ibv_ah { context, pd, handle: made.number() };
        Box::into_raw(Box::new(Self { verbs, made, handle })).cast()
    }
}
