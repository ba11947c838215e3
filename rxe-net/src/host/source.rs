//! Asking a device that is open on this host for its packets: `rxe capture --of`. As in [`super::ask`],
//! what comes is of another process, and its reader's to check.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::ask::ReportSocket;
use super::control::{ControlMessage, REPORT_HEADER};
use super::stream::MAX_MESSAGE;
use rxe_sys::sockopt::Peer;
use rxe_sys::unix::UnixSocket;

/// A device that was asked for its packets. It sends them until [`CaptureSource::end`], or until this is
/// dropped.
#[derive(Debug)]
pub struct CaptureSource {
    socket: UnixSocket,
    peer: Peer,
    buf: Vec<u8>,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMessage<'b> {
    /// Text: the first message is, and the last.
    Text(&'b [u8]),
    /// Blocks of a pcapng file, in this machine's byte order, with times in nanoseconds. Their interface
    /// is always 0, of Ethernet, and not described.
    Blocks(&'b [u8]),
    /// Nothing more comes.
    End,
}

impl CaptureSource {
    /// Asks the device behind this socket for its packets, if `wanted` says so of the process's number.
    ///
    /// # Errors
    /// Nobody is there any more.
    pub fn ask(
        socket: &ReportSocket,
        wanted: impl FnOnce(Option<u32>) -> bool,
    ) -> io::Result<Option<Self>> {
        let (socket, peer) = UnixSocket::connect_to(&socket.path, socket.uid)?;
        if !wanted(peer.pid) {
            return Ok(None);
        }
        socket.send(&ControlMessage::Capture.emit(), &[])?;
        Ok(Some(Self { socket, peer, buf: vec![0; MAX_MESSAGE] }))
    }

    /// The process, if it has a number here.
    pub fn pid(&self) -> Option<u32> {
        self.peer.pid
    }

    /// The next message; `None` if there is none yet.
    pub fn receive(&mut self) -> Option<CaptureMessage<'_>> {
        let len = match self.socket.receive(&mut self.buf) {
            Ok(None) => return None,
            Ok(Some(received)) => received.len,
            Err(_) => 0,
        };
        let bytes = &self.buf[..len];
        Some(match bytes.strip_prefix(&REPORT_HEADER) {
            Some(text) => CaptureMessage::Text(text),
            None if bytes.is_empty() => CaptureMessage::End,
            None => CaptureMessage::Blocks(bytes),
        })
    }

    /// Asks for no more. What was captured until now still comes, and the end.
    pub fn end(&self) {
        self.socket.end_sending();
    }
}

impl AsFd for CaptureSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
