//! Forwarding between the processes of an address: packets that reached one of them and are for
//! another.
//!
//! They are few. Packets to QP1 reach whichever process looks first. And a receiving interface merges
//! packets from one sender into one buffer before anybody looks for whom they are: if they are for
//! two processes, one gets both. If an inbox is full, packets wait a little ([`TxQueue`]). What can
//! not be forwarded is lost, or left to this process's own engine, which counts it.
//!
//! All this happens under a shard's lock. So what needs a look at a file is left to a thread
//! ([`Forwarder`]).

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::net::SocketAddrUnix;
use rxe_core::wire::{Frame, qpn_block};
use smallvec::SmallVec;

use super::directory::{Directory, ScopedAddr};
use super::forwarder::{Forwarder, Parcel, Recipient};
use super::mad::{self, For};
use super::message;
use super::services::Services;
use super::tx_queue::TxQueue;
use super::{Blocks, Endpoint};
use crate::counters::Counters;
use rxe_sys::Epoll;
use rxe_sys::may_block_at;
use rxe_sys::unix::{UnixSocket, distinct};

/// What others forward to this process, and what it forwards to them.
pub(crate) struct Forwarding {
    /// This process's.
    own: Blocks,
    directory: Arc<Directory>,
    scope: u32,
    out: TxQueue,
    inboxes: Vec<Inbox>,
    services: Arc<Services>,
    forwarder: Arc<Forwarder>,
    buf: Box<[u8]>,
}

/// Where packets come in that reached another process and are for this block. It is the same socket
/// for all blocks and addresses, as a rule.
struct Inbox {
    address: IpAddr,
    block: u8,
    /// `None` where this process has the address for itself.
    socket: Option<Arc<UnixSocket>>,
}

impl Forwarding {
    /// On the interface with index `scope`. When something that waits can be sent, `epoll` is
    /// readable.
    pub(super) fn new(
        directory: Arc<Directory>,
        scope: u32,
        services: Arc<Services>,
        forwarder: Arc<Forwarder>,
        epoll: Epoll,
    ) -> Self {
        Self {
            own: Blocks::default(),
            directory,
            scope,
            out: TxQueue::new(Some(epoll)),
            inboxes: Vec::new(),
            services,
            forwarder,
            buf: vec![0; message::LEN + (64 << 10)].into(),
        }
    }

    /// Receives what is forwarded to this endpoint too.
    pub(crate) fn add(&mut self, endpoint: Endpoint) {
        let (address, block) = (endpoint.addr.address, endpoint.block);
        self.own.insert(block);
        self.inboxes.push(Inbox { address, block, socket: endpoint.inbox });
    }

    /// Whether it receives what is forwarded on this address.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.inboxes.iter().any(|inbox| inbox.address == address)
    }

    /// Receives nothing on this address any more.
    pub(crate) fn remove(&mut self, address: IpAddr) {
        self.inboxes.retain(|inbox| inbox.address != address);
    }

    /// The descriptors that become readable when something has been forwarded.
    pub(crate) fn for_each_fd(&self, f: &mut dyn FnMut(&dyn AsFd)) {
        self.sockets().iter().for_each(|socket| f(&**socket));
    }

    /// The sockets of the inboxes, each once.
    fn sockets(&self) -> SmallVec<[Arc<UnixSocket>; 2]> {
        distinct(self.inboxes.iter().filter_map(|inbox| inbox.socket.as_ref()))
    }

    /// Hands over what has been forwarded to this process; how many packets.
    pub(crate) fn collect(
        &mut self,
        counters: &mut Counters,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> usize {
        /// Messages from one inbox before the next one's turn.
        const TURN: usize = 16;
        self.out.try_again();
        let mut packets = 0;
        for socket in self.sockets() {
            for _ in 0..TURN {
                let Ok(Some(received)) = socket.receive(&mut self.buf) else { break };
                let Some(frame) = message::parse(&self.buf[..received.len]) else {
                    counters.rx_unusable += 1;
                    continue;
                };
                let count = frame.payloads().count();
                packets += count;
                counters.rx_packets += count as u64;
                counters.rx_bytes += frame.payload.len() as u64;
                sink(&frame);
            }
        }
        packets
    }

    /// Hands over what is this process's of a frame that has arrived, and forwards the rest.
    pub(crate) fn deliver(&mut self, frame: &Frame<'_>, sink: &mut dyn FnMut(&Frame<'_>)) {
        let own = self.own;
        if frame.net.dst.is_multicast() || frame.payloads().all(|p| own.has(qpn_block(p))) {
            return sink(frame);
        }
        let mut start = 0;
        let blocks: Vec<u8> = frame.payloads().map(qpn_block).collect();
        for chunk in blocks.chunk_by(|a, b| a == b && *a != 0) {
            let bytes = start * frame.segment..(start + chunk.len()) * frame.segment;
            let bytes = bytes.start..bytes.end.min(frame.payload.len());
            let net = frame.net.nth(u16::try_from(start).unwrap_or(0));
            let payload = &frame.payload[bytes];
            let segment = frame.segment.min(payload.len());
            let part = Frame { segment, ..Frame::single(net, payload) };
            let forwarded = match chunk[0] {
                0 => self.forward_mad(&part),
                block => self.forward(&part, block),
            };
            if !forwarded {
                sink(&part);
            }
            start += chunk.len();
        }
    }

    /// Whether a packet to QP1 is not for this process, as far as it can tell, and on its way to another.
    fn forward_mad(&mut self, frame: &Frame<'_>) -> bool {
        match mad::destination(frame.payload) {
            For::Block(block) => self.forward(frame, block),
            For::Service(service) => {
                let address = frame.net.dst;
                if self.services.has(service, address) {
                    return false;
                }
                let own = self.inboxes.iter().find(|inbox| inbox.address == address);
                let Some(Inbox { block, socket: Some(_), .. }) = own else { return false };
                let otherwise = *block;
                self.leave_to_thread(frame, Recipient::Service { service, otherwise })
            }
            For::Listener => {
                if self.is_shared(frame.net.dst) {
                    // If there is no thread, it is lost to the others, as on a wire.
                    let _ = self.leave_to_thread(frame, Recipient::Listeners { but: self.own });
                }
                // It may be this process's.
                false
            }
            For::Anybody => false,
        }
    }

    /// Whether a frame for this block is another process's, and on its way there.
    fn forward(&mut self, frame: &Frame<'_>, block: u8) -> bool {
        if block == 0 || self.own.has(block) {
            return false;
        }
        let addr = ScopedAddr::new(frame.net.dst, self.scope);
        let Some(inbox) = self.directory.inbox(&addr, block) else { return false };
        if !self.directory.in_memory() {
            let own = self.inboxes.iter().find(|inbox| inbox.address == frame.net.dst);
            let Some(Inbox { block: otherwise, .. }) = own else { return false };
            return self.leave_to_thread(frame, Recipient::Block { block, otherwise: *otherwise });
        }
        // The kernel looks the path up, which waits for no disk here.
        may_block_at("sending to a path", &inbox);
        let Ok(inbox) = SocketAddrUnix::new(inbox) else { return false };
        self.out.send(inbox, &message::emit(frame), frame.payload)
    }

    /// Whether other processes may have this address too.
    fn is_shared(&self, address: IpAddr) -> bool {
        self.inboxes.iter().any(|inbox| inbox.address == address && inbox.socket.is_some())
    }

    fn leave_to_thread(&self, frame: &Frame<'_>, to: Recipient) -> bool {
        let addr = ScopedAddr::new(frame.net.dst, self.scope);
        let message = [&message::emit(frame), frame.payload].concat();
        self.forwarder.send(Parcel { addr, to, message })
    }
}
