//! A UDP socket: an address, port 4791, and socket options. The options make the headers of sent
//! packets predictable, and receiving cheap.

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rxe_core::wire::{IpId, NetHeader, UDP_PORT};

use crate::error::NetError;
use crate::host::port_owner;
use rxe_sys::CheckedFd;
use rxe_sys::SharedFd;
use rxe_sys::addr::RawAddr;
use rxe_sys::cmsg::{self, Control};
use rxe_sys::sockopt::{
    attach_filter, bind, get_int, set_bytes, set_int, set_receive_buffer, set_send_buffer,
};

pub(crate) const UDP_SEGMENT: c_int = 103;
pub(crate) const UDP_GRO: c_int = 104;
const UDP_NO_CHECK6_RX: c_int = 102;
const IPV6_AUTOFLOWLABEL: c_int = 70;
const IPV6_MULTICAST_ALL: c_int = 29;
const DEFAULT_TTL: u8 = 64;
/// The traffic class of most packets: ECN-capable, with DSCP 0. RFC 3168.
const ECT: u8 = 0b10;

/// A bound, unconnected socket.
///
/// An unconnected socket with path MTU discovery sends IPv4 ID 0 and "don't fragment", as
/// [`NetHeader::outgoing`] says. A connected socket would count IDs up.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    fd: SharedFd,
    address: IpAddr,
    scope: u32,
    /// The traffic class of packets sent without a control message for it.
    tos: u8,
    /// The kernel can segment bursts.
    pub(crate) segments: bool,
    /// The size that the kernel chose for SO_RCVBUF, in bytes.
    pub(crate) recv_buffer: usize,
}

/// The contents of a received datagram's control messages.
pub(crate) struct Arrived {
    pub(crate) net: NetHeader,
    /// The bytes per packet, if the kernel has merged several.
    pub(crate) segment: Option<usize>,
    /// The number of datagrams lost so far because the receive buffer was full.
    pub(crate) overflow: Option<u32>,
}

impl UdpSocket {
    /// Creates and binds a socket whose address can be shared; `scope` is the interface index.
    pub(crate) fn make(address: IpAddr, scope: u32) -> Result<OwnedFd, NetError> {
        let fd = socket(address).map_err(|e| NetError::os("open a UDP socket", e))?;
        let fd = CheckedFd::new(fd);
        Self::set_up(fd.as_fd(), address)
            .and_then(|()| send_to_groups(fd.as_fd(), address, scope))
            .and_then(|()| set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1))
            .map_err(|e| NetError::os("set the options of a UDP socket", e))?;
        bind(fd.as_fd(), &RawAddr::inet(address, UDP_PORT, scope))
            .map_err(|e| bind_error(e, address))?;
        Ok(fd.into_owned())
    }

    /// Wraps a socket that [`UdpSocket::make`] created, perhaps in another process.
    pub(crate) fn adopt(fd: SharedFd, address: IpAddr, scope: u32) -> Self {
        // The call fails if the kernel does not support UDP_SEGMENT.
        let segments = get_int(fd.as_fd(), libc::SOL_UDP, UDP_SEGMENT).is_ok();
        Self { fd, address, scope, tos: 0, segments, recv_buffer: 0 }
    }

    /// Removes the filter and drops the packets that arrived for the previous owner of the socket.
    pub(crate) fn discard_received(&self) {
        // Only a packet backend attaches a filter.
        let _ = set_int(self.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        let bytes = get_int(self.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        drop_arrived(usize::try_from(bytes).unwrap_or(0), || {
            rustix::net::recv(&self.fd, &mut [0; 1][..], RecvFlags::DONTWAIT).is_ok()
        });
    }

    /// Opens a socket that sends from this port and receives nothing. With `share`, other sockets
    /// of this user may use the port if they also set it.
    ///
    /// Datagrams to the port are dropped: RoCE packets go to port 4791, whatever the source port of
    /// the packets that they answer. Without the socket the host would answer such datagrams with
    /// "port unreachable".
    pub(crate) fn open_sender(
        address: IpAddr,
        port: u16,
        scope: u32,
        share: bool,
    ) -> io::Result<Self> {
        let fd = CheckedFd::new(socket(address)?);
        Self::set_up(fd.as_fd(), address)?;
        send_to_groups(fd.as_fd(), address, scope)?;
        set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, share.into())?;
        drop_all(fd.as_fd())?;
        bind(fd.as_fd(), &RawAddr::inet(address, port, scope))?;
        let tos = if set_tos(fd.as_fd(), address, ECT).is_ok() { ECT } else { 0 };
        let fd = SharedFd::guarded(fd.into_owned());
        Ok(Self { tos, ..Self::adopt(fd, address, scope) })
    }

    /// Opens a socket for a multicast group, and joins the group by IGMP or MLD. `scope` is the
    /// index of the interface `netdev`. The socket also receives what this host sends to the group.
    /// Any number of sockets may join a group.
    pub(crate) fn open_group(group: IpAddr, scope: u32, netdev: &str) -> Result<Self, NetError> {
        let fd = socket(group).map_err(|e| NetError::os("open a UDP socket", e))?;
        let fd = CheckedFd::new(fd);
        Self::set_up(fd.as_fd(), group)
            .and_then(|()| hear_group(fd.as_fd(), group, scope, netdev))
            .map_err(|source| NetError::Join { group, source })?;
        Ok(Self {
            fd: SharedFd::guarded(fd.into_owned()),
            address: group,
            scope,
            tos: 0,
            segments: false,
            recv_buffer: 0,
        })
    }

    fn set_up(fd: BorrowedFd<'_>, address: IpAddr) -> io::Result<()> {
        let on = 1;
        if address.is_ipv4() {
            let ip = libc::IPPROTO_IP;
            set_int(fd, ip, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set_int(fd, ip, libc::IP_RECVTOS, on)?;
            set_int(fd, ip, libc::IP_RECVTTL, on)?;
        } else {
            let ip = libc::IPPROTO_IPV6;
            set_int(fd, ip, libc::IPV6_V6ONLY, on)?;
            set_int(fd, ip, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
            set_int(fd, ip, libc::IPV6_RECVTCLASS, on)?;
            set_int(fd, ip, libc::IPV6_RECVHOPLIMIT, on)?;
            // Packets then leave with the flow label of their header. Kernels without these two
            // options work as well.
            let _ = set_int(fd, ip, IPV6_AUTOFLOWLABEL, 0);
            let _ = set_int(fd, ip, libc::IPV6_FLOWINFO, on);
            // RoCEv2 senders may also leave the UDP checksum 0 over IPv6.
            let _ = set_int(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, on);
        }
        // Fails before Linux 5.0, where packets are not merged.
        let _ = set_int(fd, libc::SOL_UDP, UDP_GRO, on);
        let _ = set_int(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, on);
        Ok(())
    }

    /// Sets whether the kernel may merge received packets into one buffer.
    pub(crate) fn merge(&self, on: bool) {
        // Fails before Linux 5.0, where packets are not merged.
        let _ = set_int(self.as_fd(), libc::SOL_UDP, UDP_GRO, on.into());
    }

    /// Requests buffers of these sizes in bytes; the kernel may grant less. If `send` is 0, the
    /// send buffer stays unchanged.
    pub(crate) fn set_buffers(&mut self, receive: usize, send: usize) {
        let fd = self.fd.as_fd();
        set_receive_buffer(fd, receive);
        if send > 0 {
            set_send_buffer(fd, send);
        }
        let got = get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        self.recv_buffer = usize::try_from(got).unwrap_or(0);
    }

    /// Stops the socket from receiving. It then only keeps the port, so that this host does not
    /// answer packets with "port unreachable".
    pub(crate) fn mute(&self) -> Result<(), NetError> {
        drop_all(self.as_fd()).map_err(|e| NetError::os("attach a filter to a UDP socket", e))
    }

    /// Returns the descriptor if its number is intact ([`SharedFd::intact`]).
    pub(crate) fn intact(&self) -> Result<BorrowedFd<'_>, NetError> {
        Ok(self.fd.intact()?)
    }

    pub(crate) fn shared(&self) -> &SharedFd {
        &self.fd
    }

    /// Returns the address or the group that the socket is bound to.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the socket address of `net.dst`.
    pub(crate) fn destination(&self, net: &NetHeader) -> RawAddr {
        RawAddr::inet(net.dst, UDP_PORT, self.scope)
    }

    /// Returns the control messages for a burst with this header. The kernel cuts the burst into
    /// `segment` bytes if it has more than one packet. Each costs time in the kernel, so the usual
    /// traffic class is set on the socket instead.
    pub(crate) fn control(&self, net: &NetHeader, segment: Option<usize>) -> Control {
        let mut control = Control::EMPTY;
        let v4 = net.dst.is_ipv4();
        let (level, tos, ttl) = if v4 {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        } else {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        };
        if let Some(segment) = segment.and_then(|s| u16::try_from(s).ok()) {
            control.push(libc::SOL_UDP, UDP_SEGMENT, &segment.to_ne_bytes());
        }
        if net.tos != self.tos {
            control.push(level, tos, &c_int::from(net.tos).to_ne_bytes());
        }
        if net.ttl != DEFAULT_TTL && net.ttl != 0 {
            control.push(level, ttl, &c_int::from(net.ttl).to_ne_bytes());
        }
        if !v4 && net.flow_label != 0 {
            let label = net.flow_label & 0xf_ffff;
            control.push(level, libc::IPV6_FLOWINFO, &label.to_be_bytes());
        }
        control
    }

    /// Returns the headers of a datagram from `from` with these control messages.
    pub(crate) fn arrived(&self, from: std::net::SocketAddr, control: &[u8]) -> Arrived {
        let v4 = self.address.is_ipv4();
        let mut net = NetHeader {
            src: from.ip(),
            dst: self.address,
            src_port: from.port(),
            tos: 0,
            ttl: 0,
            flow_label: 0,
            id: if v4 { IpId::Hidden } else { IpId::Absent },
        };
        let mut arrived = Arrived { net, segment: None, overflow: None };
        let byte = |m: &cmsg::Message<'_>| m.int().to_le_bytes()[0];
        for m in cmsg::messages(control) {
            match (m.level, m.kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    net.tos = byte(&m);
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    net.ttl = byte(&m);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                    net.flow_label = u32::from_be(m.int()) & 0xf_ffff;
                }
                (libc::SOL_UDP, UDP_GRO) => {
                    arrived.segment = usize::try_from(m.int()).ok().filter(|s| *s > 0);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => arrived.overflow = Some(m.int()),
                _ => {}
            }
        }
        arrived.net = net;
        arrived
    }
}

/// Opens a UDP socket of the address's family, not bound yet.
fn socket(address: IpAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?)
}

/// Makes the kernel drop and count all datagrams to a socket.
fn drop_all(fd: BorrowedFd<'_>) -> io::Result<()> {
    const RET_K: u16 = 0x06;
    attach_filter(fd, &[libc::sock_filter { code: RET_K, jt: 0, jf: 0, k: 0 }])
}

/// Calls `receive` until it returns `false`, at most once per datagram in a buffer. Datagrams
/// beyond those that a receive buffer of `bytes` can hold have arrived meanwhile; in a flood the
/// loop would never end.
fn drop_arrived(bytes: usize, mut receive: impl FnMut() -> bool) {
    /// A lower bound of the bytes that the kernel counts per datagram: its own structures alone
    /// need that much.
    const SMALLEST: usize = 512;
    let _ = (0..=bytes / SMALLEST).find(|_| !receive());
}

/// Sets the traffic class of packets sent without a control message for it.
fn set_tos(fd: BorrowedFd<'_>, address: IpAddr, tos: u8) -> io::Result<()> {
    match address {
        IpAddr::V4(_) => set_int(fd, libc::IPPROTO_IP, libc::IP_TOS, tos.into()),
        IpAddr::V6(_) => set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, tos.into()),
    }
}

/// Makes datagrams to groups leave on this interface, with the usual hop limit.
pub(crate) fn send_to_groups(
    fd: BorrowedFd<'_>,
    address: IpAddr,
    interface: u32,
) -> io::Result<()> {
    let ttl = DEFAULT_TTL.into();
    if address.is_ipv4() {
        let ip = libc::IPPROTO_IP;
        set_bytes(fd, ip, libc::IP_MULTICAST_IF, &mreqn([0; 4], interface))?;
        set_int(fd, ip, libc::IP_MULTICAST_TTL, ttl)
    } else {
        let ip = libc::IPPROTO_IPV6;
        set_bytes(fd, ip, libc::IPV6_MULTICAST_IF, &interface.to_ne_bytes())?;
        set_int(fd, ip, libc::IPV6_MULTICAST_HOPS, ttl)
    }
}

fn hear_group(fd: BorrowedFd<'_>, group: IpAddr, interface: u32, netdev: &str) -> io::Result<()> {
    // Several sockets may then bind to the group: each of them gets a copy.
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    match group {
        IpAddr::V4(group) => {
            let ip = libc::IPPROTO_IP;
            // Receive only on this interface, not where other sockets have joined the group.
            set_int(fd, ip, libc::IP_MULTICAST_ALL, 0)?;
            set_bytes(fd, ip, libc::IP_ADD_MEMBERSHIP, &mreqn(group.octets(), interface))?;
        }
        IpAddr::V6(group) => {
            let ip = libc::IPPROTO_IPV6;
            // The same for IPv6. The first option does not exist before Linux 4.20 and ignores the
            // interface. The second option needs privileges before Linux 5.7.
            let _ = set_int(fd, ip, IPV6_MULTICAST_ALL, 0);
            let _ = set_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, netdev.as_bytes());
            let mut mreq = [0; 20];
            mreq[..16].copy_from_slice(&group.octets());
            mreq[16..].copy_from_slice(&interface.to_ne_bytes());
            set_bytes(fd, ip, libc::IPV6_ADD_MEMBERSHIP, &mreq)?;
        }
    }
    bind(fd, &RawAddr::inet(group, UDP_PORT, interface))
}

/// Returns a `struct ip_mreqn`: a group and an interface, without a local address.
fn mreqn(group: [u8; 4], interface: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&group);
    bytes[8..].copy_from_slice(&interface.to_ne_bytes());
    bytes
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Converts the error of [`UdpSocket::open_sender`].
pub(crate) fn sender_error(source: io::Error, address: IpAddr, port: u16) -> NetError {
    let in_use = source.raw_os_error() == Some(libc::EADDRINUSE);
    let owner = in_use.then(|| port_owner::of(address, port)).flatten();
    NetError::SourcePort { address, port, owner, source }
}

fn bind_error(error: io::Error, address: IpAddr) -> NetError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            NetError::PortInUse { address, owner: port_owner::of(address, UDP_PORT) }
        }
        // EINVAL: the interface does not have this link-local address.
        Some(libc::EADDRNOTAVAIL | libc::EINVAL) => NetError::NoSuchAddress { address },
        _ => NetError::os("bind a UDP socket", error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket as StdSocket};

    use super::*;

    #[test]
    fn a_flood_does_not_hold_up_the_new_owner_of_a_socket() {
        let mut received = 0;
        drop_arrived(64 << 10, || {
            received += 1;
            true
        });
        assert_eq!(received, 129);
    }

    #[test]
    fn a_full_buffer_is_emptied_for_the_new_owner_of_a_socket() {
        let std = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = std.local_addr().unwrap();
        std.set_nonblocking(true).unwrap();
        let fd = SharedFd::guarded(std.into());
        let mut socket = UdpSocket::adopt(fd, to.ip(), 0);
        socket.set_buffers(1 << 16, 0);
        let sender = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // Many more of the smallest datagrams than the buffer can hold.
        (0..2000).for_each(|_| assert_eq!(sender.send_to(&[], to).unwrap(), 0));
        socket.discard_received();
        let left = rustix::net::recv(&socket.fd, &mut [0; 1][..], RecvFlags::DONTWAIT);
        assert_eq!(left.unwrap_err(), rustix::io::Errno::AGAIN);
    }
}
