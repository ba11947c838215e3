//! Runs a command in its own terminal (pty(7)) of a given size, and returns the screen.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use rxe_harness::vm::{Error, Result, spawn};
use vt100::{Parser, Screen};

/// The moment at which the screen is taken.
#[derive(Clone, Copy)]
pub(super) enum When {
    /// After the command has ended, which must succeed.
    Ended,
    /// When the function accepts the screen's text. The command is then killed.
    Shows(fn(&str) -> bool),
}

/// The longest time that a command may take.
const LIMIT: Duration = Duration::from_secs(300);
/// A screen that has not changed for this time is complete.
const PAUSE: Duration = Duration::from_millis(30);

/// Runs a command, and returns the screen.
pub(super) fn screen(command: Command, columns: u16, rows: u16, when: When) -> Result<Screen> {
    let size = |n| NonZeroU16::new(n).ok_or_else(|| failed("a terminal has rows and columns"));
    let mut parser = Parser::new(size(rows)?, size(columns)?, 0);
    let (child, mut output) = start(command, columns, rows)?;
    let mut child = Killed(child);
    let deadline = Instant::now() + LIMIT;
    let mut bytes = [0; 4096];
    loop {
        let shown = matches!(when, When::Shows(is) if is(&parser.screen().contents()));
        let left = deadline.saturating_duration_since(Instant::now());
        if !is_readable(&output, if shown { PAUSE } else { left }) {
            let screen = parser.screen();
            let late = || failed(format!("not done after {LIMIT:?}:\n{}", screen.contents()));
            return if shown { Ok(screen.clone()) } else { Err(late()) };
        }
        match output.read(&mut bytes) {
            Ok(n @ 1..) => parser.process(&bytes[..n]),
            // EIO means that the command and its children have closed the terminal.
            Ok(_) | Err(_) => break,
        }
    }
    let screen = parser.screen().clone();
    let status = child.0.wait().map_err(failed)?;
    if status.success() && matches!(when, When::Ended) {
        return Ok(screen);
    }
    Err(failed(format!("{status}:\n{}", screen.contents())))
}

/// Starts the command in a new terminal. Returns the terminal's master.
fn start(mut command: Command, columns: u16, rows: u16) -> Result<(Child, File)> {
    let (ours, theirs) = open(columns, rows).map_err(|e| failed(format!("a terminal: {e}")))?;
    let copy = || theirs.try_clone().map_err(failed);
    command.stdin(copy()?).stdout(copy()?).stderr(theirs);
    let program = command.get_program().display().to_string();
    let child = spawn(command).map_err(|e| failed(format!("{program}: {e}")))?;
    Ok((child, ours))
}

/// Creates a terminal. Returns its master and its slave.
fn open(columns: u16, rows: u16) -> io::Result<(File, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size)?;
    Ok((ours.into(), theirs))
}

fn is_readable(file: &File, timeout: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
    poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()).is_ok_and(|ready| ready > 0)
}

/// A process that is killed when this value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(why: impl ToString) -> Error {
    Error::Failed(why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_sees_the_width_and_its_last_screen_is_kept() {
        let script = "stty size; [ -t 1 ] && printf 'first\\r\\033[Ksecond\\n'";
        let screen = screen(shell(script), 47, 12, When::Ended).unwrap();
        assert_eq!(screen.contents(), "12 47\nsecond");
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_when_its_screen_is_as_wanted() {
        let endless = "while :; do printf '\\033[H\\033[J%s' $((n += 1)); sleep 0.1; done";
        let third = |text: &str| text.starts_with('3');
        assert!(screen(shell(endless), 20, 4, When::Shows(third)).is_ok());
    }

    #[test]
    fn the_error_has_what_the_screen_shows() {
        let why = screen(shell("echo none; exit 3"), 80, 24, When::Ended).unwrap_err().to_string();
        assert!(why.contains("3") && why.ends_with("none"), "{why}");
    }
}
