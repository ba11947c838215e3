//! Network interfaces, looked up by name. netdevice(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::Error;
use crate::sockopt;

/// The properties of a network interface.
#[derive(Clone, Copy, Debug)]
pub struct NetDev {
    /// The interface index.
    pub index: u32,
    /// The largest IP packet, in bytes.
    pub mtu: usize,
    /// Frames have Ethernet headers. True for loopback too.
    pub ethernet: bool,
    /// The hardware address.
    pub mac: [u8; 6],
    /// The interface is a loopback interface.
    pub loopback: bool,
    /// The interface is administratively up (IFF_UP).
    pub up: bool,
}

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

impl NetDev {
    /// Returns the interface with this name, or `None` if it does not exist.
    ///
    /// # Errors
    /// The kernel provides no socket for the query.
    pub fn lookup(name: &str) -> Result<Option<Self>, Error> {
        let any = any_socket().map_err(|e| Error::os("open a UDP socket", e))?;
        Ok(look_up(any.as_fd(), name).ok())
    }

    /// Returns the number of transmit queues of an interface, or 1 if its driver does not tell.
    pub fn sending_queues(name: &str) -> u32 {
        let channels = any_socket().and_then(|any| sockopt::channels(any.as_fd(), name));
        channels.map_or(1, |channels| (channels.tx_count + channels.combined_count).max(1))
    }
}

fn look_up(any: BorrowedFd<'_>, name: &str) -> io::Result<NetDev> {
    let (kind, mac) = sockopt::hardware_address(any, name)?;
    let loopback = kind == ARPHRD_LOOPBACK;
    Ok(NetDev {
        index: name_to_index(any, name)?,
        mtu: sockopt::mtu(any, name)?,
        ethernet: loopback || kind == ARPHRD_ETHER,
        mac,
        loopback,
        up: sockopt::is_up(any, name)?,
    })
}

fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}
