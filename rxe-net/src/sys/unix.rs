//! Sockets between processes of one user, by path: datagrams, and connections that carry packets.
//! unix(7).
//!
//! What protects them is the directory that they stand in: nobody else can address them. Each
//! socket's own mode (0600) says so once more. And whoever connects, or is connected to, must have
//! the same effective user, which the kernel tells (SO_PEERCRED) before anything is received.
//!
//! Where no descriptors are expected none are accepted (SO_PASSRIGHTS, Linux 6.16): the sender of
//! some is refused.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::fork::ForkGuarded;
use super::sockopt::{self, Peer};

/// Descriptors in a message at most. The kernel's limit is 253.
pub const MAX_FDS: usize = 64;

/// A socket; it does not block.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    fd: ForkGuarded,
    name: Mutex<Option<Name>>,
}

/// The file that stands for a bound socket. Removed when dropped.
#[derive(Debug)]
struct Name {
    path: PathBuf,
    inode: u64,
    /// Who has bound it. A forked child must not remove it.
    pid: u32,
}

/// What has arrived.
pub(crate) struct Received {
    /// Bytes, at the front of the buffer given.
    pub(crate) len: usize,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Whether descriptors may come with what is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    Accepted,
    Refused,
}

impl UnixSocket {
    /// An inbox for datagrams. The caller alone may bind this path: what a dead process has left
    /// there is removed.
    pub(crate) fn inbox(path: &Path) -> io::Result<Self> {
        let socket = Self::open(SocketType::DGRAM)?;
        refuse_rights(socket.as_fd());
        remove(path)?;
        socket.bind(path)?;
        Ok(socket)
    }

    /// One that others can connect to; [`io::ErrorKind::AddrInUse`] if another process is there. Two
    /// callers must not try the same path at once: what a dead process has left is removed.
    pub(crate) fn listen(path: &Path, rights: Rights) -> io::Result<Self> {
        let socket = Self::open(SocketType::SEQPACKET)?;
        if rights == Rights::Refused {
            refuse_rights(socket.as_fd());
        }
        if exists(path)? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        remove(path)?;
        socket.bind(path)?;
        rustix::net::listen(&socket.fd, 128)?;
        Ok(socket)
    }

    /// One that sends datagrams. It has no name, so nothing can be sent to it.
    pub(crate) fn sender() -> io::Result<Self> {
        Self::open(SocketType::DGRAM)
    }

    /// One connected to who listens on this path, who must be of this user
    /// ([`io::ErrorKind::PermissionDenied`]). Either end is told at once when the other is gone.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let socket = Self::open(SocketType::SEQPACKET)?;
        rustix::net::connect(&socket.fd, &SocketAddrUnix::new(path)?)?;
        if socket.peer()?.uid != own_uid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(socket)
    }

    /// The next that has connected, if it is of this user ([`io::ErrorKind::PermissionDenied`] if it
    /// is not). [`io::ErrorKind::WouldBlock`] if there is none.
    pub(crate) fn accept(&self) -> io::Result<Self> {
        self.ensure()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = ForkGuarded::new(rustix::net::accept_with(&self.fd, flags)?);
        let caller = Self { fd, name: Mutex::new(None) };
        if caller.peer()?.uid != own_uid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(caller)
    }

    /// Who is at the other end of a connection.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        sockopt::peer_credentials(self.as_fd())
    }

    /// Nobody finds it any more, and who is connected or waits to be is told that it is gone.
    pub(crate) fn close(&self) {
        drop(self.name().take());
        if self.ensure().is_err() {
            return;
        }
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Refuses to use a number that is not its own any more.
    fn ensure(&self) -> io::Result<()> {
        self.fd.ensure().map_err(|_| Errno::BADF.into())
    }

    fn name(&self) -> MutexGuard<'_, Option<Name>> {
        self.name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(kind: SocketType) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        Ok(Self { fd: ForkGuarded::new(fd), name: Mutex::new(None) })
    }

    fn bind(&self, path: &Path) -> io::Result<()> {
        // The mode of the file to be.
        rustix::fs::fchmod(&self.fd, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&self.fd, &SocketAddrUnix::new(path)?)?;
        let inode = fs::symlink_metadata(path)?.ino();
        *self.name() = Some(Name { path: path.to_owned(), inode, pid: std::process::id() });
        Ok(())
    }

    /// Sends over a connection, with descriptors.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.ensure()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    }

    /// Sends the parts as one datagram.
    pub(crate) fn send_to(&self, to: &SocketAddrUnix, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.ensure()?;
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg_addr(&self.fd, to, parts, &mut control, flags)?;
        Ok(())
    }

    /// Receives a datagram or a packet, if there is one; of length 0 when the other end of a
    /// connection is gone. What does not fit into the buffer is lost, the whole of it.
    pub(crate) fn receive(&self, buf: &mut [u8]) -> io::Result<Option<Received>> {
        self.ensure()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(buf)];
        let got = match rustix::net::recvmsg(&self.fd, &mut parts, &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut received = Received { len: got.bytes, fds: Vec::new() };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                received.fds.extend(fds);
            }
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            received.len = 0;
        }
        Ok(Some(received))
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // The path may have been given to another since, and a forked child has only a copy.
        if self.pid == std::process::id()
            && fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a process listens on this path. It is not told of the question.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    // A socket of another type can not connect, but only a socket that is there says so.
    let socket = UnixSocket::open(SocketType::DGRAM)?;
    match rustix::net::connect(&socket.fd, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::PROTOTYPE | Errno::PERM) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The user of this process for the kernel: the effective one.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Lets nobody hand over descriptors, where the system knows of that.
fn refuse_rights(fd: BorrowedFd<'_>) {
    /// Of `<asm-generic/socket.h>`.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let _ = sockopt::set_int(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_until_it_is_closed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        assert!(!exists(&path).unwrap());
        let listener = UnixSocket::listen(&path, Rights::Refused).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(exists(&path).unwrap());
        let error = UnixSocket::listen(&path, Rights::Refused).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let caller = UnixSocket::connect(&path).unwrap();
        let own = Peer { uid: own_uid(), pid: Some(std::process::id()) };
        assert_eq!(caller.peer().unwrap(), own);
        assert_eq!(listener.accept().unwrap().peer().unwrap(), own);
        listener.close();
        assert!(!path.exists() && !exists(&path).unwrap());
        assert!(UnixSocket::listen(&path, Rights::Refused).is_ok());
    }

    #[test]
    fn what_a_dead_process_has_left_is_in_nobody_s_way() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let listener = UnixSocket::listen(&path, Rights::Refused).unwrap();
        // As if it had been killed.
        std::mem::forget(listener.name().take());
        drop(listener);
        assert!(path.exists() && !exists(&path).unwrap());
        let heir = UnixSocket::listen(&path, Rights::Refused).unwrap();
        assert!(exists(&path).unwrap());
        drop(heir);
    }

    #[test]
    fn a_name_that_another_has_taken_over_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("inbox");
        let before = UnixSocket::inbox(&path).unwrap();
        let after = UnixSocket::inbox(&path).unwrap();
        drop(before);
        let sender = UnixSocket::sender().unwrap();
        let to = SocketAddrUnix::new(&path).unwrap();
        sender.send_to(&to, &[IoSlice::new(b"a"), IoSlice::new(b"b")]).unwrap();
        let mut buf = [0; 4];
        assert_eq!(after.receive(&mut buf).unwrap().unwrap().len, 2);
        assert_eq!(&buf[..2], b"ab");
    }

    #[test]
    fn descriptors_are_refused_where_none_are_expected() {
        let scratch = tempfile::tempdir().unwrap();
        let [refused, accepted] = ["refused", "accepted"].map(|name| scratch.path().join(name));
        let _refuses = UnixSocket::listen(&refused, Rights::Refused).unwrap();
        let _accepts = UnixSocket::listen(&accepted, Rights::Accepted).unwrap();
        let hand_over = |path: &Path| {
            let line = UnixSocket::connect(path).unwrap();
            line.send(b"here", &[line.as_fd()])
        };
        hand_over(&accepted).unwrap();
        match hand_over(&refused) {
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied),
            Ok(()) => println!(
                "SKIPPED: descriptors_are_refused_where_none_are_expected: Linux before 6.16"
            ),
        }
    }
}
