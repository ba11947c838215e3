//! Tests of a UC requester and responder together.

use crate::event::Event;
use crate::qp::{AttrMask, QpAttr, QpCap, QpState, QpType};
use crate::queue::{CompletionOp, Immediate, Payload, SendOp, SendRequest, Status};
use crate::testing::{BASE, MEMORY, Pair, attributes};
use crate::types::{Key, Time};
use crate::wire::{DropReason, TxBatch, TxLimits};

fn pair() -> Pair {
    Pair::of(QpType::Uc, &attributes(), QpCap::default(), false)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + i / 251) & 0xff).unwrap()).collect()
}

#[test]
fn send_and_write_arrive_without_an_answer() {
    for len in [0, 1, 1023, 1024, 1025, 65_536] {
        let mut pair = pair();
        pair.a.fill(0, &pattern(len));
        pair.b.receive(1, 0, len);
        pair.b.receive(2, 0, 0);
        pair.a.post(1, SendOp::Send { imm: Some(7) }, 0, len);
        let remote = pair.b.remote(100_000);
        pair.a.post(2, SendOp::Write { remote, imm: Some(8) }, 0, len);
        pair.run_until_idle();
        assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(pair.b.bytes(0, len), pattern(len));
        assert_eq!(pair.b.bytes(100_000, len), pattern(len));
        let received = pair.b.completions();
        let ops: Vec<_> = received.iter().map(|c| (c.op, c.imm)).collect();
        let expected = [
            (CompletionOp::Recv, Some(Immediate::Data(7))),
            (CompletionOp::RecvRdmaWithImm, Some(Immediate::Data(8))),
        ];
        assert_eq!(ops, expected);
        assert_eq!(pair.b.engine.counters().rcvd_uc_msgs, 2);
        assert!(pair.opcodes(false).is_empty(), "UC answers nothing");
    }
}

#[test]
fn a_message_that_loses_any_packet_is_lost_whole_and_the_next_takes_its_receive() {
    for lost in 0..5 {
        let mut pair = pair();
        let mut n = 0;
        pair.fate = Box::new(move |_| {
            n += 1;
            usize::from(n - 1 != lost)
        });
        pair.b.receive(1, 0, 5000);
        pair.a.post(1, SendOp::Send { imm: None }, 0, 5000);
        pair.run_until_idle();
        pair.a.fill(0, &pattern(5000));
        pair.a.post(2, SendOp::Send { imm: None }, 0, 5000);
        pair.run_until_idle();
        assert_eq!(pair.a.outcomes().len(), 2, "the sender never knows");
        assert_eq!(pair.b.outcomes(), [(1, Status::Success)], "packet {lost} lost");
        assert_eq!(pair.b.bytes(0, 5000), pattern(5000));
        assert_eq!(pair.b.engine.counters().rcvd_uc_msgs, 1);
    }
}

#[test]
fn the_receive_of_a_lost_message_is_that_of_the_next_message_of_any_kind() {
    let mut pair = pair();
    let mut n = 0;
    // Loses the last of the SEND's two packets.
    pair.fate = Box::new(move |_| {
        n += 1;
        usize::from(n != 2)
    });
    pair.b.receive(1, 0, 2000);
    pair.b.receive(2, 2000, 2000);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 2000);
    let remote = pair.b.remote(10_000);
    pair.a.post(2, SendOp::Write { remote, imm: Some(8) }, 0, 10);
    pair.a.post(3, SendOp::Send { imm: None }, 0, 2000);
    pair.run_until_idle();
    let ops: Vec<_> = pair.b.completions().iter().map(|c| (c.id, c.op)).collect();
    assert_eq!(ops, [(1, CompletionOp::RecvRdmaWithImm), (2, CompletionOp::Recv)]);
}

#[test]
fn without_a_receive_the_message_is_dropped_and_counted() {
    let mut pair = pair();
    pair.a.post(1, SendOp::Send { imm: None }, 0, 3000);
    pair.run_until_idle();
    pair.b.receive(5, 0, 3000);
    pair.a.post(2, SendOp::Send { imm: None }, 0, 3000);
    pair.run_until_idle();
    assert_eq!(pair.b.outcomes(), [(5, Status::Success)]);
    let counters = pair.b.engine.counters();
    assert_eq!(counters.dropped(DropReason::ReceiveQueueEmpty), 1);
    assert_eq!(counters.dropped(DropReason::MessageBroken), 2);
}

#[test]
fn what_may_not_be_written_is_not_and_the_connection_goes_on() {
    let mut pair = pair();
    let mut remote = pair.b.remote(0);
    remote.rkey = Key::new(remote.rkey.value() ^ 1);
    pair.a.fill(0, &pattern(3000));
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 3000);
    let mut beyond = pair.b.remote(0);
    beyond.addr = BASE + MEMORY as u64 - 2999;
    pair.a.post(2, SendOp::Write { remote: beyond, imm: None }, 0, 3000);
    let remote = pair.b.remote(10_000);
    pair.a.post(3, SendOp::Write { remote, imm: None }, 0, 3000);
    pair.run_until_idle();
    assert_eq!(pair.b.bytes(0, 3000), vec![0; 3000]);
    assert_eq!(pair.b.bytes(MEMORY as u64 - 2999, 2999), vec![0; 2999]);
    assert_eq!(pair.b.bytes(10_000, 3000), pattern(3000));
    assert_eq!(pair.b.engine.counters().rcvd_uc_msgs, 1);
    assert_eq!(pair.b.qp.state(), QpState::Rts);
}

#[test]
fn a_bad_local_buffer_stops_sending_only() {
    let mut pair = pair();
    pair.a.post(1, SendOp::Send { imm: None }, MEMORY as u64 - 1, 2);
    pair.a.post(2, SendOp::Send { imm: None }, 0, 2);
    pair.a.receive(9, 0, 10);
    pair.run_until_idle();
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.a.outcomes(), [(1, Status::LocalProtection), (2, flushed)]);
    assert_eq!(pair.a.qp.state(), QpState::Sqe);
    pair.b.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(9, Status::Success)], "receiving goes on");
}

#[test]
fn reads_and_atomics_are_refused() {
    let pair = pair();
    let remote = pair.b.remote(0);
    let sges = [pair.a.sge(0, 8)].into_iter().collect();
    let request = SendRequest::new(1, SendOp::Read { remote }, Payload::Sges(sges));
    assert_eq!(pair.a.qp.post_send(request).unwrap_err().errno(), 22);
}

#[test]
fn sqd_finishes_the_message_that_has_begun_and_begins_no_other() {
    let mut pair = pair();
    let write = SendOp::Write { remote: pair.b.remote(0), imm: None };
    pair.a.post(1, write, 0, 3000);
    pair.a.post(2, write, 0, 3000);
    // One packet fills the batch.
    let mut batch = TxBatch::new(TxLimits { batch_bytes: 1, ..pair.limits });
    pair.a.engine.poll_transmit(Time::ZERO, &mut batch);
    let (qpn, mask) = (pair.a.qp.qpn(), AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY);
    let sqd = QpAttr { qp_state: QpState::Sqd, en_sqd_async_notify: true, ..attributes() };
    pair.a.modify(Time::ZERO, &sqd, mask);
    assert!(pair.a.engine.query_qp(qpn).unwrap().sq_draining && pair.a.events().is_empty());
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert_eq!(pair.a.events(), [Event::SqDrained { qpn }]);
    assert!(!pair.a.engine.query_qp(qpn).unwrap().sq_draining);
    let rts = QpAttr { qp_state: QpState::Rts, ..attributes() };
    pair.a.modify(Time::ZERO, &rts, AttrMask::STATE);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(2, Status::Success)]);
    let psns: Vec<_> = pair.log.iter().map(|sent| sent.packet().psn()).collect();
    let first = psns[0];
    assert_eq!(psns, [0, 1, 2, 3, 4].map(|n| first.add(n)), "those of the second follow");
}
