//! Packet sequence numbers: wrap-around and gaps.

use rxe_core::wire::{NakCode, Opcode, Position};

use super::super::bench::{MTU, got, recv_at};
use super::super::case::Case;
use super::super::packet::{bare, fetch_add, pattern, read, send, write};
use crate::common::peer::{Given, RC};
use rxe_lab::answer::Said;

const GAP: &str = "9.7.4.1 (PSN), 9.7.5.2.8 (PSN sequence error)";
const SEQUENCE: NakCode = NakCode::PsnSequenceError;

/// RC whose PSN wraps after two packets.
const BEFORE_WRAP: Given = Given { rq_psn: 0xff_fffe, ..RC };

pub(super) const CASES: &[Case] = &[
    Case {
        name: "psn_wrap",
        rule: "9.7.1",
        sends: "WRITEs at PSNs 0xfffffe, 0xffffff, 0 and 1, each with AckReq",
        allows: "each is acknowledged",
        given: BEFORE_WRAP,
        run: |b| {
            for psn in 0..4 {
                b.alive(psn)?;
            }
            Ok(())
        },
    },
    Case {
        name: "psn_wrap_in_message",
        rule: "9.7.1",
        sends: "a SEND of three packets from PSN 0xfffffe on",
        allows: "an ACK of PSN 0; the receive completes with all bytes",
        given: BEFORE_WRAP,
        run: |b| {
            b.receive(1, 1000)?;
            b.send_all([
                bare(Opcode::RC_SEND_FIRST, 0, MTU),
                bare(Opcode::RC_SEND_MIDDLE, 1, MTU),
                bare(Opcode::RC_SEND_LAST, 2, 8).ask(),
            ])?;
            b.expect(Said::Ack(2))?;
            b.completes([got(1, 520)])?;
            b.alive(3)
        },
    },
    Case {
        name: "psn_wrap_in_read",
        rule: "9.7.1, 9.7.5.1",
        sends: "READ REQUEST of four packets at PSN 0xfffffe",
        allows: "READ data at PSNs 0xfffffe, 0xffffff, 0 and 1",
        given: BEFORE_WRAP,
        run: |b| {
            b.send(read(0, 0, 1000))?;
            b.expect_read(0, 1000)?;
            b.alive(4)
        },
    },
    Case {
        name: "psn_gap",
        rule: GAP,
        sends: "a WRITE at the PSN after the expected one, then those that it skipped and it again",
        allows: "a NAK of the expected PSN; nothing is written before the gap is closed",
        given: RC,
        run: |b| {
            b.send(write(1, 8, 8).ask())?;
            b.expect(Said::Nak(SEQUENCE, 0))?;
            b.untouched(0, 64)?;
            b.send(write(0, 0, 8).ask())?;
            b.expect(Said::Ack(0))?;
            b.send(write(1, 8, 8).ask())?;
            b.expect(Said::Ack(1))?;
            b.memory_is(0, &[pattern(8), pattern(8)].concat())?;
            b.alive(2)
        },
    },
    Case {
        name: "one_nak_for_a_gap",
        rule: GAP,
        sends: "three WRITEs behind a gap, then what was skipped",
        allows: "one NAK of the expected PSN; what follows it is dropped silently",
        given: RC,
        run: |b| {
            b.send_all([write(1, 0, 8).ask(), write(2, 0, 8).ask(), write(3, 0, 8).ask()])?;
            b.expect(Said::Nak(SEQUENCE, 0))?;
            b.alive(0)
        },
    },
    Case {
        name: "psn_gap_in_message",
        rule: GAP,
        sends: "SEND FIRST and LAST without the MIDDLE between them, then MIDDLE and LAST",
        allows: "a NAK of the MIDDLE's PSN; the message is completed with what is sent again",
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.send(bare(Opcode::RC_SEND_LAST, 2, 88).ask())?;
            b.expect(Said::Nak(SEQUENCE, 1))?;
            b.send(bare(Opcode::RC_SEND_MIDDLE, 1, MTU))?;
            b.send(bare(Opcode::RC_SEND_LAST, 2, 88).ask())?;
            b.expect(Said::Ack(2))?;
            b.completes([got(1, 600)])?;
            b.memory_is(recv_at(1), &pattern(600))?;
            b.alive(3)
        },
    },
    Case {
        name: "read_behind_gap",
        rule: GAP,
        sends: "READ REQUEST at the PSN after the expected one",
        allows: "a NAK of the expected PSN and no data",
        given: RC,
        run: |b| {
            b.send(read(1, 0, 100))?;
            b.expect(Said::Nak(SEQUENCE, 0))?;
            b.alive(0)
        },
    },
    Case {
        name: "atomic_behind_gap",
        rule: GAP,
        sends: "FETCH ADD at the PSN after the expected one",
        allows: "a NAK of the expected PSN; nothing is added",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(1, 0, 1))?;
            b.expect(Said::Nak(SEQUENCE, 0))?;
            b.untouched(0, 8)?;
            b.alive(0)
        },
    },
    Case {
        name: "gap_before_other_faults",
        rule: "9.7.4.1 (order of checks)",
        sends: "behind a gap, a WRITE under a key that does not exist",
        allows: "the NAK of the gap: the PSN is checked first",
        given: RC,
        run: |b| {
            b.send(write(1, 0, 8).wrong_rkey())?;
            b.expect(Said::Nak(SEQUENCE, 0))?;
            b.alive(0)
        },
    },
    Case {
        name: "farthest_psn_ahead",
        rule: "9.7.1",
        sends: "a WRITE 2²³-1 PSNs ahead of the expected one",
        allows: "a NAK of the expected PSN: it counts as ahead",
        given: RC,
        run: |b| {
            b.send(write(0x7f_ffff, 0, 8).ask())?;
            b.expect(Said::Nak(SEQUENCE, 0))?;
            b.untouched(0, 8)?;
            b.alive(0)
        },
    },
    Case {
        name: "second_gap",
        rule: GAP,
        sends: "a gap, what was skipped, and another gap",
        allows: "each gap gets a NAK of its own",
        given: RC,
        run: |b| {
            b.send(write(1, 0, 8))?;
            b.expect(Said::Nak(SEQUENCE, 0))?;
            b.alive(0)?;
            b.send(read(3, 0, 8))?;
            b.expect(Said::Nak(SEQUENCE, 1))?;
            b.send(read(1, 0, 8))?;
            b.expect(Said::Read(Position::Only, 1, 8))?;
            b.receive(1, 100)?;
            b.send(send(2, 8).ask())?;
            b.expect(Said::Ack(2))?;
            b.alive(3)
        },
    },
];
