//! The lock guard of a shard.

use std::ops::{Deref, DerefMut};
use std::thread;

use parking_lot::MutexGuard;
use rxe_sys::NonBlocking;

use super::{Core, Shard};

/// The shard's lock, held by this thread, which must not block meanwhile.
///
/// When the guard is dropped, a waiting thread gets the lock if the turn was long, and observers
/// are told of events. If the thread panics while it holds the lock, the shard fails: the state of
/// the engine can no longer be trusted.
pub(super) struct Locked<'s> {
    shard: &'s Shard,
    /// `None` only while the guard is dropped.
    core: Option<MutexGuard<'s, Core>>,
    non_blocking: Option<NonBlocking>,
    panicked_before: bool,
}

impl<'s> Locked<'s> {
    pub(super) fn new(shard: &'s Shard, core: MutexGuard<'s, Core>) -> Self {
        let non_blocking = Some(NonBlocking::enter());
        Self { shard, core: Some(core), non_blocking, panicked_before: thread::panicking() }
    }
}

impl Deref for Locked<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core.as_ref().expect("locked until dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("locked until dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let panics = thread::panicking() && !self.panicked_before;
        if panics {
            if let Some(core) = &mut self.core {
                core.intact = false;
            }
            self.shard.tell_failure("the engine panicked: please report this as a bug".into());
        }
        if let Some(mut core) = self.core.take()
            && std::mem::take(&mut core.limit).hands_over()
        {
            MutexGuard::unlock_fair(core);
        }
        self.non_blocking = None;
        if !panics && let Some(observers) = &self.shard.observers {
            observers.deliver();
        }
    }
}
