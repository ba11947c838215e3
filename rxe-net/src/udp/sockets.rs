//! The sockets of a backend, of which some come and go while it lives.
//!
//! A backend's descriptors must not change ([`crate::Backend::for_each_fd`]), but groups are joined
//! and addresses added at any time. So sockets that come later stand behind one epoll descriptor,
//! which is there from the start and readable when one of them is.
//!
//! Invariant: a socket behind it is watched for room to send only from a send that found none until
//! the next one; else the descriptor would be readable all the time.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rxe_core::wire::Frame;

use super::socket::UdpSocket;
use crate::NetError;
use crate::backend::Counters;
use crate::loss::Loss;
use crate::sys::mmsg::RecvArena;

/// See the module's opening.
pub(crate) struct Sockets {
    all: Vec<Slot>,
    /// Watches those that came later.
    epoll: OwnedFd,
    /// One of those has no room to send.
    blocked: bool,
    /// Where the last frame came from: asked first.
    hot: usize,
    /// Calls of `receive`; now and then the sockets' turns change.
    turn: u32,
}

struct Slot {
    socket: UdpSocket,
    /// Stands behind the epoll descriptor.
    later: bool,
    /// Datagrams lost, as the system last said.
    overflow: u32,
}

impl Sockets {
    /// With these to begin with.
    pub(crate) fn new(first: Vec<UdpSocket>) -> Result<Self, NetError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|e| NetError::os("make an epoll descriptor", e))?;
        let slot = |socket| Slot { socket, later: false, overflow: 0 };
        let all = first.into_iter().map(slot).collect();
        Ok(Self { all, epoll, blocked: false, hot: 0, turn: 0 })
    }

    /// One more.
    pub(crate) fn add(&mut self, socket: UdpSocket) -> Result<(), NetError> {
        epoll::add(&self.epoll, &socket, EventData::new_u64(0), EventFlags::IN)
            .map_err(|e| NetError::os("watch a UDP socket", e))?;
        self.all.push(Slot { socket, later: true, overflow: 0 });
        Ok(())
    }

    /// Closes those among the later ones that `keep` does not want.
    pub(crate) fn retain(&mut self, keep: impl Fn(&UdpSocket) -> bool) {
        self.all.retain(|slot| !slot.later || keep(&slot.socket));
        self.hot = 0;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &UdpSocket> {
        self.all.iter().map(|slot| &slot.socket)
    }

    /// The one on this address or of this group.
    pub(crate) fn of(&self, address: IpAddr) -> Option<&UdpSocket> {
        self.iter().find(|socket| socket.address() == address)
    }

    /// The one on this address had no room.
    pub(crate) fn wait_for_room(&mut self, address: IpAddr) {
        if self.all.iter().any(|slot| slot.later && slot.socket.address() == address) {
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
        let count = self.all.len();
        if count == 0 {
            return Ok(0);
        }
        self.turn = self.turn.wrapping_add(1);
        // Whoever was busy is asked first, and alone if it still is; but not forever.
        let first = if self.turn.is_multiple_of(16) { (self.hot + 1) % count } else { self.hot };
        for index in (0..count).map(|i| (first + i) % count) {
            let got = self.all[index].receive(arena, counters, budget, sink)?;
            if got > 0 {
                self.hot = index;
                return Ok(got);
            }
        }
        Ok(0)
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
    fn receive(
        &mut self,
        arena: &mut RecvArena,
        counters: &mut Counters,
        budget: usize,
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
                sink(&Frame { net: arrived.net, payload, segment });
            }
            if got == 0 || (packets > 0 && !more) || packets >= budget {
                return Ok(packets);
            }
        }
    }
}
