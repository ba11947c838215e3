//! The connection of a live capture to its reader. The reader has opened it to the control socket.
//! Each write is one message.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rxe_sys::may_block;
use rxe_sys::sockopt;
use rxe_sys::unix::UnixSocket;

/// The stream that a live capture is written to.
#[derive(Clone, Debug)]
pub struct CaptureStream {
    socket: Arc<UnixSocket>,
    /// The header of a text.
    header: [u8; 8],
    given_up: Arc<AtomicBool>,
}

/// The maximum length of a message in bytes. A message has 64 KiB of blocks, and one block that was
/// added last.
pub(super) const MAX_MESSAGE: usize = 256 << 10;
/// The send buffer to request, in bytes. The kernel grants as much as its limit allows.
const BUFFER: libc::c_int = 1 << 20;
/// How long a writer sleeps before it checks whether to give up.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// The number of ticks per message that a slow reader still gets after [`CaptureStream::give_up`].
const TICKS: u32 = 20;

impl CaptureStream {
    pub(super) fn new(socket: Arc<UnixSocket>, header: [u8; 8]) -> Self {
        let _ = sockopt::set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER);
        Self { socket, header, given_up: Arc::default() }
    }

    /// Returns a message with this text.
    pub fn text(&self, text: &[u8]) -> Vec<u8> {
        [&self.header, text].concat()
    }

    /// Limits the wait of a writer to one second per message from now on.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Returns whether the reader is gone: it has closed the connection, or has ended.
    pub(crate) fn is_gone(&self) -> bool {
        let mut end = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut end, Some(&at_once)).is_ok()
            && end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

impl Write for CaptureStream {
    /// Sends all bytes as one message.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        may_block("sending packets of a capture");
        if bytes.len() > MAX_MESSAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut ticks = 0;
        loop {
            match self.socket.send(bytes, &[]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent.map(|()| bytes.len()),
            }
            ticks += u32::from(self.given_up.load(Ordering::Relaxed));
            if ticks > TICKS {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut room = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
            let _ = poll(&mut room, Some(&TICK));
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wrappers::pcap::LiveCapture;

    /// Otherwise the next reader would be told that the device is being captured, until a packet
    /// passes.
    #[test]
    fn a_capture_has_ended_as_soon_as_its_reader_is_gone() {
        let [own, reader] = UnixSocket::pair().unwrap();
        let stream = CaptureStream::new(Arc::new(own), [0; 8]);
        let capture = LiveCapture::new(stream, b"first", |_| Vec::new());
        assert!(!capture.has_ended());
        // The reader wants no more packets, but still reads the rest.
        reader.end_sending();
        assert!(!capture.has_ended());
        drop(reader);
        assert!(capture.has_ended());
    }
}
