//! The peer as requester without a response: its retries, and when it gives up.

use std::time::{Duration, Instant};

use rxe_core::queue::Status;
use rxe_core::types::{AckTimeout, RnrTimer};
use rxe_core::wire::{NakCode, Opcode, Position};

use super::super::bench::{Bench, MTU, SINK, done, failed, flushed};
use super::super::case::Case;
use super::super::packet::{ack, nak, pattern, response, rnr};
use super::super::verdict::{Outcome, Stop};
use crate::common::peer::{Given, RC};
use rxe_lab::answer::Said;

const IMPLIED: &str = "9.7.5.2 (implied NAK)";
const SEQUENCE: &str = "9.7.5.2.8 (PSN sequence error)";
const RETRY: &str = "9.9.2 (retry counter)";
const RNR: &str = "9.7.5.2.8 (RNR NAK), table 45";

/// The encoded Local ACK Timeout of 67 ms.
const TIMEOUT: u8 = 14;
/// The encoded RNR NAK timer of 20.48 ms.
const RNR_TIMER: u8 = 22;

/// RC that retries after 268 ms.
/// A requester may wait for its timeout instead of detecting a gap.
const PATIENT: Given = Given { timeout: 16, ..RC };

/// RC that gives up after two retries.
const TWO_RETRIES: Given = Given { timeout: TIMEOUT, retry_cnt: 2, rnr_retry: 2, ..RC };

/// Requires that at least this much time passed before a packet was sent again.
fn not_before(least: Duration, passed: Duration) -> Outcome {
    if passed >= least {
        return Ok(());
    }
    let [passed, least] = [passed, least].map(|t| t.as_secs_f64() * 1e3);
    Err(Stop::Deviates(format!("it was sent again after {passed:.2} ms, before {least:.2} ms")))
}

/// Requires the peer to repeat a READ of three packets whose data are incomplete.
/// The repeated READ may begin at PSN `from` or at the first. Then answers, and requires the right
/// bytes in memory.
fn asked_again(b: &mut Bench<'_>, from: i32) -> Outcome {
    let data = pattern(600);
    let whole = Said::read_request(0);
    let again = b.expect_any(&[Said::read_request(from), whole.clone()])?;
    let parts = [(0, 256), (256, 512), (512, 600)];
    let first = if again == whole { 0 } else { from };
    let asked: Vec<_> = (0..).zip(parts).filter(|(psn, _)| *psn >= first).collect();
    let packets = u32::try_from(asked.len()).unwrap_or(0);
    for (i, (psn, (start, end))) in (0..).zip(asked) {
        let position = Position::of(i, packets);
        b.send(response(position, psn, end - start).with(data[start..end].to_vec()))?;
    }
    b.completes([done(1)])?;
    b.memory_is(SINK, &data)
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "implied_nak",
        rule: IMPLIED,
        sends: "the peer posts a READ and a SEND; only the SEND is acknowledged",
        allows: "the READ is asked for again; nothing completes before it is answered",
        given: PATIENT,
        run: |b| {
            b.post_read(1, 8)?;
            b.post_send(2, 8)?;
            b.expect_all([Said::read_request(0), Said::send_only(1)])?;
            b.send(ack(1))?;
            b.expect(Said::read_request(0))?;
            b.completes([])?;
            b.send(response(Position::Only, 0, 8))?;
            b.listen(Duration::from_millis(20))?;
            b.send(ack(1))?;
            b.completes([done(1), done(2)])
        },
    },
    Case {
        name: "read_data_out_of_order",
        rule: IMPLIED,
        sends: "the peer posts a READ of three packets; FIRST and LAST come without the MIDDLE",
        allows: "the READ is asked for again from the MIDDLE or as a whole; then it completes",
        given: PATIENT,
        run: |b| {
            b.post_read(1, 600)?;
            b.expect(Said::read_request(0))?;
            let data = pattern(600);
            b.send(response(Position::First, 0, MTU).with(data[..256].to_vec()))?;
            b.send(response(Position::Last, 2, 88).with(data[512..].to_vec()))?;
            asked_again(b, 1)
        },
    },
    Case {
        name: "nak_sequence",
        rule: SEQUENCE,
        sends: "the peer posts three SENDs; NAK PSN sequence error of the second",
        allows: "the first completes; the second and the third are sent again, in order",
        given: RC,
        run: |b| {
            b.three_sends()?;
            b.send(nak(NakCode::PsnSequenceError, 1))?;
            b.expect_all([Said::send_only(1), Said::send_only(2)])?;
            b.send(ack(2))?;
            b.completes([done(1), done(2), done(3)])
        },
    },
    Case {
        name: "nak_sequence_in_message",
        rule: SEQUENCE,
        sends: "the peer posts a SEND of three packets; NAK PSN sequence error of the second",
        allows: "MIDDLE and LAST are sent again",
        given: RC,
        run: |b| {
            b.post_send(1, 600)?;
            let [middle, last] = [(Opcode::RC_SEND_MIDDLE, 1, MTU), (Opcode::RC_SEND_LAST, 2, 88)]
                .map(|(opcode, psn, len)| Said::Request(opcode, psn, len));
            b.expect(Said::Request(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.expect_all([middle.clone(), last.clone()])?;
            b.send(nak(NakCode::PsnSequenceError, 1))?;
            b.expect_all([middle, last])?;
            b.send(ack(2))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "timeout",
        rule: "9.9.2.1.1 (transport timer)",
        sends: "the peer posts a SEND; its timeout is 67 ms; the second time it is acknowledged",
        allows: "it is sent again, not before 63 ms (67 ms less a tick of the clock); it completes",
        given: TWO_RETRIES,
        run: |b| {
            let posted = Instant::now();
            b.post_send(1, 8)?;
            b.expect(Said::send_only(0))?;
            let (again, _) = b.expect_at(&Said::send_only(0))?;
            // The first packet left after `posted`, so this difference is never less than the true
            // interval.
            let least = AckTimeout::new(TIMEOUT).and_then(AckTimeout::duration).unwrap_or_default();
            // Linux counts the timeout in jiffies of 4 ms (HZ=250).
            let least = least.saturating_sub(Duration::from_millis(4));
            not_before(least, again.duration_since(posted))?;
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "retry_exhausted",
        rule: RETRY,
        sends: "the peer posts two SENDs; its retry_cnt is 2; nothing is acknowledged",
        allows: "the first is sent three times in all; it completes with \"transport retry counter \
                 exceeded\", the other is flushed; ERR",
        given: TWO_RETRIES,
        run: |b| {
            b.post_send(1, 8)?;
            b.post_send(2, 8)?;
            b.completes_within(
                Duration::from_secs(15),
                &[failed(1, Status::RetryExceeded), flushed(2)],
            )?;
            times(b, &Said::send_only(0), 3)?;
            b.in_error()
        },
    },
    Case {
        name: "rnr_wait",
        rule: RNR,
        sends: "the peer posts a SEND; RNR NAK with timer 20.48 ms, then an ACK",
        allows: "it is sent again, not before 20.48 ms; it completes",
        given: RC,
        run: |b| {
            b.post_send(1, 8)?;
            b.expect(Said::send_only(0))?;
            let before = Instant::now();
            b.send(rnr(0, RNR_TIMER))?;
            let (again, _) = b.expect_at(&Said::send_only(0))?;
            let least = RnrTimer::from_wire(RNR_TIMER).duration();
            not_before(least, again.duration_since(before))?;
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "rnr_retry_exhausted",
        rule: RNR,
        sends: "the peer posts a SEND; its rnr_retry is 2; RNR NAK each time",
        allows: "it is sent three times in all; it completes with \"RNR retry counter exceeded\"; ERR",
        given: Given { timeout: RC.timeout, ..TWO_RETRIES },
        run: |b| {
            b.post_send(1, 8)?;
            for _ in 0..3 {
                b.expect(Said::send_only(0))?;
                b.send(rnr(0, 1))?;
            }
            b.completes([failed(1, Status::RnrRetryExceeded)])?;
            b.in_error()
        },
    },
    Case {
        name: "rnr_retry_without_end",
        rule: RNR,
        sends: "the peer posts a SEND; its rnr_retry is 7, which has no end; twelve RNR NAKs, then an ACK",
        allows: "it is sent again each time, and completes",
        given: RC,
        run: |b| {
            b.post_send(1, 8)?;
            for _ in 0..12 {
                b.expect(Said::send_only(0))?;
                b.send(rnr(0, 1))?;
            }
            b.expect(Said::send_only(0))?;
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "rnr_is_no_other_retry",
        rule: RNR,
        sends: "the peer posts a SEND; its retry_cnt is 0; an RNR NAK, then an ACK",
        allows: "it is sent again and completes: the two counters are separate",
        given: Given { retry_cnt: 0, ..RC },
        run: |b| {
            b.post_send(1, 8)?;
            b.expect(Said::send_only(0))?;
            b.send(rnr(0, 1))?;
            b.expect(Said::send_only(0))?;
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "sequence_nak_without_retry",
        rule: RETRY,
        sends: "the peer posts a SEND; its retry_cnt is 0; NAK PSN sequence error",
        allows: "it completes with \"transport retry counter exceeded\"; ERR",
        given: Given { retry_cnt: 0, ..RC },
        run: |b| {
            b.post_send(1, 8)?;
            b.expect(Said::send_only(0))?;
            b.send(nak(NakCode::PsnSequenceError, 0))?;
            b.completes([failed(1, Status::RetryExceeded)])?;
            b.in_error()
        },
    },
];

/// Requires that the peer sent this request `wanted` times.
fn times(b: &mut Bench<'_>, request: &Said, wanted: usize) -> Outcome {
    let all = b.listen(Duration::ZERO)?;
    let found = all.iter().filter(|said| *said == request).count();
    if found == wanted {
        return Ok(());
    }
    Err(Stop::Deviates(format!("{request} was sent {found} times, not {wanted} times")))
}
