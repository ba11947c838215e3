//! Unreliable connection: nothing is ever acknowledged, and a message that loses a packet is lost
//! as a whole. IBTA 9.8.2, 9.9.3.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let rule = "9.8.2.2";
    let resources = "9.8.2.2, 9.9.3";
    let lengths = "9.8.2.2, 9.9.3";
    let keys = "9.8.2.2, 9.9.3";
    let first = |psn| send(Opcode::UC_SEND_FIRST, psn, 1024);
    let middle = |psn| send(Opcode::UC_SEND_MIDDLE, psn, 1024);
    let last = |psn, len| send(Opcode::UC_SEND_LAST, psn, len);
    let only = |psn, len| send(Opcode::UC_SEND_ONLY, psn, len);
    let w = |psn, offset, len| rdma(Opcode::UC_WRITE_ONLY, psn, len, offset, len);
    let wrong_length = |name, packet: Pkt| {
        case(name, lengths)
            .given(uc().receive(1, 5000))
            .packets([packet])
            .drops(DropReason::WrongLength)
    };
    let denied = |name, packet: Pkt| {
        case(name, keys).given(uc()).packets([packet]).drops(DropReason::AccessDenied)
    };
    let unknown = |name, opcode| {
        case(name, "9.8.2.2")
            .given(uc())
            .packets([w(0, 0, 8).opcode_byte(opcode)])
            .drops(DropReason::UnknownOpcode)
    };
    vec![
        case("a UC SEND asks for an answer and gets none", rule)
            .given(uc().receive(1, 100))
            .packets([only(0, 8).ask()])
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8),
        case("a UC message of three packets", rule)
            .given(uc().receive(1, 5000))
            .packets([first(0), middle(1), last(2, 8)])
            .completes([got(1, 2056)])
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 1024)
            .wrote(recv_at(1) + 2048, 8),
        case("a UC message begins at any PSN", rule)
            .given(uc().receive(1, 100))
            .packets([only(1000, 8)])
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8),
        case("a UC message begins at a PSN that was before", rule)
            .given(uc().receive(1, 100))
            .packets([only(-5, 8)])
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .note("UC knows no duplicates: what is sent twice by the network arrives twice"),
        case("the middle of a UC message is missing", rule)
            .given(uc().receive(1, 5000))
            .packets([first(0), last(2, 8)])
            .drops(DropReason::MessageBroken)
            .wrote(recv_at(1), 1024),
        case("the beginning of a UC message is missing", rule)
            .given(uc().receive(1, 5000))
            .packets([middle(0), last(1, 8)])
            .drops_n(DropReason::MessageBroken, 2),
        case("the beginning of a UC WRITE is missing", rule)
            .given(uc())
            .packets([
                send(Opcode::UC_WRITE_MIDDLE, 0, 1024),
                send(Opcode::UC_WRITE_LAST, 1, 8),
            ])
            .drops_n(DropReason::MessageBroken, 2),
        case("the end of a UC message is missing: the next takes its receive", rule)
            .given(uc().receive(1, 5000).receive(2, 5000))
            .packets([first(0), middle(1), only(3, 8), only(4, 16)])
            .completes([got(1, 8), got(2, 16)])
            .ignored(recv_at(1), 2048)
            .wrote(recv_at(2), 16)
            .kernel("Drops the packet that begins the next message, too."),
        case("the receive of a broken UC message is flushed first", "9.8.2.2, 10.3.1")
            .given(uc().receive(1, 5000).receive(2, 5000))
            .packets([first(0), last(2, 8)])
            .drops(DropReason::MessageBroken)
            .modify(QpState::Err)
            .completes([flushed(1), flushed(2)])
            .wrote(recv_at(1), 1024)
            .state(QpState::Err),
        case("a shared queue's receive of a broken UC message is flushed too", "10.2.9, 10.3.1")
            .given(uc().srq(0).receive(1, 5000).receive(2, 5000))
            .packets([first(0), last(2, 8)])
            .drops(DropReason::MessageBroken)
            .modify(QpState::Err)
            .completes([flushed(1)])
            .events([Async::LastWqe])
            .wrote(recv_at(1), 1024)
            .state(QpState::Err),
        case("a broken UC message, then RESET", "9.8.2.2, 10.3.1")
            .given(uc().receive(1, 5000))
            .packets([first(0), last(2, 8)])
            .drops(DropReason::MessageBroken)
            .modify(QpState::Reset)
            .wrote(recv_at(1), 1024)
            .state(QpState::Reset),
        case("a broken UC message does not come back to life", rule)
            .given(uc().receive(1, 5000))
            .packets([first(0), middle(2), middle(3), last(4, 8)])
            .drops_n(DropReason::MessageBroken, 3)
            .wrote(recv_at(1), 1024),
        case("a UC packet twice breaks its message", rule)
            .given(uc().receive(1, 5000))
            .packets([first(0), middle(1), middle(1), last(2, 8)])
            .drops_n(DropReason::MessageBroken, 2)
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 1024),
        case("a UC WRITE that loses its end", rule)
            .given(uc().receive(1, 100))
            .packets([rdma(Opcode::UC_WRITE_FIRST, 0, 1024, 0, 3000), only(2, 8)])
            .completes([got(1, 8)])
            .wrote(0, 1024)
            .wrote(recv_at(1), 8)
            .note("what has come of it is in memory, as on any network card; nothing says that it is whole")
            .kernel("Drops the packet that begins the next message, too."),
        case("a UC WRITE inside a UC SEND", rule)
            .given(uc().receive(1, 5000))
            .packets([first(0), w(1, 0, 8), only(2, 8)])
            .completes([got(1, 8)])
            .ignored(recv_at(1), 1024)
            .wrote(0, 8)
            .kernel("Drops the packet that begins the next message, too."),
        case("a UC WRITE MIDDLE inside a UC SEND", rule)
            .given(uc().receive(1, 5000))
            .packets([first(0), send(Opcode::UC_WRITE_MIDDLE, 1, 1024), last(2, 8)])
            .drops_n(DropReason::MessageBroken, 2)
            .wrote(recv_at(1), 1024),
        case("a UC SEND MIDDLE inside a UC WRITE", rule)
            .given(uc().receive(1, 5000))
            .packets([rdma(Opcode::UC_WRITE_FIRST, 0, 1024, 0, 3000), middle(1)])
            .drops(DropReason::MessageBroken)
            .wrote(0, 1024),
        case("a UC SEND without a receive", resources)
            .given(uc())
            .packets([only(0, 8)])
            .drops(DropReason::ReceiveQueueEmpty),
        case("a long UC SEND without a receive is dropped whole", resources)
            .given(uc())
            .packets([first(0)])
            .receive(1, 5000)
            .packets([middle(1), last(2, 8)])
            .drops(DropReason::ReceiveQueueEmpty)
            .drops_n(DropReason::MessageBroken, 2),
        case("a UC WRITE with immediate without a receive writes nothing", resources)
            .given(uc())
            .packets([rdma(Opcode::UC_WRITE_ONLY_WITH_IMMEDIATE, 0, 8, 0, 8)])
            .drops(DropReason::ReceiveQueueEmpty),
        case("a UC SEND with an empty shared queue", resources)
            .given(uc().srq(0))
            .packets([only(0, 8)])
            .drops(DropReason::ReceiveQueueEmpty),
        case("a UC SEND longer than its receive", "9.9.3")
            .given(uc().receive(1, 7).receive(2, 100))
            .packets([only(0, 8), only(1, 8)])
            .completes([failed(1, Status::LocalLength), got(2, 8)])
            .drops(DropReason::ReceiveTooSmall)
            .wrote(recv_at(2), 8)
            .note("the program learns that its receive was too small; the connection goes on")
            .kernel("Drops the message and keeps the receive for the next."),
        case("a UC SEND into a receive that is not registered", "9.9.3")
            .given(uc())
            .receive_into(1, 100, UNKNOWN, "an unknown region")
            .packets([only(0, 8)])
            .completes([failed(1, Status::LocalProtection)])
            .drops(DropReason::AccessDenied)
            .kernel("Ends the QP in the error state."),
        wrong_length("a UC SEND FIRST shorter than the path MTU", send(Opcode::UC_SEND_FIRST, 0, 1020)),
        wrong_length("a UC SEND ONLY longer than the path MTU", only(0, 1028)),
        wrong_length("a UC WRITE ONLY shorter than its RETH", w(0, 0, 8).dma_len(12)),
        wrong_length("a UC WRITE ONLY longer than its RETH", w(0, 0, 8).dma_len(4)),
        wrong_length("a UC WRITE of more than 2 GiB", rdma(Opcode::UC_WRITE_FIRST, 0, 1024, 0, 0).dma_len(0x8000_0001)),
        case("an empty UC SEND LAST", lengths)
            .given(uc().receive(1, 5000))
            .packets([first(0), last(1, 0)])
            .drops(DropReason::WrongLength)
            .wrote(recv_at(1), 1024),
        case("a UC WRITE LAST that ends too early", lengths)
            .given(uc())
            .packets([
                rdma(Opcode::UC_WRITE_FIRST, 0, 1024, 0, 3000),
                send(Opcode::UC_WRITE_LAST, 1, 8),
            ])
            .drops(DropReason::WrongLength)
            .wrote(0, 1024),
        denied("a UC WRITE under a key that never was", w(0, 0, 8).rkey(UNKNOWN, "unknown")),
        denied("a UC WRITE into another protection domain", w(0, 0, 8).rkey(OTHER_PD, "of another PD")),
        denied("a UC WRITE into a region without REMOTE_WRITE", w(0, 0, 8).rkey(READ_ONLY, "of a read-only region")),
        denied("a UC WRITE behind the region", w(0, MEMORY - 4, 8)),
        denied("a UC WRITE whose range wraps round 2⁶⁴", w(0, 0, 8).va(u64::MAX - 3)),
        case("a UC WRITE where the QP does not allow it", "9.8.2.2")
            .given(uc().access(Access::empty()))
            .packets([w(0, 0, 8)])
            .drops(DropReason::AccessDenied),
        case("the rest of a UC WRITE that was refused", keys)
            .given(uc())
            .packets([
                rdma(Opcode::UC_WRITE_FIRST, 0, 1024, 0, 2000).rkey(UNKNOWN, "unknown"),
                send(Opcode::UC_WRITE_LAST, 1, 976),
            ])
            .drops(DropReason::AccessDenied)
            .drops(DropReason::MessageBroken),
        case("a UC WRITE of nothing under a key that never was", keys)
            .given(uc())
            .packets([w(0, 0, 0).rkey(UNKNOWN, "unknown")]),
        case("a region that goes away inside a UC WRITE", "10.6")
            .given(uc())
            .packets([rdma(Opcode::UC_WRITE_FIRST, 0, 1024, 0, 2000).rkey(WRITE_ONLY, "of its own")])
            .deregister(WRITE_ONLY, "that region")
            .packets([send(Opcode::UC_WRITE_LAST, 1, 976)])
            .drops(DropReason::AccessDenied)
            .wrote(0, 1024),
        unknown("a READ request on UC", 0x2c),
        unknown("an acknowledgement on UC", 0x31),
        unknown("a COMPARE SWAP on UC", 0x33),
        unknown("a SEND with invalidate on UC", 0x37),
    ]
}
