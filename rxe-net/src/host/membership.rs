//! Membership in multicast groups.
//!
//! Joining and leaving take the kernel's lock of all interfaces (rtnl), which others may hold while
//! they configure interfaces. So both happen without a shard's lock; under it a membership is only
//! handed in ([`Sharing::add_membership`]) and out ([`Sharing::remove_membership`]).
//!
//! [`Sharing::add_membership`]: crate::Sharing::add_membership
//! [`Sharing::remove_membership`]: crate::Sharing::remove_membership

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::{io, mem};

use rustix::net::SocketType;

use crate::error::NetError;
use crate::host::udp_socket::UdpSocket;
use rxe_sys::SharedFd;
use rxe_sys::may_block;
use rxe_sys::packet_membership;

/// Joins multicast groups for a backend, without locking the backend.
#[derive(Clone, Debug, Default)]
pub struct MulticastJoiner(How);

#[derive(Clone, Debug, Default)]
enum How {
    /// The kernel is not involved, and any group can be joined.
    #[default]
    Alone,
    /// The host joins, and a socket receives the datagrams of the group.
    Host { index: u32, netdev: Arc<str>, recv_buffer: usize },
    /// An Ethernet station with addresses of these families (IPv4, IPv6). If it is on an interface,
    /// the interface receives the frames of the group; the host does not join.
    Station { interface: Option<u32>, families: [bool; 2] },
}

impl MulticastJoiner {
    /// Returns a joiner for an interface. Each group gets a receive buffer of `recv_buffer` bytes.
    pub(crate) fn on(index: u32, netdev: &str, recv_buffer: usize) -> Self {
        Self(How::Host { index, netdev: netdev.into(), recv_buffer })
    }

    /// Returns a joiner for a station, on an interface or not. The station has addresses of these
    /// families (IPv4, IPv6).
    pub(crate) fn station(interface: Option<u32>, families: [bool; 2]) -> Self {
        Self(How::Station { interface, families })
    }

    /// Joins a group. The backend receives from it once it has the membership.
    ///
    /// # Errors
    /// The interface cannot join the group, or has no address of its family.
    pub fn join(&self, group: IpAddr) -> Result<Membership, NetError> {
        let holds = match &self.0 {
            How::Alone => Holds::Nothing,
            How::Host { index, netdev, recv_buffer } => {
                may_block("joining a group");
                let mut socket = UdpSocket::open_group(group, *index, netdev)?;
                socket.set_buffers(*recv_buffer, 0);
                Holds::Socket(socket)
            }
            How::Station { families: [v4, v6], .. }
                if !(if group.is_ipv4() { *v4 } else { *v6 }) =>
            {
                let source = io::ErrorKind::AddrNotAvailable.into();
                return Err(NetError::Join { group, source });
            }
            How::Station { interface: None, .. } => Holds::Nothing,
            How::Station { interface: Some(index), .. } => {
                may_block("joining a group");
                let joined = receive_frames(*index, group_mac(group));
                Holds::Frames(joined.map_err(|source| NetError::Join { group, source })?)
            }
        };
        Ok(Membership { group, holds })
    }
}

/// The membership in a group. Dropping it leaves the group, which may block.
#[derive(Debug)]
pub struct Membership {
    group: IpAddr,
    holds: Holds,
}

/// The resource that ends with a membership.
#[derive(Debug)]
enum Holds {
    Nothing,
    /// The socket that receives the datagrams of the group.
    Socket(UdpSocket),
    /// The socket that makes the interface receive the frames of the group.
    Frames(#[expect(dead_code, reason = "it is closed when it is dropped")] SharedFd),
}

/// Opens a packet socket that receives nothing itself. While it is open, the interface receives the
/// group.
fn receive_frames(interface: u32, group: [u8; 6]) -> io::Result<SharedFd> {
    let socket = packet_membership::unbound(SocketType::RAW)?;
    packet_membership::add_group(socket.as_fd(), interface, group)?;
    Ok(SharedFd::guarded(socket))
}

/// Returns the Ethernet address of a group. RFC 1112, section 6.4; RFC 2464, section 7.
pub(crate) fn group_mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

impl Membership {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        Self { group: socket.address(), holds: Holds::Socket(socket) }
    }

    /// Returns the membership for a backend that receives groups without the kernel.
    pub(crate) fn without_socket(group: IpAddr) -> Self {
        Self { group, holds: Holds::Nothing }
    }

    /// Returns the address of the group.
    pub fn group(&self) -> IpAddr {
        self.group
    }

    pub(crate) fn into_socket(mut self) -> Option<UdpSocket> {
        match mem::replace(&mut self.holds, Holds::Nothing) {
            Holds::Socket(socket) => Some(socket),
            _ => None,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !matches!(self.holds, Holds::Nothing) {
            may_block("leaving a group");
        }
    }
}
