//! The registry of the identifiers that exist in this process.

use std::collections::{HashMap, HashSet};
use std::ptr;
use std::sync::Once;
use std::time::Duration;

use parking_lot::Mutex;
use rxe_sys::PerProcess;
use rxe_verbs::cm::CmId;

use super::super::abi::rdma_cm_id;
use super::super::devices::disconnect_devices;
use super::Id;
use crate::explain::{self, Later};

static IDS: PerProcess<Mutex<Ids>> = PerProcess::new();

#[derive(Default)]
struct Ids {
    /// The addresses of the programs' identifiers, by the keys of the engine's identifiers.
    of_keys: HashMap<u64, usize>,
    addresses: HashSet<usize>,
}

/// Adds the program's identifier that belongs to the engine's identifier with this key.
pub(super) fn add(key: u64, id: *mut rdma_cm_id) {
    disconnect_at_exit();
    let mut ids = IDS.get().lock();
    ids.of_keys.insert(key, id.expose_provenance());
    ids.addresses.insert(id.addr());
}

/// Removes an identifier that [`add`] added.
pub(super) fn remove(key: u64, id: *mut rdma_cm_id) {
    let mut ids = IDS.get().lock();
    ids.of_keys.remove(&key);
    ids.addresses.remove(&id.addr());
}

/// Returns whether this is an identifier that exists.
pub(super) fn contains(id: *mut rdma_cm_id) -> bool {
    IDS.get().lock().addresses.contains(&id.addr())
}

/// Returns the program's identifier for one of the engine's.
/// `None` if it is destroyed. An event is counted for it while the list is locked: a thread that
/// destroys the identifier first removes it from the list, and then checks the count.
pub(in super::super) fn find(cm: &CmId) -> Option<*mut rdma_cm_id> {
    let ids = IDS.get().lock();
    let id = ptr::with_exposed_provenance_mut(*ids.of_keys.get(&cm.key())?);
    // SAFETY: the identifiers in the list exist.
    unsafe { Id::of(id) }.events.delivered();
    Some(id)
}

/// Explains if a peer that an identifier has asked does not answer for some time.
/// The request itself would fail only after minutes.
pub(in super::super) fn expect_answer() {
    static LATER: Later = Later::new();
    LATER.run(UNANSWERED_FOR, look_for_answers);
}

/// How long a peer may take to answer before the silence is explained.
const UNANSWERED_FOR: Duration = Duration::from_secs(5);

/// Explains which peers have not answered for [`UNANSWERED_FOR`].
/// Returns whether others still may answer, so the check must run again.
fn look_for_answers() -> bool {
    let mut others = false;
    for id in all() {
        // SAFETY: an event is counted for this identifier, so it exists.
        let this = unsafe { Id::of(id) };
        let since = *this.asked.lock();
        let long = since.is_some_and(|since| since.elapsed() >= UNANSWERED_FOR);
        others |= since.is_some() && !long;
        let peer = if long { this.cm.peer_addr() } else { None };
        this.events.acknowledged(1);
        if let Some(peer) = peer {
            explain::silent(peer);
        }
    }
    others
}

/// Returns all identifiers, with an event counted for each, as in [`find`].
/// Each exists until the caller has acknowledged its event, so no thread waits for an identifier
/// while it holds the lock of the list.
fn all() -> Vec<*mut rdma_cm_id> {
    let ids = IDS.get().lock();
    let all = ids.of_keys.values().map(|&address| ptr::with_exposed_provenance_mut(address));
    // SAFETY: the identifiers in the list exist.
    all.inspect(|&id| unsafe { Id::of(id) }.events.delivered()).collect()
}

/// Disconnects the identifiers that are left at exit, as the kernel would.
fn disconnect_at_exit() {
    static ONCE: Once = Once::new();
    extern "C" fn at_exit() {
        // The program may end in a signal handler that interrupts a holder of a lock.
        let Some(ids) = IDS.get().try_lock_for(AT_EXIT) else { return };
        for &id in ids.of_keys.values() {
            // SAFETY: identifiers exist as long as they are in the list, which is locked.
            let this = unsafe { Id::of(ptr::with_exposed_provenance_mut(id)) };
            if !this.cm.disconnect_at_exit(AT_EXIT) {
                // The other identifiers would wait for the same lock.
                return;
            }
        }
        disconnect_devices(AT_EXIT);
    }
    ONCE.call_once(|| {
        // SAFETY: registers a function that may be called at any exit.
        unsafe { libc::atexit(at_exit) };
    });
}

/// How long to wait for each lock at exit.
const AT_EXIT: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::super::{rdma_create_id, rdma_destroy_id};
    use super::*;

    #[test]
    fn nobody_waits_for_an_identifier_while_the_list_is_locked() {
        let mut id: *mut rdma_cm_id = ptr::null_mut();
        // SAFETY: an identifier, from its creation to its destruction.
        let this = unsafe {
            assert_eq!(rdma_create_id(ptr::null_mut(), &raw mut id, ptr::null_mut(), 0x0106), 0);
            Id::of(id)
        };
        let asked = this.asked.lock();
        std::thread::scope(|scope| {
            scope.spawn(look_for_answers);
            loop {
                // The thread has begun to wait, or will soon.
                let waits = this.events.count() > 0;
                let list = IDS.get().try_lock_for(Duration::from_secs(10));
                assert!(list.is_some(), "the list is locked by who waits for an identifier");
                if waits {
                    break;
                }
            }
            drop(asked);
        });
        assert_eq!(this.events.count(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { rdma_destroy_id(id) }, 0);
    }
}
