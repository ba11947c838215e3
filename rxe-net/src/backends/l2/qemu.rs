//! A link over the Unix socket of QEMU's `-netdev stream`.
//!
//! If a process listens on the path, this end connects to it: QEMU with `server=on`, or another
//! endpoint. Otherwise this end listens, for QEMU with `server=off`, and accepts one connection
//! after the other.
//!
//! Invariants: the queue of bytes to send is bounded; at most one peer is connected, and further
//! ones are closed immediately.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::epoll::EventFlags;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    send, socket_with,
};

use super::link::{Arrival, Link};
use super::stream::{Found, FrameReader, LENGTH, MAX_FRAME, Read};
use crate::backends::loss::Loss;
use crate::error::{L2Failure, NetError};
use rxe_sys::{Epoll, SharedFd, fork_generation};

/// A link over a Unix stream socket.
#[derive(Debug)]
pub(super) struct QemuLink {
    path: PathBuf,
    epoll: Epoll,
    /// The listening socket, if this end listens.
    listener: Option<SharedFd>,
    /// The connection, if there is one.
    peer: Option<SharedFd>,
    reader: FrameReader,
    /// The bytes to send; the first `sent` bytes are sent already.
    out: Vec<u8>,
    sent: usize,
    /// The epoll descriptor currently watches for room to send.
    watches_room: bool,
    /// The process that opened the link, as [`fork_generation`] numbers it.
    generation: u64,
}

/// While this many bytes wait to be sent, the link accepts no more packets.
const MAX_OUT: usize = 256 << 10;
/// The maximum number of bytes that wait to be sent. Beyond [`MAX_OUT`] there is room for a burst,
/// for frames that have waited for a neighbour, and for answers to a peer that does not read.
const MAX_WAITING: usize = 2 << 20;

impl QemuLink {
    /// Connects to `path`, or listens there.
    pub(super) fn open(path: &Path) -> Result<Self, NetError> {
        let epoll = Epoll::new()?;
        let mut link = Self {
            path: path.into(),
            epoll,
            listener: None,
            peer: None,
            reader: FrameReader::new(),
            out: Vec::new(),
            sent: 0,
            watches_room: false,
            generation: fork_generation(),
        };
        match UnixStream::connect(path) {
            Ok(stream) => {
                stream.set_nonblocking(true).map_err(|e| NetError::os("set up a socket", e))?;
                link.take(stream.into())?;
            }
            Err(e) if is_nobody(&e) => link.listen()?,
            Err(e) => return Err(link.failed(L2Failure::Connect(e))),
        }
        Ok(link)
    }

    fn listen(&mut self) -> Result<(), NetError> {
        let open = || -> io::Result<OwnedFd> {
            // The path is left over from a process that has ended.
            if fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.file_type().is_socket()) {
                fs::remove_file(&self.path)?;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            bind(&fd, &SocketAddrUnix::new(&self.path)?)?;
            // No process can connect before listen(), so the mode is set in time.
            fs::set_permissions(&self.path, Permissions::from_mode(0o600))?;
            listen(&fd, 1)?;
            Ok(fd)
        };
        let fd = open().map_err(|e| self.failed(L2Failure::Listen(e)))?;
        let listener = SharedFd::guarded(fd);
        self.epoll.add(&listener, 0, EventFlags::IN)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Accepts a waiting connection, if this end listens. Returns whether there was one.
    fn accept(&mut self) -> Result<bool, NetError> {
        let Some(listener) = &self.listener else { return Ok(false) };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(fd) = accept_with(listener.intact()?, flags) else { return Ok(false) };
        if self.peer.is_none() {
            self.take(fd)?;
        }
        Ok(true)
    }

    fn take(&mut self, fd: OwnedFd) -> Result<(), NetError> {
        let peer = SharedFd::guarded(fd);
        self.epoll.add(&peer, 0, EventFlags::IN)?;
        self.peer = Some(peer);
        Ok(())
    }

    /// Handles the loss of the connection, which is an error unless this end listens.
    fn lose(&mut self, why: L2Failure) -> Result<(), NetError> {
        if let Some(peer) = self.peer.take() {
            self.epoll.delete(peer.as_fd());
        }
        self.reader.clear();
        self.out.clear();
        (self.sent, self.watches_room) = (0, false);
        if self.listener.is_some() { Ok(()) } else { Err(self.failed(why)) }
    }

    fn failed(&self, reason: L2Failure) -> NetError {
        NetError::L2 { link: format!("qemu:{}", self.path.display()), reason }
    }

    fn watch_room(&mut self, on: bool) -> Result<(), NetError> {
        let Some(peer) = &self.peer else { return Ok(()) };
        Ok(self.epoll.watch_room(peer, on, &mut self.watches_room)?)
    }
}

impl Link for QemuLink {
    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError> {
        loop {
            let Some(peer) = &self.peer else {
                if self.accept()? && self.peer.is_some() {
                    continue;
                }
                return Ok(false);
            };
            match self.reader.next() {
                // An empty frame is handed out too: a peer that only sends empty frames must use up
                // the budget.
                Found::Frame(frame) => {
                    f(&Arrival::single(frame));
                    return Ok(true);
                }
                Found::TooLong(length) => {
                    self.lose(L2Failure::NoFrame { length })?;
                    continue;
                }
                Found::Nothing => {}
            }
            let fd = peer.intact()?;
            match self.reader.fill(|room| Ok(rustix::io::read(fd, room)?)) {
                Ok(Read::Some) => {}
                Ok(Read::Nothing) => {
                    // A connection is in use, so others are closed.
                    while self.accept()? {}
                    return Ok(false);
                }
                Ok(Read::End) | Err(_) => self.lose(L2Failure::PeerGone)?,
            }
        }
    }

    /// A frame is lost while no peer is connected.
    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Loss> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let prefix = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME);
        let (Some(prefix), Some(_)) = (prefix, &self.peer) else { return Err(Loss::Down) };
        if self.out.len() + LENGTH + length > MAX_WAITING {
            return Err(Loss::NoBuffer);
        }
        self.out.extend(prefix.to_be_bytes());
        parts.iter().for_each(|part| self.out.extend_from_slice(part));
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.out.len() < MAX_OUT
    }

    fn flush(&mut self) -> Result<(), NetError> {
        while self.sent < self.out.len()
            && let Some(peer) = &self.peer
        {
            let flags = SendFlags::NOSIGNAL;
            match send(peer.intact()?, &self.out[self.sent..], flags).map_err(io::Error::from) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.out.drain(..self.sent);
                    self.sent = 0;
                    return self.watch_room(true);
                }
                Err(_) => self.lose(L2Failure::PeerGone)?,
            }
        }
        self.out.clear();
        self.sent = 0;
        self.watch_room(false)
    }

    fn shared(&self) -> &SharedFd {
        self.epoll.shared()
    }
}

impl Drop for QemuLink {
    fn drop(&mut self) {
        if self.listener.is_some() && self.generation == fork_generation() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns whether this error of connect() means that no process listens.
fn is_nobody(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
