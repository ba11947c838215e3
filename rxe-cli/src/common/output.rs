//! Standard output and standard error. The reader may close a pipe early (`rxe devinfo | head`).

use std::fmt;
use std::io::{self, Write};
#[cfg(unix)]
use std::os::fd::AsFd;

use serde::Serialize;

use super::{Error, color};

/// Returns the columns of standard output, if it is a terminal and the system tells.
pub(crate) fn terminal_width() -> Option<usize> {
    #[cfg(unix)]
    let columns = rustix::termios::tcgetwinsize(io::stdout()).ok()?.ws_col;
    #[cfg(not(unix))]
    let columns = 0_u16;
    Some(columns.into()).filter(|columns| *columns > 0)
}

/// Returns whether another program may read standard output, as a pager does.
pub(crate) fn is_piped() -> bool {
    #[cfg(unix)]
    {
        use rustix::fs::{FileType, fstat};
        fstat(io::stdout()).is_ok_and(|about| {
            matches!(FileType::from_raw_mode(about.st_mode), FileType::Fifo | FileType::Socket)
        })
    }
    #[cfg(not(unix))]
    !io::IsTerminal::is_terminal(&io::stdout())
}

/// Prints `text`. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    print_bytes(text.as_bytes())
}

/// Prints bytes. A closed pipe is not an error.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new("cannot write the output", e))
        }
        _ => Ok(()),
    }
}

/// Returns whether `output` is a pipe whose reader has closed it.
/// Commands that print until nothing reads call this, because [`print()`] does not report a closed
/// pipe.
#[cfg(unix)]
pub(crate) fn is_unread(output: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&output, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

/// Only a write tells on this system.
#[cfg(not(unix))]
pub(crate) fn is_unread<T>(_: T) -> bool {
    false
}

/// Prints an error to standard error. A single write keeps the lines of two commands that share a
/// terminal apart.
pub(crate) fn print_error(error: &impl fmt::Display) {
    // If standard error is closed, the error cannot be reported anywhere.
    let line = format!("{} {error}\n", color::paint_error("rxe:"));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints `value` as JSON, one field per line.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(value);
    let json = json.map_err(|e| Error::new("cannot make JSON of the output", e))?;
    print(&(json + "\n"))
}
