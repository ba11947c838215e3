//! A NAK that ends the connection, and its cause in the request.

use rxe_core::wire::AtomicEth;

use super::*;

const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);

fn ms(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}

/// A requester that sends again after the NAK, `times` times, and then again after each answer.
fn goes_on(times: u64) -> OneAddress {
    let mut all = OneAddress::default();
    all.send(0x11, 0);
    all.answer(0x12, 0, 0, NAK);
    for nth in 0..times {
        all.pause = ms(1 << nth);
        all.send(0x11, 0);
    }
    all
}

#[test]
fn what_is_sent_again_after_a_refusal_is_part_of_the_refusal() {
    let findings = goes_on(4).checker.finish().findings;
    let [finding] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((finding.kind, finding.packets), (Kind::RemoteAccess, 4));
    assert_eq!(finding.frames, [1, 2, 3, 4, 5, 6]);
    assert!(finding.text.contains("the requester did not stop, or the NAK did not reach it"));
    assert!(!goes_on(0).checker.finish().findings[0].text.contains("afterwards"));
}

#[test]
fn a_request_that_was_refused_in_the_end_was_answered() {
    let mut all = OneAddress::default();
    for _ in 0..5 {
        all.ask(Duration::from_millis(5), Opcode::RC_SEND_ONLY, 0, &[7; 64]);
    }
    all.answer(0x12, 0, 0, NAK);
    assert_eq!(all.finish().0, [(Kind::Timeout, 0x11), (Kind::RemoteAccess, 0x11)]);
}

#[test]
fn a_message_that_was_refused_for_good_is_not_waiting_for_a_receive() {
    let mut all = OneAddress::default();
    for _ in 0..4 {
        all.send(0x11, 0);
        all.answer(0x12, 0, 0, Syndrome::RnrNak { timer: RnrTimer::from_wire(1) });
    }
    all.send(0x11, 0);
    all.answer(0x12, 0, 0, INVALID);
    assert_eq!(all.finish().0, [(Kind::Rnr, 0x11), (Kind::InvalidRequest, 0x11)]);
}

/// A responder that answers the repeated request serves a new connection, or has changed its mind.
#[test]
fn after_an_answer_losses_are_losses_again() {
    let mut all = goes_on(1);
    all.answer(0x12, 0, 1, Syndrome::ACK);
    for _ in 0..2 {
        all.ask(Duration::from_millis(5), Opcode::RC_SEND_ONLY, 1, &[7; 64]);
    }
    assert_eq!(all.finish().0, [(Kind::RemoteAccess, 0x11), (Kind::Timeout, 0x11)]);
}

/// Returns the text of the only finding: a NAK for the request with PSN 5.
fn reason(mut all: OneAddress) -> String {
    all.answer(0x12, 5, 0, INVALID);
    let findings = all.checker.finish().findings;
    let found = findings.into_iter().find(|f| f.kind == Kind::InvalidRequest).unwrap();
    assert_eq!(found.psn, 5);
    found.text
}

#[test]
fn the_reason_that_a_header_shows_is_named() {
    let atomic = |va| {
        let mut all = OneAddress::default();
        let atomic = Some(AtomicEth { va, rkey: Key(1), swap_add: 1, compare: 0 });
        all.packet(0x11, Opcode::RC_FETCH_ADD, 5, Ext { atomic, ..Ext::default() }, &[]);
        reason(all)
    };
    assert!(atomic(0x1001).ends_with(": the address 0x1001 is no multiple of 8."), "{}", atomic(1));
    assert!(atomic(0x1008).ends_with("(NAK, invalid request)."), "{}", atomic(0x1008));
    let mut all = OneAddress::default();
    all.read(0x11, 5, (1 << 31) + 1);
    let said = reason(all);
    assert!(said.ends_with(": it is of 2147483649 bytes, and a message has at most 2147483648."));
    let mut all = OneAddress::default();
    all.packet(0x11, Opcode::RC_SEND_FIRST, 4, Ext::default(), &[7; 256]);
    all.packet(0x11, Opcode::RC_SEND_ONLY, 5, Ext::default(), &[7; 64]);
    assert!(reason(all).ends_with(": its opcode does not follow the one before."));
    let mut all = OneAddress::default();
    all.packet(0x11, Opcode::RC_SEND_FIRST, 5, Ext::default(), &[7; 300]);
    assert!(reason(all).ends_with(": the length of its packet does not fit the path MTU."));
}
