//! One packet socket on one interface. packet(7).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rxe_core::wire::{Frame, IpId, NetHeader, frame, icrc};

use super::filter;
use super::headers::{ETHERNET, Headers, ethertype, parse_vnet};
use crate::lease::Blocks;
use crate::sys::addr::RawAddr;
use crate::sys::cmsg;
use crate::sys::mmsg::Received;
use crate::sys::netdev::NetDev;
use crate::sys::sockopt;
use crate::{NetError, SharedFd};

const PACKET_VNET_HDR: libc::c_int = 15;
pub(super) const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
pub(super) const ETH_P_ALL: u16 = 3;

/// A packet socket.
#[derive(Debug)]
pub(super) struct Link {
    fd: SharedFd,
    pub(super) interface: u32,
    mac: [u8; 6],
    /// Frames have Ethernet headers. Otherwise they begin with IP, and the kernel sends them.
    pub(super) ethernet: bool,
    /// A virtio header goes with each frame, so the kernel can segment and merge.
    pub(super) vnet: bool,
    pub(super) recv_buffer: usize,
    /// Frames lost so far because the receive buffer was full, as last said.
    pub(super) overflow: u32,
}

impl Link {
    /// Opens a socket that receives packets to the QPNs of `blocks` of `addresses` on `device`.
    pub(super) fn open(
        device: &NetDev,
        addresses: &[IpAddr],
        blocks: Blocks,
        recv_buffer: usize,
    ) -> Result<Self, NetError> {
        let NetDev { index: interface, mac, ethernet, .. } = *device;
        let socket_type = if ethernet { SocketType::RAW } else { SocketType::DGRAM };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol, nothing arrives before the filter is attached.
        let fd = rustix::net::socket_with(AddressFamily::PACKET, socket_type, flags, None)
            .map_err(|e| privilege(e.into(), "open a packet socket"))?;
        let vnet = ethernet && kernel_knows_udp_in_vnet();
        let set_up = || -> io::Result<usize> {
            attach(fd.as_fd(), ethernet, addresses, blocks)?;
            let set = |level, name, value| sockopt::set_int(fd.as_fd(), level, name, value);
            if vnet {
                set(libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
            }
            // Before Linux 4.20 outgoing frames are recognised by their type.
            let _ = set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
            let _ = set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
            sockopt::set_receive_buffer(fd.as_fd(), recv_buffer);
            sockopt::set_send_buffer(fd.as_fd(), recv_buffer);
            sockopt::bind(fd.as_fd(), &RawAddr::link(interface, ETH_P_ALL))?;
            let got = sockopt::get_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
            Ok(usize::try_from(got).unwrap_or(0))
        };
        let recv_buffer = set_up().map_err(|e| NetError::os("set up a packet socket", e))?;
        Ok(Self { fd: SharedFd::new(fd), interface, mac, ethernet, vnet, recv_buffer, overflow: 0 })
    }

    /// Receives packets to these QPNs of these addresses from now on.
    pub(super) fn listen_to(&self, addresses: &[IpAddr], blocks: Blocks) -> Result<(), NetError> {
        attach(self.intact()?, self.ethernet, addresses, blocks)
            .map_err(|e| NetError::os("attach a filter to a packet socket", e))
    }

    /// The descriptor, if it still is one of ours.
    pub(super) fn intact(&self) -> Result<BorrowedFd<'_>, NetError> {
        self.fd.intact()
    }

    pub(super) fn shared(&self) -> &SharedFd {
        &self.fd
    }

    /// The frame in what has arrived, and how many were lost before it; `None` if it is none of
    /// ours.
    pub(super) fn arrived<'a>(&mut self, received: &Received<'a>) -> (Option<Frame<'a>>, u32) {
        let mut lost = 0;
        for m in cmsg::messages(received.control) {
            if (m.level, m.kind) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) {
                lost = m.int().wrapping_sub(std::mem::replace(&mut self.overflow, m.int()));
            }
        }
        (self.frame(received), lost)
    }

    fn frame<'a>(&self, received: &Received<'a>) -> Option<Frame<'a>> {
        // sll_pkttype: skip frames for other hosts and frames that this host has sent.
        const OTHERHOST: u8 = 3;
        if received.truncated || received.addr.bytes[10] >= OTHERHOST {
            return None;
        }
        let mut bytes = received.payload;
        let mut gso_size = 0;
        if self.vnet {
            (gso_size, bytes) = parse_vnet(bytes)?;
        }
        let packet = if self.ethernet { bytes.get(ETHERNET..)? } else { bytes };
        let frame = frame::parse_ip(packet).ok()?.frame().ok()?;
        if frame.payload.is_empty() {
            return None;
        }
        let whole = frame.payload.len();
        let segment = if gso_size == 0 { whole } else { gso_size.min(whole) };
        Some(Frame { net: id_of_merged(&frame, segment), segment, ..frame })
    }

    /// The headers for a payload to this Ethernet address, in packets of `segment` bytes (`None`:
    /// one packet).
    pub(super) fn headers(
        &self,
        net: &NetHeader,
        payload: &[u8],
        segment: Option<usize>,
        mac: [u8; 6],
    ) -> Headers {
        if self.vnet {
            Headers::offloaded(net, payload, segment, self.mac, mac)
        } else {
            Headers::plain(net, payload, self.mac, mac)
        }
    }

    /// Where `sendto` of a frame to this family goes.
    pub(super) fn destination(&self, net: &NetHeader) -> RawAddr {
        RawAddr::link(self.interface, ethertype(net.dst))
    }
}

/// Lets through what comes to these addresses; replaces what was let through before.
fn attach(
    fd: BorrowedFd<'_>,
    ethernet: bool,
    addresses: &[IpAddr],
    blocks: Blocks,
) -> io::Result<()> {
    let ip = if ethernet { ETHERNET } else { 0 };
    let program = filter::program(u32::try_from(ip).unwrap_or(0), addresses, blocks);
    sockopt::attach_filter(fd, &program)
}

/// The headers of a frame that the system may have merged: it merges packets whose IDs count up,
/// and also (before Linux 6.10: whatever they are) such as are all the same. Then their IDs are not
/// known.
fn id_of_merged(frame: &Frame<'_>, segment: usize) -> NetHeader {
    let merged = Frame { segment, ..*frame };
    if let Some((second, bytes)) = merged.packets().nth(1)
        && frame.net.dst.is_ipv4()
        && icrc::check(&second, bytes).is_err()
    {
        let hidden = NetHeader { id: IpId::Hidden, ..second };
        if icrc::check(&hidden, bytes).is_ok() {
            return NetHeader { id: IpId::Hidden, ..frame.net };
        }
    }
    frame.net
}

/// Missing privileges have an error of their own.
pub(super) fn privilege(error: io::Error, what: &'static str) -> NetError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            NetError::NoPrivilege { backend: "packet", capability: "CAP_NET_RAW" }
        }
        _ => NetError::os(what, error),
    }
}

/// Since Linux 6.2 a virtio header can say that a frame is several UDP packets. Before, such frames
/// cannot be received with the header.
fn kernel_knows_udp_in_vnet() -> bool {
    sockopt::kernel_version() >= (6, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three packets with ICRCs for these IDs, as a merged frame with the ID of the first.
    fn merged(ids: [u16; 3]) -> (NetHeader, Vec<u8>) {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let net = |id| NetHeader {
            id: IpId::Known { id, flags: 0x4000 },
            ..NetHeader::outgoing(ip, ip, 1)
        };
        let mut buf = Vec::new();
        for id in ids {
            let start = buf.len();
            buf.resize(start + 28, 0x04);
            icrc::append(&net(id), &mut buf, start);
        }
        (net(ids[0]), buf)
    }

    #[test]
    fn ids_that_do_not_count_up_are_not_claimed_to_be_known() {
        let id_of = |ids| {
            let (net, payload) = merged(ids);
            id_of_merged(&Frame::single(net, &payload), 32).id
        };
        assert_eq!(id_of([7, 8, 9]), IpId::Known { id: 7, flags: 0x4000 });
        assert_eq!(id_of([0, 0, 0]), IpId::Hidden);
        assert_eq!(id_of([5, 900, 77]), IpId::Hidden);
    }
}
