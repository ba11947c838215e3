//! A value that one thread writes and another reads, with their order ensured by other means. The
//! cell gives out only an address: dereferencing it is `unsafe`, and loom's replacement checks the
//! accesses.

use std::cell::UnsafeCell;

#[repr(transparent)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Calls `f` with the address of the value. No other thread may use the value meanwhile.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
