//! The peer as requester: its packets, and its reaction to responses.

use std::time::Duration;

use rxe_core::queue::Status;
use rxe_core::wire::{NakCode, Opcode, Position, Syndrome};

use super::super::bench::{Bench, MTU, REMOTE_RKEY, REMOTE_VA, SINK, done, failed, flushed};
use super::super::case::Case;
use super::super::packet::{ack, atomic_response, nak, pattern, response, syndrome};
use super::super::verdict::{Outcome, Stop};
use super::messages::WORD;
use crate::common::peer::{Given, RC};
use rxe_lab::answer::{Said, Seen};

const SHAPE: &str = "9.4, 9.7.3";
const ACKS: &str = "9.7.5.1, 9.7.5.2";
const GHOST: &str = "9.7.5.2 (ghost acknowledgements)";
const NAKS: &str = "9.7.5.2.8, 9.9.2";

/// Time enough for a device to act on a response that it should ignore.
const SHORT: Duration = Duration::from_millis(100);

/// Requires the request's RETH to name the posted memory and `len` bytes.
pub(super) fn names_memory(seen: &Seen, len: u32) -> Outcome {
    let reth = seen.ext.reth.map(|r| (r.va, r.rkey.value(), r.dma_len));
    if reth == Some((REMOTE_VA, REMOTE_RKEY, len)) {
        return Ok(());
    }
    Err(Stop::Deviates(format!("its RETH does not name the {len} B that it was told: {reth:x?}")))
}

/// Requires AckReq in the last packet of a request that no other follows.
pub(super) fn asks(seen: &Seen) -> Outcome {
    if seen.ack_req {
        return Ok(());
    }
    Err(Stop::Deviates(format!("{} does not ask for an acknowledgement", seen.said)))
}

/// Lets the peer post two SENDs, and refuses the first with this NAK.
fn refused(b: &mut Bench<'_>, code: NakCode, status: Status) -> Outcome {
    b.post_send(1, 8)?;
    b.post_send(2, 8)?;
    b.expect_all([Said::send_only(0), Said::send_only(1)])?;
    b.send(nak(code, 0))?;
    b.completes([failed(1, status), flushed(2)])?;
    b.in_error()
}

/// Sends a response that the peer must ignore, then the right one.
fn ignores(b: &mut Bench<'_>, answer: super::super::packet::Pkt) -> Outcome {
    b.post_send(1, 8)?;
    b.expect(Said::send_only(0))?;
    b.send(answer)?;
    b.completes_nothing(SHORT)?;
    b.send(ack(0))?;
    b.completes([done(1)])?;
    b.in_state("RTS")
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "requests_send",
        rule: SHAPE,
        sends: "the peer posts a SEND of 600 B",
        allows: "SEND FIRST, MIDDLE and LAST at consecutive PSNs; the last has AckReq; it completes with \
                 the ACK",
        given: RC,
        run: |b| {
            b.post_send(1, 600)?;
            b.expect(Said::Request(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.expect(Said::Request(Opcode::RC_SEND_MIDDLE, 1, MTU))?;
            asks(&b.expect(Said::Request(Opcode::RC_SEND_LAST, 2, 88))?)?;
            b.completes([])?;
            b.send(ack(2))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "requests_write",
        rule: SHAPE,
        sends: "the peer posts a WRITE of 300 B",
        allows: "WRITE FIRST with a RETH for 300 B, and LAST with AckReq",
        given: RC,
        run: |b| {
            b.post_write(1, 300)?;
            names_memory(&b.expect(Said::Request(Opcode::RC_WRITE_FIRST, 0, MTU))?, 300)?;
            asks(&b.expect(Said::Request(Opcode::RC_WRITE_LAST, 1, 44))?)?;
            b.send(ack(1))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "requests_read",
        rule: SHAPE,
        sends: "the peer posts a READ of 600 B, then a SEND; its data come in three packets",
        allows: "one READ REQUEST; the SEND has the PSN behind the READ's three; the data are in memory",
        given: RC,
        run: |b| {
            b.post_read(1, 600)?;
            names_memory(&b.expect(Said::read_request(0))?, 600)?;
            let data = pattern(600);
            b.send(response(Position::First, 0, MTU).with(data[..256].to_vec()))?;
            b.send(response(Position::Middle, 1, MTU).with(data[256..512].to_vec()))?;
            b.send(response(Position::Last, 2, 88).with(data[512..].to_vec()))?;
            b.completes([done(1)])?;
            b.memory_is(SINK, &data)?;
            b.post_send(2, 8)?;
            b.expect(Said::send_only(3))?;
            b.send(ack(3))?;
            b.completes([done(2)])
        },
    },
    Case {
        name: "requests_atomics",
        rule: "9.4.5",
        sends: "the peer posts a FETCH ADD of 5, then a COMPARE SWAP of 5 by 6",
        allows: "each with its operands; they complete with the values of the answers",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.post_add(1, 5)?;
            let add = b.expect(Said::Request(Opcode::RC_FETCH_ADD, 0, 0))?;
            b.send(atomic_response(0, WORD))?;
            b.completes([done(1)])?;
            b.memory_is(SINK, &[0x11; 8])?;
            b.post_swap(2, 5, 6)?;
            let swap = b.expect(Said::Request(Opcode::RC_COMPARE_SWAP, 1, 0))?;
            b.send(atomic_response(1, 0xa5a5_a5a5_a5a5_a5a5))?;
            b.completes([done(2)])?;
            b.memory_is(SINK, &[0xa5; 8])?;
            let operands = |seen: &Seen| seen.ext.atomic.map(|a| (a.va, a.swap_add, a.compare));
            let add = operands(&add).map(|(va, operand, _)| (va, operand));
            if add != Some((REMOTE_VA, 5)) || operands(&swap) != Some((REMOTE_VA, 6, 5)) {
                return Err(Stop::Deviates("the operands are not those that were posted".into()));
            }
            Ok(())
        },
    },
    Case {
        name: "requests_wrap",
        rule: "9.7.1",
        sends: "the peer posts a SEND of three packets; its first PSN is 0xffffff",
        allows: "PSNs 0xffffff, 0 and 1; it completes with the ACK of 1",
        given: Given { sq_psn: 0xff_ffff, ..RC },
        run: |b| {
            b.post_send(1, 600)?;
            b.expect(Said::Request(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.expect(Said::Request(Opcode::RC_SEND_MIDDLE, 1, MTU))?;
            b.expect(Said::Request(Opcode::RC_SEND_LAST, 2, 88))?;
            b.send(ack(2))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "max_rd_atomic",
        rule: "9.7.3.1 (C9-89)",
        sends: "the peer posts two READs; its max_rd_atomic is 1",
        allows: "the second READ REQUEST comes after the answer to the first",
        given: RC,
        run: |b| {
            b.post_read(1, 8)?;
            b.post_read(2, 8)?;
            b.expect(Said::read_request(0))?;
            b.quiet(SHORT)?;
            b.send(response(Position::Only, 0, 8))?;
            b.expect(Said::read_request(1))?;
            b.send(response(Position::Only, 1, 8))?;
            b.completes([done(1), done(2)])
        },
    },
    Case {
        name: "coalesced_ack",
        rule: ACKS,
        sends: "the peer posts three SENDs; only the third is acknowledged",
        allows: "all three complete",
        given: RC,
        run: |b| {
            b.three_sends()?;
            b.send(ack(2))?;
            b.completes([done(1), done(2), done(3)])
        },
    },
    Case {
        name: "ack_completes_nothing_behind_it",
        rule: ACKS,
        sends: "the peer posts three SENDs; the second is acknowledged, then the third",
        allows: "two complete, then the third",
        given: RC,
        run: |b| {
            b.three_sends()?;
            b.send(ack(1))?;
            b.completes([done(1), done(2)])?;
            b.completes_nothing(SHORT)?;
            b.send(ack(2))?;
            b.completes([done(3)])
        },
    },
    Case {
        name: "ack_in_message",
        rule: ACKS,
        sends: "the peer posts a SEND of three packets; the second is acknowledged, then the third",
        allows: "it completes with the last ACK only",
        given: RC,
        run: |b| {
            b.post_send(1, 600)?;
            b.expect(Said::Request(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.expect(Said::Request(Opcode::RC_SEND_MIDDLE, 1, MTU))?;
            b.expect(Said::Request(Opcode::RC_SEND_LAST, 2, 88))?;
            b.send(ack(1))?;
            b.completes_nothing(SHORT)?;
            b.send(ack(2))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "ghost_ack",
        rule: GHOST,
        sends: "the peer posts a SEND; an ACK of a PSN that it has not sent, then the right one",
        allows: "the first is dropped; it completes with the second",
        given: RC,
        run: |b| ignores(b, ack(5)),
    },
    Case {
        name: "ghost_nak",
        rule: GHOST,
        sends: "the peer posts a SEND; a fatal NAK of a PSN that it has not sent, then an ACK",
        allows: "the NAK is dropped; it completes with the ACK",
        given: RC,
        run: |b| ignores(b, nak(NakCode::RemoteAccessError, 3)),
    },
    Case {
        name: "late_ack",
        rule: "9.7.5.2 (duplicate responses)",
        sends: "the peer posts a SEND; an ACK of the PSN before it, then the right one",
        allows: "the first is dropped; it completes with the second",
        given: RC,
        run: |b| ignores(b, ack(-1)),
    },
    Case {
        name: "damaged_ack",
        rule: "7.8.1, A17.3.3",
        sends: "the peer posts a SEND; an ACK with a wrong ICRC, then a good one",
        allows: "the first is dropped; it completes with the second",
        given: RC,
        run: |b| ignores(b, ack(0).damage(usize::MAX, "ICRC")),
    },
    Case {
        name: "reserved_syndrome",
        rule: "9.7.5.2 (reserved)",
        sends: "the peer posts a SEND; an acknowledgement with the reserved syndrome 0x40, then an ACK",
        allows: "the first is dropped; it completes with the second",
        given: RC,
        run: |b| ignores(b, syndrome(0, Syndrome::Reserved(0x40))),
    },
    Case {
        name: "nak_invalid_request",
        rule: NAKS,
        sends: "the peer posts two SENDs; the first is refused with NAK invalid request",
        allows: "it completes with a remote invalid request error, the other is flushed; ERR",
        given: RC,
        run: |b| refused(b, NakCode::InvalidRequest, Status::RemoteInvalidRequest),
    },
    Case {
        name: "nak_remote_access",
        rule: NAKS,
        sends: "the peer posts two SENDs; the first is refused with NAK remote access error",
        allows: "it completes with a remote access error, the other is flushed; ERR",
        given: RC,
        run: |b| refused(b, NakCode::RemoteAccessError, Status::RemoteAccess),
    },
    Case {
        name: "nak_remote_operational",
        rule: NAKS,
        sends: "the peer posts two SENDs; the first is refused with NAK remote operational error",
        allows: "it completes with a remote operation error, the other is flushed; ERR",
        given: RC,
        run: |b| refused(b, NakCode::RemoteOperationalError, Status::RemoteOperation),
    },
    Case {
        name: "fatal_nak_acknowledges",
        rule: NAKS,
        sends: "the peer posts three SENDs; the second is refused with NAK remote access error",
        allows: "the first completes, the second fails, the third is flushed",
        given: RC,
        run: |b| {
            b.three_sends()?;
            b.send(nak(NakCode::RemoteAccessError, 1))?;
            b.completes([done(1), failed(2, Status::RemoteAccess), flushed(3)])?;
            b.in_error()
        },
    },
    Case {
        name: "read_data_acknowledges",
        rule: ACKS,
        sends: "the peer posts a SEND and a READ; only the READ is answered",
        allows: "both complete",
        given: RC,
        run: |b| {
            b.post_send(1, 8)?;
            b.post_read(2, 8)?;
            b.expect(Said::send_only(0))?;
            b.expect(Said::read_request(1))?;
            b.send(response(Position::Only, 1, 8))?;
            b.completes([done(1), done(2)])
        },
    },
    Case {
        name: "short_read_data",
        rule: "9.9.2 (bad response)",
        sends: "the peer posts a READ of 100 B; its data have 96 B",
        allows: "it completes with a bad response error",
        given: RC,
        run: |b| {
            b.post_read(1, 100)?;
            b.expect(Said::read_request(0))?;
            b.send(response(Position::Only, 0, 96))?;
            b.completes([failed(1, Status::BadResponse)])?;
            b.in_error()
        },
    },
    Case {
        name: "read_data_of_wrong_opcode",
        rule: "9.9.2 (bad response)",
        sends: "the peer posts a READ of 600 B; READ RESPONSE ONLY comes",
        allows: "it completes with a bad response error",
        given: RC,
        run: |b| {
            b.post_read(1, 600)?;
            b.expect(Said::read_request(0))?;
            b.send(response(Position::Only, 0, MTU))?;
            b.completes([failed(1, Status::BadResponse)])?;
            b.in_error()
        },
    },
];
