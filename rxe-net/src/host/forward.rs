//! Forwarding of packets that have reached one process of an address and belong to another.
//!
//! Few packets need it. Packets to QP1 reach whichever process polls first. And a receiving
//! interface may merge packets from one sender into one buffer before it selects a socket: if they
//! belong to two processes, one gets both. If an inbox is full, packets wait briefly ([`TxQueue`]).
//! A packet that cannot be forwarded is lost, or left to this process's own engine, which counts
//! it.
//!
//! All this happens under a shard's lock. So work that needs a file is left to a thread
//! ([`Forwarder`]).

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::net::SocketAddrUnix;
use rxe_core::wire::{Frame, qpn_block};
use smallvec::SmallVec;

use super::directory::{Directory, ScopedAddr};
use super::forwarder::{ForwardedMessage, Forwarder, Recipient};
use super::mad::{self, MadRecipient};
use super::message;
use super::services::Services;
use super::tx_queue::TxQueue;
use super::{Blocks, Endpoint};
use crate::counters::Counters;
use rxe_sys::Epoll;
use rxe_sys::may_block_at;
use rxe_sys::unix::{UnixSocket, distinct};

/// Receives packets that other processes forward to this one, and forwards theirs.
pub(crate) struct Forwarding {
    /// The blocks of this process.
    own: Blocks,
    directory: Arc<Directory>,
    scope: u32,
    out: TxQueue,
    inboxes: Vec<Inbox>,
    services: Arc<Services>,
    forwarder: Arc<Forwarder>,
    buf: Box<[u8]>,
}

/// An inbox for packets to this block that have reached another process. Usually all blocks and
/// addresses share one socket.
struct Inbox {
    address: IpAddr,
    block: u8,
    /// `None` if this process has the address for itself.
    socket: Option<Arc<UnixSocket>>,
}

impl Forwarding {
    /// Creates the forwarding for the interface with index `scope`. `epoll` becomes readable when a
    /// waiting packet can be sent.
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

    /// Starts to receive forwarded packets for this endpoint.
    pub(crate) fn add(&mut self, endpoint: Endpoint) {
        let (address, block) = (endpoint.addr.address, endpoint.block);
        self.own.insert(block);
        self.inboxes.push(Inbox { address, block, socket: endpoint.inbox });
    }

    /// Returns whether forwarded packets are received on this address.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        self.inboxes.iter().any(|inbox| inbox.address == address)
    }

    /// Stops receiving forwarded packets on this address.
    pub(crate) fn remove(&mut self, address: IpAddr) {
        self.inboxes.retain(|inbox| inbox.address != address);
    }

    /// Calls `f` with the descriptors that become readable when a packet has been forwarded here.
    pub(crate) fn for_each_fd(&self, f: &mut dyn FnMut(&dyn AsFd)) {
        self.sockets().iter().for_each(|socket| f(&**socket));
    }

    /// Returns the sockets of the inboxes without duplicates.
    fn sockets(&self) -> SmallVec<[Arc<UnixSocket>; 2]> {
        distinct(self.inboxes.iter().filter_map(|inbox| inbox.socket.as_ref()))
    }

    /// Hands packets that others have forwarded to `sink`. Returns the number of packets.
    pub(crate) fn collect(
        &mut self,
        counters: &mut Counters,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> usize {
        /// The number of messages from one inbox before the next inbox's turn.
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

    /// Hands this process's packets of an arrived frame to `sink`, and forwards the others.
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

    /// Forwards a packet to QP1 that belongs to another process. Returns whether it did.
    fn forward_mad(&mut self, frame: &Frame<'_>) -> bool {
        match mad::destination(frame.payload) {
            MadRecipient::Block(block) => self.forward(frame, block),
            MadRecipient::Service(service) => {
                let address = frame.net.dst;
                if self.services.has(service, address) {
                    return false;
                }
                let own = self.inboxes.iter().find(|inbox| inbox.address == address);
                let Some(Inbox { block, socket: Some(_), .. }) = own else { return false };
                let fallback_block = *block;
                self.leave_to_thread(frame, Recipient::Service { service, fallback_block })
            }
            MadRecipient::Listener => {
                if self.is_shared(frame.net.dst) {
                    // Without a thread the other processes lose the packet, as on a wire.
                    let _ = self.leave_to_thread(frame, Recipient::Listeners { except: self.own });
                }
                // This process may be meant too.
                false
            }
            MadRecipient::AnyProcess => false,
        }
    }

    /// Forwards a frame to the process that has this block, if it is another. Returns whether it
    /// did.
    fn forward(&mut self, frame: &Frame<'_>, block: u8) -> bool {
        if block == 0 || self.own.has(block) {
            return false;
        }
        let addr = ScopedAddr::new(frame.net.dst, self.scope);
        let Some(inbox) = self.directory.inbox(&addr, block) else { return false };
        if !self.directory.in_memory() {
            let own = self.inboxes.iter().find(|inbox| inbox.address == frame.net.dst);
            let Some(Inbox { block: fallback_block, .. }) = own else { return false };
            return self.leave_to_thread(
                frame,
                Recipient::Block { block, fallback_block: *fallback_block },
            );
        }
        // The kernel looks the path up, which never waits for a disk in this directory.
        may_block_at("sending to a path", &inbox);
        let Ok(inbox) = SocketAddrUnix::new(inbox) else { return false };
        self.out.send(inbox, &message::emit(frame), frame.payload)
    }

    /// Returns whether other processes may share this address.
    fn is_shared(&self, address: IpAddr) -> bool {
        self.inboxes.iter().any(|inbox| inbox.address == address && inbox.socket.is_some())
    }

    /// Leaves the forwarding to the thread. Returns `false` if there is no thread.
    fn leave_to_thread(&self, frame: &Frame<'_>, to: Recipient) -> bool {
        let addr = ScopedAddr::new(frame.net.dst, self.scope);
        let message = [&message::emit(frame), frame.payload].concat();
        self.forwarder.send(ForwardedMessage { addr, to, message })
    }
}
