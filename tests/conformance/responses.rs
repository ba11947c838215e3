//! READ data and atomic results that a requester receives: with a wrong length, of a wrong kind, in
//! a wrong place, twice, or never requested. IBTA 9.7.5.1, 9.7.5.2, 9.9.2.

use crate::dsl::world::LOCAL;
use crate::dsl::*;

const FIRST: Opcode = Opcode::RC_READ_RESPONSE_FIRST;
const MIDDLE: Opcode = Opcode::RC_READ_RESPONSE_MIDDLE;
const LAST: Opcode = Opcode::RC_READ_RESPONSE_LAST;
const ONLY: Opcode = Opcode::RC_READ_RESPONSE_ONLY;
const READ: Opcode = Opcode::RC_READ_REQUEST;

pub(crate) fn cases() -> Vec<Case> {
    let good = "9.7.5.1, 9.7.5.2";
    let bad = "9.9.2 (bad response)";
    let kind = "9.9.2 (unexpected opcode)";
    let implied = "9.7.5.2 (implied NAK)";
    let ghost = "9.7.5.2 (ghost acknowledgements)";
    let dead = |name, len, packet: Pkt| {
        case(name, bad)
            .post_read(1, len)
            .post_write(2, 8)
            .packets([packet])
            .completes([failed(1, Status::BadResponse), flushed(2)])
            .state(QpState::Err)
    };
    let second = |name, len, packet: Pkt| {
        case(name, bad)
            .post_read(1, len)
            .packets([response(FIRST, 0, 1024), packet])
            .wrote(LOCAL, 1024)
            .completes([failed(1, Status::BadResponse)])
            .state(QpState::Err)
    };
    let unexpected = "Ends the request with an error and the QP with it.";
    vec![
        case("READ data of one packet", good)
            .post_read(1, 100)
            .packets([response(ONLY, 0, 100)])
            .wrote(LOCAL, 100)
            .completes([done(1)]),
        case("READ data of three packets", good)
            .post_read(1, 3000)
            .packets([response(FIRST, 0, 1024), response(MIDDLE, 1, 1024), response(LAST, 2, 952)])
            .wrote(LOCAL, 1024)
            .wrote(LOCAL + 1024, 1024)
            .wrote(LOCAL + 2048, 952)
            .completes([done(1)]),
        case("READ data of nothing", good)
            .post_read(1, 0)
            .packets([response(ONLY, 0, 0)])
            .completes([done(1)]),
        case("READ data acknowledges what was sent before", good)
            .post_write(1, 8)
            .post_send(2, 8)
            .post_read(3, 100)
            .packets([response(ONLY, 2, 100)])
            .wrote(LOCAL, 100)
            .completes([done(1), done(2), done(3)]),
        dead("READ data one byte short", 100, response(ONLY, 0, 99))
            .kernel("Leaves the request incomplete."),
        dead("READ data one byte too long", 100, response(ONLY, 0, 101))
            .kernel("Ends with a local QP error when the scatter list is full."),
        dead("READ data where nothing was asked for", 0, response(ONLY, 0, 4)),
        dead("no READ data where some was asked for", 100, response(ONLY, 0, 0)),
        dead("READ data longer than the path MTU", 3000, response(FIRST, 0, 2048)),
        dead("a READ FIRST shorter than the path MTU", 3000, response(FIRST, 0, 512)),
        dead("a READ ONLY of what takes three packets", 3000, response(ONLY, 0, 1024)),
        dead("a READ FIRST of what takes one packet", 1024, response(FIRST, 0, 1024)),
        dead("a READ LAST at the beginning", 3000, response(LAST, 0, 1024)),
        dead("READ data shortened by its pad", 100, response(ONLY, 0, 100).pad(2)),
        second("a READ LAST where more is to come", 3000, response(LAST, 1, 1024)),
        second("a READ MIDDLE at the end", 2048, response(MIDDLE, 1, 1024)),
        second("a READ LAST one byte short", 1100, response(LAST, 1, 75)),
        second("a READ LAST one byte too long", 1100, response(LAST, 1, 77)),
        second("an empty READ LAST", 1100, response(LAST, 1, 0)),
        case("a READ MIDDLE at the beginning", good)
            .post_read(1, 3000)
            .packets([response(MIDDLE, 0, 1024)])
            .wrote(LOCAL, 1024)
            .note(
                "PSN, length and end fit: a late packet of an answer that began earlier looks so",
            ),
        case("a READ FIRST in the middle", good)
            .post_read(1, 3000)
            .packets([response(FIRST, 0, 1024), response(FIRST, 1, 1024), response(LAST, 2, 952)])
            .wrote(LOCAL, 1024)
            .wrote(LOCAL + 1024, 1024)
            .wrote(LOCAL + 2048, 952)
            .completes([done(1)])
            .note("so begins the answer to a READ that was asked for again from there"),
        case("the first packet of READ data is missing", implied)
            .post_read(1, 3000)
            .packets([response(MIDDLE, 1, 1024)])
            .requests([(READ, 0), (READ, 0)])
            .drops(DropReason::ResponseGap)
            .retries([RetryCause::ImpliedNak])
            .kernel("Drops it and waits for the timeout."),
        case("a packet in the middle of READ data is missing", implied)
            .post_read(1, 3000)
            .packets([response(FIRST, 0, 1024), response(LAST, 2, 952)])
            .wrote(LOCAL, 1024)
            .requests([(READ, 0), (READ, 1)])
            .drops(DropReason::ResponseGap)
            .retries([RetryCause::ImpliedNak])
            .kernel("Drops it and waits for the timeout."),
        case("READ data behind a gap counts once", implied)
            .given(rc().retry_cnt(1))
            .post_read(1, 5000)
            .burst([
                response(MIDDLE, 1, 1024),
                response(MIDDLE, 2, 1024),
                response(MIDDLE, 3, 1024),
                response(LAST, 4, 904),
            ])
            .requests([(READ, 0), (READ, 0)])
            .drops_n(DropReason::ResponseGap, 4)
            .retries([RetryCause::ImpliedNak]),
        case("late READ data after asking again", implied)
            .post_read(1, 2000)
            .packets([response(LAST, 1, 976), response(FIRST, 0, 1024), response(LAST, 1, 976)])
            .wrote(LOCAL, 1024)
            .wrote(LOCAL + 1024, 976)
            .completes([done(1)])
            .drops(DropReason::ResponseGap)
            .retries([RetryCause::ImpliedNak]),
        case("READ data twice", "9.7.5.2 (duplicate responses)")
            .post_read(1, 2000)
            .packets([
                response(FIRST, 0, 1024),
                response(FIRST, 0, 1024),
                response(LAST, 1, 976),
                response(LAST, 1, 976),
            ])
            .wrote(LOCAL, 1024)
            .wrote(LOCAL + 1024, 976)
            .completes([done(1)])
            .drops_n(DropReason::StaleResponse, 2),
        case("READ data though nothing was ever asked for", ghost)
            .packets([response(ONLY, 0, 100), response(ONLY, -1, 100)])
            .drops(DropReason::GhostAck)
            .drops(DropReason::StaleResponse),
        case("READ data beyond what was asked for", ghost)
            .post_read(1, 100)
            .packets([response(ONLY, 1, 100)])
            .drops(DropReason::GhostAck),
        case("READ data in answer to a WRITE", kind)
            .post_write(1, 8)
            .packets([response(ONLY, 0, 8)])
            .drops(DropReason::UnexpectedResponse)
            .note("dropped, not fatal: the right answer may still come")
            .kernel(unexpected),
        case("READ data in answer to a SEND", kind)
            .post_send(1, 8)
            .packets([response(FIRST, 0, 1024)])
            .drops(DropReason::UnexpectedResponse)
            .kernel(unexpected),
        case("READ data in answer to an atomic", kind)
            .post_fetch_add(1)
            .packets([response(ONLY, 0, 8)])
            .drops(DropReason::UnexpectedResponse)
            .kernel(unexpected),
        case("an atomic's value in answer to a READ", kind)
            .post_read(1, 8)
            .packets([atomic_response(0, 7)])
            .drops(DropReason::UnexpectedResponse)
            .kernel(unexpected),
        case("an atomic's value in answer to a WRITE", kind)
            .post_write(1, 8)
            .packets([atomic_response(0, 7)])
            .drops(DropReason::UnexpectedResponse)
            .kernel(unexpected),
        case("an acknowledgement in answer to a READ", implied)
            .post_read(1, 100)
            .packets([acked(0)])
            .requests([(READ, 0), (READ, 0)])
            .retries([RetryCause::ImpliedNak])
            .note("it cannot complete a READ; the data is asked for again, once"),
        case("an acknowledgement in answer to an atomic", implied)
            .post_fetch_add(1)
            .packets([acked(0)])
            .requests([(Opcode::RC_FETCH_ADD, 0), (Opcode::RC_FETCH_ADD, 0)])
            .retries([RetryCause::ImpliedNak])
            .note("the responder answers the second from its memory of the first"),
        case("an acknowledgement that skips a READ", implied)
            .post_read(1, 100)
            .post_write(2, 8)
            .packets([acked(1)])
            .requests([
                (READ, 0),
                (Opcode::RC_WRITE_ONLY, 1),
                (READ, 0),
                (Opcode::RC_WRITE_ONLY, 1),
            ])
            .retries([RetryCause::ImpliedNak]),
        case("an acknowledgement that skips the rest of a READ", implied)
            .post_read(1, 2000)
            .post_write(2, 8)
            .packets([response(FIRST, 0, 1024), acked(2)])
            .wrote(LOCAL, 1024)
            .requests([
                (READ, 0),
                (Opcode::RC_WRITE_ONLY, 2),
                (READ, 1),
                (Opcode::RC_WRITE_ONLY, 2),
            ])
            .retries([RetryCause::ImpliedNak]),
        case("READ data with the syndrome of a NAK", "9.7.5.2")
            .post_read(1, 100)
            .packets([response(ONLY, 0, 100).aeth(Syndrome::Nak(NakCode::RemoteAccessError))])
            .drops(DropReason::ReservedSyndrome)
            .note("a NAK has no data and data has no NAK: neither is believed")
            .kernel(unexpected),
        case("READ data with the syndrome of an RNR NAK", "9.7.5.2")
            .post_read(1, 100)
            .packets([response(ONLY, 0, 100).aeth(Syndrome::from_byte(0x2c))])
            .drops(DropReason::ReservedSyndrome)
            .kernel(unexpected),
        case("an atomic's value with the syndrome of a NAK", "9.7.5.2")
            .post_fetch_add(1)
            .packets([atomic_response(0, 7).aeth(Syndrome::Nak(NakCode::InvalidRequest))])
            .drops(DropReason::ReservedSyndrome)
            .kernel(unexpected),
        case("READ data with any credits", "9.7.7.2 (credits)")
            .post_read(1, 100)
            .packets([response(ONLY, 0, 100).aeth(Syndrome::Ack { credits: 0 })])
            .wrote(LOCAL, 100)
            .completes([done(1)]),
        case("a fatal NAK in answer to a READ", "9.7.5.2.8, 9.9.2")
            .post_read(1, 100)
            .packets([naked(0, NakCode::RemoteAccessError)])
            .completes([failed(1, Status::RemoteAccess)])
            .state(QpState::Err),
        case("a fatal NAK in the middle of READ data", "9.7.5.2.8, 9.9.2")
            .post_read(1, 3000)
            .packets([response(FIRST, 0, 1024), naked(1, NakCode::RemoteAccessError)])
            .wrote(LOCAL, 1024)
            .completes([failed(1, Status::RemoteAccess)])
            .state(QpState::Err),
        case("a sequence NAK in answer to a READ", "9.7.5.2.8 (PSN sequence error)")
            .post_read(1, 100)
            .packets([naked(0, NakCode::PsnSequenceError), response(ONLY, 0, 100)])
            .requests([(READ, 0), (READ, 0)])
            .retries([RetryCause::SequenceNak])
            .wrote(LOCAL, 100)
            .completes([done(1)]),
        case("an RNR NAK in answer to a READ", "9.7.5.2.8 (RNR NAK)")
            .post_read(1, 100)
            .packets([rnr(0, 1)])
            .wait(std::time::Duration::from_micros(10))
            .packets([response(ONLY, 0, 100)])
            .requests([(READ, 0), (READ, 0)])
            .retries([RetryCause::ReceiverNotReady])
            .wrote(LOCAL, 100)
            .completes([done(1)]),
        case("READ data while waiting for a receiver", "9.7.5.2, 9.7.5.2.8 (RNR NAK)")
            .post_read(1, 100)
            .packets([rnr(0, 31), response(ONLY, 0, 100)])
            .wrote(LOCAL, 100)
            .completes([done(1)])
            .note("the answer to the first try: it counts"),
        case("READ data for a region that is gone", "9.9.2 (local protection), 10.6")
            .post_read(1, 100)
            .deregister(ALL, "the region")
            .packets([response(ONLY, 0, 100)])
            .completes([failed(1, Status::LocalProtection)])
            .state(QpState::Err),
        case("READ data after the QP went to ERR", "10.3.1")
            .post_read(1, 100)
            .modify(QpState::Err)
            .packets([response(ONLY, 0, 100)])
            .drops(DropReason::WrongQpState)
            .completes([flushed(1)])
            .state(QpState::Err),
        case("an atomic's value", "9.7.5.2")
            .post_fetch_add(1)
            .packets([atomic_response(0, 0x0102_0304_0506_0708)])
            .word(LOCAL, 0x0102_0304_0506_0708)
            .completes([done(1)]),
        case("an atomic's value twice", "9.7.5.2 (duplicate responses)")
            .post_fetch_add(1)
            .packets([atomic_response(0, 7), atomic_response(0, 9)])
            .word(LOCAL, 7)
            .completes([done(1)])
            .drops(DropReason::StaleResponse),
        case("an atomic's value of the one behind", implied)
            .post_fetch_add(1)
            .post_fetch_add(2)
            .packets([atomic_response(1, 9)])
            .drops(DropReason::ResponseGap)
            .retries([RetryCause::ImpliedNak]),
        case("an atomic's value though none was asked for", ghost)
            .packets([atomic_response(0, 7)])
            .drops(DropReason::GhostAck),
        case("an atomic's value for a region that is gone", "9.9.2 (local protection)")
            .post_fetch_add(1)
            .deregister(ALL, "the region")
            .packets([atomic_response(0, 7)])
            .completes([failed(1, Status::LocalProtection)])
            .state(QpState::Err),
    ]
}
