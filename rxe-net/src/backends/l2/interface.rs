//! A link over an interface of this host, by a packet socket. packet(7).
//!
//! The endpoint is another station on the interface's wire, beside the host's own network stack.
//!
//! The interface also receives frames to the endpoint's Ethernet address, as it does for a macvlan;
//! further sockets receive multicast groups ([`crate::MulticastJoiner`]). The host's stack ignores
//! such frames. Frames from the endpoint go to the wire, so the host's stack does not receive them;
//! other endpoints on the interface do.
//!
//! Invariants: the queue of frames to send is bounded; when the descriptor is closed, even by the
//! death of the process, the interface is as it was before.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use libc::sock_filter;
use rustix::event::epoll::EventFlags;
use rustix::net::netdevice::index_to_name;
use rxe_core::wire::{Frame, Mac, TxLimits};

use super::config::L2Config;
use super::discovery::groups;
use super::link::{Arrival, Link};
use super::waiting::Waiting;
use crate::backends::loss::{Loss, count_lost};
use crate::backends::packet::headers::{ETHERNET, Headers, VNET};
use crate::backends::packet::socket::{PacketSocket, PacketSocketConfig};
use crate::backends::packet::{BUFFER, BUFFERS, LIMITS, filter};
use crate::counters::Counters;
use crate::error::{L2Failure, NetError};
use crate::interface::{Interface, InterfaceMonitor, net_device};
use rxe_sys::NetDev;
use rxe_sys::addr::RawAddr;
use rxe_sys::cmsg::Control;
use rxe_sys::mmsg::{Outgoing, RecvArena, sendmmsg};
use rxe_sys::{Epoll, SharedFd};
use rxe_sys::{packet_membership, sockopt};

/// A link over an interface of this host.
pub(super) struct InterfaceLink {
    name: String,
    index: u32,
    socket: PacketSocket,
    epoll: Epoll,
    arena: RecvArena,
    /// The indexes of the frames in the arena that were not handed out yet.
    arrived: Range<usize>,
    /// A buffer for a frame whose missing checksum was completed.
    completed: Vec<u8>,
    waiting: Waiting,
    /// The epoll descriptor currently watches for room to send.
    watches_room: bool,
    /// The kernel segments bursts.
    segments: bool,
    /// While the interface is down: tells when the interface is gone or up again.
    monitor: Option<InterfaceMonitor>,
}

/// The receive and the send buffer to request, in bytes.
const SOCKET_BUFFER: usize = 8 << 20;

impl InterfaceLink {
    /// Opens a socket that receives the endpoint's frames on the interface `name`.
    pub(super) fn open(name: &str, config: &L2Config) -> Result<Self, NetError> {
        let failed = |reason| NetError::L2 { link: format!("if:{name}"), reason };
        let device = usable(name, config, failed)?;
        let filter: Vec<sock_filter> = filter::station(config.mac.0);
        let opened = PacketSocket::open(&PacketSocketConfig {
            interface: device.index,
            ethernet: true,
            filter: &filter,
            // Needed for the frames of other endpoints on this interface.
            outgoing: true,
            buffer: SOCKET_BUFFER,
            keep: SharedFd::guarded,
        });
        let socket = opened.map_err(|e| match e {
            NetError::NoPrivilege { .. } => failed(L2Failure::NotPermitted),
            other => other,
        })?;
        join(socket.intact()?, device.index, config)
            .map_err(|e| NetError::os("add an Ethernet address to an interface", e))?;
        let epoll = Epoll::new()?;
        epoll.add(socket.shared(), 0, EventFlags::IN)?;
        Ok(Self {
            name: name.into(),
            index: device.index,
            segments: socket.vnet,
            socket,
            epoll,
            arena: RecvArena::new(BUFFERS, BUFFER),
            arrived: 0..0,
            completed: Vec::new(),
            waiting: Waiting::default(),
            watches_room: false,
            monitor: None,
        })
    }

    /// Receives frames from the socket into the arena. Returns whether there are any.
    fn receive(&mut self) -> Result<bool, NetError> {
        match self.socket.recv(&mut self.arena)? {
            Ok((got, _)) => self.arrived = 0..got,
            Err(e) if e.raw_os_error() == Some(libc::ENETDOWN) => self.watch_interface()?,
            // A frame arrived that the virtio header cannot describe.
            Err(e) if Loss::of(&e).is_some() => {}
            Err(e) => return Err(NetError::os("receive from a packet socket", e)),
        }
        if self.arrived.is_empty() && self.monitor.is_some() {
            self.follow_interface()?;
        }
        Ok(!self.arrived.is_empty())
    }

    /// Watches the interface after the socket has reported that it went down, possibly for good.
    fn watch_interface(&mut self) -> Result<(), NetError> {
        if self.monitor.is_none()
            && let Ok(monitor) = InterfaceMonitor::open()
        {
            self.epoll.add(&monitor, 0, EventFlags::IN)?;
            self.monitor = Some(monitor);
        }
        Ok(())
    }

    /// Fails if the interface is gone, and stops watching it if it is up again.
    fn follow_interface(&mut self) -> Result<(), NetError> {
        if let Some(monitor) = &mut self.monitor {
            let _ = monitor.changed(self.index);
        }
        let name = index_to_name(self.socket.intact()?, self.index).map_err(|e| NetError::L2 {
            link: format!("if:{}", self.name),
            reason: L2Failure::Gone(e.into()),
        })?;
        if sockopt::is_up(self.socket.intact()?, &name).unwrap_or(false)
            && let Some(monitor) = self.monitor.take()
        {
            self.epoll.delete(&monitor);
        }
        Ok(())
    }

    /// Sends a frame with its virtio header, or queues it. The first part holds the Ethernet
    /// header.
    fn transmit(&mut self, parts: [&[u8]; 3]) -> Result<(), Loss> {
        let socket = self.socket.intact().map_err(|_| Loss::Down)?;
        let (index, vnet) = (self.index, self.socket.vnet);
        self.waiting.send_or_keep(&parts, |parts| send(socket, index, vnet, parts))
    }
}

impl Link for InterfaceLink {
    fn limits(&self) -> TxLimits {
        LIMITS
    }

    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError> {
        loop {
            let Some(at) = self.arrived.next() else {
                if self.receive()? {
                    continue;
                }
                return Ok(false);
            };
            let arrived = self.socket.arrived(&self.arena.get(at));
            // Segments other than UDP are useless to an endpoint. They are handed out as an empty
            // frame, so that a flood of them uses up the caller's budget.
            let mut bytes = if arrived.vnet.is_some() { arrived.bytes } else { &[] };
            let vnet = arrived.vnet.unwrap_or_default();
            if vnet.lacks_checksum(bytes) {
                self.completed.clear();
                self.completed.extend_from_slice(bytes);
                vnet.complete(&mut self.completed);
                bytes = &self.completed;
            }
            f(&Arrival { bytes, gso_size: vnet.gso_size, lost: arrived.lost });
            return Ok(true);
        }
    }

    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Loss> {
        let vnet = &[0; VNET][..if self.socket.vnet { VNET } else { 0 }];
        let frame = [&[vnet], parts].concat().concat();
        self.transmit([&frame, &[], &[]])
    }

    fn push_packets(
        &mut self,
        packets: &Frame<'_>,
        src: [u8; 6],
        dst: [u8; 6],
        counters: &mut Counters,
    ) {
        let count = packets.count();
        if self.segments && count > 1 {
            let segment = Some(packets.segment);
            let headers = Headers::offloaded(&packets.net, packets.payload, segment, src, dst);
            let [front, ip] = headers.parts();
            match self.transmit([front, ip, packets.payload]) {
                Ok(()) => {
                    let bytes = packets.payload.len();
                    return counters.count_sent(bytes, packets.segment, 0..count);
                }
                // The kernel does not segment after all.
                Err(Loss::Other) => self.segments = false,
                Err(loss) => return count_lost(counters, loss, count as u64),
            }
        }
        for (net, bytes) in packets.packets() {
            let headers = match self.socket.vnet {
                true => Headers::offloaded(&net, bytes, None, src, dst),
                false => Headers::plain(&net, bytes, src, dst),
            };
            let [front, ip] = headers.parts();
            match self.transmit([front, ip, bytes]) {
                Ok(()) => counters.count_sent(bytes.len(), bytes.len(), 0..1),
                Err(loss) => count_lost(counters, loss, 1),
            }
        }
    }

    fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    fn flush(&mut self) -> Result<(), NetError> {
        if !self.waiting.is_empty() {
            let socket = self.socket.intact()?;
            let (index, vnet) = (self.index, self.socket.vnet);
            self.waiting.flush(|parts| send(socket, index, vnet, parts));
        }
        let on = !self.waiting.is_empty();
        Ok(self.epoll.watch_room(self.socket.shared(), on, &mut self.watches_room)?)
    }

    fn shared(&self) -> &SharedFd {
        self.epoll.shared()
    }

    fn interface(&self) -> Option<u32> {
        Some(self.index)
    }
}

/// Returns the interface with this name if an endpoint can use it. `failed` makes an error of the
/// reason why it cannot.
pub(super) fn usable(
    name: &str,
    config: &L2Config,
    failed: impl FnOnce(L2Failure) -> NetError,
) -> Result<NetDev, NetError> {
    let device = net_device(name)?;
    check(&device, config)
        .map_err(|e| NetError::os("list the interfaces", e))?
        .map_or(Ok(()), |reason| Err(failed(reason)))?;
    if !device.up {
        return Err(NetError::DeviceDown { netdev: name.into() });
    }
    Ok(device)
}

/// Returns why an endpoint cannot use this interface, or `None` if it can.
fn check(device: &NetDev, config: &L2Config) -> io::Result<Option<L2Failure>> {
    if !device.ethernet || device.loopback {
        return Ok(Some(L2Failure::NotEthernet));
    }
    if let Some(owner) = Interface::owner_of_port(device.index)? {
        return Ok(Some(L2Failure::Port { owner }));
    }
    if usize::try_from(config.mtu).is_ok_and(|mtu| device.mtu < mtu) {
        let (interface, endpoint) = (device.mtu, config.mtu);
        return Ok(Some(L2Failure::SmallMtu { interface, endpoint }));
    }
    if device.mac == config.mac.0 {
        return Ok(Some(L2Failure::HostMac { mac: Mac(device.mac) }));
    }
    // Checked here, because the host does not receive the endpoint's probes.
    let own = config.own_addresses();
    let taken = Interface::list()?.into_iter().find_map(|interface| {
        let has = |ip| interface.addresses.iter().any(|a| a.ip == ip);
        let taken = own.iter().find(|own| has(own.ip))?;
        Some(L2Failure::HostAddress { address: taken.ip, netdev: interface.name.clone() })
    });
    Ok(taken)
}

/// Makes the interface receive the endpoint's Ethernet address, and the groups in which hosts ask
/// for its addresses, while the socket is open.
fn join(socket: BorrowedFd<'_>, interface: u32, config: &L2Config) -> io::Result<()> {
    packet_membership::add_station(socket, interface, config.mac.0)?;
    groups(config.own_addresses().iter().map(|a| a.ip))
        .into_iter()
        .try_for_each(|group| packet_membership::add_group(socket, interface, group))
}

/// Sends a frame, preceded by its virtio header if `vnet`.
fn send(socket: BorrowedFd<'_>, interface: u32, vnet: bool, parts: &[&[u8]]) -> io::Result<()> {
    let mut frame = Outgoing { addr: RawAddr::EMPTY, control: Control::EMPTY, parts: [&[]; 3] };
    for (to, from) in frame.parts.iter_mut().zip(parts) {
        *to = from;
    }
    let end = if vnet { VNET + ETHERNET } else { ETHERNET };
    let ethertype = frame.parts[0].get(end - 2..end).and_then(|bytes| bytes.try_into().ok());
    frame.addr = RawAddr::link(interface, u16::from_be_bytes(ethertype.unwrap_or_default()));
    sendmmsg(socket, &[frame]).map(drop)
}
