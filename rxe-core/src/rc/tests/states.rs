//! Queue pairs in SQD and in the error state.

use super::*;

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
    // This request is taken together with the one before it.
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

    // A request that is posted in SQD is not taken.
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
    // The batch has room for only some of the packets.
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
