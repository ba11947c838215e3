//! Good requests of each operation.

use rxe_core::wire::{Opcode, Position};

use super::super::bench::{MTU, got};
use super::super::case::Case;
use super::super::packet::{bare, compare_swap, fetch_add, pattern, rdma, read, send, write};
use super::super::verdict::{Outcome, Stop};
use super::exchanges::{send_arrives, three_packets_arrive, write_with_immediate};
use crate::common::peer::RC;
use rxe_lab::answer::Said;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "send",
        rule: "9.4.1, 9.7.5.1",
        sends: "SEND ONLY of 8 B with AckReq; a receive is posted",
        allows: "one ACK; the receive completes with 8 B, which are in its buffer",
        given: RC,
        run: |b| {
            b.receive(1, 100)?;
            send_arrives(b)?;
            b.alive(1)
        },
    },
    Case {
        name: "send_of_three_packets",
        rule: "9.4.1, 9.7.5.1",
        sends: "SEND FIRST, MIDDLE and LAST, together 600 B; the last asks for an acknowledgement",
        allows: "an ACK of the last; the receive completes once, with all bytes",
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            three_packets_arrive(b)?;
            b.alive(3)
        },
    },
    Case {
        name: "send_of_nothing",
        rule: "9.4.1",
        sends: "SEND ONLY without payload",
        allows: "an ACK; the receive completes with 0 B",
        given: RC,
        run: |b| {
            b.receive(1, 100)?;
            b.send(send(0, 0).ask())?;
            b.expect(Said::Ack(0))?;
            b.completes([got(1, 0)])?;
            b.alive(1)
        },
    },
    Case {
        name: "send_with_immediate",
        rule: "9.3.6, 9.4.1",
        sends: "SEND ONLY WITH IMMEDIATE of 8 B",
        allows: "an ACK; the receive completes with 8 B",
        given: RC,
        run: |b| {
            b.receive(1, 100)?;
            b.send(bare(Opcode::RC_SEND_ONLY_WITH_IMMEDIATE, 0, 8).ask())?;
            b.expect(Said::Ack(0))?;
            b.completes([got(1, 8)])?;
            b.alive(1)
        },
    },
    Case {
        name: "write_of_three_packets",
        rule: "9.4.3, 9.7.5.1",
        sends: "WRITE FIRST, MIDDLE and LAST, together 600 B",
        allows: "an ACK of the last; the bytes are in memory, and nothing behind them",
        given: RC,
        run: |b| {
            b.send_all([
                rdma(Opcode::RC_WRITE_FIRST, 0, MTU, 64, 600),
                bare(Opcode::RC_WRITE_MIDDLE, 1, MTU),
                bare(Opcode::RC_WRITE_LAST, 2, 88).ask(),
            ])?;
            b.expect(Said::Ack(2))?;
            b.memory_is(64, &pattern(600))?;
            b.untouched(0, 64)?;
            b.untouched(664, 64)?;
            b.alive(3)
        },
    },
    Case {
        name: "write_with_immediate",
        rule: "9.4.3",
        sends: "WRITE ONLY WITH IMMEDIATE of 8 B; the receive has 0 B",
        allows: "an ACK; the receive completes with 8 B, which are where the WRITE said",
        given: RC,
        run: write_with_immediate,
    },
    Case {
        name: "read_of_three_packets",
        rule: "9.4.4, 9.7.5.1",
        sends: "READ REQUEST of 600 B, then a WRITE at the PSN behind its answer",
        allows: "READ RESPONSE FIRST, MIDDLE and LAST at the READ's three PSNs with the bytes; the WRITE \
                 is acknowledged",
        given: RC,
        run: |b| {
            b.fill(0, 256, 0xa1)?;
            b.fill(256, 256, 0xa2)?;
            b.fill(512, 88, 0xa3)?;
            b.send(read(0, 0, 600))?;
            let data = b.expect_read(0, 600)?;
            let wanted = [vec![0xa1; 256], vec![0xa2; 256], vec![0xa3; 88]].concat();
            same(&data, &wanted)?;
            b.alive(3)
        },
    },
    Case {
        name: "read_of_nothing",
        rule: "9.4.4",
        sends: "READ REQUEST of 0 B",
        allows: "READ RESPONSE ONLY without payload",
        given: RC,
        run: |b| {
            b.send(read(0, 0, 0))?;
            b.expect_read(0, 0)?;
            b.alive(1)
        },
    },
    Case {
        name: "fetch_add",
        rule: "9.4.5",
        sends: "FETCH ADD of 1 and of 2⁶⁴-1, then of 0, on a word of 0x11 bytes",
        allows: "the value before each: the sum wraps and is what it was in the end",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 0, 1))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(fetch_add(1, 0, u64::MAX))?;
            b.expect(Said::Atomic(1, WORD + 1))?;
            b.send(fetch_add(2, 0, 0))?;
            b.expect(Said::Atomic(2, WORD))?;
            b.alive(3)
        },
    },
    Case {
        name: "compare_swap",
        rule: "9.4.5",
        sends: "COMPARE SWAP that does not match, one that does, then FETCH ADD of 0",
        allows: "the value before each: only the second has changed it",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(compare_swap(0, 8, 7, 99))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(compare_swap(1, 8, WORD, 99))?;
            b.expect(Said::Atomic(1, WORD))?;
            b.send(fetch_add(2, 8, 0))?;
            b.expect(Said::Atomic(2, 99))?;
            b.alive(3)
        },
    },
    Case {
        name: "ack_req",
        rule: "9.7.5.1",
        sends: "WRITE, WRITE, and a WRITE with AckReq",
        allows: "an ACK of the last; ACKs of the others may come before it",
        given: RC,
        run: |b| {
            b.send_all([write(0, 0, 8), write(1, 8, 8)])?;
            b.alive(2)?;
            b.memory_is(0, &[pattern(8), pattern(8)].concat())
        },
    },
    Case {
        name: "order_of_answers",
        rule: "9.7.5.1",
        sends: "READ, WRITE with AckReq, and READ, without a pause",
        allows: "the answers in the order of the requests",
        given: RC,
        run: |b| {
            b.send_all([read(0, 0, 8), write(1, 64, 8).ask(), read(2, 0, 8)])?;
            b.expect(Said::Read(Position::Only, 0, 8))?;
            b.expect(Said::Ack(1))?;
            b.expect(Said::Read(Position::Only, 2, 8))?;
            b.alive(3)
        },
    },
    Case {
        name: "msn",
        rule: "9.7.7.1",
        sends: "three WRITEs with AckReq, the second of two packets",
        allows: "ACKs whose MSNs are 1, 2 and 3: messages count, not packets",
        given: RC,
        run: |b| {
            b.send(write(0, 0, 8).ask())?;
            let first = b.expect(Said::Ack(0))?.msn();
            b.send_all([
                rdma(Opcode::RC_WRITE_FIRST, 1, MTU, 0, 300),
                bare(Opcode::RC_WRITE_LAST, 2, 44).ask(),
            ])?;
            let second = b.expect(Said::Ack(2))?.msn();
            b.send(write(3, 0, 8).ask())?;
            let third = b.expect(Said::Ack(3))?.msn();
            let msns = [first, second, third].map(Option::unwrap_or_default);
            if msns == [1, 2, 3] {
                return Ok(());
            }
            Err(Stop::Deviates(format!("the MSNs are {msns:?}, not [1, 2, 3]")))
        },
    },
];

/// The value of 8 filled bytes of the peer's memory, in either byte order.
pub(super) const WORD: u64 = 0x1111_1111_1111_1111;

/// Requires READ data to equal the bytes in memory.
pub(super) fn same(data: &[u8], wanted: &[u8]) -> Outcome {
    match data.iter().zip(wanted).position(|(a, b)| a != b) {
        None if data.len() == wanted.len() => Ok(()),
        at => Err(Stop::Deviates(format!(
            "the READ data differ from the memory at byte {} of {}",
            at.unwrap_or(data.len()),
            wanted.len()
        ))),
    }
}
