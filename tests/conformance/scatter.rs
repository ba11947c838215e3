//! Messages of several packets into lists of several elements: packet boundaries at and next to
//! element boundaries, and elements that may not be used. IBTA 10.6.6, 9.7.4.1 (local operation),
//! 9.8.2.2, 11.4.1.

use crate::dsl::*;

/// The offsets of the elements of receive 1.
const A: u64 = 0x2_2000;
const B: u64 = 0x2_4000;
const C: u64 = 0x2_6000;

pub(crate) fn cases() -> Vec<Case> {
    let list = "10.6.6 (scatter/gather)";
    let fault = "9.7.4.1 (local operation), 9.9.3";
    let only = |psn, len| send(Opcode::RC_SEND_ONLY, psn, len).ask();
    let first = |psn| send(Opcode::RC_SEND_FIRST, psn, 1024);
    let middle = |psn| bare(Opcode::RC_SEND_MIDDLE, psn, 1024);
    let last = |psn, len| bare(Opcode::RC_SEND_LAST, psn, len).ask();
    let gone = |name, pieces: [Piece; 2]| {
        case(name, fault).scatter(1, pieces).packets([first(0), last(1, 8)])
    };
    let mut all = vec![
        case("a SEND over three elements", list)
            .scatter(1, [piece(A, 3), piece(B, 1), piece(C, 100)])
            .packets([only(0, 10)])
            .acks(0)
            .completes([got(1, 10)])
            .wrote_part(A, 0, 3)
            .wrote_part(B, 3, 4)
            .wrote_part(C, 4, 10)
            .next(1),
        case("a SEND over an element of no bytes", list)
            .scatter(1, [piece(A, 3), piece(B, 0).key(UNKNOWN), piece(C, 100)])
            .packets([only(0, 10)])
            .acks(0)
            .completes([got(1, 10)])
            .wrote_part(A, 0, 3)
            .wrote_part(C, 3, 10)
            .next(1)
            .note("an element of no bytes names no memory: its key is not looked at"),
        case("a SEND of three packets whose boundaries lie inside elements", list)
            .scatter(1, [piece(A, 1000), piece(B, 100), piece(C, 2000)])
            .packets([first(0), middle(1), last(2, 8)])
            .acks(2)
            .completes([got(1, 2056)])
            .wrote_part(A, 0, 1000)
            .wrote_part(B, 1000, 1024)
            .wrote_part(B + 24, 0, 76)
            .wrote_part(C, 76, 1024)
            .wrote_part(C + 948, 0, 8)
            .next(3),
        case("a SEND whose packets end where elements do", list)
            .scatter(1, [piece(A, 1024), piece(B, 8)])
            .packets([first(0), last(1, 8)])
            .acks(1)
            .completes([got(1, 1032)])
            .wrote(A, 1024)
            .wrote(B, 8)
            .next(2),
        case("a SEND one byte longer than its list", "9.7.4.1 (length), 9.9.3")
            .scatter(1, [piece(A, 1024), piece(B, 7)])
            .packets([first(0), last(1, 8)])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(A, 1024)
            .completes([failed(1, Status::LocalLength)])
            .note("nothing of the packet that does not fit is written")
            .kernel("The receive completes with a remote invalid request error."),
        case("a SEND that needs no byte of a bad element", fault)
            .scatter(1, [piece(A, 10), piece(B, 100).key(UNKNOWN)])
            .packets([only(0, 10)])
            .acks(0)
            .completes([got(1, 10)])
            .wrote(A, 10)
            .next(1),
        case("a SEND that needs one byte of a bad element", fault)
            .scatter(1, [piece(A, 9), piece(B, 100).key(UNKNOWN)])
            .packets([only(0, 10)])
            .dies(NakCode::RemoteOperationalError, 0)
            .completes([failed(1, Status::LocalProtection)])
            .note("the elements before the bad one are not written either")
            .kernel("The receive completes with a local QP operation error."),
        gone(
            "a SEND whose second packet needs a bad element",
            [piece(A, 1024), piece(B, 100).key(UNKNOWN)],
        )
        .dies(NakCode::RemoteOperationalError, 1)
        .wrote(A, 1024)
        .completes([failed(1, Status::LocalProtection)])
        .kernel("The receive completes with a local QP operation error."),
        gone(
            "a SEND whose second packet needs an element of another protection domain",
            [piece(A, 1024), piece(B, 100).key(OTHER_PD)],
        )
        .dies(NakCode::RemoteOperationalError, 1)
        .wrote(A, 1024)
        .completes([failed(1, Status::LocalProtection)])
        .kernel("The receive completes with a local QP operation error."),
        case("an element that goes away between two packets", fault)
            .scatter(1, [piece(A, 1000), piece(B, 100).key(LOCAL_ONLY)])
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024)])
            .deregister(LOCAL_ONLY, "that region")
            .packets([last(1, 8)])
            .dies(NakCode::RemoteOperationalError, 1)
            .wrote_part(A, 0, 1000)
            .wrote_part(B, 1000, 1024)
            .completes([failed(1, Status::LocalProtection)])
            .kernel("The receive completes with a local QP operation error."),
        case("an element whose end passes the end of its region", "10.6.3.2")
            .scatter(1, [piece(A, 10), piece(MEMORY - 10, 11)])
            .packets([only(0, 21)])
            .dies(NakCode::RemoteOperationalError, 0)
            .completes([failed(1, Status::LocalProtection)])
            .kernel("The receive completes with a local QP operation error."),
        case("an element whose addresses wrap", "10.6.3.2")
            .scatter(1, [piece(A, 10), piece(u64::MAX - BASE - 4, 100)])
            .packets([only(0, 20)])
            .dies(NakCode::RemoteOperationalError, 0)
            .completes([failed(1, Status::LocalProtection)])
            .kernel("The receive completes with a local QP operation error."),
        case("a gap inside a message of several elements", "9.7.4.1 (PSN)")
            .scatter(1, [piece(A, 1500), piece(B, 3000)])
            .packets([first(0), last(2, 8), middle(1), last(2, 8)])
            .answers([Answer::Nak(NakCode::PsnSequenceError, 1), Answer::Ack(2)])
            .completes([got(1, 2056)])
            .wrote_part(A, 0, 1024)
            .wrote_part(A + 1024, 0, 476)
            .wrote_part(B, 476, 1024)
            .wrote_part(B + 548, 0, 8)
            .next(3),
        case("a packet in the middle of a message again", "9.7.5.1 (duplicates)")
            .scatter(1, [piece(A, 1500), piece(B, 3000)])
            .packets([first(0), middle(1), middle(1), last(2, 8)])
            .answers([Answer::Ack(1), Answer::Ack(2)])
            .completes([got(1, 2056)])
            .wrote_part(A, 0, 1024)
            .wrote_part(A + 1024, 0, 476)
            .wrote_part(B, 476, 1024)
            .wrote_part(B + 548, 0, 8)
            .next(3)
            .note("a duplicate is acknowledged and moves nothing on"),
        case("a SEND from a shared queue over two elements", "10.2.9, 10.6.6")
            .given(rc().srq(0))
            .scatter(1, [piece(A, 1000), piece(B, 3000)])
            .packets([first(0), last(1, 8)])
            .acks(1)
            .completes([got(1, 1032)])
            .wrote_part(A, 0, 1000)
            .wrote_part(B, 1000, 1024)
            .wrote_part(B + 24, 0, 8)
            .next(2),
        case("an XRC SEND over two elements", "A14, 10.6.6")
            .given(xrc())
            .scatter(1, [piece(A, 1000), piece(B, 3000)])
            .packets([first(0).xrc(), last(1, 8).xrc()])
            .acks(1)
            .completes([got(1, 1032)])
            .wrote_part(A, 0, 1000)
            .wrote_part(B, 1000, 1024)
            .wrote_part(B + 24, 0, 8)
            .next(2),
    ];
    all.extend(unreliable());
    all.extend(fetched());
    all
}

/// Returns the cases of receives on unreliable services.
fn unreliable() -> Vec<Case> {
    let first = |psn| send(Opcode::UC_SEND_FIRST, psn, 1024);
    let last = |psn, len| bare(Opcode::UC_SEND_LAST, psn, len);
    vec![
        case("a UC message over two elements that loses its end, and the next", "9.8.2.2")
            .given(uc())
            .scatter(1, [piece(A, 1000), piece(B, 3000)])
            .packets([first(0), send(Opcode::UC_SEND_ONLY, 2, 4)])
            .completes([got(1, 4)])
            .wrote_part(A, 0, 1000)
            .wrote_part(B, 1000, 1024)
            .next(3)
            .note("the receive serves the next message; what the lost one wrote behind it stays"),
        case("a UC message over two elements that loses its middle", "9.8.2.2")
            .given(uc())
            .scatter(1, [piece(A, 1000), piece(B, 3000)])
            .packets([first(0), last(2, 8)])
            .drops(DropReason::MessageBroken)
            .wrote_part(A, 0, 1000)
            .wrote_part(B, 1000, 1024)
            .next(3),
        case("a UC message whose second packet needs a bad element", "9.9.3 (UC)")
            .given(uc())
            .scatter(1, [piece(A, 1024), piece(B, 100).key(UNKNOWN)])
            .packets([first(0), last(1, 8)])
            .drops(DropReason::AccessDenied)
            .wrote(A, 1024)
            .completes([failed(1, Status::LocalProtection)])
            .next(2),
        case("a UC message one byte longer than its list", "9.9.3 (UC)")
            .given(uc())
            .scatter(1, [piece(A, 1024), piece(B, 7)])
            .packets([first(0), last(1, 8)])
            .drops(DropReason::ReceiveTooSmall)
            .wrote(A, 1024)
            .completes([failed(1, Status::LocalLength)])
            .next(2),
        case("a datagram whose header is split over elements", "A17.4.5.2, 10.6.6")
            .given(ud())
            .scatter(1, [piece(A, 30), piece(B, 20), piece(C, 100)])
            .packets([datagram(20)])
            .completes([got(1, 60)])
            .ignored(A, 30)
            .ignored(B, 10)
            .wrote_part(B + 10, 0, 10)
            .wrote_part(C, 10, 20),
        case("a datagram one byte longer than its list", "9.8.3.2")
            .given(ud())
            .scatter(1, [piece(A, 40), piece(B, 19)])
            .packets([datagram(20)])
            .drops(DropReason::ReceiveTooSmall)
            .completes([failed(1, Status::LocalLength)]),
        case("a datagram whose second element is bad", "9.8.3.2, 9.9.3")
            .given(ud())
            .scatter(1, [piece(A, 40), piece(B, 100).key(UNKNOWN)])
            .packets([datagram(20)])
            .drops(DropReason::AccessDenied)
            .completes([failed(1, Status::LocalProtection)])
            .note("the header is not written either"),
    ]
}

/// Returns the cases of READs into lists.
fn fetched() -> Vec<Case> {
    let first = |psn| response(Opcode::RC_READ_RESPONSE_FIRST, psn, 1024);
    let last = |psn, len| response(Opcode::RC_READ_RESPONSE_LAST, psn, len);
    vec![
        case("READ data of two packets into three elements", "10.6.6, 9.7.5.1.4")
            .post_read_into(1, [piece(A, 1000), piece(B, 0).key(UNKNOWN), piece(C, 100)])
            .packets([first(0), last(1, 76)])
            .completes([done(1)])
            .wrote_part(A, 0, 1000)
            .wrote_part(C, 1000, 1024)
            .wrote_part(C + 24, 0, 76),
        case("READ data for an element that went away", "9.9.2 (local protection)")
            .post_read_into(1, [piece(A, 1000), piece(B, 100).key(LOCAL_ONLY)])
            .packets([first(0)])
            .deregister(LOCAL_ONLY, "that region")
            .packets([last(1, 76)])
            .completes([failed(1, Status::LocalProtection)])
            .wrote_part(A, 0, 1000)
            .wrote_part(B, 1000, 1024)
            .state(QpState::Err),
        case("a READ into a list with a bad element is not asked for", "9.9.2 (local protection)")
            .post_read_into(1, [piece(A, 1000), piece(B, 100).key(UNKNOWN)])
            .requests([])
            .completes([failed(1, Status::LocalProtection)])
            .state(QpState::Err),
    ]
}
