//! The object behind a program's `struct ibv_mw`.

use std::ffi::c_uint;
use std::mem::ManuallyDrop;

use rxe_verbs::MemoryWindow;

use super::{Context, Handle};
use crate::ibverbs::abi::{ibv_context, ibv_mw, ibv_pd};

/// A memory window as programs hold it.
#[repr(C)]
pub(crate) struct Mw {
    pub(crate) verbs: ibv_mw,
    made: Handle,
    pub(crate) window: ManuallyDrop<MemoryWindow>,
}

known_by_handle!(Mw, ibv_mw, "the memory window");
ends_with!(Mw, window);

impl Mw {
    /// Creates a memory window for the program, which frees it with `ibv_dealloc_mw`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        kind: c_uint,
        window: MemoryWindow,
    ) -> *mut ibv_mw {
        let made = Handle::new(context);
        let (rkey, handle) = (window.rkey().value(), made.number());
        let verbs = ibv_mw { context, pd, rkey, handle, r#type: kind };
        let window = ManuallyDrop::new(window);
        // SAFETY: an open context.
        unsafe { Context::of(context) }.alive.make(Self { verbs, made, window }).cast()
    }
}
