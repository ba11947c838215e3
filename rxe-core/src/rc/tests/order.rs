//! Packets that come twice, late, or in another order.

use proptest::prelude::*;

use super::*;

#[test]
fn a_duplicate_atomic_is_answered_from_memory_of_it() {
    let mut pair = Pair::new();
    lose(&mut pair, &[1]);
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::FetchAdd { remote, add: 1 }, 8, 8);
    pair.run(LONG);
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert_eq!(pair.b.bytes(0, 8), 1u64.to_ne_bytes(), "added once");
    assert_eq!(pair.a.bytes(8, 8), 0u64.to_ne_bytes());
    assert_eq!(pair.b.engine.counters().duplicate_request, 1);
}

#[test]
fn copies_of_reads_answered_long_ago_do_not_count_as_outstanding() {
    let attr = QpAttr { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..attributes() };
    let mut pair = Pair::with(&attr, QpCap::default());
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 64, 8);
    pair.run_until_idle();
    // The network delayed a copy; it arrives together with the next request.
    let copy = pair.log[0].clone();
    pair.inject(&copy);
    pair.a.post(2, SendOp::Read { remote }, 64, 8);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(causes(&pair.a.events()), []);
}

#[test]
fn a_copy_of_a_read_does_not_cost_later_ones_their_answers() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 64, 8);
    pair.run_until_idle();
    let copy = pair.log[0].clone();
    // A copy of the first request arrives when the next request is there and not yet answered.
    let at = pair.log.len();
    pair.fate = Box::new(|sent| usize::from(!sent.forward));
    pair.a.post(2, SendOp::FetchAdd { remote, add: 1 }, 64, 8);
    pair.run_until_idle();
    let next = pair.log[at].clone();
    pair.inject(&next);
    pair.inject(&copy);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn however_often_a_peer_asks_again_answers_are_bounded() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    pair.a.post(1, SendOp::Read { remote }, 0, 100 * 1024);
    pair.run_until_idle();
    let request = pair.log[0].clone();
    let before = pair.log.len();
    // Each asks for one packet, so that no response replaces another.
    for i in 0..100 {
        let mut repr = request.packet().to_repr();
        repr.bth.psn = repr.bth.psn.add(i);
        let reth = repr.ext.reth.as_mut().unwrap();
        reth.va += u64::from(i) * 1024;
        reth.dma_len = 1024;
        let mut bytes = Vec::new();
        crate::wire::emit::repr(&request.net, &mut bytes, &repr);
        pair.inject(&crate::testing::Sent { bytes, ..request.clone() });
    }
    pair.run_until_idle();
    assert_eq!(pair.log.len() - before, usize::from(attributes().max_dest_rd_atomic));
    assert_eq!(pair.b.engine.counters().dropped(DropReason::NoRoom), 96);
}

#[test]
fn duplicated_packets_change_nothing() {
    let mut pair = Pair::new();
    pair.fate = Box::new(|_| 3);
    let remote = pair.b.remote(0);
    for id in 0..10 {
        pair.b.receive(id, 4096, 3000);
        pair.a.post(id, SendOp::FetchAdd { remote, add: 1 }, 64, 8);
        pair.a.post(100 + id, SendOp::Send { imm: None }, 0, 3000);
    }
    pair.run(LONG);
    assert_eq!(pair.a.completions().len(), 20);
    assert_eq!(pair.b.completions().len(), 10);
    assert_eq!(pair.b.bytes(0, 8), 10u64.to_ne_bytes());
}

#[test]
fn whatever_the_order_a_late_packet_does_not_hide_that_others_are_missing() {
    let kinds: [fn(&Pair) -> SendOp; 3] = [
        |pair| SendOp::Write { remote: pair.b.remote(0), imm: None },
        |pair| SendOp::Read { remote: pair.b.remote(0) },
        |pair| SendOp::FetchAdd { remote: pair.b.remote(0), add: 1 },
    ];
    let mut orders = vec![vec![]];
    for n in 0..4 {
        let with = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=n).map(move |at| [&order[..at], &[n], &order[at..]].concat())
        };
        orders = orders.iter().flat_map(with).collect();
    }
    for chosen in 0..81_usize {
        for order in &orders {
            let mut pair = Pair::new();
            let ops = [1, 3, 9, 27].map(|digit| kinds[chosen / digit % 3](&pair));
            let packets = sent_one_by_one(&mut pair, &ops);
            inject_in_order(&mut pair, &packets, order);
            let expected: Vec<_> = (0..4).map(|id| (id, Status::Success)).collect();
            assert_eq!(pair.a.outcomes(), expected, "{ops:?} {order:?}: without a timeout");
        }
    }
}

#[test]
fn a_gap_that_closes_before_it_is_reported_is_acknowledged() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let packets = sent_one_by_one(&mut pair, &[SendOp::Write { remote, imm: None }; 2]);
    // The second comes early. Then both come in order, because the peer sends it again.
    inject_in_order(&mut pair, &packets, &[1, 0, 1]);
    let naks = pair.log.iter().filter(|sent| is_nak(sent)).count();
    assert_eq!((naks, pair.a.outcomes().len()), (0, 2));
    assert_eq!(causes(&pair.a.events()), []);
}

#[test]
fn what_was_dropped_behind_a_gap_is_asked_for_when_a_copy_closes_the_gap() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(0);
    let packets = sent_one_by_one(&mut pair, &[SendOp::Write { remote, imm: None }; 3]);
    // The second and the third come early; then comes a copy of the second.
    inject_in_order(&mut pair, &packets, &[1, 2, 0, 1]);
    let naks = pair.log.iter().filter(|sent| is_nak(sent)).count();
    assert_eq!((naks, pair.a.outcomes().len()), (1, 3), "without a timeout");
    assert_eq!(causes(&pair.a.events()), [RetryCause::SequenceNak]);
}

#[test]
fn a_receive_that_is_posted_before_the_refusal_has_left_lets_a_copy_in() {
    let mut pair = Pair::new();
    let packets = sent_one_by_one(&mut pair, &[SendOp::Send { imm: None }; 2]);
    pair.inject(&packets[0]);
    pair.inject(&packets[1]);
    (0..2).for_each(|id| pair.b.receive(id, 0, 8));
    inject_in_order(&mut pair, &packets, &[0]);
    assert_eq!(pair.a.outcomes(), [0, 1].map(|id| (id, Status::Success)));
    assert_eq!(causes(&pair.a.events()), [RetryCause::SequenceNak]);
}

proptest! {
    #[test]
    fn reordered_requests_cost_no_timeout(
        sizes in prop::collection::vec((0..3_usize, 1..3000_usize), 1..12),
        seed in any::<u64>(),
    ) {
        let mut pair = Pair::new();
        let mut state = seed | 1;
        let mut next = None;
        // Requests are reordered when they are sent for the first time.
        pair.order = Box::new(move |packets| {
            let Some(first) = packets.first().filter(|sent| sent.forward) else { return };
            let psn = first.packet().psn();
            if next.is_some_and(|next| psn.before(next)) {
                return;
            }
            next = packets.last().map(|last| last.packet().psn().next());
            for at in 1..packets.len() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let back = (state >> 33) as usize % 4;
                packets.swap(at, at.saturating_sub(back));
            }
        });
        let remote = pair.b.remote(0);
        for (id, &(kind, len)) in (0..).zip(&sizes) {
            pair.b.receive(id, 1 << 17, 4096);
            let op = match kind {
                0 => SendOp::Send { imm: None },
                1 => SendOp::Write { remote, imm: None },
                _ => SendOp::Read { remote },
            };
            pair.a.post(id, op, 1 << 16, len);
            if seed >> (id % 64) & 1 == 1 {
                pair.run_until_idle();
            }
        }
        pair.run(LONG);
        let outcomes = pair.a.outcomes();
        prop_assert!(outcomes.iter().all(|(_, status)| *status == Status::Success));
        prop_assert_eq!(outcomes.len(), sizes.len());
        prop_assert!(!causes(&pair.a.events()).contains(&RetryCause::Timeout));
    }
}
