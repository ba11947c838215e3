//! What this host offers to a backend.
//!
//! Each function tries one thing in the way a backend does it, and undoes it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket as StdSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::backends::shm::ring::{Consumer, MAX_RECORD, Producer};
use crate::backends::udp::UdpConfig;
use crate::error::NetError;
use crate::host::directory::Directory;
use crate::host::udp_socket::{UDP_GRO, UDP_SEGMENT, UdpSocket};
use rxe_sys::SharedFd;
use rxe_sys::sockopt::{get_int, set_int};

/// The size of a socket buffer in bytes, in the unit of `net.core.rmem_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSize {
    /// The size that a [`crate::UdpBackend`] requests.
    pub asked: usize,
    /// The size that the kernel grants to this process.
    pub given: usize,
}

/// Returns the receive and the send buffer of a socket of a [`crate::UdpBackend`].
///
/// # Errors
/// [`NetError::System`]: the kernel provides no UDP socket.
pub fn socket_buffers() -> Result<[BufferSize; 2], NetError> {
    let socket = StdSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let socket = socket.map_err(|e| NetError::os("open a UDP socket", e))?;
    let fd = SharedFd::guarded(socket.into());
    let mut socket = UdpSocket::adopt(fd, Ipv4Addr::UNSPECIFIED.into(), 0);
    let config = UdpConfig::new("", []);
    socket.set_buffers(config.recv_buffer, config.send_buffer);
    let size = |asked, option| -> Result<BufferSize, NetError> {
        let counted = get_int(socket.as_fd(), libc::SOL_SOCKET, option)
            .map_err(|e| NetError::os("read the size of a socket buffer", e))?;
        // The kernel doubles the requested size, for its own structures.
        Ok(BufferSize { asked, given: usize::try_from(counted).unwrap_or(0) / 2 })
    };
    Ok([size(config.recv_buffer, libc::SO_RCVBUF)?, size(config.send_buffer, libc::SO_SNDBUF)?])
}

/// Whether the kernel segments and merges UDP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// The kernel splits a burst into packets (UDP_SEGMENT, GSO).
    pub segments: bool,
    /// The kernel merges received packets (UDP_GRO).
    pub merges: bool,
}

/// Finds out the offloads by sending a burst of two packets from `address` to itself.
///
/// # Errors
/// [`NetError::System`]: the burst could not be sent, or did not arrive within 0.2 s.
pub fn offloads(address: IpAddr) -> Result<Offloads, NetError> {
    const PACKET: u16 = 512;
    const BURST: usize = 2 * PACKET as usize;
    let attempt = || -> io::Result<Offloads> {
        let (sender, receiver) = (StdSocket::bind((address, 0))?, StdSocket::bind((address, 0))?);
        receiver.set_read_timeout(Some(Duration::from_millis(200)))?;
        let to = receiver.local_addr()?;
        let segments = set_int(sender.as_fd(), libc::SOL_UDP, UDP_SEGMENT, PACKET.into()).is_ok();
        let merges = set_int(receiver.as_fd(), libc::SOL_UDP, UDP_GRO, 1).is_ok();
        if !segments {
            return Ok(Offloads { segments, merges });
        }
        sender.send_to(&[0; BURST], to)?;
        let arrived = receiver.recv(&mut [0; BURST])?;
        Ok(Offloads { segments, merges: merges && arrived == BURST })
    };
    attempt().map_err(|e| NetError::os("send a burst of UDP packets to this host", e))
}

/// Creates a ring, opens its other end and moves a record through it.
///
/// # Errors
/// [`NetError::System`]: the kernel provides no memory that processes can share.
pub fn shared_ring() -> Result<(), NetError> {
    let attempt = || -> io::Result<bool> {
        let (mut producer, fd) = Producer::create()?;
        let mut consumer = Consumer::open(&fd)?;
        let mut out = [0; MAX_RECORD];
        let moved = producer.push(1, [b"probe", b""]).is_ok_and(|room| room)
            && consumer.pop(&mut out).is_ok_and(|record| record == Some((1, 5)));
        Ok(moved && out.starts_with(b"probe"))
    };
    match attempt() {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(NetError::os("use memory shared by processes", io::ErrorKind::InvalidData))
        }
        Err(e) => Err(NetError::os("make memory that processes share", e)),
    }
}

/// Returns the directory in which the processes of this user find each other.
///
/// # Errors
/// The reason why no directory can be used, as part of a sentence, and a remedy for the user, if
/// one is known.
pub fn directory() -> Result<PathBuf, (String, Option<String>)> {
    let directory = Directory::open();
    let why = || (directory.describe(), directory.remedy().map(str::to_owned));
    directory.root().map(PathBuf::from).ok_or_else(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_as_large_as_the_system_lets_them_be() {
        let [receive, send] = socket_buffers().unwrap();
        for (size, limit) in [(receive, "rmem_max"), (send, "wmem_max")] {
            assert!(size.given > 0, "{size:?}");
            let limit = std::fs::read_to_string(format!("/proc/sys/net/core/{limit}"));
            // Some containers hide the limit.
            if let Some(limit) = limit.ok().and_then(|text| text.trim().parse::<usize>().ok()) {
                assert!(size.given >= size.asked.min(limit), "{size:?}, limit {limit}");
            }
        }
    }

    #[test]
    fn a_record_goes_through_a_ring() {
        shared_ring().unwrap();
    }

    #[test]
    fn what_cannot_be_sent_is_an_error() {
        // TEST-NET-1 is not an address of this host.
        assert!(offloads("192.0.2.1".parse().unwrap()).is_err());
    }
}
