//! Threads of this library inside a program that does not know of them.

use std::io;
use std::mem::{self, MaybeUninit};
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread::{self, Builder, JoinHandle};

use parking_lot::Mutex;

use crate::may_block;

/// The signals that a faulting instruction raises on its own thread. If they were blocked, the
/// kernel would kill the process without running the program's handler.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that never runs the program's signal handlers. The thread blocks all signals but
/// the synchronous ones. A signal sent to the process is then delivered to one of the program's own
/// threads, or stays pending for its `sigwait` or signalfd.
///
/// `name` is the name in `ps -L` and debuggers, 15 bytes at most.
///
/// # Errors
/// The kernel has no memory or no thread left.
pub fn spawn_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread inherits the signal mask of its creator, so it has the right one from its first
    // instruction on.
    let before = block_signals();
    let spawned = Builder::new().name(name.into()).spawn(run);
    restore_signals(&before);
    spawned
}

/// Like [`spawn_thread`], but returns only after the thread has begun to run.
///
/// When a thread first allocates, the C library creates its part of the heap, and calls `munmap`
/// for that. Some libraries (libfabric, to watch mappings) overwrite the code of `munmap` at run
/// time. If a thread is in `munmap` at that moment, the process dies of SIGSEGV. A thread that has
/// begun has its heap, and seldom calls `munmap`.
///
/// # Errors
/// As [`spawn_thread`].
///
/// # Panics
/// In debug builds, if the calling thread must not block ([`NonBlocking`](crate::NonBlocking)).
pub fn spawn_and_await<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    may_block("waiting for a thread to begin");
    let (begun, begins) = mpsc::channel();
    let thread = spawn_thread(name, move || {
        // Sending allocates, so this thread's part of the heap exists from here on.
        let _ = begun.send(());
        drop(begun);
        run()
    })?;
    let _ = begins.recv();
    Ok(thread)
}

/// Calls `f` on a new thread and waits for it: for code that needs a large stack. A program may
/// give its own threads as little as 16 KiB (PTHREAD_STACK_MIN). If no thread can be started, `f`
/// runs on the calling thread. `name` is as for [`spawn_thread`].
///
/// # Panics
/// If `f` panics. In debug builds also if the calling thread must not block.
pub fn on_own_stack<T: Send>(name: &str, f: impl FnOnce() -> T + Send) -> T {
    may_block("waiting for a thread");
    let f = Mutex::new(Some(f));
    let run = || {
        let f = f.lock().take();
        f.map(|f| f())
    };
    let ran = thread::scope(|scope| {
        let before = block_signals();
        let spawned = Builder::new().name(name.into()).spawn_scoped(scope, run);
        restore_signals(&before);
        spawned.ok().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    ran.unwrap_or_else(|| in_own_frame(run)).expect("it is called once")
}

/// Calls `f` in a separate stack frame, so that the caller's frame stays small.
#[inline(never)]
fn in_own_frame<T>(f: impl FnOnce() -> T) -> T {
    f()
}

/// Lowers the priority of the calling thread, so that it yields the CPU to others. nice(1).
pub fn lower_priority() {
    const NICE: i32 = 10;
    // No privilege is needed to raise the nice value of one's own thread.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
}

/// Returns whether the calling thread has the default scheduling policy, SCHED_OTHER. sched(7).
pub fn is_ordinary() -> bool {
    // SAFETY: `sched_getscheduler` reads no memory of the process.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
}

/// Gives the calling thread the lowest real-time priority (SCHED_RR): it preempts ordinary threads
/// as soon as it can run. Threads and processes that it starts are ordinary ones. sched(7).
///
/// # Errors
/// EPERM without CAP_SYS_NICE, a limit of real-time priorities (RLIMIT_RTPRIO), or a share of the
/// control group's real-time budget.
pub fn set_realtime() -> io::Result<()> {
    // SAFETY: `sched_get_priority_min` reads no memory of the process.
    let lowest = unsafe { libc::sched_get_priority_min(libc::SCHED_RR) };
    set_scheduler(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, lowest)
}

/// Undoes [`set_realtime`].
///
/// # Errors
/// None that are known: the kernel permits a thread to lower its priority.
pub fn set_ordinary() -> io::Result<()> {
    // Without CAP_SYS_NICE, the kernel does not permit to clear SCHED_RESET_ON_FORK.
    set_scheduler(libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, 0)
}

fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: `sched_param` consists of integers, for which zero is valid.
    let mut param: libc::sched_param = unsafe { mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: `param` is valid for reads. 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks all but the synchronous signals for the calling thread. Returns the previous mask.
fn block_signals() -> libc::sigset_t {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid for writes, and `sigfillset` initialises `blocked`, the only one
    // that is read. `pthread_sigmask` fails only for an unknown first argument, so it fills
    // `before`.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for signal in SYNCHRONOUS {
            libc::sigdelset(blocked.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: `mask` was filled by `pthread_sigmask`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(signal: libc::c_int) -> bool {
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: without a new set, only the current mask is written.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
            libc::sigismember(mask.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_thread_of_ours_blocks_what_the_program_handles_and_leaves_its_caller_as_it_was() {
        let caller = blocks(libc::SIGUSR2);
        let seen = spawn_thread("rxe-test", || {
            [libc::SIGUSR2, libc::SIGTERM, libc::SIGALRM, libc::SIGSEGV, libc::SIGBUS].map(blocks)
        });
        assert_eq!(seen.unwrap().join().unwrap(), [true, true, true, false, false]);
        assert_eq!(blocks(libc::SIGUSR2), caller);
    }

    #[test]
    fn what_needs_more_stack_than_its_caller_has_gets_it() {
        const LARGE: usize = 256 << 10;
        let fills =
            || std::hint::black_box([7_u8; LARGE]).iter().filter(|byte| **byte == 7).count();
        let small =
            Builder::new().stack_size(64 << 10).spawn(move || on_own_stack("rxe-test", fills));
        assert_eq!(small.unwrap().join().unwrap(), LARGE);
        let panics = || on_own_stack("rxe-test", || std::panic::panic_any("for the test"));
        let panicked = std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(panicked.downcast_ref(), Some(&"for the test"));
    }

    /// Without this, the process of fi_pingpong died now and then.
    #[test]
    fn a_thread_of_ours_has_begun_when_the_call_returns() {
        for number in 0..100 {
            let name = format!("rxe-begun-{number}");
            let (stop, stopped) = mpsc::channel::<()>();
            let thread = spawn_and_await(&name, move || stopped.recv()).unwrap();
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let has_name = |task: std::path::PathBuf| {
                std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
            };
            let begun = tasks.flatten().any(|task| has_name(task.path()));
            drop(stop);
            assert!(thread.join().unwrap().is_err());
            assert!(begun, "{name} has no name yet");
        }
    }
}
