//! The object behind a program's `struct ibv_cq`.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rxe_verbs::{Completion, CompletionQueue};

use super::{Context, Handle, Unacknowledged};
use crate::ibverbs::abi::{ibv_cq, ibv_cq_ex};

/// A completion queue as programs hold it. It always has the extended interface.
#[repr(C)]
pub(crate) struct Cq {
    /// The header's structure, to which the program may write too.
    verbs: UnsafeCell<ibv_cq_ex>,
    made: Handle,
    pub(crate) queue: ManuallyDrop<CompletionQueue>,
    pub(crate) completions: Unacknowledged,
    pub(crate) asyncs: Unacknowledged,
    /// The completion that the extended interface currently presents.
    pub(crate) current: Mutex<Option<Completion>>,
    /// The number of consecutive polls that found nothing.
    empty: AtomicU32,
}

found_by_pointer!(Cq, ibv_cq);
known_by_handle!(Cq, ibv_cq, "the completion queue");
ends_with!(Cq, queue);

impl Cq {
    /// Returns the context on which the queue was created. It is open while the queue exists.
    pub(crate) fn owner(&self) -> &Context {
        // SAFETY: `context` was set when the queue was created, and no code changes it; `verbs` is
        // read without a reference to it.
        unsafe { Context::of((*self.verbs.get()).base.context) }
    }

    /// Records that a poll found nothing, and yields the CPU if many polls in a row did.
    /// A program that polls in a loop can keep the CPU from its peer, which may run on this host.
    /// So the CPU is yielded after more polls than a round trip takes.
    pub(crate) fn pause(&self) {
        const POLLS_BEFORE_YIELD: u32 = 64;
        if self.empty.fetch_add(1, Ordering::Relaxed) > POLLS_BEFORE_YIELD {
            std::thread::yield_now();
        }
    }

    /// Records that a poll found a completion.
    pub(crate) fn unpause(&self) {
        self.empty.store(0, Ordering::Relaxed);
    }

    /// Creates a completion queue for the program, which frees it with `ibv_destroy_cq`.
    pub(crate) fn into_ptr(verbs: ibv_cq_ex, made: Handle, queue: CompletionQueue) -> *mut Self {
        // SAFETY: an open context.
        let owner = unsafe { Context::of(verbs.base.context) };
        owner.alive.make(Self {
            verbs: UnsafeCell::new(verbs),
            made,
            queue: ManuallyDrop::new(queue),
            completions: Unacknowledged::default(),
            asyncs: Unacknowledged::default(),
            current: Mutex::new(None),
            empty: AtomicU32::new(0),
        })
    }
}
