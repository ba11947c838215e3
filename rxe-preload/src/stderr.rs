//! Writes lines to stderr without ever blocking.
//!
//! A thread that drives the engine may write an explanation, and stderr may be a pipe that is not
//! read. So a line is written only if it fits immediately. Otherwise it is dropped and counted, and
//! the count is written with the next line that fits.
//!
//! A program may close descriptor 2 and reuse the number for a file or a connection of its own,
//! where a line would corrupt its data. So lines are written only if descriptor 2 is still the file
//! that it was when the program began, or is the same file as descriptor 1 (as when both are
//! redirected), or is open for appending, as logs are.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2, write};

/// Bytes that one write to a pipe transfers atomically (PIPE_BUF).
const MAX_WRITE: usize = 4096;

/// The number of lines dropped since the last line that was written.
static DROPPED: AtomicU32 = AtomicU32::new(0);

/// The device and inode numbers that identify a file.
type Identity = (u64, u64);

/// The file that descriptor 2 was when the library was loaded. `None` if it was closed.
static AT_LOAD: OnceLock<Option<Identity>> = OnceLock::new();

/// Remembers which file stderr is. Called when the library is loaded.
pub(super) fn remember() {
    AT_LOAD.get_or_init(|| identity(std::io::stderr().as_fd()));
}

/// Writes a line of the library to stderr.
pub(super) fn line(text: &str) {
    remember();
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    if !is_for_messages(stderr.as_fd(), AT_LOAD.get().copied().flatten(), stdout.as_fd()) {
        return;
    }
    // The write blocks if stderr is a regular file on a disk.
    rxe_sys::may_block("writing to stderr");
    line_to(stderr.as_fd(), &DROPPED, text);
}

/// Returns whether messages may be written to descriptor 2.
/// `at_load` is the file that it was at load.
fn is_for_messages(
    stderr: BorrowedFd<'_>,
    at_load: Option<Identity>,
    stdout: BorrowedFd<'_>,
) -> bool {
    let Some(now) = identity(stderr) else { return false };
    let appends = || fcntl_getfl(stderr).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    at_load == Some(now) || identity(stdout) == Some(now) || appends()
}

fn identity(fd: BorrowedFd<'_>) -> Option<Identity> {
    fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn line_to(to: BorrowedFd<'_>, dropped: &AtomicU32, text: &str) {
    let missed = dropped.swap(0, Ordering::Relaxed);
    let mut line = String::new();
    if missed > 0 {
        line = format!("rxe: {missed} explanations were not written: nobody reads stderr\n");
    }
    line += &format!("rxe: {text}");
    let mut end = line.len().min(MAX_WRITE - 1);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line.push('\n');
    if at_once(to, line.as_bytes()) == Err(Errno::AGAIN) {
        dropped.fetch_add(missed + 1, Ordering::Relaxed);
    }
}

/// Writes the bytes in one call. Fails with [`Errno::AGAIN`] if the call would block.
fn at_once(to: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let kind = FileType::from_raw_mode(fstat(to)?.st_mode);
    if kind != FileType::RegularFile {
        let mut ready = [PollFd::new(&to, PollFlags::OUT)];
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        if !ready[0].revents().contains(PollFlags::OUT) {
            return Err(Errno::AGAIN);
        }
        // Another process may fill the pipe after the poll, so the kernel is asked not to block, if
        // it supports that. The offset -1 makes pwritev2 use the current file position, as write(2)
        // does.
        match pwritev2(to, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::SPIPE) => {}
            done => return done.map(|_| ()),
        }
    }
    write(to, bytes).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn only_what_is_meant_for_messages_gets_lines() {
        let file = || rustix::fs::memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
        let [terminal, stdout, data, log] = [(); 4].map(|()| file());
        rustix::fs::fcntl_setfl(&log, OFlags::APPEND).unwrap();
        let was = identity(terminal.as_fd());
        let is_for = |fd: &OwnedFd| is_for_messages(fd.as_fd(), was, stdout.as_fd());
        assert!(is_for(&terminal) && is_for(&log) && is_for(&stdout));
        assert!(!is_for(&data));
        assert!(!is_for_messages(terminal.as_fd(), None, stdout.as_fd()), "it was closed at first");
    }

    #[test]
    fn a_full_pipe_makes_nobody_wait_and_what_was_dropped_is_counted() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let dropped = AtomicU32::new(0);
        let long = "x".repeat(MAX_WRITE);
        let mut lines = 0;
        while dropped.load(Ordering::Relaxed) == 0 {
            line_to(to.as_fd(), &dropped, &long);
            lines += 1;
        }
        line_to(to.as_fd(), &dropped, &long);
        assert_eq!(dropped.load(Ordering::Relaxed), 2);
        let mut got = vec![0; lines * MAX_WRITE];
        let n = rustix::io::read(&from, &mut got[..]).unwrap();
        assert!(n % MAX_WRITE == 0 && got[..n].ends_with(b"x\n"), "whole lines only");
        line_to(to.as_fd(), &dropped, "short");
        drop(to);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut std::fs::File::from(from), &mut rest).unwrap();
        let end = "rxe: 2 explanations were not written: nobody reads stderr\nrxe: short\n";
        assert!(rest.ends_with(end), "{rest}");
    }
}
