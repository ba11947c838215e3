//! Messages for which the receiver has no receive.

use super::*;

const RNR: Syndrome = Syndrome::RnrNak { timer: RnrTimer::from_wire(12) };

/// A message refused `times` times and retransmitted after each refusal but the last.
fn refused(times: u32) -> OneAddress {
    let mut all = OneAddress::default();
    for nth in 0..times {
        if nth > 0 {
            all.pause = Some(Duration::from_millis(1));
        }
        all.send(0x11, 5);
        all.answer(0x12, 5, 0, RNR);
    }
    all
}

/// Returns the findings other than the RNR NAKs.
fn found(all: OneAddress) -> Vec<(Kind, Vec<u64>)> {
    let findings = all.checker.finish().findings.into_iter();
    findings.filter(|it| it.kind != Kind::Rnr).map(|it| (it.kind, it.frames)).collect()
}

#[test]
fn a_message_that_is_refused_up_to_the_end_is_an_error() {
    assert_eq!(found(refused(2)), []);
    assert_eq!(found(refused(3)), [(Kind::RnrNever, vec![1, 2, 6])]);
    assert_eq!(Kind::RnrNever.severity(), Severity::Error);
    // Kernel `rdma_rxe` refuses the requests that follow with a sequence NAK.
    let mut all = refused(3);
    all.answer(0x12, 5, 0, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(found(all), [(Kind::RnrNever, vec![1, 2, 6])]);
}

#[test]
fn one_that_is_taken_in_the_end_is_none() {
    let mut all = refused(20);
    all.send(0x11, 5);
    all.answer(0x12, 5, 1, Syndrome::ACK);
    assert_eq!(found(all), []);
    // An acknowledgement of a later message also shows that the message was taken. A refusal of the
    // later message counts anew.
    let mut all = refused(3);
    all.send(0x11, 5);
    all.send(0x11, 6);
    all.answer(0x12, 6, 1, RNR);
    assert_eq!(found(all), []);
}

#[test]
fn a_requester_that_does_not_send_again_has_given_up() {
    for (silence, expected) in [(900, 0), (1100, 1)] {
        let mut all = refused(1);
        all.pause = Some(Duration::from_millis(silence));
        all.send(0x33, 7);
        assert_eq!(found(all).len(), expected, "{silence} ms");
    }
}

#[test]
fn how_sure_it_is_depends_on_how_long_it_was_refused() {
    let sure = |all: OneAddress| {
        let findings = all.checker.finish().findings;
        let never = findings.into_iter().find(|it| it.kind == Kind::RnrNever).unwrap();
        (never.confidence, never.text)
    };
    // The receiver may be slow, and the capture may end too early.
    let (confidence, text) = sure(refused(3));
    assert_eq!(confidence, Confidence::Possible);
    assert!(text.contains("refused 3 times in 2"), "{text}");
    assert!(text.contains("the capture ends before it is taken"), "{text}");
    let mut all = refused(2);
    all.pause = Some(Duration::from_millis(1100));
    all.send(0x11, 5);
    all.answer(0x12, 5, 0, RNR);
    assert_eq!(sure(all).0, Confidence::Likely);
    // The requester has given up.
    let mut all = refused(1);
    all.pause = Some(Duration::from_millis(1100));
    all.send(0x33, 7);
    let (confidence, text) = sure(all);
    assert_eq!(confidence, Confidence::Likely);
    assert!(!text.contains("rnr_retry 7"), "{text}");
}
