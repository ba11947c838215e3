//! Datagrams between processes of a host over abstract unix sockets, connected or not: with
//! descriptors, and with what the kernel says of their sender. unix(7).
//!
//! An abstract name belongs to a network namespace, and is free again as soon as its socket is
//! closed, whatever its process died of.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrAny, SocketAddrUnix,
    SocketFlags, SocketType,
};

use super::fork::Held;

/// Descriptors in a message at most. The kernel's limit is 253.
pub(crate) const MAX_FDS: usize = 64;

/// A socket for datagrams; it does not block.
#[derive(Debug)]
pub(crate) struct UnixSocket(Held);

/// A datagram that has arrived.
pub(crate) struct Letter {
    /// Bytes, at the front of the buffer given.
    pub(crate) len: usize,
    pub(crate) fds: Vec<OwnedFd>,
    /// The sender's user, if it is one of this user namespace.
    pub(crate) uid: Option<u32>,
    /// The sender, if it is of this process namespace.
    pub(crate) pid: Option<u32>,
    /// Whom to answer; `None` if the sender has no name.
    pub(crate) from: Option<SocketAddrUnix>,
}

impl UnixSocket {
    /// One that has this name; [`io::ErrorKind::AddrInUse`] if another has it.
    pub(crate) fn bind(name: &str) -> io::Result<Self> {
        let socket = Self::open()?;
        rustix::net::bind(&socket.0, &abstract_name(name)?)?;
        Ok(socket)
    }

    /// One that has a name of the kernel's choice, so that it can be answered.
    pub(crate) fn anonymous() -> io::Result<Self> {
        let socket = Self::open()?;
        rustix::net::bind(&socket.0, &SocketAddrUnix::new_unnamed())?;
        Ok(socket)
    }

    /// One that others can connect to by this name.
    pub(crate) fn listen(name: &str) -> io::Result<Self> {
        let socket = Self::open_as(SocketType::SEQPACKET)?;
        rustix::net::bind(&socket.0, &abstract_name(name)?)?;
        rustix::net::listen(&socket.0, 128)?;
        Ok(socket)
    }

    /// One connected to who listens by this name. Either end is told at once when the other is gone.
    pub(crate) fn connect(name: &str) -> io::Result<Self> {
        let socket = Self::open_as(SocketType::SEQPACKET)?;
        rustix::net::connect(&socket.0, &abstract_name(name)?)?;
        Ok(socket)
    }

    /// The next that has connected.
    pub(crate) fn accept(&self) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Self(Held::new(rustix::net::accept_with(&self.0, flags)?)))
    }

    /// The user at the other end of a connection.
    pub(crate) fn peer_uid(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }

    fn open() -> io::Result<Self> {
        Self::open_as(SocketType::DGRAM)
    }

    fn open_as(kind: SocketType) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::sockopt::set_socket_passcred(&fd, true)?;
        Ok(Self(Held::new(fd)))
    }

    /// Sends a datagram, with descriptors, over a connection.
    pub(crate) fn send_connected(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    }

    /// Sends the parts as one datagram, with descriptors.
    pub(crate) fn send(
        &self,
        to: &SocketAddrUnix,
        parts: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg_addr(&self.0, to, parts, &mut control, flags)?;
        Ok(())
    }

    /// Receives a datagram, if there is one. What does not fit into the buffer is lost, the whole of
    /// it.
    pub(crate) fn receive(&self, buf: &mut [u8]) -> io::Result<Option<Letter>> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(buf)];
        let got = match rustix::net::recvmsg(&self.0, &mut parts, &mut control, flags) {
            Ok(got) => got,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut letter =
            Letter { len: got.bytes, fds: Vec::new(), uid: None, pid: None, from: None };
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(fds) => letter.fds.extend(fds),
                RecvAncillaryMessage::ScmCredentials(who) => {
                    letter.uid = Some(who.uid.as_raw());
                    letter.pid = u32::try_from(who.pid.as_raw_nonzero().get()).ok();
                }
                _ => {}
            }
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            letter.len = 0;
        }
        letter.from = got.address.and_then(|from: SocketAddrAny| from.try_into().ok());
        Ok(Some(letter))
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether some socket has this name.
pub(crate) fn exists(name: &str) -> io::Result<bool> {
    let socket = UnixSocket::open()?;
    match rustix::net::connect(&socket.0, &abstract_name(name)?) {
        // EPERM: it is connected to another, but there.
        Ok(()) | Err(rustix::io::Errno::PERM) => Ok(true),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The address of an abstract name.
pub(crate) fn abstract_name(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// The user that the kernel says a message of this process is from.
pub(crate) fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}
