//! Extended reliable connection: requests that name a shared queue of the target's domain. The rest
//! is as for RC. IBTA annex A14. Kernel rxe has no XRC: nothing deviates.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
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
    ]
}
