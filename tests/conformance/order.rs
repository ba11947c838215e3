//! Opcodes out of sequence, and invalid opcodes. IBTA 9.7.4.1 (opcode sequence), 9.7.4.1 (opcode),
//! 9.9.3.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let order = "9.7.4.1 (opcode sequence)";
    let valid = "9.7.4.1 (opcode)";
    let no_first = |name, opcode: Opcode| {
        case(name, order)
            .given(rc().receive(1, 5000))
            .packets([bare(opcode, 0, 100).ask()])
            .dies(NakCode::InvalidRequest, 0)
            .completes([flushed(1)])
    };
    let in_send = |name, packet: Pkt| {
        case(name, order)
            .given(rc().receive(1, 5000).receive(2, 5000))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024), packet])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(recv_at(1), 1024)
            .completes([failed(1, Status::RemoteInvalidRequest), flushed(2)])
    };
    let in_write = |name, packet: Pkt| {
        case(name, order)
            .given(rc().receive(1, 5000))
            .packets([rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 3000), packet])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(0, 1024)
            .completes([flushed(1)])
    };
    let disabled = |name, access, packet: Pkt| {
        case(name, valid)
            .given(rc().access(access))
            .packets([packet])
            .dies(NakCode::InvalidRequest, 0)
    };
    let reserved = |name, opcode: u8| {
        case(name, valid)
            .given(rc().receive(1, 100))
            .packets([send(Opcode::RC_SEND_ONLY, 0, 8).opcode_byte(opcode)])
            .dies(NakCode::InvalidRequest, 0)
            .completes([flushed(1)])
            .kernel("Takes it for a response: what the requester has outstanding ends in error.")
    };
    let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    vec![
        no_first("a SEND MIDDLE without a FIRST", Opcode::RC_SEND_MIDDLE),
        no_first("a SEND LAST without a FIRST", Opcode::RC_SEND_LAST),
        no_first("a SEND LAST with immediate without a FIRST", Opcode::RC_SEND_LAST_WITH_IMMEDIATE),
        no_first(
            "a SEND LAST with invalidate without a FIRST",
            Opcode::RC_SEND_LAST_WITH_INVALIDATE,
        ),
        no_first("a WRITE MIDDLE without a FIRST", Opcode::RC_WRITE_MIDDLE),
        no_first("a WRITE LAST without a FIRST", Opcode::RC_WRITE_LAST),
        no_first(
            "a WRITE LAST with immediate without a FIRST",
            Opcode::RC_WRITE_LAST_WITH_IMMEDIATE,
        ),
        in_send("a second SEND FIRST inside a SEND", send(Opcode::RC_SEND_FIRST, 1, 1024)),
        in_send("a SEND ONLY inside a SEND", send(Opcode::RC_SEND_ONLY, 1, 8)),
        in_send("a WRITE FIRST inside a SEND", rdma(Opcode::RC_WRITE_FIRST, 1, 1024, 0, 3000)),
        in_send("a WRITE MIDDLE inside a SEND", bare(Opcode::RC_WRITE_MIDDLE, 1, 1024)),
        in_send("a WRITE LAST inside a SEND", bare(Opcode::RC_WRITE_LAST, 1, 8)),
        in_send("a WRITE ONLY inside a SEND", write(1, 0, 8)),
        in_send("a READ request inside a SEND", read(1, 0, 8)),
        in_send("an atomic inside a SEND", fetch_add(1, 0, 1)),
        in_write(
            "a second WRITE FIRST inside a WRITE",
            rdma(Opcode::RC_WRITE_FIRST, 1, 1024, 0, 3000),
        ),
        in_write("a WRITE ONLY inside a WRITE", write(1, 0, 8)),
        in_write("a SEND FIRST inside a WRITE", send(Opcode::RC_SEND_FIRST, 1, 1024)),
        in_write("a SEND MIDDLE inside a WRITE", bare(Opcode::RC_SEND_MIDDLE, 1, 1024)),
        in_write("a SEND LAST inside a WRITE", bare(Opcode::RC_SEND_LAST, 1, 8)),
        in_write("a SEND ONLY inside a WRITE", send(Opcode::RC_SEND_ONLY, 1, 8)),
        in_write("a READ request inside a WRITE", read(1, 0, 8)),
        in_write("an atomic inside a WRITE", compare_swap(1, 0, 0, 1)),
        disabled(
            "a WRITE where the QP does not allow it",
            all - Access::REMOTE_WRITE,
            write(0, 0, 8),
        ),
        disabled(
            "a WRITE of nothing where the QP does not allow it",
            all - Access::REMOTE_WRITE,
            write(0, 0, 0),
        ),
        disabled("a READ where the QP does not allow it", all - Access::REMOTE_READ, read(0, 0, 8)),
        disabled(
            "a READ of nothing where the QP does not allow it",
            all - Access::REMOTE_READ,
            read(0, 0, 0),
        ),
        disabled(
            "an atomic where the QP does not allow it",
            all - Access::REMOTE_ATOMIC,
            fetch_add(0, 0, 1),
        ),
        case("a SEND where the QP allows nothing remote", valid)
            .given(rc().access(Access::empty()).receive(1, 100))
            .packets([send(Opcode::RC_SEND_ONLY, 0, 8).ask()])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("a masked COMPARE SWAP, which only ConnectX knows", valid)
            .packets([atomic(Opcode::RC_MASKED_COMPARE_SWAP, 0, 0, 1, 0).append(16)])
            .dies(NakCode::InvalidRequest, 0),
        reserved("reserved RC opcode 0x15", 0x15),
        reserved("reserved RC opcode 0x19", 0x19),
        reserved("reserved RC opcode 0x1a", 0x1a),
        reserved("reserved RC opcode 0x1b", 0x1b),
        reserved("reserved RC opcode 0x1e", 0x1e),
        reserved("reserved RC opcode 0x1f", 0x1f),
        case("a reserved opcode behind a gap is a gap first", "9.7.4.1 (order of checks)")
            .packets([send(Opcode::RC_SEND_ONLY, 1, 8).opcode_byte(0x1f)])
            .naks(NakCode::PsnSequenceError, 0),
        case("a reserved opcode as a duplicate", "C9-105")
            .packets([write(0, 0, 8), send(Opcode::RC_SEND_ONLY, 0, 8).opcode_byte(0x1f)])
            .drops(DropReason::DuplicateUnanswerable)
            .wrote(0, 8)
            .next(1),
        case("a reserved opcode from somebody else", "9.6.1; A17.4")
            .packets([send(Opcode::RC_SEND_ONLY, 0, 8).opcode_byte(0x1f).src("10.0.0.9")])
            .drops(DropReason::WrongSource),
        case("an opcode out of order behind a gap is a gap first", "9.7.4.1 (order of checks)")
            .packets([bare(Opcode::RC_SEND_LAST, 1, 8)])
            .naks(NakCode::PsnSequenceError, 0),
        case("what comes after a fatal NAK is not looked at", "9.9.3")
            .packets([bare(Opcode::RC_SEND_LAST, 0, 8), write(0, 0, 8).ask(), write(1, 0, 8).ask()])
            .dies(NakCode::InvalidRequest, 0)
            .drops_n(DropReason::WrongQpState, 2),
        case("what was good before a fatal fault is still answered", "9.7.5.1")
            .burst([read(0, 0, 100), write(1, 0, 8), bare(Opcode::RC_SEND_LAST, 2, 8)])
            .answers([Answer::Read(Position::Only, 0, 100)])
            .dies(NakCode::InvalidRequest, 2)
            .ignored(0, 8),
    ]
}
