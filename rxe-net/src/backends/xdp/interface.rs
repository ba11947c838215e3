//! An interface with our XDP program, and with a pool of frames for each of its queues. The shards
//! of a device share it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::load::{Attached, LINK_HEADER, ONE_CHUNK, fits, refusal, refused};
use super::maps::Maps;
use super::mode::XdpMode;
use super::pool::Pool;
use super::program::{MAX_QUEUES, MAX_SHARDS};
use super::receiver::Receiver;
use super::sender::Sender;
use super::socket::{Kind, Options, Socket};
use crate::backends::packet::headers::ETHERNET;
use crate::error::{NetError, XdpRefusal};
use crate::interface::{Interface, net_device};
use rxe_sys::NetDev;
use rxe_sys::SharedFd;
use rxe_sys::sockopt::kernel_version;

/// The number of receive chunks on the first queue, and on each other queue.
const RX_CHUNKS: u32 = 4096;
const OTHER_RX_CHUNKS: u32 = 512;
/// The number of transmit chunks of the first shard, and of each further shard. The further shards
/// on one queue have at most `FURTHER_TX_LIMIT` together.
const TX_CHUNKS: u32 = 2048;
const FURTHER_TX_CHUNKS: u32 = 256;
const FURTHER_TX_LIMIT: u32 = 1024;
/// The smallest link MTU that carries packets with the path MTU 256 and the longest headers, in
/// bytes.
const MIN_MTU: usize = 256 + 40 + 8 + 64;

/// An interface prepared for [`XdpBackend`](crate::XdpBackend)s, one for each shard of a device.
/// Each backend receives the packets to its own QPN blocks. All clones share one state; when the
/// last clone and the last backend are dropped, the interface is as it was before.
#[derive(Clone, Debug)]
pub struct XdpInterface(Arc<Prepared>);

#[derive(Debug)]
struct Prepared {
    /// Declared before the sockets, so that the program is detached before a socket is closed.
    attached: Attached,
    queues: Vec<Queue>,
    mode: XdpMode,
    device: NetDev,
    name: String,
    /// The maximum number of shards.
    shards: u32,
    /// The number of shards opened so far.
    opened: AtomicU32,
    /// The number of queues that packets can be sent on.
    senders: u32,
}

#[derive(Debug)]
struct Queue {
    options: Options,
    kind: Kind,
    pool: Arc<Pool>,
    /// The bound socket of the first shard. Further sockets share its UMEM.
    bound: SharedFd,
    /// The socket of the first shard, until that shard is opened.
    first: Mutex<Option<Socket>>,
}

impl XdpInterface {
    /// Attaches an XDP program to an interface, and opens a socket on each of its queues. The
    /// interface must be Ethernet and up. Up to `shards` backends can be opened, if the kernel
    /// supports more than one.
    ///
    /// # Errors
    /// [`NetError::Xdp`] tells why this interface cannot be used.
    pub fn open(netdev: &str, mode: XdpMode, shards: u32) -> Result<Self, NetError> {
        let device = lookup(netdev)?;
        // Since Linux 6.6 an AF_XDP socket supports frames of several chunks.
        let attached = Attached::new(&device, netdev, mode, kernel_version() >= (6, 6))?;
        let shares = shares_queues(attached.generic, kernel_version());
        let shards = if shares { shards.clamp(1, MAX_SHARDS) } else { 1 };
        let senders = NetDev::sending_queues(netdev).min(MAX_QUEUES);
        let open = |queue, frags| {
            let options = Options {
                interface: device.index,
                queue,
                rx: if queue == 0 { RX_CHUNKS } else { OTHER_RX_CHUNKS },
                tx: tx_chunks(queue, senders, shards),
                copy: copies(mode, attached.generic),
                frags,
            };
            open_queue(options, netdev, mode, device.mtu)
        };
        // Few drivers support both frames of several chunks and zero copy.
        let mut frags = attached.frags && device.mtu + LINK_HEADER > ONE_CHUNK;
        let mut queues = Vec::new();
        for queue in 0..MAX_QUEUES {
            let Some(opened) = open(queue, frags)? else { break };
            frags = opened.kind.frags;
            queues.push(opened);
        }
        let mode = if attached.generic {
            XdpMode::Generic
        } else if queues.iter().all(|queue| queue.kind.zero_copy) {
            XdpMode::ZeroCopy
        } else {
            XdpMode::Driver
        };
        let (name, opened) = (netdev.to_owned(), AtomicU32::new(0));
        Ok(Self(Arc::new(Prepared {
            attached,
            queues,
            mode,
            device,
            name,
            shards,
            opened,
            senders,
        })))
    }

    /// Returns the mode in use.
    pub(super) fn mode(&self) -> XdpMode {
        self.0.mode
    }

    pub(super) fn device(&self) -> &NetDev {
        &self.0.device
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    pub(super) fn maps(&self) -> &Maps {
        &self.0.attached.maps
    }

    /// Returns the largest IP packet that can be sent and received, in bytes.
    pub(super) fn link_mtu(&self) -> usize {
        let mtu = self.0.device.mtu;
        let whole = self.0.queues.iter().all(|queue| queue.kind.frags);
        if whole { mtu } else { mtu.min(ONE_CHUNK - ETHERNET) }
    }

    /// Returns the index of one more shard.
    pub(super) fn next_shard(&self) -> Result<u32, NetError> {
        let (most, opened) = (self.0.shards, &self.0.opened);
        let next = |opened: u32| (opened < most).then_some(opened + 1);
        opened
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map_err(|_| refused(self.name(), XdpRefusal::Shards { most }))
    }

    /// Opens the sockets of a shard on all queues, and its sender on one of them. Packets to the
    /// shard's QPN blocks are redirected to these sockets.
    pub(super) fn open_sockets(&self, shard: u32) -> Result<(Vec<Receiver>, Sender), NetError> {
        let failed = |e| refusal(e, &self.0.name, "open an AF_XDP socket");
        let mut sender = None;
        let mut receivers = Vec::new();
        for (number, queue) in (0..).zip(&self.0.queues) {
            let sends = number == shard % self.0.senders;
            let Socket { fd, rx, tx, kind } = queue.socket(shard, sends).map_err(failed)?;
            self.maps().set_socket(number, shard, fd.intact()?)?;
            if let Some(tx) = tx {
                let pool = Arc::clone(&queue.pool);
                let chunks = queue.pool.take_tx_chunks();
                sender = chunks.map(|chunks| Sender::new(fd.clone(), tx, kind, pool, chunks));
            }
            receivers.push(Receiver::new(fd, rx, kind, Arc::clone(&queue.pool)));
        }
        // The interface now has fewer queues than before.
        let sender = sender.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        Ok((receivers, sender))
    }
}

impl Queue {
    /// Opens the socket of a shard on this queue.
    fn socket(&self, shard: u32, sends: bool) -> io::Result<Socket> {
        let first = if shard == 0 { self.first.lock().take() } else { None };
        first.map_or_else(|| self.options.open_shared(&self.bound, self.kind, sends), Ok)
    }
}

/// Returns the interface with this name, or the reason why it cannot be used.
fn lookup(netdev: &str) -> Result<NetDev, NetError> {
    let device = net_device(netdev)?;
    let refuse = |reason| Err(refused(netdev, reason));
    match device {
        NetDev { loopback: true, .. } | NetDev { ethernet: false, .. } => {
            return refuse(XdpRefusal::NotEthernet);
        }
        NetDev { up: false, .. } => return refuse(XdpRefusal::Down),
        NetDev { mtu, .. } if mtu < MIN_MTU => return refuse(XdpRefusal::SmallMtu { mtu }),
        _ => {}
    }
    let owner = Interface::owner_of_port(device.index)
        .map_err(|e| NetError::os("list the interfaces", e))?;
    match owner {
        Some(owner) => refuse(XdpRefusal::Port { owner }),
        None => Ok(device),
    }
}

/// Opens the first socket on a queue. Returns `None` if the interface does not have that queue.
fn open_queue(
    options: Options,
    netdev: &str,
    mode: XdpMode,
    mtu: usize,
) -> Result<Option<Queue>, NetError> {
    match open_when_free(&options) {
        // The driver supports frames of several chunks, but not for AF_XDP.
        Err(e) if options.frags && not_supported(&e) => {
            open_queue(Options { frags: false, ..options }, netdev, mode, mtu)
        }
        Err(e) if mode == XdpMode::ZeroCopy && not_supported(&e) => {
            Err(refused(netdev, no_zero_copy(&e, mtu)))
        }
        Err(e) => Err(refusal(e, netdev, "open an AF_XDP socket")),
        Ok(opened) => Ok(opened.map(|(socket, pool)| Queue {
            options,
            kind: socket.kind,
            pool: Arc::new(pool),
            bound: socket.fd.clone(),
            first: Mutex::new(Some(socket)),
        })),
    }
}

/// Returns the number of transmit chunks on this queue, for each shard that sends there. The shards
/// are assigned to the `senders` queues in turn.
fn tx_chunks(queue: u32, senders: u32, shards: u32) -> Vec<u32> {
    let here = (0..shards).filter(|shard| shard % senders == queue);
    let further = here.clone().filter(|shard| *shard > 0).count();
    let limit = FURTHER_TX_LIMIT / u32::try_from(further.max(1)).unwrap_or(MAX_SHARDS);
    let chunks = |shard| if shard == 0 { TX_CHUNKS } else { limit.min(FURTHER_TX_CHUNKS) };
    here.map(chunks).collect()
}

/// Returns whether a kernel supports several sockets on one queue. In generic mode several CPUs may
/// receive the frames of one queue; before Linux 6.15 each locked its own socket, and not the fill
/// ring that they share. Before 6.0 a zero-copy driver could lack the array for what several
/// sockets send.
fn shares_queues(generic: bool, kernel: (u32, u32)) -> bool {
    kernel >= if generic { (6, 15) } else { (6, 0) }
}

/// Returns whether the kernel must copy frames. `None` leaves the decision to the driver.
fn copies(mode: XdpMode, generic: bool) -> Option<bool> {
    match mode {
        XdpMode::Any => generic.then_some(true),
        XdpMode::ZeroCopy => Some(false),
        XdpMode::Driver | XdpMode::Generic => Some(true),
    }
}

/// Opens the first socket on a queue, and retries while the queue is busy. The kernel releases a
/// queue a moment after its last socket was closed.
fn open_when_free(options: &Options) -> io::Result<Option<(Socket, Pool)>> {
    const TRIES: u32 = 200;
    const PAUSE: Duration = Duration::from_millis(5);
    let open = || options.open_first(options.queue == 0);
    for _ in 1..TRIES {
        match open() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => thread::sleep(PAUSE),
            other => return other,
        }
    }
    open()
}

/// Returns the reason why there is no zero copy. Newer kernels require that a frame fits into a
/// chunk.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_one_shard_has_no_chunks_for_others() {
        assert_eq!(tx_chunks(0, 1, 1), [TX_CHUNKS]);
        assert_eq!(tx_chunks(0, 4, 1), [TX_CHUNKS]);
        assert!(tx_chunks(1, 4, 1).is_empty());
    }

    #[test]
    fn shards_have_the_sending_queues_in_turn() {
        assert_eq!(tx_chunks(0, 1, 3), [TX_CHUNKS, 256, 256]);
        let of = |queue| tx_chunks(queue, 2, 5);
        assert_eq!((of(0), of(1), of(2)), (vec![TX_CHUNKS, 256, 256], vec![256, 256], vec![]));
        let many = tx_chunks(0, 1, MAX_SHARDS);
        assert_eq!((many.len(), many[31]), (32, 33));
    }

    #[test]
    fn old_kernels_have_one_socket_on_a_queue() {
        assert!(!shares_queues(false, (5, 19)) && shares_queues(false, (6, 0)));
        assert!(!shares_queues(true, (6, 14)) && shares_queues(true, (6, 15)));
    }
}
