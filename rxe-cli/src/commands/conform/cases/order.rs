//! Wrong sequences of opcodes, and wrong lengths.

use rxe_core::wire::{NakCode, Opcode};

use super::super::bench::{MTU, failed, flushed, got};
use super::super::case::Case;
use super::super::packet::{bare, fetch_add, rdma, read, send, write};
use crate::common::peer::{Given, RC, access};
use rxe_lab::answer::Said;

const ORDER: &str = "9.7.4.1 (opcode sequence)";
const LENGTH: &str = "9.7.4.1 (length)";
const OPCODE: &str = "9.7.4.1 (opcode)";
const INVALID: NakCode = NakCode::InvalidRequest;
const REFUSED: &str = "NAK invalid request; the queue pair goes into ERR";

const fn without(right: u32) -> Given {
    Given { qp_access: access::ALL & !right, ..RC }
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "middle_without_first",
        rule: ORDER,
        sends: "SEND MIDDLE outside a message",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_MIDDLE, 0, MTU).ask())?;
            b.dies(INVALID, 0)?;
            b.completes([flushed(1)])
        },
    },
    Case {
        name: "last_without_first",
        rule: ORDER,
        sends: "WRITE LAST outside a message",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.send(bare(Opcode::RC_WRITE_LAST, 0, 8).ask())?;
            b.dies(INVALID, 0)
        },
    },
    Case {
        name: "first_after_first",
        rule: ORDER,
        sends: "SEND FIRST inside a SEND",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.send(bare(Opcode::RC_SEND_FIRST, 1, MTU))?;
            b.dies(INVALID, 1)
        },
    },
    Case {
        name: "write_inside_send",
        rule: ORDER,
        sends: "WRITE ONLY inside a SEND",
        allows: "NAK invalid request; the queue pair goes into ERR; nothing is written",
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.send(write(1, 0, 8).ask())?;
            b.dies(INVALID, 1)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "read_inside_write",
        rule: ORDER,
        sends: "READ REQUEST inside a WRITE",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.send(rdma(Opcode::RC_WRITE_FIRST, 0, MTU, 0, 600))?;
            b.send(read(1, 0, 8))?;
            b.dies(INVALID, 1)
        },
    },
    Case {
        name: "silence_after_fatal_nak",
        rule: "9.9.3",
        sends: "SEND LAST outside a message, then good WRITEs",
        allows: "NAK invalid request, and nothing after it; nothing is written",
        given: RC,
        run: |b| {
            b.send(bare(Opcode::RC_SEND_LAST, 0, 8).ask())?;
            b.dies(INVALID, 0)?;
            b.send_all([write(0, 0, 8).ask(), write(1, 0, 8).ask()])?;
            b.quiet(std::time::Duration::from_millis(100))?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "reserved_opcode",
        rule: OPCODE,
        sends: "a packet with the reserved RC opcode 0x1f",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.send(send(0, 8).ask().opcode_byte(0x1f))?;
            b.dies(INVALID, 0)
        },
    },
    Case {
        name: "qp_without_remote_write",
        rule: OPCODE,
        sends: "a WRITE to a queue pair without IBV_ACCESS_REMOTE_WRITE",
        allows: REFUSED,
        given: without(access::REMOTE_WRITE),
        run: |b| {
            b.send(write(0, 0, 8).ask())?;
            b.dies(INVALID, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "qp_without_remote_read",
        rule: OPCODE,
        sends: "a READ from a queue pair without IBV_ACCESS_REMOTE_READ",
        allows: REFUSED,
        given: without(access::REMOTE_READ),
        run: |b| {
            b.send(read(0, 0, 8))?;
            b.dies(INVALID, 0)
        },
    },
    Case {
        name: "qp_without_remote_atomic",
        rule: OPCODE,
        sends: "a FETCH ADD to a queue pair without IBV_ACCESS_REMOTE_ATOMIC",
        allows: REFUSED,
        given: without(access::REMOTE_ATOMIC),
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 0, 1))?;
            b.dies(INVALID, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "payload_of_whole_mtu",
        rule: LENGTH,
        sends: "SEND ONLY of exactly the path MTU, and SEND FIRST and LAST of it each",
        allows: "ACKs; two receives complete",
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.receive(2, 1000)?;
            b.send(send(0, MTU).ask())?;
            b.expect(Said::Ack(0))?;
            b.send(bare(Opcode::RC_SEND_FIRST, 1, MTU))?;
            b.send(bare(Opcode::RC_SEND_LAST, 2, MTU).ask())?;
            b.expect(Said::Ack(2))?;
            b.completes([got(1, 256), got(2, 512)])?;
            b.alive(3)
        },
    },
    Case {
        name: "payload_beyond_mtu",
        rule: LENGTH,
        sends: "SEND ONLY of one byte more than the path MTU",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(send(0, MTU + 1).ask())?;
            b.dies(INVALID, 0)
        },
    },
    Case {
        name: "short_first",
        rule: LENGTH,
        sends: "SEND FIRST of 4 B less than the path MTU",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU - 4))?;
            b.dies(INVALID, 0)
        },
    },
    Case {
        name: "short_middle",
        rule: LENGTH,
        sends: "WRITE FIRST, then a MIDDLE of 4 B less than the path MTU",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.send(rdma(Opcode::RC_WRITE_FIRST, 0, MTU, 0, 700))?;
            b.send(bare(Opcode::RC_WRITE_MIDDLE, 1, MTU - 4))?;
            b.dies(INVALID, 1)
        },
    },
    Case {
        name: "empty_last",
        rule: LENGTH,
        sends: "SEND FIRST, then a LAST without payload",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.send(bare(Opcode::RC_SEND_LAST, 1, 0).ask())?;
            b.dies(INVALID, 1)
        },
    },
    Case {
        name: "write_shorter_than_reth",
        rule: LENGTH,
        sends: "WRITE ONLY of 8 B whose RETH says 12",
        allows: "NAK invalid request; the queue pair goes into ERR; nothing is written",
        given: RC,
        run: |b| {
            b.send(rdma(Opcode::RC_WRITE_ONLY, 0, 8, 0, 12).ask())?;
            b.dies(INVALID, 0)?;
            b.untouched(0, 12)
        },
    },
    Case {
        name: "write_longer_than_reth",
        rule: LENGTH,
        sends: "WRITE ONLY of 8 B whose RETH says 4",
        allows: "NAK invalid request; the queue pair goes into ERR; nothing is written",
        given: RC,
        run: |b| {
            b.send(rdma(Opcode::RC_WRITE_ONLY, 0, 8, 0, 4).ask())?;
            b.dies(INVALID, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "write_that_ends_early",
        rule: LENGTH,
        sends: "WRITE FIRST whose RETH says 600 B, then a LAST of 8 B",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.send(rdma(Opcode::RC_WRITE_FIRST, 0, MTU, 0, 600))?;
            b.send(bare(Opcode::RC_WRITE_LAST, 1, 8).ask())?;
            b.dies(INVALID, 1)
        },
    },
    Case {
        name: "read_of_more_than_2_gib",
        rule: LENGTH,
        sends: "READ REQUEST of 2³¹+1 B",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.send(read(0, 0, 0x8000_0001))?;
            b.dies(INVALID, 0)
        },
    },
    Case {
        name: "receive_too_small",
        rule: "9.7.4.1 (length), 9.9.3",
        sends: "a SEND of 8 B; the receive has 7 B, the next one 100 B",
        allows: "NAK invalid request; the receive completes with a local length error, the other is flushed",
        given: RC,
        run: |b| {
            b.receive(1, 7)?;
            b.receive(2, 100)?;
            b.send(send(0, 8).ask())?;
            b.dies(INVALID, 0)?;
            b.completes([failed(1, rxe_core::queue::Status::LocalLength), flushed(2)])
        },
    },
];
