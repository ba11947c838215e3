//! The sockets for source ports other than 4791.
//!
//! A receiver with several queues (RSS) and a network with several paths (ECMP) distribute packets
//! by addresses and ports. A socket sends from one port, so there is one socket for each port in
//! use: at most [`PORTS`] for each address, each opened when the first packet leaves from it. Queue
//! pairs are assigned to these ports in turn.
//!
//! The ports belong to a block of QPNs ([`ports_of_block`]), so the processes and shards of an
//! address do not conflict. They are above the ports that Linux assigns to sockets that request
//! none (32768 to 60999). If another program has a port nevertheless, or no descriptor is left,
//! packets leave from port 4791 instead.
//!
//! These sockets receive nothing ([`UdpSocket::open_sender`]).

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use rustix::event::epoll::EventFlags;
use rxe_core::wire::{NetHeader, UDP_PORT};

use super::sockets::Sockets;
use crate::backend::SrcPort;
use crate::host::READY;
use crate::host::udp_socket::UdpSocket;
use rxe_sys::Epoll;
use rxe_sys::sockopt::{drops, set_send_buffer};

/// The number of source ports of a block of QPNs. One sending core needs no more flows, and more
/// ports would leave fewer packets for each call.
const PORTS: u16 = 4;
/// The first source port of block 0. The ports of block 255 end at 65535.
const FIRST: u16 = 0xfc00;

/// The sockets for source ports other than 4791.
#[derive(Debug)]
pub(super) struct Senders {
    all: Vec<Sender>,
    ports: SrcPort,
    scope: u32,
    /// The send buffer to request, in bytes.
    send_buffer: usize,
    /// The index of the socket that had no room, if any.
    blocked: Option<usize>,
    /// The number of datagrams that had arrived at sockets that are now closed.
    dropped: u64,
}

#[derive(Debug)]
struct Sender {
    address: IpAddr,
    port: u16,
    /// `None` if the port is not available.
    socket: Option<UdpSocket>,
}

/// Returns the source ports for queue pairs of a block of QPNs.
pub(super) fn ports_of_block(block: u8) -> SrcPort {
    SrcPort::Range { first: FIRST + u16::from(block) * PORTS, count: PORTS }
}

impl Senders {
    /// Creates an empty set for these ports, on an interface with the index `scope`.
    pub(super) fn new(ports: SrcPort, scope: u32, send_buffer: usize) -> Self {
        Self { all: Vec::new(), ports, scope, send_buffer, blocked: None, dropped: 0 }
    }

    /// Opens a socket for this address and port. A failure is remembered until [`Senders::retain`].
    pub(super) fn open(&mut self, address: IpAddr, port: u16) -> io::Result<()> {
        let share = matches!(self.ports, SrcPort::Fixed(_));
        let opened = UdpSocket::open_sender(address, port, self.scope, share);
        let (socket, result) = opened.map_or_else(|e| (None, Err(e)), |s| (Some(s), Ok(())));
        if let Some(socket) = &socket {
            set_send_buffer(socket.as_fd(), self.send_buffer);
        }
        self.all.push(Sender { address, port, socket });
        result
    }

    /// Returns whether packets with this header can leave from their source port. Opens the socket
    /// for the port on first use.
    #[inline]
    pub(super) fn can_send(&mut self, net: &NetHeader) -> bool {
        net.src_port == UDP_PORT || self.has_socket(net)
    }

    fn has_socket(&mut self, net: &NetHeader) -> bool {
        if let Some(at) = self.position(net) {
            return self.all[at].socket.is_some();
        }
        let ours = match self.ports {
            SrcPort::Fixed(port) => port == net.src_port,
            SrcPort::Range { first, count } => {
                (first..=first + (count - 1)).contains(&net.src_port)
            }
            SrcPort::Any => false,
        };
        ours && self.open(net.src, net.src_port).is_ok()
    }

    /// Returns the socket for packets with this header.
    #[inline]
    pub(super) fn socket<'s>(&'s self, own: &'s Sockets, net: &NetHeader) -> Option<&'s UdpSocket> {
        if net.src_port == UDP_PORT {
            return own.of(net.src);
        }
        self.all[self.position(net)?].socket.as_ref()
    }

    #[inline]
    fn position(&self, net: &NetHeader) -> Option<usize> {
        self.all.iter().position(|s| s.port == net.src_port && s.address == net.src)
    }

    /// Records that the socket for this header had no room. `epoll` becomes readable when it has.
    pub(super) fn wait_for_room(&mut self, net: &NetHeader, epoll: &Epoll) {
        self.blocked = self.position(net);
        if let Some(socket) = self.blocked.and_then(|at| self.all[at].socket.as_ref()) {
            // If this fails for lack of memory, the next call tries to send again.
            let _ = epoll.add(socket, READY, EventFlags::OUT);
        }
    }

    /// Forgets which socket had no room. Called before each send, because epoll stays readable
    /// while it watches a socket with room.
    #[inline]
    pub(super) fn clear_blocked(&mut self, epoll: &Epoll) {
        if let Some(at) = self.blocked.take()
            && let Some(socket) = self.all.get(at).and_then(|sender| sender.socket.as_ref())
        {
            epoll.delete(socket);
        }
    }

    /// Closes the sockets of other addresses than these. Ports that were not available may be tried
    /// again.
    pub(super) fn retain(&mut self, addresses: &[IpAddr], epoll: &Epoll) {
        self.clear_blocked(epoll);
        let before = self.dropped();
        self.all.retain(|s| s.socket.is_some() && addresses.contains(&s.address));
        self.dropped += before - self.dropped();
    }

    /// Returns the number of datagrams that arrived at these ports and were dropped.
    pub(super) fn dropped(&self) -> u64 {
        let sockets = self.all.iter().filter_map(|sender| sender.socket.as_ref());
        self.dropped + sockets.map(|socket| u64::from(drops(socket.as_fd()))).sum::<u64>()
    }
}
