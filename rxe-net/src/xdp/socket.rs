//! One AF_XDP socket on one queue of the interface, with its UMEM and its rings.
//! Documentation/networking/af_xdp.rst.
//!
//! Invariants: the first chunks of the UMEM are for receiving; each is in the fill ring, the
//! receive ring or being read. The others are for sending; each is in `free`, the transmit ring or the
//! completion ring. So no ring is ever too small for what belongs into it.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, set_xdp_umem_reg, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

use super::ring::{Consumer, Producer};
use super::umem::{CHUNK, Umem};
use crate::sys::sockopt::set_int;
use crate::{NetError, SharedFd};

/// See the module's opening.
#[derive(Debug)]
pub(super) struct Socket {
    fd: SharedFd,
    rx: Consumer<XdpDesc>,
    fill: Producer<u64>,
    tx: Producer<XdpDesc>,
    completion: Consumer<u64>,
    /// Dropped after the rings.
    umem: Umem,
    /// Chunks to send from.
    free: Vec<u64>,
    /// A frame of several chunks is put together here.
    whole: Vec<u8>,
    /// The driver reads and writes the UMEM itself.
    pub(super) zero_copy: bool,
    /// The driver has not noticed the last [`Socket::flush`].
    unheard: bool,
    /// Frames may have several chunks.
    pub(super) frags: bool,
}

/// What to open a socket with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) interface: u32,
    pub(super) queue: u32,
    /// Chunks to receive into, and to send from: powers of two.
    pub(super) rx: u32,
    pub(super) tx: u32,
    /// Whether the kernel copies the frames, or the driver must read and write them in place. `None`:
    /// in place if the driver can.
    pub(super) copy: Option<bool>,
    /// Frames may have several chunks.
    pub(super) frags: bool,
}

/// How far [`Socket::transmit`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transmitted {
    /// The frame is in the ring.
    Queued,
    /// All chunks are in use.
    NoRoom,
    /// The frame needs several chunks, which this socket cannot send.
    TooBig,
}

/// Frames between two refills of the fill ring.
const REFILL: usize = 64;
/// The longest frame that is put together: that of an IP packet.
const LONGEST: usize = (64 << 10) + 64;
/// Bytes that the kernel may hold of what is being sent: more than the chunks there are.
const SEND_BUFFER: libc::c_int = 64 << 20;
/// The shortest Ethernet frame, without its checksum. Not every driver pads.
const SHORTEST: usize = 60;

impl Socket {
    /// Opens a socket. `Ok(None)`: the interface has no such queue.
    pub(super) fn open(options: &Options) -> io::Result<Option<Self>> {
        let Options { interface, queue, rx, tx, .. } = *options;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        let umem = Umem::new((rx + tx) as usize)?;
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
        set_xdp_umem_fill_ring_size(&fd, rx)?;
        set_xdp_umem_completion_ring_size(&fd, tx)?;
        set_xdp_rx_ring_size(&fd, rx)?;
        set_xdp_tx_ring_size(&fd, tx)?;
        let _ = set_int(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER);
        let at = xdp_mmap_offsets(&fd)?;
        let mut fill = Producer::map(fd.as_fd(), XDP_UMEM_PGOFF_FILL_RING, &at.fr, rx)?;
        let completion = Consumer::map(fd.as_fd(), XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, tx)?;
        let received = Consumer::map(fd.as_fd(), XDP_PGOFF_RX_RING, &at.rx, rx)?;
        let transmit = Producer::map(fd.as_fd(), XDP_PGOFF_TX_RING, &at.tx, tx)?;
        let chunks = |range: std::ops::Range<u32>| range.map(|i| u64::from(i) * CHUNK as u64);
        chunks(0..rx).for_each(|chunk| _ = fill.push(chunk));
        fill.publish();
        let mut how = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        how.set(SocketAddrXdpFlags::XDP_COPY, options.copy == Some(true));
        how.set(SocketAddrXdpFlags::XDP_ZEROCOPY, options.copy == Some(false));
        how.set(SocketAddrXdpFlags::XDP_USE_SG, options.frags);
        match rustix::net::bind(&fd, &SocketAddrXdp::new(how, interface, queue)) {
            Ok(()) => {}
            // The number is beyond the last queue, or all drivers have queue 0.
            Err(Errno::INVAL) if queue > 0 => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let zero_copy =
            xdp_options(&fd).is_ok_and(|o| o.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        Ok(Some(Self {
            // A child that kept the socket would keep the queue.
            fd: SharedFd::guarded(fd),
            rx: received,
            fill,
            tx: transmit,
            completion,
            umem,
            free: chunks(rx..rx + tx).collect(),
            whole: Vec::new(),
            zero_copy,
            unheard: false,
            frags: options.frags,
        }))
    }

    pub(super) fn shared(&self) -> &SharedFd {
        &self.fd
    }

    /// Hands at most about `budget` frames to `f`, each with the bytes of one that comes later, as a
    /// hint. Returns how many.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        f: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, NetError> {
        let mut frames = 0;
        while frames < budget {
            let available = self.rx.available();
            if available == 0 {
                break;
            }
            let (chunks, got) = self.read(available, f);
            if chunks == 0 {
                break;
            }
            frames += got;
            for i in 0..chunks {
                let chunk = self.rx.peek(i).addr & !(CHUNK as u64 - 1);
                self.fill.push(chunk);
            }
            self.fill.publish();
            self.rx.release(chunks);
        }
        // The driver may have found the ring empty since these or earlier chunks were given back.
        if self.zero_copy && self.fill.needs_wakeup() && self.fill.pending() > 0 {
            self.fd.ensure()?;
            // It receives nothing: the driver looks at the fill ring.
            let _ = rustix::net::recv(&self.fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
        }
        Ok(frames)
    }

    /// Reads frames of at most about [`REFILL`] of the `available` chunks. Returns the numbers of chunks and
    /// frames.
    fn read(&mut self, available: usize, f: &mut dyn FnMut(&[u8], &[u8])) -> (usize, usize) {
        /// As the engine wants it.
        const AHEAD: usize = rxe_core::wire::Frame::AHEAD;
        let (mut chunks, mut frames) = (0, 0);
        while chunks < available.min(REFILL) {
            let desc = self.rx.peek(chunks);
            if !goes_on(&desc) {
                let later = (chunks + AHEAD < available).then(|| self.rx.peek(chunks + AHEAD));
                let later = later.and_then(|d| self.umem.received(d.addr, d.len));
                if let Some(bytes) = self.umem.received(desc.addr, desc.len) {
                    f(bytes, later.unwrap_or(&[]));
                }
                chunks += 1;
                frames += 1;
                continue;
            }
            let rest = (chunks..available).position(|i| !goes_on(&self.rx.peek(i)));
            // The last chunk is not there yet. If the ring has no place for it, it never will be.
            let Some(rest) = rest else {
                if chunks == 0 && self.fill.pending() == 0 {
                    chunks = available;
                }
                break;
            };
            self.whole.clear();
            for i in chunks..=chunks + rest {
                let desc = self.rx.peek(i);
                let bytes = self.umem.received(desc.addr, desc.len).unwrap_or(&[]);
                if self.whole.len() + bytes.len() <= LONGEST {
                    self.whole.extend_from_slice(bytes);
                }
            }
            f(&self.whole, &[]);
            chunks += rest + 1;
            frames += 1;
        }
        (chunks, frames)
    }

    /// Puts a frame made of these parts into the transmit ring. The kernel gets it with the next
    /// [`Socket::flush`].
    pub(super) fn transmit(&mut self, parts: [&[u8]; 3]) -> Transmitted {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let chunks = len.div_ceil(CHUNK);
        if chunks > 1 && !self.frags {
            return Transmitted::TooBig;
        }
        if self.free.len() < chunks {
            self.reclaim();
        }
        if self.free.len() < chunks || self.tx.room() < chunks {
            return Transmitted::NoRoom;
        }
        let mut parts = parts.into_iter();
        let mut part = parts.next().unwrap_or(&[]);
        for left in (0..chunks).rev() {
            let Some(addr) = self.free.pop() else { return Transmitted::NoRoom };
            let Some(chunk) = self.umem.chunk(addr) else { return Transmitted::NoRoom };
            let mut at = 0;
            loop {
                let n = part.len().min(CHUNK - at);
                chunk[at..at + n].copy_from_slice(&part[..n]);
                (at, part) = (at + n, &part[n..]);
                if part.is_empty() {
                    let Some(next) = parts.next() else { break };
                    part = next;
                } else {
                    break;
                }
            }
            if len < SHORTEST {
                chunk[at..SHORTEST].fill(0);
                at = SHORTEST;
            }
            let mut options = XdpDescOptions::empty();
            options.set(XdpDescOptions::XDP_PKT_CONTD, left > 0);
            #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
            self.tx.push(XdpDesc { addr, len: at as u32, options });
        }
        Transmitted::Queued
    }

    /// Has `fill` write a frame of `len` bytes, which then stands in the transmit ring as with
    /// [`Socket::transmit`]. One of several chunks is too big here.
    ///
    /// # Errors
    /// That of `fill`; there is no frame then.
    pub(super) fn write<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Transmitted, E> {
        let whole = len.max(SHORTEST);
        if whole > CHUNK {
            return Ok(Transmitted::TooBig);
        }
        if self.free.is_empty() {
            self.reclaim();
        }
        let Some(addr) = self.free.last().copied() else { return Ok(Transmitted::NoRoom) };
        if self.tx.room() == 0 {
            return Ok(Transmitted::NoRoom);
        }
        let Some(chunk) = self.umem.chunk(addr) else { return Ok(Transmitted::NoRoom) };
        let (frame, rest) = chunk.split_at_mut(len);
        fill(frame)?;
        rest[..whole - len].fill(0);
        self.free.pop();
        #[expect(clippy::cast_possible_truncation, reason = "at most a chunk")]
        self.tx.push(XdpDesc { addr, len: whole as u32, options: XdpDescOptions::empty() });
        Ok(Transmitted::Queued)
    }

    /// Whether the kernel has taken all that was put into the transmit ring, or the driver goes on with the
    /// rest by itself.
    pub(super) fn is_flushed(&self) -> bool {
        self.tx.pending() == 0 || (self.zero_copy && !self.unheard)
    }

    /// Whether [`Socket::flush`] is to be called again for what was put into the transmit ring before.
    pub(super) fn wants_flush(&self) -> bool {
        self.tx.pending() > 0 && (!self.zero_copy || self.unheard || self.tx.needs_wakeup())
    }

    /// Has the kernel send what is in the transmit ring. It may leave some of it there, if the
    /// interface is busy ([`Socket::is_flushed`]).
    pub(super) fn flush(&mut self) -> Result<io::Result<()>, NetError> {
        self.tx.publish();
        self.unheard = false;
        let mut pending = self.tx.pending();
        while pending > 0 && self.tx.needs_wakeup() {
            match rustix::net::send(self.fd.intact()?, &[], SendFlags::DONTWAIT) {
                Ok(_) => {}
                // It sends some, and wants to be called again for others. A driver with zero copy that is
                // busy has not begun.
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => {
                    self.unheard = self.zero_copy;
                }
                Err(e) => return Ok(Err(e.into())),
            }
            let before = std::mem::replace(&mut pending, self.tx.pending());
            if self.zero_copy || pending == before {
                break;
            }
        }
        self.reclaim();
        Ok(Ok(()))
    }

    /// Takes back the chunks of what has been sent.
    fn reclaim(&mut self) {
        let sent = self.completion.available();
        self.free.extend((0..sent).map(|i| self.completion.peek(i)));
        self.completion.release(sent);
    }

    /// Chunks that frames came in so far.
    #[cfg(test)]
    pub(super) fn received(&self) -> u32 {
        self.rx.taken()
    }

    /// Clears an error that would keep the descriptor readable: the interface went down.
    pub(super) fn clear_error(&self) {
        let _ = rustix::net::sockopt::socket_error(&self.fd);
    }

    /// Frames that were lost so far because there was no room for them.
    pub(super) fn lost(&self) -> u64 {
        let Ok(lost) = xdp_statistics(&self.fd) else { return 0 };
        let [full, empty] =
            [lost.rx_ring_full, lost.rx_fill_ring_empty_descs].map(|n| n.unwrap_or(0));
        lost.rx_dropped + full + if self.zero_copy { 0 } else { empty }
    }
}

/// Whether a frame goes on in the next chunk.
fn goes_on(desc: &XdpDesc) -> bool {
    desc.options.contains(XdpDescOptions::XDP_PKT_CONTD)
}
