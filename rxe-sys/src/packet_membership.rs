//! Packet sockets, and additional Ethernet addresses for an interface to receive.
//!
//! The interface receives frames to these addresses until the requesting socket is closed.
//! packet(7), `PACKET_ADD_MEMBERSHIP`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::sockopt;

/// Opens a packet socket that receives nothing until it is bound.
pub fn unbound(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::PACKET, kind, flags, None)?)
}

/// Has the interface receive frames to this multicast group too.
pub fn add_group(socket: BorrowedFd<'_>, interface: u32, group: [u8; 6]) -> io::Result<()> {
    add(socket, interface, PACKET_MR_MULTICAST, group)
}

/// Has the interface receive frames to this station address too. An interface without a list of
/// unicast addresses becomes promiscuous.
pub fn add_station(socket: BorrowedFd<'_>, interface: u32, mac: [u8; 6]) -> io::Result<()> {
    add(socket, interface, PACKET_MR_UNICAST, mac)
        .or_else(|_| add(socket, interface, PACKET_MR_PROMISC, [0; 6]))
}

const PACKET_ADD_MEMBERSHIP: libc::c_int = 1;
const PACKET_MR_MULTICAST: u16 = 0;
const PACKET_MR_PROMISC: u16 = 1;
const PACKET_MR_UNICAST: u16 = 3;

fn add(socket: BorrowedFd<'_>, interface: u32, kind: u16, mac: [u8; 6]) -> io::Result<()> {
    // `struct packet_mreq`.
    let interface = interface.to_ne_bytes();
    let (kind, length) = (kind.to_ne_bytes(), 6u16.to_ne_bytes());
    let request = [&interface[..], &kind, &length, &mac, &[0; 2]].concat();
    sockopt::set_bytes(socket, libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request)
}
