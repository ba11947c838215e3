//! The sockets of a backend, some of which come and go while the backend lives.
//!
//! A backend's descriptors must not change ([`crate::Backend::for_each_fd`]), but groups are joined
//! and addresses added at any time. So an epoll descriptor, which exists from the start, watches
//! the later sockets and is readable when one of them is. It also watches the sockets that all
//! processes on an address share, and the sockets for forwarding. These rarely have packets, so
//! they are polled only when several calls in a row have found nothing else.
//!
//! Invariant: epoll watches a socket for room to send only after a send found no room, and until
//! the next send. Otherwise the epoll descriptor would always be readable.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll::EventFlags;
use rxe_core::wire::Frame;

use crate::backends::loss::Loss;
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::membership::Membership;
use crate::host::peer_probes::PeerProbes;
use crate::host::udp_socket::UdpSocket;
use crate::host::{Endpoint, Forwarding, PortGroups, READY};
use rxe_sys::mmsg::{RecvArena, RecvPace};
use rxe_sys::sockopt::drops;
use rxe_sys::{Epoll, SharedFd};

/// The sockets of a backend, and the epoll descriptor that watches the later ones.
pub(crate) struct Sockets {
    all: Vec<Slot>,
    /// Watches the later sockets.
    epoll: Epoll,
    /// One of the later sockets has no room to send.
    blocked: bool,
    /// The index of the socket that the last frame came from. It is read first.
    last_active: usize,
    /// The number of `receive` calls. Every 16th call starts with the next socket.
    turn: u32,
    /// The sockets that receive packets to QP1, one for each address. All processes on the address
    /// hold them; the process that reads a packet hands it to the process that it is for.
    qp1: Vec<Slot>,
    /// This process reads the sockets of `qp1`.
    gsi: bool,
    /// The receive buffer to request for `qp1`, in bytes.
    recv_buffer: usize,
    forwarding: Forwarding,
    peer_probes: PeerProbes,
    /// The number of consecutive `receive` calls that found nothing.
    idle: u32,
}

struct Slot {
    socket: UdpSocket,
    /// The epoll descriptor watches the socket.
    in_epoll: bool,
    /// The kernel's last count of lost datagrams.
    overflow: u32,
    pace: RecvPace,
}

/// The number of `receive` calls without a packet after which the rarely used sockets are read too.
const IDLE_THRESHOLD: u32 = 8;

impl Sockets {
    /// Creates the set with the sockets `first`, and takes part in QP1 on these addresses.
    pub(crate) fn new(
        first: Vec<UdpSocket>,
        endpoints: Vec<Endpoint>,
        groups: &PortGroups,
        scope: u32,
        recv_buffer: usize,
    ) -> Result<Self, NetError> {
        let epoll = Epoll::new()?;
        let mut sockets = Self {
            all: first.into_iter().map(|socket| Slot::new(socket, false)).collect(),
            forwarding: groups.forwarding(epoll.clone()),
            epoll,
            blocked: false,
            last_active: 0,
            turn: 0,
            qp1: Vec::new(),
            gsi: false,
            recv_buffer,
            peer_probes: PeerProbes::new(groups.block(), scope),
            idle: 0,
        };
        for endpoint in endpoints {
            sockets.enter(endpoint, scope);
        }
        sockets.watch_forwarding();
        Ok(sockets)
    }

    /// Adds the endpoint of an address: its packets to QP1, and packets that are forwarded to it.
    /// If the address is known, only adds the forwarding for one more block.
    pub(crate) fn enter(&mut self, endpoint: Endpoint, scope: u32) {
        if !self.forwarding.has(endpoint.address()) {
            let mut socket = UdpSocket::adopt(endpoint.first(), endpoint.address(), scope);
            // Many peers may connect simultaneously.
            socket.set_buffers(self.recv_buffer, 0);
            self.qp1.push(Slot::new(socket, true));
        }
        self.forwarding.add(endpoint);
        self.watch_forwarding();
    }

    /// Removes the endpoint of an address.
    pub(crate) fn leave(&mut self, address: IpAddr) {
        self.watch_qp1(false);
        self.qp1.retain(|slot| slot.socket.address() != address);
        self.forwarding.remove(address);
        self.peer_probes.leave(address);
        self.watch_qp1(self.gsi);
    }

    /// Adds the endpoints leased since the last call. `adopt` takes the process's own socket of
    /// each.
    pub(crate) fn take_up(
        &mut self,
        groups: &PortGroups,
        scope: u32,
        mut adopt: impl FnMut(&mut Self, &Endpoint) -> Result<(), NetError>,
    ) -> Result<(), NetError> {
        let mut result = Ok(());
        for endpoint in groups.take_ready() {
            let entered = adopt(self, &endpoint).map(|()| self.enter(endpoint, scope));
            result = result.and(entered);
        }
        result
    }

    /// Leaves all addresses but these. Returns those of these that the process receives on.
    pub(crate) fn keep(&mut self, groups: &PortGroups, addresses: &[IpAddr]) -> Vec<IpAddr> {
        for address in groups.addresses() {
            if !addresses.contains(&address) {
                self.leave(address);
                groups.leave(address);
            }
        }
        let shared = groups.addresses();
        addresses.iter().copied().filter(|a| shared.contains(a)).collect()
    }

    /// Sets whether packets to QP1 are received.
    pub(crate) fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        if open != self.gsi {
            self.gsi = open;
            self.watch_qp1(open);
        }
        Ok(())
    }

    /// Returns the sockets for probes of peers.
    pub(crate) fn peer_probes(&mut self) -> &mut PeerProbes {
        &mut self.peer_probes
    }

    /// Delivers a frame that arrived by another path.
    pub(crate) fn deliver(&mut self, frame: &Frame<'_>, sink: &mut dyn FnMut(&Frame<'_>)) {
        self.forwarding.deliver(frame, sink);
    }

    /// Makes the epoll descriptor watch all sockets for forwarding.
    fn watch_forwarding(&self) {
        self.forwarding.for_each_fd(&mut |fd| self.watch_for_packets(fd.as_fd()));
        self.watch_qp1(self.gsi);
    }

    fn watch_qp1(&self, on: bool) {
        for slot in &self.qp1 {
            if on {
                self.watch_for_packets(slot.socket.as_fd());
            } else {
                // Other processes keep the socket open, so epoll would continue to watch it. Fails
                // harmlessly if the socket is not watched.
                self.epoll.delete(&slot.socket);
            }
        }
    }

    fn watch_for_packets(&self, fd: BorrowedFd<'_>) {
        // Fails harmlessly if the socket is already watched. If it fails for lack of memory, the
        // socket is read less often.
        let _ = self.epoll.add(fd, READY, EventFlags::IN);
    }

    /// Adds a socket, watched by the epoll descriptor.
    pub(crate) fn add(&mut self, socket: UdpSocket) -> Result<(), NetError> {
        self.epoll.add(&socket, READY, EventFlags::IN)?;
        self.all.push(Slot::new(socket, true));
        Ok(())
    }

    /// Closes the later sockets on addresses other than these. Keeps the sockets of groups, and
    /// those with the address of a first socket, which may come back.
    pub(crate) fn retain(&mut self, addresses: &[IpAddr]) {
        let Self { all, epoll, .. } = self;
        let first = all.iter().filter(|slot| !slot.in_epoll).map(|slot| slot.socket.address());
        let first: Vec<_> = first.collect();
        all.retain(|slot| {
            let own = slot.socket.address();
            let stays = own.is_multicast() || first.contains(&own) || addresses.contains(&own);
            if !stays {
                // Other processes may keep the socket open, and epoll would continue to watch it.
                epoll.delete(&slot.socket);
            }
            stays
        });
        self.last_active = 0;
    }

    /// See [`crate::Sharing::add_membership`].
    pub(crate) fn add_membership(
        &mut self,
        membership: Membership,
    ) -> Result<Option<Membership>, NetError> {
        if self.of(membership.group()).is_some() {
            return Ok(Some(membership));
        }
        membership.into_socket().map_or(Ok(()), |socket| self.add(socket))?;
        Ok(None)
    }

    /// See [`crate::Sharing::remove_membership`].
    pub(crate) fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        let mut all = self.all.iter();
        let at = all.position(|slot| slot.in_epoll && slot.socket.address() == group)?;
        let Slot { socket, .. } = self.all.remove(at);
        self.epoll.delete(&socket);
        self.last_active = 0;
        Some(Membership::new(socket))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &UdpSocket> {
        self.all.iter().map(|slot| &slot.socket)
    }

    /// Returns the socket of this address or group; the first one, if each block has one.
    pub(crate) fn of(&self, address: IpAddr) -> Option<&UdpSocket> {
        self.iter().find(|socket| socket.address() == address)
    }

    /// Records that the socket on this address had no room.
    pub(crate) fn wait_for_room(&mut self, address: IpAddr) {
        let sends = self.all.iter().find(|slot| slot.socket.address() == address);
        if sends.is_some_and(|slot| slot.in_epoll) {
            self.blocked = true;
            self.watch(EventFlags::IN | EventFlags::OUT);
        }
    }

    /// Forgets which sockets had no room. Called before each send.
    pub(crate) fn clear_blocked(&mut self) {
        if std::mem::take(&mut self.blocked) {
            self.watch(EventFlags::IN);
        }
    }

    fn watch(&self, flags: EventFlags) {
        for slot in self.all.iter().filter(|slot| slot.in_epoll) {
            // The socket was added, so this does not fail.
            let _ = self.epoll.modify(&slot.socket, READY, flags);
        }
    }

    /// Receives from the first socket that has packets. Returns the number of packets.
    pub(crate) fn receive(
        &mut self,
        arena: &mut RecvArena,
        counters: &mut Counters,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let Self { all, forwarding, .. } = self;
        let count = all.len();
        self.turn = self.turn.wrapping_add(1);
        // The socket of the last frame is read first, and no other if it has more. Every 16th call
        // begins with the next socket, so that none starves.
        let first =
            if self.turn.is_multiple_of(16) { self.last_active + 1 } else { self.last_active };
        for index in (0..count).map(|i| (first + i) % count) {
            let got = all[index].receive(arena, counters, budget, forwarding, sink)?;
            if got > 0 {
                self.last_active = index;
                self.idle = 0;
                if self.turn.is_multiple_of(32 * IDLE_THRESHOLD) {
                    return Ok(got + self.receive_shared(arena, counters, budget, sink)?);
                }
                return Ok(got);
            }
        }
        self.idle += 1;
        if self.idle < IDLE_THRESHOLD {
            return Ok(0);
        }
        self.idle = 0;
        self.receive_shared(arena, counters, budget, sink)
    }

    /// Receives from the shared sockets for QP1 and from the sockets for forwarding.
    fn receive_shared(
        &mut self,
        arena: &mut RecvArena,
        counters: &mut Counters,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        if !self.epoll.has(READY) {
            return Ok(0);
        }
        let mut packets = self.forwarding.collect(counters, sink);
        if self.gsi {
            for slot in &mut self.qp1 {
                packets += slot.receive(arena, counters, budget, &mut self.forwarding, sink)?;
            }
        }
        Ok(packets)
    }

    /// Returns the epoll descriptor that watches the later sockets.
    pub(crate) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Calls `f` with each descriptor. The set of descriptors never changes.
    pub(crate) fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        for slot in self.all.iter().filter(|slot| !slot.in_epoll) {
            f(slot.socket.shared());
        }
        f(self.epoll.shared());
    }
}

impl Slot {
    fn new(socket: UdpSocket, in_epoll: bool) -> Self {
        // Another process may have had the socket before and lost datagrams: they are not counted
        // here.
        let overflow = drops(socket.as_fd());
        Self { socket, in_epoll, overflow, pace: RecvPace::default() }
    }

    fn receive(
        &mut self,
        arena: &mut RecvArena,
        counters: &mut Counters,
        budget: usize,
        forwarding: &mut Forwarding,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let mut packets = 0;
        loop {
            let (got, more) = match arena.recv(self.socket.intact()?, &mut self.pace) {
                Ok(found) => found,
                // The error concerns a packet that was sent earlier, which is lost, as on a wire.
                Err(e) if Loss::of(&e).is_some() => return Ok(packets),
                Err(e) => return Err(NetError::os("receive from a UDP socket", e)),
            };
            for i in 0..got {
                let received = arena.get(i);
                let Some(from) = received.addr.to_inet() else {
                    counters.rx_unusable += 1;
                    packets += 1;
                    continue;
                };
                let arrived = self.socket.arrived(from, received.control);
                if let Some(now) = arrived.overflow {
                    let before = std::mem::replace(&mut self.overflow, now);
                    counters.rx_overflow += u64::from(now.wrapping_sub(before));
                }
                let payload = received.payload;
                if received.truncated || payload.is_empty() {
                    // Counted against the budget, so that a flood of unusable datagrams cannot keep
                    // the call busy.
                    counters.rx_unusable += 1;
                    packets += 1;
                    continue;
                }
                let segment = arrived.segment.unwrap_or(payload.len()).min(payload.len());
                let count = payload.len().div_ceil(segment);
                packets += count;
                counters.rx_packets += count as u64;
                counters.rx_bytes += payload.len() as u64;
                let next = i + Frame::PREFETCH_DISTANCE;
                let prefetch_next = if next < got { arena.get(next).payload } else { &[] };
                forwarding.deliver(
                    &Frame { segment, prefetch_next, ..Frame::single(arrived.net, payload) },
                    sink,
                );
            }
            if got == 0 || (packets > 0 && !more) || packets >= budget {
                return Ok(packets);
            }
        }
    }
}
