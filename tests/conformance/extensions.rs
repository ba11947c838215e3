//! Memory windows and invalidation; ATOMIC WRITE and FLUSH. IBTA 10.6.7, 9.4.1.1, annex A19.

use crate::dsl::world::{LOCAL, SOURCE};
use crate::dsl::*;

const FLUSHES: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);
const LEN: u64 = 256;
/// FLUSH of a range to global visibility.
const GLOBAL: u32 = 0x1;
/// FLUSH of the whole region to global visibility.
const GLOBAL_WHOLE: u32 = 0x11;

pub(crate) fn cases() -> Vec<Case> {
    windows().into_iter().chain(invalidation()).chain(atomic_writes()).chain(flushes()).collect()
}

fn windows() -> Vec<Case> {
    let rule = "10.6.7, 9.7.4.1 (R_Key)";
    let at = WINDOW_AT;
    let one = |packet: Pkt| packet.rkey(WINDOW_1, "of a type 1 window").ask();
    let two = |packet: Pkt| packet.rkey(WINDOW_2, "of a type 2 window").ask();
    let refused = |name, packet: Pkt| {
        case(name, rule).packets([packet.ask()]).dies(NakCode::RemoteAccessError, 0)
    };
    vec![
        case("a WRITE through a type 1 window", rule)
            .packets([one(write(0, at, 8))])
            .acks(0)
            .wrote(at, 8)
            .next(1),
        case("a WRITE through a type 2 window", rule)
            .packets([two(write(0, at, 8))])
            .acks(0)
            .wrote(at, 8)
            .next(1),
        case("a READ that ends with its window", rule)
            .packets([two(read(0, at + LEN - 8, 8))])
            .answers([Answer::Read(Position::Only, 0, 8)])
            .next(1),
        refused("a WRITE one byte before a window", one(write(0, at - 1, 8))),
        refused("a WRITE one byte behind a window", one(write(0, at + LEN - 7, 8))),
        refused("a READ of the whole region through a window", two(read(0, 0, MEMORY as usize))),
        refused(
            "a READ through a window whose range wraps round 2⁶⁴",
            two(read(0, 0, 0).va(u64::MAX - 3).dma_len(8)),
        ),
        refused("an atomic through a window that does not allow it", one(fetch_add(0, at, 1))),
        refused(
            "a WRITE through a window bound on another QP",
            write(0, at, 8).rkey(WINDOW_OTHER_QP, "of another QP's type 2 window"),
        ),
        refused(
            "a WRITE through a window that is not bound",
            write(0, at, 8).rkey(WINDOW_UNBOUND, "of an unbound window"),
        ),
        refused(
            "a WRITE through a window under the key of its binding before",
            write(0, at, 8).rkey(Key::new(WINDOW_1.value() & !0xff), "with another low byte"),
        ),
        refused(
            "a READ through a window under the key of a binding to come",
            read(0, at, 8).rkey(Key::new(WINDOW_2.value() + 1), "with another low byte"),
        ),
        case("a window whose region is gone", "10.6.7")
            .deregister(BINDABLE, "the window's region")
            .packets([one(write(0, at, 8))])
            .dies(NakCode::RemoteAccessError, 0),
        case("a key that differs from a region's in the low byte", "10.6.3")
            .packets([write(0, 0, 8).rkey(Key::new(ALL.value() + 1), "with another low byte")])
            .dies(NakCode::RemoteAccessError, 0),
        case("a duplicate READ through a window that was taken back", "9.7.4.1 (R_Key), C9-105")
            .given(rc().receive(1, 100))
            .packets([
                two(read(0, at, 8)),
                send(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 1, 4).ieth(WINDOW_2, "the window"),
                two(read(0, at, 8)),
            ])
            .answers([Answer::Read(Position::Only, 0, 8)])
            .dies(NakCode::RemoteAccessError, 0)
            .completes([got(1, 4)])
            .wrote(recv_at(1), 4),
    ]
}

fn invalidation() -> Vec<Case> {
    let rule = "9.4.1.1, 9.9.3";
    let inv = |key, what| send(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 0, 8).ieth(key, what).ask();
    let refused = |name, key, what| {
        case(name, rule)
            .given(rc().receive(1, 100))
            .packets([inv(key, what)])
            .dies(NakCode::RemoteAccessError, 0)
            .completes([failed(1, Status::RemoteInvalidRequest)])
            .ignored(recv_at(1), 8)
            .kernel("Acknowledges the SEND and ends its own side alone.")
    };
    vec![
        case("a SEND that takes a type 2 window back", rule)
            .given(rc().receive(1, 100))
            .packets([
                inv(WINDOW_2, "a type 2 window"),
                write(1, WINDOW_AT, 8).rkey(WINDOW_2, "of that window"),
            ])
            .acks(0)
            .dies(NakCode::RemoteAccessError, 1)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8),
        case("the last packet of a SEND takes a window back", rule)
            .given(rc().receive(1, 5000))
            .packets([
                send(Opcode::RC_SEND_FIRST, 0, 1024),
                send(Opcode::RC_SEND_LAST_WITH_INVALIDATE, 1, 8)
                    .ieth(WINDOW_2, "a type 2 window")
                    .ask(),
            ])
            .acks(1)
            .completes([got(1, 1032)])
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 8)
            .next(2),
        case("a duplicate of a SEND that takes a window back", "C9-105")
            .given(rc().receive(1, 100).receive(2, 100))
            .packets([inv(WINDOW_2, "a type 2 window"), inv(WINDOW_2, "a type 2 window")])
            .acks(0)
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        refused("a SEND that takes a type 1 window back", WINDOW_1, "a type 1 window"),
        refused("a SEND that invalidates a region", ALL, "a region"),
        refused(
            "a SEND that invalidates another QP's window",
            WINDOW_OTHER_QP,
            "another QP's window",
        ),
        refused("a SEND that invalidates what is not bound", WINDOW_UNBOUND, "an unbound window"),
        refused("a SEND that invalidates a key that never was", UNKNOWN, "an unknown key"),
        refused("a SEND that invalidates key 0", KEY_0, "key 0"),
        case("a SEND that takes a window back without a receive", "9.7.4.1 (resources)")
            .packets([
                inv(WINDOW_2, "a type 2 window"),
                write(0, WINDOW_AT, 8).rkey(WINDOW_2, "of that window").ask(),
            ])
            .answers([Answer::Rnr(0), Answer::Ack(0)])
            .wrote(WINDOW_AT, 8)
            .next(1)
            .note("what is postponed has no effect: the window still stands"),
    ]
}

fn atomic_writes() -> Vec<Case> {
    let rule = "A19 (ATOMIC WRITE)";
    let aw = |psn, payload, offset, len| rdma(Opcode::RC_ATOMIC_WRITE, psn, payload, offset, len);
    let invalid =
        |name, packet: Pkt| case(name, rule).packets([packet]).dies(NakCode::InvalidRequest, 0);
    let refused =
        |name, packet: Pkt| case(name, rule).packets([packet]).dies(NakCode::RemoteAccessError, 0);
    let empty = |psn| Answer::Read(Position::Only, psn, 0);
    vec![
        case("an ATOMIC WRITE", rule)
            .packets([aw(0, 8, 16, 8)])
            .answers([empty(0)])
            .wrote(16, 8)
            .next(1),
        case("a duplicate ATOMIC WRITE writes once", "A19, C9-105")
            .packets([aw(0, 8, 16, 8), write(1, 16, 4), aw(0, 8, 24, 8)])
            .answers([empty(0), empty(0)])
            .wrote(16, 8)
            .next(2),
        invalid("an ATOMIC WRITE at an address that is 4 off", aw(0, 8, 4, 8)),
        invalid("an ATOMIC WRITE of 4 bytes", aw(0, 4, 0, 4)),
        invalid("an ATOMIC WRITE of 16 bytes", aw(0, 16, 0, 16)),
        invalid("an ATOMIC WRITE of nothing", aw(0, 0, 0, 0)),
        invalid("an ATOMIC WRITE of 8 bytes whose RETH says 16", aw(0, 8, 0, 16)),
        invalid("an ATOMIC WRITE of 4 bytes whose RETH says 8", aw(0, 4, 0, 8)),
        refused(
            "an ATOMIC WRITE under a key that never was",
            aw(0, 8, 0, 8).rkey(UNKNOWN, "unknown"),
        ),
        refused(
            "an ATOMIC WRITE into a region without REMOTE_WRITE",
            aw(0, 8, 0, 8).rkey(READ_ONLY, "of a read-only region"),
        ),
        refused("an ATOMIC WRITE right behind the region", aw(0, 8, MEMORY, 8)),
        refused(
            "an ATOMIC WRITE at the last word of the address space",
            aw(0, 8, 0, 8).va(u64::MAX - 7),
        ),
        case("an ATOMIC WRITE where the QP does not allow it", rule)
            .given(rc().access(Access::REMOTE_READ))
            .packets([aw(0, 8, 0, 8)])
            .dies(NakCode::InvalidRequest, 0),
        case("an ATOMIC WRITE more than agreed", "A19, 9.7.4.1 (resources)")
            .given(rc().max_dest_rd_atomic(1))
            .burst([aw(0, 8, 0, 8), aw(1, 8, 8, 8)])
            .answers([empty(0)])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(0, 8)
            .kernel("Does not count."),
        case("an ATOMIC WRITE behind a gap", "9.7.4.1 (PSN)")
            .packets([aw(1, 8, 0, 8)])
            .naks(NakCode::PsnSequenceError, 0),
        case("the answer to an ATOMIC WRITE", rule)
            .post_atomic_write(1)
            .packets([response(Opcode::RC_READ_RESPONSE_ONLY, 0, 0)])
            .completes([done(1)]),
        case("an answer with data to an ATOMIC WRITE", "9.9.2 (bad response)")
            .post_atomic_write(1)
            .packets([response(Opcode::RC_READ_RESPONSE_ONLY, 0, 8)])
            .completes([failed(1, Status::BadResponse)])
            .state(QpState::Err),
        case("an acknowledgement in answer to an ATOMIC WRITE", "9.7.5.2 (implied NAK)")
            .post_atomic_write(1)
            .packets([acked(0)])
            .requests([(Opcode::RC_ATOMIC_WRITE, 0), (Opcode::RC_ATOMIC_WRITE, 0)])
            .retries([RetryCause::ImpliedNak]),
        case("an atomic's value in answer to an ATOMIC WRITE", "9.9.2 (unexpected opcode)")
            .post_atomic_write(1)
            .packets([atomic_response(0, 7)])
            .drops(DropReason::UnexpectedResponse)
            .note("neither the source nor any result is touched")
            .ignored(SOURCE, 0)
            .ignored(LOCAL, 0),
    ]
}

fn flushes() -> Vec<Case> {
    let rule = "A19 (FLUSH)";
    let flush = |feth, offset, len| rdma(Opcode::RC_FLUSH, 0, 0, offset, len).feth(feth);
    let able = || rc().access(FLUSHES);
    let empty = Answer::Read(Position::Only, 0, 0);
    let good = |name, packet: Pkt| {
        case(name, rule).given(able()).packets([packet]).answers([empty.clone()]).next(1)
    };
    let invalid = |name, packet: Pkt| {
        case(name, rule).given(able()).packets([packet]).dies(NakCode::InvalidRequest, 0)
    };
    let refused = |name, packet: Pkt| {
        case(name, rule).given(able()).packets([packet]).dies(NakCode::RemoteAccessError, 0)
    };
    vec![
        good("a FLUSH of a range", flush(GLOBAL, 0, 100)),
        good("a FLUSH of the whole region", flush(GLOBAL_WHOLE, 0, 0)),
        good(
            "a FLUSH of the whole region, whatever the range says",
            flush(GLOBAL_WHOLE, 0, 100).va(u64::MAX),
        ),
        invalid("a FLUSH that asks for nothing", flush(0, 0, 100)),
        invalid("a FLUSH with a reserved placement", flush(0x5, 0, 100)),
        invalid("a FLUSH with a reserved selectivity", flush(0x21, 0, 100)),
        invalid("a FLUSH to persistence where the QP does not allow it", flush(0x2, 0, 100)),
        refused("a FLUSH under a key that never was", flush(GLOBAL, 0, 8).rkey(UNKNOWN, "unknown")),
        refused(
            "a FLUSH of the whole of a region that never was",
            flush(GLOBAL_WHOLE, 0, 8).rkey(UNKNOWN, "unknown"),
        ),
        refused(
            "a FLUSH of a region that does not allow it",
            flush(GLOBAL, 0, 8).rkey(READ_ONLY, "of a read-only region"),
        ),
        refused(
            "a FLUSH in another protection domain",
            flush(GLOBAL, 0, 8).rkey(OTHER_PD, "of another PD"),
        ),
        refused(
            "a FLUSH of the whole of another protection domain's region",
            flush(GLOBAL_WHOLE, 0, 8).rkey(OTHER_PD, "of another PD"),
        ),
        refused("a FLUSH that ends one byte behind the region", flush(GLOBAL, MEMORY - 7, 8)),
        refused("a FLUSH whose range wraps round 2⁶⁴", flush(GLOBAL, 0, 8).va(u64::MAX - 3)),
        case("a FLUSH where the QP does not allow it", rule)
            .packets([flush(GLOBAL, 0, 100)])
            .dies(NakCode::InvalidRequest, 0),
        case("a FLUSH with a payload", "9.2 (pad count)")
            .given(able())
            .packets([flush(GLOBAL, 0, 100).append(8)])
            .drops(DropReason::UnexpectedPayload),
        case("a duplicate FLUSH", "A19, C9-105")
            .given(able())
            .packets([flush(GLOBAL, 0, 100), flush(GLOBAL, 0, 100)])
            .answers([empty.clone(), empty])
            .next(1),
    ]
}
