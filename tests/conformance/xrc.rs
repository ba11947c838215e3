//! Extended reliable connection: requests that name a shared receive queue of the target's domain.
//! Everything else is as for RC. IBTA annex A14. Kernel `rdma_rxe` has no XRC, so there are no
//! deviations.

use crate::dsl::world::LOCAL;
use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    [target(), requests(), answers()].into_iter().flatten().collect()
}

/// Returns the cases of requests to a target.
fn target() -> Vec<Case> {
    let rule = "A14 (XRCETH checks)";
    let only = |psn, len| send(Opcode::XRC_SEND_ONLY, psn, len).ask();
    let first = |psn| send(Opcode::XRC_SEND_FIRST, psn, 1024);
    let last = |psn, len| send(Opcode::XRC_SEND_LAST, psn, len).ask();
    vec![
        case("an XRC SEND", rule)
            .given(xrc().receive(1, 100))
            .packets([only(0, 8)])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("an XRC request that names no queue of the domain", rule)
            .given(xrc().receive(1, 100))
            .packets([only(0, 8).srq(9)])
            .dies(NakCode::RemoteOperationalError, 0),
        case("an XRC WRITE that names no queue of the domain", rule)
            .given(xrc())
            .packets([rdma(Opcode::XRC_WRITE_ONLY, 0, 8, 0, 8).srq(0)])
            .dies(NakCode::RemoteOperationalError, 0),
        case("an XRC request with the reserved bits of the XRCETH set", "A14; 9.2")
            .given(xrc().receive(1, 100))
            .packets([only(0, 8).srq(0xff00_0007)])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("an XRC SEND to a queue without a receive", "A14, 9.7.5.2.8")
            .given(xrc())
            .packets([only(0, 8)])
            .answers([Answer::Rnr(0)]),
        case("an XRC message that changes its queue", rule)
            .given(xrc().receive(1, 5000))
            .packets([first(0), last(1, 8).srq(8)])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(recv_at(1), 1024)
            .completes([failed(1, Status::RemoteInvalidRequest)])
            .note("a message belongs to one queue; its receive completes where that queue says"),
        case("an XRC message whose queue is unknown in the second packet", rule)
            .given(xrc().receive(1, 5000))
            .packets([first(0), last(1, 8).srq(9)])
            .dies(NakCode::RemoteOperationalError, 1)
            .wrote(recv_at(1), 1024)
            .completes([failed(1, Status::RemoteOperation)]),
        case("an XRC message of two packets", rule)
            .given(xrc().receive(1, 5000))
            .packets([first(0), last(1, 8)])
            .acks(1)
            .completes([got(1, 1032)])
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 8)
            .next(2),
        case("half an XRC message, then ERR", "10.3.1, A14")
            .given(xrc().receive(1, 5000).receive(2, 100))
            .packets([first(0)])
            .modify(QpState::Err)
            .wrote(recv_at(1), 1024)
            .completes([flushed(1)])
            .state(QpState::Err)
            .note("receives that no message had taken stay in the shared queue"),
        case("an XRC READ and an atomic", "A14")
            .given(xrc())
            .packets([
                rdma(Opcode::XRC_READ_REQUEST, 0, 0, 0, 8),
                atomic(Opcode::XRC_FETCH_ADD, 1, 0, 1, 0),
            ])
            .answers([Answer::Read(Position::Only, 0, 8), Answer::Atomic(1, 0x1111_1111_1111_1111)])
            .word(0, 0x1111_1111_1111_1112)
            .next(2),
        case("an XRC WRITE under a key that never was", "A14, 9.7.4.1 (R_Key)")
            .given(xrc())
            .packets([rdma(Opcode::XRC_WRITE_ONLY, 0, 8, 0, 8).rkey(UNKNOWN, "unknown")])
            .dies(NakCode::RemoteAccessError, 0),
        case("an XRC request that ends inside its XRCETH", "A14")
            .given(xrc())
            .packets([only(0, 0).cut(14)])
            .drops(DropReason::Truncated),
        case("an XRC gap", "A14, 9.7.4.1 (PSN)")
            .given(xrc().receive(1, 100))
            .packets([only(1, 8)])
            .naks(NakCode::PsnSequenceError, 0),
        case("an RC request to an XRC target", "9.6.1")
            .given(xrc())
            .packets([write(0, 0, 8)])
            .drops(DropReason::WrongService),
        case("an XRC request to an RC QP", "9.6.1")
            .packets([rdma(Opcode::XRC_WRITE_ONLY, 0, 8, 0, 8)])
            .drops(DropReason::WrongService),
        case("an XRC acknowledgement to an XRC target", "A14")
            .given(xrc())
            .packets([acked(0).opcode_byte(Opcode::XRC_ACKNOWLEDGE.0)])
            .drops(DropReason::WrongService)
            .note("a target never asks, so nobody answers it"),
        reserved("reserved XRC opcode 0xb5", 0xb5),
        reserved("reserved XRC opcode 0xb8", 0xb8),
        reserved("reserved XRC opcode 0xb9", 0xb9),
        reserved("reserved XRC opcode 0xba", 0xba),
        reserved("reserved XRC opcode 0xbb", 0xbb),
        reserved("reserved XRC opcode 0xbe", 0xbe),
        reserved("reserved XRC opcode 0xbf", 0xbf),
        case("a reserved XRC opcode behind a gap is a gap first", "A14, 9.7.4.1 (order of checks)")
            .given(xrc())
            .packets([only(1, 8).opcode_byte(0xbf)])
            .naks(NakCode::PsnSequenceError, 0),
        case("a reserved XRC opcode to an RC QP", "9.6.1")
            .packets([only(0, 8).opcode_byte(0xb5)])
            .drops(DropReason::WrongService),
        case("an XRC MIDDLE without a FIRST", "A14, 9.7.4.1 (opcodes)")
            .given(xrc())
            .packets([send(Opcode::XRC_SEND_MIDDLE, 0, 1024)])
            .dies(NakCode::InvalidRequest, 0),
        case("an XRC message too long for its receive", "A14, 9.7.4.1 (length)")
            .given(xrc().receive(1, 7))
            .packets([only(0, 8)])
            .dies(NakCode::InvalidRequest, 0)
            .completes([failed(1, Status::LocalLength)]),
        case("an XRC SEND again", "A14, 9.7.5.1 (duplicates)")
            .given(xrc().receive(1, 100).receive(2, 100))
            .packets([only(0, 8), only(0, 8)])
            .acks(0)
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("an XRC WRITE with immediate data that finds no receive", "A14, 9.7.5.2.8")
            .given(xrc())
            .packets([rdma(Opcode::XRC_WRITE_ONLY_WITH_IMMEDIATE, 0, 8, 0, 8).ask()])
            .answers([Answer::Rnr(0)]),
    ]
}

fn reserved(name: &'static str, opcode: u8) -> Case {
    case(name, "A14, 9.7.4.1 (opcodes)")
        .given(xrc().receive(1, 100))
        .packets([send(Opcode::XRC_SEND_ONLY, 0, 8).opcode_byte(opcode)])
        .dies(NakCode::InvalidRequest, 0)
        .note("as for RC; receives stay in their shared queue")
}

/// Returns the cases of requests to an initiator, which accepts none.
fn requests() -> Vec<Case> {
    let deaf = |name, packet: Pkt| {
        case(name, "A14 (initiator)")
            .given(initiator())
            .packets([packet])
            .drops(DropReason::WrongService)
    };
    vec![
        deaf("an XRC SEND to an initiator", send(Opcode::XRC_SEND_ONLY, 0, 8)),
        deaf("an XRC WRITE to an initiator", rdma(Opcode::XRC_WRITE_ONLY, 0, 8, 0, 8)),
        deaf("an XRC READ to an initiator", rdma(Opcode::XRC_READ_REQUEST, 0, 0, 0, 8)),
        deaf("an XRC atomic to an initiator", atomic(Opcode::XRC_FETCH_ADD, 0, 0, 1, 0)),
        deaf("a reserved XRC opcode to an initiator", reserved_opcode()),
        deaf("an RC WRITE to an initiator", write(0, 0, 8)),
        deaf("an RC acknowledgement to an initiator", acked(0)),
    ]
}

fn reserved_opcode() -> Pkt {
    send(Opcode::XRC_SEND_ONLY, 0, 8).opcode_byte(0xbf)
}

/// Returns the cases of responses to an initiator, one of each kind. They are handled as for RC.
fn answers() -> Vec<Case> {
    let ini = |name, rule| case(name, rule).given(initiator());
    let refused = |name, code, status| {
        ini(name, "A14, 9.9.2")
            .post_write(1, 8)
            .post_send(2, 8)
            .packets([naked(0, code).xrc()])
            .completes([failed(1, status), flushed(2)])
            .state(QpState::Err)
    };
    vec![
        ini("an XRC acknowledgement", "A14, 9.7.5.1")
            .post_send(1, 3000)
            .post_write(2, 8)
            .packets([acked(3).xrc()])
            .completes([done(1), done(2)])
            .requests([
                (Opcode::XRC_SEND_FIRST, 0),
                (Opcode::XRC_SEND_MIDDLE, 1),
                (Opcode::XRC_SEND_LAST, 2),
                (Opcode::XRC_WRITE_ONLY, 3),
            ]),
        ini("XRC READ data of two packets", "A14, 9.7.5.1.4")
            .post_read(1, 1100)
            .packets([
                response(Opcode::XRC_READ_RESPONSE_FIRST, 0, 1024),
                response(Opcode::XRC_READ_RESPONSE_LAST, 1, 76),
            ])
            .wrote(LOCAL, 1024)
            .wrote(LOCAL + 1024, 76)
            .completes([done(1)]),
        ini("RC READ data to an initiator", "9.6.1")
            .post_read(1, 8)
            .packets([response(Opcode::RC_READ_RESPONSE_ONLY, 0, 8)])
            .drops(DropReason::WrongService),
        ini("an XRC atomic's answer", "A14, 9.7.5.1.4")
            .post_fetch_add(1)
            .packets([atomic_response(0, 7).xrc()])
            .word(LOCAL, 7)
            .completes([done(1)]),
        ini("an XRC answer to an ATOMIC WRITE", "A14, A19")
            .post_atomic_write(1)
            .packets([response(Opcode::XRC_READ_RESPONSE_ONLY, 0, 0)])
            .completes([done(1)]),
        ini("XRC READ data one byte short", "A14, 9.7.5.1.4")
            .post_read(1, 100)
            .packets([response(Opcode::XRC_READ_RESPONSE_ONLY, 0, 99)])
            .completes([failed(1, Status::BadResponse)])
            .state(QpState::Err),
        ini("an XRC acknowledgement of what was never sent", "A14, 9.7.5.2")
            .post_write(1, 8)
            .packets([acked(1).xrc()])
            .drops(DropReason::GhostAck),
        ini("an XRC acknowledgement twice", "A14, 9.7.5.2 (duplicate responses)")
            .post_write(1, 8)
            .packets([acked(0).xrc(), acked(0).xrc()])
            .completes([done(1)])
            .drops(DropReason::StaleResponse),
        ini("an XRC sequence NAK", "A14, 9.7.5.2.8")
            .post_write(1, 8)
            .packets([naked(0, NakCode::PsnSequenceError).xrc(), acked(0).xrc()])
            .completes([done(1)])
            .requests([(Opcode::XRC_WRITE_ONLY, 0), (Opcode::XRC_WRITE_ONLY, 0)])
            .retries([RetryCause::SequenceNak]),
        ini("a shared queue of the peer that is empty, and no patience", "A14, 9.7.5.2.8")
            .given(Given { rnr_retry: 0, ..initiator() })
            .post_send(1, 8)
            .packets([rnr(0, 1).xrc()])
            .completes([failed(1, Status::RnrRetryExceeded)])
            .state(QpState::Err),
        refused(
            "the peer has no such shared queue",
            NakCode::RemoteOperationalError,
            Status::RemoteOperation,
        ),
        refused("the peer refuses an XRC WRITE", NakCode::RemoteAccessError, Status::RemoteAccess),
        refused(
            "an XRC request makes no sense to the peer",
            NakCode::InvalidRequest,
            Status::RemoteInvalidRequest,
        ),
    ]
}
