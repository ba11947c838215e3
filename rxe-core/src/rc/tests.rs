//! A requester and a responder together, packet by packet.

#![expect(clippy::cast_possible_truncation, reason = "patterns and small sizes")]

mod order;
mod refusals;
mod retries;
mod states;

use std::time::Duration;

use crate::engine::{Event, MemoryRange, ResponderError, RetryCause};
use crate::mem::AccessError;
use crate::qp::{AttrMask, QpAttr, QpCap, QpState};
use crate::queue::{CompletionOp, Immediate, Payload, SendFlags, SendOp, SendRequest, Sge, Status};
use crate::testing::{ALL, BASE, Pair, attributes, causes};
use crate::types::{AckTimeout, Key, Psn, RnrTimer, Time};
use crate::wire::{Aeth, DropReason, NakCode, OpKind, Opcode, Syndrome, TxBatch, TxLimits};

const LONG: Duration = Duration::from_secs(60);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn every_operation_at_every_interesting_size() {
    for len in [0, 1, 3, 4, 1023, 1024, 1025, 2048, 65_536, 500_003] {
        let mut pair = Pair::new();
        let data = pattern(len);
        pair.a.fill(0, &data);
        pair.b.receive(1, 0, len);
        pair.a.post(10, SendOp::Send { imm: None }, 0, len);
        pair.run_until_idle();
        assert_eq!(pair.b.bytes(0, len), data, "SEND of {len}");
        let received = pair.b.completions();
        assert_eq!((received[0].op, received[0].byte_len), (CompletionOp::Recv, len as u32));

        pair.b.fill(0, &vec![0; len]);
        let remote = pair.b.remote(0);
        pair.a.post(11, SendOp::Write { remote, imm: None }, 0, len);
        pair.run_until_idle();
        assert_eq!(pair.b.bytes(0, len), data, "WRITE of {len}");

        pair.b.receive(2, 0, 0);
        pair.a.post(12, SendOp::Write { remote, imm: Some(0xabcd) }, 0, len);
        pair.run_until_idle();
        let received = pair.b.completions();
        assert_eq!(received[0].op, CompletionOp::RecvRdmaWithImm);
        assert_eq!(received[0].imm, Some(Immediate::Data(0xabcd)));
        assert_eq!((received[0].id, received[0].byte_len), (2, len as u32));

        pair.a.fill(0, &vec![0; len]);
        pair.a.post(13, SendOp::Read { remote }, 0, len);
        pair.run_until_idle();
        assert_eq!(pair.a.bytes(0, len), data, "READ of {len}");
        let ids: Vec<_> = [10, 11, 12, 13].map(|id| (id, Status::Success)).into();
        assert_eq!(pair.a.outcomes(), ids, "{len}");
    }
}

#[test]
fn atomics_return_the_value_before() {
    let mut pair = Pair::new();
    pair.b.fill(8, &5u64.to_ne_bytes());
    let remote = pair.b.remote(8);
    pair.a.post(1, SendOp::FetchAdd { remote, add: 3 }, 0, 8);
    pair.a.post(2, SendOp::CompareSwap { remote, compare: 8, swap: 100 }, 8, 8);
    pair.a.post(3, SendOp::CompareSwap { remote, compare: 8, swap: 200 }, 16, 8);
    pair.run_until_idle();
    let word = |offset| u64::from_ne_bytes(pair.a.bytes(offset, 8).try_into().unwrap());
    assert_eq!([word(0), word(8), word(16)], [5, 8, 100]);
    assert_eq!(pair.b.bytes(8, 8), 100u64.to_ne_bytes());
    assert_eq!(pair.a.completions().len(), 3);
}

/// As adapters and kernel `rdma_rxe` do. The attributes from the time of connecting do not count.
#[test]
fn a_query_answers_with_the_psns_of_the_next_packets() {
    let mut pair = Pair::new();
    let psns = |pair: &Pair| {
        [&pair.a, &pair.b].map(|side| {
            let attr = side.engine.query_qp(side.qp.qpn()).unwrap();
            (attr.sq_psn, attr.rq_psn)
        })
    };
    let [(a_sends, a_expects), (b_sends, b_expects)] = psns(&pair);
    assert_eq!((a_sends, b_sends), (b_expects, a_expects));
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 3000);
    pair.run_until_idle();
    let expected = [(a_sends.add(3), a_expects), (b_sends, b_expects.add(3))];
    assert_eq!(psns(&pair), expected);
    for side in [&mut pair.a, &mut pair.b] {
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        side.engine.modify_qp(Time::ZERO, side.qp.qpn(), &attr, AttrMask::STATE).unwrap();
    }
    assert_eq!(psns(&pair), expected, "in the error state too");
}

#[test]
fn one_acknowledgement_answers_a_burst() {
    let mut pair = Pair::new();
    for id in 0..20 {
        pair.b.receive(id, 0, 100);
        pair.a.post(id, SendOp::Send { imm: None }, 0, 64);
    }
    pair.run_until_idle();
    assert_eq!(pair.a.completions().len(), 20);
    assert_eq!(pair.opcodes(false), [Opcode::RC_ACKNOWLEDGE]);
    let asks = |sent: &crate::testing::Sent| sent.packet().ack_req();
    let asking: Vec<_> = pair.log.iter().filter(|sent| sent.forward).map(asks).collect();
    assert_eq!(asking, [[false; 19].as_slice(), &[true]].concat());
}

/// Each response has the number of complete messages (MSN). IBTA 9.7.5.1.4.
#[test]
fn every_operation_counts_as_one_message() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    for (n, op) in (1..).zip([
        SendOp::Send { imm: None },
        SendOp::Write { remote, imm: None },
        SendOp::Write { remote, imm: Some(1) },
        SendOp::Read { remote },
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 0 },
        SendOp::AtomicWrite { remote },
        SendOp::Write { remote, imm: None },
    ]) {
        pair.b.receive(1, 0, 3000);
        let len = if op.is_atomic() || matches!(op, SendOp::AtomicWrite { .. }) { 8 } else { 3000 };
        pair.a.post(n, op, 0, len);
        pair.run_until_idle();
        let sent = pair.log.drain(..).rfind(|sent| !sent.forward).unwrap();
        assert_eq!(sent.packet().aeth(), Some(Aeth::ack(u32::try_from(n).unwrap())), "{op:?}");
        assert_eq!(pair.b.engine.qp_msn(pair.b.qp.qpn()), sent.packet().aeth().map(|a| a.msn));
    }
}

#[test]
fn every_32nd_packet_of_a_long_message_and_the_last_ask_for_an_acknowledgement() {
    let mut pair = Pair::new();
    let op = SendOp::Write { remote: pair.b.remote(0), imm: None };
    pair.a.post(1, op, 0, 100 * 1024);
    pair.run_until_idle();
    let packets = pair.log.iter().filter(|sent| sent.forward).enumerate();
    let asking: Vec<_> = packets.filter(|(_, s)| s.packet().ack_req()).map(|(at, _)| at).collect();
    assert_eq!(asking, [31, 63, 95, 99]);
}

#[test]
fn a_packet_asks_for_an_acknowledgement_if_the_next_request_has_to_wait() {
    let attr = QpAttr { max_rd_atomic: 1, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let remote = pair.b.remote(0);
    let (read, write) = (SendOp::Read { remote }, SendOp::Write { remote, imm: None });
    // The last requests wait for the READ's data: because of the READ limit or a fence.
    for (last, flags) in [(read, SendFlags::SIGNALED), (write, SendFlags::FENCE)] {
        pair.a.post(1, read, 0, 8);
        pair.a.post(2, write, 0, 8);
        pair.a.post_with(3, last, 0, 8, flags);
        pair.run_until_idle();
        let sent: Vec<_> = pair.log.drain(..).filter(|sent| sent.forward).collect();
        assert_eq!(sent.len(), 3, "each is sent once");
        let asking: Vec<_> = sent.iter().map(|sent| sent.packet().ack_req()).collect();
        // A READ is answered anyway.
        assert_eq!(asking, [false, true, !last.is_answered()]);
    }
}

#[test]
fn a_packet_asks_for_an_acknowledgement_if_the_next_request_sends_nothing() {
    let of =
        |op, sges: &[Sge]| SendRequest::new(2, op, Payload::Sges(sges.iter().copied().collect()));
    let local = |op| of(op, &[]);
    let unknown = Sge { addr: 0, length: 8, lkey: Key::new(1) };
    for (next, status) in [
        (local(SendOp::Fail { status: Status::Success }), Status::Success),
        (local(SendOp::LocalInvalidate { key: Key::new(1) }), Status::LocalQpOperation),
        (of(SendOp::Send { imm: None }, &[unknown]), Status::LocalProtection),
    ] {
        let mut pair = Pair::new();
        pair.a.post(1, SendOp::Write { remote: pair.b.remote(0), imm: None }, 0, 3000);
        pair.a.qp.post_send(next).unwrap();
        deliver_only(&mut pair);
        pair.run_until_idle();
        assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, status)]);
        assert_eq!(pair.a.engine.counters().sent_pkts, 3, "{status:?}: each is sent once");
    }
}

#[test]
fn unsignalled_requests_make_no_completion_but_free_their_place() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    for round in 0..4 {
        for id in 0..128 {
            let op = SendOp::Write { remote, imm: None };
            pair.a.post_with(id, op, 0, 8, SendFlags::empty());
        }
        pair.run_until_idle();
        assert_eq!(pair.a.qp.sends_outstanding(), 0, "round {round}");
    }
    assert!(pair.a.completions().is_empty());
}

/// Loses the packets whose number is in `lost`. Packets of both directions are counted together.
fn lose(pair: &mut Pair, lost: &'static [usize]) {
    let mut n = 0;
    pair.fate = Box::new(move |_| {
        n += 1;
        usize::from(!lost.contains(&(n - 1)))
    });
}

fn is_nak(sent: &crate::testing::Sent) -> bool {
    matches!(sent.packet().aeth().map(|a| a.syndrome), Some(Syndrome::Nak(_)))
}

#[test]
fn a_read_waits_until_its_response_fits_into_the_window() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let is_read = |sent: &crate::testing::Sent| sent.packet().info().kind == OpKind::ReadRequest;
    // 200 of 256 packets are not acknowledged, so there is no room for 100 more.
    pair.fate = Box::new(|sent| usize::from(sent.forward));
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 200 * 1024);
    pair.a.post(2, SendOp::Read { remote }, 0, 100 * 1024);
    pair.run_until_idle();
    assert!(!pair.log.iter().any(is_read));
    pair.fate = Box::new(|_| 1);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::Success)]);
    assert!(pair.log.iter().any(is_read));
}

#[test]
fn a_fence_waits_for_reads() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.b.fill(0, b"before");
    pair.a.fill(100, b"after!");
    pair.a.post(1, SendOp::Read { remote }, 0, 6);
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    pair.a.post_with(2, SendOp::Write { remote, imm: None }, 100, 6, fenced);
    let mut answered = false;
    pair.fate = Box::new(move |sent| {
        match sent.packet().info().kind {
            OpKind::ReadResponse => answered = true,
            OpKind::Write => assert!(answered, "the WRITE left before the READ was answered"),
            _ => {}
        }
        1
    });
    pair.run_until_idle();
    assert_eq!(pair.a.completions().len(), 2);
    assert_eq!(pair.a.bytes(0, 6), b"before");
}

#[test]
fn no_more_reads_are_outstanding_than_allowed() {
    let attr = QpAttr { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let remote = pair.b.remote(0);
    for id in 0..50 {
        pair.a.post(id, SendOp::FetchAdd { remote, add: 1 }, 64, 8);
    }
    let mut outstanding = 0;
    pair.fate = Box::new(move |sent| {
        match sent.packet().info().kind {
            OpKind::FetchAdd => outstanding += 1,
            OpKind::AtomicAcknowledge => outstanding -= 1,
            _ => {}
        }
        assert!(outstanding <= 2, "{outstanding}");
        1
    });
    pair.run_until_idle();
    assert_eq!(pair.a.completions().len(), 50);
    assert_eq!(pair.b.bytes(0, 8), 50u64.to_ne_bytes());
}

#[test]
fn a_read_without_a_place_for_reads_fails_at_once() {
    let attr = QpAttr { max_rd_atomic: 0, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    pair.a.post(0, SendOp::Write { remote: pair.b.remote(0), imm: None }, 0, 8);
    pair.a.post(1, SendOp::Read { remote: pair.b.remote(0) }, 0, 8);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(0, Status::Success), (1, Status::LocalQpOperation)]);
}

/// A program may change the number in SQD, behind which requests wait.
#[test]
fn the_place_for_reads_counts_that_there_is_when_a_read_begins() {
    let (none, some) = (QpAttr { max_rd_atomic: 0, ..attributes() }, attributes());
    for (before, after, expected) in
        [(none, some, Status::Success), (some, none, Status::LocalQpOperation)]
    {
        let mut pair = Pair::with(&before, QpCap::default());
        let remote = pair.b.remote(0);
        pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 8);
        pair.a.post(2, SendOp::Read { remote }, 0, 8);
        // The first request fills the batch. The second was taken to decide whether the first must ask for
        // an acknowledgement.
        let mut batch = TxBatch::new(TxLimits { batch_bytes: 1, ..pair.limits });
        pair.a.engine.poll_transmit(Time::ZERO, &mut batch);
        let sqd = QpAttr { qp_state: QpState::Sqd, ..after };
        pair.a.modify(Time::ZERO, &sqd, AttrMask::STATE);
        pair.run(LONG);
        assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
        pair.a.modify(Time::ZERO, &sqd, AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC);
        let rts = QpAttr { qp_state: QpState::Rts, ..after };
        pair.a.modify(Time::ZERO, &rts, AttrMask::STATE);
        pair.run_until_idle();
        assert_eq!(pair.a.outcomes(), [(2, expected)]);
    }
}

#[test]
fn long_reads_are_asked_for_in_pieces() {
    let mut pair = Pair::new();
    let len = 1 << 19;
    pair.b.fill(0, &pattern(len));
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 0, len);
    pair.run_until_idle();
    assert_eq!(pair.a.bytes(0, len), pattern(len));
    assert_eq!(pair.opcodes(true).len(), 4, "128 packets of 1024 bytes each");
}

#[test]
fn a_shared_queue_serves_its_queue_pairs_and_tells_its_limit() {
    let mut pair = Pair::of(crate::qp::QpType::Rc, &attributes(), QpCap::default(), true);
    let srq = pair.b.qp.init().srq.clone().unwrap();
    for id in 0..4 {
        pair.b.receive(id, 0, 100);
    }
    srq.set_limit(3).unwrap();
    for id in 0..3 {
        pair.a.post(id, SendOp::Send { imm: None }, 0, 100);
    }
    pair.run_until_idle();
    let expected: Vec<_> = (0..3).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.b.outcomes(), expected);
    let limit = Event::SrqLimitReached { srq: srq.number() };
    assert_eq!(pair.b.events().iter().filter(|&&e| e == limit).count(), 1);
    let (qpn, now) = (pair.b.qp.qpn(), pair.now);
    pair.b.modify(now, &QpAttr { qp_state: QpState::Err, ..attributes() }, AttrMask::STATE);
    assert!(pair.b.completions().is_empty(), "the shared queue's receives stay");
    assert!(pair.b.events().contains(&Event::LastWqeReached { qpn }));
    assert_eq!(srq.len(), 1);
}

#[test]
fn an_empty_datagram_is_counted_as_truncated() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    let empty = crate::testing::Sent { bytes: Vec::new(), ..pair.log[0].clone() };
    let before = pair.b.engine.counters().rcvd_pkts;
    pair.inject(&empty);
    let counters = pair.b.engine.counters();
    assert_eq!((counters.rcvd_pkts, counters.dropped(DropReason::Truncated)), (before + 1, 1));
}

/// The packets that b sent since log entry `from`: their kinds, and syndromes if they have one.
fn responses(pair: &Pair, from: usize) -> Vec<(OpKind, Option<Syndrome>)> {
    let sent = pair.log[from..].iter().filter(|sent| !sent.forward);
    sent.map(|sent| (sent.packet().info().kind, sent.packet().aeth().map(|a| a.syndrome))).collect()
}

/// Delivers a's packets to b, and none of b's to a.
fn deliver_only(pair: &mut Pair) {
    let mut batch = crate::wire::TxBatch::new(crate::wire::TxLimits::default());
    pair.a.engine.poll_transmit(pair.now, &mut batch);
    for frame in batch.frames() {
        pair.b.engine.handle_frame(pair.now, &frame);
    }
}

/// Delivers packets of a to b in this order. Both may answer after each.
fn inject_in_order(pair: &mut Pair, packets: &[crate::testing::Sent], order: &[usize]) {
    for &at in order {
        let packet = packets[at].clone();
        pair.inject(&packet);
    }
    pair.run_until_idle();
}

/// Packets that a sends, with one call for each, so that each asks for an acknowledgement.
fn sent_one_by_one(pair: &mut Pair, ops: &[SendOp]) -> Vec<crate::testing::Sent> {
    pair.fate = Box::new(|_| 0);
    for (id, &op) in (0..).zip(ops) {
        pair.a.post(id, op, 64, 8);
        pair.run_until_idle();
    }
    pair.fate = Box::new(|_| 1);
    std::mem::take(&mut pair.log)
}
