//! Looks up an interface by its name. netdevice(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::Error;
use crate::sockopt;

/// An interface, looked up by its name.
#[derive(Clone, Copy, Debug)]
pub struct NetDev {
    /// Its number.
    pub index: u32,
    /// The largest IP packet, in bytes.
    pub mtu: usize,
    /// Frames have Ethernet headers. So do those on loopback.
    pub ethernet: bool,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// It is loopback.
    pub loopback: bool,
    /// It is up, as its administrator wants it.
    pub up: bool,
}

const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

impl NetDev {
    /// The interface of this name, if there is one.
    ///
    /// # Errors
    /// The system gives no socket to ask with.
    pub fn lookup(name: &str) -> Result<Option<Self>, Error> {
        let any = any_socket().map_err(|e| Error::os("open a UDP socket", e))?;
        Ok(look_up(any.as_fd(), name).ok())
    }

    /// How many queues the interface of this name sends on. 1 if its driver does not say.
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

/// A socket to ask about interfaces.
fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}
