//! "Receiver not ready", and receives whose memory cannot be used.

use rxe_core::queue::Status;
use rxe_core::wire::{NakCode, Opcode};

use super::super::bench::{MTU, failed, got};
use super::super::case::Case;
use super::super::packet::{bare, rdma, send};
use super::exchanges::receiver_not_ready;
use crate::common::peer::{Given, RC};
use rxe_lab::answer::Said;

const RNR: &str = "9.7.4.1 (resources), 9.7.5.2.8";

pub(super) const CASES: &[Case] = &[
    Case {
        name: "rnr_nak",
        rule: RNR,
        sends: "a SEND without a receive, and again once there is one",
        allows: "an RNR NAK with the queue pair's timer, then an ACK; the receive completes once",
        given: RC,
        run: receiver_not_ready,
    },
    Case {
        name: "rnr_timer",
        rule: "9.7.5.2.8",
        sends: "a SEND without a receive to a queue pair whose min_rnr_timer is 0 (655.36 ms)",
        allows: "an RNR NAK with the timer code 0",
        given: Given { min_rnr_timer: 0, ..RC },
        run: |b| {
            b.send(send(0, 8).ask())?;
            b.expect(Said::Rnr(0, 0))?;
            b.alive(0)
        },
    },
    Case {
        name: "rnr_nak_at_first_packet",
        rule: RNR,
        sends: "SEND FIRST without a receive",
        allows: "an RNR NAK immediately",
        given: RC,
        run: |b| {
            b.send(bare(Opcode::RC_SEND_FIRST, 0, MTU))?;
            b.expect(Said::Rnr(0, RC.min_rnr_timer))?;
            b.alive(0)
        },
    },
    Case {
        name: "silence_after_rnr_nak",
        rule: RNR,
        sends: "three SENDs without a receive",
        allows: "one RNR NAK, of the first; what follows is dropped silently",
        given: RC,
        run: |b| {
            b.send_all([send(0, 8).ask(), send(1, 8).ask(), send(2, 8).ask()])?;
            b.expect(Said::Rnr(0, RC.min_rnr_timer))?;
            b.alive(0)
        },
    },
    Case {
        name: "write_with_immediate_without_receive",
        rule: RNR,
        sends: "WRITE ONLY WITH IMMEDIATE without a receive",
        allows: "an RNR NAK; nothing is written",
        given: RC,
        run: |b| {
            b.send(rdma(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, 0, 8, 0, 8).ask())?;
            b.expect(Said::Rnr(0, RC.min_rnr_timer))?;
            b.untouched(0, 8)?;
            b.alive(0)
        },
    },
    Case {
        name: "rnr_in_message_end",
        rule: RNR,
        sends: "WRITE FIRST, LAST WITH IMMEDIATE without a receive, and the LAST again once there is one",
        allows: "an RNR NAK of the LAST, then an ACK",
        given: RC,
        run: |b| {
            let last = || bare(Opcode::RC_WRITE_LAST_WITH_IMMEDIATE, 1, 8).ask();
            b.send(rdma(Opcode::RC_WRITE_FIRST, 0, MTU, 0, 264))?;
            b.send(last())?;
            b.expect(Said::Rnr(1, RC.min_rnr_timer))?;
            b.receive(1, 0)?;
            b.send(last())?;
            b.expect(Said::Ack(1))?;
            b.completes([got(1, 264)])?;
            b.alive(2)
        },
    },
    Case {
        name: "receive_under_wrong_lkey",
        rule: "9.9.3 (local protection), 9.7.5.2.8",
        sends: "a SEND; the receive's lkey is wrong",
        allows: "NAK remote operational error; the receive completes with a local protection error",
        given: RC,
        run: |b| {
            b.receive_under(1, 100, 0x005a_5a00)?;
            b.send(send(0, 8).ask())?;
            b.dies(NakCode::RemoteOperationalError, 0)?;
            b.completes([failed(1, Status::LocalProtection)])
        },
    },
];
