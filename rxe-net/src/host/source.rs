//! Requests the packets of a device that is open on this host: `rxe capture --of`. As in
//! [`super::ask`], the data comes from another process, and the reader must check it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::ask::ReportSocket;
use super::control::{ControlMessage, REPORT_HEADER};
use super::stream::MAX_MESSAGE;
use rxe_sys::sockopt::Peer;
use rxe_sys::unix::UnixSocket;

/// A device that sends its packets here, until [`CaptureSource::end`] or until this is dropped.
#[derive(Debug)]
pub struct CaptureSource {
    socket: UnixSocket,
    peer: Peer,
    buf: Vec<u8>,
}

/// A message of a captured device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMessage<'b> {
    /// Text: the first and the last message.
    Text(&'b [u8]),
    /// Blocks of a pcapng file, in this machine's byte order, with times in nanoseconds. Their
    /// interface is always 0, an Ethernet interface without a description block.
    Blocks(&'b [u8]),
    /// The end: no more messages come.
    End,
}

impl CaptureSource {
    /// Asks the device behind this socket for its packets, if `wanted` accepts the process ID.
    ///
    /// # Errors
    /// No process listens on the socket any more.
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

    /// Returns the process ID, if the process is visible here.
    pub fn pid(&self) -> Option<u32> {
        self.peer.pid
    }

    /// Returns the next message, or `None` if none has arrived yet.
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

    /// Asks for no more packets. Packets captured so far still arrive, and then the end.
    pub fn end(&self) {
        self.socket.end_sending();
    }
}

impl AsFd for CaptureSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
