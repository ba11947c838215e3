//! The shared-memory path between processes, without sockets and with one engine.
//! Packets go through the records of a ring, as with `rxe_net::Shm`. A test can put any packet into
//! the ring.

use rxe_core::engine::Engine;
use rxe_core::mem::{AccessError, Source};
use rxe_core::types::{Qpn, Time};
use rxe_core::wire::{
    Burst, Direct, DropReason, Frame, NetHeader, Opcode, Packet, Placed, TxBatch, icrc,
};
use rxe_net::untrusted::lane::Lane;

/// A shared-memory ring to or from an engine.
#[derive(Debug)]
pub struct SharedMemory {
    lane: Lane,
    /// The number of packets that the ring accepts between two transmissions.
    room: usize,
    /// The packets that the ring still accepts until the next transmission.
    left: usize,
    buf: Vec<u8>,
}

/// How a packet is put into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// As the whole frame that would be on a wire.
    Whole,
    /// Headers and payload apart, without pad and ICRC. A packet whose pad, length or ICRC is wrong
    /// is put in whole, because this form cannot express it.
    Coalesced,
}

impl Default for SharedMemory {
    /// Creates an empty ring. Panics if there are no descriptors or no memory left.
    fn default() -> Self {
        Self::with_room(usize::MAX)
    }
}

impl SharedMemory {
    /// Creates a ring that accepts `room` packets between two transmissions and then reports that
    /// it is full.
    ///
    /// # Panics
    /// If there are no descriptors or no memory left.
    pub fn with_room(room: usize) -> Self {
        let lane = Lane::new().expect("a ring");
        Self { lane, room, left: room, buf: Vec::new() }
    }

    /// Carries packets through the ring to `take`.
    ///
    /// # Panics
    /// If the packets that come out are not as many as were put in.
    pub fn carry<'p>(
        &mut self,
        record: Record,
        packets: impl IntoIterator<Item = (NetHeader, &'p [u8])>,
        take: &mut dyn FnMut(&Frame<'_>),
    ) {
        let mut inside = 0;
        for (net, bytes) in packets {
            if bytes.is_empty() {
                // A whole frame cannot be empty. The packet is put in as empty headers, and into a
                // new ring, whose first record is never empty because it carries the addresses.
                self.take_out(&mut inside, take);
                self.lane = Lane::new().expect("a ring");
            }
            while !self.put(record, &net, bytes) {
                assert!(inside > 0, "an empty ring has room");
                self.take_out(&mut inside, take);
            }
            inside += 1;
        }
        self.take_out(&mut inside, take);
    }

    fn put(&mut self, record: Record, net: &NetHeader, bytes: &[u8]) -> bool {
        let parts = match record {
            Record::Coalesced => parts(net, bytes),
            Record::Whole => None,
        };
        match parts.or(bytes.is_empty().then_some((bytes, bytes))) {
            Some((head, payload)) => {
                let placed = Direct::send(&mut self.lane, net, head, &Source::Bytes(payload), 1);
                assert_ne!(placed, Ok(Placed::Unsupported), "the ring is good");
                placed == Ok(Placed::Sent)
            }
            None => self.lane.push(&Frame::single(*net, bytes)).expect("the ring is good"),
        }
    }

    /// Takes all packets out of the ring.
    fn take_out(&mut self, inside: &mut usize, take: &mut dyn FnMut(&Frame<'_>)) {
        while *inside > 0 {
            let got = self.lane.receive(64, take).expect("the ring is good");
            assert!((1..=*inside).contains(&got), "{got} of {inside} packets came out");
            *inside -= got;
        }
    }

    /// Lets an engine send once, into the ring, and into `batch` if the ring is full.
    /// Calls `look` with each packet from the ring, as it would be on a wire. Returns whether any
    /// packet went through the ring.
    ///
    /// # Errors
    /// The error of `look`.
    ///
    /// # Panics
    /// If `batch` is not empty, or the packets that come out are not as many as were put in.
    pub fn transmit(
        &mut self,
        now: Time,
        engine: &mut Engine,
        batch: &mut TxBatch,
        mut look: impl FnMut(&NetHeader, &[u8]) -> Result<(), String>,
    ) -> Result<bool, String> {
        assert!(batch.is_empty(), "what it holds was sent before");
        self.left = self.room;
        let before = batch.total().0;
        engine.poll_transmit_with(now, batch, Some(self));
        let direct = batch.take_direct();
        let appended: usize = batch.pending().iter().map(Burst::packets).sum();
        let mut inside = batch.total().0 - before - appended as u64;
        let mut looked = Ok(());
        while inside > 0 {
            let Self { lane, buf, .. } = self;
            let got = lane.receive(64, &mut |frame| {
                frame.for_each_whole(buf, &mut |whole| {
                    if looked.is_ok() {
                        looked = look(&whole.net, whole.payload);
                    }
                });
            });
            let got = got.expect("the ring is good") as u64;
            assert!((1..=inside).contains(&got), "{got} of {inside} packets came out");
            inside -= got;
        }
        looked.map(|()| direct)
    }
}

impl Direct for SharedMemory {
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<Placed, AccessError> {
        let Some(left) = self.left.checked_sub(count.into()) else { return Ok(Placed::NoRoom) };
        let placed = Direct::send(&mut self.lane, net, head, payload, count)?;
        if placed == Placed::Sent {
            self.left = left;
        }
        Ok(placed)
    }

    fn max_coalesced(&mut self, net: &NetHeader, dest_qp: Qpn) -> usize {
        self.lane.max_coalesced(net, dest_qp)
    }
}

/// The length of a BTH in bytes.
const BTH: usize = 12;

/// Splits a packet into headers and payload; `None` if that form cannot express the packet.
fn parts<'p>(net: &NetHeader, bytes: &'p [u8]) -> Option<(&'p [u8], &'p [u8])> {
    icrc::check(net, bytes).ok()?;
    let body = &bytes[..bytes.len() - icrc::LEN];
    match Packet::parse(bytes) {
        Ok(packet) => Some((&body[..packet.info().header_len], packet.payload())),
        // A packet with these errors has the same error when it is split.
        Err(DropReason::Truncated | DropReason::BadVersion | DropReason::UnknownOpcode) => {
            let opcode = Opcode(*body.first()?);
            let head = opcode.info().map_or(BTH, |info| info.header_len);
            Some(body.split_at(head.min(body.len())))
        }
        Err(_) => None,
    }
}
