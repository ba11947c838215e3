//! Checks that an object of a program is still valid, by its context and its handle. Both are in
//! memory that the program can write.
//!
//! A kernel looks each object up by its handle in a table, and returns ENOENT if it is not there.
//! Here the object is the memory to which the program points. So the two fields are compared with
//! their original values before an object is changed, destroyed or used to create another. Calls of
//! the data path (posting, polling) do not compare them, as in other providers.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ffi::{Failure, Outcome};
use crate::ibverbs::abi::ibv_context;

/// The context and the handle with which an object was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    context: *mut ibv_context,
    number: u32,
}

impl Handle {
    /// Creates a handle that no other object of this process has had recently.
    pub(crate) fn new(context: *mut ibv_context) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self { context, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns the value of the object's `handle` field.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Compares the present fields of an object with the original ones.
    /// `what` names the object in the explanation.
    pub(crate) fn check(&self, what: &str, context: *mut ibv_context, handle: u32) -> Outcome {
        if handle == self.number && context == self.context {
            return Ok(());
        }
        let why = if handle == self.number {
            format!("{what} was made on another device context (ibv_open_device)")
        } else {
            format!(
                "{what} has the handle {handle:#x}, and was made with {:#x}: was it destroyed, or \
                 its memory overwritten?",
                self.number
            )
        };
        Err(Failure::new(libc::ENOENT, why))
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{self, without_provenance_mut};

    use super::*;

    #[test]
    fn only_the_own_context_and_handle_are_believed() {
        let context = without_provenance_mut(64);
        let [a, b] = [Handle::new(context), Handle::new(context)];
        assert_ne!(a.number(), b.number());
        assert!(a.check("it", context, a.number()).is_ok());
        let of = |outcome: Outcome| outcome.map_err(|failure| failure.errno);
        assert_eq!(of(a.check("it", context, b.number())), Err(libc::ENOENT));
        assert_eq!(of(a.check("it", ptr::null_mut(), a.number())), Err(libc::ENOENT));
    }
}
