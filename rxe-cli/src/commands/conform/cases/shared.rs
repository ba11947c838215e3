//! Receives in a shared receive queue.

use rxe_core::queue::Status;
use rxe_core::wire::{NakCode, Opcode};
use rxe_verbs::AsyncKind;

use super::super::bench::{Bench, QKEY, failed, got, recv_at};
use super::super::case::Case;
use super::super::packet::{bare, datagram, pattern, send};
use super::super::verdict::Outcome;
use super::exchanges::{
    receiver_not_ready, send_arrives, send_completes, three_packets_arrive, write_with_immediate,
};
use crate::common::peer::{RC_SRQ, UD_SRQ};

const SHARED: &str = "10.2.9";
const LIMIT: AsyncKind = AsyncKind::SrqLimitReached;
const LAST_WQE: AsyncKind = AsyncKind::QpLastWqeReached;

/// Brings the queue pair into the error state by a SEND LAST outside a message.
fn fails(b: &mut Bench<'_>) -> Outcome {
    b.send(bare(Opcode::RC_SEND_LAST, 0, 8).ask())?;
    b.dies(NakCode::InvalidRequest, 0)
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "srq_send",
        rule: SHARED,
        sends: "a SEND of 8 B; the shared queue has two receives",
        allows: "an ACK; the first receive completes with 8 B, which are in its buffer",
        given: RC_SRQ,
        run: |b| {
            b.receive(1, 100)?;
            b.receive(2, 100)?;
            send_arrives(b)?;
            b.untouched(recv_at(2), 8)?;
            b.alive(1)
        },
    },
    Case {
        name: "srq_send_of_three_packets",
        rule: SHARED,
        sends: "a SEND of three packets, then one of 8 B; the shared queue has two receives",
        allows: "each message completes one receive, with all bytes",
        given: RC_SRQ,
        run: |b| {
            b.receive(1, 1000)?;
            b.receive(2, 100)?;
            three_packets_arrive(b)?;
            send_completes(b, 3, 2)
        },
    },
    Case {
        name: "srq_write_with_immediate",
        rule: "9.4.3, 10.2.9",
        sends: "WRITE ONLY WITH IMMEDIATE of 8 B; the shared queue has a receive of 0 B",
        allows: "an ACK; the receive completes with 8 B, which are where the WRITE said",
        given: RC_SRQ,
        run: write_with_immediate,
    },
    Case {
        name: "srq_empty",
        rule: "9.7.5.2.8, 10.2.9",
        sends: "a SEND while the shared queue is empty, and again once it has a receive",
        allows: "an RNR NAK with the queue pair's timer, then an ACK; the receive completes once",
        given: RC_SRQ,
        run: receiver_not_ready,
    },
    Case {
        name: "srq_limit",
        rule: "10.2.9, 11.6.3",
        sends: "two SENDs; the shared queue has three receives and the limit 2",
        allows: "the event \"SRQ limit reached\" with the second message, when fewer than two are left",
        given: RC_SRQ,
        run: |b| {
            for id in 1..=3 {
                b.receive(id, 100)?;
            }
            b.arm_limit(2)?;
            send_completes(b, 0, 1)?;
            b.is_not_told(LIMIT)?;
            send_completes(b, 1, 2)?;
            b.is_told(LIMIT)
        },
    },
    Case {
        name: "srq_limit_once",
        rule: "10.2.9, 11.6.3",
        sends: "three SENDs; the shared queue has three receives and the limit 3",
        allows: "the event \"SRQ limit reached\" once: it has to be armed again",
        given: RC_SRQ,
        run: |b| {
            for id in 1..=3 {
                b.receive(id, 100)?;
            }
            b.arm_limit(3)?;
            send_completes(b, 0, 1)?;
            b.is_told(LIMIT)?;
            send_completes(b, 1, 2)?;
            send_completes(b, 2, 3)?;
            b.is_not_told(LIMIT)
        },
    },
    Case {
        name: "srq_last_wqe",
        rule: "10.3.1, 11.6.3",
        sends: "SEND LAST outside a message; the shared queue has a receive",
        allows: "NAK invalid request; ERR; the event \"last WQE reached\"; the receive does not complete",
        given: RC_SRQ,
        run: |b| {
            b.receive(1, 100)?;
            fails(b)?;
            b.is_told(LAST_WQE)?;
            b.completes([])
        },
    },
    Case {
        name: "srq_outlives_error",
        rule: "10.2.9, 10.3.1",
        sends: "SEND LAST outside a message; the queue pair is reset and connected again; then a SEND",
        allows: "the receive that was in the shared queue before completes with the SEND",
        given: RC_SRQ,
        run: |b| {
            b.receive(1, 100)?;
            fails(b)?;
            b.join_again()?;
            send_completes(b, 0, 1)?;
            b.alive(1)
        },
    },
    Case {
        name: "srq_receive_too_small",
        rule: "9.7.4.1 (length), 9.9.3",
        sends: "a SEND of 8 B; the shared queue has a receive of 7 B and another of 100 B",
        allows: "NAK invalid request; the first completes with a local length error, the other stays",
        given: RC_SRQ,
        run: |b| {
            b.receive(1, 7)?;
            b.receive(2, 100)?;
            b.send(send(0, 8).ask())?;
            b.dies(NakCode::InvalidRequest, 0)?;
            b.completes([failed(1, Status::LocalLength)])?;
            b.join_again()?;
            send_completes(b, 0, 2)
        },
    },
    Case {
        name: "srq_datagrams",
        rule: "9.8.3, 10.2.9",
        sends: "two datagrams of 8 B; the shared queue has two receives",
        allows: "the receives complete in this order with 48 B, and the payload behind the network header",
        given: UD_SRQ,
        run: |b| {
            b.receive(1, 100)?;
            b.receive(2, 100)?;
            b.send_all([datagram(8, QKEY), datagram(8, QKEY)])?;
            b.completes([got(1, 48), got(2, 48)])?;
            b.memory_is(recv_at(1) + 40, &pattern(8))?;
            b.memory_is(recv_at(2) + 40, &pattern(8))
        },
    },
];
