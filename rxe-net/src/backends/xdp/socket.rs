//! Opens the AF_XDP sockets on a queue of the interface. The first one creates the pool that the
//! sockets of further shards share. Documentation/networking/af_xdp.rst.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpMmapOffsets, XdpOptionsFlags, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::pool::Pool;
use super::ring::{Consumer, Producer};
use super::umem::{CHUNK, Umem};
use rxe_sys::SharedFd;
use rxe_sys::addr::RawAddr;
use rxe_sys::sockopt::{bind, set_int};

/// A bound socket with its own rings.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fd: SharedFd,
    pub(super) rx: Consumer<XdpDesc>,
    /// The transmit ring, if the socket sends.
    pub(super) tx: Option<Producer<XdpDesc>>,
    pub(super) kind: Kind,
}

/// How the sockets on a queue exchange frames with the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The driver reads and writes the UMEM itself.
    pub(super) zero_copy: bool,
    /// Frames may have several chunks.
    pub(super) frags: bool,
}

/// A queue of an interface, and the parameters of the sockets on it.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) interface: u32,
    pub(super) queue: u32,
    /// The number of receive chunks: a power of two.
    pub(super) rx: u32,
    /// The number of transmit chunks, for each shard that sends on the queue.
    pub(super) tx: Vec<u32>,
    /// Whether the kernel copies the frames, or the driver must access them in place. `None`: in
    /// place if the driver supports it.
    pub(super) copy: Option<bool>,
    /// Frames may have several chunks.
    pub(super) frags: bool,
}

/// The limit in bytes of data being sent: larger than all chunks together.
const SEND_BUFFER: libc::c_int = 64 << 20;

impl Options {
    /// Returns the number of entries of each transmit ring and of the completion ring. The kernel
    /// collects frames from all transmit rings of a queue in an array that is as long as the first
    /// of these rings. So each has room for everything that can be sent simultaneously.
    fn tx_places(&self) -> u32 {
        self.tx.iter().sum::<u32>().next_power_of_two()
    }

    /// Opens the first socket on the queue, and creates the pool. Returns `Ok(None)` if the
    /// interface does not have this queue.
    pub(super) fn open_first(&self, sends: bool) -> io::Result<Option<(Socket, Pool)>> {
        let fd = new_socket()?;
        let (umem, tx_chunks) = Umem::new(self.rx, &self.tx)?;
        #[expect(clippy::cast_possible_truncation, reason = "4096")]
        let memory = XdpUmemReg {
            addr: umem.address(),
            len: umem.len(),
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        set_xdp_umem_reg(&fd, memory)?;
        set_xdp_umem_fill_ring_size(&fd, self.rx)?;
        set_xdp_umem_completion_ring_size(&fd, self.tx_places())?;
        let Rings { at, rx, tx } = self.own_rings(&fd, self.rx, sends)?;
        let mut fill = Producer::map(fd.as_fd(), XDP_UMEM_PGOFF_FILL_RING, &at.fr, self.rx)?;
        let page = XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = Consumer::map(fd.as_fd(), page, &at.cr, self.tx_places())?;
        (0..self.rx).for_each(|i| _ = fill.push(u64::from(i) * CHUNK as u64));
        fill.publish();
        let mut how = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        how.set(SocketAddrXdpFlags::XDP_COPY, self.copy == Some(true));
        how.set(SocketAddrXdpFlags::XDP_ZEROCOPY, self.copy == Some(false));
        how.set(SocketAddrXdpFlags::XDP_USE_SG, self.frags);
        let address = RawAddr::xdp(how.bits(), self.interface, self.queue, 0);
        match bind(fd.as_fd(), &address) {
            Ok(()) => {}
            // EINVAL: the interface does not have this queue. Every driver has queue 0, so there it
            // is a real error.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.queue > 0 => return Ok(None),
            Err(e) => return Err(e),
        }
        let zero_copy =
            xdp_options(&fd).is_ok_and(|o| o.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        let kind = Kind { zero_copy, frags: self.frags };
        // Guarded, because a child that kept the socket would keep the queue busy.
        let socket = Socket { fd: SharedFd::guarded(fd), rx, tx, kind };
        Ok(Some((socket, Pool::new(umem, tx_chunks, fill, completion))))
    }

    /// Opens one more socket on the queue, which shares the pool of `first`. Its ring takes at most
    /// half of the receive chunks, so that the other sockets get some while this one is not read.
    pub(super) fn open_shared(
        &self,
        first: &SharedFd,
        kind: Kind,
        sends: bool,
    ) -> io::Result<Socket> {
        let fd = new_socket()?;
        let Rings { rx, tx, .. } = self.own_rings(&fd, self.rx / 2, sends)?;
        let shared = first.intact().map_err(io::Error::other)?.as_raw_fd();
        let shared = u32::try_from(shared).map_err(io::Error::other)?;
        let how = SocketAddrXdpFlags::XDP_SHARED_UMEM.bits();
        bind(fd.as_fd(), &RawAddr::xdp(how, self.interface, self.queue, shared))?;
        Ok(Socket { fd: SharedFd::guarded(fd), rx, tx, kind })
    }

    /// Creates the rings that each socket has for itself: for `rx` received chunks and, if it
    /// sends, for transmission.
    fn own_rings(&self, fd: &OwnedFd, rx: u32, sends: bool) -> io::Result<Rings> {
        set_xdp_rx_ring_size(fd, rx)?;
        if sends {
            set_xdp_tx_ring_size(fd, self.tx_places())?;
            let _ = set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER);
        }
        let at = xdp_mmap_offsets(fd)?;
        let received = Consumer::map(fd.as_fd(), XDP_PGOFF_RX_RING, &at.rx, rx)?;
        let transmit = || Producer::map(fd.as_fd(), XDP_PGOFF_TX_RING, &at.tx, self.tx_places());
        let tx = sends.then(transmit).transpose()?;
        Ok(Rings { at, rx: received, tx })
    }
}

struct Rings {
    at: XdpMmapOffsets,
    rx: Consumer<XdpDesc>,
    tx: Option<Producer<XdpDesc>>,
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?)
}
