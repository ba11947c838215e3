//! Keys, access flags and bounds of memory.

use rxe_core::wire::{NakCode, Opcode};

use super::super::bench::{MTU, REGION};
use super::super::case::Case;
use super::super::packet::{bare, fetch_add, rdma, read, write};
use crate::common::peer::{Given, RC, access};
use rxe_lab::answer::Said;

const KEY: &str = "9.7.4.1 (R_Key), 10.6.3";
const ACCESS: NakCode = NakCode::RemoteAccessError;
const REFUSED: &str = "NAK remote access error; the queue pair goes into ERR";
const UNWRITTEN: &str = "NAK remote access error; the queue pair goes into ERR; nothing is written";

const fn without(right: u32) -> Given {
    Given { mr_access: access::ALL & !right, ..RC }
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "write_under_unknown_key",
        rule: KEY,
        sends: "a WRITE under a key that does not exist",
        allows: UNWRITTEN,
        given: RC,
        run: |b| {
            b.send(write(0, 0, 8).ask().wrong_rkey())?;
            b.dies(ACCESS, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "read_under_unknown_key",
        rule: KEY,
        sends: "a READ under a key that does not exist",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.send(read(0, 0, 8).wrong_rkey())?;
            b.dies(ACCESS, 0)
        },
    },
    Case {
        name: "atomic_under_unknown_key",
        rule: KEY,
        sends: "a FETCH ADD under a key that does not exist",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 0, 1).wrong_rkey())?;
            b.dies(ACCESS, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "write_to_end_of_region",
        rule: KEY,
        sends: "a WRITE that ends with the region",
        allows: "an ACK",
        given: RC,
        run: |b| {
            b.send(write(0, REGION - 8, 8).ask())?;
            b.expect(Said::Ack(0))?;
            b.alive(1)
        },
    },
    Case {
        name: "write_beyond_region",
        rule: KEY,
        sends: "a WRITE that ends one byte behind the region",
        allows: UNWRITTEN,
        given: RC,
        run: |b| {
            b.send(write(0, REGION - 7, 8).ask())?;
            b.dies(ACCESS, 0)?;
            b.untouched(REGION - 8, 8)
        },
    },
    Case {
        name: "write_before_region",
        rule: KEY,
        sends: "a WRITE that begins one byte before the region",
        allows: UNWRITTEN,
        given: RC,
        run: |b| {
            b.send(write(0, 1_u64.wrapping_neg(), 8).ask())?;
            b.dies(ACCESS, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "read_beyond_region",
        rule: KEY,
        sends: "a READ of one byte more than the region has",
        allows: "NAK remote access error before any data; the queue pair goes into ERR",
        given: RC,
        run: |b| {
            b.send(read(0, 0, 65537))?;
            b.dies(ACCESS, 0)
        },
    },
    Case {
        name: "write_whose_end_is_beyond_region",
        rule: KEY,
        sends: "WRITE FIRST inside the region, of a message that ends outside",
        allows: "NAK remote access error at the first packet; nothing is written",
        given: RC,
        run: |b| {
            b.send(rdma(Opcode::RC_WRITE_FIRST, 0, MTU, REGION - 256, 300).ask())?;
            b.dies(ACCESS, 0)?;
            b.untouched(REGION - 256, 256)
        },
    },
    Case {
        name: "region_without_remote_write",
        rule: KEY,
        sends: "a WRITE into a region without IBV_ACCESS_REMOTE_WRITE",
        allows: UNWRITTEN,
        // Atomics write as well, so the region allows neither WRITEs nor atomics.
        given: without(access::REMOTE_WRITE | access::REMOTE_ATOMIC),
        run: |b| {
            b.send(write(0, 0, 8).ask())?;
            b.dies(ACCESS, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "region_without_remote_read",
        rule: KEY,
        sends: "a READ from a region without IBV_ACCESS_REMOTE_READ",
        allows: REFUSED,
        given: without(access::REMOTE_READ),
        run: |b| {
            b.send(read(0, 0, 8))?;
            b.dies(ACCESS, 0)
        },
    },
    Case {
        name: "region_without_remote_atomic",
        rule: KEY,
        sends: "a FETCH ADD on a region without IBV_ACCESS_REMOTE_ATOMIC",
        allows: REFUSED,
        given: without(access::REMOTE_ATOMIC),
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 0, 1))?;
            b.dies(ACCESS, 0)?;
            b.untouched(0, 8)
        },
    },
    Case {
        name: "write_of_nothing",
        rule: "9.7.4.1 (R_Key, zero-length)",
        sends: "a WRITE of 0 B under a key that does not exist",
        allows: "an ACK: the key is not checked",
        given: RC,
        run: |b| {
            b.send(write(0, 0, 0).ask().wrong_rkey())?;
            b.expect(Said::Ack(0))?;
            b.alive(1)
        },
    },
    Case {
        name: "misaligned_atomic",
        rule: "9.4.5 (alignment)",
        sends: "a FETCH ADD at an address that is 4 off",
        allows: "NAK invalid request; the queue pair goes into ERR; nothing is added",
        given: RC,
        run: |b| {
            b.needs_atomics()?;
            b.send(fetch_add(0, 4, 1))?;
            b.dies(NakCode::InvalidRequest, 0)?;
            b.untouched(0, 16)
        },
    },
    Case {
        name: "invalidate_unknown_key",
        rule: "9.4.1.1, 9.9.3",
        sends: "SEND ONLY WITH INVALIDATE of a key that does not exist",
        allows: REFUSED,
        given: RC,
        run: |b| {
            b.receive(1, 100)?;
            let opcode = Opcode::RC_SEND_ONLY_WITH_INVALIDATE;
            b.send(bare(opcode, 0, 8).ask().invalidate_unknown())?;
            b.dies(ACCESS, 0)
        },
    },
];
