//! What was before the capture is unknown.

use super::*;

/// Packets 3 to 7 are captured; the responder misses one before them, and all are sent again from there.
#[test]
fn packets_lost_before_the_first_one_are_not_lost_behind_the_capture_point() {
    let mut all = OneAddress::default();
    (3..8).for_each(|psn| all.send(0x11, psn));
    all.answer(0x12, 0, 0, Syndrome::Nak(NakCode::PsnSequenceError));
    (0..8).for_each(|psn| all.send(0x11, psn));
    all.answer(0x12, 7, 8, Syndrome::ACK);
    let findings = all.checker.finish().findings;
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((finding.kind, finding.confidence), (Kind::SequenceNak, Confidence::Likely));
    assert!(finding.text.contains("before this capture began"), "{}", finding.text);
    assert!(!finding.text.contains("after the capture point"), "{}", finding.text);
}

/// A packet that was damaged is in the capture: it was not lost before it.
#[test]
fn a_packet_that_was_captured_damaged_is_not_called_lost() {
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    let ip = IpAddr::from([127, 0, 0, 1]);
    let net = NetHeader::outgoing(ip, ip, UDP_PORT);
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::from_wire(0x11), Psn::new(1));
    let mut packet = Vec::new();
    emit::packet_from(&net, &mut packet, &bth, &Ext::default(), &[7; 64]);
    *packet.last_mut().unwrap() ^= 1;
    all.add_packet(&net, &packet);
    all.send(0x11, 2);
    all.answer(0x12, 1, 1, Syndrome::Nak(NakCode::PsnSequenceError));
    all.send(0x11, 1);
    all.send(0x11, 2);
    let findings = all.checker.finish().findings;
    let [damaged, again] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((damaged.kind, again.kind), (Kind::Icrc, Kind::SequenceNak));
    assert!(again.text.starts_with("It was damaged (wrong ICRC): "), "{}", again.text);
}
