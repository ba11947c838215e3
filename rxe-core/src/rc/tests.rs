//! A requester and a responder together, packet by packet.

#![expect(clippy::cast_possible_truncation, reason = "patterns and small sizes")]

use std::time::Duration;

use proptest::prelude::*;

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

/// As adapters and kernel rxe do, and not with those that the queue pair was connected with.
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

/// Responses say how many messages are complete. IBTA 9.7.5.1.4.
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
    // The last ones wait for the READ's data: for the limit of READs, or for a fence.
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

#[test]
fn a_lost_packet_is_reported_by_one_nak_and_sent_again() {
    let mut pair = Pair::new();
    lose(&mut pair, &[2]);
    pair.a.fill(0, &pattern(10_000));
    pair.b.receive(1, 0, 10_000);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10_000);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)], "without waiting for a timeout");
    assert_eq!(pair.b.bytes(0, 10_000), pattern(10_000));
    let naks = pair.log.iter().filter(|s| !s.forward && is_nak(s)).count();
    assert_eq!(naks, 1);
    let causes = causes(&pair.a.events());
    assert_eq!(causes, [RetryCause::SequenceNak]);
}

fn is_nak(sent: &crate::testing::Sent) -> bool {
    matches!(sent.packet().aeth().map(|a| a.syndrome), Some(Syndrome::Nak(_)))
}

#[test]
fn a_lost_acknowledgement_costs_a_timeout_and_changes_nothing() {
    let mut pair = Pair::new();
    let mut first = true;
    pair.fate = Box::new(move |sent| usize::from(sent.forward || !std::mem::take(&mut first)));
    pair.b.receive(1, 0, 10);
    pair.b.receive(2, 0, 10);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert_eq!(pair.b.outcomes(), [(1, Status::Success)], "the duplicate took no receive");
    assert_eq!(causes(&pair.a.events()), [RetryCause::Timeout]);
}

#[test]
fn a_round_trip_timeout_does_not_close_the_window_of_reads() {
    let mut pair = Pair::new();
    let op = SendOp::Read { remote: pair.b.remote(0) };
    // Round trips are measured after the first loss.
    lose(&mut pair, &[0]);
    pair.a.post(0, op, 0, 8);
    pair.run(LONG);
    pair.a.post(1, op, 0, 8);
    pair.run_until_idle();
    assert_eq!(causes(&pair.a.events()), [RetryCause::Timeout]);
    pair.log.clear();
    pair.fate = Box::new(|sent| usize::from(sent.forward));
    (2..5).for_each(|id| pair.a.post(id, op, 0, 8));
    pair.run(Duration::from_micros(1500));
    assert_eq!(causes(&pair.a.events()), [RetryCause::RoundTripTimeout]);
    assert_eq!(pair.opcodes(true), [Opcode::RC_READ_REQUEST; 3 + 3], "all are asked for again");
}

/// Without a measurement the first wait is one of 5 ms, and after one it is of 1 ms.
#[test]
fn the_first_response_to_a_read_is_timed_but_none_to_what_was_sent_twice() {
    let timeout = AckTimeout::new(14).unwrap();
    let attr = QpAttr { timeout, ..attributes() };
    for (arrive, timed) in [(0, false), (1, true)] {
        let mut pair = Pair::with(&attr, QpCap::default());
        let read = SendOp::Read { remote: pair.b.remote(0) };
        lose(&mut pair, &[0]);
        pair.a.post(1, read, 0, 8);
        pair.run(LONG);
        assert_eq!(causes(&pair.a.events()), [RetryCause::Timeout]);
        let mut left = arrive;
        pair.fate = Box::new(move |sent| {
            let arrives = sent.forward || left > 0;
            left -= usize::from(!sent.forward && arrives);
            usize::from(arrives)
        });
        pair.a.post(2, read, 0, 2 * 1024);
        pair.run(Duration::from_millis(4));
        let expected = if timed { vec![RetryCause::RoundTripTimeout] } else { vec![] };
        assert_eq!(causes(&pair.a.events()), expected, "{arrive} responses");
    }
}

#[test]
fn a_round_trip_timeout_without_loss_leaves_the_window_as_it_was() {
    for lost in [false, true] {
        let mut pair = Pair::new();
        let write = SendOp::Write { remote: pair.b.remote(0), imm: None };
        lose(&mut pair, &[0]);
        pair.a.post(1, write, 0, 8);
        pair.run(LONG);
        pair.a.post(2, write, 0, 8);
        pair.run_until_idle();
        pair.a.events();
        // The window is whole again.
        pair.a.post(2, write, 0, 500 * 1024);
        pair.run_until_idle();
        pair.a.events();
        // The responses to 20 packets are late, or the packets were lost.
        pair.fate = Box::new(move |sent| usize::from(sent.forward && !lost));
        pair.a.post(3, write, 0, 20 * 1024);
        pair.run(Duration::from_micros(1500));
        assert_eq!(causes(&pair.a.events()), [RetryCause::RoundTripTimeout]);
        pair.fate = Box::new(|_| 1);
        pair.run(Duration::from_micros(4500));
        pair.log.clear();
        pair.fate = Box::new(|_| 0);
        pair.a.post(4, write, 0, 200 * 1024);
        pair.run_until_idle();
        let sent = pair.opcodes(true).len();
        assert_eq!(sent > 150, !lost, "{sent} packets at once");
    }
}

#[test]
fn a_lost_read_response_is_asked_for_from_where_it_is_missing() {
    let mut pair = Pair::new();
    lose(&mut pair, &[4]);
    pair.b.fill(0, &pattern(8 * 1024));
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 0, 8 * 1024);
    pair.run(LONG);
    assert_eq!(pair.a.bytes(0, 8 * 1024), pattern(8 * 1024));
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    let requests: Vec<_> =
        pair.log.iter().filter(|s| s.forward).filter_map(|s| s.packet().reth()).collect();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[1].va, requests[1].dma_len), (BASE + 3 * 1024, 5 * 1024));
}

#[test]
fn a_duplicate_atomic_is_answered_from_memory_of_it() {
    let mut pair = Pair::new();
    lose(&mut pair, &[1]);
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::FetchAdd { remote, add: 1 }, 8, 8);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert_eq!(pair.b.bytes(0, 8), 1u64.to_ne_bytes(), "added once");
    assert_eq!(pair.a.bytes(8, 8), 0u64.to_ne_bytes());
    assert_eq!(pair.b.engine.counters().duplicate_request, 1);
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
fn an_answer_that_skips_a_read_starts_one_retry() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    // The READ's response is lost. The WRITEs behind it are acknowledged.
    let mut lost = false;
    pair.fate = Box::new(move |sent| {
        let is_data = sent.packet().info().kind == OpKind::ReadResponse;
        let loses = is_data && !lost;
        lost |= loses;
        usize::from(!loses)
    });
    pair.a.post(1, SendOp::Read { remote }, 0, 100);
    for id in 2..10 {
        pair.a.post(id, SendOp::Write { remote, imm: None }, 0, 10);
    }
    pair.run_until_idle();
    let expected: Vec<_> = (1..10).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.a.outcomes(), expected);
    assert_eq!(causes(&pair.a.events()), [RetryCause::ImpliedNak]);
}

#[test]
fn answers_that_skip_the_same_read_again_start_no_further_retry() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    // The READ's response is lost twice, and the WRITE is acknowledged twice.
    let mut lost = 0;
    pair.fate = Box::new(move |sent| {
        let loses = sent.packet().info().kind == OpKind::ReadResponse && lost < 2;
        lost += usize::from(loses);
        usize::from(!loses)
    });
    pair.a.post(1, SendOp::Read { remote }, 0, 100);
    pair.a.post(2, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    assert_eq!(causes(&pair.a.events()), [RetryCause::ImpliedNak]);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn without_a_receive_the_sender_waits_and_tries_again() {
    let mut pair = Pair::new();
    pair.a.post(1, SendOp::Send { imm: None }, 0, 3000);
    pair.run_until_idle();
    assert!(pair.a.completions().is_empty());
    assert_eq!(pair.opcodes(false), [Opcode::RC_ACKNOWLEDGE], "one RNR NAK, the rest is dropped");
    pair.b.receive(7, 0, 3000);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert_eq!(pair.b.outcomes(), [(7, Status::Success)]);
}

#[test]
fn rnr_retries_are_counted() {
    let attr = QpAttr { rnr_retry: 3, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.a.post(2, SendOp::Send { imm: None }, 0, 10);
    pair.run(LONG);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.a.outcomes(), [(1, Status::RnrRetryExceeded), (2, flushed)]);
    assert_eq!(pair.a.qp.state(), QpState::Err);
    assert_eq!(pair.b.qp.state(), QpState::Rts, "the receiver has done nothing wrong");
    let rnr_naks = pair.b.engine.counters().send_rnr_err;
    assert_eq!(rnr_naks, 4, "the first and three retries");
}

/// The network may make copies of a response.
#[test]
fn a_copy_of_a_refusal_is_no_further_one() {
    let attr = QpAttr { rnr_retry: 1, retry_cnt: 1, ..attributes() };
    for missing in [RetryCause::ReceiverNotReady, RetryCause::SequenceNak] {
        let mut pair = Pair::with(&attr, QpCap::default());
        let mut sent = 0;
        pair.fate = Box::new(move |packet| {
            sent += usize::from(packet.forward);
            let lost = packet.forward && sent == 2 && missing == RetryCause::SequenceNak;
            if lost { 0 } else { 1 + 2 * usize::from(!packet.forward) }
        });
        if missing == RetryCause::SequenceNak {
            pair.b.receive(1, 0, 3000);
        }
        pair.a.post(1, SendOp::Send { imm: None }, 0, 3000);
        pair.run_until_idle();
        if missing == RetryCause::ReceiverNotReady {
            pair.b.receive(1, 0, 3000);
        }
        pair.run(LONG);
        assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
        assert_eq!(causes(&pair.a.events()), [missing]);
    }
}

#[test]
fn a_requester_that_answers_during_its_pause_goes_on_after_it() {
    let mut pair = Pair::new();
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run_until_idle();
    pair.b.post(2, SendOp::Write { remote: pair.a.remote(0), imm: None }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.b.outcomes(), [(2, Status::Success)]);
    pair.b.receive(3, 0, 10);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
}

#[test]
fn retries_are_counted_anew_for_each_message() {
    let mut pair = Pair::with(&QpAttr { retry_cnt: 1, ..attributes() }, QpCap::default());
    let write = SendOp::Write { remote: pair.b.remote(0), imm: None };
    for id in 0..3 {
        lose(&mut pair, &[0]);
        pair.a.post(id, write, 0, 10);
        pair.run(LONG);
        assert_eq!(pair.a.outcomes(), [(id, Status::Success)]);
    }
}

#[test]
fn rnr_retries_are_counted_anew_for_each_message() {
    let attr = QpAttr { rnr_retry: 1, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    for id in 0..3 {
        pair.a.post(id, SendOp::Send { imm: None }, 0, 10);
        pair.run_until_idle();
        pair.b.receive(id, 0, 10);
        pair.run(LONG);
        assert_eq!(pair.a.outcomes(), [(id, Status::Success)]);
    }
    assert_eq!(pair.b.engine.counters().send_rnr_err, 3);
}

#[test]
fn a_peer_that_vanishes_exhausts_the_retries() {
    let mut pair = Pair::new();
    pair.fate = Box::new(|_| 0);
    pair.a.receive(5, 0, 10);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.a.post(2, SendOp::Send { imm: None }, 0, 10);
    pair.run(LONG);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.a.outcomes(), [(1, Status::RetryExceeded), (2, flushed), (5, flushed)]);
    let tries = pair.opcodes(true).len();
    assert_eq!(tries, 2 + 7, "both packets, then the first of them seven times");
}

#[test]
fn remote_access_errors_reach_both_sides() {
    let good = |pair: &Pair| pair.b.remote(0);
    type Change = fn(&mut crate::queue::Remote);
    let cases: [(&str, Change); 3] = [
        ("wrong rkey", |r| r.rkey = Key::new(r.rkey.value() ^ 1)),
        ("below", |r| r.addr = BASE - 1),
        ("beyond", |r| r.addr = BASE + crate::testing::MEMORY as u64 - 99),
    ];
    for (what, change) in cases {
        for read in [false, true] {
            let mut pair = Pair::new();
            let mut remote = good(&pair);
            change(&mut remote);
            let op =
                if read { SendOp::Read { remote } } else { SendOp::Write { remote, imm: None } };
            pair.a.fill(0, &pattern(100));
            pair.b.receive(9, 0, 10);
            pair.a.post(1, op, 0, 100);
            pair.a.post(2, op, 0, 100);
            pair.run_until_idle();
            let flushed = Status::WorkRequestFlushed;
            let expected = [(1, Status::RemoteAccess), (2, flushed)];
            assert_eq!(pair.a.outcomes(), expected, "{what}, read: {read}");
            assert_eq!(pair.b.qp.state(), QpState::Err);
            assert_eq!(pair.b.outcomes(), [(9, flushed)]);
            let events = pair.b.events();
            assert!(events.iter().any(|e| matches!(
                e,
                Event::NakSent { error: ResponderError::RemoteAccess(_), .. }
            )));
            // The events of both ends name the memory.
            let range = MemoryRange { addr: remote.addr, len: 100, key: remote.rkey };
            let refused = |e: &Event| match e {
                Event::ResponderFailed { asked, .. } => *asked == Some(range),
                _ => false,
            };
            assert!(events.iter().any(refused), "{what}, read: {read}: {events:?}");
            let peer = pair.b.qp.qpn();
            let failed = |e: &Event| match e {
                Event::RequestFailed { request, .. } => {
                    request.range == Some(range) && request.answered && request.peer_qp == peer
                }
                _ => false,
            };
            let events = pair.a.events();
            assert!(events.iter().any(failed), "{what}, read: {read}: {events:?}");
        }
    }
}

#[test]
fn an_operation_that_the_qp_does_not_enable_is_an_invalid_request() {
    let attr = QpAttr { qp_access_flags: crate::mem::Access::empty(), ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 0, 8);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
}

#[test]
fn a_message_longer_than_its_receive_is_a_length_error() {
    let mut pair = Pair::new();
    pair.b.receive(9, 0, 2000);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 2001);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.b.outcomes(), [(9, Status::LocalLength)]);
}

#[test]
fn a_bad_local_buffer_fails_in_its_turn() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let op = SendOp::Write { remote, imm: None };
    pair.a.post(1, op, 0, 5000);
    pair.a.post(2, op, crate::testing::MEMORY as u64 - 5, 10);
    pair.a.post(3, op, 0, 10);
    pair.run_until_idle();
    let expected =
        [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WorkRequestFlushed)];
    assert_eq!(pair.a.outcomes(), expected);
    let told = |e: &Event| match e {
        Event::RequestFailed { detail, request, .. } => {
            let range = request.range.map(|range| (range.addr, range.len));
            let end = BASE + crate::testing::MEMORY as u64;
            *detail == Some(AccessError::OutOfBounds) && range == Some((end - 5, 10))
        }
        _ => false,
    };
    let events = pair.a.events();
    assert!(events.iter().any(told), "{events:?}");
}

#[test]
fn a_request_whose_follower_fails_is_acknowledged_nevertheless() {
    let attr = QpAttr { retry_cnt: 0, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let buffer = crate::mem::Buffer::zeroed(100);
    let memory = pair.a.memory.clone();
    let lkey = memory.register(crate::testing::PD, buffer, 0, ALL, || 0x7700).unwrap();
    let remote = pair.b.remote(0);
    // No receive is posted yet, so both are sent again later. By then the region of the second is
    // deregistered.
    pair.a.post(1, SendOp::Write { remote, imm: Some(7) }, 0, 5000);
    let sges = [Sge { addr: 0, length: 100, lkey }].into_iter().collect();
    let (payload, flags) = (Payload::Sges(sges), SendFlags::SIGNALED);
    let op = SendOp::Write { remote, imm: None };
    let request = SendRequest { id: 2, op, payload, flags, to: None, xrc_srq: None };
    pair.a.qp.post_send(request).unwrap();
    pair.run_until_idle();
    memory.deregister(lkey);
    pair.b.receive(3, 0, 0);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::LocalProtection)]);
    assert_eq!(causes(&pair.a.events()), [RetryCause::ReceiverNotReady]);
}

#[test]
fn a_bad_receive_buffer_is_the_receivers_fault() {
    let mut pair = Pair::new();
    pair.b.receive(1, crate::testing::MEMORY as u64 - 5, 10);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteOperation)]);
    assert_eq!(pair.b.outcomes(), [(1, Status::LocalProtection)]);
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
fn a_requester_that_ignores_the_read_limit_is_refused() {
    let attr = QpAttr { max_rd_atomic: 8, max_dest_rd_atomic: 2, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let remote = pair.b.remote(0);
    for id in 0..8 {
        pair.a.post(id, SendOp::Read { remote }, 64, 8);
    }
    pair.run_until_idle();
    let bad = pair.a.outcomes().iter().filter(|o| o.1 == Status::RemoteInvalidRequest).count();
    assert_eq!(bad, 1);
}

#[test]
fn copies_of_reads_answered_long_ago_do_not_count_as_outstanding() {
    let attr = QpAttr { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 64, 8);
    pair.run_until_idle();
    // The network delayed a copy; it arrives together with the next request.
    let copy = pair.log[0].clone();
    pair.inject(&copy);
    pair.a.post(2, SendOp::Read { remote }, 64, 8);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(causes(&pair.a.events()), []);
}

#[test]
fn a_copy_of_a_read_does_not_cost_later_ones_their_answers() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 64, 8);
    pair.run_until_idle();
    let copy = pair.log[0].clone();
    // A copy of the first request arrives when the next request is there and not yet answered.
    let at = pair.log.len();
    pair.fate = Box::new(|sent| usize::from(!sent.forward));
    pair.a.post(2, SendOp::FetchAdd { remote, add: 1 }, 64, 8);
    pair.run_until_idle();
    let next = pair.log[at].clone();
    pair.inject(&next);
    pair.inject(&copy);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn however_often_a_peer_asks_again_answers_are_bounded() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 0, 100 * 1024);
    pair.run_until_idle();
    let request = pair.log[0].clone();
    let before = pair.log.len();
    // Each asks for one packet, so that no response replaces another.
    for i in 0..100 {
        let mut repr = request.packet().to_repr();
        repr.bth.psn = repr.bth.psn.add(i);
        let reth = repr.ext.reth.as_mut().unwrap();
        reth.va += u64::from(i) * 1024;
        reth.dma_len = 1024;
        let mut bytes = Vec::new();
        crate::wire::emit::repr(&request.net, &mut bytes, &repr);
        pair.inject(&crate::testing::Sent { bytes, ..request.clone() });
    }
    pair.run_until_idle();
    assert_eq!(pair.log.len() - before, usize::from(attributes().max_dest_rd_atomic));
    assert_eq!(pair.b.engine.counters().dropped(DropReason::NoRoom), 96);
}

#[test]
fn duplicated_packets_change_nothing() {
    let mut pair = Pair::new();
    pair.fate = Box::new(|_| 3);
    let remote = pair.b.remote(0);
    for id in 0..10 {
        pair.b.receive(id, 4096, 3000);
        pair.a.post(id, SendOp::FetchAdd { remote, add: 1 }, 64, 8);
        pair.a.post(100 + id, SendOp::Send { imm: None }, 0, 3000);
    }
    pair.run(LONG);
    assert_eq!(pair.a.completions().len(), 20);
    assert_eq!(pair.b.completions().len(), 10);
    assert_eq!(pair.b.bytes(0, 8), 10u64.to_ne_bytes());
}

#[test]
fn sqd_finishes_what_has_begun_and_begins_nothing() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let op = SendOp::Write { remote, imm: None };
    pair.fate = Box::new(|_| 0);
    pair.a.post(1, op, 0, 100);
    pair.run_until_idle();
    let (qpn, now) = (pair.a.qp.qpn(), pair.now);
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..attributes() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    pair.a.modify(now, &attr, mask);
    pair.a.post(2, op, 0, 100);
    assert!(!pair.a.events().contains(&Event::SqDrained { qpn }));
    assert!(pair.a.engine.query_qp(qpn).unwrap().sq_draining);
    pair.fate = Box::new(|_| 1);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert!(pair.a.events().contains(&Event::SqDrained { qpn }));
    assert!(!pair.a.engine.query_qp(qpn).unwrap().sq_draining);
    let now = pair.now;
    pair.a.modify(now, &QpAttr { qp_state: QpState::Rts, ..attributes() }, AttrMask::STATE);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(2, Status::Success)]);
}

#[test]
fn nobody_is_told_of_a_drained_queue_who_did_not_ask() {
    let mut pair = Pair::new();
    let (qpn, now) = (pair.a.qp.qpn(), pair.now);
    for asked in [false, true, false] {
        let sqd = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: asked, ..attributes() };
        pair.a.modify(now, &sqd, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY);
        assert!(!pair.a.engine.query_qp(qpn).unwrap().sq_draining);
        let told = if asked { vec![Event::SqDrained { qpn }] } else { vec![] };
        assert_eq!(pair.a.events(), told);
        let rts = QpAttr { qp_state: QpState::Rts, ..attributes() };
        pair.a.modify(now, &rts, AttrMask::STATE);
    }
}

/// The first packet does not ask for an acknowledgement, because the second request was to follow.
#[test]
fn what_is_left_of_a_burst_that_sqd_cuts_off_is_acknowledged() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    (1..3).for_each(|id| pair.a.post(id, SendOp::Write { remote, imm: None }, 0, 8));
    // One packet fills the batch.
    pair.limits = TxLimits { batch_bytes: 1, ..pair.limits };
    let mut batch = TxBatch::new(pair.limits);
    pair.a.engine.poll_transmit(pair.now, &mut batch);
    let now = pair.now;
    pair.a.modify(now, &QpAttr { qp_state: QpState::Sqd, ..attributes() }, AttrMask::STATE);
    pair.a.post(3, SendOp::Write { remote, imm: None }, 0, 8);
    deliver_only(&mut pair);
    assert_eq!(pair.a.engine.counters().sent_pkts, 2, "the first is sent again, and asks");
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    pair.a.modify(now, &QpAttr { qp_state: QpState::Rts, ..attributes() }, AttrMask::STATE);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(2, Status::Success), (3, Status::Success)]);
}

#[test]
fn sqd_does_not_fail_what_has_not_begun() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let op = SendOp::Write { remote, imm: None };
    let beyond = crate::testing::MEMORY as u64;
    pair.fate = Box::new(|_| 0);
    pair.a.post(1, op, 0, 100);
    // It is looked at with the one before it.
    pair.a.post(2, op, beyond, 100);
    pair.run_until_idle();
    let (qpn, now) = (pair.a.qp.qpn(), pair.now);
    let attr = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..attributes() };
    pair.a.modify(now, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY);
    pair.fate = Box::new(|_| 1);
    pair.run(LONG);
    assert_eq!((pair.a.outcomes(), pair.a.qp.state()), (vec![(1, Status::Success)], QpState::Sqd));
    assert!(pair.a.events().contains(&Event::SqDrained { qpn }));
    let now = pair.now;
    pair.a.modify(now, &QpAttr { qp_state: QpState::Rts, ..attributes() }, AttrMask::STATE);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(2, Status::LocalProtection)]);

    // One that is posted there is not even looked at.
    let mut pair = Pair::new();
    let attr = QpAttr { qp_state: QpState::Sqd, ..attributes() };
    pair.a.modify(Time::ZERO, &attr, AttrMask::STATE);
    pair.a.post(1, op, beyond, 100);
    pair.run_until_idle();
    assert_eq!((pair.a.outcomes(), pair.a.qp.state()), (vec![], QpState::Sqd));
    pair.a.modify(Time::ZERO, &QpAttr { qp_state: QpState::Rts, ..attributes() }, AttrMask::STATE);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::LocalProtection)]);
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
        // The first fills the batch, and the second was looked at to find out who asks for an answer.
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
fn nothing_is_waited_for_in_the_error_state() {
    let mut pair = Pair::new();
    pair.fate = Box::new(|_| 0);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run_until_idle();
    let now = pair.now;
    pair.a.modify(now, &QpAttr { qp_state: QpState::Err, ..attributes() }, AttrMask::STATE);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::WorkRequestFlushed)]);
    assert_eq!(causes(&pair.a.events()), []);
}

#[test]
fn to_err_flushes_and_to_reset_forgets() {
    for (state, completions) in [(QpState::Err, 4), (QpState::Reset, 0)] {
        let mut pair = Pair::new();
        pair.fate = Box::new(|_| 0);
        pair.a.receive(1, 0, 10);
        pair.a.receive(2, 0, 10);
        pair.a.post_with(3, SendOp::Send { imm: None }, 0, 10, SendFlags::empty());
        pair.run_until_idle();
        pair.a.post(4, SendOp::Send { imm: None }, 0, 10);
        let now = pair.now;
        pair.a.modify(now, &QpAttr { qp_state: state, ..attributes() }, AttrMask::STATE);
        let outcomes = pair.a.outcomes();
        assert_eq!(outcomes.len(), completions);
        assert!(outcomes.iter().all(|o| o.1 == Status::WorkRequestFlushed));
        assert_eq!(pair.a.qp.sends_outstanding() + pair.a.qp.receives_outstanding(), 0);
    }
}

#[test]
fn what_is_posted_in_the_error_state_is_flushed() {
    let mut pair = Pair::new();
    let now = pair.now;
    pair.a.modify(now, &QpAttr { qp_state: QpState::Err, ..attributes() }, AttrMask::STATE);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.a.receive(2, 0, 10);
    pair.run_until_idle();
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.a.outcomes(), [(1, flushed), (2, flushed)]);
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
fn the_rnr_timer_is_the_one_the_receiver_names() {
    let timer = RnrTimer::new(31).unwrap();
    let attr = QpAttr { min_rnr_timer: timer, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run_until_idle();
    pair.b.receive(1, 0, 10);
    pair.run(timer.duration() - Duration::from_micros(1));
    assert!(pair.a.completions().is_empty());
    pair.run(Duration::from_micros(1));
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
}

#[test]
fn naks_out_of_nowhere_do_nothing() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    pair.a.completions();
    let ack = pair.log.iter().find(|s| !s.forward).unwrap().clone();
    for (syndrome, psn) in [
        (Syndrome::Nak(NakCode::RemoteAccessError), ack.packet().psn()),
        (Syndrome::Nak(NakCode::RemoteAccessError), ack.packet().psn().next()),
        (Syndrome::ACK, ack.packet().psn().add(1000)),
    ] {
        let mut forged = ack.clone();
        let mut repr = ack.packet().to_repr();
        repr.bth.psn = psn;
        if let Some(aeth) = &mut repr.ext.aeth {
            aeth.syndrome = syndrome;
        }
        forged.bytes.clear();
        crate::wire::emit::repr(&ack.net, &mut forged.bytes, &repr);
        pair.inject(&forged);
    }
    assert!(pair.a.completions().is_empty());
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    let dropped = |reason| pair.a.engine.counters().dropped(reason);
    assert_eq!([DropReason::StaleResponse, DropReason::GhostAck].map(dropped), [1, 2]);
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

#[test]
fn data_that_comes_with_a_refusal_is_not_believed() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.b.fill(0, &pattern(100));
    pair.fate = Box::new(|sent| usize::from(sent.forward));
    pair.a.post(1, SendOp::Read { remote }, 0, 100);
    pair.run_until_idle();
    let response = pair.log.iter().find(|sent| !sent.forward).unwrap().clone();
    let mut forged = response.clone();
    let mut repr = response.packet().to_repr();
    if let Some(aeth) = &mut repr.ext.aeth {
        aeth.syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
    }
    forged.bytes.clear();
    crate::wire::emit::repr(&response.net, &mut forged.bytes, &repr);
    pair.inject(&forged);
    assert!(pair.a.completions().is_empty());
    assert_eq!(pair.a.bytes(0, 100), vec![0; 100]);
    pair.inject(&response);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
}

#[test]
fn a_reserved_opcode_is_refused() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.fate = Box::new(|_| 0);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 8);
    pair.run_until_idle();
    let mut reserved = pair.log[0].clone();
    let (opcode, net) = (Opcode::RC_RESERVED_1F, reserved.net);
    let bth = crate::wire::Bth { opcode, ..reserved.packet().bth() };
    reserved.bytes.clear();
    let ext = crate::wire::Ext::default();
    crate::wire::emit::packet_from(&net, &mut reserved.bytes, &bth, &ext, &[1; 8]);
    pair.inject(&reserved);
    pair.fate = Box::new(|_| 1);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
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

#[test]
fn a_queue_pair_in_err_sends_no_read_data() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    // The WRITE does not ask for an acknowledgement: the READ's data acknowledges it.
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 100);
    pair.a.post(2, SendOp::Read { remote }, 0, 50 * 1024);
    pair.a.post(3, SendOp::FetchAdd { remote, add: 1 }, 0, 8);
    deliver_only(&mut pair);
    let now = pair.now;
    pair.b.modify(now, &QpAttr { qp_state: QpState::Err, ..attributes() }, AttrMask::STATE);
    pair.run_until_idle();
    let sent = responses(&pair, 0);
    assert!(sent.iter().all(|&(kind, _)| kind == OpKind::Acknowledge), "{sent:?}");
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)], "the WRITE is acknowledged");
    pair.run(LONG);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.a.outcomes(), [(2, Status::RetryExceeded), (3, flushed)]);
    let sent = responses(&pair, 0);
    assert!(sent.iter().all(|&(kind, _)| kind == OpKind::Acknowledge), "{sent:?}");
}

#[test]
fn read_data_that_has_begun_stops_at_err() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 0, 100 * 1024);
    deliver_only(&mut pair);
    // The batch has room for some of the packets only.
    let limits = crate::wire::TxLimits { batch_bytes: 5000, ..Default::default() };
    let mut batch = crate::wire::TxBatch::new(limits);
    pair.b.engine.poll_transmit(pair.now, &mut batch);
    assert!(!batch.is_empty());
    let now = pair.now;
    pair.b.modify(now, &QpAttr { qp_state: QpState::Err, ..attributes() }, AttrMask::STATE);
    pair.run_until_idle();
    let data = |&(kind, _): &(OpKind, _)| kind == OpKind::ReadResponse;
    assert_eq!(responses(&pair, 0).iter().filter(|sent| data(sent)).count(), 0);
}

#[test]
fn a_refusal_waits_for_the_data_due_before_it() {
    let mut pair = Pair::new();
    pair.b.fill(0, &pattern(50 * 1024));
    let remote = pair.b.remote(0);
    let bad = crate::queue::Remote { rkey: Key::new(remote.rkey.value() ^ 1), ..remote };
    pair.b.receive(9, 0, 10);
    pair.a.post(1, SendOp::Read { remote }, 0, 50 * 1024);
    pair.a.post(2, SendOp::Write { remote: bad, imm: None }, 0, 100);
    pair.a.post(3, SendOp::Write { remote, imm: None }, 0, 100);
    deliver_only(&mut pair);
    assert_eq!(pair.b.qp.state(), QpState::Rts, "READ data is due");
    pair.run_until_idle();
    let flushed = Status::WorkRequestFlushed;
    let expected = [(1, Status::Success), (2, Status::RemoteAccess), (3, flushed)];
    assert_eq!(pair.a.outcomes(), expected);
    assert_eq!(pair.a.bytes(0, 50 * 1024), pattern(50 * 1024));
    assert_eq!((pair.b.qp.state(), pair.b.outcomes()), (QpState::Err, vec![(9, flushed)]));
    let failed = |e: &Event| matches!(e, Event::ResponderFailed { .. });
    assert_eq!(pair.b.events().iter().filter(|e| failed(e)).count(), 1);
}

#[test]
fn nothing_is_received_behind_a_refusal_that_waits() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let bad = crate::queue::Remote { rkey: Key::new(remote.rkey.value() ^ 1), ..remote };
    // It has the PSN of the WRITE that is refused.
    let packets =
        sent_one_by_one(&mut pair, &[SendOp::Read { remote }, SendOp::Write { remote, imm: None }]);
    let mut pair = Pair::new();
    pair.a.post(1, SendOp::Read { remote }, 0, 8);
    pair.a.post(2, SendOp::Write { remote: bad, imm: None }, 0, 8);
    deliver_only(&mut pair);
    pair.b.fill(0, &[9; 8]);
    pair.inject(&packets[1]);
    assert_eq!(pair.b.engine.counters().dropped(DropReason::WrongQpState), 1);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::RemoteAccess)]);
    assert_eq!(pair.b.bytes(0, 8), [9; 8]);
}

#[test]
fn a_program_that_goes_to_err_before_a_refusal_has_left_stops_the_data_too() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let bad = crate::queue::Remote { rkey: Key::new(remote.rkey.value() ^ 1), ..remote };
    pair.a.post(1, SendOp::Read { remote }, 0, 50 * 1024);
    pair.a.post(2, SendOp::Write { remote: bad, imm: None }, 0, 100);
    deliver_only(&mut pair);
    let now = pair.now;
    pair.b.modify(now, &QpAttr { qp_state: QpState::Err, ..attributes() }, AttrMask::STATE);
    let failed = |e: &Event| matches!(e, Event::ResponderFailed { .. });
    assert_eq!(pair.b.events().iter().filter(|e| failed(e)).count(), 1);
    pair.run_until_idle();
    let nak = Some(Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!(
        responses(&pair, 0),
        [(OpKind::Acknowledge, Some(Syndrome::ACK)), (OpKind::Acknowledge, nak)]
    );
    // The READ was correct, so it does not complete with the error.
    pair.run(LONG);
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.a.outcomes(), [(1, Status::RetryExceeded), (2, flushed)]);
}

/// The NAKs that b says it has sent, and those that it has sent.
fn naks(pair: &Pair, events: &[Event]) -> [Vec<Psn>; 2] {
    let told = events.iter().filter_map(|event| match event {
        Event::NakSent { psn, .. } => Some(*psn),
        _ => None,
    });
    let is_nak = |sent: &&crate::testing::Sent| {
        let ack = |aeth: Aeth| matches!(aeth.syndrome, Syndrome::Ack { .. });
        !sent.forward && sent.packet().aeth().is_some_and(|aeth| !ack(aeth))
    };
    [told.collect(), pair.log.iter().filter(is_nak).map(|sent| sent.packet().psn()).collect()]
}

#[test]
fn a_nak_is_told_of_when_it_leaves() {
    // The gap is filled before the NAK leaves. It then names the packet that was dropped behind the gap.
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let packets = sent_one_by_one(&mut pair, &[SendOp::Write { remote, imm: None }; 2]);
    inject_in_order(&mut pair, &packets, &[1, 0]);
    let events = pair.b.events();
    assert_eq!(naks(&pair, &events), [[packets[1].packet().psn()], [packets[1].packet().psn()]]);
    assert_eq!(pair.b.engine.counters().naks_sent, 1);

    // A second copy comes before the first is answered.
    let mut pair = Pair::new();
    let packets = sent_one_by_one(&mut pair, &[SendOp::Send { imm: None }]);
    inject_in_order(&mut pair, &packets, &[0, 0]);
    let events = pair.b.events();
    assert_eq!(naks(&pair, &events), [[packets[0].packet().psn()], [packets[0].packet().psn()]]);
    assert_eq!(pair.b.engine.counters().send_rnr_err, 1);
}

#[test]
fn a_read_that_fails_takes_the_place_of_a_later_refusal() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let bad = crate::queue::Remote { rkey: Key::new(remote.rkey.value() ^ 1), ..remote };
    pair.b.receive(9, 0, 10);
    pair.a.post(1, SendOp::Read { remote }, 0, 50 * 1024);
    pair.a.post(2, SendOp::Write { remote: bad, imm: None }, 0, 100);
    deliver_only(&mut pair);
    pair.b.memory.deregister(pair.b.key);
    pair.run_until_idle();
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteAccess), (2, flushed)]);
    assert_eq!((pair.b.qp.state(), pair.b.outcomes()), (QpState::Err, vec![(9, flushed)]));
    let events = pair.b.events();
    let failed = |e: &&Event| matches!(e, Event::ResponderFailed { .. });
    let range = MemoryRange { addr: remote.addr, len: 50 * 1024, key: remote.rkey };
    let error = ResponderError::RemoteAccess(AccessError::UnknownKey);
    let expected = Event::ResponderFailed { qpn: pair.b.qp.qpn(), error, asked: Some(range) };
    assert_eq!(events.iter().filter(failed).collect::<Vec<_>>(), [&expected]);
    let [told, sent] = naks(&pair, &events);
    assert_eq!((told.len(), told), (1, sent));
}

#[test]
fn a_read_whose_memory_goes_away_is_refused_where_it_stops() {
    let mut pair = Pair::new();
    // The response leaves in several batches, and the region is deregistered after the first.
    pair.limits = TxLimits { batch_bytes: 4096, ..pair.limits };
    let (memory, key) = (pair.b.memory.clone(), pair.b.key);
    pair.fate = Box::new(move |sent| {
        if !sent.forward {
            memory.deregister(key);
        }
        1
    });
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 0, 20 * 1024);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteAccess)]);
    let back: Vec<_> = pair.log.iter().filter(|sent| !sent.forward).collect();
    let (nak, data) = back.split_last().unwrap();
    assert!(is_nak(nak) && (1..20).contains(&data.len()), "{} packets", data.len());
    assert_eq!(nak.packet().psn(), data[data.len() - 1].packet().psn().next());
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

#[test]
fn whatever_the_order_a_late_packet_does_not_hide_that_others_are_missing() {
    let kinds: [fn(&Pair) -> SendOp; 3] = [
        |pair| SendOp::Write { remote: pair.b.remote(0), imm: None },
        |pair| SendOp::Read { remote: pair.b.remote(0) },
        |pair| SendOp::FetchAdd { remote: pair.b.remote(0), add: 1 },
    ];
    let mut orders = vec![vec![]];
    for n in 0..4 {
        let with = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=n).map(move |at| [&order[..at], &[n], &order[at..]].concat())
        };
        orders = orders.iter().flat_map(with).collect();
    }
    for chosen in 0..81_usize {
        for order in &orders {
            let mut pair = Pair::new();
            let ops = [1, 3, 9, 27].map(|digit| kinds[chosen / digit % 3](&pair));
            let packets = sent_one_by_one(&mut pair, &ops);
            inject_in_order(&mut pair, &packets, order);
            let expected: Vec<_> = (0..4).map(|id| (id, Status::Success)).collect();
            assert_eq!(pair.a.outcomes(), expected, "{ops:?} {order:?}: without a timeout");
        }
    }
}

#[test]
fn a_gap_that_closes_before_it_is_reported_is_acknowledged() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let packets = sent_one_by_one(&mut pair, &[SendOp::Write { remote, imm: None }; 2]);
    // The second comes early. Then both come in order, because the peer sends it again.
    inject_in_order(&mut pair, &packets, &[1, 0, 1]);
    let naks = pair.log.iter().filter(|sent| is_nak(sent)).count();
    assert_eq!((naks, pair.a.outcomes().len()), (0, 2));
    assert_eq!(causes(&pair.a.events()), []);
}

#[test]
fn what_was_dropped_behind_a_gap_is_asked_for_when_a_copy_closes_the_gap() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let packets = sent_one_by_one(&mut pair, &[SendOp::Write { remote, imm: None }; 3]);
    // The second and the third come early; then comes a copy of the second.
    inject_in_order(&mut pair, &packets, &[1, 2, 0, 1]);
    let naks = pair.log.iter().filter(|sent| is_nak(sent)).count();
    assert_eq!((naks, pair.a.outcomes().len()), (1, 3), "without a timeout");
    assert_eq!(causes(&pair.a.events()), [RetryCause::SequenceNak]);
}

#[test]
fn a_receive_that_is_posted_before_the_refusal_has_left_lets_a_copy_in() {
    let mut pair = Pair::new();
    let packets = sent_one_by_one(&mut pair, &[SendOp::Send { imm: None }; 2]);
    pair.inject(&packets[0]);
    pair.inject(&packets[1]);
    (0..2).for_each(|id| pair.b.receive(id, 0, 8));
    inject_in_order(&mut pair, &packets, &[0]);
    assert_eq!(pair.a.outcomes(), [0, 1].map(|id| (id, Status::Success)));
    assert_eq!(causes(&pair.a.events()), [RetryCause::SequenceNak]);
}

proptest! {
    #[test]
    fn reordered_requests_cost_no_timeout(
        sizes in prop::collection::vec((0..3_usize, 1..3000_usize), 1..12),
        seed in any::<u64>(),
    ) {
        let mut pair = Pair::new();
        let mut state = seed | 1;
        let mut next = None;
        // Requests are reordered when they are sent for the first time.
        pair.order = Box::new(move |packets| {
            let Some(first) = packets.first().filter(|sent| sent.forward) else { return };
            let psn = first.packet().psn();
            if next.is_some_and(|next| psn.before(next)) {
                return;
            }
            next = packets.last().map(|last| last.packet().psn().next());
            for at in 1..packets.len() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let back = (state >> 33) as usize % 4;
                packets.swap(at, at.saturating_sub(back));
            }
        });
        let remote = pair.b.remote(0);
        for (id, &(kind, len)) in (0..).zip(&sizes) {
            pair.b.receive(id, 1 << 17, 4096);
            let op = match kind {
                0 => SendOp::Send { imm: None },
                1 => SendOp::Write { remote, imm: None },
                _ => SendOp::Read { remote },
            };
            pair.a.post(id, op, 1 << 16, len);
            if seed >> (id % 64) & 1 == 1 {
                pair.run_until_idle();
            }
        }
        pair.run(LONG);
        let outcomes = pair.a.outcomes();
        prop_assert!(outcomes.iter().all(|(_, status)| *status == Status::Success));
        prop_assert_eq!(outcomes.len(), sizes.len());
        prop_assert!(!causes(&pair.a.events()).contains(&RetryCause::Timeout));
    }
}

#[test]
fn reset_and_destroy_take_back_the_completions_of_their_queue_pair() {
    for destroyed in [false, true] {
        let mut pair = Pair::new();
        // Another queue pair uses the same completion queue.
        let other = crate::types::Qpn::new(0x13).unwrap();
        let other = pair.b.engine.create_qp(other, pair.b.qp.init().clone()).unwrap();
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        for (qp_state, mask) in [(QpState::Init, init), (QpState::Err, AttrMask::empty())] {
            let attr = QpAttr { qp_state, ..attributes() };
            let mask = mask | AttrMask::STATE;
            pair.b.engine.modify_qp(pair.now, other.qpn(), &attr, mask).unwrap();
        }
        (0..3).for_each(|id| pair.b.receive(id, 0, 8));
        pair.a.post(1, SendOp::Send { imm: None }, 0, 8);
        pair.run_until_idle();
        other.post_recv(crate::queue::RecvRequest { id: 9, ..Default::default() }).unwrap();
        pair.run_until_idle();
        let now = pair.now;
        pair.b.modify(now, &QpAttr { qp_state: QpState::Err, ..attributes() }, AttrMask::STATE);
        assert_eq!(pair.b.cq.len(), 4, "a message, two flushed and one of the other");
        if destroyed {
            pair.b.engine.destroy_qp(pair.b.qp.qpn()).unwrap();
        } else {
            let attr = QpAttr { qp_state: QpState::Reset, ..attributes() };
            pair.b.modify(now, &attr, AttrMask::STATE);
        }
        assert_eq!(pair.b.outcomes(), [(9, Status::WorkRequestFlushed)], "{destroyed}");
    }
}

#[test]
fn time_in_which_this_host_did_not_run_is_no_silence_of_the_peer() {
    let attr = QpAttr { retry_cnt: 0, ..attributes() };
    for excused in [true, false] {
        let mut pair = Pair::with(&attr, QpCap::default());
        // The response waits in the socket of a host that is stopped.
        pair.fate = Box::new(|sent| usize::from(sent.forward));
        pair.a.post(1, SendOp::Write { remote: pair.b.remote(0), imm: None }, 0, 10);
        pair.run_until_idle();
        let response = pair.log.pop().unwrap();
        assert!(!response.forward);
        pair.now = pair.now + Duration::from_millis(300);
        if excused {
            pair.a.engine.excuse_silence(pair.now);
        }
        pair.a.engine.handle_timeout(pair.now);
        let status = if excused { Status::Success } else { Status::RetryExceeded };
        pair.inject(&response);
        assert_eq!(pair.a.outcomes(), [(1, status)], "excused: {excused}");
    }
}
