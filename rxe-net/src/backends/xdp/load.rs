//! Loads the XDP program and attaches it to the interface. A link attaches the program and ends
//! with its descriptor: however the process ends, the interface is then as it was before.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::maps::Maps;
use super::mode::XdpMode;
use super::program::{Setup, Verdict, program};
use super::umem::CHUNK;
use crate::error::{NetError, XdpRefusal};
use crate::interface::Interface;
use rxe_sys::NetDev;
use rxe_sys::SharedFd;
use rxe_sys::bpf;

/// The bytes in a chunk before a received frame: XDP_PACKET_HEADROOM.
const HEADROOM: usize = 256;
/// The largest received frame that fits into one chunk, in bytes.
pub(super) const ONE_CHUNK: usize = CHUNK - HEADROOM;
/// The bytes before an IP packet: Ethernet, with two VLAN tags.
pub(super) const LINK_HEADER: usize = 14 + 8;

/// BPF_F_XDP_HAS_FRAGS: the program supports frames in several buffers.
const HAS_FRAGS: u32 = 1 << 5;
/// XDP_FLAGS_SKB_MODE and XDP_FLAGS_DRV_MODE.
const GENERIC: u32 = 1 << 1;
const DRIVER: u32 = 1 << 2;

/// An attached program and its maps.
#[derive(Debug)]
pub(super) struct Attached {
    /// Declared first, so that the program is detached before the maps are closed.
    _link: SharedFd,
    pub(super) maps: Maps,
    /// The kernel runs the program in generic mode, after the driver has created a socket buffer
    /// for the frame.
    pub(super) generic: bool,
    /// Frames may have more than one chunk.
    pub(super) frags: bool,
}

impl Attached {
    /// Attaches the program to `device`. [`XdpMode::Any`] tries the driver first, then generic
    /// mode. `frags` tells whether sockets support frames of several chunks.
    pub(super) fn new(
        device: &NetDev,
        netdev: &str,
        mode: XdpMode,
        frags: bool,
    ) -> Result<Self, NetError> {
        let maps = Maps::new().map_err(|e| refusal(e, netdev, "make BPF maps"))?;
        // A driver may support XDP, but not with frames of several chunks.
        let driver = [(DRIVER, frags), (DRIVER, false)];
        let generic = [(GENERIC, frags)];
        let ways = match mode {
            XdpMode::Any => [&driver[..], &generic].concat(),
            XdpMode::ZeroCopy | XdpMode::Driver => driver.into(),
            XdpMode::Generic => generic.into(),
        };
        let mut last = None;
        for (flags, frags) in ways {
            match attach(&maps, device, flags, frags) {
                Ok(link) => {
                    return Ok(Self {
                        _link: SharedFd::guarded(link),
                        maps,
                        generic: flags == GENERIC,
                        frags,
                    });
                }
                Err(e) if is_occupied(&e) => {
                    return Err(refused(netdev, occupied(device.index)));
                }
                Err(e) => last = Some(e),
            }
        }
        let error = last.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
        let in_driver = matches!(mode, XdpMode::ZeroCopy | XdpMode::Driver);
        if in_driver && error.raw_os_error() == Some(libc::EINVAL) && !fits(device.mtu) {
            return Err(refused(netdev, XdpRefusal::LargeMtu { mtu: device.mtu }));
        }
        if in_driver && error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            return Err(refused(netdev, XdpRefusal::NotInDriver));
        }
        Err(refusal(error, netdev, "attach an XDP program"))
    }
}

fn setup(maps: &Maps, device: &NetDev, flags: u32, frags: bool) -> Setup {
    let whole = device.mtu + LINK_HEADER;
    let longest = if frags { whole } else { whole.min(ONE_CHUNK) };
    Setup {
        mac: device.mac,
        longest: i32::try_from(longest).unwrap_or(i32::MAX),
        frags,
        generic: flags == GENERIC,
        maps: maps.fds(),
        no_socket: Verdict::Pass,
    }
}

fn attach(maps: &Maps, device: &NetDev, flags: u32, frags: bool) -> io::Result<OwnedFd> {
    let code = program(&setup(maps, device, flags, frags));
    let loaded = bpf::load_xdp(&code, if frags { HAS_FRAGS } else { 0 })?;
    bpf::link_xdp(loaded.as_fd(), device.index, flags)
}

/// Converts the error of a failed system call that sets up XDP on an interface.
pub(super) fn refusal(error: io::Error, netdev: &str, what: &'static str) -> NetError {
    let reason = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => XdpRefusal::NotPermitted,
        Some(libc::ENOSYS | libc::EAFNOSUPPORT) => XdpRefusal::NotInKernel,
        Some(libc::EOPNOTSUPP) => XdpRefusal::NotOnInterface,
        Some(libc::EBUSY) => XdpRefusal::InUse,
        Some(libc::ENOBUFS) => XdpRefusal::LockedMemory,
        _ => return NetError::os(what, error),
    };
    refused(netdev, reason)
}

/// Returns the error for an interface that cannot be used.
pub(super) fn refused(netdev: &str, reason: XdpRefusal) -> NetError {
    NetError::Xdp { netdev: netdev.to_owned(), reason }
}

/// Returns whether a frame fits into a chunk or a page. The kernel also needs room after it, for a
/// socket buffer (`struct skb_shared_info`).
pub(super) fn fits(mtu: usize) -> bool {
    const BEHIND: usize = 320;
    mtu + LINK_HEADER <= ONE_CHUNK - BEHIND
}

/// Finds out what prevents our program on the interface with this index. A foreign program may be
/// attached without a link, and then outlives the process that attached it.
fn occupied(interface: u32) -> XdpRefusal {
    match Interface::xdp_program(interface) {
        Ok(Some((place, id))) => XdpRefusal::Occupied { place, id },
        _ => XdpRefusal::InUse,
    }
}

fn is_occupied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::IpAddr;

    use super::*;

    /// Returns maps with addresses and a shard's block but no socket, and a setup whose verdict
    /// identifies frames that would go to a socket.
    pub(in crate::backends::xdp) fn for_verdicts(
        mac: [u8; 6],
        addresses: &[IpAddr],
        block: u8,
    ) -> Option<(Maps, Setup)> {
        let maps = match Maps::new() {
            Ok(maps) => maps,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => return None,
            Err(e) => panic!("{e}"),
        };
        maps.listen_to(3, addresses, [block].into_iter().collect()).unwrap();
        let device = NetDev { index: 0, mtu: 1500, ethernet: true, mac, loopback: false, up: true };
        let setup = Setup { no_socket: Verdict::Drop, ..setup(&maps, &device, DRIVER, false) };
        Some((maps, setup))
    }
}
