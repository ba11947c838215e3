//! Values that exist once per process and that a forked child does not inherit.
//!
//! If another thread holds a lock when a process forks, the lock stays locked in the child, which
//! does not have that thread, and the protected value may be half changed. So the child gets its
//! own value and does not touch its parent's.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork_generation;

/// A value that each process creates on first use.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    now: AtomicPtr<Of<T>>,
}

struct Of<T> {
    generation: u64,
    value: T,
}

impl<T: Default + Sync> PerProcess<T> {
    /// Creates an empty cell; the value is created by the first [`PerProcess::get`].
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self { now: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value of this process, which it creates if necessary.
    pub fn get(&self) -> &'static T {
        let generation = fork_generation();
        loop {
            let now = self.now.load(Ordering::Acquire);
            // SAFETY: null, or allocated below and never freed; `generation` never changes.
            if let Some(of) = unsafe { now.as_ref() }
                && of.generation == generation
            {
                return &of.value;
            }
            let new = Box::into_raw(Box::new(Of { generation, value: T::default() }));
            let swapped = self.now.compare_exchange(now, new, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: allocated above, and no other thread has seen it.
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
        // SAFETY: the child calls only the functions below, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // The parent's value is locked, and no thread of this child will unlock it.
            let own = NUMBER.get().try_lock().is_some_and(|own| *own == 0);
            // SAFETY: exits the process.
            unsafe { libc::_exit(i32::from(!own)) };
        }
        let mut status = 0;
        // SAFETY: the child was forked above, and `status` is a local variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        drop(number);
        assert_eq!(*NUMBER.get().lock(), 7);
    }
}
