//! Coalesced segments ([`Coalesced`](crate::wire::Coalesced)) have the effect of their packets, whatever
//! happens on the way.

use std::time::Duration;

use proptest::prelude::*;

use super::direct_tests::{Lane, Record};
use crate::event::{Counters, RetryCause};
use crate::mem::Buffer;
use crate::qp::{AttrMask, QpAttr, QpCap, QpState, QpType};
use crate::queue::{Completion, SendFlags, SendOp};
use crate::testing::{Pair, Side, attributes, causes};
use crate::types::{AckTimeout, Mtu, Time};
use crate::wire::{Frame, TxBatch, TxLimits};

/// What happens to a record on the way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Arrives,
    IsLost,
    ArrivesTwice,
    /// This many of its packets arrive separately before it.
    ArrivesInPartBefore(usize),
    /// It is replaced by a record with the same headers, but another number of packets and payload size.
    IsAnother {
        count: u16,
        len: usize,
    },
    /// Its opcode is another one of its service.
    HasOtherOpcode(u8),
    /// A byte of its headers is changed.
    HasOtherByte {
        at: usize,
        flip: u8,
    },
    /// Its source address is changed.
    HasOtherSource,
    /// The receiver's memory is deregistered before it arrives.
    MeetsNoMemory,
    /// The receiver's queue pair enters the error state before it arrives.
    MeetsError,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        40 => Just(Fate::Arrives),
        5 => Just(Fate::IsLost),
        2 => Just(Fate::ArrivesTwice),
        3 => (1..6_usize).prop_map(Fate::ArrivesInPartBefore),
        2 => (1..80_u16, prop_oneof![Just(1024_usize), Just(512), (0..275_usize).prop_map(|words| words * 4)])
            .prop_map(|(count, len)| Fate::IsAnother { count, len }),
        2 => (0..0x18_u8).prop_map(Fate::HasOtherOpcode),
        2 => (0..40_usize, any::<u8>()).prop_map(|(at, flip)| Fate::HasOtherByte { at, flip }),
        1 => Just(Fate::HasOtherSource),
        1 => Just(Fate::MeetsNoMemory),
        1 => Just(Fate::MeetsError),
    ]
}

/// A request that a program posts to one side.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Send { receive: usize },
    SendInvalidate,
    Write,
    WriteWithImmediate { receive: bool },
    Read,
}

pub(super) fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        // Some messages are longer.
        (1..60_000_usize).prop_map(|receive| Work::Send { receive }),
        Just(Work::Send { receive: LONGEST }),
        Just(Work::SendInvalidate),
        Just(Work::Write),
        any::<bool>().prop_map(|receive| Work::WriteWithImmediate { receive }),
        Just(Work::Read),
    ]
}

/// Bytes of a message: more than the window, or than one READ request asks for.
const LONGEST: usize = 400_000;

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![2 => 1..60_000_usize, 1 => 1..LONGEST]
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    service: QpType,
    /// Receives are posted to shared queues.
    srq: bool,
    work: Vec<(Work, usize)>,
    fates: Vec<Fate>,
    coalesced: usize,
    mtu: Mtu,
    /// Packets arrive as "ECN capable", as they were sent.
    ecn: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let services = prop_oneof![
        4 => Just((QpType::Rc, false)),
        1 => Just((QpType::Rc, true)),
        3 => Just((QpType::Uc, false)),
        1 => Just((QpType::XrcSend, false)),
    ];
    let work = prop::collection::vec((work(), len()), 1..5);
    let fates = prop::collection::vec(fate(), 1..100);
    let mtu = prop::sample::select(&[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M1024, Mtu::M4096][..]);
    (services, work, fates, 2048..40_000_usize, mtu, any::<bool>()).prop_map(
        |((service, srq), work, fates, coalesced, mtu, ecn)| Case {
            service,
            srq,
            work,
            fates,
            coalesced,
            mtu,
            ecn,
        },
    )
}

/// How coalesced segments reach the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// As single packets.
    Coalesced,
    Together,
}

/// Hands a coalesced segment over as it is, or its packets.
pub(super) fn hand_over(to: &mut Side, now: Time, record: &Record, how: How) {
    let coalesced = record.coalesced();
    let packets: Vec<_> =
        if how == How::Coalesced { coalesced.packets().collect() } else { vec![coalesced] };
    let frame = Frame { coalesced: &packets, ..Frame::single(record.net, &[]) };
    to.engine.handle_frame(now, &frame);
}

/// A packet as on a wire, and the type of service that it is sent with.
pub(super) type Sent = (u8, Vec<u8>);

/// Carries the packets of one side. Returns them as on a wire, and the number of coalesced segments.
fn carry(
    (from, to): (&mut Side, &mut Side),
    now: Time,
    case: &Case,
    fates: &mut impl Iterator<Item = Fate>,
    how: How,
) -> (Vec<Sent>, usize) {
    // Larger than the window.
    let mut batch = TxBatch::new(TxLimits { batch_bytes: 1 << 20, ..TxLimits::default() });
    let mut lane = Lane { room: usize::MAX, coalesced: case.coalesced, ..Lane::default() };
    from.engine.poll_transmit_with(now, &mut batch, Some(&mut lane));
    assert!(batch.is_empty(), "there is always room");
    let (mut all, mut segments) = (Vec::new(), 0);
    for record in &mut lane.records {
        segments += usize::from(record.count > 1);
        let coalesced = [record.coalesced()];
        let frame = Frame { coalesced: &coalesced, ..Frame::single(record.net, &[]) };
        frame.for_each_whole(&mut Vec::new(), &mut |whole| {
            all.push((whole.net.tos, whole.payload.to_vec()));
        });
        if !case.ecn {
            record.net.tos &= !0b11;
        }
        match fates.next().unwrap_or(Fate::Arrives) {
            Fate::IsLost => continue,
            Fate::ArrivesTwice => hand_over(to, now, record, how),
            Fate::ArrivesInPartBefore(count) => {
                let some: Vec<_> = record.coalesced().packets().take(count).collect();
                let frame = Frame { coalesced: &some, ..Frame::single(record.net, &[]) };
                to.engine.handle_frame(now, &frame);
            }
            Fate::MeetsNoMemory => {
                to.memory.deregister(to.key);
            }
            Fate::MeetsError => {
                let attr = QpAttr { qp_state: QpState::Err, ..attributes() };
                to.modify(now, &attr, AttrMask::STATE);
            }
            Fate::IsAnother { count, len } => {
                let payload = Buffer::zeroed(usize::from(count) * len);
                let head = record.head.clone();
                hand_over(to, now, &Record { net: record.net, head, payload, count }, how);
                continue;
            }
            Fate::HasOtherOpcode(opcode) => record.head[0] = record.head[0] & 0xe0 | opcode,
            Fate::HasOtherByte { at, flip } => {
                record.head.get_mut(at).into_iter().for_each(|byte| *byte ^= flip);
            }
            Fate::HasOtherSource => {
                record.net.src = record.net.dst;
            }
            Fate::Arrives => {}
        }
        hand_over(to, now, record, how);
    }
    (all, segments)
}

/// The results of both sides; last, how many receives are left in their shared queues.
pub(super) type Outcome = [(Counters, Vec<Completion>, Vec<u8>, String, u32); 2];

/// All packets as on a wire, the results of both sides, and the number of coalesced segments.
pub(super) fn play(case: &Case, how: How) -> (Vec<Sent>, Outcome, usize) {
    let attr = QpAttr { rnr_retry: 1, retry_cnt: 2, path_mtu: case.mtu, ..attributes() };
    let Pair { mut a, mut b, .. } = Pair::of(case.service, &attr, QpCap::default(), case.srq);
    let bytes: Vec<u8> = (0..LONGEST).map(|i| (i % 251).to_le_bytes()[0]).collect();
    a.fill(0, &bytes);
    b.fill(0, &bytes);
    b.srq.iter().for_each(|srq| srq.set_limit(2).unwrap());
    // All messages go to the same place.
    let to = 500_000;
    for (id, &(work, len)) in (0..).zip(&case.work) {
        match work {
            Work::Send { receive } => {
                b.receive(id, to, receive);
                a.post(id, SendOp::Send { imm: None }, 0, len);
            }
            Work::SendInvalidate if case.service == QpType::Uc => {}
            Work::SendInvalidate => {
                b.receive(id, to, LONGEST);
                // The key belongs to no window, so the request is refused.
                a.post(id, SendOp::SendInvalidate { rkey: b.key }, 0, len);
            }
            Work::WriteWithImmediate { receive } => {
                if receive {
                    b.receive(id, 0, 0);
                }
                let op = SendOp::Write { remote: b.remote(to), imm: Some(7) };
                a.post_with(id, op, 0, len, SendFlags::SIGNALED | SendFlags::SOLICITED);
            }
            Work::Write => {
                let remote = b.remote(to);
                a.post(id, SendOp::Write { remote, imm: None }, 0, len);
            }
            Work::Read if case.service == QpType::Uc => {}
            Work::Read => {
                a.post(id, SendOp::Read { remote: b.remote(0) }, to, len);
            }
        }
    }
    let mut fates = case.fates.iter().copied();
    let (mut all, mut segments, mut now) = (Vec::new(), 0, Time::ZERO);
    for _ in 0..200 {
        let there = carry((&mut a, &mut b), now, case, &mut fates, how);
        let back = carry((&mut b, &mut a), now, case, &mut fates, how);
        segments += there.1 + back.1;
        all.extend(there.0);
        all.extend(back.0);
        now = now + Duration::from_millis(1);
        a.engine.handle_timeout(now);
        b.engine.handle_timeout(now);
    }
    let outcome = [a, b].map(|mut side| {
        let counters = side.engine.counters().clone();
        let events = format!("{:?}", side.events());
        let left = side.srq.as_ref().map_or(0, |srq| srq.len());
        (counters, side.completions(), side.bytes(to, LONGEST), events, left)
    });
    (all, outcome, segments)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_coalesced_segment_has_the_effect_of_its_packets(case in case()) {
        let (packets, outcome, _) = play(&case, How::Coalesced);
        let (same_packets, same_outcome, _) = play(&case, How::Together);
        prop_assert!(packets == same_packets, "the packets of both sides are the same");
        for (side, (should_be, is)) in outcome.iter().zip(&same_outcome).enumerate() {
            prop_assert_eq!(&is.0, &should_be.0, "counters of side {}", side);
            prop_assert_eq!(&is.1, &should_be.1, "completions of side {}", side);
            prop_assert!(is.2 == should_be.2, "memory of side {}", side);
            prop_assert_eq!(&is.3, &should_be.3, "events of side {}", side);
            prop_assert_eq!(is.4, should_be.4, "receives of side {}", side);
        }
    }
}

#[test]
fn a_coalesced_segment_that_goes_on_behind_a_read_has_the_effect_of_its_packets() {
    // Two requests, the first packet of the response, and a coalesced segment that does not end where it should.
    let another = Fate::IsAnother { count: 64, len: 1024 };
    let fates = vec![Fate::Arrives, Fate::Arrives, Fate::Arrives, another];
    let work = vec![(Work::Read, 60_000), (Work::Read, 60_000)];
    let case = Case { fates, ..quiet(QpType::Rc, work, 16 << 10) };
    let (packets, outcome, segments) = play(&case, How::Together);
    assert!(segments > 0 && (packets, outcome, segments) == play(&case, How::Coalesced));
}

#[test]
fn a_long_message_leaves_in_coalesced_segments() {
    for (work, service) in
        [(Work::Write, QpType::Rc), (Work::Write, QpType::Uc), (Work::Read, QpType::Rc)]
    {
        // 58 packets, of which 16 are in a coalesced segment.
        let (same, segments) = without_faults(service, &[(work, 59_000)], 16 << 10);
        assert_eq!(segments, 4, "{work:?} {service:?}");
        assert!((same, 0) == without_faults(service, &[(work, 59_000)], 2047));
    }
}

#[test]
fn a_message_of_two_packets_is_a_coalesced_segment() {
    for len in [1025, 2048] {
        for (work, service) in
            [(Work::Write, QpType::Rc), (Work::Write, QpType::Uc), (Work::Read, QpType::Rc)]
        {
            let (same, segments) = without_faults(service, &[(work, len)], 2048);
            assert_eq!(segments, 1, "{work:?} {service:?}");
            assert!((same, 0) == without_faults(service, &[(work, len)], 0));
        }
    }
}

/// The READ is answered immediately, so that acknowledgements are asked for at unusual places.
#[test]
fn trains_are_cut_where_the_window_ends() {
    let work = [(Work::Write, 3000), (Work::Read, 20_000), (Work::Write, LONGEST)];
    let (same, segments) = without_faults(QpType::Rc, &work, 64 << 10);
    assert!(segments > 10);
    assert!((same, 0) == without_faults(QpType::Rc, &work, 0));
}

/// A case in which all packets arrive.
pub(super) fn quiet(service: QpType, work: Vec<(Work, usize)>, coalesced: usize) -> Case {
    let fates = Vec::new();
    Case { service, srq: false, work, fates, coalesced, mtu: Mtu::M1024, ecn: true }
}

/// If the first packet of a WRITE fails, its last packet must not take a receive from the shared queue.
#[cfg(all(target_arch = "x86_64", not(any(miri, fuzzing, sanitized))))]
#[test]
fn a_coalesced_segment_into_memory_that_is_gone_leaves_the_shared_queue_its_receive() {
    use crate::queue::Remote;
    use crate::testing::{ALL, PD, faults::faulting_page};
    for service in [QpType::Rc, QpType::Uc] {
        let Pair { mut a, mut b, .. } = Pair::of(service, &attributes(), QpCap::default(), true);
        let rkey = b.memory.register(PD, faulting_page(), 0x5000, ALL, || 0x700).unwrap();
        b.receive(7, 0, 0);
        let nowhere = Remote { addr: 0x5000, rkey };
        // The first packet of a peer is received separately.
        for (id, remote, imm, len) in [(0, b.remote(0), None, 8), (1, nowhere, Some(1), 3000)] {
            a.post(id, SendOp::Write { remote, imm }, 0, len);
            let (case, mut fates) = (quiet(service, Vec::new(), 16 << 10), std::iter::empty());
            let (_, segments) =
                carry((&mut a, &mut b), Time::ZERO, &case, &mut fates, How::Together);
            assert_eq!(segments as u64, id);
        }
        assert_eq!(b.outcomes(), [], "{service:?}");
        assert_eq!(b.srq.as_ref().unwrap().len(), 1, "{service:?}");
    }
}

/// All packets, the packets and bytes that each side has counted, and the number of coalesced segments.
fn without_faults(
    service: QpType,
    work: &[(Work, usize)],
    coalesced: usize,
) -> ((Vec<Sent>, [[u64; 4]; 2]), usize) {
    let case = quiet(service, work.to_vec(), coalesced);
    let (packets, outcome, segments) = play(&case, How::Together);
    let counted = outcome.map(|(c, ..)| [c.sent_pkts, c.sent_bytes, c.rcvd_pkts, c.rcvd_bytes]);
    ((packets, counted), segments)
}

/// The first wait without a measurement is 5 ms; after a measurement it is much shorter.
#[test]
fn only_the_last_packet_of_a_coalesced_segment_is_timed() {
    let attr = QpAttr { timeout: AckTimeout::new(14).unwrap(), ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let write = SendOp::Write { remote: pair.b.remote(0), imm: None };
    // Round trips are timed after the first loss.
    let mut sent = 0;
    pair.fate = Box::new(move |_| {
        sent += 1;
        usize::from(sent != 3)
    });
    pair.a.post(1, write, 0, 10 * 1024);
    pair.run_until_idle();
    assert_eq!(causes(&pair.a.events()), [RetryCause::SequenceNak]);
    // The second packet of a coalesced segment is lost, and what is sent again then is too.
    pair.a.post(2, write, 0, 3 * 1024);
    let mut batch = TxBatch::new(TxLimits::default());
    let mut lane = Lane { room: 1, coalesced: 3 * 1024, ..Lane::default() };
    pair.a.engine.poll_transmit_with(pair.now, &mut batch, Some(&mut lane));
    let coalesced = &lane.records[0];
    let packets: Vec<_> = coalesced.coalesced().packets().collect();
    let arrived = [packets[0], packets[2]];
    let frame = Frame { coalesced: &arrived, ..Frame::single(coalesced.net, &[]) };
    pair.b.engine.handle_frame(pair.now, &frame);
    pair.fate = Box::new(|sent| usize::from(!sent.forward));
    pair.run(Duration::from_millis(4));
    assert_eq!(causes(&pair.a.events()), [RetryCause::SequenceNak]);
}
