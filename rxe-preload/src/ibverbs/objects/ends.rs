//! Ends the objects that are left when a program closes their context.
//!
//! The kernel destroys all objects of a process's context when the context is closed. Here the
//! structures stay allocated, because the program has pointers to them, and the engine's objects
//! behind them end. From then on the context belongs to no process (`Context::is_own`), and calls
//! on its objects fail.

use std::collections::HashMap;

use parking_lot::Mutex;

/// An object whose structure can outlive the engine's object behind it.
pub(crate) trait Ends {
    /// Ends the engine's object behind this one.
    ///
    /// # Safety
    /// This is called once. Only the structure is used afterwards.
    unsafe fn end(&mut self);
}

/// The objects that a program has created on a context and not destroyed: the end function of each,
/// by address.
#[derive(Debug, Default)]
pub(crate) struct Alive(Mutex<HashMap<usize, End>>);

/// # Safety
/// As for [`Ends::end`]. The address is that of an object registered with this function.
type End = unsafe fn(usize);

impl Alive {
    /// Allocates an object at an address that stays valid until [`Alive::free`].
    pub(crate) fn make<T: Ends>(&self, object: T) -> *mut T {
        let object = Box::into_raw(Box::new(object));
        self.0.lock().insert(object.expose_provenance(), end::<T>);
        object
    }

    /// Ends and frees an object that the program destroys.
    ///
    /// # Safety
    /// `object` is from [`Alive::make`], its context has not ended, and nothing else uses it any
    /// more.
    pub(crate) unsafe fn free<T: Ends>(&self, object: *mut T) {
        self.0.lock().remove(&object.addr());
        // SAFETY: the caller's promise. Nothing is left in the box that is dropped twice.
        unsafe {
            let mut object = Box::from_raw(object);
            object.end();
        }
    }

    /// Returns whether no objects are left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Ends the engine's objects behind all that are left.
    ///
    /// # Safety
    /// As for [`Ends::end`].
    pub(super) unsafe fn end_all(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        for (object, end) in all {
            // SAFETY: the object was registered with this function, and is not freed: it would not
            // be here.
            unsafe { end(object) };
        }
    }
}

/// # Safety
/// See [`End`].
unsafe fn end<T: Ends>(object: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*std::ptr::with_exposed_provenance_mut::<T>(object)).end() };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Object(Option<Arc<()>>);

    impl Ends for Object {
        unsafe fn end(&mut self) {
            assert!(self.0.take().is_some(), "ended twice");
        }
    }

    #[test]
    fn what_is_behind_an_object_ends_once_and_the_structure_stays() {
        let (alive, behind) = (Alive::default(), Arc::new(()));
        let [freed, left] = [(); 2].map(|()| alive.make(Object(Some(Arc::clone(&behind)))));
        // SAFETY: no other code has it.
        unsafe { alive.free(freed) };
        assert_eq!((Arc::strong_count(&behind), alive.is_empty()), (2, false));
        // SAFETY: only the structure is used afterwards, and it is freed at the end.
        let left = unsafe {
            alive.end_all();
            alive.end_all();
            Box::from_raw(left)
        };
        assert!(Arc::strong_count(&behind) == 1 && alive.is_empty() && left.0.is_none());
    }
}
