//! Datagrams.

use rxe_core::types::Qkey;
use rxe_core::wire::Deth;

use super::*;

const KEY: u32 = 0x1111_1111;

impl OneAddress {
    /// Adds a datagram from queue pair `from` to `qp` at 127.0.0.`to`.
    pub(super) fn datagram(
        &mut self,
        from: u32,
        (to, qp): (u8, u32),
        psn: u32,
        key: u32,
        payload: &[u8],
    ) {
        let deth = Some(Deth::new(Qkey::new(key), Qpn::from_wire(from)));
        let ext = Ext { deth, ..Ext::default() };
        let to = IpAddr::from([127, 0, 0, to]);
        self.packet_to(to, qp, Opcode::UD_SEND_ONLY, psn, ext, payload);
    }

    /// Adds datagrams of 64 bytes with these PSNs.
    fn datagrams(mut self, psns: &[u32]) -> Self {
        psns.iter().for_each(|psn| self.datagram(0x12, (2, 0x11), *psn, KEY, &[7; 64]));
        self
    }

    fn kinds(self) -> Vec<(Kind, Vec<u64>)> {
        let findings = self.checker.finish().findings.into_iter();
        findings.map(|finding| (finding.kind, finding.frames)).collect()
    }

    fn sender(self) -> DatagramSender {
        self.checker.finish().datagrams.remove(0)
    }
}

#[test]
fn datagrams_are_counted_by_sender_and_destination() {
    let mut all = OneAddress::default();
    all.datagram(0x12, (2, 0x11), 0, KEY, &[7; 100]);
    all.datagram(0x12, (3, 0x11), 1, KEY, &[7; 20]);
    all.datagram(0x12, (2, 0x11), 2, KEY, &[7; 100]);
    all.datagram(0x12, (2, 0x13), 3, 0x8001_0000, &[]);
    all.datagram(0x14, (2, 0x11), 77, KEY, &[7; 4]);
    let report = all.checker.finish();
    let of = |sender: &DatagramSender| {
        let ways = sender.destinations.iter();
        let ways: Vec<_> =
            ways.map(|w| (w.to.to_string(), w.dest_qp, w.stats.requests, w.stats.bytes)).collect();
        (sender.qp, sender.missing, ways)
    };
    let ip = |n| format!("127.0.0.{n}");
    let first = vec![(ip(2), 0x11, 2, 200), (ip(3), 0x11, 1, 20), (ip(2), 0x13, 1, 0)];
    let all: Vec<_> = report.datagrams.iter().map(of).collect();
    assert_eq!(all, [(0x12, 0, first), (0x14, 0, vec![(ip(2), 0x11, 1, 4)])]);
    assert_eq!(report.findings, []);
    let controlled: Vec<_> =
        report.datagrams[0].destinations.iter().map(DatagramsTo::is_controlled).collect();
    assert_eq!(controlled, [false, false, true]);
}

#[test]
fn psns_that_are_missing_are_a_note() {
    let all = || OneAddress::default().datagrams(&[0xff_fffe, 0xff_ffff, 1, 2, 5]);
    assert_eq!(all().kinds(), [(Kind::DatagramsMissing, vec![3, 5])]);
    assert_eq!(Kind::DatagramsMissing.severity(), Severity::Note);
    assert_eq!(all().sender().missing, 3);
    // The missing datagrams come late.
    let all = || OneAddress::default().datagrams(&[0, 3, 1, 4, 2]);
    assert_eq!(all().kinds(), []);
    let sender = all().sender();
    assert_eq!((sender.missing, sender.late), (0, 2));
}

#[test]
fn a_queue_pair_that_begins_anew_has_lost_nothing() {
    let all = || OneAddress::default().datagrams(&[5, 6, 0x70_0000, 0x70_0001, 3]);
    assert_eq!(all().kinds(), []);
    assert_eq!(all().sender().missing, 0);
    // The queue pair may also be reset to the same PSN; the payload differs then.
    let mut all = OneAddress::default().datagrams(&[0, 1, 2]);
    (0..4).for_each(|psn| all.datagram(0x12, (2, 0x11), psn, KEY, &[8; 64]));
    let sender = all.sender();
    assert_eq!((sender.missing, sender.duplicated), (0, 0));
    assert_eq!(sender.destinations[0].stats.requests, 7);
}

#[test]
fn a_datagram_that_comes_twice_is_counted_once() {
    let all = || OneAddress::default().datagrams(&[0, 1, 0, 1, 2]);
    assert_eq!(all().kinds(), [(Kind::Duplicate, vec![1, 3])]);
    let sender = all().sender();
    assert_eq!((sender.missing, sender.duplicated), (0, 2));
    assert_eq!(sender.destinations[0].stats.requests, 3);
    // Each member of a multicast group may get a copy.
    let mut all = OneAddress::default();
    for psn in [0, 1, 1, 0, 2] {
        all.datagram(0x12, (2, 0xff_ffff), psn, KEY, &[7; 64]);
    }
    assert_eq!(all.kinds(), []);
}

#[test]
fn two_q_keys_by_turns_are_reported() {
    for (keys, qp, expected) in [
        (&[1, 1, 2, 2][..], 0x11, vec![]),
        (&[1, 2, 1, 2, 1], 0x11, vec![(Kind::QKey, vec![1, 2, 3])]),
        // Members of a multicast group may have different Q_Keys.
        (&[1, 2, 1], 0xff_ffff, vec![]),
    ] {
        let mut all = OneAddress::default();
        for (psn, key) in keys.iter().enumerate() {
            all.datagram(0x12, (2, qp), u32::try_from(psn).unwrap(), *key, &[]);
        }
        assert_eq!(all.kinds(), expected, "{keys:?}");
    }
}

#[test]
fn a_datagram_must_fit_a_packet() {
    for (len, expected) in [(4096, vec![]), (4097, vec![(Kind::Length, vec![1])])] {
        let mut all = OneAddress::default();
        all.datagram(0x12, (2, 0x11), 0, KEY, &vec![7; len]);
        assert_eq!(all.kinds(), expected, "{len}");
    }
    // UD has no opcode FIRST.
    let mut all = OneAddress::default();
    all.frame_with_opcode(0x60);
    assert_eq!(all.kinds(), [(Kind::Malformed, vec![1])]);
    // RD and vendor-defined opcodes belong to other services.
    let mut all = OneAddress::default();
    all.frame_with_opcode(0x44);
    all.frame_with_opcode(0xc4);
    assert_eq!(all.kinds(), []);
}

impl OneAddress {
    /// Adds a packet with this opcode and a right ICRC.
    fn frame_with_opcode(&mut self, opcode: u8) {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let net = NetHeader::outgoing(ip, ip, UDP_PORT);
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::from_wire(0x11), Psn::new(0));
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &Ext::default(), &[7; 64]);
        packet[0] = opcode;
        packet.truncate(packet.len() - rxe_core::wire::icrc::LEN);
        rxe_core::wire::icrc::append(&net, &mut packet, 0);
        self.add_packet(&net, &packet);
    }
}

#[test]
fn management_datagrams_are_left_out() {
    let mut all = OneAddress::default();
    for psn in [0, 5] {
        all.datagram(1, (2, 1), psn, 0x8001_0000, &[0; 256]);
    }
    let report = all.checker.finish();
    assert!(report.datagrams.is_empty() && report.findings.is_empty());
}
