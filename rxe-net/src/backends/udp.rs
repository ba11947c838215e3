//! RoCEv2 over ordinary UDP sockets: no privileges, on any host, in any container.
//!
//! There is one unconnected socket for each address, and one more for each block of queue pair
//! numbers beyond the first. The socket belongs to a group that the processes on the address share
//! ([`crate::host`]); a BPF program in the kernel selects the socket of a packet by the block in its
//! destination QPN. Each multicast group has its own socket: a socket bound to an address
//! receives nothing that is sent to a group, and an unbound one would also receive packets for
//! other programs on this host's other addresses. With UDP_SEGMENT and UDP_GRO a call carries up to
//! 64 packets for one destination, and up to [`BATCH`] such bursts.
//!
//! Packets leave from separate sockets: queue pairs are spread over a few source ports
//! ([`senders`]). If the configuration says so, all packets leave from one port.
//!
//! Invariant: a packet leaves with the source port of its header and, over IPv4, with its index in
//! the burst as ID (see [`crate::host::udp_socket`]); its ICRC is computed for that. If the kernel
//! does not segment a burst, its packets leave one by one, with ID 0 and a new ICRC (see
//! [`unsegmented`]).

mod senders;
pub(crate) mod sockets;
#[cfg(test)]
mod tests;
mod unsegmented;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_core::wire::{Burst, Frame, NetHeader, TxBatch, TxLimits, UDP_PORT};
use smallvec::SmallVec;

use self::senders::{Senders, ports_of_block};
use self::sockets::Sockets;
use self::unsegmented::Unsegmented;
use crate::backend::{Backend, Capabilities, MAX_DATAGRAM, SendStatus, SrcPort};
use crate::backends::loss::{Loss, count_lost};
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::membership::{Membership, MulticastJoiner};
use crate::host::peer_probes::PeerProbes;
use crate::host::sharing::Sharing;
use crate::host::udp_socket::{UdpSocket, sender_error};
use crate::host::{Endpoint, Handle, PortGroups};
use crate::interface::net_device;
use rxe_sys::NetDev;
use rxe_sys::mmsg::{BATCH, Outgoing, RecvArena, sendmmsg};
use rxe_sys::{Epoll, SharedFd};

/// The configuration of a [`UdpBackend`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The interface. Its MTU limits packets; its index is the scope of link-local addresses.
    pub netdev: String,
    /// The addresses to use, each with its own socket.
    pub addresses: Vec<IpAddr>,
    /// The receive buffer to request, in bytes per address.
    pub recv_buffer: usize,
    /// The send buffer to request, in bytes per address.
    pub send_buffer: usize,
    /// The UDP source port of all packets. If `None`, queue pairs are spread over a few ports, with
    /// one socket for each port.
    pub source_port: Option<u16>,
    /// Let the kernel segment bursts (UDP_SEGMENT) and merge received packets (UDP_GRO), if it can.
    pub segment: bool,
}

impl UdpConfig {
    /// Returns the default configuration for these addresses on an interface.
    pub fn new(netdev: impl Into<String>, addresses: impl Into<Vec<IpAddr>>) -> Self {
        Self {
            netdev: netdev.into(),
            addresses: addresses.into(),
            recv_buffer: 8 << 20,
            send_buffer: 4 << 20,
            source_port: None,
            segment: true,
        }
    }
}

/// The `udp` backend: RoCEv2 over UDP sockets.
pub struct UdpBackend {
    sockets: Sockets,
    senders: Senders,
    /// Dropped last: only then are the sockets closed that other processes know.
    groups: Handle,
    config: UdpConfig,
    device: NetDev,
    /// Destinations that the kernel does not segment for.
    unsegmented: Unsegmented,
    /// Whether packets leave with the IPv6 flow label of their header. Cleared when a packet is
    /// first refused for its label: while any program on this host has reserved a label, the kernel
    /// refuses every label that a socket has not requested.
    labels: bool,
    /// The offset in the batch of a partially sent burst, and the number of its packets already
    /// sent.
    partial: Option<(usize, usize)>,
    arena: RecvArena,
    capabilities: Capabilities,
    counters: Counters,
}

/// The length of the IPv4 and UDP headers in bytes.
const OVERHEAD_V4: usize = 20 + 8;
/// The length of the IPv6 and UDP headers in bytes.
const OVERHEAD_V6: usize = 40 + 8;
/// The maximum number of packets that the kernel segments in a call (UDP_MAX_SEGMENTS before Linux
/// 6.9).
const MAX_SEGMENTS: usize = 64;
/// The number of receive buffers: enough to empty a full socket in few calls, and few enough to
/// stay in the CPU cache.
const BUFFERS: usize = 16;

impl UdpBackend {
    /// Opens a socket on port 4791 of each address. Other processes may have it open too.
    ///
    /// Skips an address that is not ready (IPv6 duplicate address detection) if another one is
    /// ready; see [`UdpBackend::addresses`].
    ///
    /// # Errors
    /// The port or the source port is in use, an address or the interface does not exist, or there
    /// are too many open files or processes.
    pub fn open(config: &UdpConfig) -> Result<Self, NetError> {
        let netdev = &config.netdev;
        if config.addresses.is_empty() {
            return Err(NetError::NoAddress { netdev: netdev.clone() });
        }
        let device = net_device(netdev)?;
        let (groups, endpoints) = PortGroups::open(&config.addresses, device.index)?;
        let sockets: Vec<_> = endpoints.iter().map(|s| adopt(s, &device, config)).collect();
        let segments = config.segment && sockets.iter().all(|s| s.segments);
        let src_port =
            config.source_port.map_or_else(|| ports_of_block(groups.block()), SrcPort::Fixed);
        let mut senders = Senders::new(src_port, device.index, config.send_buffer);
        if let Some(port) = config.source_port.filter(|port| *port != UDP_PORT) {
            for address in sockets.iter().map(UdpSocket::address) {
                senders.open(address, port).map_err(|e| sender_error(e, address, port))?;
            }
        }
        let capabilities = Capabilities {
            name: "udp",
            link_mtu: device.mtu,
            tx: TxLimits {
                burst_segments: if segments { MAX_SEGMENTS } else { 1 },
                burst_bytes: MAX_DATAGRAM,
                batch_bytes: 512 << 10,
            },
            src_port,
            recv_buffer: sockets.iter().map(|s| s.recv_buffer).min().unwrap_or(0),
            qpn_block: Some(groups.block()),
        };
        Ok(Self {
            sockets: Sockets::new(sockets, endpoints, &groups, device.index, config.recv_buffer)?,
            senders,
            groups,
            config: config.clone(),
            device,
            unsegmented: Unsegmented::default(),
            labels: true,
            partial: None,
            arena: RecvArena::new(BUFFERS, 64 << 10),
            capabilities,
            counters: Counters::default(),
        })
    }

    /// Iterates over the addresses that the backend has sockets on.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.sockets.iter().map(UdpSocket::address).filter(|ip| !ip.is_multicast())
    }

    /// Handles the refusal of the rest of the first pending burst by a socket. Returns whether the
    /// burst is lost.
    fn refused(
        &mut self,
        error: io::Error,
        burst: &Burst,
        packets: usize,
    ) -> Result<bool, NetError> {
        let overhead = if burst.net.dst.is_ipv4() { OVERHEAD_V4 } else { OVERHEAD_V6 };
        let too_big = burst.segment + overhead > self.capabilities.link_mtu;
        let loss = match error.raw_os_error() {
            Some(libc::EIO | libc::EINVAL) if too_big => Loss::TooBig,
            Some(libc::EIO | libc::EINVAL)
                if packets > 1 && !self.unsegmented.has(burst.net.dst) =>
            {
                self.unsegmented.insert(burst.net.dst);
                return Ok(false);
            }
            // Labels are given up only for a packet that the kernel has no other reason to refuse.
            Some(libc::EINVAL) if unlabelled(&burst.net, !self.labels, packets) > 0 => {
                self.labels = false;
                self.unsegmented.remove(burst.net.dst);
                return Ok(false);
            }
            _ => match Loss::of(&error) {
                Some(loss) => loss,
                None => return Err(NetError::os("send to a UDP socket", error)),
            },
        };
        count_lost(&mut self.counters, loss, packets as u64);
        Ok(true)
    }

    /// Records that the socket for packets with this header had no room.
    fn wait_for_room(&mut self, net: &NetHeader) {
        if net.src_port == UDP_PORT {
            self.sockets.wait_for_room(net.src);
        } else {
            self.senders.wait_for_room(net, self.sockets.epoll());
        }
    }

    /// Sends `burst`, the first pending one of the batch, packet by packet.
    // Not inlined: the tables for many packets would enlarge the caller's frame, and a program may
    // give its threads little stack.
    #[inline(never)]
    fn send_packets(&mut self, batch: &TxBatch, burst: &Burst) -> Result<SendStatus, NetError> {
        let sent = self.partial.take().filter(|(at, _)| *at == burst.bytes.start);
        let sent = sent.map_or(0, |(_, packets)| packets);
        let Some(socket) = self.senders.socket(&self.sockets, &burst.net) else {
            return Ok(SendStatus::Done);
        };
        let chunks = batch.bytes(burst).chunks(burst.segment.max(1)).enumerate().skip(sent);
        let singles: Vec<_> = chunks.map(|(i, p)| unsegmented::single(&burst.net, i, p)).collect();
        let labels = self.labels;
        let single = |(body, icrc)| Outgoing {
            addr: socket.destination(&burst.net),
            control: socket.control(&labelled(&burst.net, labels), None),
            parts: [body, icrc, &[]],
        };
        let out: Vec<_> = singles.iter().map(|(body, icrc)| single((body, icrc))).collect();
        let mut rest = &out[..];
        while !rest.is_empty() {
            let socket = self.senders.socket(&self.sockets, &burst.net);
            let Some(socket) = socket else { return Ok(SendStatus::Done) };
            match sendmmsg(socket.intact()?, rest) {
                Ok(n) => {
                    let (gone, left) = rest.split_at(n);
                    let bytes = gone.iter().flat_map(|packet| packet.parts).map(<[u8]>::len);
                    self.counters.tx_packets += n as u64;
                    self.counters.tx_unlabelled += unlabelled(&burst.net, labels, n);
                    self.counters.tx_bytes += bytes.sum::<usize>() as u64;
                    rest = left;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.partial = Some((burst.bytes.start, burst.packets() - rest.len()));
                    self.wait_for_room(&burst.net);
                    return Ok(SendStatus::Blocked);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    // Without labels the burst starts over; packets that have left already are then
                    // duplicates.
                    if self.refused(e, burst, rest.len())? || labels != self.labels {
                        break;
                    }
                }
            }
        }
        Ok(SendStatus::Done)
    }
}

impl Backend for UdpBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        self.sockets.receive(&mut self.arena, &mut self.counters, budget, sink)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        self.sockets.clear_blocked();
        self.senders.clear_blocked(self.sockets.epoll());
        while let Some(first) = batch.pending().first() {
            let (src, src_port) = (first.net.src, first.net.src_port);
            let own = self.sockets.of(src).is_some();
            if own && !self.senders.can_send(&first.net) {
                batch.change_source_port(UDP_PORT);
                continue;
            }
            let socket = self.senders.socket(&self.sockets, &first.net);
            let same_family = first.net.dst.is_ipv4() == src.is_ipv4();
            let (Some(socket), true, true) = (socket, own, same_family) else {
                count_lost(&mut self.counters, Loss::BadAddress, first.packets() as u64);
                batch.mark_sent(1);
                continue;
            };
            let segments = self.capabilities.tx.burst_segments;
            let unsegmented = &mut self.unsegmented;
            let mut is_unsegmented = |burst: &Burst| {
                burst.packets() > 1
                    && (burst.packets() > segments || unsegmented.has(burst.net.dst))
            };
            if is_unsegmented(first) {
                let labels = self.labels;
                if self.send_packets(batch, first)? == SendStatus::Blocked {
                    return Ok(SendStatus::Blocked);
                }
                batch.mark_sent(usize::from(labels == self.labels));
                continue;
            }
            let labels = self.labels;
            let mut out: SmallVec<[Outgoing<'_>; 2]> = SmallVec::new();
            let same = |burst: &&Burst| {
                burst.net.src == src
                    && burst.net.src_port == src_port
                    && burst.net.dst.is_ipv4() == src.is_ipv4()
                    && !is_unsegmented(burst)
            };
            for burst in batch.pending().iter().take(BATCH).take_while(same) {
                let segment = (burst.packets() > 1).then_some(burst.segment);
                out.push(Outgoing {
                    addr: socket.destination(&burst.net),
                    control: socket.control(&labelled(&burst.net, labels), segment),
                    parts: [batch.bytes(burst), &[], &[]],
                });
            }
            match sendmmsg(socket.intact()?, &out) {
                Ok(n) => {
                    for burst in &batch.pending()[..n] {
                        self.counters.tx_packets += burst.packets() as u64;
                        self.counters.tx_unlabelled +=
                            unlabelled(&burst.net, labels, burst.packets());
                        self.counters.tx_bytes += burst.bytes.len() as u64;
                    }
                    drop(out);
                    batch.mark_sent(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let net = first.net;
                    self.wait_for_room(&net);
                    return Ok(SendStatus::Blocked);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    drop(out);
                    if self.refused(e, first, first.packets())? {
                        batch.mark_sent(1);
                    }
                }
            }
        }
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.sockets.for_each_fd(f);
    }

    fn counters(&self) -> Counters {
        let rx_unusable = self.counters.rx_unusable + self.senders.dropped();
        Counters { rx_unusable, ..self.counters }
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        Some(self)
    }
}

impl Sharing for UdpBackend {
    fn joiner(&self) -> MulticastJoiner {
        MulticastJoiner::on(self.device.index, &self.config.netdev, self.config.recv_buffer)
    }

    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError> {
        self.sockets.add_membership(membership)
    }

    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        self.sockets.remove_membership(group)
    }

    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), NetError> {
        self.sockets.retain(addresses);
        self.senders.retain(addresses, self.sockets.epoll());
        for address in self.groups.addresses() {
            if self.sockets.of(address).is_none() && !addresses.contains(&address) {
                self.sockets.leave(address);
                self.groups.leave(address);
            }
        }
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
        let Self { groups, sockets, device, config, .. } = self;
        sockets.take_up(groups, device.index, |sockets, endpoint| {
            sockets.add(adopt(endpoint, device, config))
        })
    }

    fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        self.sockets.set_gsi(open)
    }

    fn peer_probes(&mut self) -> Option<&mut PeerProbes> {
        Some(self.sockets.peer_probes())
    }
}

/// Returns the header that a packet is sent with. The ICRC does not cover the flow label.
fn labelled(net: &NetHeader, labels: bool) -> NetHeader {
    NetHeader { flow_label: if labels { net.flow_label } else { 0 }, ..*net }
}

/// Returns how many of these packets are sent without their label.
fn unlabelled(net: &NetHeader, labels: bool, packets: usize) -> u64 {
    if labels || net.flow_label == 0 || net.dst.is_ipv4() { 0 } else { packets as u64 }
}

/// Wraps this process's socket on a shared address.
fn adopt(endpoint: &Endpoint, device: &NetDev, config: &UdpConfig) -> UdpSocket {
    let mut socket = UdpSocket::adopt(endpoint.own(), endpoint.address(), device.index);
    socket.discard_received();
    socket.set_buffers(config.recv_buffer, config.send_buffer);
    socket.merge(config.segment);
    socket
}
