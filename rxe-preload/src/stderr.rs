//! Writes lines to stderr without ever waiting.
//!
//! A thread that turns the engine may write an explanation, and stderr may be a pipe that nobody reads.
//! So a line is written only if it fits at once. Otherwise it is dropped and counted, and the count is
//! written with the next line that fits.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2, write};

/// Writes of up to so many bytes to a pipe are atomic (PIPE_BUF).
const MAX_WRITE: usize = 4096;

/// How many lines were dropped since the last one that was written.
static DROPPED: AtomicU32 = AtomicU32::new(0);

/// Writes a line of the library to stderr.
pub(super) fn line(text: &str) {
    // A regular file may be on a disk.
    rxe_net::may_block("writing to stderr");
    line_to(std::io::stderr().as_fd(), &DROPPED, text);
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

/// Writes the bytes in one call. Fails with [`Errno::AGAIN`] if that would wait.
fn at_once(to: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let kind = FileType::from_raw_mode(fstat(to)?.st_mode);
    if kind != FileType::RegularFile {
        let mut ready = [PollFd::new(&to, PollFlags::OUT)];
        poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        if !ready[0].revents().contains(PollFlags::OUT) {
            return Err(Errno::AGAIN);
        }
        // Another process may fill the pipe at this moment, so the kernel is asked not to wait, if it
        // supports that. The offset means "write as write(2) does".
        match pwritev2(to, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::SPIPE) => {}
            done => return done.map(|_| ()),
        }
    }
    write(to, bytes).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

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
