//! Unreliable connection and unreliable datagram, which never send a response.

use std::time::Duration;

use rxe_core::wire::Opcode;

use super::super::bench::{Bench, MTU, QKEY, got, recv_at};
use super::super::case::Case;
use super::super::packet::{bare, datagram, pattern, rdma};
use super::super::verdict::Outcome;
use crate::common::peer::{UC, UD};

/// Requires that the queue pair is still in RTS and sends nothing.
fn silent(b: &mut Bench<'_>) -> Outcome {
    b.in_state("RTS")?;
    b.quiet(Duration::from_millis(20))
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "uc_send",
        rule: "9.8.2",
        sends: "a SEND of two packets over UC",
        allows: "the receive completes with all bytes; no answer",
        given: UC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::UC_SEND_FIRST, 0, MTU))?;
            b.send(bare(Opcode::UC_SEND_LAST, 1, 8))?;
            b.completes([got(1, 264)])?;
            b.memory_is(recv_at(1), &pattern(264))?;
            silent(b)
        },
    },
    Case {
        name: "uc_write",
        rule: "9.8.2",
        sends: "a WRITE over UC, then a SEND",
        allows: "the bytes are written; no answer",
        given: UC,
        run: |b| {
            b.receive(1, 100)?;
            b.send(rdma(Opcode::UC_WRITE_ONLY, 0, 8, 0, 8))?;
            b.send(bare(Opcode::UC_SEND_ONLY, 1, 4))?;
            b.completes([got(1, 4)])?;
            b.memory_is(0, &pattern(8))?;
            silent(b)
        },
    },
    Case {
        name: "uc_message_without_middle",
        rule: "9.8.2.2",
        sends: "UC SEND FIRST and LAST without the MIDDLE, then a whole SEND of 4 B",
        allows: "the broken message is dropped silently; the SEND completes the receive",
        given: UC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::UC_SEND_FIRST, 0, MTU))?;
            b.send(bare(Opcode::UC_SEND_LAST, 2, 8))?;
            b.send(bare(Opcode::UC_SEND_ONLY, 3, 4))?;
            b.completes([got(1, 4)])?;
            silent(b)
        },
    },
    Case {
        name: "uc_without_receive",
        rule: "9.8.2.2",
        sends: "a SEND over UC without a receive, a WRITE, then a SEND with a receive",
        allows: "the first is dropped silently, the others are carried out",
        given: UC,
        run: |b| {
            b.send(bare(Opcode::UC_SEND_ONLY, 0, 8))?;
            // Once the WRITE is visible in memory, the SEND before it was dropped.
            b.send(rdma(Opcode::UC_WRITE_ONLY, 1, 8, 0, 8))?;
            b.memory_becomes(0, &pattern(8))?;
            b.receive(1, 100)?;
            b.send(bare(Opcode::UC_SEND_ONLY, 2, 4))?;
            b.completes([got(1, 4)])?;
            silent(b)
        },
    },
    Case {
        name: "uc_unknown_key",
        rule: "9.8.2.2",
        sends: "a WRITE over UC under a key that does not exist, then a good SEND",
        allows: "the WRITE is dropped silently; the SEND completes",
        given: UC,
        run: |b| {
            b.receive(1, 100)?;
            b.send(rdma(Opcode::UC_WRITE_ONLY, 0, 8, 0, 8).wrong_rkey())?;
            b.send(bare(Opcode::UC_SEND_ONLY, 1, 4))?;
            b.completes([got(1, 4)])?;
            b.untouched(0, 8)?;
            silent(b)
        },
    },
    Case {
        name: "ud_send",
        rule: "9.8.3",
        sends: "a datagram of 8 B with the right Q_Key",
        allows: "the receive completes with 48 B: 40 for the network header, and the payload behind them",
        given: UD,
        run: |b| {
            b.receive(1, 100)?;
            b.send(datagram(8, QKEY))?;
            b.completes([got(1, 48)])?;
            b.memory_is(recv_at(1) + 40, &pattern(8))?;
            silent(b)
        },
    },
    Case {
        name: "ud_wrong_qkey",
        rule: "9.6.1 (Q_Key)",
        sends: "a datagram with another Q_Key, then one with the right one",
        allows: "the first is dropped silently, the second completes",
        given: UD,
        run: |b| {
            b.receive(1, 100)?;
            b.send(datagram(12, QKEY + 1))?;
            b.send(datagram(8, QKEY))?;
            b.completes([got(1, 48)])?;
            silent(b)
        },
    },
];
