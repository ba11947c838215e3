//! Threads that sleep in an object which another thread of the program destroys.
//!
//! Where verbs are system calls such a thread sleeps on, in a read of a descriptor that is no more,
//! and touches nothing of the object. Here it comes and goes: between two looks, a
//! [`CANCEL_TICK`] apart, it holds no reference, and it gets in again only while the object lives.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::event::{Timespec, poll};
use rustix::io::Errno;

use crate::explain;
use crate::ffi::{
    CANCEL_TICK, Failure, Outcome, cancellation_point, minus_one_of, signals_interrupt,
};
use crate::per_process::PerProcess;

/// After so many pauses (a second) in what is destroyed, the program is told.
const SILENT_PAUSES: u32 = 5;

/// The objects that threads may sleep in.
static LIVES: PerProcess<Lives> = PerProcess::new();
/// The number of the next one's life.
static NEXT: AtomicU64 = AtomicU64::new(0);

struct Lives {
    /// Those of lower numbers are of the parent of this process.
    first: u64,
    states: Mutex<BTreeMap<u64, State>>,
    left: Condvar,
}

impl Default for Lives {
    fn default() -> Self {
        let first = NEXT.load(Ordering::Relaxed);
        Self { first, states: Mutex::default(), left: Condvar::new() }
    }
}

struct State {
    /// Threads that hold references now.
    inside: u32,
    /// No more get in.
    ends: bool,
}

/// The life of an object, from its making to [`Life::end`].
#[derive(Debug)]
pub(crate) struct Life(u64);

impl Life {
    pub(crate) fn begin() -> Self {
        let lives = LIVES.get();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lives.states.lock().insert(number, State { inside: 0, ends: false });
        Self(number)
    }

    /// By which a thread may ask for the object when that is no more.
    pub(crate) fn number(&self) -> u64 {
        self.0
    }

    /// Lets no thread in any more, and waits for those inside, which look within [`CANCEL_TICK`].
    pub(crate) fn end(&self) {
        let Lives { states, left, .. } = LIVES.get();
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

/// Runs `look`, during which the object stays; `None` if its life has ended.
fn visit<T>(life: u64, look: impl FnOnce() -> T) -> Option<T> {
    let Lives { first, states, left } = LIVES.get();
    if life < *first {
        // The parent's, and here nobody destroys it: `look` refuses it.
        return Some(look());
    }
    states.lock().get_mut(&life).filter(|state| !state.ends)?.inside += 1;
    let found = look();
    if let Some(state) = states.lock().get_mut(&life) {
        state.inside -= 1;
        if state.ends {
            left.notify_all();
        }
    }
    Some(found)
}

/// Has `look` sleep for a while, again and again until it has a result for the program. When the
/// object's life ends meanwhile the thread sleeps on, as it would in the kernel, until a signal ends
/// that.
///
/// The thread may be cancelled between two looks, so `look` holds nothing that must be dropped.
pub(crate) fn sleep_in(
    verb: &'static str,
    life: u64,
    look: impl Fn() -> Option<Outcome> + Copy,
) -> c_int {
    let mut pauses = 0;
    loop {
        cancellation_point();
        let found = visit(life, look).unwrap_or_else(|| {
            // Programs that end often destroy first and end their threads a moment later.
            pauses += 1;
            if pauses <= SILENT_PAUSES {
                return pause().map(Err);
            }
            let why = "what this thread waits in was destroyed by another thread: no event comes \
                       any more. End the thread first";
            explain::once(verb, why);
            pause().map(Err)
        });
        if let Some(outcome) = found {
            return minus_one_of(verb, outcome);
        }
    }
}

/// Sleeps; the failure of a program's call that a signal has ended.
fn pause() -> Option<Failure> {
    let tick = Timespec::try_from(CANCEL_TICK).ok();
    match poll(&mut [], tick.as_ref()) {
        Err(Errno::INTR) if signals_interrupt() => Some(Failure::plain(libc::EINTR)),
        _ => None,
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
        let life = Life::begin();
        let (inside, left) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|s| {
            s.spawn(|| {
                visit(life.number(), || {
                    inside.store(true, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(50));
                    left.store(true, Ordering::SeqCst);
                })
            });
            while !inside.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            life.end();
            assert!(left.load(Ordering::SeqCst));
        });
        assert_eq!(visit(life.number(), || ()), None);
        life.end();
    }

    #[test]
    fn a_child_of_fork_has_lives_of_its_own() {
        let of_parent = Life::begin();
        let locked = LIVES.get().states.lock();
        // SAFETY: the child only calls what follows, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends a child that waits for the parent's lock, which nobody unlocks here.
            unsafe { libc::alarm(20) };
            let refused = visit(of_parent.number(), || 7) == Some(7);
            let own = Life::begin();
            let lives = visit(own.number(), || 8) == Some(8);
            own.end();
            let ends = visit(own.number(), || 9).is_none();
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!(refused && lives && ends))) };
        }
        drop(locked);
        let mut status = 0;
        // SAFETY: our own child and variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(visit(of_parent.number(), || 7), Some(7));
        of_parent.end();
    }
}
