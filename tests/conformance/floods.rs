//! Floods of one packet: the cost is bounded, and the connection survives.

use std::time::Duration;

use crate::dsl::*;

const MANY: usize = 10_000;

pub(crate) fn cases() -> Vec<Case> {
    let dup = "C9-105";
    let mut unlimited =
        case("a receiver that is not ready twenty times", "9.7.5.2.8 (RNR retry 7)")
            .post_send(1, 8);
    for _ in 0..20 {
        unlimited = unlimited.packets([rnr(0, 1)]).wait(Duration::from_micros(10));
    }
    let unlimited = unlimited
        .packets([acked(0)])
        .completes([done(1)])
        .requests([(Opcode::RC_SEND_ONLY, 0); 21])
        .retries([RetryCause::ReceiverNotReady; 20]);
    let mut limited = case("a receiver that is not ready once too often", "9.7.5.2.8 (RNR retry)")
        .given(rc().rnr_retry(6))
        .post_send(1, 8);
    for _ in 0..6 {
        limited = limited.packets([rnr(0, 1)]).wait(Duration::from_micros(10));
    }
    let limited = limited
        .packets([rnr(0, 1)])
        .completes([failed(1, Status::RnrRetryExceeded)])
        .requests([(Opcode::RC_SEND_ONLY, 0); 7])
        .retries([RetryCause::ReceiverNotReady; 6])
        .state(QpState::Err);
    vec![
        case("a flood of one duplicate WRITE", dup)
            .packets([write(0, 0, 8)])
            .flood(MANY, write(0, 0, 8).ask())
            .acks(0)
            .wrote(0, 8)
            .next(1)
            .note("acknowledged once for all that came together"),
        case("a flood of one duplicate SEND", dup)
            .given(rc().receive(1, 100).receive(2, 100))
            .packets([send(Opcode::RC_SEND_ONLY, 0, 8)])
            .flood(MANY, send(Opcode::RC_SEND_ONLY, 0, 8))
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("a flood of one duplicate READ", dup)
            .packets([read(0, 0, 8)])
            .flood(MANY, read(0, 0, 8))
            .answers([Answer::Read(Position::Only, 0, 8), Answer::Read(Position::Only, 0, 8)])
            .next(1),
        case("a flood of one duplicate atomic", "9.4.5.2")
            .packets([fetch_add(0, 0, 1)])
            .flood(MANY, fetch_add(0, 0, 1))
            .answers([
                Answer::Atomic(0, 0x1111_1111_1111_1111),
                Answer::Atomic(0, 0x1111_1111_1111_1111),
            ])
            .word(0, 0x1111_1111_1111_1112)
            .next(1),
        case("duplicates of every piece of a long READ at once", "C9-105, 9.7.4.1 (resources)")
            .given(rc().mtu(Mtu::M256).max_dest_rd_atomic(2))
            .packets([read(0, 0, 768)])
            .burst((0..3).map(|psn| read(psn, psn as u64 * 256, 256)))
            .answers([
                Answer::Read(Position::First, 0, 256),
                Answer::Read(Position::Middle, 1, 256),
                Answer::Read(Position::Last, 2, 256),
                Answer::Read(Position::Only, 0, 256),
                Answer::Read(Position::Only, 1, 256),
            ])
            .drops(DropReason::NoRoom)
            .next(3)
            .note("answers that wait are bounded by max_dest_rd_atomic, for duplicates too"),
        case("a flood of a retried READ while its answer waits", "C9-105, 9.7.4.1 (resources)")
            .given(rc().max_dest_rd_atomic(1))
            .burst((0..MANY).map(|_| read(0, 0, 2000)))
            .answers([Answer::Read(Position::First, 0, 1024), Answer::Read(Position::Last, 1, 976)])
            .next(2)
            .note("a retry takes the place of the answer that waits"),
        case("a flood behind a gap", "9.7.5.2.8 (PSN sequence error)")
            .flood(MANY, write(1, 0, 8).ask())
            .naks(NakCode::PsnSequenceError, 0)
            .drops_n(DropReason::GapAlreadyReported, MANY as u64 - 1),
        case("a flood of SENDs without a receive", "9.7.5.2.8 (RNR NAK)")
            .flood(MANY, send(Opcode::RC_SEND_ONLY, 0, 8))
            .answers([Answer::Rnr(0)])
            .note("answered once for all that came together"),
        case("a flood of duplicates after a gap does not hide its NAK", dup)
            .packets([write(0, 0, 8)])
            .burst((0..MANY).map(|i| if i == 0 { write(2, 0, 8) } else { write(0, 0, 8) }))
            .naks(NakCode::PsnSequenceError, 1)
            .wrote(0, 8)
            .next(1),
        case("a flood of requests to a QP in ERR", "10.3.1")
            .given(rc().state(QpState::Err))
            .flood(MANY, write(0, 0, 8).ask())
            .drops_n(DropReason::WrongQpState, MANY as u64),
        case("a flood of requests to no QP", "9.6.1")
            .flood(MANY, write(0, 0, 8).dest_qp(0x77))
            .drops_n(DropReason::UnknownQp, MANY as u64),
        case("a flood of damaged packets", "7.8.1, A17.3.3")
            .flood(MANY, write(0, 0, 8).damage(usize::MAX, "ICRC"))
            .drops_n(DropReason::IcrcMismatch, MANY as u64),
        case("a flood of requests from somebody else", "9.6.1; A17.4")
            .flood(MANY, write(0, 0, 8).src("10.0.0.9"))
            .drops_n(DropReason::WrongSource, MANY as u64),
        case("a flood of acknowledgements for what is done", "9.7.5.2 (duplicate responses)")
            .post_write(1, 8)
            .packets([acked(0)])
            .flood(MANY, acked(0))
            .completes([done(1)])
            .drops_n(DropReason::StaleResponse, MANY as u64),
        case("a flood of acknowledgements for what was never sent", "9.7.5.2 (ghost)")
            .post_write(1, 8)
            .flood(MANY, acked(5))
            .drops_n(DropReason::GhostAck, MANY as u64),
        case("a flood of fatal NAKs for what was never sent", "9.7.5.2 (ghost)")
            .post_write(1, 8)
            .flood(MANY, naked(5, NakCode::RemoteAccessError))
            .drops_n(DropReason::GhostAck, MANY as u64),
        case("a flood of acknowledgements that skip a READ", "9.7.5.2 (implied NAK)")
            .given(rc().retry_cnt(1))
            .post_read(1, 100)
            .post_write(2, 8)
            .flood(MANY, acked(1))
            .retries([RetryCause::ImpliedNak]),
        case("acknowledgements that skip a READ, one after the other", "9.7.5.2 (implied NAK)")
            .given(rc().retry_cnt(1))
            .post_read(1, 100)
            .post_write(2, 8)
            .packets([acked(1), acked(1), acked(1), acked(1)])
            .retries([RetryCause::ImpliedNak])
            .note("one retry for one gap: the others wait for the timeout"),
        case("a flood of READ data that was taken", "9.7.5.2 (duplicate responses)")
            .post_read(1, 100)
            .packets([response(Opcode::RC_READ_RESPONSE_ONLY, 0, 100)])
            .flood(MANY, response(Opcode::RC_READ_RESPONSE_ONLY, 0, 100))
            .wrote(world::LOCAL, 100)
            .completes([done(1)])
            .drops_n(DropReason::StaleResponse, MANY as u64),
        case("a flood of READ data that nobody asked for", "9.7.5.2 (ghost)")
            .flood(MANY, response(Opcode::RC_READ_RESPONSE_MIDDLE, 3, 1024))
            .drops_n(DropReason::GhostAck, MANY as u64),
        case("a flood of reserved syndromes", "9.7.5.2 (reserved)")
            .post_write(1, 8)
            .flood(MANY, syndrome(0, Syndrome::from_byte(0xff)))
            .drops_n(DropReason::ReservedSyndrome, MANY as u64),
        unlimited,
        limited,
        case("a congestion notification", "A17.9.3")
            .packets([cnp()])
            .note("never answered; it slows the sender")
            .kernel("Drops it."),
        case("a flood of congestion notifications", "A17.9.3")
            .post_write(1, 8)
            .flood(MANY, cnp())
            .packets([acked(0)])
            .completes([done(1)])
            .note("counts once: sending goes on")
            .kernel("Drops them."),
        case("a congestion notification that is itself marked", "A17.9.3")
            .packets([cnp().marked()])
            .note("a notification is not answered with another"),
        case("a congestion notification from somebody else", "9.6.1; A17.9.3")
            .packets([cnp().src("10.0.0.9")])
            .drops(DropReason::WrongSource),
        case("a congestion notification to a QP in INIT", "9.6.1, A17.9.3")
            .given(rc().state(QpState::Init))
            .packets([cnp()])
            .drops(DropReason::WrongQpState),
        case("a congestion notification to a UD QP", "A17.9.3")
            .given(ud())
            .packets([cnp()])
            .drops(DropReason::WrongService),
        case("a marked request", "A17.9.3")
            .packets([write(0, 0, 8).ask().marked()])
            .answers([Answer::Cnp, Answer::Ack(0)])
            .wrote(0, 8)
            .next(1)
            .kernel("Sends no congestion notifications."),
        case("a flood of marked requests", "A17.9.3")
            .packets([write(0, 0, 8)])
            .flood(MANY, write(0, 0, 8).marked())
            .answers([Answer::Cnp, Answer::Ack(0)])
            .wrote(0, 8)
            .next(1)
            .note("one notification in 50 µs"),
        case("marked requests 50 µs apart", "A17.9.3")
            .packets([write(0, 0, 8).marked()])
            .wait(Duration::from_micros(49))
            .packets([write(1, 0, 8).marked()])
            .wait(Duration::from_micros(1))
            .packets([write(2, 0, 8).marked()])
            .answers([Answer::Cnp, Answer::Cnp])
            .wrote(0, 8)
            .next(3),
        case("a marked request that is not for the QP", "A17.9.3")
            .packets([write(0, 0, 8).marked().damage(usize::MAX, "ICRC")])
            .drops(DropReason::IcrcMismatch),
        case("a marked datagram", "A17.9.3")
            .given(ud().receive(1, 100))
            .packets([datagram(8).marked()])
            .completes([got(1, 48)])
            .datagram_in(1, 8)
            .note("notifications are for connections"),
        case("a congestion notification to a QP that does not exist", "A17.9.3")
            .packets([cnp().dest_qp(0x77)])
            .drops(DropReason::UnknownQp),
        case("a UC flood without a receive", "9.8.2.2")
            .given(uc())
            .flood(MANY, send(Opcode::UC_SEND_ONLY, 0, 8))
            .drops_n(DropReason::ReceiveQueueEmpty, MANY as u64),
        case("a UC flood of messages that never end", "9.8.2.2")
            .given(uc().receive(1, 5000))
            .flood(MANY, send(Opcode::UC_SEND_FIRST, 0, 1024))
            .wrote(recv_at(1), 1024)
            .note("each takes the receive of the one before it"),
        case("a flood of datagrams without a receive", "9.8.3.2")
            .given(ud())
            .flood(MANY, datagram(8))
            .drops_n(DropReason::ReceiveQueueEmpty, MANY as u64),
        case("a flood of datagrams with a wrong Q_Key", "9.6.1 (Q_Key)")
            .given(ud().receive(1, 100))
            .flood(MANY, datagram(8).qkey(0))
            .drops_n(DropReason::WrongQkey, MANY as u64),
    ]
}
