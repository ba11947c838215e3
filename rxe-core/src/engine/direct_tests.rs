//! Packets that go through memory instead of a batch ([`Direct`]): the same packets, with the same effect.

use crate::mem::{AccessError, Buffer, Source};
use crate::qp::{QpCap, QpType};
use crate::queue::{CompletionOp, SendOp, Status};
use crate::testing::{Pair, Side, attributes};
use crate::types::{Qpn, Time};
use crate::wire::{
    Coalesced, Direct, DropReason, Frame, NetHeader, Packet, Placed, TxBatch, TxLimits, icrc,
};

/// Memory with room for a limited number of records.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) room: usize,
    /// The most bytes of payload in a coalesced segment.
    pub(super) coalesced: usize,
    pub(super) records: Vec<Record>,
}

/// A packet or a coalesced segment.
pub(super) struct Record {
    pub(super) net: NetHeader,
    pub(super) head: Vec<u8>,
    pub(super) payload: Buffer,
    pub(super) count: u16,
}

impl Record {
    pub(super) fn coalesced(&self) -> Coalesced<'_> {
        let payload = self.payload.span(0, self.payload.len() as u64).unwrap();
        Coalesced::of(&self.head, *payload, self.count).unwrap()
    }
}

impl Direct for Lane {
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        source: &Source<'_>,
        count: u16,
    ) -> Result<Placed, AccessError> {
        assert!(count == 1 || source.len() <= self.coalesced);
        if self.records.len() == self.room {
            return Ok(Placed::NoRoom);
        }
        let (net, head, payload) = (*net, head.to_vec(), Buffer::zeroed(source.len()));
        source.write_to(&[payload.span(0, source.len() as u64).unwrap()])?;
        self.records.push(Record { net, head, payload, count });
        Ok(Placed::Sent)
    }

    fn max_coalesced(&mut self, _: &NetHeader, _: Qpn) -> usize {
        self.coalesced
    }
}

/// How packets go through memory: the room, and how long coalesced segments are.
type Road = Option<(usize, usize)>;

/// Carries the packets of one side, through memory as far as there is room. Returns them as on a wire.
fn carry(from: &mut Side, to: &mut Side, road: Road) -> Vec<Vec<u8>> {
    // Without bursts all packets have ID 0, as those in memory.
    let mut batch = TxBatch::new(TxLimits { burst_segments: 1, ..TxLimits::default() });
    let mut lane = Lane::default();
    match road {
        Some((room, coalesced)) => {
            lane = Lane { room, coalesced, ..lane };
            from.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
        }
        None => from.engine.poll_transmit(Time::ZERO, &mut batch),
    }
    assert_eq!(batch.take_direct(), !lane.records.is_empty());
    assert!(!batch.take_direct());
    if road.is_some() {
        assert!(batch.pending().len() <= 1, "one packet finds no room, and no other is made");
        assert_eq!(batch.is_full(), !batch.is_empty());
    }
    let mut all = Vec::new();
    for records in lane.records.chunks(3) {
        let coalesced: Vec<_> = records.iter().map(Record::coalesced).collect();
        let frame = Frame { coalesced: &coalesced, ..Frame::single(records[0].net, &[]) };
        let before = all.len();
        frame.for_each_whole(&mut Vec::new(), &mut |whole| {
            assert_eq!(icrc::check(&whole.net, whole.payload), Ok(()));
            all.push(whole.payload.to_vec());
        });
        assert_eq!(frame.count(), all.len() - before);
        to.engine.handle_frame(Time::ZERO, &frame);
    }
    for frame in batch.frames() {
        all.push(frame.payload.to_vec());
        to.engine.handle_frame(Time::ZERO, &frame);
    }
    all
}

/// Runs one of each operation. Returns all packets, and the memory and completions of both sides.
fn work(service: QpType, road: Road) -> (Vec<Vec<u8>>, impl PartialEq + std::fmt::Debug) {
    let Pair { mut a, mut b, .. } = Pair::of(service, &attributes(), QpCap::default(), false);
    let bytes: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
    a.fill(0, &bytes);
    b.fill(500_000, &bytes);
    b.receive(1, 1, 10_000);
    b.receive(2, 20_000, 0);
    b.receive(3, 30_000, 8);
    a.post(4, SendOp::Send { imm: None }, 3, 9_999);
    a.post(5, SendOp::Write { remote: b.remote(100_001), imm: Some(7) }, 5, 70_001);
    a.post(6, SendOp::Send { imm: None }, 0, 7);
    if service == QpType::Rc {
        a.post(7, SendOp::Read { remote: b.remote(500_003) }, 200_000, 70_000);
        a.post(8, SendOp::FetchAdd { remote: b.remote(600_000), add: 5 }, 300_000, 8);
        a.post(9, SendOp::AtomicWrite { remote: b.remote(600_008) }, 8, 8);
    }
    let mut all = Vec::new();
    loop {
        let there = carry(&mut a, &mut b, road);
        let back = carry(&mut b, &mut a, road);
        if there.is_empty() && back.is_empty() {
            break;
        }
        all.extend(there);
        all.extend(back);
    }
    let completions = |side: &Side| -> Vec<(u64, Status, CompletionOp, u32)> {
        side.completions().iter().map(|c| (c.id, c.status, c.op, c.byte_len)).collect()
    };
    let memory = |side: &Side| side.bytes(0, 700_000);
    assert!(memory(&b)[1..10_000] == bytes[3..10_002], "the SEND has come");
    assert!(memory(&b)[100_001..170_002] == bytes[5..70_006], "the WRITE has come");
    let is_read = memory(&a)[200_000..270_000] == bytes[3..70_003];
    assert_eq!(is_read, service == QpType::Rc);
    assert_eq!(a.engine.counters().sent_pkts, b.engine.counters().rcvd_pkts);
    assert_eq!(a.engine.counters().sent_bytes, b.engine.counters().rcvd_bytes);
    (all, (completions(&a), completions(&b), memory(&a) == memory(&b)))
}

#[test]
fn packets_through_memory_are_those_of_a_wire_and_have_their_effect() {
    for service in [QpType::Rc, QpType::Uc] {
        let (wire, effect) = work(service, None);
        let rooms = [0, 1, 5, usize::MAX];
        let segments = [0, 2047, 2048, 5000, 16 << 10, usize::MAX];
        let roads = rooms.iter().flat_map(|&room| segments.map(|coalesced| (room, coalesced)));
        for road in roads {
            let (packets, same) = work(service, Some(road));
            assert_eq!(same, effect, "{service:?} {road:?}");
            // Acknowledgements coalesce differently, depending on which packets arrive together.
            let requests = |all: &[Vec<u8>]| -> Vec<Vec<u8>> {
                let is_request = |p: &&Vec<u8>| Packet::parse(p).unwrap().info().is_request;
                all.iter().filter(is_request).cloned().collect()
            };
            assert!(requests(&packets) == requests(&wire), "{service:?} {road:?}");
        }
    }
}

/// Returns whether the packets are well-formed for an observer on the way.
fn looks_right(frame: &Frame<'_>) -> bool {
    let mut right = true;
    frame.for_each_whole(&mut Vec::new(), &mut |whole| {
        right &= icrc::check(&whole.net, whole.payload).is_ok();
    });
    right
}

/// Records that another process may write in place of a packet.
#[test]
fn lies_in_the_headers_are_dropped_under_their_reasons() {
    let Pair { mut b, .. } = Pair::new();
    let memory = Buffer::zeroed(5000);
    let coalesced =
        |head: &[u8], len: u64, count| Coalesced::of(head, *memory.span(0, len).unwrap(), count);
    let send = |head: &[u8], len: u64| coalesced(head, len, 1);
    let mut bth = [0; 12];
    bth[0] = 0x04;
    let with = |at: usize, value: u8| {
        let mut bytes = bth;
        bytes[at] = value;
        bytes
    };
    assert!(send(&[0; Coalesced::MAX_HEAD + 1], 0).is_none());
    assert!(coalesced(&bth, 0, 0).is_none());
    let middle = with(0, 0x01);
    for (head, len, count, reason, dropped) in [
        (&bth, 0, 2, DropReason::BadLength, 1),
        (&bth, 256, 2, DropReason::BadLength, 1),
        (&bth, 513, 2, DropReason::BadPad, 1),
        (&bth, 516, 2, DropReason::QpnZero, 2),
        (&middle, 516, 2, DropReason::BadLength, 1),
        (&middle, 1024, 2, DropReason::QpnZero, 2),
        (&middle, 1024, u16::MAX, DropReason::BadLength, 1),
        (&with(0, 0x64), 1024, 2, DropReason::Truncated, 1),
    ] {
        let coalesced = [coalesced(head, len, count).unwrap()];
        let frame = Frame { coalesced: &coalesced, ..Frame::single(NetHeader::default(), &[]) };
        let before = b.engine.counters().dropped(reason);
        b.engine.handle_frame(Time::ZERO, &frame);
        assert_eq!(b.engine.counters().dropped(reason) - before, dropped, "{head:x?} {len}");
        assert_eq!(looks_right(&frame), reason == DropReason::QpnZero, "{head:x?} {len}");
    }
    for (head, len, reason) in [
        (&bth[..11], 0, DropReason::Truncated),
        (&[][..], 0, DropReason::Truncated),
        (&with(0, 0x05)[..], 0, DropReason::Truncated),
        (&[bth.as_slice(), &[0; 4]].concat(), 0, DropReason::BadLength),
        (&with(1, 0x01), 0, DropReason::BadVersion),
        (&with(0, 0xff), 0, DropReason::UnknownOpcode),
        (&with(1, 0x10), 4, DropReason::BadPad),
        (&bth, 3, DropReason::BadPad),
        (&[&with(0, 0x11)[..], &[0; 4]].concat(), 8, DropReason::UnexpectedPayload),
        (&bth, 8, DropReason::QpnZero),
    ] {
        let coalesced = [send(head, len).unwrap()];
        let frame = Frame { coalesced: &coalesced, ..Frame::single(NetHeader::default(), &[]) };
        let before = b.engine.counters().dropped(reason);
        b.engine.handle_frame(Time::ZERO, &frame);
        let dropped = b.engine.counters().dropped(reason) - before;
        assert_eq!(dropped, 1, "{head:x?} {len} {:?}", b.engine.counters());
        assert_eq!(looks_right(&frame), reason == DropReason::QpnZero, "{head:x?} {len}");
    }
}
