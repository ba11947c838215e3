//! Prevents a panic in this library from unwinding into the program.
//!
//! Most exported functions are `extern "C"`, which no panic can leave. Some are `extern
//! "C-unwind"`, because a thread may be cancelled in them. So a panic hook, which runs before
//! anything is unwound, reports the panic and ends the process. Only this library's own threads
//! continue: they catch their panics, and the device fails. The standard library is linked into
//! this library statically, so the hook is not called for panics of the program.

use std::panic::{PanicHookInfo, set_hook};
use std::{process, thread};

use crate::stderr;

/// Installs the panic hook.
pub(crate) fn install() {
    set_hook(Box::new(hook));
}

fn hook(info: &PanicHookInfo<'_>) {
    let own = thread::current().name().is_some_and(|name| name.starts_with("rxe-"));
    let end = if own { "the device fails" } else { "the program ends" };
    let text = info.payload().downcast_ref::<&str>().copied();
    let text = text.or_else(|| info.payload().downcast_ref::<String>().map(String::as_str));
    let what = text.unwrap_or("a panic");
    let place = info.location().map(|place| format!(" ({place})")).unwrap_or_default();
    stderr::line(&format!("this is a bug, please report it: {what}{place}; {end}"));
    if !own {
        process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    extern "C-unwind" fn entry() {
        panic!("on purpose");
    }

    /// Forks a child that installs the hook and calls `deed`.
    /// Returns its output and its wait status.
    fn child(deed: impl FnOnce()) -> (String, libc::c_int) {
        let (from, to) = rustix::pipe::pipe().unwrap();
        // SAFETY: the child only calls what follows, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: stdout and stderr of the child, which gets no core file. stderr is no longer
            // the file that it was at load, so it must be the same file as stdout for lines to be
            // written.
            unsafe {
                libc::dup2(to.as_raw_fd(), 1);
                libc::dup2(to.as_raw_fd(), 2);
                libc::prctl(libc::PR_SET_DUMPABLE, 0);
            }
            install();
            deed();
            // SAFETY: ends the process.
            unsafe { libc::_exit(7) };
        }
        drop(to);
        let mut said = String::new();
        File::from(from).read_to_string(&mut said).unwrap();
        let mut status = 0;
        // SAFETY: our own child and variable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        (said, status)
    }

    #[test]
    fn a_panic_in_a_thread_of_ours_is_said_and_the_program_goes_on() {
        let (said, status) = child(|| {
            let thread = rxe_sys::spawn_thread("rxe-test", || entry());
            assert!(thread.unwrap().join().is_err());
        });
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status}: {said}");
        assert!(
            said.contains("report it: on purpose (") && said.contains("device fails"),
            "{said}"
        );
    }

    #[test]
    fn a_panic_ends_the_process_with_a_word_and_unwinds_nothing() {
        let (said, status) = child(|| drop(std::panic::catch_unwind(|| entry())));
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status}");
        let parts = ["rxe: this is a bug, please report it: on purpose (", "panics.rs"];
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}
