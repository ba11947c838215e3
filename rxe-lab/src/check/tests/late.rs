//! Answers that come after the retransmission.

use super::*;

const SEND: Opcode = Opcode::RC_SEND_ONLY;

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Requests with round trips of 100 us, then one that is retransmitted after 4 ms.
/// The answer to the last comes `answer` us after the retransmission.
fn answered_after(trips: u32, answer: u64) -> Finding {
    let mut all = OneAddress::default();
    for psn in 0..trips {
        all.ask(us(100), SEND, psn, &[7; 64]);
        all.answer(0x12, psn, psn + 1, Syndrome::ACK);
    }
    all.ask(us(100), SEND, trips, &[7; 64]);
    all.ask(us(4000), SEND, trips, &[7; 64]);
    all.pause = Some(us(answer));
    all.answer(0x12, trips, trips + 1, Syndrome::ACK);
    let findings = all.checker.finish().findings;
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    finding.clone()
}

#[test]
fn an_answer_too_soon_after_the_repetition_was_late() {
    let late = answered_after(8, 20);
    assert_eq!((late.kind, late.psn), (Kind::AckLate, 8));
    assert_eq!(late.frames, [17, 18, 19]);
    assert!(late.text.contains("after 4.0 ms"), "{}", late.text);
    // Not much sooner than a round trip: the answer may be for the retransmission.
    assert_eq!(answered_after(8, 80).kind, Kind::Timeout);
    // The only measured round trip may have been a long one.
    assert_eq!(answered_after(1, 20).kind, Kind::Timeout);
}

/// The acknowledgement of the first request is lost.
/// The second request was sent shortly before the timer expired, so its acknowledgement is in
/// flight when both are retransmitted.
#[test]
fn an_answer_to_a_later_request_is_not_late() {
    let mut all = OneAddress::default();
    for psn in 0..8 {
        all.ask(us(100), SEND, psn, &[7; 64]);
        all.answer(0x12, psn, psn + 1, Syndrome::ACK);
    }
    all.ask(us(100), SEND, 8, &[7; 64]);
    all.ask(us(3900), SEND, 9, &[7; 64]);
    all.ask(us(60), SEND, 8, &[7; 64]);
    all.ask(us(1), SEND, 9, &[7; 64]);
    all.pause = Some(us(20));
    all.answer(0x12, 9, 10, Syndrome::ACK);
    assert_eq!(all.finish().0, [(Kind::Timeout, 0x11)]);
}
