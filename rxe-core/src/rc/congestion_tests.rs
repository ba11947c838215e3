//! A queue pair under a rate limit: a requester and a responder together.

use std::time::Duration;

use crate::event::RetryCause;
use crate::qp::{QpAttr, QpCap};
use crate::queue::{SendOp, Status};
use crate::testing::{Pair, Sent, attributes, causes};
use crate::wire::{OpKind, Opcode, TxLimits};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_marked_packet_is_answered_with_a_notification_that_slows_the_sender() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    let mut marked = pair.log[0].clone();
    assert_eq!(marked.net.tos & 0b11, 0b10, "sent as ECN capable");
    marked.net.tos |= 0b11;
    pair.inject(&marked);
    pair.b.post(9, SendOp::Write { remote: pair.a.remote(0), imm: None }, 0, 10);
    pair.run_until_idle();
    let notification = pair.log.iter().find(|s| s.packet().opcode() == Opcode::CNP).unwrap();
    assert!(!notification.forward && notification.packet().bth().becn);
    assert_eq!(pair.b.engine.counters().cnp_sent, 1);
    assert_eq!(pair.a.engine.counters().cnp_received, 1);
    let mut notification = notification.clone();
    notification.net.tos |= 0b11;
    pair.inject(&notification);
    pair.run_until_idle();
    assert_eq!(pair.a.engine.counters().cnp_sent, 0, "no notification is answered with another");
    let len = 900_000;
    pair.a.post(2, SendOp::Write { remote, imm: None }, 0, len);
    pair.run_until_idle();
    assert!(pair.a.outcomes().len() < 2, "held back");
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(2, Status::Success)]);
}

/// A notification may be older than the connection.
#[test]
fn a_notification_is_not_the_first_packet_of_a_connection() {
    let mut pair = Pair::new();
    pair.a.engine.set_gsi(true);
    pair.fate = Box::new(|_| 0);
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    pair.inject(&notification(&pair));
    assert_eq!(pair.a.engine.counters().cnp_received, 1);
    assert_eq!(pair.a.engine.take_first_packets(), []);
    pair.fate = Box::new(|_| 1);
    pair.run(LONG);
    assert_eq!(pair.a.engine.take_first_packets(), [pair.a.qp.qpn()]);
}

/// Notifies a queue pair of congestion until its rate is at the minimum.
fn congested(pair: &mut Pair) {
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    let notification = notification(pair);
    for _ in 0..30 {
        pair.inject(&notification);
        pair.run(Duration::from_micros(60));
    }
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
}

/// A notification to the first side, which has sent something.
fn notification(pair: &Pair) -> Sent {
    let mut notification = pair.log[0].clone();
    notification.forward = false;
    (notification.net.src, notification.net.dst) = (notification.net.dst, notification.net.src);
    notification.bytes.clear();
    let bth = crate::wire::cnp::bth(pair.a.qp.qpn());
    let ext = crate::wire::Ext::default();
    crate::wire::emit::packet(&notification.net, &mut notification.bytes, &bth, &ext, 0, |_| {});
    notification
}

#[test]
fn what_is_held_up_for_congestion_does_not_count_as_unanswered() {
    // Sending the window takes longer than the timeout.
    let attr = QpAttr {
        retry_cnt: 0,
        path_mtu: crate::types::Mtu::M4096,
        timeout: crate::types::AckTimeout::new(8).unwrap(),
        ..attributes()
    };
    let mut pair = Pair::with(&attr, QpCap::default());
    congested(&mut pair);
    let remote = pair.b.remote(0);
    pair.a.post(2, SendOp::Write { remote, imm: None }, 0, 200_000);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(2, Status::Success)]);
    assert_eq!(causes(&pair.a.events()), []);
}

#[test]
fn what_is_lost_under_a_rate_limit_is_sent_again() {
    let mut pair = Pair::new();
    congested(&mut pair);
    let mut lost = false;
    pair.fate = Box::new(move |sent| {
        let loses = sent.forward && sent.packet().info().ends && !lost;
        lost |= loses;
        usize::from(!loses)
    });
    let remote = pair.b.remote(0);
    pair.a.post(2, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(2, Status::Success)]);
    assert_eq!(causes(&pair.a.events()).len(), 1);
}

#[test]
fn acknowledgements_are_not_held_up_for_congestion() {
    let mut pair = Pair::new();
    congested(&mut pair);
    let remote = pair.b.remote(0);
    pair.a.post(2, SendOp::Write { remote, imm: None }, 0, 100_000);
    pair.run_until_idle();
    assert!(pair.a.outcomes().is_empty(), "held up");
    pair.b.post(3, SendOp::Write { remote: pair.a.remote(0), imm: None }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.b.outcomes(), [(3, Status::Success)]);
}

#[test]
fn the_first_loss_of_a_notified_queue_pair_costs_no_timeout_of_the_attributes() {
    let timeout = crate::types::AckTimeout::new(14).unwrap();
    let mut pair = Pair::with(&QpAttr { timeout, ..attributes() }, QpCap::default());
    congested(&mut pair);
    // The rate is restored.
    pair.run(LONG);
    pair.a.events();
    // The last packet is lost: no gap shows that.
    let mut lost = 0;
    pair.fate = Box::new(move |sent| {
        let last = sent.forward && sent.packet().info().ends;
        lost += usize::from(last);
        usize::from(!(last && lost == 1))
    });
    let remote = pair.b.remote(0);
    pair.a.post(2, SendOp::Write { remote, imm: None }, 0, 2000);
    pair.run(Duration::from_millis(10));
    assert_eq!(pair.a.outcomes(), [(2, Status::Success)]);
    assert_eq!(causes(&pair.a.events()), [RetryCause::RoundTripTimeout]);
}

#[test]
fn what_is_posted_while_held_up_is_sent_afterwards() {
    let mut pair = Pair::new();
    congested(&mut pair);
    // The response to this READ uses up the allowance, so what follows must wait.
    let remote = pair.a.remote(0);
    pair.b.post(2, SendOp::Read { remote }, 0, 1000);
    pair.run_until_idle();
    assert_eq!(pair.b.outcomes(), [(2, Status::Success)]);
    let remote = pair.b.remote(0);
    pair.a.post(3, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    assert!(pair.a.outcomes().is_empty(), "held up");
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(3, Status::Success)]);
}

#[test]
fn requests_and_answers_share_the_pace() {
    let all_at_once = TxLimits::default();
    for limits in [all_at_once, TxLimits { batch_bytes: 1, ..all_at_once }] {
        let mut pair = Pair::with(&QpAttr { retry_cnt: 0, ..attributes() }, QpCap::default());
        pair.limits = limits;
        congested(&mut pair);
        pair.log.clear();
        let remote = pair.b.remote(0);
        pair.a.post(2, SendOp::Write { remote, imm: None }, 0, 200_000);
        pair.b.post(3, SendOp::Read { remote: pair.a.remote(0) }, 0, 6_000);
        pair.run(LONG);
        assert_eq!(pair.a.outcomes(), [(2, Status::Success)]);
        assert_eq!(pair.b.outcomes(), [(3, Status::Success)]);
        let kinds = pair.log.iter().filter(|sent| sent.forward).map(|s| s.packet().info().kind);
        let data = kinds.filter(|kind| *kind != OpKind::Acknowledge);
        // The first request leaves before the READ arrives. After some packets the rate is restored.
        let first: Vec<_> = data.take(6).collect();
        let responses = first.iter().filter(|kind| **kind == OpKind::ReadResponse).count();
        assert!((2..=3).contains(&responses), "{limits:?}: {first:?}");
    }
}
