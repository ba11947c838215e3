//! Messages that find no receive, a receive that is too small, or a receive of a shared queue.
//! IBTA 9.7.4.1 (resources), 9.7.5.2.8, 10.2.9.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let rnr = "9.7.4.1 (resources), 9.7.5.2.8";
    let only = |psn, len| send(Opcode::RC_SEND_ONLY, psn, len).ask();
    let imm = |psn, len| rdma(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, psn, len, 0, len).ask();
    vec![
        case("a SEND without a receive", rnr).packets([only(0, 8)]).answers([Answer::Rnr(0)]),
        case("a SEND FIRST without a receive", rnr)
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024)])
            .answers([Answer::Rnr(0)]),
        case("a WRITE with immediate without a receive writes nothing", rnr)
            .packets([imm(0, 8)])
            .answers([Answer::Rnr(0)]),
        case("a WRITE with immediate of nothing without a receive", rnr)
            .packets([imm(0, 0)])
            .answers([Answer::Rnr(0)]),
        case("a SEND of nothing without a receive", rnr)
            .packets([only(0, 0)])
            .answers([Answer::Rnr(0)]),
        case("a plain WRITE needs no receive", rnr)
            .packets([write(0, 0, 8).ask()])
            .acks(0)
            .wrote(0, 8)
            .next(1),
        case("a READ needs no receive", rnr)
            .packets([read(0, 0, 8)])
            .answers([Answer::Read(Position::Only, 0, 8)])
            .next(1),
        case("the end of a WRITE with immediate without a receive, then with one", rnr)
            .packets([
                rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 1032),
                send(Opcode::RC_WRITE_LAST_WITH_IMMEDIATE, 1, 8).ask(),
            ])
            .receive(1, 0)
            .packets([send(Opcode::RC_WRITE_LAST_WITH_IMMEDIATE, 1, 8).ask()])
            .answers([Answer::Rnr(1), Answer::Ack(1)])
            .completes([got_write(1, 1032)])
            .wrote(0, 1024)
            .wrote(1024, 8)
            .next(2),
        case("what follows a \"receiver not ready\" is dropped", rnr)
            .packets([only(0, 8), only(1, 8), only(2, 8)])
            .answers([Answer::Rnr(0)])
            .drops_n(DropReason::GapAlreadyReported, 2)
            .kernel("Answers the next packet with a sequence NAK as well."),
        case("a SEND again once there is a receive", rnr)
            .packets([only(0, 8)])
            .receive(1, 100)
            .packets([only(0, 8)])
            .answers([Answer::Rnr(0), Answer::Ack(0)])
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("a SEND again while there is still no receive", rnr)
            .packets([only(0, 8), only(0, 8)])
            .answers([Answer::Rnr(0), Answer::Rnr(0)]),
        case("another request at the PSN of a \"receiver not ready\"", rnr)
            .packets([only(0, 8), write(0, 0, 8).ask()])
            .answers([Answer::Rnr(0), Answer::Ack(0)])
            .wrote(0, 8)
            .next(1),
        case("a wrong key does not matter before there is a receive", "9.7.4.1 (order of checks)")
            .packets([imm(0, 8).rkey(UNKNOWN, "unknown")])
            .answers([Answer::Rnr(0)]),
        case("a wrong opcode matters before there is a receive", "9.7.4.1 (order of checks)")
            .packets([bare(Opcode::RC_SEND_LAST, 0, 8)])
            .dies(NakCode::InvalidRequest, 0),
        case("a SEND one byte longer than its receive", "9.7.4.1 (length), 9.9.3")
            .given(rc().receive(1, 7).receive(2, 100))
            .packets([only(0, 8)])
            .dies(NakCode::InvalidRequest, 0)
            .completes([failed(1, Status::LocalLength), flushed(2)])
            .kernel("The receive completes with a remote invalid request error."),
        case("a SEND that outgrows its receive in the second packet", "9.7.4.1 (length), 9.9.3")
            .given(rc().receive(1, 1025))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024), bare(Opcode::RC_SEND_LAST, 1, 2)])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(recv_at(1), 1024)
            .completes([failed(1, Status::LocalLength)])
            .kernel("The receive completes with a remote invalid request error."),
        case("a SEND exactly as long as its receive", "9.7.4.1 (length)")
            .given(rc().receive(1, 8))
            .packets([only(0, 8)])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("a WRITE with immediate is not bound by the receive's size", "9.4.3")
            .given(rc().receive(1, 0))
            .packets([imm(0, 8)])
            .acks(0)
            .completes([got_write(1, 8)])
            .wrote(0, 8)
            .next(1),
        case("a refused WRITE with immediate gives the receive back", rnr)
            .given(rc().receive(1, 100))
            .packets([imm(0, 8).rkey(UNKNOWN, "unknown")])
            .dies(NakCode::RemoteAccessError, 0)
            .completes([flushed(1)])
            .note("The request is at fault, not the receive, so it is flushed like the others.")
            .kernel("The receive completes with a remote access error."),
        case("a receive whose buffer is not registered", "9.9.3 (local protection), 9.7.5.2.8")
            .receive_into(1, 100, UNKNOWN, "an unknown region")
            .packets([only(0, 8)])
            .dies(NakCode::RemoteOperationalError, 0)
            .completes([failed(1, Status::LocalProtection)])
            .kernel("The receive completes with a local QP operation error."),
        case("a receive whose buffer is of another protection domain", "10.2.3")
            .receive_into(1, 100, OTHER_PD, "a region of another PD")
            .packets([only(0, 8)])
            .dies(NakCode::RemoteOperationalError, 0)
            .completes([failed(1, Status::LocalProtection)])
            .kernel("The receive completes with a local QP operation error."),
        case("a receive whose buffer went away meanwhile", "10.6")
            .receive_into(1, 100, LOCAL_ONLY, "a local region")
            .deregister(LOCAL_ONLY, "that region")
            .packets([only(0, 8)])
            .dies(NakCode::RemoteOperationalError, 0)
            .completes([failed(1, Status::LocalProtection)])
            .kernel("The receive completes with a local QP operation error."),
        case(
            "a SEND of nothing into a receive that is not registered",
            "9.7.4.1 (local operation)",
        )
        .receive_into(1, 100, UNKNOWN, "an unknown region")
        .packets([only(0, 0)])
        .acks(0)
        .completes([got(1, 0)])
        .next(1)
        .note("no byte of the buffer is touched"),
        case("a shared queue without a receive", "10.2.9, 9.7.5.2.8")
            .given(rc().srq(0))
            .packets([only(0, 8)])
            .answers([Answer::Rnr(0)]),
        case("a shared queue falls below its limit", "10.2.9")
            .given(rc().srq(2).receive(1, 100).receive(2, 100).receive(3, 100))
            .packets([only(0, 8), only(1, 8)])
            .acks(0)
            .acks(1)
            .completes([got(1, 8), got(2, 8)])
            .events([Async::SrqLimit])
            .wrote(recv_at(1), 8)
            .wrote(recv_at(2), 8)
            .next(2),
        case("a shared queue tells its limit once", "10.2.9")
            .given(rc().srq(2).receive(1, 100).receive(2, 100))
            .packets([only(0, 8), only(1, 8), only(2, 8)])
            .answers([Answer::Ack(0), Answer::Ack(1), Answer::Rnr(2)])
            .completes([got(1, 8), got(2, 8)])
            .events([Async::SrqLimit])
            .wrote(recv_at(1), 8)
            .wrote(recv_at(2), 8)
            .next(2),
        case("a QP with a shared queue dies and leaves the rest of it", "10.2.9, 10.3.1")
            .given(rc().srq(0).receive(1, 5000).receive(2, 100))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024), write(1, 0, 8)])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(recv_at(1), 1024)
            .completes([failed(1, Status::RemoteInvalidRequest)])
            .events([Async::LastWqe]),
        case("a shared queue's receives are of its own protection domain", "10.2.9")
            .given(rc().srq_of_other_pd())
            .receive_into(1, 100, OTHER_PD, "a region of the SRQ's PD")
            .packets([only(0, 8)])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1)
            .kernel("Looks the buffer up in the QP's protection domain."),
        case("a shared queue's receive into the QP's protection domain", "10.2.9")
            .given(rc().srq_of_other_pd())
            .receive_into(1, 100, ALL, "a region of the QP's PD")
            .packets([only(0, 8)])
            .dies(NakCode::RemoteOperationalError, 0)
            .completes([failed(1, Status::LocalProtection)])
            .events([Async::LastWqe])
            .kernel("Looks the buffer up in the QP's protection domain."),
        case("completions that find no room", "11.6.3 (CQ error)")
            .given(rc().cq_depth(1).receive(1, 100).receive(2, 100))
            .packets([only(0, 8), only(1, 8)])
            .acks(0)
            .acks(1)
            .completes([got(1, 8)])
            .events([Async::CqOverflow])
            .wrote(recv_at(1), 8)
            .wrote(recv_at(2), 8)
            .state(QpState::Err)
            .note("the message is in memory and acknowledged; only its completion is lost")
            .kernel("Does not acknowledge the message."),
    ]
}
