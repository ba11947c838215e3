//! The XDP program of an interface and an AF_XDP socket on each of its queues.

use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use super::load::{Attached, LINK_HEADER, MAX_QUEUES, ONE_CHUNK, fits, refusal};
use super::mode::XdpMode;
use super::socket::{Options, Socket};
use crate::lease::Blocks;
use crate::packet::headers::ETHERNET;
use crate::sys::netdev::NetDev;
use crate::sys::sockopt::kernel_version;
use crate::{NetError, SharedFd, XdpRefusal};

/// Chunks to receive into on the first queue, and on each other one.
pub(super) const RX_CHUNKS: u32 = 4096;
const OTHER_RX_CHUNKS: u32 = 512;
/// Chunks to send from. Only the first queue sends; a ring has one place at least.
const TX_CHUNKS: u32 = 2048;
const OTHER_TX_CHUNKS: u32 = 1;
/// Calls of `receive` between two looks for errors of the sockets.
const CLEAR_INTERVAL: usize = 1024;

/// See the module's opening.
pub(super) struct Queues {
    /// Before the sockets: nothing is given to a socket that is closed.
    attached: Attached,
    /// One for each queue.
    sockets: Vec<Socket>,
    /// The queue that is read first.
    turn: usize,
}

impl Queues {
    /// Attaches the program, and opens the sockets.
    pub(super) fn open(device: &NetDev, netdev: &str, mode: XdpMode) -> Result<Self, NetError> {
        // Since Linux 6.6 an AF_XDP socket can have frames in several chunks.
        let attached = Attached::new(device, netdev, mode, kernel_version() >= (6, 6))?;
        // Few drivers have both such frames and zero copy.
        let frags = attached.frags && device.mtu + LINK_HEADER > ONE_CHUNK;
        let mut sockets: Vec<Socket> = Vec::new();
        for queue in 0..MAX_QUEUES {
            let first = queue == 0;
            let options = Options {
                interface: device.index,
                queue,
                rx: if first { RX_CHUNKS } else { OTHER_RX_CHUNKS },
                tx: if first { TX_CHUNKS } else { OTHER_TX_CHUNKS },
                copy: copies(mode, attached.generic),
                frags: sockets.first().map_or(frags, |first| first.frags),
            };
            let opened = match open_when_free(&options) {
                // The driver has frames in several pieces, but not for AF_XDP.
                Err(e) if options.frags && not_supported(&e) => {
                    open_when_free(&Options { frags: false, ..options })
                }
                other => other,
            };
            let opened = opened.map_err(|e| match mode {
                XdpMode::ZeroCopy if not_supported(&e) => NetError::Xdp {
                    netdev: netdev.to_owned(),
                    reason: no_zero_copy(&e, device.mtu),
                },
                _ => refusal(e, netdev, "open an AF_XDP socket"),
            });
            let Some(socket) = opened? else {
                break;
            };
            attached.steer(queue, socket.shared().intact()?)?;
            sockets.push(socket);
        }
        Ok(Self { attached, sockets, turn: 0 })
    }

    /// Takes what comes to these QPN blocks of these addresses from now on.
    pub(super) fn listen_to(
        &mut self,
        addresses: &[IpAddr],
        blocks: Blocks,
    ) -> Result<(), NetError> {
        self.attached.listen_to(addresses, blocks)
    }

    /// The mode in use.
    pub(super) fn mode(&self) -> XdpMode {
        if self.attached.generic {
            XdpMode::Generic
        } else if self.sockets.iter().all(|socket| socket.zero_copy) {
            XdpMode::ZeroCopy
        } else {
            XdpMode::Driver
        }
    }

    /// The socket that sends.
    pub(super) fn sender(&mut self) -> &mut Socket {
        &mut self.sockets[0]
    }

    /// The largest IP packet that can be sent and received, on an interface of this MTU.
    pub(super) fn link_mtu(&self, mtu: usize) -> usize {
        let whole = self.sockets.iter().all(|socket| socket.frags);
        if whole { mtu } else { mtu.min(ONE_CHUNK - ETHERNET) }
    }

    /// Hands at most about `budget` frames to `f`, as [`Socket::receive`] does.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        f: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, NetError> {
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(CLEAR_INTERVAL) {
            self.sockets.iter().for_each(Socket::clear_error);
        }
        let count = self.sockets.len();
        let mut frames = 0;
        for index in (0..count).map(|i| (self.turn + i) % count) {
            frames += self.sockets[index].receive(budget - frames, f)?;
            if frames >= budget {
                break;
            }
        }
        Ok(frames)
    }

    /// Frames that came over each queue so far, in chunks.
    #[cfg(test)]
    pub(super) fn received(&self) -> Vec<u32> {
        self.sockets.iter().map(Socket::received).collect()
    }

    /// Frames that were lost so far because there was no room for them.
    pub(super) fn lost(&self) -> u64 {
        self.sockets.iter().map(Socket::lost).sum()
    }

    /// Calls `f` with the descriptor of each socket.
    pub(super) fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.sockets.iter().for_each(|socket| f(socket.shared()));
    }
}

/// Whether the kernel copies the frames of the first queue: `None` leaves it to the driver.
fn copies(mode: XdpMode, generic: bool) -> Option<bool> {
    match mode {
        XdpMode::Any => generic.then_some(true),
        XdpMode::ZeroCopy => Some(false),
        XdpMode::Driver | XdpMode::Generic => Some(true),
    }
}

/// The kernel lets go of a queue a little after the last socket on it was closed.
fn open_when_free(options: &Options) -> io::Result<Option<Socket>> {
    const TRIES: u32 = 200;
    const PAUSE: Duration = Duration::from_millis(5);
    for _ in 1..TRIES {
        match Socket::open(options) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => thread::sleep(PAUSE),
            other => return other,
        }
    }
    Socket::open(options)
}

/// Why there is no zero copy. Newer kernels want a frame to fit into a chunk.
fn no_zero_copy(error: &io::Error, mtu: usize) -> XdpRefusal {
    if error.raw_os_error() == Some(libc::EINVAL) && !fits(mtu) {
        XdpRefusal::LargeMtu { mtu }
    } else {
        XdpRefusal::NoZeroCopy
    }
}

fn not_supported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}
