use std::net::{IpAddr, Ipv4Addr};

use rxe_core::cm::mad::Message;
use rxe_core::types::{Key, Qpn, RnrTimer};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{
    Aeth, Bth, Ethernet, Ext, NakCode, NetHeader, Opcode, Reth, Syndrome, UDP_PORT, emit,
};

use super::*;
use crate::capture::LinkType;
use crate::frame::decode_bytes;

const NAK: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);

const LOOPBACK: Address = Address::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));

/// The queue pairs of the requester and of the responder.
type Connection = (Option<u32>, u32);

/// A capture of queue pairs that all have one address.
#[derive(Default)]
struct OneAddress {
    checker: Checker,
    frames: u64,
    now: Duration,
    /// The time between the previous and the next packet; 100 us if `None`.
    pause: Option<Duration>,
    /// The interface on which frames are captured.
    interface: u32,
    /// The MSN of responses in frames of several packets.
    msn: u32,
    /// The number of bytes captured per frame; all if `None`.
    snaplen: Option<usize>,
}

impl OneAddress {
    fn packet(&mut self, qp: u32, opcode: Opcode, psn: u32, ext: Ext, payload: &[u8]) {
        self.packet_to(IpAddr::from([127, 0, 0, 1]), qp, opcode, psn, ext, payload);
    }

    fn packet_to(
        &mut self,
        to: IpAddr,
        qp: u32,
        opcode: Opcode,
        psn: u32,
        ext: Ext,
        payload: &[u8],
    ) {
        let net = NetHeader::outgoing(IpAddr::from([127, 0, 0, 1]), to, UDP_PORT);
        let bth = Bth::new(opcode, Qpn::from_wire(qp), Psn::new(psn));
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &ext, payload);
        self.add_packet(&net, &packet);
    }

    /// Adds a frame with a packet, given from the BTH to the ICRC.
    fn add_packet(&mut self, net: &NetHeader, packet: &[u8]) {
        let mut frame = Vec::new();
        let none = UdpChecksum::None;
        emit_ethernet(&Ethernet::default(), net, UDP_PORT, none, packet, &mut frame);
        self.frames += 1;
        let captured = self.snaplen.map_or(frame.len(), |snaplen| snaplen.min(frame.len()));
        let frame = decode_bytes(LinkType(1), &frame[..captured], frame.len());
        self.now += self.pause.take().unwrap_or(Duration::from_micros(100));
        self.checker.add(self.frames, self.interface, self.now, &frame);
    }

    fn send(&mut self, qp: u32, psn: u32) {
        self.packet(qp, Opcode::RC_SEND_ONLY, psn, Ext::default(), &[7; 64]);
    }

    /// Adds a request with AckReq, `after` the previous packet.
    fn ask(&mut self, after: Duration, opcode: Opcode, psn: u32, payload: &[u8]) {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let net = NetHeader::outgoing(ip, ip, UDP_PORT);
        let bth = Bth::new(opcode, Qpn::from_wire(0x11), Psn::new(psn));
        let bth = Bth { ack_req: true, ..bth };
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &Ext::default(), payload);
        self.pause = Some(after);
        self.add_packet(&net, &packet);
    }

    fn answer(&mut self, qp: u32, psn: u32, msn: u32, syndrome: Syndrome) {
        let ext = Ext { aeth: Some(Aeth { syndrome, msn }), ..Ext::default() };
        self.packet(qp, Opcode::RC_ACKNOWLEDGE, psn, ext, &[]);
    }

    fn read(&mut self, qp: u32, psn: u32, dma_len: u32) {
        let reth = Some(Reth { va: 0, rkey: Key(1), dma_len });
        self.packet(qp, Opcode::RC_READ_REQUEST, psn, Ext { reth, ..Ext::default() }, &[]);
    }

    /// Returns the findings with their destination QPs, and the connections.
    fn finish(self) -> (Vec<(Kind, u32)>, Vec<Connection>) {
        let report = self.checker.finish();
        (
            report.findings.iter().map(|f| (f.kind, f.dest_qp)).collect(),
            report.directions.iter().map(|d| (d.source_qp, d.dest_qp)).collect(),
        )
    }
}

#[test]
fn a_frame_of_several_packets_that_is_cut_has_no_wrong_length() {
    for (snaplen, expected) in
        [(Some(96), vec![(Kind::CutFrames, 0x11)]), (None, vec![(Kind::Length, 0x11); 2])]
    {
        let mut all = OneAddress { snaplen, ..OneAddress::default() };
        let reth = Some(Reth { va: 0, rkey: Key(1), dma_len: 1 << 20 });
        let ext = Ext { reth, ..Ext::default() };
        all.packet(0x11, Opcode::RC_WRITE_FIRST, 5, ext, &[7; 8208]);
        all.packet(0x11, Opcode::RC_WRITE_MIDDLE, 6, Ext::default(), &[7; 8208]);
        assert_eq!(all.finish().0, expected, "{snaplen:?}");
    }
}

#[test]
fn the_first_response_pairs_the_only_two_queue_pairs_of_one_address() {
    let mut all = OneAddress::default();
    all.send(0x11, 5);
    all.answer(0x12, 5, 1, NAK);
    assert_eq!(all.finish(), (vec![(Kind::RemoteAccess, 0x11)], vec![(Some(0x12), 0x11)]));
}

#[test]
fn two_connections_of_one_address_are_told_apart_by_their_psns() {
    let mut all = OneAddress::default();
    // Both queue pairs send before the first answer.
    all.send(0x11, 500);
    all.send(0x21, 9000);
    for n in 0..EVIDENCE {
        all.answer(0x12, 500 + n, n + 1, Syndrome::ACK);
        all.answer(0x22, 9000 + n, n + 1, Syndrome::ACK);
        all.send(0x11, 501 + n);
        all.send(0x21, 9001 + n);
    }
    all.answer(0x12, 500 + EVIDENCE, EVIDENCE + 1, NAK);
    all.answer(0x22, 9000 + EVIDENCE, EVIDENCE + 1, NAK);
    // A connection that begins later has no other candidate.
    all.send(0x31, 500);
    all.answer(0x32, 500, 1, NAK);
    let (findings, directions) = all.finish();
    assert_eq!(findings, [0x11, 0x21, 0x31].map(|qp| (Kind::RemoteAccess, qp)));
    assert_eq!(directions, [0x11, 0x21, 0x31].map(|qp| (Some(qp + 1), qp)));
}

#[test]
fn why_requests_are_sent_again_is_not_invented_where_responses_fit_several_queue_pairs() {
    let mut all = OneAddress::default();
    for qp in [0x11, 0x21] {
        all.send(qp, 0);
        all.send(qp, 1);
    }
    // One request is late, and one is retransmitted repeatedly; the answers may belong to either
    // queue pair.
    all.answer(0x22, 1, 2, Syndrome::ACK);
    all.send(0x11, 3);
    all.send(0x21, 3);
    all.answer(0x12, 2, 2, Syndrome::Nak(NakCode::PsnSequenceError));
    all.send(0x11, 2);
    for _ in 0..5 {
        all.answer(0x22, 2, 2, Syndrome::RnrNak { timer: RnrTimer::from_wire(12) });
        all.send(0x21, 3);
    }
    let (mut findings, directions) = all.finish();
    findings.sort();
    findings.dedup();
    assert_eq!(directions, [(None, 0x11), (None, 0x21)]);
    assert_eq!(findings, [(Kind::Unexplained, 0x11), (Kind::Unexplained, 0x21)]);
}

/// Requests answered before the pair was known are not reported as missing.
#[test]
fn responses_before_a_pair_was_known_are_not_called_lost() {
    let mut all = OneAddress::default();
    let ext = Ext { aeth: Some(Aeth { syndrome: Syndrome::ACK, msn: 3 }), ..Ext::default() };
    for qp in [0x11, 0x21] {
        all.packet(qp, Opcode::RC_SEND_FIRST, 0, Ext::default(), &[7; 256]);
        all.packet(qp, Opcode::RC_SEND_LAST, 1, Ext::default(), &[7; 256]);
    }
    // The response packets are evidence, except the first, which also fits the other queue pair.
    all.read(0x21, 2, 64);
    all.read(0x11, 2, 256 * EVIDENCE);
    all.packet(0x12, Opcode::RC_READ_RESPONSE_FIRST, 2, ext, &[7; 256]);
    for n in 1..EVIDENCE - 1 {
        all.packet(0x12, Opcode::RC_READ_RESPONSE_MIDDLE, 2 + n, Ext::default(), &[7; 256]);
    }
    all.packet(0x12, Opcode::RC_READ_RESPONSE_LAST, 1 + EVIDENCE, ext, &[7; 256]);
    all.send(0x11, 2 + EVIDENCE);
    all.answer(0x12, 2 + EVIDENCE, 4, Syndrome::ACK);
    assert_eq!(all.checker.source_qp(LOOPBACK, LOOPBACK, 0x11), Some(0x12));
    // One packet is lost. The packet after it is retransmitted too, but only after an answer.
    let next = 3 + EVIDENCE;
    (next..next + 2).for_each(|psn| all.send(0x11, psn));
    all.answer(0x12, next, 4, Syndrome::Nak(NakCode::PsnSequenceError));
    all.send(0x11, next);
    all.answer(0x12, next, 5, Syndrome::ACK);
    all.send(0x11, next + 1);
    all.answer(0x12, next + 1, 6, Syndrome::ACK);
    assert_eq!(all.finish().0, [(Kind::SequenceNak, 0x11)]);
}

#[test]
fn a_nak_to_what_was_lost_before_the_capture_began_explains_what_follows() {
    let mut all = OneAddress::default();
    (1..4).for_each(|psn| all.send(0x11, psn));
    all.answer(0x12, 0, 0, Syndrome::Nak(NakCode::PsnSequenceError));
    (0..4).for_each(|psn| all.send(0x11, psn));
    all.answer(0x12, 3, 4, Syndrome::ACK);
    assert_eq!(all.finish().0, [(Kind::SequenceNak, 0x11)]);
    // If the answer may be for another queue pair, no timeout is reported.
    let mut all = OneAddress::default();
    for qp in [0x11, 0x21] {
        (1..4).for_each(|psn| all.send(qp, psn));
    }
    all.answer(0x12, 0, 0, Syndrome::Nak(NakCode::PsnSequenceError));
    (0..4).for_each(|psn| all.send(0x11, psn));
    assert_eq!(all.finish().0, [(Kind::Unexplained, 0x11)]);
}

#[test]
fn two_connections_of_one_address_with_the_same_psns_are_not_paired() {
    let mut all = OneAddress::default();
    for n in 0..2 * EVIDENCE {
        all.send(0x11, n);
        all.send(0x21, n);
        all.answer(0x22, n, n + 1, if n == 3 { NAK } else { Syndrome::ACK });
        all.answer(0x12, n, n + 1, Syndrome::ACK);
    }
    assert_eq!(all.finish(), (vec![], vec![(None, 0x11), (None, 0x21)]));
}

/// A late request causes the first NAK.
/// A loss after it causes a second NAK before the requester has received the first. The requester
/// goes back twice.
#[test]
fn two_naks_before_the_first_request_is_sent_again_explain_both_runs() {
    let nak = Syndrome::Nak(NakCode::PsnSequenceError);
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    (1..6).for_each(|psn| all.send(0x11, psn));
    all.answer(0x12, 1, 1, nak);
    all.answer(0x12, 2, 2, nak);
    (1..6).for_each(|psn| all.send(0x11, psn));
    (2..6).for_each(|psn| all.send(0x11, psn));
    all.answer(0x12, 5, 6, Syndrome::ACK);
    let report = all.checker.finish();
    assert_eq!(report.kinds, [Tally { kind: Kind::SequenceNak, count: 2, connections: 1 }]);
}

/// A request after the READ is missing, so the READ seems to have one more packet.
#[test]
fn an_answer_in_one_packet_that_has_all_bytes_is_right_whatever_was_guessed() {
    let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    for (bytes, expected) in [(1024, vec![]), (512, vec![(Kind::Response, 0x11)])] {
        let mut all = OneAddress::default();
        all.read(0x11, 0, 1024);
        all.send(0x11, 2);
        let ext = Ext { aeth, ..Ext::default() };
        all.packet(0x12, Opcode::RC_READ_RESPONSE_ONLY, 0, ext, &[7; 1024][..bytes]);
        assert_eq!(all.finish().0, expected, "{bytes} bytes");
    }
}

#[test]
fn programs_of_one_address_that_use_one_communication_id_are_not_paired_by_it() {
    use rxe_core::cm::mad::{Rep, Req};
    let one = Address::Ip(IpAddr::from([127, 0, 0, 1]));
    let req = |local_qpn| Req { local_comm_id: 1, local_qpn, ..Req::default() };
    let rep = |local_qpn| Rep { remote_comm_id: 1, local_qpn, ..Rep::default() };
    let pair = |qps: &[u32]| {
        let mut checker = Checker::default();
        for qp in qps {
            checker.managed((one, one), &Message::Req(req(Qpn::from_wire(*qp))));
        }
        checker.managed((one, one), &Message::Rep(rep(Qpn::from_wire(0x11))));
        checker.source_qp(one, one, 0x11)
    };
    assert_eq!(pair(&[0x12, 0x12]), Some(0x12), "the REQ was sent again");
    assert_eq!(pair(&[0x12, 0x22]), None);
}

mod answers;
mod before;
mod begins;
mod credits;
mod cut;
mod datagrams;
mod fold;
mod late;
mod pace;
mod refused;
mod timer;
mod times;
mod twice;
mod unready;
