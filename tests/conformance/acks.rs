//! Acknowledgements that a requester receives late, early, twice, for requests that were never
//! sent, and with every syndrome. IBTA 9.7.5.2, 9.9.2.

use std::time::Duration;

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let ack = "9.7.5.1, 9.7.5.2";
    let ghost = "9.7.5.2 (ghost acknowledgements)";
    let seq = "9.7.5.2.8 (PSN sequence error)";
    let rnr_rule = "9.7.5.2.8 (RNR NAK)";
    let nak = "9.7.5.2.8, 9.9.2";
    let w = Opcode::RC_WRITE_ONLY;
    let fatal = |name, code, status| {
        case(name, nak)
            .given(rc().receive(9, 100))
            .post_write(1, 8)
            .post_write(2, 8)
            .packets([naked(0, code)])
            .completes([failed(1, status), flushed(2), flushed(9)])
            .state(QpState::Err)
    };
    let credit = |name, credits| {
        case(name, "9.7.7.2 (credits)")
            .post_write(1, 8)
            .packets([syndrome(0, Syndrome::Ack { credits })])
            .post_write(2, 8)
            .packets([syndrome(1, Syndrome::Ack { credits })])
            .completes([done(1), done(2)])
            .requests([(w, 0), (w, 1)])
    };
    let reserved = |name, byte| {
        case(name, "9.7.5.2 (reserved)")
            .post_write(1, 8)
            .packets([syndrome(0, Syndrome::from_byte(byte))])
            .drops(DropReason::ReservedSyndrome)
    };
    let timer = |name, code, wait, again: bool| {
        let case =
            case(name, "9.7.5.2.8, table 45").post_write(1, 8).packets([rnr(0, code)]).wait(wait);
        if again {
            case.requests([(w, 0), (w, 0)]).retries([RetryCause::ReceiverNotReady])
        } else {
            case.requests([(w, 0)])
        }
    };
    vec![
        case("an acknowledgement completes what it acknowledges", ack)
            .post_write(1, 8)
            .packets([acked(0)])
            .completes([done(1)]),
        case("an acknowledgement completes everything before it", ack)
            .post_write(1, 8)
            .post_send(2, 8)
            .post_write(3, 8)
            .packets([acked(2)])
            .completes([done(1), done(2), done(3)]),
        case("an acknowledgement completes nothing behind it", ack)
            .post_write(1, 8)
            .post_write(2, 8)
            .packets([acked(0)])
            .completes([done(1)]),
        case("an acknowledgement inside a message completes nothing", ack)
            .post_write(1, 3000)
            .packets([acked(0), acked(1)]),
        case("an acknowledgement twice", "9.7.5.2 (duplicate responses)")
            .post_write(1, 8)
            .packets([acked(0), acked(0)])
            .completes([done(1)])
            .drops(DropReason::StaleResponse),
        case("acknowledgements out of order", ack)
            .post_write(1, 8)
            .post_write(2, 8)
            .packets([acked(1), acked(0)])
            .completes([done(1), done(2)])
            .drops(DropReason::StaleResponse),
        case("an acknowledgement though nothing was ever sent", ghost)
            .packets([acked(0)])
            .drops(DropReason::GhostAck),
        case("an acknowledgement of the PSN before the first", ghost)
            .packets([acked(-1)])
            .drops(DropReason::StaleResponse),
        case("an acknowledgement of the next PSN, not yet sent", ghost)
            .post_write(1, 8)
            .packets([acked(1)])
            .drops(DropReason::GhostAck)
            .kernel(
                "Completes every request whose last PSN lies before it, sent or not acknowledged.",
            ),
        case("an acknowledgement of a far future", ghost)
            .post_write(1, 8)
            .packets([acked(1000), acked(0x7f_ffff)])
            .drops_n(DropReason::GhostAck, 2)
            .kernel(
                "Completes every request whose last PSN lies before it, sent or not acknowledged.",
            ),
        case("an acknowledgement half the circle away", "9.7.1")
            .post_write(1, 8)
            .packets([acked(-0x80_0000)])
            .drops(DropReason::GhostAck),
        case("an acknowledgement of what was sent before going back", ack)
            .post_write(1, 8)
            .post_write(2, 8)
            .post_write(3, 8)
            .burst([naked(0, NakCode::PsnSequenceError), acked(2)])
            .retries([RetryCause::SequenceNak])
            .completes([done(1), done(2), done(3)])
            .requests([(w, 0), (w, 1), (w, 2)])
            .note("it counts: the packets did arrive, and are not sent again"),
        case("any MSN is accepted", "9.7.7.1")
            .post_write(1, 8)
            .packets([acked(0).msn(0xff_ffff)])
            .completes([done(1)]),
        case("an acknowledgement with reserved bits, SE and AckReq set", "9.2")
            .post_write(1, 8)
            .packets([acked(0).ask().solicited().bits(4, 0x3f, 0x3f, "resv6 ones").bits(
                8,
                0x7f,
                0x7f,
                "resv7 ones",
            )])
            .completes([done(1)]),
        credit("credits 0", 0),
        credit("credits 1", 1),
        credit("credits 0x1e", 0x1e),
        reserved("a reserved syndrome, 0x40", 0x40).kernel("Completes the request, with success."),
        reserved("a reserved syndrome, 0x5f", 0x5f),
        reserved("a reserved syndrome, 0x80", 0x80),
        reserved("a reserved NAK code, 5", 0x65)
            .kernel("Ends the request with a remote operation error."),
        reserved("a reserved NAK code, 31", 0x7f)
            .kernel("Ends the request with a remote operation error."),
        fatal("NAK invalid request", NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        fatal("NAK remote access error", NakCode::RemoteAccessError, Status::RemoteAccess),
        fatal(
            "NAK remote operational error",
            NakCode::RemoteOperationalError,
            Status::RemoteOperation,
        ),
        fatal(
            "NAK invalid RD request on an RC QP",
            NakCode::InvalidRdRequest,
            Status::RemoteInvalidRequest,
        )
        .kernel("Ends the request with a remote operation error."),
        case("a fatal NAK acknowledges what is before it", nak)
            .post_write(1, 8)
            .post_write(2, 8)
            .post_write(3, 8)
            .packets([naked(1, NakCode::RemoteAccessError)])
            .completes([done(1), failed(2, Status::RemoteAccess), flushed(3)])
            .state(QpState::Err),
        case("a fatal NAK inside a message", nak)
            .post_write(1, 3000)
            .packets([naked(1, NakCode::RemoteAccessError)])
            .completes([failed(1, Status::RemoteAccess)])
            .state(QpState::Err),
        case("a fatal NAK of the next PSN, not yet sent", ghost)
            .post_write(1, 8)
            .packets([naked(1, NakCode::RemoteAccessError)])
            .drops(DropReason::GhostAck)
            .kernel("Completes what is before it."),
        case("a fatal NAK of what was acknowledged", "9.7.5.2 (duplicate responses)")
            .post_write(1, 8)
            .packets([acked(0), naked(0, NakCode::InvalidRequest)])
            .completes([done(1)])
            .drops(DropReason::StaleResponse),
        case("a fatal NAK though nothing was ever sent", ghost)
            .packets([naked(0, NakCode::InvalidRequest)])
            .drops(DropReason::GhostAck),
        case("a second fatal NAK", nak)
            .post_write(1, 8)
            .packets([naked(0, NakCode::InvalidRequest), naked(0, NakCode::InvalidRequest)])
            .completes([failed(1, Status::RemoteInvalidRequest)])
            .drops(DropReason::WrongQpState)
            .state(QpState::Err),
        case("a sequence NAK: everything from there again", seq)
            .post_write(1, 8)
            .post_write(2, 8)
            .packets([naked(0, NakCode::PsnSequenceError)])
            .requests([(w, 0), (w, 1), (w, 0), (w, 1)])
            .retries([RetryCause::SequenceNak]),
        case("a sequence NAK acknowledges what is before it", seq)
            .post_write(1, 8)
            .post_write(2, 8)
            .post_write(3, 8)
            .packets([naked(1, NakCode::PsnSequenceError)])
            .completes([done(1)])
            .requests([(w, 0), (w, 1), (w, 2), (w, 1), (w, 2)])
            .retries([RetryCause::SequenceNak]),
        case("a sequence NAK inside a message: the rest of it again", seq)
            .post_write(1, 3000)
            .packets([naked(1, NakCode::PsnSequenceError)])
            .requests([
                (Opcode::RC_WRITE_FIRST, 0),
                (Opcode::RC_WRITE_MIDDLE, 1),
                (Opcode::RC_WRITE_LAST, 2),
                (Opcode::RC_WRITE_MIDDLE, 1),
                (Opcode::RC_WRITE_LAST, 2),
            ])
            .retries([RetryCause::SequenceNak]),
        case("a sequence NAK of the next PSN, not yet sent", ghost)
            .post_write(1, 8)
            .packets([naked(1, NakCode::PsnSequenceError)])
            .requests([(w, 0)])
            .drops(DropReason::GhostAck),
        case("a sequence NAK of what was acknowledged", "9.7.5.2 (duplicate responses)")
            .post_write(1, 8)
            .post_write(2, 8)
            .packets([acked(0), naked(0, NakCode::PsnSequenceError)])
            .completes([done(1)])
            .requests([(w, 0), (w, 1)])
            .drops(DropReason::StaleResponse),
        case("many sequence NAKs at once are one", seq)
            .given(rc().retry_cnt(1))
            .post_write(1, 8)
            .flood(50, naked(0, NakCode::PsnSequenceError))
            .requests([(w, 0), (w, 0)])
            .retries([RetryCause::SequenceNak]),
        case("sequence NAKs one after the other use up the retries", "9.9.2 (retry counter)")
            .given(rc().retry_cnt(2))
            .post_write(1, 8)
            .packets([naked(0, NakCode::PsnSequenceError), naked(0, NakCode::PsnSequenceError)])
            // The requester pauses before it retries for the second time.
            .wait(Duration::from_millis(1))
            .packets([naked(0, NakCode::PsnSequenceError)])
            .completes([failed(1, Status::RetryExceeded)])
            .retries([RetryCause::SequenceNak, RetryCause::SequenceNak])
            .state(QpState::Err),
        case("a sequence NAK while it waits to send again", "9.9.2 (retry counter)")
            .given(rc().retry_cnt(2))
            .post_write(1, 8)
            .packets([
                naked(0, NakCode::PsnSequenceError),
                naked(0, NakCode::PsnSequenceError),
                naked(0, NakCode::PsnSequenceError),
                acked(0),
            ])
            .completes([done(1)])
            .retries([RetryCause::SequenceNak, RetryCause::SequenceNak]),
        case("a sequence NAK where no retry is allowed", "9.9.2 (retry counter)")
            .given(rc().retry_cnt(0))
            .post_write(1, 8)
            .packets([naked(0, NakCode::PsnSequenceError)])
            .completes([failed(1, Status::RetryExceeded)])
            .state(QpState::Err),
        case("progress renews the retries", "9.9.2 (retry counter)")
            .given(rc().retry_cnt(1))
            .post_write(1, 8)
            .post_write(2, 8)
            .packets([
                naked(0, NakCode::PsnSequenceError),
                acked(0),
                naked(1, NakCode::PsnSequenceError),
                acked(1),
            ])
            .completes([done(1), done(2)])
            .retries([RetryCause::SequenceNak, RetryCause::SequenceNak]),
        case("no answer at all", "9.9.2 (retry counter)")
            .given(rc().retry_cnt(3))
            .post_write(1, 8)
            .wait(Duration::from_secs(10))
            .requests([(w, 0); 4])
            .completes([failed(1, Status::RetryExceeded)])
            .retries([RetryCause::Timeout; 3])
            .state(QpState::Err),
        case("an answer after the retries are used up", "9.9.2 (retry counter)")
            .given(rc().retry_cnt(0))
            .post_write(1, 8)
            .wait(Duration::from_secs(10))
            .packets([acked(0)])
            .completes([failed(1, Status::RetryExceeded)])
            .drops(DropReason::WrongQpState)
            .state(QpState::Err),
        timer("RNR timer 1 is over after 10 µs", 1, Duration::from_micros(10), true),
        timer("RNR timer 31 is not over after 491 ms", 31, Duration::from_millis(491), false),
        timer("RNR timer 31 is over after 492 ms", 31, Duration::from_millis(492), true),
        timer("RNR timer 0 is not over after 655 ms", 0, Duration::from_millis(655), false),
        timer("RNR timer 0 is over after 656 ms", 0, Duration::from_millis(656), true),
        case("while waiting for a receiver nothing is sent", rnr_rule)
            .post_send(1, 8)
            .packets([rnr(0, 31)])
            .post_send(2, 8)
            .wait(Duration::from_millis(400))
            .requests([(Opcode::RC_SEND_ONLY, 0)]),
        case("an RNR NAK acknowledges what is before it", rnr_rule)
            .post_send(1, 8)
            .post_send(2, 8)
            .packets([rnr(1, 31)])
            .completes([done(1)]),
        case("an RNR NAK of the next PSN, not yet sent", ghost)
            .post_send(1, 8)
            .packets([rnr(1, 1)])
            .drops(DropReason::GhostAck),
        case("an RNR NAK of what was acknowledged", "9.7.5.2 (duplicate responses)")
            .post_send(1, 8)
            .packets([acked(0), rnr(0, 1)])
            .completes([done(1)])
            .drops(DropReason::StaleResponse),
        case("many RNR NAKs at once are one", rnr_rule)
            .given(rc().rnr_retry(1))
            .post_send(1, 8)
            .flood(50, rnr(0, 1))
            .wait(Duration::from_micros(10))
            .requests([(Opcode::RC_SEND_ONLY, 0), (Opcode::RC_SEND_ONLY, 0)])
            .retries([RetryCause::ReceiverNotReady]),
        case("RNR NAKs use up the RNR retries", rnr_rule)
            .given(rc().rnr_retry(1))
            .post_send(1, 8)
            .post_send(2, 8)
            .packets([rnr(0, 1)])
            .wait(Duration::from_micros(10))
            .packets([rnr(0, 1)])
            .completes([failed(1, Status::RnrRetryExceeded), flushed(2)])
            .retries([RetryCause::ReceiverNotReady])
            .state(QpState::Err),
        case("an RNR NAK where no RNR retry is allowed", rnr_rule)
            .given(rc().rnr_retry(0))
            .post_send(1, 8)
            .packets([rnr(0, 1)])
            .completes([failed(1, Status::RnrRetryExceeded)])
            .state(QpState::Err),
        case("an RNR NAK does not use up the other retries", rnr_rule)
            .given(rc().retry_cnt(0))
            .post_send(1, 8)
            .packets([rnr(0, 1)])
            .wait(Duration::from_micros(10))
            .packets([acked(0)])
            .completes([done(1)])
            .retries([RetryCause::ReceiverNotReady]),
        case("a sequence NAK while waiting for a receiver", rnr_rule)
            .post_send(1, 8)
            .packets([rnr(0, 31), naked(0, NakCode::PsnSequenceError)])
            .requests([(Opcode::RC_SEND_ONLY, 0)]),
        case("a fatal NAK while waiting for a receiver", rnr_rule)
            .post_send(1, 8)
            .packets([rnr(0, 31), naked(0, NakCode::InvalidRequest)])
            .completes([failed(1, Status::RemoteInvalidRequest)])
            .state(QpState::Err),
        case("an acknowledgement while waiting for a receiver", rnr_rule)
            .post_send(1, 8)
            .packets([rnr(0, 31), acked(0)])
            .completes([done(1)]),
    ]
}
