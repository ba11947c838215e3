//! RoCEv2 over AF_XDP, which bypasses the kernel's network stack. The interface's driver exchanges
//! our packets with this process directly. Needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW.
//!
//! An XDP program ([`program`]) redirects the packets to our addresses and queue pairs to AF_XDP
//! sockets, one for each shard on each queue of the interface, and passes all other frames to the
//! kernel. Some of those may still be for us: packets over loopback or another interface, with IP
//! options, or fragments. These arrive through UDP sockets, as with the `udp` backend, and so do
//! packets to QP1 and to multicast groups. So processes that use the other backends can share the
//! address; but the interface has only one program, so a second process with this backend is
//! refused.
//!
//! If the neighbour's Ethernet address is known and the route leads over the interface, frames
//! leave through the socket on the queue that the shard sends on; the engine writes their packets
//! directly into them ([`direct`]). Otherwise they leave through a raw IP socket, as with the
//! `packet` backend, and the kernel chooses the queue. So on an interface with several queues, or
//! with zero copy, packets may be reordered when the path changes.
//!
//! Invariants: packet `i` of a burst leaves with the ID of `net.nth(i)` on either path. The program
//! is attached by a link that ends with the process.

mod direct;
mod interface;
mod load;
mod maps;
mod mode;
mod pool;
mod program;
mod queues;
mod receiver;
mod ring;
mod sender;
mod socket;
#[cfg(test)]
mod tests;
mod umem;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::wire::{Burst, Direct, Frame, TxBatch, TxLimits, frame};

use self::direct::Recent;
pub use self::interface::XdpInterface;
use self::load::refusal;
pub use self::mode::XdpMode;
use self::queues::Queues;
use self::sender::Transmitted;
use crate::backend::{Backend, Capabilities, MAX_DATAGRAM, SendStatus, SrcPort};
use crate::backends::loss::{Loss, count_lost};
use crate::backends::packet::headers::Headers;
use crate::backends::packet::raw::{RawSockets, nth};
use crate::backends::packet::route::{Path, Paths};
use crate::backends::poll_backoff::PollBackoff;
use crate::backends::udp::sockets::Sockets;
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::membership::{Membership, MulticastJoiner};
use crate::host::peer_probes::PeerProbes;
use crate::host::sharing::Sharing;
use crate::host::udp_socket::UdpSocket;
use crate::host::{Endpoint, Handle, PortGroups, READY};
use rxe_sys::NetDev;
use rxe_sys::mmsg::RecvArena;
use rxe_sys::{Epoll, SharedFd};

/// The configuration of an [`XdpBackend`].
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The interface: an Ethernet interface that is up.
    pub netdev: String,
    /// The addresses to receive for.
    pub addresses: Vec<IpAddr>,
    /// The receive buffer to request for each UDP socket, in bytes.
    pub buffer: usize,
    /// How the kernel runs the program and exchanges frames.
    pub mode: XdpMode,
}

impl XdpConfig {
    /// Returns the default configuration for these addresses on an interface.
    pub fn new(netdev: impl Into<String>, addresses: impl Into<Vec<IpAddr>>) -> Self {
        Self {
            netdev: netdev.into(),
            addresses: addresses.into(),
            buffer: 8 << 20,
            mode: XdpMode::default(),
        }
    }
}

/// The `xdp` backend: RoCEv2 over AF_XDP.
pub struct XdpBackend {
    queues: Queues,
    /// The raw sockets for packets that the kernel routes.
    raw: RawSockets,
    paths: Paths,
    recent: Recent,
    /// The UDP sockets for packets that the program passes to the kernel.
    sockets: Sockets,
    /// When to poll `sockets`.
    udp_poll: PollBackoff,
    /// Declared after the sockets, so that it is dropped after them.
    groups: Handle,
    device: NetDev,
    config: XdpConfig,
    addresses: Vec<IpAddr>,
    /// The offset in the batch of a partially sent burst, and the number of its packets already
    /// sent.
    partial: Option<(usize, usize)>,
    /// The interface was down at the last attempt to send.
    down: bool,
    arena: RecvArena,
    capabilities: Capabilities,
    counters: Counters,
}

/// The shortest and the longest interval between polls of the UDP sockets, in calls of `receive`
/// plus packets ([`PollBackoff`]).
const UDP_POLL_INTERVAL: [u32; 2] = [1, 32];
/// The number of receive buffers for the UDP sockets.
const BUFFERS: usize = 16;

impl XdpBackend {
    /// Opens a backend with an interface of its own, for one shard. Like [`XdpBackend::on`].
    ///
    /// # Errors
    /// [`NetError::Xdp`] tells why this interface cannot be used.
    pub fn open(config: &XdpConfig) -> Result<Self, NetError> {
        Self::on(&XdpInterface::open(&config.netdev, config.mode, 1)?, config)
    }

    /// Opens a backend on this interface for one more shard of a device. Uses the addresses and the
    /// buffer size of `config`.
    ///
    /// # Errors
    /// [`NetError::Xdp`] tells why this is not possible.
    pub fn on(interface: &XdpInterface, config: &XdpConfig) -> Result<Self, NetError> {
        let netdev = interface.name();
        if config.addresses.is_empty() {
            return Err(NetError::NoAddress { netdev: netdev.to_owned() });
        }
        let device = *interface.device();
        let raw = RawSockets::open(device.index)
            .map_err(|e| refusal(e, netdev, "open a raw IP socket"))?;
        // Before the address is shared, so that other processes are not asked for nothing if this
        // fails.
        let mut queues = Queues::open(interface)?;
        let (groups, endpoints) = PortGroups::open(&config.addresses, device.index)?;
        let addresses: Vec<_> = endpoints.iter().map(Endpoint::address).collect();
        let own: Vec<_> = endpoints.iter().map(|e| adopt(e, &device, config)).collect();
        let block = groups.block();
        let capabilities = Capabilities {
            name: interface.mode().backend_name(),
            link_mtu: interface.link_mtu(),
            tx: TxLimits {
                burst_segments: 64,
                burst_bytes: MAX_DATAGRAM - 20,
                batch_bytes: 256 << 10,
            },
            src_port: SrcPort::Any,
            // A chunk holds one packet, however short. The capacity is therefore counted with 1024
            // bytes per packet, in the unit of a socket buffer, which includes overhead.
            recv_buffer: queues.room() * 1024,
            qpn_block: Some(block),
        };
        let mut sockets =
            Sockets::new(Vec::new(), endpoints, &groups, device.index, config.buffer)?;
        own.into_iter().try_for_each(|socket| sockets.add(socket))?;
        queues.listen_to(&addresses, [block].into_iter().collect())?;
        Ok(Self {
            queues,
            raw,
            paths: Paths::new(),
            recent: Recent::default(),
            sockets,
            udp_poll: PollBackoff::new(UDP_POLL_INTERVAL),
            groups,
            device,
            config: XdpConfig { netdev: netdev.to_owned(), ..config.clone() },
            addresses,
            partial: None,
            down: false,
            arena: RecvArena::new(BUFFERS, 64 << 10),
            capabilities,
            counters: Counters::default(),
        })
    }

    /// Returns the addresses that the backend receives for.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Sends the first pending burst, or the rest of it.
    fn send_first(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let first = &batch.pending()[0];
        let skip = self.partial.take().filter(|(at, _)| *at == first.bytes.start);
        let skip = skip.map_or(0, |(_, packets)| packets);
        let (src, dst) = (first.net.src, first.net.dst);
        if dst.is_ipv4() != src.is_ipv4() {
            self.lost(batch, Loss::BadAddress, skip);
            return Ok(SendStatus::Done);
        }
        let index = self.device.index;
        match self.paths.between((src, dst), index) {
            Path::Direct { interface, mac } if interface == index => {
                if self.down {
                    self.lost(batch, Loss::Down, skip);
                    return Ok(SendStatus::Done);
                }
                self.send_direct(batch, skip, mac)
            }
            Path::Direct { .. } | Path::Kernel => self.send_routed(batch, skip),
        }
    }

    /// Puts the packets of the first pending burst into the transmit ring, starting with index
    /// `skip`.
    fn send_direct(
        &mut self,
        batch: &mut TxBatch,
        skip: usize,
        mac: [u8; 6],
    ) -> Result<SendStatus, NetError> {
        let first = &batch.pending()[0];
        let packets = batch.bytes(first).chunks(first.segment.max(1)).enumerate().skip(skip);
        for (i, packet) in packets {
            let headers = Headers::plain(&nth(&first.net, i), packet, self.device.mac, mac);
            let [ethernet, ip] = headers.parts();
            let parts = [ethernet, ip, packet];
            let mut status = self.queues.sender().transmit(parts);
            if status == Transmitted::NoRoom {
                self.flush()?;
                status = self.queues.sender().transmit(parts);
            }
            match status {
                Transmitted::Queued => {
                    self.counters.tx_packets += 1;
                    self.counters.tx_bytes += packet.len() as u64;
                }
                Transmitted::NoRoom if self.down => {
                    self.lost(batch, Loss::Down, i);
                    return Ok(SendStatus::Done);
                }
                Transmitted::NoRoom => {
                    self.partial = Some((first.bytes.start, i));
                    return Ok(SendStatus::Blocked);
                }
                Transmitted::TooBig => count_lost(&mut self.counters, Loss::TooBig, 1),
            }
        }
        batch.mark_sent(1);
        Ok(SendStatus::Done)
    }

    /// Sends packets of the first pending burst through the kernel's stack. Starts with index
    /// `skip`, once the transmit ring is flushed.
    fn send_routed(&mut self, batch: &mut TxBatch, skip: usize) -> Result<SendStatus, NetError> {
        let first = &batch.pending()[0];
        let start = first.bytes.start;
        if !self.down && !self.queues.sender().is_empty() {
            self.flush()?;
            if !self.down && !self.queues.sender().is_flushed() {
                self.partial = Some((start, skip));
                return Ok(SendStatus::Blocked);
            }
        }
        match self.raw.send(batch, first, skip)? {
            Ok(n) => {
                let bytes = batch.bytes(first).len();
                self.counters.count_sent(bytes, first.segment, skip..skip + n);
                if skip + n < first.packets() {
                    self.partial = Some((start, skip + n));
                } else {
                    batch.mark_sent(1);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.partial = Some((start, skip));
                return Ok(SendStatus::Blocked);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                self.partial = Some((start, skip));
            }
            Err(e) => {
                let Some(loss) = Loss::of(&e) else {
                    return Err(NetError::os("send to a raw IP socket", e));
                };
                self.paths.forget((first.net.src, first.net.dst));
                self.lost(batch, loss, skip);
            }
        }
        Ok(SendStatus::Done)
    }

    /// Counts the packets of the first pending burst as lost, starting with index `skip`.
    fn lost(&mut self, batch: &mut TxBatch, loss: Loss, skip: usize) {
        let left = batch.pending().first().map_or(0, Burst::packets).saturating_sub(skip);
        count_lost(&mut self.counters, loss, left as u64);
        batch.mark_sent(1);
    }

    /// Makes the kernel send the contents of the transmit ring, and records whether the interface
    /// is down.
    fn flush(&mut self) -> Result<(), NetError> {
        self.down = match self.queues.sender().flush()? {
            Ok(()) => false,
            Err(e) if Loss::of(&e) == Some(Loss::Down) => true,
            Err(e) if Loss::of(&e).is_some() => false,
            Err(e) => return Err(NetError::os("send to an AF_XDP socket", e)),
        };
        Ok(())
    }

    /// Receives the frames that the program has redirected to the AF_XDP sockets.
    fn receive_redirected(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let Self { queues, counters, .. } = self;
        queues.receive(budget, &mut |bytes, next| {
            let frame = frame::parse_ethernet(bytes).and_then(|(_, datagram)| datagram.frame());
            let Some(frame) = frame.ok().filter(|frame| !frame.payload.is_empty()) else {
                counters.rx_unusable += 1;
                return;
            };
            counters.rx_packets += 1;
            counters.rx_bytes += frame.payload.len() as u64;
            // Most frames have headers of the same length, so the payload is at the same offset.
            let headers = frame.payload.as_ptr() as usize - bytes.as_ptr() as usize;
            sink(&Frame { prefetch_next: next.get(headers..).unwrap_or(&[]), ..frame });
        })
    }
}

impl Backend for XdpBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        if self.queues.sender().wants_flush() {
            self.flush()?;
        }
        let mut packets = self.receive_redirected(budget, sink)?;
        if self.udp_poll.is_due(packets) {
            let ready = self.sockets.epoll().has(READY);
            self.udp_poll.restart(ready);
            if ready {
                let Self { sockets, arena, counters, .. } = self;
                packets += sockets.receive(arena, counters, budget, sink)?;
            }
        }
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        self.recent.forget_hop();
        if self.down {
            // Finds out whether the interface is up again.
            self.flush()?;
        }
        let mut status = SendStatus::Done;
        while status == SendStatus::Done && !batch.is_empty() {
            status = self.send_first(batch)?;
        }
        if !self.down {
            self.flush()?;
        }
        if !self.down && !self.queues.sender().is_flushed() {
            // The interface is busy. The socket becomes writable when sending can continue.
            return Ok(SendStatus::Blocked);
        }
        Ok(status)
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        Some(self)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.queues.for_each_fd(f);
        self.sockets.for_each_fd(f);
    }

    fn counters(&self) -> Counters {
        Counters { rx_overflow: self.counters.rx_overflow + self.queues.lost(), ..self.counters }
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        Some(self)
    }
}

impl Sharing for XdpBackend {
    fn joiner(&self) -> MulticastJoiner {
        MulticastJoiner::on(self.device.index, &self.config.netdev, self.config.buffer)
    }

    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError> {
        self.sockets.add_membership(membership)
    }

    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        self.sockets.remove_membership(group)
    }

    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), NetError> {
        self.sockets.retain(addresses);
        self.addresses = self.sockets.keep(&self.groups, addresses);
        let failed = self.groups.take_failed();
        let taken_up = self.take_up();
        failed.map_or(taken_up, Err)
    }

    fn port_groups(&self) -> Option<Arc<PortGroups>> {
        Some(self.groups.port_groups())
    }

    fn epoll(&self) -> Option<Epoll> {
        Some(self.sockets.epoll().clone())
    }

    fn take_up(&mut self) -> Result<(), NetError> {
        let Self { groups, device, sockets, config, .. } = self;
        let result = sockets.take_up(groups, device.index, |sockets, endpoint| {
            sockets.add(adopt(endpoint, device, config))
        });
        let blocks = groups.blocks().into_iter().collect();
        result.and(self.queues.listen_to(&self.addresses, blocks))
    }

    fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        self.sockets.set_gsi(open)
    }

    fn peer_probes(&mut self) -> Option<&mut PeerProbes> {
        Some(self.sockets.peer_probes())
    }
}

/// Wraps this process's socket on a shared address.
fn adopt(endpoint: &Endpoint, device: &NetDev, config: &XdpConfig) -> UdpSocket {
    let mut socket = UdpSocket::adopt(endpoint.own(), endpoint.address(), device.index);
    socket.discard_received();
    socket.set_buffers(config.buffer, 0);
    socket.merge(true);
    socket
}
