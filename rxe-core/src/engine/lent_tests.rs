//! Trains whose payload stays in the sender's memory until the receiver reads it ([`Lender`](crate::mem::Lender)).

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::direct_tests::{Lane, Record};
use super::train_tests::{How, Work, hand_over, play, quiet, work};
use crate::event::RetryCause;
use crate::mem::{Access, Binding, Buffer, RegionChange, WindowType};
use crate::qp::{AttrMask, QpAttr, QpCap, QpState, QpType};
use crate::queue::{
    CompletionOp, Payload, RecvRequest, Remote, SendOp, SendRequest, SharedReceiveQueue, Status,
};
use crate::testing::{BASE, MEMORY, PD, Pair, Side, attributes, causes};
use crate::types::{AckTimeout, Key, Mtu, Time};
use crate::wire::{DropReason, TxBatch, TxLimits};

/// How a program gets memory back that it has lent.
#[derive(Clone, Copy, Debug)]
enum Back {
    Error,
    Reset,
    Destroyed,
    Deregistered,
    Reregistered,
    /// The peer does not answer.
    GivenUp,
}

/// Sends one train, which is lent; the program gets the memory back and writes to it; then the train is
/// delivered. Returns whether the receiver has got what was written, how many requests it has completed, and how
/// many packets it has dropped.
fn after(back: Back, work: Work) -> (bool, usize, u64) {
    let Pair { mut a, mut b, .. } = Pair::new();
    let len = 16 << 10;
    [&a, &b].into_iter().for_each(|side| side.fill(0, &vec![1; len]));
    let step = |from: &mut Side, lends: bool| {
        let mut batch = TxBatch::new(TxLimits::default());
        let mut lane = Lane { room: usize::MAX, train: len, lends, ..Lane::default() };
        from.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
        lane.records
    };
    // The first packet of a peer comes by itself.
    a.post(0, SendOp::Write { remote: b.remote(0), imm: None }, 0, 8);
    step(&mut a, true).iter().for_each(|record| hand_over(&mut b, Time::ZERO, record, How::Lent));
    step(&mut b, true).iter().for_each(|record| hand_over(&mut a, Time::ZERO, record, How::Lent));
    a.completions();
    let to = 500_000;
    let is_read = matches!(work, Work::Read);
    match work {
        Work::Read => a.post(1, SendOp::Read { remote: b.remote(0) }, to, len),
        Work::Write => a.post(1, SendOp::Write { remote: b.remote(to), imm: None }, 0, len),
        _ => {
            b.receive(1, to, len);
            a.post(1, SendOp::Send { imm: None }, 0, len);
        }
    }
    if is_read {
        let request = step(&mut a, true);
        hand_over(&mut b, Time::ZERO, &request[0], How::Lent);
    }
    let (from, to_side) = if is_read { (&mut b, &mut a) } else { (&mut a, &mut b) };
    let records = step(from, true);
    assert!(records[0].lent.is_some() && records[0].count == 16);
    let state = |qp_state| QpAttr { qp_state, ..attributes() };
    match back {
        Back::Error => from.modify(Time::ZERO, &state(QpState::Err), AttrMask::STATE),
        Back::Reset => from.modify(Time::ZERO, &state(QpState::Reset), AttrMask::STATE),
        Back::Destroyed => from.engine.destroy_qp(from.qp.qpn()).unwrap(),
        Back::Deregistered => assert!(from.memory.deregister(from.key)),
        Back::Reregistered => from.memory.reregister(from.key, RegionChange::default()).unwrap(),
        Back::GivenUp => {
            let mut now = Time::ZERO;
            while from.outcomes().is_empty() {
                now = now + Duration::from_secs(10);
                from.engine.handle_timeout(now);
                from.engine.poll_transmit(now, &mut TxBatch::new(TxLimits::default()));
            }
        }
    }
    from.fill(0, &vec![0xee; len]);
    hand_over(to_side, Time::ZERO, &records[0], How::Lent);
    let dropped = to_side.engine.counters().dropped(DropReason::PayloadGone);
    (to_side.bytes(to, len).contains(&0xee), to_side.completions().len(), dropped)
}

#[test]
fn what_is_lent_is_nothing_once_the_program_has_its_memory_back() {
    let ends = [Back::Error, Back::Reset, Back::Destroyed];
    let of_memory = [Back::Deregistered, Back::Reregistered];
    for back in ends.into_iter().chain([Back::GivenUp]) {
        for work in [Work::Write, Work::Send { receive: 0 }] {
            assert_eq!(after(back, work), (false, 0, 16), "{back:?} {work:?}");
        }
    }
    for back in of_memory {
        for work in [Work::Write, Work::Send { receive: 0 }] {
            assert_eq!(after(back, work), (false, 0, 16), "{back:?} {work:?}");
        }
    }
    for back in ends.into_iter().chain(of_memory) {
        assert_eq!(after(back, Work::Read), (false, 0, 16), "{back:?}");
    }
}

/// The key of a window to the first bytes of a side's memory.
fn window(of: &Side) -> Key {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND;
    let region = of.memory.register(PD, of.buffer.clone(), BASE, access, || 0x900).unwrap();
    let window = of.memory.create_window(PD, WindowType::Type1, || 0xa00);
    let (addr, length) = (BASE, 1 << 16);
    let binding = Binding { region, addr, length, access: Access::REMOTE_READ };
    of.memory.guard().bind(PD, of.qp.qpn(), window, 0, binding).unwrap();
    of.memory.window_key(window).unwrap()
}

/// A window may be unbound from its region at any time, and nobody tells who reads there.
#[test]
fn what_is_read_by_way_of_a_window_is_not_lent() {
    for (by_window, lent) in [(false, true), (true, false)] {
        let Pair { mut a, mut b, .. } = Pair::new();
        let mut key = b.key;
        if by_window {
            key = window(&b);
        }
        a.post(1, SendOp::Read { remote: Remote { addr: BASE, rkey: key } }, 0, 1 << 14);
        let mut batch = TxBatch::new(TxLimits::default());
        let mut lane = Lane { room: usize::MAX, train: 1 << 14, lends: true, ..Lane::default() };
        a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
        hand_over(&mut b, Time::ZERO, &lane.records.remove(0), How::Lent);
        b.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
        assert_eq!((lane.records[0].count, lane.records[0].lent.is_some()), (16, lent));
    }
}

/// Who does not answer for its memory loses no more than a packet that was lost.
#[test]
fn what_cannot_be_read_is_sent_again() {
    let attr = QpAttr { retry_cnt: 1, ..attributes() };
    let Pair { mut a, mut b, .. } = Pair::with(&attr, QpCap::default());
    a.fill(0, &[1; 1 << 15]);
    a.post(1, SendOp::Write { remote: b.remote(0), imm: None }, 0, 1 << 15);
    let mut batch = TxBatch::new(TxLimits::default());
    let mut lane = Lane { room: usize::MAX, train: 1 << 14, lends: true, ..Lane::default() };
    a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
    for (index, record) in lane.records.iter_mut().enumerate() {
        if index == 0 {
            // The first packet of a peer comes by itself.
            hand_over(&mut b, Time::ZERO, record, How::Lent);
        } else {
            record.lent.as_mut().unwrap().tokens[0].value ^= 1;
            hand_over(&mut b, Time::ZERO, record, How::Lent);
        }
    }
    assert_eq!(b.engine.counters().dropped(DropReason::PayloadGone), 16);
    let now = Time::ZERO + Duration::from_secs(10);
    a.engine.handle_timeout(now);
    lane.records.clear();
    for _ in 0..2 {
        a.engine.poll_transmit_with(now, &mut batch, Some(&mut lane));
        let there = std::mem::take(&mut lane.records);
        there.iter().for_each(|record| hand_over(&mut b, now, record, How::Lent));
        b.engine.poll_transmit_with(now, &mut batch, Some(&mut lane));
        let back = std::mem::take(&mut lane.records);
        back.iter().for_each(|record| hand_over(&mut a, now, record, How::Lent));
    }
    assert_eq!(a.outcomes(), [(1, Status::Success)]);
    assert!(b.bytes(0, 1 << 15) == [1; 1 << 15]);
}

/// The queue pair goes into the error state behind the data, and takes back what it has lent.
#[test]
fn the_data_before_a_refusal_is_not_lent() {
    let work = vec![(Work::Read, 20_000), (Work::SendInvalidate, 1)];
    let case = quiet(QpType::Rc, work, 16 << 10);
    let [(_, apart, _), (_, lent, trains)] = [How::Apart, How::Lent].map(|how| play(&case, how));
    assert!(trains > 0 && apart == lent);
}

/// Two lent trains of 16 packets of a WRITE, the first of which has arrived if it is to.
fn two_trains(first_arrives: bool) -> (Pair, Vec<Record>) {
    let mut pair = Pair::new();
    pair.a.post(1, SendOp::Write { remote: pair.b.remote(0), imm: None }, 0, 1 << 15);
    let mut batch = TxBatch::new(TxLimits::default());
    let mut lane = Lane { room: usize::MAX, train: 1 << 14, lends: true, ..Lane::default() };
    pair.a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
    assert!(lane.records.len() == 2 && lane.records.iter().all(|record| record.lent.is_some()));
    if first_arrives {
        hand_over(&mut pair.b, Time::ZERO, &lane.records[0], How::Lent);
    }
    for record in &mut lane.records {
        record.lent.as_mut().unwrap().tokens[0].value ^= 1;
    }
    (pair, lane.records)
}

/// When a message is complete, its memory is the program's, but a copy of it may still be on the way.
#[test]
fn the_payload_of_a_duplicate_is_not_read() {
    let (mut pair, records) = two_trains(true);
    hand_over(&mut pair.b, Time::ZERO, &records[0], How::Lent);
    let counters = pair.b.engine.counters();
    assert_eq!((counters.duplicate_request, counters.dropped(DropReason::PayloadGone)), (16, 0));
}

/// The sender is told at once that something is missing.
#[test]
fn the_payload_behind_a_gap_is_not_read() {
    let (mut pair, records) = two_trains(false);
    hand_over(&mut pair.b, Time::ZERO, &records[1], How::Lent);
    let counters = pair.b.engine.counters();
    assert_eq!(counters.dropped(DropReason::PayloadGone), 0);
    assert_eq!(counters.dropped(DropReason::GapAlreadyReported), 15);
    pair.run_until_idle();
    assert_eq!(causes(&pair.a.events()), [RetryCause::SequenceNak]);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
}

#[test]
fn a_payload_for_who_does_not_take_it_is_not_read() {
    let (mut pair, records) = two_trains(false);
    let error = QpAttr { qp_state: QpState::Err, ..attributes() };
    pair.b.modify(Time::ZERO, &error, AttrMask::STATE);
    hand_over(&mut pair.b, Time::ZERO, &records[0], How::Lent);
    assert_eq!(pair.b.engine.counters().dropped(DropReason::WrongQpState), 16);
}

/// READ data that comes twice, as after a timeout: the responder may have deregistered the region then.
#[test]
fn the_payload_of_a_stale_response_is_not_read() {
    let mut pair = Pair::new();
    pair.a.post(1, SendOp::Read { remote: pair.b.remote(0) }, 0, 1 << 14);
    let mut batch = TxBatch::new(TxLimits::default());
    let mut lane = Lane { room: usize::MAX, train: 1 << 14, lends: true, ..Lane::default() };
    pair.a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
    hand_over(&mut pair.b, Time::ZERO, &lane.records.remove(0), How::Lent);
    pair.b.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
    let data = lane.records.remove(0);
    hand_over(&mut pair.a, Time::ZERO, &data, How::Lent);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert!(pair.b.memory.deregister(pair.b.key));
    hand_over(&mut pair.a, Time::ZERO, &data, How::Lent);
    assert_eq!(pair.a.engine.counters().dropped(DropReason::StaleResponse), 16);
}

/// A way that carries longer trains lent than as bytes cannot lend everything: then trains are shorter.
#[test]
fn what_is_not_lent_leaves_in_trains_too() {
    let counts = |pair: &mut Side| {
        let mut batch = TxBatch::new(TxLimits::default());
        let (room, lends, most) = (usize::MAX, true, Some(4 << 10));
        let mut lane = Lane { room, train: 16 << 10, lends, most, ..Lane::default() };
        pair.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
        assert!(batch.is_empty(), "there is always room");
        let what = |record: &Record| (record.count, record.lent.is_some());
        (lane.records.iter().map(what).collect::<Vec<_>>(), lane.records)
    };
    // More pieces than a record may name.
    let mut pair = Pair::with(&attributes(), QpCap { max_send_sge: 16, ..QpCap::default() });
    let sges = (0..16).map(|at| pair.a.sge(at << 10, 1 << 10)).collect();
    let write = SendOp::Write { remote: pair.b.remote(0), imm: None };
    pair.a.qp.post_send(SendRequest::new(1, write, Payload::Sges(sges))).unwrap();
    assert_eq!(counts(&mut pair.a).0, [(4, true), (4, true), (8, true)]);
    // By way of a window.
    let Pair { mut a, mut b, .. } = Pair::new();
    a.post(1, SendOp::Read { remote: Remote { addr: BASE, rkey: window(&b) } }, 0, 1 << 14);
    let (_, request) = counts(&mut a);
    hand_over(&mut b, Time::ZERO, &request[0], How::Lent);
    assert_eq!(counts(&mut b).0, [(4, false); 4]);
}

/// A message that was lost with its payload has taken a receive; the next may name another queue.
#[test]
fn a_receive_is_used_for_its_own_shared_queue_only() {
    let Pair { mut a, mut b, .. } =
        Pair::of(QpType::XrcSend, &attributes(), QpCap::default(), false);
    let len = 16 << 10;
    let other = SharedReceiveQueue::new_xrc(0x13, PD, 64, 4, Arc::clone(&b.cq));
    let other = Arc::new(other);
    assert!(b.qp.init().xrcd.as_ref().unwrap().add(Arc::clone(&other)));
    for (id, srq) in [(7, b.srq.as_ref().unwrap()), (8, &other)] {
        let sges = [b.sge(id << 16, len)].into_iter().collect();
        srq.post_recv(RecvRequest { id, sges }).unwrap();
    }
    let mut batch = TxBatch::new(TxLimits::default());
    let mut lane = Lane { room: usize::MAX, train: len, lends: true, ..Lane::default() };
    // The first packet of a peer comes by itself.
    a.post(0, SendOp::Write { remote: b.remote(0), imm: None }, 0, 8);
    a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
    hand_over(&mut b, Time::ZERO, &lane.records.remove(0), How::Lent);
    a.post(1, SendOp::Send { imm: None }, 0, len);
    a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
    let mut record = lane.records.remove(0);
    record.lent.as_mut().unwrap().tokens[0].value ^= 1;
    hand_over(&mut b, Time::ZERO, &record, How::Lent);
    assert_eq!(b.engine.counters().dropped(DropReason::PayloadGone), 16);
    record.lent.as_mut().unwrap().tokens[0].value ^= 1;
    assert_eq!(record.head[15], 0x12);
    record.head[15] = 0x13;
    hand_over(&mut b, Time::ZERO, &record, How::Lent);
    assert_eq!(b.outcomes(), [(7, Status::WorkRequestFlushed), (8, Status::Success)]);
}

/// What happens next, while records are on their way for as long as that takes.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// A side sends.
    Sends(usize),
    /// The oldest record that a side has sent arrives, so many times.
    Arrives(usize, usize),
    /// So many milliseconds pass.
    Waits(u64),
    /// A side gets all of its memory back.
    TakesBack(usize, Back),
}

fn next() -> impl Strategy<Value = Next> {
    let back = prop::sample::select(
        &[Back::Error, Back::Reset, Back::Destroyed, Back::Deregistered, Back::Reregistered][..],
    );
    prop_oneof![
        20 => (0..2_usize).prop_map(Next::Sends),
        40 => (0..2_usize, prop_oneof![8 => Just(1_usize), 1 => Just(0), 1 => Just(2)])
            .prop_map(|(from, times)| Next::Arrives(from, times)),
        4 => (1..30_u64).prop_map(Next::Waits),
        1 => (0..2_usize, back).prop_map(|(side, back)| Next::TakesBack(side, back)),
    ]
}

/// Messages of the test below, and how far apart they are in memory.
const MESSAGES: usize = 6;
const APART: usize = 80_000;

/// The bytes of a message.
fn text(id: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (1 + (i + id * 37) % 199).to_le_bytes()[0]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Each program writes to its memory as soon as that is its own again. Whatever gets lost or taken back on
    /// the way, who has a success has the bytes that were sent.
    #[test]
    fn a_success_has_the_bytes_that_were_sent(
        work in prop::collection::vec((work(), 1..APART), 1..=MESSAGES),
        nexts in prop::collection::vec(next(), 1..200),
        (train, srq) in (2048..40_000_usize, any::<bool>()),
    ) {
        let Pair { mut a, mut b, .. } = Pair::of(QpType::Rc, &attributes(), QpCap::default(), srq);
        let junk = |side: &Side, at, len| side.fill(at, &vec![0xee; len]);
        // What READs give is behind all other messages.
        let at = |id: usize| (id * APART) as u64;
        let mut is_read = [false; MESSAGES];
        for (id, &(work, len)) in work.iter().enumerate() {
            let to = b.remote(at(id));
            let op = match work {
                Work::Read => {
                    is_read[id] = true;
                    b.fill(at(MESSAGES + id), &text(id, len));
                    SendOp::Read { remote: b.remote(at(MESSAGES + id)) }
                }
                Work::Write => SendOp::Write { remote: to, imm: None },
                Work::WriteWithImmediate { .. } => SendOp::Write { remote: to, imm: Some(1) },
                Work::Send { .. } | Work::SendInvalidate => SendOp::Send { imm: None },
            };
            if !is_read[id] {
                a.fill(at(id), &text(id, len));
            }
            if !matches!(work, Work::Read | Work::Write) {
                b.receive(id as u64, at(id), len);
            }
            a.post(id as u64, op, at(id), len);
        }
        let first = [&a, &b].map(|side| side.bytes(0, MEMORY));
        let (mut ways, mut now) = ([Vec::new(), Vec::new()], Time::ZERO);
        let (mut gone, mut destroyed) = ([false; 2], [false; 2]);
        for next in nexts {
            match next {
                Next::Sends(side) => {
                    let from = if side == 0 { &mut a } else { &mut b };
                    let mut batch =
                        TxBatch::new(TxLimits { batch_bytes: 1 << 20, ..TxLimits::default() });
                    let (room, lends) = (usize::MAX, true);
                    let mut lane = Lane { room, train, lends, ..Lane::default() };
                    from.engine.poll_transmit_with(now, &mut batch, Some(&mut lane));
                    ways[side].append(&mut lane.records);
                }
                Next::Arrives(side, times) if !ways[side].is_empty() => {
                    let record = ways[side].remove(0);
                    let to = if side == 0 { &mut b } else { &mut a };
                    (0..times).for_each(|_| hand_over(to, now, &record, How::Lent));
                }
                Next::Arrives(..) => {}
                Next::Waits(time) => {
                    now = now + Duration::from_millis(time);
                    a.engine.handle_timeout(now);
                    b.engine.handle_timeout(now);
                }
                Next::TakesBack(side, back) => {
                    let of = if side == 0 { &mut a } else { &mut b };
                    let state = |qp_state| QpAttr { qp_state, ..attributes() };
                    match back {
                        Back::Error | Back::Reset if destroyed[side] => {}
                        Back::Error if of.engine.query_qp(of.qp.qpn()).unwrap().qp_state == QpState::Reset => {}
                        Back::Error => of.modify(now, &state(QpState::Err), AttrMask::STATE),
                        Back::Reset => of.modify(now, &state(QpState::Reset), AttrMask::STATE),
                        Back::Destroyed if destroyed[side] => {}
                        Back::Destroyed => {
                            of.engine.destroy_qp(of.qp.qpn()).unwrap();
                            destroyed[side] = true;
                        }
                        Back::Deregistered => {
                            of.memory.deregister(of.key);
                        }
                        _ => {
                            // Other memory, in which the same stands.
                            let buffer = Buffer::zeroed(MEMORY);
                            buffer.span(0, MEMORY as u64).unwrap().write(&first[side]).unwrap();
                            let memory = Some((buffer, BASE));
                            let change = RegionChange { memory, ..RegionChange::default() };
                            let _ = of.memory.reregister(of.key, change);
                        }
                    }
                    gone[side] = true;
                }
            }
            // Those of what has just arrived.
            for done in b.completions() {
                let id = usize::try_from(done.id).unwrap();
                let is_right = b.bytes(at(id), work[id].1) == text(id, work[id].1);
                let is_imm = done.op == CompletionOp::RecvRdmaWithImm;
                if done.status == Status::Success && !gone[1] {
                    prop_assert!(is_imm || is_right, "receive {id}");
                }
            }
            for done in a.completions() {
                let id = usize::try_from(done.id).unwrap();
                let (side, was_gone) = if is_read[id] { (&a, gone[0]) } else { (&b, gone[1]) };
                let is_right = side.bytes(at(id), work[id].1) == text(id, work[id].1);
                if done.status == Status::Success && !was_gone {
                    prop_assert!(is_right, "message {id}");
                }
                if !is_read[id] {
                    junk(&a, at(id), work[id].1);
                }
            }
            for (side, of) in [&a, &b].into_iter().enumerate() {
                // What a side receives is its own, too, but nobody knows then what should be there.
                if gone[side] {
                    junk(of, 0, MEMORY);
                }
            }
        }
    }
}

/// A program may ask for no timeout, and between processes of one host nothing else is lost.
#[test]
fn what_cannot_be_read_is_missed_at_once() {
    let attr = QpAttr { timeout: AckTimeout::new(0).unwrap(), ..attributes() };
    for is_read in [false, true] {
        let Pair { mut a, mut b, .. } = Pair::with(&attr, QpCap::default());
        let len = 16 << 10;
        [&a, &b].into_iter().for_each(|side| side.fill(0, &vec![1; len]));
        let remote = b.remote(if is_read { 0 } else { 500_000 });
        let op =
            if is_read { SendOp::Read { remote } } else { SendOp::Write { remote, imm: None } };
        // The first packet of a peer comes by itself.
        a.post(0, SendOp::Write { remote: b.remote(900_000), imm: None }, 0, 8);
        a.post(1, op, if is_read { 500_000 } else { 0 }, len);
        let mut batch = TxBatch::new(TxLimits::default());
        let mut lane = Lane { room: usize::MAX, train: len, lends: true, ..Lane::default() };
        for _ in 0..4 {
            a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
            for mut record in lane.records.drain(..) {
                record.lent.iter_mut().for_each(|lent| lent.tokens[0].value ^= 1);
                hand_over(&mut b, Time::ZERO, &record, How::Lent);
            }
            b.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
            for mut record in lane.records.drain(..) {
                record.lent.iter_mut().for_each(|lent| lent.tokens[0].value ^= 1);
                hand_over(&mut a, Time::ZERO, &record, How::Lent);
            }
            lane.lends = false;
        }
        let [lost, own] = if is_read { [&a, &b] } else { [&b, &a] };
        assert_eq!(lost.engine.counters().dropped(DropReason::PayloadGone), 16);
        assert_eq!(own.engine.counters().dropped(DropReason::PayloadGone), 0);
        assert_eq!(a.outcomes(), [(0, Status::Success), (1, Status::Success)], "{is_read}");
        let to = if is_read { &a } else { &b };
        assert!(to.bytes(500_000, len) == vec![1; len]);
    }
}

/// What is lent may be lost, which is an error at once without retries.
#[test]
fn who_may_not_try_again_lends_nothing() {
    for (retry_cnt, lends) in [(0, false), (1, true)] {
        let attr = QpAttr { retry_cnt, ..attributes() };
        let Pair { mut a, b, .. } = Pair::with(&attr, QpCap::default());
        a.post(1, SendOp::Write { remote: b.remote(0), imm: None }, 0, 1 << 14);
        let mut batch = TxBatch::new(TxLimits::default());
        let mut lane = Lane { room: usize::MAX, train: 1 << 14, lends: true, ..Lane::default() };
        a.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
        assert_eq!((lane.records[0].count, lane.records[0].lent.is_some()), (16, lends));
    }
}

proptest! {
    /// No program waits for a timeout that it has not asked for, whatever else was on the way.
    #[test]
    fn memory_that_cannot_be_read_stops_nothing(
        work in prop::collection::vec((work(), 1..APART), 1..=MESSAGES),
        (train, srq) in (2048..40_000_usize, any::<bool>()),
        (unreadable, mtu) in (any::<[bool; 2]>(), prop::sample::select(&[Mtu::M256, Mtu::M1024, Mtu::M4096][..])),
    ) {
        let attr =
            QpAttr { timeout: AckTimeout::new(0).unwrap(), path_mtu: mtu, ..attributes() };
        let Pair { mut a, mut b, .. } = Pair::of(QpType::Rc, &attr, QpCap::default(), srq);
        let at = |id: usize| (id * APART) as u64;
        for (id, &(work, len)) in work.iter().enumerate() {
            let (to, imm) = (b.remote(at(id)), None);
            let (op, from) = match work {
                Work::Read => (SendOp::Read { remote: b.remote(at(MESSAGES + id)) }, &b),
                Work::Write => (SendOp::Write { remote: to, imm }, &a),
                Work::WriteWithImmediate { .. } => (SendOp::Write { remote: to, imm: Some(1) }, &a),
                Work::Send { .. } | Work::SendInvalidate => (SendOp::Send { imm }, &a),
            };
            let is_read = matches!(work, Work::Read);
            from.fill(at(if is_read { MESSAGES + id } else { id }), &text(id, len));
            if !matches!(work, Work::Read | Work::Write) {
                b.receive(id as u64, at(id), len);
            }
            a.post(id as u64, op, at(id), len);
        }
        let mut lends = [true; 2];
        for _ in 0..200 {
            for side in 0..2 {
                let (from, to) = if side == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let mut batch = TxBatch::new(TxLimits::default());
                let (room, lends_now) = (usize::MAX, lends[side]);
                let mut lane = Lane { room, train, lends: lends_now, ..Lane::default() };
                from.engine.poll_transmit_with(Time::ZERO, &mut batch, Some(&mut lane));
                for mut record in lane.records {
                    if unreadable[side] && let Some(lent) = &mut record.lent {
                        lent.tokens[0].value ^= 1;
                        lends[side] = false;
                    }
                    hand_over(to, Time::ZERO, &record, How::Lent);
                }
            }
        }
        let success: Vec<_> = (0..work.len()).map(|id| (id as u64, Status::Success)).collect();
        prop_assert_eq!(a.outcomes(), success);
        for (id, &(work, len)) in work.iter().enumerate() {
            let to = if matches!(work, Work::Read) { &a } else { &b };
            prop_assert!(to.bytes(at(id), len) == text(id, len), "message {}", id);
        }
    }
}
