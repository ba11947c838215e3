//! Memory windows: remote access through them, binding and invalidation.

use rxe_core::queue::Status;
use rxe_core::wire::{NakCode, Opcode};
use rxe_lab::answer::Said;

use super::super::bench::{Bench, MTU, REGION, WINDOW_AT, WINDOW_LEN, deviates, done, failed, got};
use super::super::case::Case;
use super::super::packet::{Pkt, ack, bare, fetch_add, pattern, read, write};
use super::super::verdict::Outcome;
use crate::common::peer::{RC, RC_WINDOWS, access};

const WINDOW: &str = "10.6.7, 9.7.4.1 (R_Key)";
const BIND: &str = "10.6.7, 11.6.2 (memory window bind error)";
const INVALIDATE: &str = "9.4.1.1, 9.9.3";
const ACCESS: NakCode = NakCode::RemoteAccessError;
const REFUSED: &str = "NAK remote access error; the queue pair goes into ERR";
const UNWRITTEN: &str = "NAK remote access error; the queue pair goes into ERR; nothing is written";
const BIND_FAILS: &str = "the bind completes with a memory window bind error; ERR";

/// Access flags of a window.
const BOTH: u32 = access::REMOTE_WRITE | access::REMOTE_READ;

/// Allocates a window and binds it. Returns its rkey.
fn bound(b: &mut Bench<'_>, kind: u8, access: u32) -> Outcome<u32> {
    b.window(kind)?;
    b.bind(access)
}

/// Returns a WRITE of 8 bytes with this rkey.
fn write_under(psn: i32, at: u64, rkey: u32) -> Pkt {
    write(psn, at, 8).ask().under(rkey)
}

/// Requires a WRITE through a window of this type to be executed.
fn writes(b: &mut Bench<'_>, kind: u8) -> Outcome {
    let rkey = bound(b, kind, BOTH)?;
    b.send(write_under(0, WINDOW_AT, rkey))?;
    b.expect(Said::Ack(0))?;
    b.memory_is(WINDOW_AT, &pattern(8))?;
    b.alive(1)
}

/// Requires a WRITE with this rkey to be refused.
fn is_closed(b: &mut Bench<'_>, psn: i32, at: u64, rkey: u32) -> Outcome {
    b.send(write_under(psn, at, rkey))?;
    b.dies(ACCESS, psn)?;
    b.untouched(at, 8)
}

/// Returns a SEND of one packet that invalidates an rkey.
fn send_invalidating(psn: i32, rkey: u32) -> Pkt {
    bare(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, psn, 8).ask().invalidates(rkey)
}

/// Requires the refusal of a SEND that invalidates this rkey.
fn may_not_invalidate(b: &mut Bench<'_>, rkey: u32) -> Outcome {
    b.receive(1, 100)?;
    b.send(send_invalidating(0, rkey))?;
    b.dies(ACCESS, 0)
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "window_type_1",
        rule: WINDOW,
        sends: "a WRITE of 8 B through a window of type 1",
        allows: "an ACK; the bytes are in memory",
        given: RC_WINDOWS,
        run: |b| writes(b, 1),
    },
    Case {
        name: "window_type_2",
        rule: WINDOW,
        sends: "a WRITE of 8 B through a window of type 2",
        allows: "an ACK; the bytes are in memory",
        given: RC_WINDOWS,
        run: |b| writes(b, 2),
    },
    Case {
        name: "window_read_to_its_end",
        rule: WINDOW,
        sends: "a READ that ends with its window",
        allows: "READ RESPONSE ONLY",
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.send(read(0, WINDOW_AT + WINDOW_LEN - 8, 8).under(rkey))?;
            b.expect_read(0, 8)?;
            b.alive(1)
        },
    },
    Case {
        name: "window_write_before_it",
        rule: WINDOW,
        sends: "a WRITE that begins one byte before a window of type 1",
        allows: UNWRITTEN,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 1, BOTH)?;
            is_closed(b, 0, WINDOW_AT - 1, rkey)
        },
    },
    Case {
        name: "window_write_beyond_it",
        rule: WINDOW,
        sends: "a WRITE that ends one byte behind a window of type 2",
        allows: UNWRITTEN,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            is_closed(b, 0, WINDOW_AT + WINDOW_LEN - 7, rkey)
        },
    },
    Case {
        name: "window_without_remote_write",
        rule: WINDOW,
        sends: "a WRITE through a window that is bound for READs, on a region that allows WRITEs",
        allows: UNWRITTEN,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 1, access::REMOTE_READ)?;
            is_closed(b, 0, WINDOW_AT, rkey)
        },
    },
    Case {
        name: "window_without_remote_read",
        rule: WINDOW,
        sends: "a READ through a window that is bound for WRITEs, on a region that allows READs",
        allows: REFUSED,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, access::REMOTE_WRITE)?;
            b.send(read(0, WINDOW_AT, 8).under(rkey))?;
            b.dies(ACCESS, 0)
        },
    },
    Case {
        name: "window_without_remote_atomic",
        rule: WINDOW,
        sends: "a FETCH ADD through a window that is bound for READs and WRITEs",
        allows: REFUSED,
        given: RC_WINDOWS,
        run: |b| {
            b.needs_atomics()?;
            let rkey = bound(b, 1, BOTH)?;
            b.send(fetch_add(0, WINDOW_AT, 1).under(rkey))?;
            b.dies(ACCESS, 0)?;
            b.untouched(WINDOW_AT, 8)
        },
    },
    Case {
        name: "window_not_bound",
        rule: WINDOW,
        sends: "a WRITE under the key of a window of type 1 that is not bound",
        allows: UNWRITTEN,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = b.window(1)?;
            is_closed(b, 0, WINDOW_AT, rkey)
        },
    },
    Case {
        name: "window_bound_again",
        rule: WINDOW,
        sends: "a window of type 1 is bound twice; a WRITE under the second key, one under the first",
        allows: "an ACK, then NAK remote access error; the queue pair goes into ERR",
        given: RC_WINDOWS,
        run: |b| {
            let first = bound(b, 1, BOTH)?;
            let second = b.bind(BOTH)?;
            b.send(write_under(0, WINDOW_AT, second))?;
            b.expect(Said::Ack(0))?;
            is_closed(b, 1, WINDOW_AT + 64, first)
        },
    },
    Case {
        name: "window_unbound",
        rule: WINDOW,
        sends: "a WRITE through a window of type 1 that was bound, and then to 0 B",
        allows: UNWRITTEN,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 1, BOTH)?;
            b.unbind()?;
            is_closed(b, 0, WINDOW_AT, rkey)
        },
    },
    Case {
        name: "window_invalidated",
        rule: WINDOW,
        sends: "a WRITE through a window of type 2 that its own program has invalidated",
        allows: UNWRITTEN,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.invalidate(rkey)?;
            is_closed(b, 0, WINDOW_AT, rkey)
        },
    },
    Case {
        name: "send_with_invalidate",
        rule: INVALIDATE,
        sends: "SEND ONLY WITH INVALIDATE of a window of type 2, then a WRITE through it",
        allows: "an ACK; the receive completes with 8 B; the WRITE gets NAK remote access error",
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.receive(1, 100)?;
            b.send(send_invalidating(0, rkey))?;
            b.expect(Said::Ack(0))?;
            b.completes([got(1, 8)])?;
            is_closed(b, 1, WINDOW_AT, rkey)
        },
    },
    Case {
        name: "completion_names_invalidated_key",
        rule: "11.4.2.1",
        sends: "SEND ONLY WITH INVALIDATE of a window of type 2",
        allows: "the receive completes with 8 B and the key that was invalidated",
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.receive(1, 100)?;
            b.send(send_invalidating(0, rkey))?;
            b.completes_invalidating(1, 8, rkey)
        },
    },
    Case {
        name: "send_last_with_invalidate",
        rule: INVALIDATE,
        sends: "a WRITE through a window of type 2, SEND FIRST and LAST WITH INVALIDATE of it, and a WRITE again",
        allows: "ACKs; the receive completes with all bytes; the last WRITE gets NAK remote \
                 access error",
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.receive(1, 1000)?;
            b.send(write_under(0, WINDOW_AT + 64, rkey))?;
            b.expect(Said::Ack(0))?;
            b.send(bare(Opcode::RC_SEND_FIRST, 1, MTU))?;
            b.send(bare(Opcode::RC_SEND_LAST_WITH_INVALIDATE, 2, 8).ask().invalidates(rkey))?;
            b.expect(Said::Ack(2))?;
            b.completes([got(1, 264)])?;
            is_closed(b, 3, WINDOW_AT, rkey)
        },
    },
    Case {
        name: "duplicate_send_with_invalidate",
        rule: "9.7.5.1, C9-105",
        sends: "SEND ONLY WITH INVALIDATE of a window of type 2, twice at one PSN",
        allows: "an ACK each time; one receive completes",
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.receive(1, 100)?;
            b.receive(2, 100)?;
            b.send(send_invalidating(0, rkey))?;
            b.expect(Said::Ack(0))?;
            b.send(send_invalidating(0, rkey))?;
            b.expect(Said::Ack(0))?;
            b.alive(1)?;
            b.completes([got(1, 8)])
        },
    },
    Case {
        name: "duplicate_read_through_invalidated_window",
        rule: "9.7.4.1 (R_Key), C9-105",
        sends: "a READ through a window of type 2, SEND ONLY WITH INVALIDATE of it, then the READ again",
        allows: "data, an ACK, then NAK remote access error: the key is checked again",
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.receive(1, 100)?;
            b.send(read(0, WINDOW_AT, 8).under(rkey))?;
            b.expect_read(0, 8)?;
            b.send(send_invalidating(1, rkey))?;
            b.expect(Said::Ack(1))?;
            b.send(read(0, WINDOW_AT, 8).under(rkey))?;
            b.dies(ACCESS, 0)
        },
    },
    Case {
        name: "invalidate_without_receive",
        rule: "9.7.4.1 (resources)",
        sends: "SEND ONLY WITH INVALIDATE of a window of type 2 without a receive, then a WRITE through it",
        allows: "an RNR NAK, then an ACK: what is put off has no effect",
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 2, BOTH)?;
            b.send(send_invalidating(0, rkey))?;
            b.expect(Said::Rnr(0, RC.min_rnr_timer))?;
            b.send(write_under(0, WINDOW_AT, rkey))?;
            b.expect(Said::Ack(0))?;
            b.memory_is(WINDOW_AT, &pattern(8))
        },
    },
    Case {
        name: "invalidate_type_1",
        rule: INVALIDATE,
        sends: "SEND ONLY WITH INVALIDATE of a window of type 1",
        allows: REFUSED,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = bound(b, 1, BOTH)?;
            may_not_invalidate(b, rkey)
        },
    },
    Case {
        name: "invalidate_window_not_bound",
        rule: INVALIDATE,
        sends: "SEND ONLY WITH INVALIDATE of a window of type 2 that is not bound",
        allows: REFUSED,
        given: RC_WINDOWS,
        run: |b| {
            let rkey = b.window(2)?;
            may_not_invalidate(b, rkey)
        },
    },
    Case {
        name: "invalidate_region",
        rule: INVALIDATE,
        sends: "SEND ONLY WITH INVALIDATE of the key of a region",
        allows: REFUSED,
        given: RC,
        run: |b| {
            let rkey = b.target.rkey;
            may_not_invalidate(b, rkey)
        },
    },
    Case {
        name: "bind_window_of_type_2_again",
        rule: BIND,
        sends: "the peer binds a window of type 2 that is bound",
        allows: BIND_FAILS,
        given: RC_WINDOWS,
        run: |b| {
            bound(b, 2, BOTH)?;
            bind_fails(b, WINDOW_AT, BOTH)
        },
    },
    Case {
        name: "bind_without_right",
        rule: BIND,
        sends: "the peer binds a window to a region without IBV_ACCESS_MW_BIND",
        allows: BIND_FAILS,
        given: RC,
        run: |b| {
            b.window(2)?;
            bind_fails(b, WINDOW_AT, BOTH)
        },
    },
    Case {
        name: "bind_beyond_region",
        rule: BIND,
        sends: "the peer binds a window that ends one byte behind the region",
        allows: BIND_FAILS,
        given: RC_WINDOWS,
        run: |b| {
            b.window(2)?;
            bind_fails(b, REGION - WINDOW_LEN + 1, BOTH)
        },
    },
    Case {
        name: "requests_send_with_invalidate",
        rule: "9.3.7, 9.4.1.1",
        sends: "the peer posts a SEND WITH INVALIDATE of 8 B",
        allows: "SEND ONLY WITH INVALIDATE with that key; it completes with the ACK",
        given: RC,
        run: |b| {
            const KEY: u32 = 0x1234_5678;
            b.post_send_invalidate(1, KEY)?;
            let wanted = Said::Request(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 0, 8);
            let named = b.expect(wanted)?.ext.ieth;
            if named != Some(KEY) {
                return deviates(format!("its IETH names {named:x?}, not {KEY:x}"));
            }
            b.send(ack(0))?;
            b.completes([done(1)])
        },
    },
];

/// Requires a bind of a type 2 window to fail and to end in the error state.
fn bind_fails(b: &mut Bench<'_>, at: u64, access: u32) -> Outcome {
    b.post_bind(2, at, WINDOW_LEN, access)?;
    b.completes([failed(2, Status::MemoryWindowBind)])?;
    b.in_error()
}
