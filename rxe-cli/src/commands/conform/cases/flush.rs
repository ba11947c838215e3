//! FLUSH: makes written bytes visible or persistent.
//! The answer is READ RESPONSE ONLY without payload.

use rxe_core::wire::{NakCode, Opcode};
use rxe_lab::answer::Said;

use super::super::bench::{Bench, REGION, deviates};
use super::super::case::Case;
use super::super::packet::{Pkt, flush, pattern, write};
use super::super::verdict::Outcome;
use super::exchanges::{completes_with_response, sent_again_after_ack};
use super::requester::names_memory;
use crate::common::peer::{FLUSH, Given, access};

const RULE: &str = "A19 (FLUSH)";
const KEY: &str = "A19 (FLUSH), 9.7.4.1 (R_Key)";
const INVALID: NakCode = NakCode::InvalidRequest;
const ACCESS: NakCode = NakCode::RemoteAccessError;
const NOT_INVALID: &str = "NAK invalid request; the queue pair goes into ERR";
const NO_ACCESS: &str = "NAK remote access error; the queue pair goes into ERR";
const ANSWERED: &str = "READ RESPONSE ONLY without payload";

/// FETH values for global visibility of a range and of the whole region.
const GLOBAL: u32 = 0x01;
const WHOLE_REGION: u32 = 0x11;

/// A queue pair on which the peer's program posts FLUSHes.
const POSTS: Given = Given { posts: true, ..FLUSH };

/// Sends a request that must be answered.
fn answered(b: &mut Bench<'_>, pkt: Pkt) -> Outcome {
    b.send(pkt)?;
    b.expect_read(0, 0)?;
    b.alive(1)
}

/// Sends a request that must get this NAK.
fn refused(b: &mut Bench<'_>, pkt: Pkt, code: NakCode) -> Outcome {
    b.send(pkt)?;
    b.dies(code, 0)
}

/// Lets the peer post a FLUSH, and checks its packet.
fn posted(b: &mut Bench<'_>) -> Outcome {
    b.post_flush(1, 100)?;
    let seen = b.expect(REQUEST)?;
    names_memory(&seen, 100)?;
    let feth = seen.ext.feth.map(|feth| u32::from_be_bytes(feth.emit()));
    if feth == Some(GLOBAL) {
        return Ok(());
    }
    deviates(format!("its FETH is {feth:x?}, not {GLOBAL:x}"))
}

/// The packet of the peer's FLUSH.
const REQUEST: Said = Said::Request(Opcode::RC_FLUSH, 0, 0);

pub(super) const CASES: &[Case] = &[
    Case {
        name: "flush",
        rule: RULE,
        sends: "a FLUSH of 100 B to global visibility",
        allows: ANSWERED,
        given: FLUSH,
        run: |b| answered(b, flush(0, 0, 100, GLOBAL)),
    },
    Case {
        name: "flush_of_region",
        rule: RULE,
        sends: "a FLUSH of the whole region to global visibility",
        allows: ANSWERED,
        given: FLUSH,
        run: |b| answered(b, flush(0, 0, 0, WHOLE_REGION)),
    },
    Case {
        name: "flush_behind_write",
        rule: "A19 (FLUSH), 9.7.5.1",
        sends: "a WRITE of 8 B, and a FLUSH of it",
        allows: "READ RESPONSE ONLY without payload; an ACK may come before it; the bytes are in memory",
        given: FLUSH,
        run: |b| {
            b.send_all([write(0, 0, 8), flush(1, 0, 8, GLOBAL)])?;
            b.expect_read(1, 0)?;
            b.memory_is(0, &pattern(8))?;
            b.alive(2)
        },
    },
    Case {
        name: "duplicate_flush",
        rule: "A19 (FLUSH), C9-105",
        sends: "a FLUSH twice at one PSN",
        allows: "READ RESPONSE ONLY without payload each time",
        given: FLUSH,
        run: |b| {
            b.send(flush(0, 0, 100, GLOBAL))?;
            b.expect_read(0, 0)?;
            answered(b, flush(0, 0, 100, GLOBAL))
        },
    },
    Case {
        name: "flush_behind_gap",
        rule: "9.7.4.1 (PSN), 9.7.5.2.8 (PSN sequence error)",
        sends: "a FLUSH whose PSN is one too large",
        allows: "NAK PSN sequence error of the PSN that is missing",
        given: FLUSH,
        run: |b| {
            b.send(flush(1, 0, 100, GLOBAL))?;
            b.expect(Said::Nak(NakCode::PsnSequenceError, 0))?;
            b.alive(0)
        },
    },
    Case {
        name: "flush_without_placement",
        rule: RULE,
        sends: "a FLUSH whose placement type is 0",
        allows: NOT_INVALID,
        given: FLUSH,
        run: |b| refused(b, flush(0, 0, 100, 0), INVALID),
    },
    Case {
        name: "flush_with_reserved_placement",
        rule: RULE,
        sends: "a FLUSH whose placement type has a reserved bit",
        allows: NOT_INVALID,
        given: FLUSH,
        run: |b| refused(b, flush(0, 0, 100, 0x05), INVALID),
    },
    Case {
        name: "flush_with_reserved_selectivity",
        rule: RULE,
        sends: "a FLUSH whose selectivity is the reserved 2",
        allows: NOT_INVALID,
        given: FLUSH,
        run: |b| refused(b, flush(0, 0, 100, 0x21), INVALID),
    },
    Case {
        name: "flush_to_persistence_without_right",
        rule: "A19 (FLUSH), 9.7.4.1 (opcode)",
        sends: "a FLUSH to persistence, on a queue pair that allows global visibility only",
        allows: NOT_INVALID,
        given: FLUSH,
        run: |b| refused(b, flush(0, 0, 100, 0x02), INVALID),
    },
    Case {
        name: "qp_without_flush",
        rule: "A19 (FLUSH), 9.7.4.1 (opcode)",
        sends: "a FLUSH to a queue pair without IBV_ACCESS_FLUSH_GLOBAL",
        allows: NOT_INVALID,
        given: Given { qp_access: access::ALL, ..FLUSH },
        run: |b| refused(b, flush(0, 0, 100, GLOBAL), INVALID),
    },
    Case {
        name: "region_without_flush",
        rule: KEY,
        sends: "a FLUSH of a region without IBV_ACCESS_FLUSH_GLOBAL",
        allows: NO_ACCESS,
        given: Given { mr_access: access::ALL, ..FLUSH },
        run: |b| refused(b, flush(0, 0, 100, GLOBAL), ACCESS),
    },
    Case {
        name: "flush_under_unknown_key",
        rule: KEY,
        sends: "a FLUSH under a key that does not exist",
        allows: NO_ACCESS,
        given: FLUSH,
        run: |b| refused(b, flush(0, 0, 100, GLOBAL).wrong_rkey(), ACCESS),
    },
    Case {
        name: "flush_of_region_under_unknown_key",
        rule: KEY,
        sends: "a FLUSH of a whole region under a key that does not exist",
        allows: NO_ACCESS,
        given: FLUSH,
        run: |b| refused(b, flush(0, 0, 0, WHOLE_REGION).wrong_rkey(), ACCESS),
    },
    Case {
        name: "flush_beyond_region",
        rule: KEY,
        sends: "a FLUSH that ends one byte behind the region",
        allows: NO_ACCESS,
        given: FLUSH,
        run: |b| refused(b, flush(0, REGION - 7, 8, GLOBAL), ACCESS),
    },
    Case {
        name: "requests_flush",
        rule: RULE,
        sends: "the peer posts a FLUSH of 100 B; READ RESPONSE ONLY without payload comes",
        allows: "FLUSH with its FETH, and a RETH for 100 B; it completes with the answer",
        given: POSTS,
        run: |b| {
            posted(b)?;
            completes_with_response(b)
        },
    },
    Case {
        name: "ack_in_answer_to_flush",
        rule: "9.7.5.2 (implied NAK)",
        sends: "the peer posts a FLUSH; an ACK of it comes, then READ RESPONSE ONLY",
        allows: "it is sent again, and completes with the second answer",
        given: POSTS,
        run: |b| {
            posted(b)?;
            sent_again_after_ack(b, REQUEST)
        },
    },
];
