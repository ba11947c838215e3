//! The objects of a context that can be imported, with their numbers of users.
//!
//! An imported object is the object itself, so its users share one structure. Destroying the object
//! ends it for all of them; the structure stays until the others have unimported it. Unimporting
//! alone ends nothing.

use std::collections::HashMap;
use std::ffi::c_void;

use parking_lot::Mutex;

/// The kinds of objects that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Importable {
    Pd,
    Mr,
    Dm,
}

/// The importable objects of a context by their handles.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<HashMap<u32, Entry>>);

#[derive(Debug)]
struct Entry {
    kind: Importable,
    object: *mut c_void,
    users: u32,
    destroyed: bool,
}

impl Imports {
    /// Records a new object, which has one user.
    pub(crate) fn made(&self, handle: u32, kind: Importable, object: *mut c_void) {
        self.0.lock().insert(handle, Entry { kind, object, users: 1, destroyed: false });
    }

    /// Returns the object of this kind with one more user. Returns `None` if it does not exist.
    pub(crate) fn import(&self, handle: u32, kind: Importable) -> Option<*mut c_void> {
        let mut all = self.0.lock();
        let entry = all.get_mut(&handle).filter(|e| e.kind == kind && !e.destroyed)?;
        entry.users += 1;
        Some(entry.object)
    }

    /// Records that a user has destroyed the object.
    /// Returns whether it was the last user, so the structure must be freed.
    pub(crate) fn destroyed(&self, handle: u32) -> bool {
        self.left(handle, true)
    }

    /// Records that a user has unimported the object. Returns whether the structure must be freed.
    pub(crate) fn unimported(&self, handle: u32) -> bool {
        self.left(handle, false)
    }

    fn left(&self, handle: u32, destroys: bool) -> bool {
        let mut all = self.0.lock();
        let Some(entry) = all.get_mut(&handle) else { return destroys };
        entry.users = entry.users.saturating_sub(1);
        entry.destroyed |= destroys;
        let free = entry.destroyed && entry.users == 0;
        if free {
            all.remove(&handle);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_user_of_a_destroyed_object_frees_it() {
        let imports = Imports::default();
        let object = std::ptr::without_provenance_mut(64);
        imports.made(7, Importable::Mr, object);
        assert_eq!(imports.import(7, Importable::Pd), None, "another kind");
        assert_eq!(imports.import(8, Importable::Mr), None);
        assert_eq!(imports.import(7, Importable::Mr), Some(object));
        assert!(!imports.destroyed(7), "the importer still has it");
        assert_eq!(imports.import(7, Importable::Mr), None, "destroyed");
        assert!(imports.unimported(7));
        assert!(!imports.unimported(7), "gone");

        imports.made(9, Importable::Dm, object);
        assert!(!imports.unimported(9), "unimporting destroys nothing");
        assert_eq!(imports.import(9, Importable::Dm), Some(object));
        assert!(imports.destroyed(9));
    }
}
