//! Handles threads that sleep in a call on an object while another destroys it.
//!
//! Such a thread sleeps on, in a read of a closed descriptor, as with a kernel device. While it
//! sleeps it holds no reference, so it may be cancelled there. It may access the object again only
//! while the object exists.

use rxe_sys::PerProcess;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::ffi::{Failure, Outcome, Uncancelled, cancellation_point, minus_one_of, read_event};

/// The objects of this process that threads may sleep in.
static LIVENESS: PerProcess<Liveness> = PerProcess::new();
/// The ID of the next guard.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

struct Liveness {
    /// The first ID of this process. Lower IDs belong to a parent of this process.
    first: u64,
    states: Mutex<BTreeMap<u64, State>>,
    left: Condvar,
}

impl Default for Liveness {
    fn default() -> Self {
        let first = NEXT_ID.load(Ordering::Relaxed);
        Self { first, states: Mutex::default(), left: Condvar::new() }
    }
}

struct State {
    /// The number of threads that hold a reference to the object.
    inside: u32,
    /// Whether the object is being destroyed, so no further thread may get a reference.
    ends: bool,
}

/// Keeps threads out of an object from [`LivenessGuard::end`] on, before it is destroyed.
#[derive(Debug)]
pub(crate) struct LivenessGuard(u64);

impl LivenessGuard {
    pub(crate) fn new() -> Self {
        let liveness = LIVENESS.get();
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        liveness.states.lock().insert(id, State { inside: 0, ends: false });
        Self(id)
    }

    /// Returns an ID by which a thread can check whether the object still exists.
    pub(crate) fn id(&self) -> u64 {
        self.0
    }

    /// Keeps further threads out of the object, and waits for those inside.
    /// No thread sleeps inside.
    pub(crate) fn end(&self) {
        let Liveness { states, left, .. } = LIVENESS.get();
        let mut states = states.lock();
        loop {
            match states.get_mut(&self.0) {
                Some(state) if state.inside > 0 => state.ends = true,
                _ => break,
            }
            left.wait(&mut states);
        }
        states.remove(&self.0);
    }
}

/// Runs `look` while the object exists. Returns `None` if the object is being destroyed.
pub(crate) fn enter<T>(id: u64, look: impl FnOnce() -> T) -> Option<T> {
    let _uncancelled = Uncancelled::new();
    let Liveness { first, states, left } = LIVENESS.get();
    if id < *first {
        // The object belongs to a parent, and is not destroyed in this process. `look` refuses it.
        return Some(look());
    }
    states.lock().get_mut(&id).filter(|state| !state.ends)?.inside += 1;
    let found = look();
    if let Some(state) = states.lock().get_mut(&id) {
        state.inside -= 1;
        if state.ends {
            left.notify_all();
        }
    }
    Some(found)
}

/// Calls `look`, which does not wait, until it returns a result for the program.
/// Between the calls, the thread sleeps in a read of `fd`, the object's descriptor. If the object
/// is destroyed meanwhile, the thread sleeps on until a signal ends the read.
///
/// The thread may be cancelled while it sleeps and before each call, so `look` must not leave
/// behind anything that must be dropped.
pub(crate) fn wait_in(
    verb: &'static str,
    id: u64,
    fd: RawFd,
    look: impl Fn() -> Option<Outcome> + Copy,
) -> c_int {
    loop {
        cancellation_point();
        // The descriptor of a destroyed object is closed.
        let destroyed = || Some(Err(Failure::plain(libc::EBADF)));
        if let Some(outcome) = enter(id, look).unwrap_or_else(destroyed) {
            return minus_one_of(verb, outcome);
        }
        if let Err(errno) = read_event(fd) {
            return minus_one_of(verb, Err(Failure::plain(errno)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_object_ends_when_the_thread_inside_has_left() {
        let guard = LivenessGuard::new();
        let (inside, left) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                enter(guard.id(), || {
                    inside.store(true, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(50));
                    left.store(true, Ordering::SeqCst);
                })
            });
            while !inside.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            guard.end();
            assert!(left.load(Ordering::SeqCst));
        });
        assert_eq!(enter(guard.id(), || ()), None);
        guard.end();
    }

    #[test]
    fn a_child_of_fork_has_guards_of_its_own() {
        let of_parent = LivenessGuard::new();
        let locked = LIVENESS.get().states.lock();
        // SAFETY: the child only calls what follows, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the alarm ends a child that waits for the parent's lock, which no thread of
            // it can unlock.
            unsafe { libc::alarm(20) };
            let refused = enter(of_parent.id(), || 7) == Some(7);
            let own = LivenessGuard::new();
            let alive = enter(own.id(), || 8) == Some(8);
            own.end();
            let ends = enter(own.id(), || 9).is_none();
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!(refused && alive && ends))) };
        }
        drop(locked);
        let mut status = 0;
        // SAFETY: our own child and variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(enter(of_parent.id(), || 7), Some(7));
        of_parent.end();
    }
}
