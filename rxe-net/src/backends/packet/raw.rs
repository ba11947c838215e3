//! Raw sockets, which send whole IP packets along the kernel's routes. raw(7).
//!
//! The kernel ignores the source in a packet's header when it looks up the route, so each packet is
//! sent with its source in a control message.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType};
use rxe_core::wire::{Burst, NetHeader, TxBatch};
use smallvec::SmallVec;

use super::headers::Headers;
use crate::error::NetError;
use crate::host::udp_socket::send_to_groups;
use rxe_sys::SharedFd;
use rxe_sys::addr::RawAddr;
use rxe_sys::cmsg::Control;
use rxe_sys::mmsg::{BATCH, Outgoing, sendmmsg};

/// A raw socket for each address family.
pub(crate) struct RawSockets {
    v4: SharedFd,
    /// `None` if the kernel has no IPv6.
    v6: Option<SharedFd>,
    interface: u32,
}

impl RawSockets {
    /// Opens the sockets. Packets to groups and to link-local addresses leave on the interface with
    /// this index.
    pub(crate) fn open(interface: u32) -> io::Result<Self> {
        let open = |family, any: IpAddr| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let raw = Protocol::from_raw(rustix::net::RawProtocol::new(255).expect("not zero"));
            let fd = rustix::net::socket_with(family, SocketType::RAW, flags, Some(raw))?;
            send_to_groups(fd.as_fd(), any, interface)?;
            io::Result::Ok(SharedFd::new(fd))
        };
        let v4 = open(AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into())?;
        let v6 = open(AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()).ok();
        Ok(Self { v4, v6, interface })
    }

    /// Sends at most [`BATCH`] packets of a burst. Starts with index `skip`. Returns how many were
    /// sent. The outer error means that the socket cannot be used any more.
    pub(crate) fn send(
        &self,
        batch: &TxBatch,
        burst: &Burst,
        skip: usize,
    ) -> Result<io::Result<usize>, NetError> {
        let dst = burst.net.dst;
        let destination = RawAddr::inet(dst, 0, self.interface);
        let singles: SmallVec<[_; 4]> = singles(batch, burst, skip).collect();
        let headers: SmallVec<[Headers; 4]> =
            singles.iter().map(|(net, bytes)| Headers::routed(net, bytes)).collect();
        let control = routed_from(burst.net.src, self.interface);
        let out: SmallVec<[Outgoing<'_>; 4]> = singles
            .iter()
            .zip(&headers)
            .map(|((_, bytes), headers)| Outgoing {
                control,
                ..outgoing(destination, headers, bytes)
            })
            .collect();
        Ok(sendmmsg(self.of(dst)?, &out))
    }

    fn of(&self, dst: IpAddr) -> Result<BorrowedFd<'_>, NetError> {
        let socket = match &self.v6 {
            Some(v6) if dst.is_ipv6() => v6,
            // The IPv4 socket refuses IPv6 packets, which are then counted.
            _ => &self.v4,
        };
        Ok(socket.intact()?)
    }
}

/// Returns the control message that makes the kernel route a packet by this source address.
/// `interface` is the index for a link-local source. ip(7), ipv6(7).
fn routed_from(src: IpAddr, interface: u32) -> Control {
    let mut control = Control::EMPTY;
    match src {
        IpAddr::V4(src) => {
            // `struct in_pktinfo`: the interface (0 for any), the source, and a field for received
            // packets.
            let mut info = [0; 12];
            info[4..8].copy_from_slice(&src.octets());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        IpAddr::V6(src) => {
            // `struct in6_pktinfo`: the source, and the interface.
            let mut info = [0; 20];
            info[..16].copy_from_slice(&src.octets());
            if src.is_unicast_link_local() {
                info[16..].copy_from_slice(&interface.to_ne_bytes());
            }
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
    }
    control
}

/// Returns at most [`BATCH`] packets of a burst, each with its own ID. Starts with index `skip`.
pub(super) fn singles<'a>(
    batch: &'a TxBatch,
    burst: &'a Burst,
    skip: usize,
) -> impl Iterator<Item = (NetHeader, &'a [u8])> {
    let packets = batch.bytes(burst).chunks(burst.segment.max(1)).enumerate();
    packets.skip(skip).take(BATCH).map(|(i, bytes)| (nth(&burst.net, i), bytes))
}

pub(super) fn outgoing<'a>(addr: RawAddr, headers: &'a Headers, payload: &'a [u8]) -> Outgoing<'a> {
    let [front, ip] = headers.parts();
    Outgoing { addr, control: Control::EMPTY, parts: [front, ip, payload] }
}

pub(crate) fn nth(net: &NetHeader, index: usize) -> NetHeader {
    net.nth(u16::try_from(index).unwrap_or(0))
}
