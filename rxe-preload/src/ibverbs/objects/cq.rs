//! What a `struct ibv_cq` of a program is.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rxe_verbs::{Completion, CompletionQueue};

use super::{Context, Handle, Unacknowledged};
use crate::ffi::Outcome;
use crate::ibverbs::abi::{ibv_cq, ibv_cq_ex};

/// A completion queue as programs hold it. It always has the extended interface.
#[repr(C)]
pub(crate) struct Cq {
    /// The program may write to it too.
    verbs: UnsafeCell<ibv_cq_ex>,
    made: Handle,
    pub(crate) queue: CompletionQueue,
    pub(crate) completions: Unacknowledged,
    pub(crate) asyncs: Unacknowledged,
    /// The completion that the extended interface shows.
    pub(crate) current: Mutex<Option<Completion>>,
    /// How many polls in a row found nothing.
    empty: AtomicU32,
}

impl Cq {
    /// # Safety
    /// `cq` exists.
    pub(crate) unsafe fn of<'c>(cq: *mut ibv_cq) -> &'c Self {
        // SAFETY: programs only have the address of the first field of a `Cq`.
        unsafe { &*cq.cast() }
    }

    /// As [`Cq::of`], if the context and the handle are still those that it was made with.
    ///
    /// # Safety
    /// As for [`Cq::of`].
    pub(crate) unsafe fn known<'c>(cq: *mut ibv_cq) -> Outcome<&'c Self> {
        // SAFETY: the caller's promise.
        let (this, context, handle) = unsafe { (Self::of(cq), (*cq).context, (*cq).handle) };
        this.made.check("the completion queue", context, handle)?;
        Ok(this)
    }

    /// The context that it was made on. It is open as long as the queue exists.
    pub(crate) fn owner(&self) -> &Context {
        // SAFETY: `context` was set when the queue was made, and nobody changes it; `verbs` is read
        // without a reference to it.
        unsafe { Context::of((*self.verbs.get()).base.context) }
    }

    /// Called when a poll found nothing. A program that polls in a loop can keep the CPU from its
    /// peer, which may run on this host. So after more polls than a round trip takes, this yields the
    /// CPU.
    pub(crate) fn pause(&self) {
        const ALONE: u32 = 64;
        if self.empty.fetch_add(1, Ordering::Relaxed) > ALONE {
            std::thread::yield_now();
        }
    }

    /// A poll found something.
    pub(crate) fn unpause(&self) {
        self.empty.store(0, Ordering::Relaxed);
    }

    /// Makes one of what the program sees and what is behind that.
    pub(crate) fn new(verbs: ibv_cq_ex, made: Handle, queue: CompletionQueue) -> Box<Self> {
        Box::new(Self {
            verbs: UnsafeCell::new(verbs),
            made,
            queue,
            completions: Unacknowledged::default(),
            asyncs: Unacknowledged::default(),
            current: Mutex::new(None),
            empty: AtomicU32::new(0),
        })
    }
}
