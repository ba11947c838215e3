//! RoCEv2 over packet sockets (AF_PACKET), which read and write the whole IP header. Needs
//! CAP_NET_RAW, which any user has in a new user and network namespace (`unshare -Urn`).
//!
//! If the Ethernet address of the neighbour is known, frames leave through the interface's packet
//! socket. Otherwise they leave through a raw IP socket: the kernel finds the neighbour and queues
//! some packets until it has. Packets from this host to itself also take that path. They arrive
//! over loopback, so there is a second packet socket on it.
//!
//! Invariants: packet `i` of a burst leaves with the ID of `net.nth(i)` on either path. A bound UDP
//! socket that receives nothing keeps port 4791 of each address, so that the host does not answer
//! with "port unreachable".

pub(crate) mod filter;
pub(crate) mod headers;
mod link;
mod link_capture;
pub(crate) mod raw;
pub(crate) mod route;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::wire::{Frame, TxBatch, TxLimits};

use self::link::Link;
pub use self::link_capture::LinkCapture;
use self::raw::RawSockets;
use self::route::{Path, Paths};
use self::socket::privilege;
use crate::backend::{Backend, Capabilities, MAX_DATAGRAM, SendStatus, SrcPort};
use crate::backends::loss::{Loss, count_lost};
use crate::backends::udp::sockets::Sockets;
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::membership::{Membership, MulticastJoiner};
use crate::host::peer_probes::PeerProbes;
use crate::host::sharing::Sharing;
use crate::host::udp_socket::UdpSocket;
use crate::host::{Blocks, Endpoint, Handle, PortGroups};
use crate::interface::net_device;
use rxe_sys::NetDev;
use rxe_sys::mmsg::RecvArena;
use rxe_sys::{Epoll, SharedFd};

/// The configuration of a [`PacketBackend`].
#[derive(Clone, Debug)]
pub struct PacketConfig {
    /// The interface.
    pub netdev: String,
    /// The addresses to receive for.
    pub addresses: Vec<IpAddr>,
    /// The receive and send buffer to request, in bytes.
    pub buffer: usize,
    /// Let the kernel segment bursts and merge received packets, if it can.
    pub segment: bool,
}

impl PacketConfig {
    /// Returns the default configuration for these addresses on an interface.
    pub fn new(netdev: impl Into<String>, addresses: impl Into<Vec<IpAddr>>) -> Self {
        Self { netdev: netdev.into(), addresses: addresses.into(), buffer: 8 << 20, segment: true }
    }
}

/// The `packet` backend: RoCEv2 over packet sockets.
pub struct PacketBackend {
    /// The interface's socket, then the socket on loopback, if that is another interface.
    links: Vec<Link>,
    /// The index of the link that the last frame came from.
    last_active: usize,
    /// The number of [`Backend::receive`] calls.
    turn: u32,
    /// The raw sockets for packets that the kernel routes.
    raw: RawSockets,
    paths: Paths,
    /// UDP sockets for multicast groups and for what the processes on an address share. The kernel
    /// joins the groups and loops back what this host sends to them, which a packet socket does not
    /// receive.
    sockets: Sockets,
    /// Keeps the ports. Declared after the sockets, so that it is dropped after them.
    groups: Handle,
    device: NetDev,
    config: PacketConfig,
    addresses: Vec<IpAddr>,
    /// The kernel segments bursts.
    segment: bool,
    /// The offset in the batch of a partially sent burst, and the number of its packets already
    /// sent.
    partial: Option<(usize, usize)>,
    arena: RecvArena,
    capabilities: Capabilities,
    counters: Counters,
}

/// The size in bytes of a frame with the longest headers.
pub(crate) const BUFFER: usize = (64 << 10) + 128;
pub(crate) const BUFFERS: usize = 16;
/// The limits of segmentation by the kernel. An IPv6 header is 20 bytes longer than an IPv4 header.
pub(crate) const LIMITS: TxLimits =
    TxLimits { burst_segments: 64, burst_bytes: MAX_DATAGRAM - 20, batch_bytes: 512 << 10 };

impl PacketBackend {
    /// Opens packet sockets on the interface and on loopback.
    pub fn open(config: &PacketConfig) -> Result<Self, NetError> {
        let netdev = &config.netdev;
        let device = net_device(netdev)?;
        if config.addresses.is_empty() {
            return Err(NetError::NoAddress { netdev: netdev.clone() });
        }
        let (groups, endpoints) = PortGroups::open(&config.addresses, device.index)?;
        let addresses: Vec<_> = endpoints.iter().map(Endpoint::address).collect();
        endpoints.iter().try_for_each(|endpoint| keep_port(endpoint, &device))?;
        let block = groups.block();
        let blocks = Blocks::from_iter([block]);
        let mut links = vec![Link::open(&device, &addresses, blocks, config.buffer)?];
        if let Ok(loopback) = net_device("lo")
            && loopback.index != device.index
        {
            links.push(Link::open(&loopback, &addresses, blocks, config.buffer)?);
        }
        let capabilities = Capabilities {
            name: "packet",
            link_mtu: device.mtu,
            tx: LIMITS,
            src_port: SrcPort::of_bursts(block),
            recv_buffer: links.iter().map(|l| l.socket.recv_buffer).min().unwrap_or(0),
            qpn_block: Some(block),
        };
        Ok(Self {
            segment: config.segment && links.iter().all(|l| l.socket.vnet),
            links,
            last_active: 0,
            turn: 0,
            raw: RawSockets::open(device.index)
                .map_err(|e| privilege(e, "open a raw IP socket"))?,
            paths: Paths::new(),
            sockets: Sockets::new(Vec::new(), endpoints, &groups, device.index, config.buffer)?,
            groups,
            device,
            config: config.clone(),
            addresses,
            partial: None,
            arena: RecvArena::new(BUFFERS, BUFFER),
            capabilities,
            counters: Counters::default(),
        })
    }

    /// Returns the addresses that the backend receives for.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn receive_from(
        &mut self,
        index: usize,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let link = &mut self.links[index];
        let mut packets = 0;
        loop {
            let (got, more) = match link.socket.recv(&mut self.arena)? {
                Ok(found) => found,
                // The interface went down, or a frame arrived that the virtio header cannot
                // describe.
                Err(e) if Loss::of(&e).is_some() => {
                    self.counters.rx_unusable += 1;
                    return Ok(packets);
                }
                Err(e) => return Err(NetError::os("receive from a packet socket", e)),
            };
            for i in 0..got {
                let received = self.arena.get(i);
                let (frame, lost) = link.arrived(&received);
                self.counters.rx_overflow += u64::from(lost);
                let Some(frame) = frame else {
                    self.counters.rx_unusable += 1;
                    packets += 1;
                    continue;
                };
                let count = frame.payload.len().div_ceil(frame.segment);
                packets += count;
                self.counters.rx_packets += count as u64;
                self.counters.rx_bytes += frame.payload.len() as u64;
                self.sockets.deliver(&frame, sink);
            }
            if got == 0 || (packets > 0 && !more) || packets >= budget {
                return Ok(packets);
            }
        }
    }

    /// Sends bursts from the front of the batch, as many as take the same path.
    fn send_some(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let first = &batch.pending()[0];
        let skip = self.partial.take().filter(|(at, _)| *at == first.bytes.start);
        let skip = skip.map_or(0, |(_, packets)| packets);
        if first.net.dst.is_ipv4() != first.net.src.is_ipv4() {
            count_lost(&mut self.counters, Loss::BadAddress, first.packets() as u64);
            batch.mark_sent(1);
            return Ok(SendStatus::Done);
        }
        let ends = (first.net.src, first.net.dst);
        let scope = self.links[0].interface;
        let path = match self.paths.between(ends, scope) {
            Path::Direct { interface, mac } => self
                .links
                .iter()
                .find(|l| l.interface == interface && l.ethernet)
                .map(|link| (link, mac)),
            Path::Kernel => None,
        };
        // The kernel segments whole bursts. Without segmentation, packets are sent one by one.
        let segments = self.segment && skip == 0 && path.is_some();
        let result = match path {
            Some((link, mac)) if segments => link.send_bursts(batch, mac)?.map(Sent::Bursts),
            Some((link, mac)) => link.send_singles(batch, first, skip, mac)?.map(Sent::Packets),
            None => self.raw.send(batch, first, skip)?.map(Sent::Packets),
        };
        self.after_send(batch, skip, segments, result)
    }

    /// Marks and counts what was sent of the batch. The first burst was sent from the packet with
    /// index `skip` on. `segments` tells whether the kernel was asked to segment.
    fn after_send(
        &mut self,
        batch: &mut TxBatch,
        skip: usize,
        segments: bool,
        result: io::Result<Sent>,
    ) -> Result<SendStatus, NetError> {
        let first = &batch.pending()[0];
        match result {
            Ok(Sent::Bursts(n)) => {
                for burst in &batch.pending()[..n] {
                    self.counters.tx_packets += burst.packets() as u64;
                    self.counters.tx_bytes += burst.bytes.len() as u64;
                }
                batch.mark_sent(n);
            }
            Ok(Sent::Packets(n)) => {
                let bytes = batch.bytes(first).len();
                self.counters.count_sent(bytes, first.segment, skip..skip + n);
                if skip + n < first.packets() {
                    self.partial = Some((first.bytes.start, skip + n));
                } else {
                    batch.mark_sent(1);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.partial = (skip > 0).then_some((first.bytes.start, skip));
                return Ok(SendStatus::Blocked);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                self.partial = (skip > 0).then_some((first.bytes.start, skip));
            }
            Err(e) => {
                let Some(loss) = Loss::of(&e) else {
                    return Err(NetError::os("send to a packet socket", e));
                };
                let left = first.packets() - skip;
                if loss == Loss::Other && segments && left > 1 {
                    // The kernel does not segment after all: try again without segmentation.
                    self.segment = false;
                    return Ok(SendStatus::Done);
                }
                self.paths.forget((first.net.src, first.net.dst));
                count_lost(&mut self.counters, loss, left as u64);
                batch.mark_sent(1);
            }
        }
        Ok(SendStatus::Done)
    }
}

/// The result of a send: bursts from the front of the batch, or packets of the first burst.
enum Sent {
    Bursts(usize),
    Packets(usize),
}

impl Backend for PacketBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        // The link of the last frame is read first, and no other if it has frames, so that a frame
        // does not cost a call for each socket. Every 16th call reads all links, so that none
        // starves.
        self.turn = self.turn.wrapping_add(1);
        let mut packets = self.receive_from(self.last_active, budget, sink)?;
        if packets > 0 && !self.turn.is_multiple_of(16) {
            return Ok(packets);
        }
        let first = self.last_active;
        for index in (0..self.links.len()).filter(|&index| index != first) {
            let got = self.receive_from(index, budget, sink)?;
            if got > 0 {
                self.last_active = index;
                packets += got;
            }
        }
        packets += self.sockets.receive(&mut self.arena, &mut self.counters, budget, sink)?;
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        while !batch.is_empty() {
            if self.send_some(batch)? == SendStatus::Blocked {
                return Ok(SendStatus::Blocked);
            }
        }
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        for link in &self.links {
            f(link.socket.shared());
        }
        self.sockets.for_each_fd(f);
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        Some(self)
    }
}

impl Sharing for PacketBackend {
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
        let Self { groups, device, sockets, .. } = self;
        let mut result =
            sockets.take_up(groups, device.index, |_, endpoint| keep_port(endpoint, device));
        let blocks = groups.blocks().into_iter().collect();
        for link in &self.links {
            result = result.and(link.listen_to(&self.addresses, blocks));
        }
        result
    }

    fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        self.sockets.set_gsi(open)
    }

    fn peer_probes(&mut self) -> Option<&mut PeerProbes> {
        Some(self.sockets.peer_probes())
    }
}

/// Stops this process's socket on a shared address from receiving. The socket only keeps the port,
/// so that the host does not answer with "port unreachable".
fn keep_port(endpoint: &Endpoint, device: &NetDev) -> Result<(), NetError> {
    UdpSocket::adopt(endpoint.own(), endpoint.address(), device.index).mute()
}
