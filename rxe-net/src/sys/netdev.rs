//! Looks up an interface by its name. netdevice(7).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::sockopt;
use crate::NetError;

/// An interface, looked up by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetDev {
    pub(crate) index: u32,
    /// The largest IP packet, in bytes.
    pub(crate) mtu: usize,
    /// Frames have Ethernet headers. So do those on loopback.
    pub(crate) ethernet: bool,
    pub(crate) mac: [u8; 6],
    /// It is loopback.
    pub(crate) loopback: bool,
    /// It is up, as its administrator wants it.
    pub(crate) up: bool,
}

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

impl NetDev {
    /// The interface of this name.
    pub(crate) fn lookup(name: &str) -> Result<Self, NetError> {
        let any = any_socket().map_err(|e| NetError::os("open a UDP socket", e))?;
        let unknown = || NetError::NoSuchDevice { netdev: name.to_owned() };
        let index = name_to_index(&any, name).map_err(|_| unknown())?;
        let mtu = sockopt::mtu(any.as_fd(), name).map_err(|_| unknown())?;
        let (kind, mac) = sockopt::hardware_address(any.as_fd(), name).map_err(|_| unknown())?;
        let up = sockopt::is_up(any.as_fd(), name).map_err(|_| unknown())?;
        let loopback = kind == ARPHRD_LOOPBACK;
        Ok(Self { index, mtu, ethernet: loopback || kind == ARPHRD_ETHER, mac, loopback, up })
    }

    /// How many queues the interface of this name sends on. 1 if its driver does not say.
    pub(crate) fn sending_queues(name: &str) -> u32 {
        let channels = any_socket().and_then(|any| sockopt::channels(any.as_fd(), name));
        channels.map_or(1, |channels| (channels.tx_count + channels.combined_count).max(1))
    }
}

/// A socket to ask about interfaces.
fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}
