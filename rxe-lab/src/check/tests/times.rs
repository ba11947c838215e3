//! Round trips, latencies and goodput of conversations whose times are known.

use super::*;

const SEND: Opcode = Opcode::RC_SEND_ONLY;

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Adds an acknowledgement of this PSN, `after` the previous packet.
fn ack(all: &mut OneAddress, after: Duration, psn: u32, syndrome: Syndrome) {
    all.pause = Some(after);
    all.answer(0x12, psn, psn + 1, syndrome);
}

/// Checks the times, in microseconds and ascending order, to two digits.
#[track_caller]
fn are(times: &Times, expected: &[u64]) {
    let count = expected.len() as u64;
    assert_eq!(times.count(), count);
    for (nth, expected) in (1_u32..).zip(expected) {
        let percent = f64::from(nth) / f64::from(u32::try_from(count).unwrap()) * 100.0;
        let got = times.percentile(percent - 0.1).unwrap();
        assert!(got.abs_diff(us(*expected)) * 100 <= us(*expected), "{got:?}, not {expected} us");
    }
}

#[test]
fn a_message_that_was_sent_again_has_a_latency_and_no_round_trip() {
    let mut all = OneAddress::default();
    all.ask(us(100), SEND, 0, &[7; 64]);
    ack(&mut all, us(100), 0, Syndrome::ACK);
    all.ask(us(300), SEND, 1, &[7; 64]);
    all.ask(us(4000), SEND, 1, &[7; 64]);
    ack(&mut all, us(150), 1, Syndrome::ACK);
    let stats = all.stats_of(0x11);
    are(&stats.round_trips, &[100]);
    are(&stats.latencies, &[100, 4150]);
}

#[test]
fn messages_that_are_acknowledged_together_have_a_latency_each() {
    let mut all = OneAddress::default();
    for psn in 0..4 {
        all.ask(us(200), SEND, psn, &[7; 64]);
    }
    ack(&mut all, us(100), 3, Syndrome::ACK);
    let stats = all.stats_of(0x11);
    are(&stats.round_trips, &[100]);
    are(&stats.latencies, &[100, 300, 500, 700]);
}

#[test]
fn a_message_begins_with_its_first_packet_also_if_one_behind_it_was_lost() {
    let mut all = OneAddress::default();
    let full = [7; 256];
    let packet = |all: &mut OneAddress, after, opcode, psn| {
        all.ask(us(after), opcode, psn, &full);
    };
    packet(&mut all, 100, Opcode::RC_SEND_FIRST, 0);
    packet(&mut all, 1000, Opcode::RC_SEND_LAST, 2);
    ack(&mut all, us(100), 1, Syndrome::Nak(NakCode::PsnSequenceError));
    packet(&mut all, 100, Opcode::RC_SEND_MIDDLE, 1);
    packet(&mut all, 100, Opcode::RC_SEND_LAST, 2);
    ack(&mut all, us(100), 2, Syndrome::ACK);
    // The first packet of a message may be lost: it was sent before the packet after it.
    packet(&mut all, 1000, SEND, 4);
    ack(&mut all, us(100), 3, Syndrome::Nak(NakCode::PsnSequenceError));
    packet(&mut all, 100, SEND, 3);
    packet(&mut all, 100, SEND, 4);
    ack(&mut all, us(200), 4, Syndrome::ACK);
    let stats = all.stats_of(0x11);
    are(&stats.round_trips, &[]);
    are(&stats.latencies, &[500, 500, 1400]);
}

#[test]
fn a_message_without_its_beginning_has_no_latency() {
    let mut all = OneAddress::default();
    all.ask(us(100), Opcode::RC_SEND_LAST, 0, &[7; 64]);
    ack(&mut all, us(100), 0, Syndrome::ACK);
    let stats = all.stats_of(0x11);
    are(&stats.round_trips, &[100]);
    are(&stats.latencies, &[]);
}

#[test]
fn a_read_lasts_until_its_last_response_and_its_bytes_count_once() {
    let mut all = OneAddress::default();
    all.read(0x11, 0, 700);
    let aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: 1 });
    let parts = [
        (Opcode::RC_READ_RESPONSE_FIRST, aeth, 256),
        (Opcode::RC_READ_RESPONSE_MIDDLE, None, 256),
        (Opcode::RC_READ_RESPONSE_LAST, aeth, 188),
    ];
    for (psn, (opcode, aeth, len)) in (0..).zip(parts) {
        all.pause = Some(us(200));
        all.packet(0x12, opcode, psn, Ext { aeth, ..Ext::default() }, &[7; 256][..len]);
    }
    // 800 us after the READ.
    all.ask(us(100), SEND, 3, &[7; 100]);
    all.ask(us(50), SEND, 3, &[7; 100]);
    ack(&mut all, us(50), 3, Syndrome::ACK);
    let stats = all.stats_of(0x11);
    are(&stats.latencies, &[100, 600]);
    assert_eq!((stats.bytes, stats.retransmitted_bytes), (800, 100));
    // 800 bytes in 800 us.
    assert_eq!(stats.duration(), us(800));
    assert!((stats.goodput().unwrap() - 1e6).abs() < 1.0, "{:?}", stats.goodput());
}

/// Both hosts capture.
/// A round trip takes 100 us at the requester; by the responder's clock the answer left after 50 us.
#[test]
fn both_times_of_a_round_trip_are_from_one_capture_point() {
    let mut all = OneAddress::default();
    let ms = |n: u32, micros: u64| Duration::from_millis(n.into()) + us(micros);
    let at = |all: &mut OneAddress, interface, now: Duration, psn, is_answer: bool| {
        all.interface = interface;
        all.pause = Some(now.saturating_sub(all.now));
        if is_answer {
            all.answer(0x12, psn, psn + 1, Syndrome::ACK);
        } else {
            let after = all.pause.unwrap();
            all.ask(after, SEND, psn, &[7; 64]);
        }
    };
    for psn in 0..3 {
        at(&mut all, 0, ms(psn, 100), psn, false);
        at(&mut all, 1, ms(psn, 101), psn, false);
        at(&mut all, 1, ms(psn, 150), psn, true);
        at(&mut all, 0, ms(psn, 200), psn, true);
    }
    let stats = all.stats_of(0x11);
    are(&stats.round_trips, &[100, 100, 100]);
    are(&stats.latencies, &[100, 100, 100]);
}
