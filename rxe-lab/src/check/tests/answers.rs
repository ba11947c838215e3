//! Answers to retransmitted requests, and MSNs in answers to older PSNs.

use super::*;

const SEND: Opcode = Opcode::RC_SEND_ONLY;

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Adds a response to a READ or an atomic.
fn respond(all: &mut OneAddress, opcode: Opcode, psn: u32, msn: u32, len: usize) {
    let has_aeth = opcode != Opcode::RC_READ_RESPONSE_MIDDLE;
    let aeth = has_aeth.then_some(Aeth { syndrome: Syndrome::ACK, msn });
    all.packet(0x12, opcode, psn, Ext { aeth, ..Ext::default() }, &[7; 4096][..len]);
}

/// Three messages, three more, and then an acknowledgement of `psn` with `msn`.
fn msn_at(psn: u32, msn: u32) -> Vec<(Kind, u32)> {
    let mut all = OneAddress::default();
    (0..3).for_each(|psn| all.ask(us(100), SEND, psn, &[7; 64]));
    all.answer(0x12, 2, 3, Syndrome::ACK);
    (3..6).for_each(|psn| all.ask(us(100), SEND, psn, &[7; 64]));
    all.answer(0x12, psn, msn, Syndrome::ACK);
    all.finish().0
}

#[test]
fn the_msn_of_an_earlier_psn_lies_between_its_message_and_the_newest() {
    for msn in 4..=6 {
        assert_eq!(msn_at(3, msn), [], "MSN {msn}");
    }
    for (psn, msn) in [(3, 3), (3, 7), (4, 4), (5, 5), (1, 1), (1, 0xff_ffff)] {
        assert_eq!(msn_at(psn, msn), [(Kind::Msn, 0x11)], "PSN {psn}, MSN {msn}");
    }
    // A request answered before is answered again, with the current MSN.
    assert_eq!(msn_at(1, 3), []);
}

#[test]
fn responses_of_reads_and_atomics_have_numbers_too() {
    let numbers = |first, last, next| {
        let mut all = OneAddress::default();
        all.ask(us(100), SEND, 0, &[7; 64]);
        all.answer(0x12, 0, 1, Syndrome::ACK);
        all.read(0x11, 1, 512);
        respond(&mut all, Opcode::RC_READ_RESPONSE_FIRST, 1, first, 256);
        respond(&mut all, Opcode::RC_READ_RESPONSE_LAST, 2, last, 256);
        all.ask(us(100), SEND, 3, &[7; 64]);
        all.answer(0x12, 3, next, Syndrome::ACK);
        all.checker.finish().count(Severity::Error)
    };
    // The READ may be counted before its last response.
    assert_eq!((numbers(1, 2, 3), numbers(2, 2, 3)), (0, 0));
    assert_eq!((numbers(3, 2, 3), numbers(0, 2, 3), numbers(2, 3, 4)), (1, 1, 1));
    // The READ is not counted at first, and is counted later.
    assert_eq!(numbers(1, 1, 3), 2);
}

const FIRST: Opcode = Opcode::RC_READ_RESPONSE_FIRST;
const MIDDLE: Opcode = Opcode::RC_READ_RESPONSE_MIDDLE;
const LAST: Opcode = Opcode::RC_READ_RESPONSE_LAST;
const ONLY: Opcode = Opcode::RC_READ_RESPONSE_ONLY;

/// A READ of four packets, `before` of them answered, and its retransmission.
/// The retransmission begins at `psn`, asks for `bytes`, and gets these responses.
fn read_again(
    before: usize,
    (psn, bytes): (u32, u32),
    responses: &[(Opcode, u32, usize)],
) -> Vec<Kind> {
    let mut all = OneAddress::default();
    all.read(0x11, 0, 1000);
    for (opcode, psn) in [(FIRST, 0), (MIDDLE, 1)].into_iter().take(before) {
        respond(&mut all, opcode, psn, 1, 256);
    }
    all.pause = Some(Duration::from_millis(5));
    all.read(0x11, psn, bytes);
    for (opcode, psn, len) in responses {
        respond(&mut all, *opcode, *psn, 1, *len);
    }
    all.finish().0.into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn the_answer_to_a_repeated_read_begins_where_the_repetition_does() {
    let again = read_again(2, (2, 488), &[(FIRST, 2, 256), (LAST, 3, 232)]);
    assert_eq!(again, [Kind::Timeout]);
    // Late responses to the first transmission.
    assert_eq!(read_again(2, (2, 488), &[(MIDDLE, 2, 256), (LAST, 3, 232)]), [Kind::Timeout]);
    for wrong in [(ONLY, 2, 256), (ONLY, 3, 232), (FIRST, 3, 256), (LAST, 2, 232), (LAST, 3, 228)] {
        let kinds = read_again(2, (2, 488), &[(FIRST, 2, 256), wrong]);
        assert!(kinds.contains(&Kind::Response), "{wrong:?}: {kinds:?}");
    }
}

#[test]
fn a_repeated_read_may_ask_for_less() {
    for (psn, bytes, responses) in [
        (1, 256, &[(ONLY, 1, 256)][..]),
        (1, 512, &[(FIRST, 1, 256), (LAST, 2, 256)]),
        (0, 768, &[(FIRST, 0, 256), (MIDDLE, 1, 256), (LAST, 2, 256)]),
        (0, 256, &[(ONLY, 0, 256)]),
        (3, 100, &[(ONLY, 3, 100)]),
    ] {
        let kinds = read_again(1, (psn, bytes), responses);
        assert!(!kinds.contains(&Kind::Response), "{psn}, {bytes} bytes: {kinds:?}");
    }
    for (psn, bytes, wrong) in [
        (1, 256, (ONLY, 1, 252)),
        (1, 512, (ONLY, 1, 256)),
        (1, 512, (LAST, 2, 252)),
        (1, 256, (LAST, 2, 256)),
        (0, 256, (ONLY, 0, 512)),
    ] {
        let kinds = read_again(1, (psn, bytes), &[wrong]);
        assert!(kinds.contains(&Kind::Response), "{psn}, {bytes} bytes, {wrong:?}: {kinds:?}");
    }
}

/// An acknowledged SEND is retransmitted after 4 ms if `again`, and then refused.
fn refused_after(code: NakCode, again: bool) -> Vec<Kind> {
    let mut all = OneAddress::default();
    all.ask(us(100), SEND, 0, &[7; 64]);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    all.ask(us(100), SEND, 1, &[7; 64]);
    all.answer(0x12, 1, 2, Syndrome::ACK);
    if again {
        all.ask(us(4000), SEND, 1, &[7; 64]);
    }
    all.pause = Some(us(200));
    all.answer(0x12, 1, 2, Syndrome::Nak(code));
    let mut kinds: Vec<_> = all.finish().0.into_iter().map(|(kind, _)| kind).collect();
    kinds.sort();
    kinds
}

#[test]
fn a_repetition_of_what_was_carried_out_is_not_refused() {
    for code in [NakCode::PsnSequenceError, NakCode::InvalidRequest] {
        assert_eq!(refused_after(code, true), [Kind::AckLost, Kind::Response], "{code:?}");
    }
    // The NAK comes soon after the acknowledgement, without a retransmission: it was overtaken.
    assert_eq!(refused_after(NakCode::PsnSequenceError, false), []);
}
