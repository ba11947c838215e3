//! Values that each process has once, and that a forked child does not inherit.
//!
//! If another thread holds a lock when a process forks, the lock stays locked for ever in the child,
//! which does not have that thread; and the protected value may be half changed. So the child gets its
//! own value, and does not touch its parent's.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork_generation;

/// A value for each process, made when it is first used.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    now: AtomicPtr<Of<T>>,
}

struct Of<T> {
    generation: u64,
    value: T,
}

impl<T: Default + Sync> PerProcess<T> {
    /// One that nobody has used yet.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { now: AtomicPtr::new(ptr::null_mut()) }
    }

    /// This process's value.
    pub fn get(&self) -> &'static T {
        let generation = fork_generation();
        loop {
            let now = self.now.load(Ordering::Acquire);
            // SAFETY: null, or made below and never freed; what `generation` says never changes.
            if let Some(of) = unsafe { now.as_ref() }
                && of.generation == generation
            {
                return &of.value;
            }
            let new = Box::into_raw(Box::new(Of { generation, value: T::default() }));
            let swapped = self.now.compare_exchange(now, new, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: just made, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn a_child_of_fork_has_a_value_of_its_own() {
        static NUMBER: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut number = NUMBER.get().lock();
        *number = 7;
        // SAFETY: the child only calls what follows, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // The parent's is locked, and nobody will unlock it here.
            let own = NUMBER.get().try_lock().is_some_and(|own| *own == 0);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!own)) };
        }
        let mut status = 0;
        // SAFETY: our own child and variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(number);
        assert_eq!(*NUMBER.get().lock(), 7);
    }
}
