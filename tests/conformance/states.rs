//! Requests and responses in every state of a QP. IBTA 10.3.1, 9.6.1.

use std::time::Duration;

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let rule = "10.3.1, 9.6.1";
    let w = || write(0, 0, 8).ask();
    let in_state = |state| rc().state(state);
    vec![
        case("a request in RESET", rule)
            .given(in_state(QpState::Reset))
            .packets([w()])
            .drops(DropReason::WrongQpState),
        case("a request in INIT", rule)
            .given(in_state(QpState::Init))
            .packets([w()])
            .drops(DropReason::WrongQpState),
        case("a request in RTR", rule)
            .given(in_state(QpState::Rtr))
            .packets([w()])
            .acks(0)
            .wrote(0, 8)
            .events([Async::Established])
            .next(1),
        case("a request in SQD", rule)
            .given(in_state(QpState::Sqd))
            .packets([w()])
            .acks(0)
            .wrote(0, 8)
            .next(1),
        case("a request in ERR", rule)
            .given(in_state(QpState::Err))
            .packets([w()])
            .drops(DropReason::WrongQpState),
        case("a READ request in ERR", rule)
            .given(in_state(QpState::Err))
            .packets([read(0, 0, 100)])
            .drops(DropReason::WrongQpState),
        case("an acknowledgement in RESET", rule)
            .given(in_state(QpState::Reset))
            .packets([acked(0)])
            .drops(DropReason::WrongQpState),
        case("an acknowledgement in INIT", rule)
            .given(in_state(QpState::Init))
            .packets([acked(0)])
            .drops(DropReason::WrongQpState),
        case("an acknowledgement in RTR", rule)
            .given(in_state(QpState::Rtr))
            .packets([acked(0)])
            .drops(DropReason::WrongQpState),
        case("an acknowledgement in ERR", rule)
            .given(in_state(QpState::Err))
            .packets([acked(0), naked(0, NakCode::InvalidRequest)])
            .drops_n(DropReason::WrongQpState, 2),
        case("an acknowledgement in SQD for what was sent before", "10.3.1")
            .post_write(1, 8)
            .modify(QpState::Sqd)
            .packets([acked(0)])
            .completes([done(1)])
            .state(QpState::Sqd),
        case("READ data in SQD", "10.3.1")
            .post_read(1, 100)
            .modify(QpState::Sqd)
            .packets([response(Opcode::RC_READ_RESPONSE_ONLY, 0, 100)])
            .wrote(world::LOCAL, 100)
            .completes([done(1)])
            .state(QpState::Sqd),
        case("a gap in RTR", "9.7.4.1 (PSN)")
            .given(in_state(QpState::Rtr))
            .packets([write(1, 0, 8).ask()])
            .naks(NakCode::PsnSequenceError, 0)
            .events([Async::Established]),
        case("a fatal fault in RTR", "9.9.3, 10.3.1")
            .given(in_state(QpState::Rtr).receive(1, 100))
            .packets([bare(Opcode::RC_SEND_LAST, 0, 8)])
            .dies(NakCode::InvalidRequest, 0)
            .events([Async::Established])
            .completes([flushed(1)]),
        case("a damaged packet in RTR establishes nothing", "10.3.1")
            .given(in_state(QpState::Rtr))
            .packets([write(0, 0, 8).damage(usize::MAX, "ICRC")])
            .drops(DropReason::IcrcMismatch),
        case("a NAK in SQD", "10.3.1")
            .post_write(1, 8)
            .modify(QpState::Sqd)
            .packets([naked(0, NakCode::RemoteAccessError)])
            .completes([failed(1, Status::RemoteAccess)])
            .state(QpState::Err),
        case("a NAKed sequence in SQD is sent again", "10.3.1")
            .post_write(1, 8)
            .modify(QpState::Sqd)
            .packets([naked(0, NakCode::PsnSequenceError), acked(0)])
            .retries([RetryCause::SequenceNak])
            .completes([done(1)])
            .state(QpState::Sqd),
        case("a request to a QP that has gone to ERR flushes nothing twice", "10.3.1")
            .given(rc().receive(1, 100))
            .modify(QpState::Err)
            .packets([send(Opcode::RC_SEND_ONLY, 0, 8)])
            .drops(DropReason::WrongQpState)
            .completes([flushed(1)])
            .state(QpState::Err),
        case("an acknowledgement after ERR does not complete what was flushed", "10.3.1")
            .post_write(1, 8)
            .modify(QpState::Err)
            .packets([acked(0)])
            .drops(DropReason::WrongQpState)
            .completes([flushed(1)])
            .state(QpState::Err),
        case("an acknowledgement after RESET finds nothing", "10.3.1")
            .post_write(1, 8)
            .modify(QpState::Reset)
            .packets([acked(0)])
            .drops(DropReason::WrongQpState)
            .state(QpState::Reset),
        case("a request to a QP that was destroyed", "11.2.5.4")
            .given(rc().receive(1, 100))
            .post_write(2, 8)
            .destroy()
            .packets([w(), acked(0)])
            .drops_n(DropReason::UnknownQp, 2)
            .wait(Duration::from_secs(10)),
        case("half a message, then ERR", "10.3.1")
            .given(rc().receive(1, 5000))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024)])
            .modify(QpState::Err)
            .packets([send(Opcode::RC_SEND_LAST, 1, 100)])
            .drops(DropReason::WrongQpState)
            .wrote(recv_at(1), 1024)
            .completes([flushed(1)])
            .state(QpState::Err),
        case("half a message, then RESET", "10.3.1")
            .given(rc().receive(1, 5000))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024)])
            .modify(QpState::Reset)
            .packets([send(Opcode::RC_SEND_LAST, 1, 100)])
            .drops(DropReason::WrongQpState)
            .wrote(recv_at(1), 1024)
            .state(QpState::Reset),
        case("a UC request in INIT", rule)
            .given(uc().state(QpState::Init))
            .packets([rdma(Opcode::UC_WRITE_ONLY, 0, 8, 0, 8)])
            .drops(DropReason::WrongQpState),
        case("a UC request in ERR", rule)
            .given(uc().state(QpState::Err))
            .packets([rdma(Opcode::UC_WRITE_ONLY, 0, 8, 0, 8)])
            .drops(DropReason::WrongQpState),
        case("a UC request in RTR", rule)
            .given(uc().state(QpState::Rtr))
            .packets([rdma(Opcode::UC_WRITE_ONLY, 0, 8, 0, 8)])
            .wrote(0, 8)
            .events([Async::Established]),
        case("a datagram in INIT", rule)
            .given(ud().state(QpState::Init).receive(1, 100))
            .packets([datagram(8)])
            .drops(DropReason::WrongQpState),
        case("a datagram in ERR", rule)
            .given(ud().state(QpState::Err))
            .packets([datagram(8)])
            .drops(DropReason::WrongQpState),
        case("a datagram in SQD", rule)
            .given(ud().state(QpState::Sqd).receive(1, 100))
            .packets([datagram(8)])
            .completes([got(1, 48)])
            .datagram_in(1, 8),
    ]
}
