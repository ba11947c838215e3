//! Sending: the path of a burst, its ring, and direct packets.

use std::net::IpAddr;

use rxe_core::mem::{AccessError, Source};
use rxe_core::types::Qpn;
use rxe_core::wire::{Direct, Frame, NetHeader, Placed, TxBatch, qpn_block};

use super::link::{DirectSend, MAX_COALESCED, Outgoing, Pushed, SendError};
use super::registered::Registered;
use super::ring::{self, Broken};
use super::{CONTROL, Destination, Route, Shm};
use crate::backend::Backend;
use crate::host::message;
use crate::host::sharing::Sharing;

/// The result of sending a burst that may stay on this host.
pub(super) enum LocalSend {
    /// The burst is sent or lost.
    Done,
    /// The burst goes onto the wire.
    OnWire,
    /// The ring of the burst is full.
    Congested,
}

/// The maximum number of bytes that a device may have sent to itself and not yet received.
const LOOPBACK_CAPACITY: usize = ring::CAPACITY;
/// The number of bursts that go onto the wire before a destination is searched for on this host
/// again.
const SEARCH_AGAIN: u32 = 256;
/// The maximum number of destinations remembered.
const MAX_ROUTES: usize = 4096;
impl<B: Backend + Sharing> Shm<B> {
    /// Returns the route to a destination, and searches for it if necessary.
    fn route(&mut self, to: Destination) -> &mut Route {
        let known = match self.routes.get_mut(&to) {
            Some(Route::Wire(0)) | None => false,
            Some(Route::Wire(left)) => {
                *left -= 1;
                true
            }
            Some(_) => true,
        };
        if !known {
            if self.routes.len() >= MAX_ROUTES {
                self.routes.retain(|_, route| !matches!(route, Route::Wire(_)));
            }
            let route = self.find(to);
            self.routes.insert(to, route);
        }
        self.routes.entry(to).or_insert(Route::Wire(SEARCH_AGAIN))
    }

    /// Searches for a destination on this host, and offers it a ring.
    fn find(&mut self, (address, block): Destination) -> Route {
        // A packet to QP1 is for any process that reads it, and one to a group is for all members.
        if block == 0 || address.is_multicast() {
            return Route::Wire(SEARCH_AGAIN);
        }
        if self.listeners.has((address, block)) {
            return if self.has_wakeups() { Route::Loopback } else { Route::Wire(SEARCH_AGAIN) };
        }
        let path = self.inner.port_groups().and_then(|groups| groups.memory(address, block));
        match path.map_or(Ok(None), |path| Outgoing::open(&path)) {
            Ok(Some(link)) if self.has_wakeups() => {
                match Registered::new(link, &self.epoll, CONTROL) {
                    Ok(link) => {
                        let index = self.rings.iter().position(Option::is_none);
                        let index = index.unwrap_or_else(|| {
                            self.rings.push(None);
                            self.rings.len() - 1
                        });
                        self.rings[index] = Some(link);
                        self.last = None;
                        Route::Ring(index)
                    }
                    Err(_) => Route::Wire(SEARCH_AGAIN),
                }
            }
            _ => Route::Wire(SEARCH_AGAIN),
        }
    }

    /// Sends the first pending burst if it stays on this host.
    pub(super) fn send_here(&mut self, batch: &mut TxBatch) -> LocalSend {
        let burst = batch.pending()[0].clone();
        // The inner backend must refuse a source address that does not belong to this device.
        if !self.listeners.has_address(burst.net.src) {
            return LocalSend::OnWire;
        }
        let bytes = batch.bytes(&burst);
        let frame = Frame { segment: burst.segment.max(1), ..Frame::single(burst.net, bytes) };
        let to = (burst.net.dst, qpn_block(bytes));
        let timeout = self.receiver_timeout;
        let mut ring = None;
        let pushed = match *self.route(to) {
            Route::Wire(_) => return LocalSend::OnWire,
            Route::Ring(index) => {
                ring = Some(index);
                self.rings[index].as_mut().map_or(Err(Broken), |link| link.push(&frame, timeout))
            }
            Route::Loopback => Ok(self.send_to_self(&frame)),
        };
        let packets = frame.payloads().count() as u64;
        match pushed {
            Ok(Pushed::Sent) => {
                ring.into_iter().for_each(|index| self.touch(index));
                self.counters.tx_packets += packets;
                self.counters.tx_bytes += bytes.len() as u64;
            }
            Ok(Pushed::Full) => return LocalSend::Congested,
            Ok(Pushed::Lost) => self.counters.tx_no_buffer += packets,
            Err(Broken) => {
                self.counters.tx_other += packets;
                self.give_up(to);
            }
        }
        batch.mark_sent(1);
        LocalSend::Done
    }

    /// Records that this ring has received packets.
    pub(super) fn touch(&mut self, index: usize) {
        if !self.touched.contains(&index) {
            self.touched.push(index);
        }
    }

    /// Drops the ring to this destination.
    pub(super) fn give_up(&mut self, to: Destination) {
        if let Some(Route::Ring(index)) = self.routes.insert(to, Route::Wire(SEARCH_AGAIN)) {
            self.rings[index] = None;
        }
        self.last = None;
    }

    /// Returns the ring for packets from `src` to this destination, if there is one.
    fn ring_of(&mut self, src: IpAddr, to: Destination) -> Option<usize> {
        match self.last {
            Some((last_src, last_to, ring)) if (last_src, last_to) == (src, to) => ring,
            _ => {
                let ring = match self.listeners.has_address(src).then(|| self.route(to)) {
                    Some(Route::Ring(index)) => Some(*index),
                    _ => None,
                };
                self.last = Some((src, to, ring));
                ring
            }
        }
    }

    /// Sends a direct packet that leaves this host, if the inner backend has a direct path.
    fn send_on_wire(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
    ) -> Result<Placed, AccessError> {
        let Some(wire) = self.inner.direct() else { return Ok(Placed::Unsupported) };
        // A packet to the device itself must not go onto the wire.
        if self.listeners.has((net.dst, qpn_block(head))) {
            return Ok(Placed::Unsupported);
        }
        let placed = wire.send(net, head, payload, 1)?;
        self.unflushed |= placed == Placed::Sent;
        Ok(placed)
    }

    fn send_to_self(&mut self, frame: &Frame<'_>) -> Pushed {
        if self.loopback_bytes + frame.payload.len() > LOOPBACK_CAPACITY {
            return Pushed::Lost;
        }
        self.loopback_bytes += frame.payload.len();
        self.loopback.push_back([&message::emit(frame)[..], frame.payload].concat());
        Pushed::Sent
    }

    /// Returns the number of leading pending bursts that go onto the wire, at least 1.
    pub(super) fn leading_wire_bursts(&mut self, batch: &TxBatch) -> usize {
        let mut count = 1;
        for burst in &batch.pending()[1..] {
            let ours = self.listeners.has_address(burst.net.src);
            let block = qpn_block(batch.bytes(burst));
            if ours && !matches!(self.route((burst.net.dst, block)), Route::Wire(_)) {
                break;
            }
            count += 1;
        }
        count
    }
}

impl<B: Backend + Sharing> Direct for Shm<B> {
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<Placed, AccessError> {
        let to = (net.dst, qpn_block(head));
        let Some(index) = self.ring_of(net.src, to) else {
            if count > 1 {
                return Ok(Placed::Unsupported);
            }
            return self.send_on_wire(net, head, payload);
        };
        let Some(link) = &mut self.rings[index] else { return Ok(Placed::Unsupported) };
        match link.send(net, head, payload, count) {
            Ok(DirectSend::Sent(bytes)) => {
                self.touch(index);
                self.counters.tx_packets += u64::from(count);
                self.counters.tx_bytes += bytes as u64;
                Ok(Placed::Sent)
            }
            Ok(DirectSend::NoRoom) => Ok(Placed::NoRoom),
            Err(SendError::Payload(why)) => Err(why),
            Err(SendError::Broken) => {
                self.give_up(to);
                Ok(Placed::Unsupported)
            }
        }
    }

    fn max_coalesced(&mut self, net: &NetHeader, dest_qp: Qpn) -> usize {
        let ring = self.ring_of(net.src, (net.dst, dest_qp.block()));
        if ring.is_some_and(|index| self.rings[index].is_some()) { MAX_COALESCED } else { 0 }
    }
}
