//! Announces newly opened devices to a running capture of all devices (`rxe capture --of all`).
//!
//! The capture listens on a socket in its user's directory. A device that offers its packets
//! connects to the socket, and is used only after the capture has closed the connection. By then
//! its packets are captured, so that not even the first packet of a short program is missing.
//!
//! Neither end trusts the other. Both have the same user, and nothing is received but the end of
//! the connection. A stopped capture delays a device by [`PATIENCE`] at most; a slow one may take
//! longer ([`Timeout`]).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::directory::Directory;
use super::timeout::Timeout;
use rxe_sys::may_block;
use rxe_sys::unix::{NamedSocket, Rights, UnixSocket, own_uid};

/// The file name of the socket in the user's directory.
const NAME: &str = "opened";
/// How long a device waits for a stopped capture.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum number of accepted devices. Further ones stay in the queue of the socket; if that is
/// full too, devices do not wait.
const WAITING: usize = 256;

/// The socket to which newly opened devices of this user connect. Only one process at a time can
/// have it.
#[derive(Debug)]
pub struct OpenedDevices {
    listener: NamedSocket,
    /// The connections of the waiting devices. Closing a connection lets its device continue.
    waiting: Vec<UnixSocket>,
}

impl OpenedDevices {
    /// Listens for devices. Returns `None` if another process does, or there is no directory.
    pub fn listen() -> Option<Self> {
        Self::listen_in(Directory::open().root()?)
    }

    fn listen_in(root: &Path) -> Option<Self> {
        may_block("locking a directory");
        // The lock ensures that only one process at a time creates the socket.
        let directory = File::open(root).ok()?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
        let listener = NamedSocket::listen(&root.join(NAME), Rights::Refused).ok()?;
        Some(Self { listener, waiting: Vec::new() })
    }

    /// Returns whether devices were opened since the last call. They wait for
    /// [`OpenedDevices::release`].
    pub fn accept(&mut self) -> bool {
        let before = self.waiting.len();
        while self.waiting.len() < WAITING
            && let Ok(device) = self.listener.accept()
        {
            self.waiting.push(device);
        }
        self.waiting.len() > before
    }

    /// Lets all waiting devices continue.
    pub fn release(&mut self) {
        self.waiting.clear();
    }
}

impl AsFd for OpenedDevices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Announces a device to the capture that listens in this directory, if there is one. Waits until
/// the capture has begun; at most `timeout` if the capture is stopped.
pub(super) fn announce(root: &Path, timeout: Duration) {
    let Ok((capture, by)) = UnixSocket::connect_to(&root.join(NAME), own_uid()) else { return };
    may_block("waiting for a capture");
    let timeout = Timeout::new(timeout);
    loop {
        let left = timeout.left(by.pid);
        let mut fds = [PollFd::from_borrowed_fd(capture.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            // The wait was interrupted by a signal of the program, or it is time to check the
            // process again.
            Ok(0) | Err(Errno::INTR) if !left.is_zero() => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_device_waits_until_it_is_released() {
        let scratch = tempfile::tempdir().unwrap();
        let mut opened = OpenedDevices::listen_in(scratch.path()).unwrap();
        assert!(!opened.accept());
        let (done, is_done) = std::sync::mpsc::channel();
        let root = scratch.path().to_owned();
        let device = thread::spawn(move || {
            announce(&root, LONG);
            done.send("used").unwrap();
        });
        let mut fds = [PollFd::from_borrowed_fd(opened.as_fd(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        assert!(opened.accept());
        assert!(is_done.try_recv().is_err(), "it must not be used before it is captured");
        opened.release();
        assert_eq!(is_done.recv(), Ok("used"));
        device.join().unwrap();
        assert!(!opened.accept());
    }

    #[test]
    fn a_device_waits_for_no_capture_that_is_gone_or_stopped() {
        let scratch = tempfile::tempdir().unwrap();
        announce(scratch.path(), LONG);
        drop(OpenedDevices::listen_in(scratch.path()).unwrap());
        announce(scratch.path(), LONG);
        let _stopped = OpenedDevices::listen_in(scratch.path()).unwrap();
        announce(scratch.path(), Duration::from_millis(1));
    }

    #[test]
    fn one_capture_at_a_time_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        let first = OpenedDevices::listen_in(scratch.path()).unwrap();
        assert!(OpenedDevices::listen_in(scratch.path()).is_none());
        drop(first);
        assert!(OpenedDevices::listen_in(scratch.path()).is_some());
    }
}
