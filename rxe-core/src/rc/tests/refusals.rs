//! Requests that are refused, at either end.

use super::*;

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
    // The copy has the PSN of the WRITE that is refused.
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

/// Returns the NAKs that b has reported as sent, and those that it has sent.
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
