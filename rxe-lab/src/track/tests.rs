use std::net::IpAddr;

use rxe_core::types::{Key, Psn, Qpn};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Aeth, Bth, Ethernet, Ext, NetHeader, Opcode, Reth, Syndrome, UDP_PORT, emit};

use super::*;
use crate::capture::LinkType;
use crate::frame::tests::{encapsulations, tunnels};
use crate::frame::{Content, decode_bytes};

/// Creates packets between two hosts and tracks them.
#[derive(Default)]
struct Hosts {
    tracker: Tracker,
    /// The number of bytes captured per frame; all if `None`.
    snaplen: Option<usize>,
}

impl Hosts {
    /// Tracks a packet to QP 0x11 of host 1 or to QP 0x22 of host 2.
    fn packet(&mut self, to: u8, opcode: Opcode, psn: u32, ext: Ext, len: usize) -> Option<Mark> {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let net = NetHeader::outgoing(ip(3 - to), ip(to), UDP_PORT);
        let bth = Bth::new(opcode, Qpn::from_wire(u32::from(to) * 0x11), Psn::new(psn));
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &ext, &vec![7; len]);
        let mut frame = Vec::new();
        let none = UdpChecksum::None;
        emit_ethernet(&Ethernet::default(), &net, UDP_PORT, none, &packet, &mut frame);
        let captured = self.snaplen.map_or(frame.len(), |snaplen| snaplen.min(frame.len()));
        let frame = decode_bytes(LinkType(1), &frame[..captured], frame.len());
        let Content::Rdma(packets) = &frame.content else { panic!("{frame:?}") };
        self.tracker.observe(0, &frame, &packets[0])
    }

    fn send(&mut self, psn: u32) -> Option<Mark> {
        self.packet(1, Opcode::RC_SEND_ONLY, psn, Ext::default(), 64)
    }

    fn read(&mut self, psn: u32, dma_len: u32) -> Option<Mark> {
        let reth = Some(Reth { va: 0, rkey: Key(1), dma_len });
        self.packet(1, Opcode::RC_READ_REQUEST, psn, Ext { reth, ..Ext::default() }, 0)
    }

    fn answer(&mut self, opcode: Opcode, psn: u32, syndrome: Syndrome, len: usize) -> Option<Mark> {
        let aeth = opcode.info().unwrap().has_aeth.then_some(Aeth { syndrome, msn: 1 });
        self.packet(2, opcode, psn, Ext { aeth, ..Ext::default() }, len)
    }

    fn ack(&mut self, psn: u32) -> Option<Mark> {
        self.answer(Opcode::RC_ACKNOWLEDGE, psn, Syndrome::ACK, 0)
    }
}

#[test]
fn requests_sent_again_are_told_from_those_that_come_late() {
    let mut hosts = Hosts::default();
    let of = |hosts: &mut Hosts, psns: &[u32]| -> Vec<_> {
        psns.iter().map(|psn| hosts.send(*psn)).collect()
    };
    assert_eq!(of(&mut hosts, &[0xff_fffe, 0xff_ffff, 0]), [None; 3]);
    let expected = [
        Some(Mark::Gap(3)),
        None,
        Some(Mark::Late),
        Some(Mark::Retransmitted),
        Some(Mark::Late),
        Some(Mark::Late),
        Some(Mark::Retransmitted),
        Some(Mark::Retransmitted),
        None,
    ];
    assert_eq!(of(&mut hosts, &[4, 5, 2, 2, 1, 3, 3, 0xff_fffe, 6]), expected);
}

#[test]
fn what_was_before_the_first_packet_is_not_called_sent_again() {
    let mut hosts = Hosts::default();
    let marks = [5, 6, 2, 3, 4, 5, 2, 7].map(|psn| hosts.send(psn));
    let (late, again) = (Some(Mark::Late), Some(Mark::Retransmitted));
    assert_eq!(marks, [None, None, late, late, late, again, again, None]);
    // Far behind the newest packet is another round of the PSNs.
    let mut gaps = Gaps::default();
    gaps.begin(Psn::new(5));
    gaps.reach(Psn::new(6));
    assert_eq!(gaps.lowest, Some(Psn::new(5)));
    gaps.reach(Psn::new(6 + RESTART.unsigned_abs()));
    assert_eq!(gaps.lowest, None);
}

#[test]
fn a_read_takes_as_many_psns_as_its_answer_has_packets() {
    let mut hosts = Hosts::default();
    // The path MTU is not known: 10,000 bytes are 3 to 40 packets.
    assert_eq!((hosts.read(100, 10_000), hosts.send(110)), (None, None));
    assert_eq!(hosts.packet(1, Opcode::RC_SEND_FIRST, 111, Ext::default(), 1024), None);
    assert_eq!(hosts.packet(1, Opcode::RC_SEND_LAST, 112, Ext::default(), 4), None);
    assert_eq!((hosts.read(113, 10_000), hosts.send(123)), (None, None));
    assert_eq!((hosts.read(124, 10_000), hosts.send(135)), (None, Some(Mark::Gap(1))));
    assert_eq!(hosts.read(127, 5000), Some(Mark::Retransmitted), "the rest of a READ");
    assert_eq!((hosts.read(136, 0), hosts.send(137)), (None, None));
}

#[test]
fn answers_are_followed_apart_from_requests() {
    let mut hosts = Hosts::default();
    assert_eq!(
        [hosts.ack(5), hosts.ack(9), hosts.ack(9), hosts.ack(7)].map(|m| m.is_some()),
        [false, false, true, true]
    );
    assert_eq!(hosts.ack(10), None);
    let nak = Syndrome::Nak(rxe_core::wire::NakCode::PsnSequenceError);
    assert_eq!(hosts.answer(Opcode::RC_ACKNOWLEDGE, 10, nak, 0), None, "a NAK is no ACK");
    let mut read = |opcode, psn| hosts.answer(opcode, psn, Syndrome::ACK, 256);
    assert_eq!(read(Opcode::RC_READ_RESPONSE_FIRST, 20), None);
    assert_eq!(read(Opcode::RC_READ_RESPONSE_MIDDLE, 22), Some(Mark::Gap(1)));
    assert_eq!(read(Opcode::RC_READ_RESPONSE_MIDDLE, 21), Some(Mark::Late));
    assert_eq!(read(Opcode::RC_READ_RESPONSE_LAST, 23), None);
    assert_eq!(read(Opcode::RC_READ_RESPONSE_ONLY, 30), None, "requests between had the others");
    assert_eq!(read(Opcode::RC_READ_RESPONSE_FIRST, 20), Some(Mark::Retransmitted));
}

/// 54 bytes after the UDP header are captured: another packet has 44 bytes or more.
#[test]
fn packets_that_a_cut_frame_may_have_had_are_no_gap() {
    let mut hosts = Hosts { snaplen: Some(96), ..Hosts::default() };
    let mut send = |psn, len| hosts.packet(1, Opcode::RC_SEND_ONLY, psn, Ext::default(), len);
    assert_eq!([send(0, 150), send(4, 150), send(9, 64)], [None, None, Some(Mark::Gap(1))]);
    let mut read = |opcode, psn| hosts.answer(opcode, psn, Syndrome::ACK, 1040);
    assert_eq!(read(Opcode::RC_READ_RESPONSE_FIRST, 20), None);
    assert_eq!(read(Opcode::RC_READ_RESPONSE_MIDDLE, 24), None);
    assert_eq!(read(Opcode::RC_READ_RESPONSE_LAST, 28), None);
}

#[test]
fn another_conversation_of_the_same_queue_pair_begins_anew() {
    let mut hosts = Hosts::default();
    assert_eq!([hosts.send(5), hosts.send(6), hosts.send(0x80_0000)], [None; 3]);
    assert_eq!([hosts.send(0x80_0001), hosts.send(3), hosts.send(4)], [None; 3]);
}

#[test]
fn memory_is_bounded() {
    let mut gaps = Gaps::default();
    for n in 0..10 * u32::try_from(MAX_GAPS).unwrap() {
        gaps.open(Psn::new(10 * n), 5);
    }
    assert_eq!(gaps.ranges.len(), MAX_GAPS);
}

#[test]
fn a_copy_inside_a_tunnel_is_not_sent_again() {
    let frame = tunnels::inner(false);
    let wrapped = encapsulations::all(&frame).swap_remove(0);
    let mut tracker = Tracker::default();
    let mut observe = |bytes: &[u8]| {
        let frame = decode_bytes(LinkType(1), bytes, bytes.len());
        let Content::Rdma(packets) = &frame.content else { panic!("{frame:?}") };
        tracker.observe(0, &frame, &packets[0])
    };
    assert_eq!((observe(&wrapped.bytes), observe(&frame)), (None, None));
    assert_eq!(observe(&wrapped.bytes), Some(Mark::Retransmitted));
}
