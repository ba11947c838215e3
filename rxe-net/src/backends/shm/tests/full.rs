//! Tests of full rings.

use std::time::Duration;

use super::{open, packets, readable, receive, send};
use crate::backend::{Backend, SendStatus};
use crate::testing::in_namespace;

/// More packets than fit into a ring, in bursts of equal size: if one does not fit, none after it
/// does.
const OVERFLOW: u32 = 96 * BURST;
const BURST: u32 = 65_507 / 1040;

/// Longer than any test waits.
const FOREVER: Duration = Duration::from_secs(3600);

#[test]
fn a_receiver_that_is_stopped_loses_packets_and_holds_nobody_up() {
    in_namespace("", || {
        let (mut from, mut slow, mut other) =
            (open("127.0.0.1"), open("127.0.0.2"), open("127.0.0.3"));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW);
        assert!(from.counters().tx_no_buffer > 0);
        // The receiver has used up its timeout, and is not waited for again.
        from.receiver_timeout = FOREVER;
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, BURST);
        send(&mut from, "127.0.0.1", "127.0.0.3", 1, BURST);
        receive(&mut other, BURST);
        let went = u32::try_from(from.counters().tx_packets - u64::from(BURST)).unwrap();
        receive(&mut slow, went);
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, BURST);
        receive(&mut slow, BURST);
    });
}

#[test]
fn a_full_ring_is_waited_for_by_the_caller_and_not_in_send() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        from.receiver_timeout = FOREVER;
        let mut batches: Vec<_> =
            (0..5).map(|_| packets(&from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW / 5)).collect();
        let status = batches.iter_mut().map(|batch| from.send(batch).unwrap());
        let status: Vec<_> = status.take_while(|status| *status == SendStatus::Done).collect();
        assert!(status.len() < 5, "the ring has taken all");
        assert_eq!(from.counters().tx_no_buffer, 0);
        assert!(readable(&from, 10), "it is to be tried again");
        assert_eq!(from.send(&mut batches[status.len()]).unwrap(), SendStatus::Congested);
        // Once there is room, sending continues.
        let mut got = 0;
        while got < from.counters().tx_packets {
            got += to.receive(4096, &mut |_| {}).unwrap() as u64;
        }
        for batch in &mut batches[status.len()..] {
            assert_eq!(from.send(batch).unwrap(), SendStatus::Done);
        }
        assert!(!readable(&from, 0), "there is nothing to try again");
        assert_eq!(from.counters().tx_no_buffer, 0);
    });
}

#[test]
fn a_receiver_that_takes_a_record_now_and_then_counts_as_stopped() {
    in_namespace("", || {
        let (mut from, mut slow) = (open("127.0.0.1"), open("127.0.0.2"));
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW);
        from.receiver_timeout = FOREVER;
        // A little less than what counts as progress. The sender is not told of less than that.
        for _ in 0..3 {
            while slow.receive(1, &mut |_| {}).unwrap() == 0 {}
        }
        let went = from.counters().tx_packets;
        let mut batch = packets(&from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW / 20);
        assert_eq!(from.send(&mut batch).unwrap(), SendStatus::Done, "nothing is waited for");
        assert!(from.counters().tx_packets > went, "the room that it made is used");
        // Until half of the ring is empty.
        while slow.receive(4096, &mut |_| {}).unwrap() > 0 {}
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW / 20);
        let lost = from.counters().tx_no_buffer;
        assert!(lost > 0);
        let mut batch = packets(&from, "127.0.0.1", "127.0.0.2", 1, OVERFLOW);
        assert_eq!(from.send(&mut batch).unwrap(), SendStatus::Congested);
        assert_eq!(from.counters().tx_no_buffer, lost);
    });
}

#[test]
fn a_receiver_is_given_time_to_make_room() {
    const COUNT: u32 = 4 * OVERFLOW;
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        // The host may be so busy that the default would be exceeded.
        from.receiver_timeout = FOREVER;
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&mut to, COUNT));
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, COUNT);
        });
        assert_eq!(from.counters().tx_no_buffer, 0);
    });
}
