//! A link over the two Unix sockets of QEMU's `-netdev dgram`: each datagram is a frame.
//!
//! There is no connection. Each end has a socket on a path of its own, and sends to the path of the
//! other end, which may come and go.
//!
//! Invariant: the queue of frames to send is bounded.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::event::epoll::EventFlags;
use rustix::fs::{Mode, fchmod};
use rustix::io::{Errno, read};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind,
    connect, sendmsg, socket_with,
};
use smallvec::SmallVec;

use super::link::{Arrival, Link};
use super::stream::MAX_FRAME;
use super::waiting::Waiting;
use crate::backends::loss::Loss;
use crate::error::{L2Failure, NetError};
use rxe_sys::sockopt;
use rxe_sys::{Epoll, SharedFd, fork_generation};

/// A link over two Unix datagram sockets.
#[derive(Debug)]
pub(super) struct DgramLink {
    own: PathBuf,
    peer: SocketAddrUnix,
    epoll: Epoll,
    /// Bound to the path `own`. It accepts frames from every process that may write to that path.
    receiver: SharedFd,
    /// Connected to `peer` while that exists, so that epoll tells when there is room again.
    sender: SharedFd,
    buffer: Box<[u8]>,
    waiting: Waiting,
    /// The epoll descriptor currently watches for room to send.
    watches_room: bool,
    /// The process that opened the link, as [`fork_generation`] numbers it.
    generation: u64,
}

/// The send buffer to request, in bytes.
const BUFFER: usize = 1 << 20;

impl DgramLink {
    /// Creates a socket on the path `own`, for frames to and from the socket on the path `peer`.
    pub(super) fn open(own: &Path, peer: &Path) -> Result<Self, NetError> {
        let failed = |reason| NetError::L2 {
            link: format!("dgram:{},{}", own.display(), peer.display()),
            reason,
        };
        let in_use = || failed(L2Failure::InUse { owner: None });
        let peer = SocketAddrUnix::new(peer).map_err(|e| failed(L2Failure::Peer(e.into())))?;
        let sender = socket().map_err(|e| failed(L2Failure::Bind(e)))?;
        let (address, is_taken) = (SocketAddrUnix::new(own), own.exists());
        let address = address.map_err(|e| failed(L2Failure::Bind(e.into())))?;
        match connect(&sender, &address) {
            Ok(()) => return Err(in_use()),
            // The path is left over from a process that has ended.
            Err(Errno::CONNREFUSED) if is_taken && is_socket(own) => {
                fs::remove_file(own).map_err(|e| failed(L2Failure::Bind(e)))?;
            }
            Err(_) => {}
        }
        match connect(&sender, &peer) {
            // The peer may start later.
            Ok(()) | Err(Errno::NOENT | Errno::CONNREFUSED) => {}
            Err(e) => return Err(failed(L2Failure::Peer(e.into()))),
        }
        sockopt::set_send_buffer(sender.as_fd(), BUFFER);
        let receiver = || -> io::Result<OwnedFd> {
            let fd = socket()?;
            // The mode of the file that bind() creates.
            fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
            bind(&fd, &address)?;
            Ok(fd)
        };
        let receiver = receiver().map_err(|e| failed(L2Failure::Bind(e)))?;
        let link = Self {
            own: own.into(),
            peer,
            epoll: Epoll::new()?,
            receiver: SharedFd::guarded(receiver),
            sender: SharedFd::guarded(sender),
            buffer: vec![0; MAX_FRAME].into(),
            waiting: Waiting::default(),
            watches_room: false,
            generation: fork_generation(),
        };
        link.epoll.add(&link.receiver, 0, EventFlags::IN)?;
        Ok(link)
    }

    /// Watches for room to send while frames wait for it.
    fn watch_room(&mut self) -> Result<(), NetError> {
        let on = !self.waiting.is_empty();
        match (on, self.watches_room) {
            (true, false) => self.epoll.add(&self.sender, 0, EventFlags::OUT)?,
            (false, true) => self.epoll.delete(self.sender.as_fd()),
            _ => {}
        }
        self.watches_room = on;
        Ok(())
    }
}

impl Link for DgramLink {
    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError> {
        match read(self.receiver.intact()?, &mut *self.buffer) {
            Ok(length) => {
                f(&Arrival::single(&self.buffer[..length]));
                Ok(true)
            }
            // Nothing has arrived. No error of a datagram socket means that nothing will arrive any
            // more.
            Err(_) => Ok(false),
        }
    }

    /// A frame is lost while no socket is bound to the other end's path.
    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Loss> {
        // QEMU interprets an empty datagram as the end.
        if parts.iter().all(|part| part.is_empty()) {
            return Err(Loss::BadAddress);
        }
        let sender = self.sender.intact().map_err(|_| Loss::Down)?;
        self.waiting.send_or_keep(parts, |parts| send(sender, &self.peer, parts))
    }

    fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    fn flush(&mut self) -> Result<(), NetError> {
        if !self.waiting.is_empty() {
            let sender = self.sender.intact()?;
            self.waiting.flush(|parts| send(sender, &self.peer, parts));
        }
        self.watch_room()
    }

    fn shared(&self) -> &SharedFd {
        self.epoll.shared()
    }
}

impl Drop for DgramLink {
    fn drop(&mut self) {
        if self.generation == fork_generation() {
            let _ = fs::remove_file(&self.own);
        }
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Sends a frame to the socket on the other end's path.
fn send(sender: BorrowedFd<'_>, peer: &SocketAddrUnix, parts: &[&[u8]]) -> io::Result<()> {
    let parts: SmallVec<[IoSlice<'_>; 4]> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let send = || sendmsg(sender, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
    let sent = match send() {
        // The peer has gone, and may have been started again.
        Err(Errno::CONNREFUSED | Errno::NOTCONN) => {
            connect(sender, peer).map_err(|_| Errno::NETDOWN)?;
            send()
        }
        sent => sent,
    };
    Ok(sent.map(drop)?)
}
