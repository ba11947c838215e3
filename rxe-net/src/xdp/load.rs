//! Loads the XDP program and attaches it to the interface. The attachment is a link that ends with
//! its descriptor: when the process ends, in whatever way, the interface is as it was before.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::mode::XdpMode;
use super::program::{Setup, Verdict, program};
use super::umem::CHUNK;
use crate::error::XdpRefusal;
use crate::lease::Blocks;
use crate::sys::bpf::{self, MapKind};
use crate::sys::netdev::NetDev;
use crate::{NetError, SharedFd};

/// The most queues of an interface that sockets are opened on.
pub(super) const MAX_QUEUES: u32 = 64;
/// The most addresses to receive for.
const MAX_ADDRESSES: u32 = 1024;
/// Bytes in a chunk in front of a received frame: XDP_PACKET_HEADROOM.
const HEADROOM: usize = 256;
/// The largest received frame that needs only one chunk.
pub(super) const ONE_CHUNK: usize = CHUNK - HEADROOM;
/// Bytes in front of an IP packet: Ethernet, with two VLAN tags.
pub(super) const LINK_HEADER: usize = 14 + 8;

/// BPF_F_XDP_HAS_FRAGS: the program may see frames in pieces.
const HAS_FRAGS: u32 = 1 << 5;
/// XDP_FLAGS_SKB_MODE and XDP_FLAGS_DRV_MODE.
const GENERIC: u32 = 1 << 1;
const DRIVER: u32 = 1 << 2;

/// An attached program and its maps.
#[derive(Debug)]
pub(super) struct Attached {
    /// Closed first: nothing reaches the maps after that.
    _link: SharedFd,
    maps: Maps,
    /// The addresses and blocks in the maps.
    addresses: HashSet<IpAddr>,
    blocks: Blocks,
    /// The kernel runs the program after the driver has made a packet of the frame.
    pub(super) generic: bool,
    /// Frames may have more than one chunk.
    pub(super) frags: bool,
}

#[derive(Debug)]
struct Maps {
    blocks: SharedFd,
    addresses: SharedFd,
    sockets: SharedFd,
}

impl Attached {
    /// Attaches the program to `device`, if any mode will do in the driver, or else in generic mode.
    /// `frags`: sockets can take frames of several chunks.
    pub(super) fn new(
        device: &NetDev,
        netdev: &str,
        mode: XdpMode,
        frags: bool,
    ) -> Result<Self, NetError> {
        let maps = Maps::new().map_err(|e| refusal(e, netdev, "make BPF maps"))?;
        // A driver may have XDP and no frames in several chunks.
        let driver = [(DRIVER, frags), (DRIVER, false)];
        let generic = [(GENERIC, frags)];
        let ways = match mode {
            XdpMode::Any => [&driver[..], &generic].concat(),
            XdpMode::ZeroCopy | XdpMode::Driver => driver.into(),
            XdpMode::Generic => generic.into(),
        };
        let mut last = None;
        for (flags, frags) in ways {
            match maps.attach(device, flags, frags) {
                Ok(link) => {
                    return Ok(Self {
                        _link: SharedFd::guarded(link),
                        maps,
                        addresses: HashSet::new(),
                        blocks: Blocks::default(),
                        generic: flags == GENERIC,
                        frags,
                    });
                }
                Err(e) if is_occupied(&e) => {
                    return Err(refusal(e, netdev, "attach an XDP program"));
                }
                Err(e) => last = Some(e),
            }
        }
        let error = last.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
        let in_driver = matches!(mode, XdpMode::ZeroCopy | XdpMode::Driver);
        if in_driver && error.raw_os_error() == Some(libc::EINVAL) && !fits(device.mtu) {
            let reason = XdpRefusal::LargeMtu { mtu: device.mtu };
            return Err(NetError::Xdp { netdev: netdev.to_owned(), reason });
        }
        if in_driver && error.raw_os_error() == Some(libc::EOPNOTSUPP) {
            let reason = XdpRefusal::NotInDriver;
            return Err(NetError::Xdp { netdev: netdev.to_owned(), reason });
        }
        Err(refusal(error, netdev, "attach an XDP program"))
    }

    /// Gives what arrives on a queue to a socket.
    pub(super) fn steer(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), NetError> {
        let socket = socket.as_raw_fd().to_ne_bytes();
        bpf::update(self.maps.sockets.intact()?, &queue.to_ne_bytes(), &socket)
            .map_err(|e| NetError::os("enter a socket into a BPF map", e))
    }

    /// Takes what comes to these QPN blocks of these addresses from now on.
    pub(super) fn listen_to(
        &mut self,
        addresses: &[IpAddr],
        blocks: Blocks,
    ) -> Result<(), NetError> {
        let Self { maps, .. } = self;
        let [to_blocks, to_addresses] = [maps.blocks.intact()?, maps.addresses.intact()?];
        let mut change = || -> io::Result<()> {
            for block in 0..=u8::MAX {
                let [before, after] = [self.blocks, blocks].map(|set| set.has(block));
                if before != after {
                    let value = u32::from(after).to_ne_bytes();
                    bpf::update(to_blocks, &u32::from(block).to_ne_bytes(), &value)?;
                }
            }
            self.blocks = blocks;
            for address in addresses {
                if !self.addresses.contains(address) {
                    bpf::update(to_addresses, &key(*address), &1u32.to_ne_bytes())?;
                    self.addresses.insert(*address);
                }
            }
            self.addresses.retain(|address| {
                let stays = addresses.contains(address);
                if !stays {
                    // It is there: `self.addresses` has it.
                    let _ = bpf::delete(to_addresses, &key(*address));
                }
                stays
            });
            Ok(())
        };
        change().map_err(|e| NetError::os("change a BPF map", e))
    }
}

impl Maps {
    fn new() -> io::Result<Self> {
        let make = |kind, key, value, entries| {
            bpf::create_map(kind, key, value, entries).map(SharedFd::guarded)
        };
        Ok(Self {
            blocks: make(MapKind::Array, 4, 4, 256)?,
            addresses: make(MapKind::Hash, 16, 4, MAX_ADDRESSES)?,
            sockets: make(MapKind::Xsk, 4, 4, MAX_QUEUES)?,
        })
    }

    fn setup(&self, device: &NetDev, flags: u32, frags: bool) -> Setup {
        let whole = device.mtu + LINK_HEADER;
        let longest = if frags { whole } else { whole.min(ONE_CHUNK) };
        Setup {
            mac: device.mac,
            longest: i32::try_from(longest).unwrap_or(i32::MAX),
            frags,
            generic: flags == GENERIC,
            blocks: self.blocks.as_raw_fd(),
            addresses: self.addresses.as_raw_fd(),
            sockets: self.sockets.as_raw_fd(),
            no_socket: Verdict::Pass,
        }
    }

    fn attach(&self, device: &NetDev, flags: u32, frags: bool) -> io::Result<std::os::fd::OwnedFd> {
        let code = program(&self.setup(device, flags, frags));
        let loaded = bpf::load_xdp(&code, if frags { HAS_FRAGS } else { 0 })?;
        bpf::link_xdp(loaded.as_fd(), device.index, flags)
    }
}

/// The error for a system call that set up XDP on an interface and failed.
pub(super) fn refusal(error: io::Error, netdev: &str, what: &'static str) -> NetError {
    let reason = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => XdpRefusal::NotPermitted,
        Some(libc::ENOSYS | libc::EAFNOSUPPORT) => XdpRefusal::NotInKernel,
        Some(libc::EOPNOTSUPP) => XdpRefusal::NotOnInterface,
        _ if is_occupied(&error) => XdpRefusal::Occupied,
        Some(libc::ENOBUFS) => XdpRefusal::LockedMemory,
        _ => return NetError::os(what, error),
    };
    NetError::Xdp { netdev: netdev.to_owned(), reason }
}

/// Whether a frame fits into a chunk or a page, with the room behind it that the kernel needs for a packet of
/// its network stack (`struct skb_shared_info`).
pub(super) fn fits(mtu: usize) -> bool {
    const BEHIND: usize = 320;
    mtu + LINK_HEADER <= ONE_CHUNK - BEHIND
}

fn is_occupied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// The key of an address. Those of IPv4 addresses begin with ones, as no IPv6 address of an interface
/// does.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut key = [0xff; 16];
            key[12..].copy_from_slice(&v4.octets());
            key
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The maps with an address, a block and no socket, and a setup that tells frames that would go
    /// to a socket.
    pub(in crate::xdp) fn for_verdicts(
        mac: [u8; 6],
        addresses: &[IpAddr],
        block: u8,
    ) -> Option<(impl Sized, Setup)> {
        let maps = match Maps::new() {
            Ok(maps) => maps,
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => return None,
            Err(e) => panic!("{e}"),
        };
        for address in addresses {
            bpf::update(maps.addresses.as_fd(), &key(*address), &1u32.to_ne_bytes()).unwrap();
        }
        let value = 1u32.to_ne_bytes();
        bpf::update(maps.blocks.as_fd(), &u32::from(block).to_ne_bytes(), &value).unwrap();
        let device = NetDev { index: 0, mtu: 1500, ethernet: true, mac, loopback: false, up: true };
        let setup = Setup { no_socket: Verdict::Drop, ..maps.setup(&device, DRIVER, false) };
        Some((maps, setup))
    }
}
