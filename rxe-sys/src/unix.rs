//! Unix sockets between processes of one user: datagrams and packet connections. Processes find
//! each other by paths. unix(7).
//!
//! The directory of the path protects them: no other user can reach it. The mode of each socket
//! (0600) protects in addition. Both ends of a connection must have the same effective user; the
//! kernel reports that user (SO_PEERCRED) before anything is received.
//!
//! A socket that expects no descriptors refuses them (SO_PASSRIGHTS, Linux 6.16): sending one to it
//! fails.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::fs::{Access, Mode, access};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use smallvec::SmallVec;

use crate::ForkGuarded;
use crate::may_block_at;
use crate::sockopt::{self, Peer};

/// The maximum number of descriptors in a message. The kernel's limit is 253.
pub const MAX_FDS: usize = 64;

/// A non-blocking Unix socket.
#[derive(Debug)]
pub struct UnixSocket {
    fd: ForkGuarded,
}

/// A bound socket. Dropping it removes its path. A socket may have several paths; it is closed with
/// the last of them.
#[derive(Debug)]
pub struct NamedSocket {
    name: Name,
    socket: Arc<UnixSocket>,
}

/// The paths of a listener or an inbox. Further paths are hard links to the first.
#[derive(Debug, Default)]
pub struct SocketPaths(Mutex<Vec<Known>>);

/// A path of a socket. Both the socket and the file may be gone.
#[derive(Debug)]
struct Known {
    socket: Weak<UnixSocket>,
    path: PathBuf,
    inode: u64,
}

/// The file of a bound socket. Dropping it removes the file.
#[derive(Debug)]
struct Name {
    path: PathBuf,
    inode: u64,
    /// The process that bound the path. A forked child must not remove the file.
    pid: u32,
}

/// A received message.
pub struct Received {
    /// The number of bytes written to the front of the buffer.
    pub len: usize,
    /// The descriptors that came with the message.
    pub fds: Vec<OwnedFd>,
    /// Descriptors came with the message for which this process had no room.
    pub lost_fds: bool,
}

/// Whether received messages may carry descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Descriptors are received.
    Accepted,
    /// The kernel refuses descriptors since Linux 6.16. Before, they are received too.
    Refused,
}

impl NamedSocket {
    /// Creates an inbox for datagrams. Only the caller may use this path: a file that is already
    /// there is removed.
    pub fn inbox(path: &Path) -> io::Result<Self> {
        let socket = UnixSocket::open(SocketType::DGRAM)?;
        refuse_rights(socket.as_fd());
        remove(path)?;
        Ok(Self { name: socket.bind(path)?, socket: Arc::new(socket) })
    }

    /// Creates a listener. Fails with [`io::ErrorKind::AddrInUse`] if a process listens on the
    /// path. Two callers must not try the same path simultaneously, because the socket of a dead
    /// process is removed.
    pub fn listen(path: &Path, rights: Rights) -> io::Result<Self> {
        let socket = UnixSocket::open(SocketType::SEQPACKET)?;
        if rights == Rights::Refused {
            refuse_rights(socket.as_fd());
        }
        make_free(path)?;
        let name = socket.bind(path)?;
        rustix::net::listen(&socket.fd, 128)?;
        Ok(Self { name, socket: Arc::new(socket) })
    }

    /// Returns whether both are paths of one socket.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }

    /// Returns the socket, without its path.
    pub fn socket(&self) -> &Arc<UnixSocket> {
        &self.socket
    }
}

/// Returns the distinct sockets: each appears once, even if it has several paths.
pub fn distinct<'s>(
    all: impl IntoIterator<Item = &'s Arc<UnixSocket>>,
) -> SmallVec<[Arc<UnixSocket>; 2]> {
    let mut sockets: SmallVec<[Arc<UnixSocket>; 2]> = SmallVec::new();
    for socket in all {
        if !sockets.iter().any(|one| Arc::ptr_eq(one, socket)) {
            sockets.push(Arc::clone(socket));
        }
    }
    sockets
}

impl SocketPaths {
    /// Returns the listener under one more path, as [`NamedSocket::listen`]. Creates a new listener
    /// if there is none yet, or if its earlier paths have been removed.
    pub fn listen(&self, path: &Path, rights: Rights) -> io::Result<NamedSocket> {
        make_free(path)?;
        self.add(path, || NamedSocket::listen(path, rights))
    }

    /// Returns the inbox under one more path, as [`NamedSocket::inbox`], or a new inbox.
    pub fn inbox(&self, path: &Path) -> io::Result<NamedSocket> {
        remove(path)?;
        self.add(path, || NamedSocket::inbox(path))
    }

    /// Links a known socket to `path`, or calls `make`. `path` must be free.
    fn add(
        &self,
        path: &Path,
        make: impl FnOnce() -> io::Result<NamedSocket>,
    ) -> io::Result<NamedSocket> {
        // The lock is never poisoned: the list is consistent even if a holder panicked.
        let mut known = self.0.lock();
        let mut found = None;
        known.retain(|known| {
            if found.is_none() {
                found = known.link(path);
                return found.is_some();
            }
            known.socket.strong_count() > 0
        });
        let named = found.map_or_else(make, Ok)?;
        let socket = Arc::downgrade(&named.socket);
        known.push(Known { socket, path: path.to_owned(), inode: named.name.inode });
        Ok(named)
    }
}

impl Known {
    /// Links the socket to one more path. Returns `None` if the socket or its old path is gone.
    fn link(&self, path: &Path) -> Option<NamedSocket> {
        let socket = self.socket.upgrade()?;
        may_block_at("linking a socket's path", path);
        fs::hard_link(&self.path, path).ok()?;
        let inode = fs::symlink_metadata(path).ok()?.ino();
        let name = Name { path: path.to_owned(), inode, pid: std::process::id() };
        // If another socket has taken over the old path, dropping `name` removes the link again.
        (inode == self.inode).then_some(NamedSocket { name, socket })
    }
}

impl Deref for NamedSocket {
    type Target = UnixSocket;

    fn deref(&self) -> &UnixSocket {
        &self.socket
    }
}

impl AsFd for NamedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl UnixSocket {
    /// Creates a socket that sends datagrams. It has no path, so it receives none.
    pub fn sender() -> io::Result<Self> {
        Self::open(SocketType::DGRAM)
    }

    /// Connects to the listener on this path, which must belong to this user. Fails with
    /// [`io::ErrorKind::PermissionDenied`] otherwise. Either end is notified immediately when the
    /// other is closed.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Self::connect_to(path, own_uid()).map(|(socket, _)| socket)
    }

    /// Like [`UnixSocket::connect`], to a process of user `uid`. Also returns the peer process.
    pub fn connect_to(path: &Path, uid: u32) -> io::Result<(Self, Peer)> {
        may_block_at("connecting to a path", path);
        let socket = Self::open(SocketType::SEQPACKET)?;
        rustix::net::connect(&socket.fd, &SocketAddrUnix::new(path)?)?;
        let peer = socket.peer()?;
        if peer.uid != uid {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok((socket, peer))
    }

    /// Creates two sockets that are connected to each other.
    pub fn pair() -> io::Result<[Self; 2]> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok([a, b].map(|fd| Self { fd: ForkGuarded::new(fd) }))
    }

    /// Accepts the next connection, if it comes from this user. Fails with
    /// [`io::ErrorKind::PermissionDenied`] if it comes from another user, and with
    /// [`io::ErrorKind::WouldBlock`] if none waits.
    pub fn accept(&self) -> io::Result<Self> {
        match self.accept_also_root()? {
            (caller, peer) if peer.uid == own_uid() => Ok(caller),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Like [`UnixSocket::accept`], also for connections from root. Also returns the peer process.
    pub fn accept_also_root(&self) -> io::Result<(Self, Peer)> {
        const ROOT: u32 = 0;
        self.ensure()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = ForkGuarded::new(rustix::net::accept_with(&self.fd, flags)?);
        let caller = Self { fd };
        let peer = caller.peer()?;
        if peer.uid != own_uid() && peer.uid != ROOT {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok((caller, peer))
    }

    /// Returns the process at the other end of a connection.
    pub fn peer(&self) -> io::Result<Peer> {
        sockopt::peer_credentials(self.as_fd())
    }

    /// Shuts the socket down: connected and waiting peers are notified that it is gone.
    pub fn shut_down(&self) {
        if self.ensure().is_ok() {
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
        }
    }

    /// Shuts down the sending direction. The peer is notified and may continue to send.
    pub fn end_sending(&self) {
        if self.ensure().is_ok() {
            let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write);
        }
    }

    /// Checks that the number is intact ([`ForkGuarded::ensure`]).
    fn ensure(&self) -> io::Result<()> {
        self.fd.ensure().map_err(|_| Errno::BADF.into())
    }

    fn open(kind: SocketType) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        Ok(Self { fd: ForkGuarded::new(fd) })
    }

    fn bind(&self, path: &Path) -> io::Result<Name> {
        may_block_at("binding to a path", path);
        // Sets the mode of the file that `bind` creates.
        rustix::fs::fchmod(&self.fd, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&self.fd, &SocketAddrUnix::new(path)?)?;
        let inode = fs::symlink_metadata(path)?.ino();
        Ok(Name { path: path.to_owned(), inode, pid: std::process::id() })
    }

    /// Sends a packet and descriptors over a connection.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
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
    pub fn send_to(&self, to: &SocketAddrUnix, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.ensure()?;
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg_addr(&self.fd, to, parts, &mut control, flags)?;
        Ok(())
    }

    /// Receives a datagram or a packet, or returns `None` if none waits. The length is 0 if the
    /// peer has closed the connection, or if the message did not fit into the buffer: it is then
    /// lost as a whole.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<Received>> {
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
        let lost_fds = got.flags.contains(ReturnFlags::CTRUNC);
        let mut received = Received { len: got.bytes, fds: Vec::new(), lost_fds };
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
        // Another socket may have taken over the path meanwhile, and a forked child has only a
        // copy.
        if self.pid != std::process::id() {
            return;
        }
        may_block_at("removing a socket's path", &self.path);
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns whether a socket is bound to this path and alive. Its owner does not notice the probe.
pub fn exists(path: &Path) -> io::Result<bool> {
    may_block_at("connecting to a path", path);
    // Callers probe hundreds of paths, most of which do not exist: this check saves a socket for
    // each.
    if access(path, Access::EXISTS) == Err(Errno::NOENT) {
        return Ok(false);
    }
    // A socket of another type cannot connect: EPROTOTYPE tells that the socket exists.
    let socket = UnixSocket::open(SocketType::DGRAM)?;
    match rustix::net::connect(&socket.fd, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::PROTOTYPE | Errno::PERM) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Returns the effective user ID of this process.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Removes the socket of a dead process. Fails with [`io::ErrorKind::AddrInUse`] if a process
/// listens on the path.
fn make_free(path: &Path) -> io::Result<()> {
    if exists(path)? {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    remove(path)
}

fn remove(path: &Path) -> io::Result<()> {
    may_block_at("removing a socket's path", path);
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Refuses messages with descriptors, if the kernel supports that.
fn refuse_rights(fd: BorrowedFd<'_>) {
    /// From `<asm-generic/socket.h>`.
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
        let listener = NamedSocket::listen(&path, Rights::Refused).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(exists(&path).unwrap());
        let error = NamedSocket::listen(&path, Rights::Refused).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let caller = UnixSocket::connect(&path).unwrap();
        let own = Peer { uid: own_uid(), pid: Some(std::process::id()) };
        assert_eq!(caller.peer().unwrap(), own);
        assert_eq!(listener.accept().unwrap().peer().unwrap(), own);
        drop(listener);
        assert!(!path.exists() && !exists(&path).unwrap());
        assert!(NamedSocket::listen(&path, Rights::Refused).is_ok());
    }

    #[test]
    fn what_a_dead_process_has_left_is_in_nobody_s_way() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("socket");
        let listener = NamedSocket::listen(&path, Rights::Refused).unwrap();
        // Keeps the file, as if the process had been killed.
        let NamedSocket { name, socket } = listener;
        std::mem::forget(name);
        drop(socket);
        assert!(path.exists() && !exists(&path).unwrap());
        let heir = NamedSocket::listen(&path, Rights::Refused).unwrap();
        assert!(exists(&path).unwrap());
        drop(heir);
    }

    #[test]
    fn a_socket_is_found_under_each_of_its_paths() {
        let scratch = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| scratch.path().join(name));
        let paths = SocketPaths::default();
        let listen = |path| paths.listen(path, Rights::Refused);
        let (one, two) = (listen(&a).unwrap(), listen(&b).unwrap());
        assert!(one.is_same(&two) && exists(&a).unwrap() && exists(&b).unwrap());
        let _caller = UnixSocket::connect(&b).unwrap();
        assert!(one.accept().is_ok());
        drop(one);
        assert!(!a.exists() && exists(&b).unwrap());
        let other = NamedSocket::listen(&c, Rights::Refused).unwrap();
        assert_eq!(listen(&c).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // Another socket takes over the path.
        fs::rename(&c, &b).unwrap();
        let three = listen(&a).unwrap();
        assert!(!three.is_same(&two) && exists(&a).unwrap());
        drop(two);
        assert!(exists(&b).unwrap(), "it has removed what is another's");
        drop((three, other));
        // All sockets are gone.
        assert!(!a.exists() && listen(&c).is_ok() && !c.exists());
    }

    #[test]
    fn a_name_that_another_has_taken_over_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("inbox");
        let before = NamedSocket::inbox(&path).unwrap();
        let after = NamedSocket::inbox(&path).unwrap();
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
        let _refuses = NamedSocket::listen(&refused, Rights::Refused).unwrap();
        let _accepts = NamedSocket::listen(&accepted, Rights::Accepted).unwrap();
        let hand_over = |path: &Path| {
            let line = UnixSocket::connect(path).unwrap();
            line.send(b"here", &[line.as_fd()])
        };
        hand_over(&accepted).unwrap();
        match hand_over(&refused) {
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::PermissionDenied),
            Ok(()) => rxe_test_support::skipped(
                "descriptors_are_refused_where_none_are_expected",
                "Linux before 6.16",
            ),
        }
    }
}
