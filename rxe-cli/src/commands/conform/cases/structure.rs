//! Malformed packets, and packets for other queue pairs: they are dropped silently.

use super::super::bench::{Bench, got};
use super::super::case::Case;
use super::super::packet::{Pkt, ack, send, write};
use super::super::verdict::Outcome;
use crate::common::peer::RC;
use rxe_core::wire::Opcode;
use rxe_lab::answer::Said;

const SILENCE: &str = "no answer; nothing is written; the next good request is acknowledged";

/// Sends a WRITE that must be dropped.
fn dropped(b: &mut Bench<'_>, pkt: Pkt) -> Outcome {
    b.send(pkt)?;
    b.alive(0)?;
    b.untouched(0, 64)
}

/// Sends a SEND that must be accepted.
fn accepted(b: &mut Bench<'_>, pkt: Pkt) -> Outcome {
    b.receive(1, 100)?;
    b.send(pkt)?;
    b.expect(Said::Ack(0))?;
    b.completes([got(1, 8)])?;
    b.alive(1)
}

/// Returns the WRITE from which bad packets are derived.
fn good() -> Pkt {
    write(0, 0, 8).ask()
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "damaged_icrc",
        rule: "7.8.1, A17.3.3",
        sends: "a WRITE with a bit of the ICRC flipped",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().damage(usize::MAX, "ICRC")),
    },
    Case {
        name: "damaged_payload",
        rule: "7.8.1, A17.3.3",
        sends: "a WRITE with a bit of the payload flipped",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().damage(30, "payload")),
    },
    Case {
        name: "damaged_psn",
        rule: "7.8.1, A17.3.3",
        sends: "a WRITE with a bit of the PSN flipped",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().damage(11, "PSN")),
    },
    Case {
        name: "becn_set_on_the_way",
        rule: "7.8.1",
        sends: "a SEND whose FECN, BECN and reserved bits beside them were set behind the ICRC",
        allows: "an ACK: the ICRC does not cover them",
        given: RC,
        run: |b| accepted(b, send(0, 8).ask().late_bits(4, 0xbf, "FECN and reserved bits")),
    },
    Case {
        name: "transport_version",
        rule: "9.2 (version)",
        sends: "a WRITE with transport header version 1",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().version(1)),
    },
    Case {
        name: "unknown_qp",
        rule: "9.6.1",
        sends: "a WRITE to a queue pair that does not exist",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().wrong_qpn()),
    },
    Case {
        name: "other_partition",
        rule: "9.6.1, 10.9",
        sends: "a WRITE with P_Key 0x8001",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().pkey(0x8001)),
    },
    Case {
        name: "partition_0",
        rule: "9.6.1, 10.9",
        sends: "a WRITE with P_Key 0",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().pkey(0)),
    },
    Case {
        name: "limited_member",
        rule: "9.6.1, 10.9",
        sends: "a SEND with P_Key 0x7fff, a limited member of the default partition",
        allows: "an ACK: the queue pair's P_Key 0xffff is that of a full member",
        given: RC,
        run: |b| accepted(b, send(0, 8).ask().pkey(0x7fff)),
    },
    Case {
        name: "other_service",
        rule: "9.6.1",
        sends: "a WRITE of UC to a queue pair of RC",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().opcode_byte(Opcode::UC_WRITE_ONLY.0)),
    },
    Case {
        name: "unknown_opcode",
        rule: "9.2.1",
        sends: "a packet with a manufacturer's opcode, 0xc0",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().opcode_byte(0xc0)),
    },
    Case {
        name: "pad_larger_than_payload",
        rule: "9.2 (pad count)",
        sends: "a SEND without payload whose pad count is 3",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, send(0, 0).ask().pad(3)),
    },
    Case {
        name: "length_no_multiple_of_4",
        rule: "9.2 (pad count)",
        sends: "a WRITE with 2 bytes more before the ICRC",
        allows: SILENCE,
        given: RC,
        run: |b| dropped(b, good().append(2)),
    },
    Case {
        name: "reserved_bits",
        rule: "9.2",
        sends: "a SEND with all reserved bits of the BTH set, with a right ICRC",
        allows: "an ACK: reserved bits are ignored",
        given: RC,
        run: |b| {
            let pkt = send(0, 8).ask().bits(4, 0x3f, 0x3f, "resv6 ones");
            accepted(b, pkt.bits(8, 0x7f, 0x7f, "resv7 ones"))
        },
    },
    Case {
        name: "migration_state",
        rule: "9.2 (MigReq)",
        sends: "a SEND with MigReq 0",
        allows: "an ACK",
        given: RC,
        run: |b| accepted(b, send(0, 8).ask().bits(1, 0x40, 0, "MigReq 0")),
    },
    Case {
        name: "ack_of_nothing",
        rule: "9.7.5.2 (ghost acknowledgements)",
        sends: "an ACK, although the peer has sent nothing",
        allows: "no answer; the queue pair goes on",
        given: RC,
        run: |b| {
            b.send(ack(0))?;
            b.alive(0)?;
            b.completes([])
        },
    },
];
