//! Lost packets, timeouts, and receivers that are not ready.

use super::*;

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
    let psn = |sent: &crate::testing::Sent| sent.packet().psn().value();
    let naks: Vec<_> = pair.log.iter().filter(|s| !s.forward && is_nak(s)).map(psn).collect();
    let causes = causes(&pair.a.events());
    assert_eq!(causes, [RetryCause::SequenceNak]);
    let mut psns: Vec<_> = pair.log.iter().filter(|s| s.forward).map(psn).collect();
    assert_eq!(naks, [psns[2]], "the one that was lost");
    // Not later, and not at the start of the message, whose first packets have arrived.
    let first_again = (1..psns.len()).find(|at| psns[..*at].contains(&psns[*at]));
    assert_eq!(first_again.map(|at| psns[at]), Some(naks[0]), "it starts again there");
    let sent = psns.len();
    psns.sort_unstable();
    psns.dedup();
    let again = (sent - psns.len()) as u64;
    let [a, b] = [&pair.a, &pair.b].map(|side| side.engine.counters().retransmitted_pkts);
    assert_eq!((a, b), (again, 0));
    assert!(again >= 1, "the lost packet at least");
}

#[test]
fn a_read_request_that_is_sent_again_is_one_packet() {
    let mut pair = Pair::new();
    lose(&mut pair, &[0]);
    pair.a.post(1, SendOp::Read { remote: pair.b.remote(0) }, 0, 5000);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    let counted = pair.a.engine.counters();
    assert_eq!((counted.sent_pkts, counted.retransmitted_pkts), (2, 1));
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

/// The first wait without a measurement is 5 ms; after a measurement it is 1 ms.
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

/// The network may duplicate a response.
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

/// Another copy of the same RNR NAK arrives after the pause and before anything is sent again.
#[test]
fn a_late_copy_of_an_rnr_nak_uses_up_no_retry() {
    let attr = QpAttr { rnr_retry: 1, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run_until_idle();
    let nak = pair.log.iter().find(|sent| !sent.forward).unwrap().clone();
    pair.b.receive(7, 0, 10);
    pair.now = pair.a.engine.poll_timeout().unwrap();
    pair.a.engine.handle_timeout(pair.now);
    pair.inject(&nak);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert_eq!(causes(&pair.a.events()), [RetryCause::ReceiverNotReady]);
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
