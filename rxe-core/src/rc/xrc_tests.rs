//! Extended reliable connection: an initiator, a target, and the shared queue that requests name.

use std::time::Duration;

use crate::engine::{Event, ResponderError};
use crate::mem::PdId;
use crate::qp::{QpCap, QpState, QpType};
use crate::queue::{Payload, Remote, SendOp, SendRequest, SharedReceiveQueue, Status};
use crate::testing::{ALL, PD, Pair, Sent, attributes};
use crate::wire::{DropReason, Service};

fn pair() -> Pair {
    Pair::of(QpType::XrcSend, &attributes(), QpCap::default(), false)
}

#[test]
fn every_operation_reaches_the_target() {
    let mut pair = pair();
    let remote = pair.b.remote(100_000);
    pair.a.fill(0, &[5; 3000]);
    pair.b.receive(7, 0, 3000);
    pair.b.receive(8, 0, 0);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 3000);
    pair.a.post(2, SendOp::Write { remote, imm: Some(1) }, 0, 3000);
    pair.a.post(3, SendOp::Read { remote }, 10_000, 3000);
    let word = pair.b.remote(0);
    pair.a.post(4, SendOp::FetchAdd { remote: word, add: 1 }, 20_000, 8);
    pair.run_until_idle();
    let done: Vec<_> = (1..5).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.a.outcomes(), done);
    assert_eq!(pair.b.outcomes(), [(7, Status::Success), (8, Status::Success)]);
    assert_eq!(pair.b.bytes(100_000, 3000), [5; 3000]);
    assert_eq!(pair.a.bytes(10_000, 3000), [5; 3000]);
    assert_eq!(pair.b.bytes(0, 8), 0x0505_0505_0505_0506_u64.to_ne_bytes());
    assert!(pair.log.iter().all(|sent| sent.packet().info().service == Service::Xrc));
    let named = pair.log.iter().filter(|sent| sent.forward);
    assert!(named.clone().all(|sent| sent.packet().xrc_srq() == Some(0x12)));
}

#[test]
fn an_empty_shared_queue_is_not_ready_and_one_that_is_not_there_ends_the_target() {
    let mut pair = pair();
    pair.a.post(1, SendOp::Send { imm: None }, 0, 10);
    pair.run_until_idle();
    pair.b.receive(1, 0, 10);
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);

    let sges = [pair.a.sge(0, 10)].into_iter().collect();
    let request = SendRequest::new(2, SendOp::Send { imm: None }, Payload::Sges(sges));
    assert!(pair.a.qp.post_send(request.clone()).is_err(), "no queue named");
    pair.a.qp.post_send(SendRequest { xrc_srq: Some(0x13), ..request }).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(2, Status::RemoteOperation)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
    let qpn = pair.b.qp.qpn();
    let failed = Event::ResponderFailed { qpn, error: ResponderError::UnknownXrcSrq, asked: None };
    assert!(pair.b.events().contains(&failed));
}

#[test]
fn each_end_has_one_side_only() {
    let pair = pair();
    let sges = || [pair.b.sge(0, 10)].into_iter().collect();
    let send = SendRequest {
        xrc_srq: Some(1),
        ..SendRequest::new(1, SendOp::Send { imm: None }, Payload::Sges(sges()))
    };
    assert!(pair.b.qp.post_send(send).is_err());
    let receive = crate::queue::RecvRequest { id: 1, sges: sges() };
    assert!(pair.a.qp.post_recv(receive.clone()).is_err());
    assert!(pair.b.qp.post_recv(receive).is_err());
}

#[test]
fn only_xrc_requests_name_a_shared_queue() {
    for service in [QpType::Rc, QpType::Uc] {
        let pair = Pair::of(service, &attributes(), QpCap::default(), false);
        let payload = Payload::Sges([pair.a.sge(0, 10)].into_iter().collect());
        let send = SendRequest::new(1, SendOp::Send { imm: None }, payload);
        let named = SendRequest { xrc_srq: Some(1), ..send.clone() };
        assert!(pair.a.qp.post_send(named).is_err());
        assert!(pair.a.qp.post_send(send).is_ok());
    }
}

#[test]
fn lost_packets_are_sent_again() {
    for lost in 0..8 {
        let mut pair = pair();
        let mut n = 0;
        pair.fate = Box::new(move |_| {
            n += 1;
            usize::from(n - 1 != lost)
        });
        let remote = pair.b.remote(0);
        pair.b.receive(1, 0, 3000);
        pair.a.post(1, SendOp::Send { imm: None }, 0, 3000);
        pair.a.post(2, SendOp::Read { remote }, 0, 3000);
        pair.run(Duration::from_secs(10));
        let done: Vec<_> = (1..3).map(|id| (id, Status::Success)).collect();
        assert_eq!(pair.a.outcomes(), done, "packet {lost} lost");
    }
}

/// Sends a message of two packets whose second packet names its queue by `word`.
fn second_packet_names(word: u32) -> Pair {
    let mut pair = pair();
    pair.b.receive(7, 0, 3000);
    let cq = std::sync::Arc::clone(&pair.b.cq);
    let other = SharedReceiveQueue::new_xrc(0x13, PD, 4, 4, cq);
    assert!(pair.b.qp.init().xrcd.as_ref().unwrap().add(other.into()));
    pair.fate = Box::new(|_| 0);
    pair.a.post(1, SendOp::Send { imm: None }, 0, 2000);
    pair.run_until_idle();
    let sent: Vec<Sent> = pair.log.iter().filter(|sent| sent.forward).cloned().collect();
    pair.inject(&sent[0]);
    let mut second = sent[1].clone();
    let mut repr = sent[1].packet().to_repr();
    repr.ext.xrc_srq = Some(word);
    second.bytes.clear();
    crate::wire::emit::repr(&sent[1].net, &mut second.bytes, &repr);
    pair.inject(&second);
    pair
}

#[test]
fn reserved_bits_beside_the_queue_do_not_matter() {
    let pair = second_packet_names(0xff00_0012);
    assert_eq!(pair.b.outcomes(), [(7, Status::Success)]);
}

#[test]
fn a_message_stays_with_its_queue() {
    let pair = second_packet_names(0x13);
    assert_eq!(pair.b.qp.state(), QpState::Err);
    assert_eq!(pair.b.outcomes(), [(7, Status::RemoteInvalidRequest)]);
}

/// The requester repeats the duplicate until it gives up: neither end has made an error.
#[test]
fn a_read_again_through_a_queue_that_is_gone_or_another_is_dropped() {
    let sent = |pair: &Pair| pair.log.iter().find(|sent| sent.forward).unwrap().clone();
    let dropped = |pair: &mut Pair, again: &Sent| {
        pair.b.events();
        pair.log.clear();
        pair.inject(again);
        pair.run_until_idle();
        let (qpn, reason) = (pair.b.qp.qpn(), DropReason::DuplicateUnanswerable);
        let psn = Some(again.packet().psn());
        assert!(pair.b.events().contains(&Event::Dropped { qpn: Some(qpn), psn, reason }));
        assert!(pair.log.is_empty(), "nothing is answered");
        assert_eq!(pair.b.qp.state(), QpState::Rts);
    };
    let mut pair = pair();
    pair.a.post(1, SendOp::Read { remote: pair.b.remote(0) }, 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    let read = sent(&pair);
    let xrcd = pair.b.qp.init().xrcd.clone().unwrap();
    let cq = std::sync::Arc::clone(&pair.b.cq);
    assert!(xrcd.add(SharedReceiveQueue::new_xrc(0x13, PdId(PD.0 + 1), 4, 4, cq).into()));
    let mut other = read.clone();
    let mut repr = read.packet().to_repr();
    repr.ext.xrc_srq = Some(0x13);
    other.bytes.clear();
    crate::wire::emit::repr(&read.net, &mut other.bytes, &repr);
    dropped(&mut pair, &other);
    assert!(xrcd.remove(0x12));
    dropped(&mut pair, &read);
}

/// A receive that a WRITE with immediate took from a shared queue completes in that queue's completion
/// queue.
#[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, sanitized))))]
#[test]
fn a_receive_of_a_write_into_memory_that_is_gone_completes_for_its_queue() {
    let mut pair = pair();
    let page = crate::testing::faults::faulting_page();
    let rkey = pair.b.memory.register(PD, page, 0x5000, ALL, || 0x700).unwrap();
    pair.b.receive(7, 0, 100);
    pair.b.receive(8, 0, 100);
    pair.a.post(1, SendOp::Write { remote: Remote { addr: 0x5000, rkey }, imm: Some(1) }, 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteAccess)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
    assert_eq!(pair.b.outcomes(), [(7, Status::WorkRequestFlushed)]);
    assert_eq!(pair.b.srq.as_ref().unwrap().len(), 1, "the other receive is still posted");
}
