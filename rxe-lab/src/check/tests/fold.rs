//! A cause that goes on is one finding, and everything is counted.

use super::*;

const RNR: Syndrome = Syndrome::RnrNak { timer: RnrTimer::from_wire(12) };

#[test]
fn a_message_that_finds_no_receive_again_and_again_is_one_finding() {
    let mut all = OneAddress::default();
    for _ in 0..1500 {
        all.send(0x11, 5);
        all.answer(0x12, 5, 0, RNR);
    }
    all.send(0x11, 5);
    all.answer(0x12, 5, 1, Syndrome::ACK);
    let report = all.checker.finish();
    let [rnr] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((rnr.kind, rnr.count), (Kind::Rnr, 1500));
    assert_eq!((rnr.frames.len(), rnr.frames[..3].to_vec()), (MAX_FRAMES, vec![1, 2, 3]));
    let millis = |n: u64| Duration::from_micros(100 * n);
    assert_eq!(rnr.span, (millis(2), millis(3000)));
    assert_eq!(report.kinds, [Tally { kind: Kind::Rnr, count: 1500, connections: 1 }]);
    assert_eq!(report.count(Severity::Warning), 1500);
}

#[test]
fn every_damaged_packet_is_counted() {
    let mut all = OneAddress::default();
    for psn in 0..100 {
        all.send(0x11, psn);
    }
    let ip = IpAddr::from([127, 0, 0, 1]);
    let net = NetHeader::outgoing(ip, ip, UDP_PORT);
    for psn in 100..197 {
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::from_wire(0x11), Psn::new(psn));
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &Ext::default(), &[7; 64]);
        *packet.last_mut().unwrap() ^= 1;
        all.add_packet(&net, &packet);
    }
    let report = all.checker.finish();
    let [icrc] = &report.findings[..] else { panic!("{:#?}", report.findings) };
    assert_eq!((icrc.kind, icrc.count, icrc.psn), (Kind::Icrc, 97, 100));
    assert_eq!(icrc.frames, (101..109).collect::<Vec<_>>());
    assert_eq!(report.kinds, [Tally { kind: Kind::Icrc, count: 97, connections: 1 }]);
}

/// The figures in a text differ from one occurrence to the next.
#[test]
fn lengths_that_are_wrong_again_are_one_finding_and_another_cause_is_another() {
    let mut all = OneAddress::default();
    for (psn, len) in (0..).zip([100, 101, 102]) {
        all.packet(0x11, Opcode::RC_SEND_FIRST, 2 * psn, Ext::default(), &[7; 256]);
        all.packet(0x11, Opcode::RC_SEND_LAST, 2 * psn + 1, Ext::default(), &[7; 512][..256 + len]);
    }
    all.packet(0x11, Opcode::RC_SEND_FIRST, 6, Ext::default(), &[7; 300]);
    let findings = all.checker.finish().findings;
    let [last, first] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((last.count, &last.frames[..]), (3, &[2, 4, 6][..]));
    assert_eq!(last.text, "The first time: The payload of RC_SEND_LAST has 356 bytes.");
    assert_eq!((first.count, &first.frames[..]), (1, &[7][..]));
}

#[test]
fn an_error_is_found_behind_many_warnings() {
    let mut all = OneAddress::default();
    for psn in 0..11_000 {
        all.send(0x11, psn);
        all.answer(0x12, psn, psn, RNR);
        all.send(0x11, psn);
        all.answer(0x12, psn, psn + 1, Syndrome::Ack { credits: Syndrome::NO_CREDITS });
    }
    all.send(0x11, 11_000);
    all.answer(0x12, 11_000, 11_000, NAK);
    let report = all.checker.finish();
    let counts = [Severity::Error, Severity::Warning].map(|severity| report.count(severity));
    assert_eq!((counts, report.findings.len(), report.more_findings), ([1, 11_000], 2, 0));
    assert_eq!(report.kinds[0].kind, Kind::RemoteAccess, "errors come first");
}

/// Findings are kept up to a number. Beyond it they are counted.
#[test]
fn findings_that_are_not_kept_are_counted() {
    let mut findings = super::super::fold::Findings::default();
    let mut found = Found::new(LOOPBACK, LOOPBACK, 0);
    for qp in 0..u32::try_from(MAX_FINDINGS).unwrap() + 5 {
        found.dest_qp = qp;
        let place = (Psn::ZERO, (Duration::ZERO, Duration::ZERO));
        found.push(Kind::Lost, Confidence::Likely, place, vec![1], String::new());
        found.findings.drain(..).for_each(|new| findings.add(new));
    }
    let mut checker = Checker { findings, ..Checker::default() };
    assert_eq!(checker.findings.more, 5);
    let (kept, kinds, _) = checker.take_findings();
    let all = MAX_FINDINGS + 5;
    assert_eq!(kept.len(), MAX_FINDINGS);
    assert_eq!(kinds, [Tally { kind: Kind::Lost, count: all as u64, connections: all }]);
}

#[test]
fn all_frames_of_a_kind_can_be_asked_for() {
    let mut all = OneAddress::default();
    all.checker.collect_frames_of([Kind::Rnr]);
    for _ in 0..20 {
        all.send(0x11, 5);
        all.answer(0x12, 5, 0, RNR);
    }
    let report = all.checker.finish();
    assert_eq!(report.frames, (1..=40).collect());
}

/// Damage in the answers belongs to the same connection as what it leads to.
#[test]
fn both_directions_of_a_connection_count_once() {
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    let ip = IpAddr::from([127, 0, 0, 1]);
    let net = NetHeader::outgoing(ip, ip, UDP_PORT);
    for (qp, opcode) in [(0x11, Opcode::RC_SEND_ONLY), (0x12, Opcode::RC_ACKNOWLEDGE)] {
        let bth = Bth::new(opcode, Qpn::from_wire(qp), Psn::new(1));
        let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 2 });
        let ext = Ext { aeth: aeth.filter(|_| qp == 0x12), ..Ext::default() };
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &ext, &[]);
        *packet.last_mut().unwrap() ^= 1;
        all.add_packet(&net, &packet);
    }
    let report = all.checker.finish();
    assert_eq!(report.kinds, [Tally { kind: Kind::Icrc, count: 2, connections: 1 }]);
}

/// Anyone can make malformed packets with any address.
#[test]
fn connections_are_remembered_up_to_a_number() {
    let mut findings = super::super::fold::Findings::default();
    let mut found = Found::new(LOOPBACK, LOOPBACK, 0);
    for qp in 0..=u32::try_from(MAX_REMEMBERED).unwrap() {
        found.dest_qp = qp;
        let place = (Psn::ZERO, (Duration::ZERO, Duration::ZERO));
        found.push(Kind::Malformed, Confidence::Certain, place, vec![1], String::new());
        found.findings.drain(..).for_each(|new| findings.add(new));
    }
    let (_, kinds, _) = Checker { findings, ..Checker::default() }.take_findings();
    let (count, connections) = (MAX_REMEMBERED as u64 + 1, MAX_REMEMBERED);
    assert_eq!(kinds, [Tally { kind: Kind::Malformed, count, connections }]);
}

#[test]
fn findings_that_are_removed_leave_room_for_others() {
    let mut findings = super::super::fold::Findings::default();
    let mut found = Found::new(LOOPBACK, LOOPBACK, 0);
    let place = (Psn::ZERO, (Duration::ZERO, Duration::ZERO));
    for qp in 0..u32::try_from(MAX_FINDINGS).unwrap() {
        found.dest_qp = qp;
        found.push(Kind::NotCaptured, Confidence::Likely, place, vec![1], String::new());
        found.findings.drain(..).for_each(|new| findings.add(new));
    }
    findings.keep_only(|kind| kind != Kind::NotCaptured);
    found.push(Kind::TwoPlaces, Confidence::Likely, place, vec![1], String::new());
    findings.add(found.findings.remove(0));
    let (kept, ..) = Checker { findings, ..Checker::default() }.take_findings();
    assert_eq!(kept.iter().map(|it| it.kind).collect::<Vec<_>>(), [Kind::TwoPlaces]);
}
