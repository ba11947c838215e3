//! ATOMIC WRITE: writes 8 bytes atomically.
//! The answer is READ RESPONSE ONLY without payload.

use rxe_core::queue::Status;
use rxe_core::wire::{NakCode, Opcode, Position};
use rxe_lab::answer::Said;

use super::super::bench::{Bench, REGION, deviates, failed};
use super::super::case::Case;
use super::super::packet::{Pkt, atomic_write, pattern, rdma, read, response, write};
use super::super::verdict::Outcome;
use super::exchanges::{completes_with_response, sent_again_after_ack};
use super::messages::same;
use super::requester::names_memory;
use crate::common::peer::{ATOMIC_WRITE, Given, access};

const RULE: &str = "A19 (ATOMIC WRITE)";
const INVALID: NakCode = NakCode::InvalidRequest;
const ACCESS: NakCode = NakCode::RemoteAccessError;
const NOT_INVALID: &str = "NAK invalid request; the queue pair goes into ERR; nothing is written";
const NO_ACCESS: &str = "NAK remote access error; the queue pair goes into ERR; nothing is written";

/// A queue pair on which the peer's program posts ATOMIC WRITEs.
const POSTS: Given = Given { posts: true, ..ATOMIC_WRITE };

/// Sends a request that must get this NAK and write nothing.
fn refused(b: &mut Bench<'_>, pkt: Pkt, code: NakCode) -> Outcome {
    b.send(pkt)?;
    b.dies(code, 0)?;
    b.untouched(0, 16)
}

/// Lets the peer post an ATOMIC WRITE, and checks its packet.
fn posted(b: &mut Bench<'_>) -> Outcome {
    b.post_atomic_write(1)?;
    let seen = b.expect(REQUEST)?;
    names_memory(&seen, 8)?;
    if seen.payload == [0x11; 8] {
        return Ok(());
    }
    deviates("its payload is not the word that was posted")
}

/// The packet of the peer's ATOMIC WRITE.
const REQUEST: Said = Said::Request(Opcode::RC_ATOMIC_WRITE, 0, 8);

pub(super) const CASES: &[Case] = &[
    Case {
        name: "atomic_write",
        rule: RULE,
        sends: "an ATOMIC WRITE of 8 B",
        allows: "READ RESPONSE ONLY without payload; the bytes are in memory, and nothing beside them",
        given: ATOMIC_WRITE,
        run: |b| {
            b.send(atomic_write(0, 16, 8))?;
            b.expect_read(0, 0)?;
            b.memory_is(16, &pattern(8))?;
            b.untouched(8, 8)?;
            b.untouched(24, 8)?;
            b.alive(1)
        },
    },
    Case {
        name: "atomic_write_in_order",
        rule: "A19 (ATOMIC WRITE), 9.7.5.1",
        sends: "a WRITE, an ATOMIC WRITE behind its bytes, and a READ of both, without a pause",
        allows: "the answers in this order; the READ's data are what was written",
        given: ATOMIC_WRITE,
        run: |b| {
            b.send_all([write(0, 0, 8), atomic_write(1, 8, 8), read(2, 0, 16)])?;
            b.expect_read(1, 0)?;
            let data = b.expect_read(2, 16)?;
            same(&data, &[pattern(8), pattern(8)].concat())?;
            b.alive(3)
        },
    },
    Case {
        name: "duplicate_atomic_write",
        rule: "A19 (ATOMIC WRITE), C9-105",
        sends: "an ATOMIC WRITE, a WRITE over half of its bytes, and the ATOMIC WRITE again",
        allows: "it is answered twice, and carried out once",
        given: ATOMIC_WRITE,
        run: |b| {
            b.send(atomic_write(0, 16, 8))?;
            b.expect_read(0, 0)?;
            b.send(write(1, 16, 4).with(vec![0xee; 4]).ask())?;
            b.expect(Said::Ack(1))?;
            b.send(atomic_write(0, 16, 8))?;
            b.expect_read(0, 0)?;
            b.memory_is(16, &[vec![0xee; 4], pattern(8).split_off(4)].concat())?;
            b.alive(2)
        },
    },
    Case {
        name: "atomic_write_behind_gap",
        rule: "9.7.4.1 (PSN), 9.7.5.2.8 (PSN sequence error)",
        sends: "an ATOMIC WRITE whose PSN is one too large",
        allows: "NAK PSN sequence error of the PSN that is missing; nothing is written",
        given: ATOMIC_WRITE,
        run: |b| {
            b.send(atomic_write(1, 0, 8))?;
            b.expect(Said::Nak(NakCode::PsnSequenceError, 0))?;
            b.untouched(0, 8)?;
            b.alive(0)
        },
    },
    Case {
        name: "misaligned_atomic_write",
        rule: RULE,
        sends: "an ATOMIC WRITE at an address that is 4 off",
        allows: NOT_INVALID,
        given: ATOMIC_WRITE,
        run: |b| refused(b, atomic_write(0, 4, 8), INVALID),
    },
    Case {
        name: "atomic_write_of_4_bytes",
        rule: RULE,
        sends: "an ATOMIC WRITE of 4 B",
        allows: NOT_INVALID,
        given: ATOMIC_WRITE,
        run: |b| refused(b, atomic_write(0, 0, 4), INVALID),
    },
    Case {
        name: "atomic_write_of_16_bytes",
        rule: RULE,
        sends: "an ATOMIC WRITE of 16 B",
        allows: NOT_INVALID,
        given: ATOMIC_WRITE,
        run: |b| refused(b, atomic_write(0, 0, 16), INVALID),
    },
    Case {
        name: "atomic_write_shorter_than_reth",
        rule: RULE,
        sends: "an ATOMIC WRITE of 8 B whose RETH says 16",
        allows: NOT_INVALID,
        given: ATOMIC_WRITE,
        run: |b| refused(b, rdma(Opcode::RC_ATOMIC_WRITE, 0, 8, 0, 16), INVALID),
    },
    Case {
        name: "atomic_write_under_unknown_key",
        rule: "A19 (ATOMIC WRITE), 9.7.4.1 (R_Key)",
        sends: "an ATOMIC WRITE under a key that does not exist",
        allows: NO_ACCESS,
        given: ATOMIC_WRITE,
        run: |b| refused(b, atomic_write(0, 0, 8).wrong_rkey(), ACCESS),
    },
    Case {
        name: "atomic_write_without_remote_write",
        rule: "A19 (ATOMIC WRITE), 9.7.4.1 (R_Key)",
        sends: "an ATOMIC WRITE into a region without IBV_ACCESS_REMOTE_WRITE",
        allows: NO_ACCESS,
        given: Given { mr_access: access::LOCAL_WRITE | access::REMOTE_READ, ..ATOMIC_WRITE },
        run: |b| refused(b, atomic_write(0, 0, 8), ACCESS),
    },
    Case {
        name: "atomic_write_beyond_region",
        rule: "A19 (ATOMIC WRITE), 9.7.4.1 (R_Key)",
        sends: "an ATOMIC WRITE right behind the region",
        allows: NO_ACCESS,
        given: ATOMIC_WRITE,
        run: |b| refused(b, atomic_write(0, REGION, 8), ACCESS),
    },
    Case {
        name: "qp_without_atomic_write",
        rule: "A19 (ATOMIC WRITE), 9.7.4.1 (opcode)",
        sends: "an ATOMIC WRITE to a queue pair that allows READs only",
        allows: NOT_INVALID,
        given: Given { qp_access: access::REMOTE_READ, ..ATOMIC_WRITE },
        run: |b| refused(b, atomic_write(0, 0, 8), INVALID),
    },
    Case {
        name: "requests_atomic_write",
        rule: RULE,
        sends: "the peer posts an ATOMIC WRITE; READ RESPONSE ONLY without payload comes",
        allows: "ATOMIC WRITE of the word, with a RETH for 8 B; it completes with the answer",
        given: POSTS,
        run: |b| {
            posted(b)?;
            completes_with_response(b)
        },
    },
    Case {
        name: "ack_in_answer_to_atomic_write",
        rule: "9.7.5.2 (implied NAK)",
        sends: "the peer posts an ATOMIC WRITE; an ACK of it comes, then READ RESPONSE ONLY",
        allows: "it is sent again, and completes with the second answer",
        given: POSTS,
        run: |b| {
            posted(b)?;
            sent_again_after_ack(b, REQUEST)
        },
    },
    Case {
        name: "data_in_answer_to_atomic_write",
        rule: "9.9.2 (bad response)",
        sends: "the peer posts an ATOMIC WRITE; READ RESPONSE ONLY with 8 B comes",
        allows: "it completes with a bad response error",
        given: POSTS,
        run: |b| {
            posted(b)?;
            b.send(response(Position::Only, 0, 8))?;
            b.completes([failed(1, Status::BadResponse)])?;
            b.in_error()
        },
    },
];
