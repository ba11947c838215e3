//! Captures of two places.

use super::*;

/// A conversation of `n` messages in which each request and each answer is captured this many times.
fn captured(checker: Checker, n: u32, (requests, answers): (u32, u32)) -> Report {
    let mut all = OneAddress { checker, ..OneAddress::default() };
    for psn in 0..n {
        for _ in 0..requests {
            all.ask(Duration::from_micros(30), Opcode::RC_SEND_ONLY, psn, &[7; 64]);
        }
        for _ in 0..answers {
            all.pause = Some(Duration::from_micros(30));
            all.answer(0x12, psn, psn + 1, Syndrome::ACK);
        }
    }
    all.checker.finish()
}

fn kinds(report: &Report) -> Vec<Kind> {
    report.kinds.iter().map(|tally| tally.kind).collect()
}

#[test]
fn a_capture_in_which_every_packet_comes_twice_is_of_two_places() {
    let report = captured(Checker::default(), 10, (2, 2));
    assert_eq!((kinds(&report), report.is_of_two_places), (vec![Kind::TwoPlaces], true));
    assert_eq!(report.directions.len(), 0, "their numbers would be wrong");
    let report = captured(report.checker(), 10, (2, 2));
    assert_eq!(kinds(&report), [Kind::TwoPlaces]);
    let stats = &report.directions[0].stats;
    assert_eq!((stats.requests, stats.responses, stats.retransmitted), (10, 10, 0));
    assert!(report.findings[0].text.contains("Each counts once here."), "{report:?}");
}

/// A requester that sends everything again gets no answer, or the answer is not doubled.
#[test]
fn requests_that_come_twice_are_not_copies_if_answers_come_once() {
    for (n, copies) in [(10, (2, 1)), (10, (1, 1)), (10, (1, 2)), (3, (2, 2)), (10, (2, 0))] {
        let report = captured(Checker::default(), n, copies);
        assert!(!report.is_of_two_places, "{n} {copies:?}: {:?}", kinds(&report));
    }
}
