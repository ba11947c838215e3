//! One UDP socket: an address, port 4791, and the options that make what leaves it predictable and
//! what arrives cheap.

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rxe_core::wire::{IpId, NetHeader, UDP_PORT};

use super::owner;
use crate::NetError;
use crate::sys::addr::RawAddr;
use crate::sys::cmsg::{self, Control};
use crate::sys::fork::ForkGuarded;
use crate::sys::sockopt::{attach_filter, bind, get_int, set_bytes, set_int};

const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;
const UDP_NO_CHECK6_RX: c_int = 102;
const IPV6_AUTOFLOWLABEL: c_int = 70;
const IPV6_MULTICAST_ALL: c_int = 29;
const DEFAULT_TTL: u8 = 64;

/// A bound, unconnected socket.
///
/// Unconnected and with path MTU discovery it sends IPv4 ID 0 and "don't fragment", which is what
/// [`NetHeader::outgoing`] says; a connected socket would count.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    fd: Arc<ForkGuarded>,
    address: IpAddr,
    scope: u32,
    /// The system can segment what is sent.
    pub(super) segments: bool,
    /// What SO_RCVBUF came out as, in bytes.
    pub(super) recv_buffer: usize,
}

/// What the control messages of a received datagram said.
pub(super) struct Arrived {
    pub(super) net: NetHeader,
    /// Bytes per packet, if the system has merged several.
    pub(super) segment: Option<usize>,
    /// Datagrams lost so far because the receive buffer was full.
    pub(super) overflow: Option<u32>,
}

impl UdpSocket {
    /// Makes and binds a socket that others can share the address with; `scope` is the interface's
    /// index.
    pub(crate) fn make(address: IpAddr, scope: u32) -> Result<OwnedFd, NetError> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|e| NetError::os("open a UDP socket", e))?;
        Self::set_up(fd.as_fd(), address)
            .and_then(|()| send_to_groups(fd.as_fd(), address, scope))
            .and_then(|()| set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1))
            .map_err(|e| NetError::os("set the options of a UDP socket", e))?;
        bind(fd.as_fd(), &RawAddr::inet(address, UDP_PORT, scope))
            .map_err(|e| bind_error(e, address))?;
        Ok(fd)
    }

    /// Takes a socket that [`UdpSocket::make`] made, perhaps for another process.
    pub(crate) fn adopt(fd: Arc<ForkGuarded>, address: IpAddr, scope: u32) -> Self {
        // Asking says whether the system knows of segmentation at all.
        let segments = get_int(fd.as_fd(), libc::SOL_UDP, UDP_SEGMENT).is_ok();
        Self { fd, address, scope, segments, recv_buffer: 0 }
    }

    /// Forgets what has arrived for whoever had the socket before, and hears everything.
    pub(crate) fn renew(&self) {
        // There is none, unless a packet backend had it.
        let _ = set_int(self.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
        // More than any buffer holds: what still comes then is new.
        for _ in 0..1 << 20 {
            let mut byte = [0; 1];
            if rustix::net::recv(&self.fd, &mut byte[..], RecvFlags::DONTWAIT).is_err() {
                break;
            }
        }
    }

    /// Opens a socket that hears what is sent to a group on the interface `netdev`, whose index is
    /// `scope`, and joins the group there: by IGMP or MLD it asks the network for it. What this host
    /// sends to the group comes back too. Any number of sockets may do so.
    pub(crate) fn open_group(group: IpAddr, scope: u32, netdev: &str) -> Result<Self, NetError> {
        let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|e| NetError::os("open a UDP socket", e))?;
        Self::set_up(fd.as_fd(), group)
            .and_then(|()| hear_group(fd.as_fd(), group, scope, netdev))
            .map_err(|source| NetError::Join { group, source })?;
        Ok(Self {
            fd: Arc::new(ForkGuarded::new(fd)),
            address: group,
            scope,
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
            // The flow label that leaves is the one asked for. Not knowing these two is no harm.
            let _ = set_int(fd, ip, IPV6_AUTOFLOWLABEL, 0);
            let _ = set_int(fd, ip, libc::IPV6_FLOWINFO, on);
            // RoCEv2 senders leave the UDP checksum 0 over IPv6 too.
            let _ = set_int(fd, libc::SOL_UDP, UDP_NO_CHECK6_RX, on);
        }
        // Not known before Linux 5.0: then packets come one by one.
        let _ = set_int(fd, libc::SOL_UDP, UDP_GRO, on);
        let _ = set_int(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, on);
        Ok(())
    }

    /// Whether the system may merge packets that arrive into one buffer.
    pub(super) fn merge(&self, on: bool) {
        // Not known before Linux 5.0: then packets come one by one.
        let _ = set_int(self.as_fd(), libc::SOL_UDP, UDP_GRO, on.into());
    }

    /// Asks for buffers of these sizes, as far as the system lets this process have them; for
    /// sending, 0 asks for none.
    pub(crate) fn set_buffers(&mut self, receive: usize, send: usize) {
        let fd = self.fd.as_fd();
        let set = |force, plain, bytes: usize| {
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            if set_int(fd, libc::SOL_SOCKET, force, bytes).is_err() {
                let _ = set_int(fd, libc::SOL_SOCKET, plain, bytes);
            }
        };
        set(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive);
        if send > 0 {
            set(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send);
        }
        let got = get_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        self.recv_buffer = usize::try_from(got).unwrap_or(0);
    }

    /// Lets nothing in: the socket then only keeps the port, so that this host does not answer
    /// packets to it with "port unreachable".
    pub(crate) fn deafen(&self) -> Result<(), NetError> {
        const RET_K: u16 = 0x06;
        let drop_all = [libc::sock_filter { code: RET_K, jt: 0, jf: 0, k: 0 }];
        attach_filter(self.as_fd(), &drop_all)
            .map_err(|e| NetError::os("attach a filter to a UDP socket", e))
    }

    /// The address or the group it is bound to.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Where to send what goes to `net.dst`.
    pub(super) fn destination(&self, net: &NetHeader) -> RawAddr {
        RawAddr::inet(net.dst, UDP_PORT, self.scope)
    }

    /// The control messages that make a burst leave as its header says, in segments of `segment`
    /// bytes if there is more than one.
    pub(super) fn control(net: &NetHeader, segment: Option<usize>) -> Control {
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
        if net.tos != 0 {
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

    /// What is known of a datagram that came from `from` with these control messages.
    pub(super) fn arrived(&self, from: std::net::SocketAddr, control: &[u8]) -> Arrived {
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

/// Datagrams to groups leave on the interface whose address this is, and go as far as others.
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

/// Binds to a group and joins it.
fn hear_group(fd: BorrowedFd<'_>, group: IpAddr, interface: u32, netdev: &str) -> io::Result<()> {
    // Others may hear it too: every socket on a group gets a copy.
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    match group {
        IpAddr::V4(group) => {
            let ip = libc::IPPROTO_IP;
            // Only what comes on the interface, not what others have joined elsewhere.
            set_int(fd, ip, libc::IP_MULTICAST_ALL, 0)?;
            set_bytes(fd, ip, libc::IP_ADD_MEMBERSHIP, &mreqn(group.octets(), interface))?;
        }
        IpAddr::V6(group) => {
            let ip = libc::IPPROTO_IPV6;
            // The same; the first is not known before Linux 4.20, and does not look at the
            // interface; the second needs privileges before Linux 5.7.
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

/// `struct ip_mreqn`: a group, no own address, an interface.
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

fn bind_error(error: io::Error, address: IpAddr) -> NetError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            NetError::PortInUse { address, owner: owner::of(address, UDP_PORT) }
        }
        // EINVAL: a link-local address on an interface that has it not.
        Some(libc::EADDRNOTAVAIL | libc::EINVAL) => NetError::NoSuchAddress { address },
        _ => NetError::os("bind a UDP socket", error),
    }
}
