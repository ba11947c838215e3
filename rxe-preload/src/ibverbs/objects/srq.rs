//! The object behind a program's `struct ibv_srq`.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use rxe_verbs::SharedReceiveQueue;

use super::{Context, Handle, Unacknowledged};
use crate::ffi::Outcome;
use crate::ibverbs::abi::{Unused, ibv_context, ibv_pd, ibv_srq};

/// A shared receive queue as programs hold it.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) verbs: ibv_srq,
    made: Handle,
    pub(crate) queue: ManuallyDrop<SharedReceiveQueue>,
    pub(crate) asyncs: Unacknowledged,
}

found_by_pointer!(Srq, ibv_srq);
known_by_handle!(Srq, ibv_srq, "the shared receive queue");
ends_with!(Srq, queue);

impl Srq {
    /// Returns the queue as [`Srq::known`] does, if it belongs to this process.
    ///
    /// # Safety
    /// As for [`Srq::of`], and its context is open.
    pub(crate) unsafe fn own<'s>(srq: *mut ibv_srq) -> Outcome<&'s Self> {
        // SAFETY: the caller's promise.
        let this = unsafe { Self::known(srq) }?;
        // SAFETY: as above.
        unsafe { Context::of(this.verbs.context) }.check()?;
        Ok(this)
    }

    /// Creates a shared receive queue for the program, which frees it with `ibv_destroy_srq`.
    pub(crate) fn into_ptr(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        srq_context: *mut c_void,
        queue: SharedReceiveQueue,
    ) -> *mut ibv_srq {
        let made = Handle::new(context);
        let verbs = ibv_srq {
            context,
            srq_context,
            pd,
            handle: made.number(),
            unused: Unused::NEW,
            events_completed: 0,
        };
        let (queue, asyncs) = (ManuallyDrop::new(queue), Unacknowledged::default());
        // SAFETY: an open context.
        unsafe { Context::of(context) }.alive.make(Self { verbs, made, queue, asyncs }).cast()
    }
}
