//! A packet socket, which receives and sends the frames of one interface. packet(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::sock_filter;
use rustix::net::SocketType;
use rxe_core::wire::{Frame, IpId, NetHeader, icrc};

use super::headers::{Vnet, parse_vnet};
use crate::error::NetError;
use rxe_sys::SharedFd;
use rxe_sys::addr::RawAddr;
use rxe_sys::cmsg;
use rxe_sys::mmsg::{Received, RecvArena, RecvPace};
use rxe_sys::{packet_membership, sockopt};

const PACKET_VNET_HDR: libc::c_int = 15;
pub(super) const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
pub(super) const ETH_P_ALL: u16 = 3;

/// A packet socket.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: SharedFd,
    /// A virtio header precedes each frame, so the kernel can segment and merge.
    pub(crate) vnet: bool,
    /// The size of the receive buffer in bytes, as the kernel counts it.
    pub(crate) recv_buffer: usize,
    /// The kernel's last count of frames lost because the receive buffer was full.
    overflow: u32,
    pace: RecvPace,
}

/// The configuration of a [`PacketSocket`].
pub(crate) struct PacketSocketConfig<'a> {
    /// The index of the interface.
    pub(crate) interface: u32,
    /// Frames have Ethernet headers. Otherwise they begin with IP.
    pub(crate) ethernet: bool,
    /// The filter of received frames.
    pub(crate) filter: &'a [sock_filter],
    /// Frames that this host sends are received too.
    pub(crate) outgoing: bool,
    /// The receive and send buffer to request, in bytes.
    pub(crate) buffer: usize,
    /// Wraps the descriptor; decides whether forked children keep it.
    pub(crate) keep: fn(OwnedFd) -> SharedFd,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    /// The virtio header; all zero if the socket has none. `None` if the header describes something
    /// that is not UDP.
    pub(crate) vnet: Option<Vnet>,
    /// The frame, without the virtio header.
    pub(crate) bytes: &'a [u8],
    /// The number of frames lost before this one.
    pub(crate) lost: u32,
}

impl PacketSocket {
    pub(crate) fn open(config: &PacketSocketConfig<'_>) -> Result<Self, NetError> {
        let fd = unbound(if config.ethernet { SocketType::RAW } else { SocketType::DGRAM })?;
        let vnet = config.ethernet && kernel_knows_udp_in_vnet();
        let set_up = || -> io::Result<usize> {
            sockopt::attach_filter(fd.as_fd(), config.filter)?;
            let set = |level, name, value| sockopt::set_int(fd.as_fd(), level, name, value);
            if vnet {
                set(libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
            }
            if !config.outgoing {
                // Before Linux 4.20 outgoing frames are recognised by their packet type.
                let _ = set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
            }
            let _ = set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
            sockopt::set_receive_buffer(fd.as_fd(), config.buffer);
            sockopt::set_send_buffer(fd.as_fd(), config.buffer);
            sockopt::bind(fd.as_fd(), &RawAddr::link(config.interface, ETH_P_ALL))?;
            let got = sockopt::get_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
            Ok(usize::try_from(got).unwrap_or(0))
        };
        let recv_buffer = set_up().map_err(|e| NetError::os("set up a packet socket", e))?;
        Ok(Self {
            fd: (config.keep)(fd),
            vnet,
            recv_buffer,
            overflow: 0,
            pace: RecvPace::default(),
        })
    }

    /// Replaces the filter of received frames.
    pub(super) fn set_filter(&self, filter: &[sock_filter]) -> Result<(), NetError> {
        sockopt::attach_filter(self.intact()?, filter)
            .map_err(|e| NetError::os("attach a filter to a packet socket", e))
    }

    /// Returns the descriptor if its number is intact.
    pub(crate) fn intact(&self) -> Result<BorrowedFd<'_>, NetError> {
        Ok(self.fd.intact()?)
    }

    pub(crate) fn shared(&self) -> &SharedFd {
        &self.fd
    }

    /// Receives frames like [`RecvArena::recv`]. The outer error means that the socket cannot be
    /// used any more.
    pub(crate) fn recv(
        &mut self,
        arena: &mut RecvArena,
    ) -> Result<io::Result<(usize, bool)>, NetError> {
        Ok(arena.recv(self.fd.intact()?, &mut self.pace))
    }

    /// Parses a received datagram into a frame.
    pub(crate) fn arrived<'a>(&mut self, received: &Received<'a>) -> Arrived<'a> {
        let mut lost = 0;
        for m in cmsg::messages(received.control) {
            if (m.level, m.kind) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) {
                lost = m.int().wrapping_sub(std::mem::replace(&mut self.overflow, m.int()));
            }
        }
        let (vnet, bytes) = match self.vnet {
            true => parse_vnet(received.payload),
            false => (Some(Vnet::default()), received.payload),
        };
        Arrived { vnet: vnet.filter(|_| !received.truncated), bytes, lost }
    }
}

/// Opens a packet socket that receives nothing until it is bound.
pub(super) fn unbound(kind: SocketType) -> Result<OwnedFd, NetError> {
    packet_membership::unbound(kind).map_err(|e| privilege(e, "open a packet socket"))
}

/// Converts an error; a missing privilege becomes [`NetError::NoPrivilege`].
pub(super) fn privilege(error: io::Error, what: &'static str) -> NetError {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            NetError::NoPrivilege { backend: "packet", capability: "CAP_NET_RAW" }
        }
        _ => NetError::os(what, error),
    }
}

/// Returns whether virtio headers support UDP segments, which they do since Linux 6.2. On older
/// kernels, merged UDP frames cannot be received with the header.
fn kernel_knows_udp_in_vnet() -> bool {
    sockopt::kernel_version() >= (6, 2)
}

/// Splits a frame that the kernel may have merged. The packets have `gso_size` bytes (0: the frame
/// is one packet).
pub(crate) fn unmerged<'a>(frame: Frame<'a>, gso_size: usize) -> Frame<'a> {
    let whole = frame.payload.len();
    let segment = if gso_size == 0 { whole } else { gso_size.min(whole) };
    Frame { net: id_of_merged(&frame, segment), segment, ..frame }
}

/// Returns the headers of a frame that the kernel may have merged. The kernel merges packets with
/// consecutive IDs, and also packets with equal IDs (before Linux 6.10 with any IDs). In the latter
/// cases the IDs are hidden.
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Returns three packets with ICRCs for these IDs, as a merged frame with the ID of the first.
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
            unmerged(Frame::single(net, &payload), 32).net.id
        };
        assert_eq!(id_of([7, 8, 9]), IpId::Known { id: 7, flags: 0x4000 });
        assert_eq!(id_of([0, 0, 0]), IpId::Hidden);
        assert_eq!(id_of([5, 900, 77]), IpId::Hidden);
    }
}
