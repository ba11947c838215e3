//! Credits, and the number of requests that an acknowledgement covers.

use super::*;

fn credits(code: u8) -> Syndrome {
    Syndrome::Ack { credits: code }
}

impl OneAddress {
    /// Adds the first SEND, PSN 0, and its acknowledgement with this credit code.
    fn begin(code: u8) -> Self {
        let mut all = Self::default();
        all.send(0x11, 0);
        all.answer(0x12, 0, 1, credits(code));
        all
    }

    fn sends(mut self, psns: std::ops::Range<u32>) -> Self {
        psns.for_each(|psn| self.send(0x11, psn));
        self
    }

    fn gives(mut self, psn: u32, code: u8) -> Self {
        self.answer(0x12, psn, psn + 1, credits(code));
        self
    }

    fn has_no_receive(mut self, psn: u32) -> Self {
        let timer = rxe_core::types::RnrTimer::from_wire(1);
        self.answer(0x12, psn, psn, Syndrome::RnrNak { timer });
        self
    }

    fn report(self) -> Report {
        self.checker.finish()
    }

    /// Returns the kinds, frames and confidence of findings about credits.
    fn found(self) -> Vec<(Kind, Vec<u64>, Confidence)> {
        let found = self.report().findings.into_iter();
        let found = found.filter(|f| matches!(f.kind, Kind::Credits | Kind::CreditLimit));
        found.map(|f| (f.kind, f.frames, f.confidence)).collect()
    }
}

#[test]
fn a_requester_may_send_one_message_beyond_its_credits() {
    // Code 2 permits 2 messages.
    assert_eq!(OneAddress::begin(2).sends(1..4).found(), []);
    let (limit, first) = (2, 6);
    let found = OneAddress::begin(2).sends(1..6).found();
    assert_eq!(found, [(Kind::CreditLimit, vec![limit, first], Confidence::Likely)]);
    let refused = OneAddress::begin(2).sends(1..6).has_no_receive(4).found();
    assert_eq!(refused, [(Kind::CreditLimit, vec![limit, first, 8], Confidence::Certain)]);
}

#[test]
fn an_acknowledgement_moves_the_limit() {
    assert_eq!(OneAddress::begin(2).sends(1..4).gives(1, 2).sends(4..5).found(), []);
    // The limit counts from the acknowledged PSN, not from the last PSN sent.
    let found = OneAddress::begin(2).sends(1..4).gives(1, 2).sends(4..6).found();
    assert_eq!(found, [(Kind::CreditLimit, vec![6, 8], Confidence::Likely)]);
}

#[test]
fn only_messages_that_take_a_receive_need_credits() {
    let mut all = OneAddress::begin(2);
    let reth = Some(Reth { va: 0, rkey: Key(1), dma_len: 64 });
    for psn in 1..20 {
        let ext = Ext { reth, ..Ext::default() };
        all.packet(0x11, Opcode::RC_WRITE_ONLY, psn, ext, &[7; 64]);
    }
    assert_eq!(all.sends(20..23).found(), []);
    let mut all = OneAddress::begin(2);
    for psn in 1..6 {
        let ext = Ext { reth, imm: Some(1), ..Ext::default() };
        all.packet(0x11, Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, psn, ext, &[7; 64]);
    }
    assert_eq!(all.found(), [(Kind::CreditLimit, vec![2, 6], Confidence::Likely)]);
}

#[test]
fn a_responder_that_does_not_count_sets_no_limit() {
    for code in [0, 31] {
        assert_eq!(OneAddress::begin(code).sends(1..20).found(), [], "{code}");
        // A responder that once gave a number may stop counting.
        let mixed = OneAddress::begin(5).sends(1..2).gives(1, code).sends(2..40).gives(30, 5);
        assert_eq!(mixed.sends(40..60).found(), [], "{code}");
    }
}

#[test]
fn a_responder_cannot_take_credits_back() {
    // Of 16 credits 1 is used: 12 is the next lower number with a code, and one code less is permitted.
    for (code, found) in [(8, vec![]), (7, vec![]), (6, vec![]), (5, vec![Kind::Credits])] {
        let kinds: Vec<_> = OneAddress::begin(8).sends(1..2).gives(1, code).found();
        let kinds: Vec<_> = kinds.into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, found, "code {code}");
    }
    // An older acknowledgement comes later.
    let mut late = OneAddress::begin(3).sends(1..4).gives(3, 10);
    late.answer(0x12, 2, 3, credits(1));
    assert_eq!(late.found(), []);
}

#[test]
fn a_responder_must_have_the_receives_that_it_gave_credits_for() {
    let found = OneAddress::begin(2).sends(1..3).has_no_receive(2).found();
    assert_eq!(found, [(Kind::Credits, vec![2, 4, 5], Confidence::Likely)]);
    assert_eq!(OneAddress::begin(2).sends(1..4).has_no_receive(3).found(), []);
}

#[test]
fn nothing_is_said_of_credits_where_requests_are_missing() {
    // PSNs 1 to 3 are missing, so the responder may have posted more receives than is known.
    let found = OneAddress::begin(2).sends(4..9).found();
    assert_eq!(found, []);
    let found = OneAddress::begin(2).sends(4..5).gives(4, 2).sends(5..10).found();
    assert!(found.contains(&(Kind::CreditLimit, vec![4, 8], Confidence::Likely)), "{found:?}");
}

#[test]
fn an_msn_that_is_ahead_moves_the_limit() {
    let mut all = OneAddress::begin(1);
    all.read(0x11, 1, 8);
    let mut all = all.sends(2..4);
    // The response is sent when the two SENDs have arrived, with 1 more receive left.
    let aeth = Some(Aeth { syndrome: credits(1), msn: 4 });
    all.packet(0x12, Opcode::RC_READ_RESPONSE_ONLY, 1, Ext { aeth, ..Ext::default() }, &[7; 8]);
    assert_eq!(all.sends(4..6).found(), []);
}

#[test]
fn acknowledgements_are_counted_with_the_requests_that_they_are_for() {
    let mut all = OneAddress::begin(2).sends(1..4).gives(3, 3).gives(3, 3).sends(4..6);
    all.read(0x11, 6, 8);
    let aeth = Some(Aeth { syndrome: credits(1), msn: 7 });
    all.packet(0x12, Opcode::RC_READ_RESPONSE_ONLY, 6, Ext { aeth, ..Ext::default() }, &[7; 8]);
    let all = all.sends(7..8).has_no_receive(8);
    let report = all.report();
    let stats = &report.directions[0].stats;
    let acks = Acks { count: 3, new: 2, requests: 4, messages: 4, most: 3, implied: 2 };
    assert_eq!(stats.acks, acks);
    let range = Some((1, 3, 1));
    assert_eq!(stats.credits, Credit { range, unlimited: 0 });
}
