//! Duplicate requests: they are answered again, and not executed again.

use rxe_core::wire::{Opcode, Position};

use super::super::bench::{MTU, got};
use super::super::case::Case;
use super::super::packet::{bare, compare_swap, fetch_add, pattern, read, send, write};
use super::super::verdict::Stop;
use super::messages::{WORD, same};
use crate::common::peer::RC;
use rxe_lab::answer::Said;

const DUPLICATE: &str = "9.7.5.1, C9-105";
const DUPLICATE_ATOMIC: &str = "9.4.5.2, C9-105";

pub(super) const CASES: &[Case] = &[
    Case {
        name: "duplicate_send",
        rule: DUPLICATE,
        sends: "a SEND twice; two receives are posted",
        allows: "two ACKs; one receive completes",
        given: RC,
        run: |b| {
            b.receive(1, 100)?;
            b.receive(2, 100)?;
            b.send(send(0, 8).ask())?;
            b.expect(Said::Ack(0))?;
            b.send(send(0, 8).ask())?;
            b.expect(Said::Ack(0))?;
            b.completes([got(1, 8)])?;
            b.alive(1)
        },
    },
    Case {
        name: "duplicate_write",
        rule: DUPLICATE,
        sends: "a WRITE, and at the same PSN a WRITE of other bytes",
        allows: "two ACKs; the bytes are those of the first",
        given: RC,
        run: |b| {
            b.send(write(0, 0, 8).ask())?;
            b.expect(Said::Ack(0))?;
            b.send(write(0, 0, 8).with(vec![0x55; 8]).ask())?;
            b.expect(Said::Ack(0))?;
            b.memory_is(0, &pattern(8))?;
            b.alive(1)
        },
    },
    Case {
        name: "duplicate_of_older_request",
        rule: DUPLICATE,
        sends: "two WRITEs, then the first of them again",
        allows: "the duplicate is acknowledged at the newest PSN, or at its own",
        given: RC,
        run: |b| {
            b.alive(0)?;
            b.alive(1)?;
            b.send(write(0, 0, 8).ask())?;
            // An ACK also acknowledges the PSNs before it. The newest PSN says more, but both are
            // right.
            b.alive_with(2, &[Said::Ack(1), Said::Ack(0)])?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "duplicate_in_message",
        rule: DUPLICATE,
        sends: "SEND FIRST, MIDDLE, both again, then LAST",
        allows: "the receive completes once, with the bytes of one message",
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.receive(2, 1000)?;
            for _ in 0..2 {
                b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU))?;
                b.send(bare(Opcode::RC_SEND_MIDDLE, 1, MTU))?;
            }
            b.send(bare(Opcode::RC_SEND_LAST, 2, 8).ask())?;
            b.alive_with(3, &[Said::Ack(0), Said::Ack(1), Said::Ack(2)])?;
            b.completes([got(1, 520)])
        },
    },
    Case {
        name: "duplicate_read",
        rule: DUPLICATE,
        sends: "a READ twice; the memory changes in between",
        allows: "the answer twice; whether the second has the old or the new bytes is left open",
        given: RC,
        run: |b| {
            b.fill(0, 600, 0xa1)?;
            b.send(read(0, 0, 600))?;
            same(&b.expect_read(0, 600)?, &[0xa1; 600])?;
            b.fill(0, 600, 0xa2)?;
            b.send(read(0, 0, 600))?;
            let again = b.expect_read(0, 600)?;
            if again.iter().any(|byte| !matches!(byte, 0xa1 | 0xa2)) {
                let why = "the second answer has bytes that were never in the memory";
                return Err(Stop::Deviates(why.into()));
            }
            b.alive(3)
        },
    },
    Case {
        name: "duplicate_read_from_middle",
        rule: DUPLICATE,
        sends: "a READ of three packets, then the last two of them, at the PSN of the second",
        allows: "READ data of the two, FIRST and LAST",
        given: RC,
        run: |b| {
            b.fill(256, 344, 0xa2)?;
            b.send(read(0, 0, 600))?;
            b.expect_read(0, 600)?;
            b.send(read(1, 256, 344))?;
            same(&b.expect_read(1, 344)?, &[0xa2; 344])?;
            b.alive(3)
        },
    },
    Case {
        name: "duplicate_fetch_add",
        rule: DUPLICATE_ATOMIC,
        sends: "FETCH ADD twice at one PSN, then FETCH ADD of 0",
        allows: "the same answer twice; it was added once",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 0, 5))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(fetch_add(0, 0, 5))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(fetch_add(1, 0, 0))?;
            b.expect(Said::Atomic(1, WORD + 5))?;
            b.alive(2)
        },
    },
    Case {
        name: "duplicate_compare_swap",
        rule: DUPLICATE_ATOMIC,
        sends: "COMPARE SWAP that matches, twice at one PSN",
        allows: "both answers have the value that the first has found",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(compare_swap(0, 0, WORD, 7))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(compare_swap(0, 0, WORD, 7))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.alive(1)
        },
    },
    Case {
        name: "duplicate_older_atomic",
        rule: DUPLICATE_ATOMIC,
        sends: "two FETCH ADDs, then the first again",
        allows: "the first's answer again; the memory has both sums, once each",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 0, 5))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(fetch_add(1, 0, 7))?;
            b.expect(Said::Atomic(1, WORD + 5))?;
            b.send(fetch_add(0, 0, 5))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(fetch_add(2, 0, 0))?;
            b.expect(Said::Atomic(2, WORD + 12))?;
            b.alive(3)
        },
    },
    Case {
        name: "psn_before_connection",
        rule: DUPLICATE,
        sends: "a WRITE at the PSN before the first one",
        allows: "it counts as a duplicate: acknowledged or dropped, and not carried out",
        given: RC,
        run: |b| {
            b.send(write(-1, 0, 8).ask())?;
            b.alive_with(0, &[Said::Ack(-1)])?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "duplicate_read_never_asked",
        rule: DUPLICATE,
        sends: "a WRITE, and at its PSN a READ",
        allows: "no data: nothing was read there. An ACK is allowed",
        given: RC,
        run: |b| {
            b.alive(0)?;
            b.send(read(0, 0, 8))?;
            b.alive_with(1, &[Said::Ack(0)])
        },
    },
    Case {
        name: "duplicate_read_of_one_packet",
        rule: DUPLICATE,
        sends: "a READ of one packet twice, with a WRITE between them",
        allows: "READ data at the READ's PSN both times",
        given: RC,
        run: |b| {
            b.send(read(0, 0, 8))?;
            b.expect(Said::Read(Position::Only, 0, 8))?;
            b.alive(1)?;
            b.send(read(0, 0, 8))?;
            b.expect(Said::Read(Position::Only, 0, 8))?;
            b.alive(2)
        },
    },
];
