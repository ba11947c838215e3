//! The object behind a program's `struct ibv_ah`.

use std::mem::ManuallyDrop;

use rxe_verbs::AddressHandle;

use super::{Context, Handle};
use crate::ibverbs::abi::{ibv_ah, ibv_context, ibv_pd};

/// An address handle as programs hold it.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) verbs: ibv_ah,
    made: Handle,
    pub(crate) handle: ManuallyDrop<AddressHandle>,
}

found_by_pointer!(Ah, ibv_ah);
known_by_handle!(Ah, ibv_ah, "the address handle");
ends_with!(Ah, handle);

impl Ah {
    /// Creates an address handle for the program, which frees it with `ibv_destroy_ah`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: AddressHandle,
    ) -> *mut ibv_ah {
        let made = Handle::new(context);
        let verbs = ibv_ah { context, pd, handle: made.number() };
        let handle = ManuallyDrop::new(handle);
        // SAFETY: an open context.
        unsafe { Context::of(context) }.alive.make(Self { verbs, made, handle }).cast()
    }
}
