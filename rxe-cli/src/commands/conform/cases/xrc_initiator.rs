//! XRC with the peer as initiator: its requests, and its reaction to responses.

use rxe_core::queue::Status;
use rxe_core::wire::{NakCode, Opcode, Position};
use rxe_lab::answer::{Said, Seen};

use super::super::bench::{Bench, MTU, REMOTE_SRQN, SINK, deviates, done, failed};
use super::super::case::Case;
use super::super::packet::{Pkt, ack, atomic_response, nak, pattern, response, rnr, write};
use super::super::verdict::Outcome;
use super::messages::WORD;
use super::requester::{asks, names_memory};
use crate::common::peer::XRC_INITIATOR;

const SHAPE: &str = "A14, 9.4, 9.7.3";
const SEND: Said = Said::Request(Opcode::XRC_SEND_ONLY, 0, 8);

/// Requires the request's XRCETH to name the posted shared receive queue.
fn names_queue(seen: &Seen) -> Outcome {
    match seen.ext.xrc_srq {
        Some(REMOTE_SRQN) => Ok(()),
        named => {
            deviates(format!("the XRCETH of {} names {named:x?}, not {REMOTE_SRQN:x}", seen.said))
        }
    }
}

/// Lets the peer post a SEND, and checks its packet.
fn posted(b: &mut Bench<'_>) -> Outcome {
    b.post_send(1, 8)?;
    names_queue(&b.expect(SEND)?)
}

/// Sends a packet that the peer must ignore, then the right response.
fn ignores(b: &mut Bench<'_>, pkt: Pkt) -> Outcome {
    posted(b)?;
    b.send(pkt)?;
    b.send(ack(0))?;
    b.completes([done(1)])?;
    b.in_state("RTS")
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "xrc_requests_send",
        rule: SHAPE,
        sends: "the peer posts an XRC SEND of 600 B",
        allows: "XRC SEND FIRST, MIDDLE and LAST, each of which names the queue; the last has AckReq; it \
                 completes with the ACK",
        given: XRC_INITIATOR,
        run: |b| {
            b.post_send(1, 600)?;
            names_queue(&b.expect(Said::Request(Opcode::XRC_SEND_FIRST, 0, MTU))?)?;
            names_queue(&b.expect(Said::Request(Opcode::XRC_SEND_MIDDLE, 1, MTU))?)?;
            let last = b.expect(Said::Request(Opcode::XRC_SEND_LAST, 2, 88))?;
            names_queue(&last)?;
            asks(&last)?;
            b.send(ack(2))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "xrc_requests_write",
        rule: SHAPE,
        sends: "the peer posts an XRC WRITE of 8 B",
        allows: "XRC WRITE ONLY with XRCETH and RETH; it completes with the ACK",
        given: XRC_INITIATOR,
        run: |b| {
            b.post_write(1, 8)?;
            let seen = b.expect(Said::Request(Opcode::XRC_WRITE_ONLY, 0, 8))?;
            names_memory(&seen, 8)?;
            asks(&seen)?;
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "xrc_requests_read",
        rule: SHAPE,
        sends: "the peer posts an XRC READ of 300 B; its data come in two packets of XRC",
        allows: "XRC READ REQUEST; the data are in memory, and it completes",
        given: XRC_INITIATOR,
        run: |b| {
            b.post_read(1, 300)?;
            let seen = b.expect(Said::Request(Opcode::XRC_READ_REQUEST, 0, 0))?;
            names_memory(&seen, 300)?;
            let data = pattern(300);
            b.send(response(Position::First, 0, MTU).with(data[..MTU].to_vec()))?;
            b.send(response(Position::Last, 1, 44).with(data[MTU..].to_vec()))?;
            b.completes([done(1)])?;
            b.memory_is(SINK, &data)
        },
    },
    Case {
        name: "xrc_requests_fetch_add",
        rule: "A14, 9.4.5",
        sends: "the peer posts an XRC FETCH ADD",
        allows: "XRC FETCH ADD; it completes with the value of the answer",
        given: XRC_INITIATOR,
        run: |b| {
            b.needs_atomics()?;
            b.post_add(1, 5)?;
            b.expect(Said::Request(Opcode::XRC_FETCH_ADD, 0, 0))?;
            b.send(atomic_response(0, WORD))?;
            b.completes([done(1)])?;
            b.memory_is(SINK, &[0x11; 8])
        },
    },
    Case {
        name: "xrc_sequence_nak",
        rule: "A14, 9.7.5.2.8",
        sends: "the peer posts an XRC SEND; NAK PSN sequence error of XRC, then an ACK",
        allows: "it is sent again, and completes",
        given: XRC_INITIATOR,
        run: |b| {
            posted(b)?;
            b.send(nak(NakCode::PsnSequenceError, 0))?;
            names_queue(&b.expect(SEND)?)?;
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "xrc_rnr_nak",
        rule: "A14, 9.7.5.2.8",
        sends: "the peer posts an XRC SEND; RNR NAK of XRC, then an ACK",
        allows: "it is sent again, and completes",
        given: XRC_INITIATOR,
        run: |b| {
            posted(b)?;
            b.send(rnr(0, 1))?;
            b.expect(SEND)?;
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
    Case {
        name: "xrc_nak_remote_operational",
        rule: "A14, 9.9.2",
        sends: "the peer posts an XRC SEND; NAK remote operational error of XRC: there is no such queue",
        allows: "it completes with a remote operation error; ERR",
        given: XRC_INITIATOR,
        run: |b| {
            posted(b)?;
            b.send(nak(NakCode::RemoteOperationalError, 0))?;
            b.completes([failed(1, Status::RemoteOperation)])?;
            b.in_error()
        },
    },
    Case {
        name: "rc_nak_to_xrc_initiator",
        rule: "9.6.1",
        sends: "the peer posts an XRC SEND; a fatal NAK of RC, then an ACK of XRC",
        allows: "the first is dropped; it completes with the second",
        given: XRC_INITIATOR,
        run: |b| {
            let rc = Opcode::RC_ACKNOWLEDGE.0;
            ignores(b, nak(NakCode::RemoteAccessError, 0).opcode_byte(rc))
        },
    },
    Case {
        name: "xrc_request_to_initiator",
        rule: "A14 (initiator)",
        sends: "the peer posts an XRC SEND; an XRC WRITE comes, then an ACK",
        allows: "the WRITE is dropped silently; the SEND completes",
        given: XRC_INITIATOR,
        run: |b| {
            ignores(b, write(0, 0, 8).ask())?;
            b.untouched(0, 8)
        },
    },
];
