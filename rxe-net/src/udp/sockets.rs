//! The sockets of a backend, of which some come and go while it lives.
//!
//! A backend's descriptors must not change ([`crate::Backend::for_each_fd`]), but groups are joined
//! and addresses added at any time. So sockets that come later stand behind one epoll descriptor,
//! which is there from the start and readable when one of them is. What all processes on an address
//! share, and what they forward, stand behind it too; it comes so seldom that these are looked at only when
//! several calls in a row have found nothing else.
//!
//! Invariant: a socket behind it is watched for room to send only from a send that found none until
//! the next one; else the descriptor would be readable all the time.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rxe_core::wire::Frame;

use super::socket::UdpSocket;
use crate::NetError;
use crate::backend::Counters;
use crate::lease::{Endpoint, Forwarding};
use crate::loss::Loss;
use crate::sys::checked_fd::CheckedFd;
use crate::sys::mmsg::RecvArena;
use crate::sys::sockopt::drops;

/// See the module's opening.
pub(crate) struct Sockets {
    all: Vec<Slot>,
    /// Watches those that came later.
    epoll: CheckedFd,
    /// One of those has no room to send.
    blocked: bool,
    /// Where the last frame came from: asked first.
    hot: usize,
    /// Calls of `receive`; now and then the sockets' turns change.
    turn: u32,
    /// What packets to QP1 come to, on each address. All processes on it have these sockets; the first
    /// that reads a packet hands it to the process that it is for.
    qp1: Vec<Slot>,
    /// This process reads them.
    gsi: bool,
    /// Bytes of receive buffer to ask the system for, for `qp1`.
    recv_buffer: usize,
    forwarding: Forwarding,
    /// Calls of `receive` in a row that found nothing.
    idle: u32,
}

struct Slot {
    socket: UdpSocket,
    /// Stands behind the epoll descriptor.
    later: bool,
    /// Datagrams lost, as the system last said.
    overflow: u32,
}

/// So many calls of `receive` must have found nothing before it looks at what comes seldom.
const IDLE_THRESHOLD: u32 = 8;

impl Sockets {
    /// Begins with the sockets `first`, and takes part in QP1 on these addresses.
    pub(crate) fn new(
        first: Vec<UdpSocket>,
        endpoints: Vec<Endpoint>,
        forwarding: Forwarding,
        scope: u32,
        recv_buffer: usize,
    ) -> Result<Self, NetError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|e| NetError::os("make an epoll descriptor", e))?;
        let mut sockets = Self {
            all: first.into_iter().map(|socket| Slot::new(socket, false)).collect(),
            epoll: CheckedFd::internal(epoll),
            blocked: false,
            hot: 0,
            turn: 0,
            qp1: Vec::new(),
            gsi: false,
            recv_buffer,
            forwarding,
            idle: 0,
        };
        for endpoint in endpoints {
            sockets.enter(endpoint, scope)?;
        }
        sockets.watch_forwarding();
        Ok(sockets)
    }

    /// Packets to QP1 of this address, and what is forwarded on it, come here too; or, of an address that is known,
    /// what is forwarded for one more block.
    pub(crate) fn enter(&mut self, endpoint: Endpoint, scope: u32) -> Result<(), NetError> {
        if !self.forwarding.has(endpoint.address()) {
            let mut socket = UdpSocket::adopt(endpoint.first(), endpoint.address(), scope);
            // Many connections may be set up at once.
            socket.set_buffers(self.recv_buffer, 0);
            self.qp1.push(Slot::new(socket, true));
        }
        let added = self.forwarding.add(endpoint);
        self.watch_forwarding();
        added
    }

    /// They do no longer.
    pub(crate) fn leave(&mut self, address: IpAddr) {
        self.watch_qp1(false);
        self.qp1.retain(|slot| slot.socket.address() != address);
        self.forwarding.remove(address);
        self.watch_qp1(self.gsi);
    }

    /// Takes packets to QP1 from now on, or no more.
    pub(crate) fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        if open != self.gsi {
            self.gsi = open;
            self.watch_qp1(open);
        }
        Ok(())
    }

    /// Takes what is sent to a service.
    pub(crate) fn listen(&mut self, service: u64, address: Option<IpAddr>) -> Result<(), NetError> {
        self.forwarding.listen(service, address)?;
        self.watch_forwarding();
        Ok(())
    }

    /// Takes it no more.
    pub(crate) fn unlisten(&mut self, service: u64, address: Option<IpAddr>) {
        self.forwarding.unlisten(service, address);
    }

    /// Hands over a frame that has arrived in another way.
    pub(crate) fn deliver(&mut self, frame: &Frame<'_>, sink: &mut dyn FnMut(&Frame<'_>)) {
        self.forwarding.deliver(frame, sink);
    }

    /// Sees to it that the epoll descriptor watches all that there is.
    fn watch_forwarding(&self) {
        self.forwarding.for_each_fd(&mut |fd| self.watch_for_packets(fd.as_fd()));
        self.watch_qp1(self.gsi);
    }

    fn watch_qp1(&self, on: bool) {
        for slot in &self.qp1 {
            if on {
                self.watch_for_packets(slot.socket.as_fd());
            } else {
                // The socket is others' too, so it would be watched for ever. It may not be watched.
                let _ = epoll::delete(&self.epoll, &slot.socket);
            }
        }
    }

    fn watch_for_packets(&self, fd: BorrowedFd<'_>) {
        // Fails where it is watched already; else, for lack of memory, it is looked at less often.
        let _ = epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN);
    }

    /// One more.
    pub(crate) fn add(&mut self, socket: UdpSocket) -> Result<(), NetError> {
        epoll::add(&self.epoll, &socket, EventData::new_u64(0), EventFlags::IN)
            .map_err(|e| NetError::os("watch a UDP socket", e))?;
        self.all.push(Slot::new(socket, true));
        Ok(())
    }

    /// Closes those among the later ones that `keep` does not want, but for those on an address that
    /// one of the first is on.
    pub(crate) fn retain(&mut self, keep: impl Fn(&UdpSocket) -> bool) {
        let Self { all, epoll, .. } = self;
        let first = all.iter().filter(|slot| !slot.later).map(|slot| slot.socket.address());
        let first: Vec<_> = first.collect();
        all.retain(|slot| {
            let stays = first.contains(&slot.socket.address()) || keep(&slot.socket);
            if !stays {
                // Other processes may keep it open.
                let _ = epoll::delete(&*epoll, &slot.socket);
            }
            stays
        });
        self.hot = 0;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &UdpSocket> {
        self.all.iter().map(|slot| &slot.socket)
    }

    /// The one on this address or of this group; the first, if each block has one.
    pub(crate) fn of(&self, address: IpAddr) -> Option<&UdpSocket> {
        self.iter().find(|socket| socket.address() == address)
    }

    /// The one on this address had no room.
    pub(crate) fn wait_for_room(&mut self, address: IpAddr) {
        let sends = self.all.iter().find(|slot| slot.socket.address() == address);
        if sends.is_some_and(|slot| slot.later) {
            self.blocked = true;
            self.watch(EventFlags::IN | EventFlags::OUT);
        }
    }

    /// A send begins, and will find out anew who has no room.
    pub(crate) fn try_again(&mut self) {
        if std::mem::take(&mut self.blocked) {
            self.watch(EventFlags::IN);
        }
    }

    fn watch(&self, flags: EventFlags) {
        for slot in self.all.iter().filter(|slot| slot.later) {
            // They were added, so this does not fail.
            let _ = epoll::modify(&self.epoll, &slot.socket, EventData::new_u64(0), flags);
        }
    }

    /// Receives from the first that has something.
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
        // Whoever was busy is asked first, and alone if it still is; but not forever.
        let first = if self.turn.is_multiple_of(16) { self.hot + 1 } else { self.hot };
        for index in (0..count).map(|i| (first + i) % count) {
            let got = all[index].receive(arena, counters, budget, forwarding, sink)?;
            if got > 0 {
                self.hot = index;
                self.idle = 0;
                if self.turn.is_multiple_of(32 * IDLE_THRESHOLD) {
                    return Ok(got + self.receive_seldom(arena, counters, budget, sink)?);
                }
                return Ok(got);
            }
        }
        self.idle += 1;
        if self.idle < IDLE_THRESHOLD {
            return Ok(0);
        }
        self.idle = 0;
        self.receive_seldom(arena, counters, budget, sink)
    }

    /// Receives what all processes share, and what they forward.
    fn receive_seldom(
        &mut self,
        arena: &mut RecvArena,
        counters: &mut Counters,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut event = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        if epoll::wait(&self.epoll, &mut event[..], Some(&at_once)).is_ok_and(|n| n == 0) {
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

    /// The descriptors, the same ones for ever.
    pub(crate) fn for_each_fd(&self, f: &mut dyn FnMut(BorrowedFd<'_>)) {
        for slot in self.all.iter().filter(|slot| !slot.later) {
            f(slot.socket.as_fd());
        }
        f(self.epoll.as_fd());
    }
}

impl Slot {
    fn new(socket: UdpSocket, later: bool) -> Self {
        // It may have been another process's, who lost some.
        let overflow = drops(socket.as_fd());
        Self { socket, later, overflow }
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
            let (got, more) = match arena.recv(self.socket.as_fd()) {
                Ok(found) => found,
                // An error that a packet sent earlier has come back with: lost, as on a wire.
                Err(e) if Loss::of(&e).is_some() => return Ok(packets),
                Err(e) => return Err(NetError::os("receive from a UDP socket", e)),
            };
            for i in 0..got {
                let received = arena.get(i);
                let Some(from) = received.addr.to_inet() else {
                    counters.rx_unusable += 1;
                    continue;
                };
                let arrived = self.socket.arrived(from, received.control);
                if let Some(now) = arrived.overflow {
                    let before = std::mem::replace(&mut self.overflow, now);
                    counters.rx_overflow += u64::from(now.wrapping_sub(before));
                }
                let payload = received.payload;
                if received.truncated || payload.is_empty() {
                    counters.rx_unusable += 1;
                    continue;
                }
                let segment = arrived.segment.unwrap_or(payload.len()).min(payload.len());
                let count = payload.len().div_ceil(segment);
                packets += count;
                counters.rx_packets += count as u64;
                counters.rx_bytes += payload.len() as u64;
                let later = i + Frame::AHEAD;
                let later = if later < got { arena.get(later).payload } else { &[] };
                forwarding.deliver(&Frame { net: arrived.net, payload, segment, later }, sink);
            }
            if got == 0 || (packets > 0 && !more) || packets >= budget {
                return Ok(packets);
            }
        }
    }
}
