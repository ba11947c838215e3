//! Exchanges that several groups share.
//! The groups use RC and XRC, and receives of the queue pair or of shared receive queues.

use rxe_core::wire::{Opcode, Position};
use rxe_lab::answer::Said;

use super::super::bench::{Bench, MTU, done, got, recv_at};
use super::super::packet::{ack, bare, pattern, rdma, response, send};
use super::super::verdict::Outcome;
use crate::common::peer::RC;

/// Sends a SEND of 8 B, which must be acknowledged and complete receive `id`.
pub(super) fn send_completes(b: &mut Bench<'_>, psn: i32, id: u64) -> Outcome {
    b.send(send(psn, 8).ask())?;
    b.expect(Said::Ack(psn))?;
    b.completes([got(id, 8)])
}

/// Sends the first SEND, which must complete receive 1 and fill its buffer.
pub(super) fn send_arrives(b: &mut Bench<'_>) -> Outcome {
    send_completes(b, 0, 1)?;
    b.memory_is(recv_at(1), &pattern(8))
}

/// Sends a SEND of 600 B in the first three packets, which must complete receive 1.
pub(super) fn three_packets_arrive(b: &mut Bench<'_>) -> Outcome {
    b.send_all([
        bare(Opcode::RC_SEND_FIRST, 0, MTU),
        bare(Opcode::RC_SEND_MIDDLE, 1, MTU),
        bare(Opcode::RC_SEND_LAST, 2, 88).ask(),
    ])?;
    b.expect(Said::Ack(2))?;
    b.completes([got(1, 600)])?;
    b.memory_is(recv_at(1), &pattern(600))
}

/// Sends a WRITE with immediate of 8 B, which must complete a receive of 0 B.
pub(super) fn write_with_immediate(b: &mut Bench<'_>) -> Outcome {
    b.receive(1, 0)?;
    b.send(rdma(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, 0, 8, 0, 8).ask())?;
    b.expect(Said::Ack(0))?;
    b.completes([got(1, 8)])?;
    b.memory_is(0, &pattern(8))?;
    b.alive(1)
}

/// Sends a SEND without a posted receive, then again with one.
pub(super) fn receiver_not_ready(b: &mut Bench<'_>) -> Outcome {
    b.send(send(0, 8).ask())?;
    b.expect(Said::Rnr(0, RC.min_rnr_timer))?;
    b.receive(1, 100)?;
    send_completes(b, 0, 1)?;
    b.alive(1)
}

/// Requires the peer's request to complete with an empty READ RESPONSE ONLY, and not before.
pub(super) fn completes_with_response(b: &mut Bench<'_>) -> Outcome {
    b.completes([])?;
    b.send(response(Position::Only, 0, 0))?;
    b.completes([done(1)])
}

/// Answers the peer's request with an ACK, after which the peer must send it again.
pub(super) fn sent_again_after_ack(b: &mut Bench<'_>, request: Said) -> Outcome {
    b.send(ack(0))?;
    b.expect(request)?;
    b.send(response(Position::Only, 0, 0))?;
    b.completes([done(1)])
}
