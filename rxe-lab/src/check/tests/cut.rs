//! Truncated frames of several packets.

use super::*;

const FIRST: Opcode = Opcode::RC_SEND_FIRST;
const MIDDLE: Opcode = Opcode::RC_SEND_MIDDLE;
const LAST: Opcode = Opcode::RC_SEND_LAST;
const ONLY: Opcode = Opcode::RC_SEND_ONLY;

impl OneAddress {
    /// Captures like `tcpdump -s 96`.
    fn snapped() -> Self {
        Self { snaplen: Some(96), ..Self::default() }
    }

    /// Adds a frame of packets with 256 bytes of payload each; `first` is the first PSN.
    fn joined(&mut self, qp: u32, first: u32, opcodes: &[Opcode]) {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let net = NetHeader::outgoing(ip, ip, UDP_PORT);
        let mut all = Vec::new();
        for (psn, opcode) in (first..).zip(opcodes) {
            let bth = Bth::new(*opcode, Qpn::from_wire(qp), Psn::new(psn));
            let has_aeth = opcode.info().unwrap().has_aeth;
            let aeth = has_aeth.then_some(Aeth { syndrome: Syndrome::ACK, msn: self.msn });
            let ext = Ext { aeth, ..Ext::default() };
            let mut packet = Vec::new();
            emit::packet_from(&net, &mut packet, &bth, &ext, &[7; 256]);
            all.extend(packet);
        }
        self.add_packet(&net, &all);
    }

    /// Adds a message of 16 packets in two such frames.
    fn message(&mut self, first: u32) {
        let opcodes = [&[FIRST][..], &[MIDDLE; 14], &[LAST]].concat();
        self.joined(0x11, first, &opcodes[..8]);
        self.joined(0x11, first + 8, &opcodes[8..]);
    }

    /// Returns the kinds of findings, each once.
    fn kinds_of(self) -> Vec<Kind> {
        let mut kinds: Vec<_> = self.said().into_iter().map(|(kind, _)| kind).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    }

    fn said(self) -> Vec<(Kind, String)> {
        let findings = self.checker.finish().findings;
        findings.into_iter().map(|finding| (finding.kind, finding.text)).collect()
    }
}

#[test]
fn packets_that_a_cut_frame_may_have_had_are_not_missing() {
    let mut all = OneAddress::snapped();
    // The answer to each message has a PSN that was not captured.
    for n in 0..3 {
        all.message(16 * n);
        all.answer(0x12, 16 * n + 15, n + 1, Syndrome::ACK);
    }
    let report = all.checker.finish();
    let [note] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((note.kind, note.kind.severity()), (Kind::CutFrames, Severity::Note));
    assert_eq!(note.frames, [1, 2, 4, 5]);
    assert!(note.text.starts_with("6 frames were captured in part"), "{}", note.text);
    assert!(note.text.contains("rxe run --no-gso"), "{}", note.text);
    assert_eq!(report.directions[0].source_qp, Some(0x12));
    assert_eq!(report.directions[0].stats.acks.count, 3);
}

#[test]
fn what_is_sent_again_of_a_cut_frame_is_no_first_transmission() {
    let mut all = OneAddress::snapped();
    all.message(0);
    all.answer(0x12, 5, 0, Syndrome::Nak(NakCode::PsnSequenceError));
    // The retransmission begins at the PSN in the NAK.
    all.joined(0x11, 5, &[MIDDLE; 8]);
    all.joined(0x11, 13, &[MIDDLE, MIDDLE, LAST]);
    all.message(16);
    all.answer(0x12, 31, 2, Syndrome::ACK);
    assert_eq!(all.kinds_of(), [Kind::SequenceNak, Kind::CutFrames]);
}

#[test]
fn a_repetition_may_reach_further_than_what_was_sent_before() {
    let mut all = OneAddress::snapped();
    all.joined(0x11, 0, &[ONLY; 4]);
    all.answer(0x12, 2, 2, Syndrome::Nak(NakCode::PsnSequenceError));
    all.joined(0x11, 2, &[ONLY; 8]);
    all.joined(0x11, 10, &[ONLY; 4]);
    all.answer(0x12, 13, 14, Syndrome::ACK);
    assert_eq!(all.kinds_of(), [Kind::SequenceNak, Kind::CutFrames]);
}

#[test]
fn more_than_a_cut_frame_can_hold_is_missing() {
    let mut all = OneAddress::snapped();
    // The frame has at most four packets, of 44 bytes or more.
    all.ask(Duration::from_micros(100), ONLY, 0, &[7; 150]);
    all.ask(Duration::from_micros(100), ONLY, 104, &[7; 8]);
    all.answer(0x12, 104, 105, Syndrome::ACK);
    let said = all.said();
    let missing = said.iter().find(|(kind, _)| *kind == Kind::NotCaptured);
    let (_, text) = missing.unwrap_or_else(|| panic!("{said:?}"));
    assert!(text.starts_with("100 requests were answered"), "{text}");
}

/// The RETH of a single-packet WRITE was captured, and shows where the frame ends.
#[test]
fn nothing_hides_behind_a_write_of_one_packet() {
    for (announced, expected) in [(200, Kind::NotCaptured), (90, Kind::CutFrames)] {
        let mut all = OneAddress::snapped();
        for psn in [0, 2] {
            let reth = Some(Reth { va: 0, rkey: Key(1), dma_len: announced });
            let ext = Ext { reth, ..Ext::default() };
            all.packet(0x11, Opcode::RC_WRITE_ONLY, psn, ext, &[7; 200]);
        }
        all.answer(0x12, 2, 3, Syndrome::ACK);
        assert_eq!(all.kinds_of(), [expected], "{announced}");
    }
}

#[test]
fn a_cut_frame_fills_a_gap_with_all_that_it_may_have_had() {
    let mut all = OneAddress::snapped();
    all.send(0x11, 0);
    all.send(0x11, 9);
    all.answer(0x12, 1, 1, Syndrome::Nak(NakCode::PsnSequenceError));
    all.joined(0x11, 1, &[ONLY; 8]);
    all.send(0x11, 9);
    all.answer(0x12, 9, 10, Syndrome::ACK);
    assert_eq!(all.kinds_of(), [Kind::SequenceNak, Kind::CutFrames]);
}

#[test]
fn responses_of_a_cut_frame_are_no_wrong_ones_and_not_missing() {
    use Opcode as O;
    let responses = [&[O::RC_READ_RESPONSE_FIRST][..], &[O::RC_READ_RESPONSE_MIDDLE; 14]].concat();
    let mut all = OneAddress::snapped();
    all.ask(Duration::from_micros(100), FIRST, 0, &[7; 256]);
    all.ask(Duration::from_micros(100), LAST, 1, &[7; 8]);
    all.answer(0x12, 1, 1, Syndrome::ACK);
    all.msn = 2;
    all.read(0x11, 2, 256 * 16);
    all.joined(0x12, 2, &responses[..8]);
    all.joined(0x12, 10, &responses[8..]);
    all.joined(0x12, 17, &[O::RC_READ_RESPONSE_LAST]);
    all.msn = 3;
    all.read(0x11, 18, 256);
    all.joined(0x12, 18, &[O::RC_READ_RESPONSE_ONLY]);
    let report = all.checker.finish();
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::CutFrames], "{:?}", report.findings);
    // Everything is answered: the second READ has a round trip.
    assert_eq!(report.directions[0].stats.round_trips.count(), 2);
}

/// Two READ requests of 32 bytes in one frame; the second RETH was not captured.
#[test]
fn a_read_whose_length_was_not_captured_takes_as_many_psns_as_follow() {
    let mut all = OneAddress::snapped();
    all.ask(Duration::from_micros(100), FIRST, 0, &[7; 256]);
    all.ask(Duration::from_micros(100), LAST, 1, &[7; 8]);
    let ip = IpAddr::from([127, 0, 0, 1]);
    let net = NetHeader::outgoing(ip, ip, UDP_PORT);
    let mut joined = Vec::new();
    for psn in [2, 6] {
        let bth = Bth::new(Opcode::RC_READ_REQUEST, Qpn::from_wire(0x11), Psn::new(psn));
        let reth = Some(Reth { va: 0, rkey: Key(1), dma_len: 1024 });
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &Ext { reth, ..Ext::default() }, &[]);
        joined.extend(packet);
    }
    all.add_packet(&net, &joined);
    for (first, msn) in [(2, 2), (6, 3)] {
        all.msn = msn;
        all.joined(0x12, first, &[Opcode::RC_READ_RESPONSE_FIRST]);
        all.joined(0x12, first + 1, &[Opcode::RC_READ_RESPONSE_MIDDLE; 2]);
        all.joined(0x12, first + 3, &[Opcode::RC_READ_RESPONSE_LAST]);
    }
    all.ask(Duration::from_micros(100), ONLY, 10, &[7; 8]);
    all.answer(0x12, 10, 4, Syndrome::ACK);
    assert_eq!(all.kinds_of(), [Kind::CutFrames]);
}

#[test]
fn nothing_of_an_unreliable_connection_or_of_datagrams_is_lost_in_a_cut_frame() {
    let mut all = OneAddress::snapped();
    all.joined(0x11, 0, &[Opcode::UC_SEND_ONLY; 8]);
    all.joined(0x11, 8, &[Opcode::UC_SEND_ONLY; 8]);
    assert_eq!(all.kinds_of(), [Kind::CutFrames]);
    // The first frame has more bytes than one datagram can have.
    let mut all = OneAddress::snapped();
    for (psn, len) in [(0, 8000), (3, 400), (5, 64)] {
        all.datagram(0x12, (2, 0x11), psn, 0x1111_1111, &[7; 8000][..len]);
    }
    let report = all.checker.finish();
    let kinds: Vec<_> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!((kinds, report.datagrams[0].missing), (vec![Kind::CutFrames], 0));
}
