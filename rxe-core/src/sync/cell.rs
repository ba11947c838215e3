//! What is written by one thread and read by another, with the order of the two kept by something
//! else. Only an address comes out of it: following that is `unsafe`, and loom's stand-in watches.

use std::cell::UnsafeCell;

#[repr(transparent)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Calls `f` with the address of what nobody else uses meanwhile.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
