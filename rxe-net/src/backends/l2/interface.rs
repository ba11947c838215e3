//! A link over an interface of this host, by a packet socket: the endpoint is a further station on the
//! interface's wire, beside the host's own network stack. packet(7).
//!
//! The interface receives the endpoint's Ethernet address too, as it does for a macvlan; multicast groups are
//! received by further sockets ([`crate::Joiner`]). The host's stack takes no notice of such frames. What the
//! endpoint sends goes to the wire, so the host's stack does not see it; other endpoints on the interface do.
//!
//! Invariants: frames that wait to be sent are bounded; the interface is left as it was found when the
//! descriptor is closed, however the process ends.

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
use rxe_sys::{sockopt, station};

/// The link.
pub(super) struct InterfaceLink {
    name: String,
    index: u32,
    socket: PacketSocket,
    epoll: Epoll,
    arena: RecvArena,
    /// The frames of the arena that are not handed out yet.
    arrived: Range<usize>,
    /// A frame with the checksum that it lacked.
    completed: Vec<u8>,
    waiting: Waiting,
    /// The epoll descriptor tells when there is room for more.
    watches_room: bool,
    /// The system segments bursts.
    segments: bool,
    /// While the interface is down: tells when it is gone or up again.
    monitor: Option<InterfaceMonitor>,
}

/// Bytes of receive and of send buffer.
const SOCKET_BUFFER: usize = 8 << 20;

impl InterfaceLink {
    /// Receives what is for the endpoint on the interface `name`.
    pub(super) fn open(name: &str, config: &L2Config) -> Result<Self, NetError> {
        let failed = |reason| NetError::L2 { link: format!("if:{name}"), reason };
        let device = net_device(name)?;
        check(&device, config)
            .map_err(|e| NetError::os("list the interfaces", e))?
            .map_or(Ok(()), |reason| Err(failed(reason)))?;
        if !device.up {
            return Err(NetError::DeviceDown { netdev: name.into() });
        }
        let filter: Vec<sock_filter> = filter::station(config.mac.0);
        let opened = PacketSocket::open(&PacketSocketConfig {
            interface: device.index,
            ethernet: true,
            filter: &filter,
            // Those of other endpoints on this interface.
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

    /// Takes what has arrived from the socket. Whether there is something.
    fn receive(&mut self) -> Result<bool, NetError> {
        match self.socket.recv(&mut self.arena)? {
            Ok((got, _)) => self.arrived = 0..got,
            Err(e) if e.raw_os_error() == Some(libc::ENETDOWN) => self.watch_interface()?,
            // A frame came that cannot be described.
            Err(e) if Loss::of(&e).is_some() => {}
            Err(e) => return Err(NetError::os("receive from a packet socket", e)),
        }
        if self.arrived.is_empty() && self.monitor.is_some() {
            self.follow_interface()?;
        }
        Ok(!self.arrived.is_empty())
    }

    /// The socket tells that the interface goes down. It does not tell whether that is for good.
    fn watch_interface(&mut self) -> Result<(), NetError> {
        if self.monitor.is_none()
            && let Ok(monitor) = InterfaceMonitor::open()
        {
            self.epoll.add(&monitor, 0, EventFlags::IN)?;
            self.monitor = Some(monitor);
        }
        Ok(())
    }

    /// Ends the link if its interface is gone, and the watch if it is up again.
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

    /// Sends a frame with its virtio header, or keeps it. The first part holds the Ethernet header.
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
            // Other segments than of UDP are nothing that an endpoint has asked for: they are handed out
            // as an empty frame, since a flood of them must end a call too.
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
                // The system does not segment after all.
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

/// Why an endpoint cannot be on this interface, if it cannot.
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
    // The host does not see the endpoint's question who has an address.
    let own = config.own_addresses();
    let taken = Interface::list()?.into_iter().find_map(|interface| {
        let has = |ip| interface.addresses.iter().any(|a| a.ip == ip);
        let taken = own.iter().find(|own| has(own.ip))?;
        Some(L2Failure::HostAddress { address: taken.ip, netdev: interface.name.clone() })
    });
    Ok(taken)
}

/// Has the interface receive what is for the endpoint's Ethernet address and for the groups in which it is
/// asked for, for as long as the socket is open.
fn join(socket: BorrowedFd<'_>, interface: u32, config: &L2Config) -> io::Result<()> {
    station::add_station(socket, interface, config.mac.0)?;
    groups(config.own_addresses().iter().map(|a| a.ip))
        .into_iter()
        .try_for_each(|group| station::add_group(socket, interface, group))
}

/// Sends a frame behind its virtio header, if it has one.
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
