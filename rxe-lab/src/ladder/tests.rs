use std::net::IpAddr;

use rxe_core::types::{Psn, Qpn};
use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Aeth, Bth, Ethernet, Ext, NakCode, NetHeader, Opcode, UDP_PORT, emit};

use super::*;
use crate::capture::LinkType;
use crate::frame::decode_bytes;

#[derive(Default)]
struct Talk {
    ladders: Ladders,
    frames: u64,
    /// The interface on which frames are captured.
    interface: u32,
    /// The comments of the next frame.
    comments: Vec<String>,
}

impl Talk {
    /// Adds a packet from the host on the left or on the right.
    fn packet(&mut self, from_left: bool, opcode: Opcode, psn: u32, syndrome: Syndrome) {
        let ends = if from_left { (1, 2) } else { (2, 1) };
        self.frame(ends, ends.1.into(), opcode, psn, syndrome);
    }

    /// Adds a packet between two hosts to a queue pair.
    fn frame(&mut self, ends: (u8, u8), qp: u32, opcode: Opcode, psn: u32, syndrome: Syndrome) {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let (src, dst) = ends;
        let net = NetHeader::outgoing(ip(src), ip(dst), UDP_PORT);
        let bth = Bth::new(opcode, Qpn::from_wire(qp), Psn::new(psn));
        let info = opcode.info().unwrap();
        let aeth = info.has_aeth.then_some(Aeth { syndrome, msn: 1 });
        let payload: &[u8] = if info.has_payload { &[7; 64] } else { &[] };
        let mut packet = Vec::new();
        emit::packet_from(&net, &mut packet, &bth, &Ext { aeth, ..Ext::default() }, payload);
        let mut frame = Vec::new();
        let none = UdpChecksum::None;
        emit_ethernet(&Ethernet::default(), &net, UDP_PORT, none, &packet, &mut frame);
        self.frames += 1;
        let frame = decode_bytes(LinkType(1), &frame, frame.len());
        let at = Duration::from_millis(self.frames);
        self.ladders.add(
            self.frames,
            self.interface,
            at,
            &frame,
            &std::mem::take(&mut self.comments),
            &[],
        );
    }

    fn send(&mut self, psn: u32) {
        self.packet(true, Opcode::RC_SEND_ONLY, psn, Syndrome::ACK);
    }

    fn answer(&mut self, psn: u32, syndrome: Syndrome) {
        self.packet(false, Opcode::RC_ACKNOWLEDGE, psn, syndrome);
    }

    fn rows(self) -> Vec<String> {
        let ladders = self.ladders.finish();
        let [ladder] = &ladders[..] else { panic!("{ladders:?}") };
        text(ladder, 100, Characters::Unicode).lines().map(str::to_owned).collect()
    }
}

#[test]
fn comments_stand_below_their_packets_and_end_runs() {
    let mut talk = Talk::default();
    talk.send(1);
    talk.comments = vec!["sending again from here:\nTimeout".into()];
    talk.send(2);
    talk.send(3);
    talk.comments = vec!["request failed: <remote access error>".into(), "a second".into()];
    talk.answer(3, Syndrome::Nak(NakCode::RemoteAccessError));
    let expected = [
        "SEND_ONLY PSN 0x000001–0x000002 ×2",
        "│   sending again from here: Timeout   ",
        "SEND_ONLY PSN 0x000003 64 B",
        "NAK: remote access error",
        "  request failed: <remote access error>   │",
        "  a second   │",
    ];
    let ladders = talk.ladders.finish();
    let drawn = text(&ladders[0], 100, Characters::Unicode);
    let rows: Vec<_> = drawn.lines().skip(1).collect();
    assert_eq!(rows.len(), expected.len(), "{drawn}");
    for (row, expected) in rows.iter().zip(expected) {
        assert!(row.contains(expected), "{row}");
        assert_eq!(row.chars().count(), 99, "{row}");
    }
    let picture = svg(&ladders);
    assert!(picture.contains(r#"class="row comment">"#), "{picture}");
    assert!(picture.contains(">request failed: &lt;remote access error&gt;</text>"), "{picture}");
}

#[test]
fn runs_and_repetitions_are_folded_and_trouble_is_not() {
    let mut talk = Talk::default();
    for message in 0..1000 {
        for packet in 0..9 {
            talk.send(9 * message + packet);
        }
        talk.answer(9 * message + 8, Syndrome::ACK);
    }
    talk.send(9000);
    talk.send(9003);
    talk.answer(9001, Syndrome::Nak(NakCode::PsnSequenceError));
    (9001..9004).for_each(|psn| talk.send(psn));
    talk.send(9002);
    let rows = talk.rows();
    let expected = [
        "              10.0.0.1                                                                   \
         10.0.0.2",
        "    0.001000 │< 1000 × (10000 packets, 576000 B): SEND_ONLY; ACKNOWLEDGE ═",
        "   10.001000 │─ SEND_ONLY PSN 0x002328 64 B (QP 0x000002) ",
        "   10.002000 │─ 2 packets to QP 0x000002 missing ✗",
        "   10.002000 │─ SEND_ONLY PSN 0x00232b 64 B (QP 0x000002) ",
        "   10.003000 │<──",
        "   10.004000 │─ SEND_ONLY PSN 0x002329–0x00232a ×2 128 B, out of order: fills a gap",
        "   10.006000 │─ SEND_ONLY PSN 0x00232b 64 B, retransmitted (QP 0x000002) ",
        "   10.007000 │─ SEND_ONLY PSN 0x00232a 64 B, retransmitted (QP 0x000002) ",
    ];
    assert_eq!(rows.len(), expected.len(), "{rows:#?}");
    for (row, start) in rows.iter().zip(expected).skip(1) {
        assert!(row.starts_with(start), "{row}\n{start}");
        assert_eq!(row.chars().count(), 99, "{row}");
    }
    assert!(
        rows[5].ends_with(" ACKNOWLEDGE PSN 0x002329 NAK: PSN sequence error (QP 0x000001) ─│")
    );
}

#[test]
fn a_diagram_in_ascii_has_the_same_width() {
    let mut talk = Talk::default();
    for message in 0..1000 {
        talk.send(message);
        talk.answer(message, Syndrome::ACK);
    }
    talk.packet(true, Opcode::RC_SEND_FIRST, 1000, Syndrome::ACK);
    talk.packet(true, Opcode::RC_SEND_MIDDLE, 1001, Syndrome::ACK);
    talk.send(1004);
    talk.comments = vec!["a comment that is longer than the lane between the hosts".into()];
    talk.answer(1004, Syndrome::Nak(NakCode::PsnSequenceError));
    let ladders = talk.ladders.finish();
    for width in 60..=120 {
        let drawn = text(&ladders[0], width, Characters::Ascii);
        assert!(drawn.is_ascii(), "{drawn}");
        for row in drawn.lines() {
            assert_eq!(row.len(), width - 1, "{drawn}");
        }
    }
    let drawn = text(&ladders[0], 80, Characters::Ascii);
    for part in
        [" |< 1000 x (2000 packets, 64000 B): ", "SEND_FIRST ... ", " x2 ", " missing x", "|-"]
    {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
    let drawn = text(&ladders[0], 60, Characters::Ascii);
    assert!(drawn.contains("a comment that is longer than the l...   |"), "{drawn}");
}

#[test]
fn a_packet_that_is_refused_and_sent_again_many_times_is_one_row() {
    use rxe_core::types::RnrTimer;
    let mut talk = Talk::default();
    for _ in 0..500 {
        talk.send(5);
        talk.answer(5, Syndrome::RnrNak { timer: RnrTimer::from_wire(12) });
    }
    talk.send(5);
    talk.answer(5, Syndrome::ACK);
    let rows = talk.rows();
    let expected = [
        "SEND_ONLY PSN 0x000005 64 B (QP",
        "500 × (1000 packets, 32000 B): ACKNOWLEDGE RNR NAK: try again after 0.64 ms",
        "ACKNOWLEDGE PSN 0x000005 MSN 1",
    ];
    assert_eq!(rows.len(), 1 + expected.len(), "{rows:#?}");
    for (row, expected) in rows[1..].iter().zip(expected) {
        assert!(row.contains(expected), "{row}");
    }
}

#[test]
fn a_run_of_messages_is_not_called_by_the_opcode_of_its_ends() {
    let mut talk = Talk::default();
    let (first, last) = (Opcode::RC_SEND_FIRST, Opcode::RC_SEND_LAST);
    for (psn, opcode) in [(5, first), (6, last), (7, first)] {
        talk.packet(true, opcode, psn, Syndrome::ACK);
    }
    let ladders = talk.ladders.finish();
    let row = &ladders[0].rows[0];
    let psns = "PSN 0x000005–0x000007 ×3";
    assert_eq!(row.label(), format!("SEND_FIRST … SEND_FIRST {psns} 192 B (QP 0x000002)"));
    assert_eq!(row.label_within(34), format!("SEND {psns}"));
}

#[test]
fn credits_are_those_that_decode_shows() {
    let mut talk = Talk::default();
    talk.send(5);
    talk.answer(5, Syndrome::Ack { credits: 6 });
    let rows = talk.rows();
    assert!(rows[2].contains("ACKNOWLEDGE PSN 0x000005 credits 8, MSN 1"), "{rows:#?}");
}

#[test]
fn two_long_addresses_are_not_written_into_each_other() {
    let [left, right] =
        ["2001:db8:85a3:1234:5678:8a2e:370:7334", "2001:db8:85a3:1234:5678:8a2e:370:7335"]
            .map(|ip| Address::Ip(ip.parse().unwrap()));
    let ladder = |right| Ladder { left, right, qps: None, rows: Vec::new() };
    let drawn = text(&ladder(right), 80, Characters::Unicode);
    let lines: Vec<_> = drawn.lines().collect();
    assert_eq!(lines, [format!("{:13}{left}", ""), format!("{:13}{right:>66}", "")], "{drawn}");
    let short = Address::Ip("2001:db8::5678:8a2e:370:7335".parse().unwrap());
    let drawn = text(&ladder(short), 80, Characters::Unicode);
    assert_eq!(drawn, format!("{:13}{left} {short}\n", ""));
}

/// Both hosts capture, as with `rxe capture --of all`; the second copy is the receiver's.
#[test]
fn a_packet_that_two_points_have_is_drawn_once_and_one_that_was_sent_again_twice() {
    let mut talk = Talk::default();
    let both = |talk: &mut Talk, from_left: bool, opcode, psn, comment: &str| {
        let points = if from_left { [0, 1] } else { [1, 0] };
        for interface in points {
            talk.interface = interface;
            if interface != points[0] && !comment.is_empty() {
                talk.comments = vec![comment.into()];
            }
            talk.packet(from_left, opcode, psn, Syndrome::ACK);
        }
    };
    let send = Opcode::RC_SEND_ONLY;
    both(&mut talk, true, send, 5, "dropped: wrong key");
    both(&mut talk, true, send, 5, "");
    both(&mut talk, false, Opcode::RC_ACKNOWLEDGE, 5, "");
    // A packet that was lost has one copy.
    talk.interface = 0;
    talk.send(6);
    both(&mut talk, true, send, 6, "");
    let rows = talk.rows();
    let expected = [
        "SEND_ONLY PSN 0x000005 64 B (QP",
        "PSN 0x000005: dropped: wrong key",
        "SEND_ONLY PSN 0x000005 64 B, retransmitted",
        "ACKNOWLEDGE PSN 0x000005",
        "SEND_ONLY PSN 0x000006 64 B (QP",
        "SEND_ONLY PSN 0x000006 64 B, retransmitted",
    ];
    assert_eq!(rows.len(), 1 + expected.len(), "{rows:#?}");
    for (row, expected) in rows[1..].iter().zip(expected) {
        assert!(row.contains(expected), "{row}");
    }
}

#[test]
fn with_little_room_details_are_left_out_before_the_end_is_cut() {
    let mut talk = Talk::default();
    for (psn, opcode) in [
        (5, Opcode::RC_SEND_FIRST),
        (6, Opcode::RC_SEND_MIDDLE),
        (7, Opcode::RC_SEND_LAST),
        (5, Opcode::RC_SEND_FIRST),
        (6, Opcode::RC_SEND_MIDDLE),
        (7, Opcode::RC_SEND_LAST),
    ] {
        talk.packet(true, opcode, psn, Syndrome::ACK);
    }
    let ladders = talk.ladders.finish();
    let [_, again] = &ladders[0].rows[..] else { panic!("{ladders:?}") };
    let psns = "PSN 0x000005–0x000007 ×3";
    let mut room = usize::MAX;
    for expected in [
        format!("SEND_FIRST … SEND_LAST {psns} 192 B, retransmitted (QP 0x000002)"),
        format!("SEND_FIRST … SEND_LAST {psns} 192 B, retransmitted"),
        format!("SEND_FIRST … LAST {psns} 192 B, retransmitted"),
        format!("SEND_FIRST … LAST {psns}, retransmitted"),
        format!("SEND {psns}, retransmitted"),
        format!("SEND {psns}, retransmitt…"),
    ] {
        // The room is one column less than the previous label needs.
        let label = again.label_within(room);
        assert_eq!(label, expected);
        room = label.chars().count() - 1;
    }
}

#[test]
fn connections_of_one_address_have_a_diagram_each_with_their_qpns() {
    let mut talk = Talk::default();
    let nak = Syndrome::Nak(NakCode::RemoteAccessError);
    for (to, opcode, psn, syndrome) in [
        (0x11, Opcode::RC_SEND_ONLY, 7, Syndrome::ACK),
        (0x12, Opcode::RC_ACKNOWLEDGE, 7, nak),
        (0x21, Opcode::RC_SEND_ONLY, 9000, Syndrome::ACK),
        (0x22, Opcode::RC_ACKNOWLEDGE, 9000, Syndrome::ACK),
        (0x33, Opcode::RC_SEND_ONLY, 1, Syndrome::ACK),
    ] {
        talk.frame((1, 1), to, opcode, psn, syndrome);
    }
    let ladders = talk.ladders.finish();
    let shape = |l: &Ladder| (l.qps, l.rows.iter().map(|row| row.to_right).collect::<Vec<_>>());
    let both = vec![Some(true), Some(false)];
    assert_eq!(
        ladders.iter().map(shape).collect::<Vec<_>>(),
        [(Some((0x12, 0x11)), both.clone()), (Some((0x22, 0x21)), both), (None, vec![Some(true)])]
    );
    assert_eq!(ladders[0].names(), ["10.0.0.1 QP 0x000012", "10.0.0.1 QP 0x000011"]);
    assert!(
        text(&ladders[0], 100, Characters::Unicode)
            .lines()
            .next()
            .unwrap()
            .ends_with("10.0.0.1 QP 0x000011")
    );
}

#[test]
fn pictures_are_whole_and_have_every_row() {
    let mut talk = Talk::default();
    talk.send(5);
    talk.send(9);
    talk.answer(6, Syndrome::Nak(NakCode::PsnSequenceError));
    let ladders = talk.ladders.finish();
    let picture = svg(&ladders);
    assert_eq!(picture.matches("<g class=\"row").count(), ladders[0].rows.len());
    assert_eq!(picture.matches("<g").count(), picture.matches("</g>").count());
    assert!(picture.contains("class=\"row missing\"") && picture.contains("class=\"row nak\""));
    let page = html(&ladders);
    assert!(page.contains(&picture) && page.ends_with("</html>\n"));
    assert!(!page.contains("http://") || page.matches("http").count() == 1, "nothing is loaded");
}
