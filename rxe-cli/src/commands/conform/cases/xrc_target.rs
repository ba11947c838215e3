//! XRC with the peer as target: requests name a shared receive queue of its domain.

use rxe_core::wire::{NakCode, Opcode};
use rxe_lab::answer::Said;

use super::super::bench::{MTU, got};
use super::super::case::Case;
use super::super::packet::{bare, fetch_add, pattern, read, send, write};
use super::exchanges::{receiver_not_ready, send_arrives, three_packets_arrive};
use super::messages::{WORD, same};
use crate::common::peer::XRC_TARGET;

const RULE: &str = "A14";
const XRCETH: &str = "A14 (XRCETH)";
const INVALID: NakCode = NakCode::InvalidRequest;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "xrc_send",
        rule: RULE,
        sends: "an XRC SEND of 8 B; the queue that it names has a receive",
        allows: "an ACK of XRC; the receive completes with 8 B, which are in its buffer",
        given: XRC_TARGET,
        run: |b| {
            b.receive(1, 100)?;
            send_arrives(b)?;
            b.alive(1)
        },
    },
    Case {
        name: "xrc_send_of_three_packets",
        rule: RULE,
        sends: "an XRC SEND of three packets, each of which names the queue",
        allows: "an ACK of the last; the receive completes once, with all bytes",
        given: XRC_TARGET,
        run: |b| {
            b.receive(1, 1000)?;
            three_packets_arrive(b)?;
            b.alive(3)
        },
    },
    Case {
        name: "xrc_write_and_read",
        rule: "A14, 9.4.3, 9.4.4",
        sends: "an XRC WRITE of 8 B, and an XRC READ of them",
        allows: "an ACK, and READ RESPONSE ONLY with the bytes, both of XRC",
        given: XRC_TARGET,
        run: |b| {
            b.send(write(0, 0, 8).ask())?;
            b.expect(Said::Ack(0))?;
            b.send(read(1, 0, 8))?;
            let data = b.expect_read(1, 8)?;
            same(&data, &pattern(8))?;
            b.alive(2)
        },
    },
    Case {
        name: "xrc_fetch_add",
        rule: "A14, 9.4.5",
        sends: "an XRC FETCH ADD of 1, and one of 0",
        allows: "the value before each, in an ATOMIC ACKNOWLEDGE of XRC",
        given: XRC_TARGET,
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 0, 1))?;
            b.expect(Said::Atomic(0, WORD))?;
            b.send(fetch_add(1, 0, 0))?;
            b.expect(Said::Atomic(1, WORD + 1))?;
            b.alive(2)
        },
    },
    Case {
        name: "xrc_unknown_queue",
        rule: XRCETH,
        sends: "an XRC SEND that names no queue of the domain",
        allows: "NAK remote operational error; the queue pair goes into ERR; no receive completes",
        given: XRC_TARGET,
        run: |b| {
            b.receive(1, 100)?;
            b.send(send(0, 8).ask().srq_xor(0x00_5a00, "names an unknown queue"))?;
            b.dies(NakCode::RemoteOperationalError, 0)?;
            b.completes([])
        },
    },
    Case {
        name: "xrc_reserved_bits",
        rule: "A14 (XRCETH), 9.2",
        sends: "an XRC SEND with the reserved bits of the XRCETH set",
        allows: "an ACK: reserved bits are ignored",
        given: XRC_TARGET,
        run: |b| {
            b.receive(1, 100)?;
            b.send(send(0, 8).ask().srq_xor(0xff00_0000, "reserved bits of the XRCETH"))?;
            b.expect(Said::Ack(0))?;
            b.completes([got(1, 8)])?;
            b.alive(1)
        },
    },
    Case {
        name: "xrc_queue_changes_in_message",
        rule: XRCETH,
        sends: "XRC SEND FIRST, and a LAST that names no queue of the domain",
        allows: "NAK remote operational error or NAK invalid request of the LAST; the queue pair goes into ERR",
        given: XRC_TARGET,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU))?;
            let last = bare(Opcode::RC_SEND_LAST, 1, 8).ask();
            b.send(last.srq_xor(0x00_5a00, "names an unknown queue"))?;
            let naks = [NakCode::RemoteOperationalError, INVALID].map(|code| Said::Nak(code, 1));
            b.expect_any(&naks)?;
            b.in_error()
        },
    },
    Case {
        name: "xrc_queue_without_receive",
        rule: "A14, 9.7.5.2.8",
        sends: "an XRC SEND while the queue is empty, and again once it has a receive",
        allows: "an RNR NAK with the queue pair's timer, then an ACK; the receive completes once",
        given: XRC_TARGET,
        run: receiver_not_ready,
    },
    Case {
        name: "xrc_duplicate_send",
        rule: "A14, 9.7.5.1, C9-105",
        sends: "an XRC SEND twice at one PSN; the queue has two receives",
        allows: "an ACK each time; one receive completes",
        given: XRC_TARGET,
        run: |b| {
            b.receive(1, 100)?;
            b.receive(2, 100)?;
            for _ in 0..2 {
                b.send(send(0, 8).ask())?;
                b.expect(Said::Ack(0))?;
            }
            b.alive(1)?;
            b.completes([got(1, 8)])
        },
    },
    Case {
        name: "xrc_gap",
        rule: "A14, 9.7.4.1 (PSN)",
        sends: "an XRC WRITE whose PSN is one too large",
        allows: "NAK PSN sequence error of the PSN that is missing; nothing is written",
        given: XRC_TARGET,
        run: |b| {
            b.send(write(1, 0, 8).ask())?;
            b.expect(Said::Nak(NakCode::PsnSequenceError, 0))?;
            b.untouched(0, 8)?;
            b.alive(0)
        },
    },
    Case {
        name: "xrc_write_under_unknown_key",
        rule: "A14, 9.7.4.1 (R_Key)",
        sends: "an XRC WRITE under a key that does not exist",
        allows: "NAK remote access error; the queue pair goes into ERR; nothing is written",
        given: XRC_TARGET,
        run: |b| {
            b.send(write(0, 0, 8).ask().wrong_rkey())?;
            b.dies(NakCode::RemoteAccessError, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "xrc_middle_without_first",
        rule: "A14, 9.7.4.1 (opcode sequence)",
        sends: "XRC SEND MIDDLE outside a message",
        allows: "NAK invalid request; the queue pair goes into ERR; the receive stays in its queue",
        given: XRC_TARGET,
        run: |b| {
            b.receive(1, 1000)?;
            b.send(bare(Opcode::RC_SEND_MIDDLE, 0, MTU).ask())?;
            b.dies(INVALID, 0)?;
            b.completes([])
        },
    },
    Case {
        name: "rc_request_to_xrc_target",
        rule: "9.6.1",
        sends: "a WRITE of RC to an XRC target",
        allows: "no answer; nothing is written; the next good request is acknowledged",
        given: XRC_TARGET,
        run: |b| {
            b.send(write(0, 0, 8).ask().opcode_byte(Opcode::RC_WRITE_ONLY.0))?;
            b.alive(0)?;
            b.untouched(0, 64)
        },
    },
];
