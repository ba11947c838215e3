//! Lengths that contradict the opcode, the path MTU or the RETH. IBTA 9.7.4.1 (length).

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let rule = "9.7.4.1 (length)";
    let sends = "Compares the opcode byte with bits of the opcode's mask (`rxe_resp.c`, `check_length`), so that a SEND's lengths are not checked.";
    let two_gib = "Tests the opcode byte instead of its mask, so that only the region's bounds count: remote access error.";
    let first_send = |name, packet: Pkt| {
        case(name, rule)
            .given(rc().receive(1, 5000))
            .packets([packet])
            .dies(NakCode::InvalidRequest, 0)
            .completes([flushed(1)])
            .kernel(sends)
    };
    let second_send = |name, packet: Pkt| {
        case(name, rule)
            .given(rc().receive(1, 5000))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024), packet])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(recv_at(1), 1024)
            .completes([failed(1, Status::RemoteInvalidRequest)])
            .kernel(sends)
    };
    let bad_write =
        |name, packet: Pkt| case(name, rule).packets([packet]).dies(NakCode::InvalidRequest, 0);
    let second_write = |name, len, packet: Pkt| {
        case(name, rule)
            .packets([rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, len), packet])
            .dies(NakCode::InvalidRequest, 1)
            .wrote(0, 1024)
    };
    vec![
        first_send("a SEND FIRST shorter than the path MTU", send(Opcode::RC_SEND_FIRST, 0, 1020)),
        first_send("a SEND FIRST longer than the path MTU", send(Opcode::RC_SEND_FIRST, 0, 1028)),
        first_send("an empty SEND FIRST", send(Opcode::RC_SEND_FIRST, 0, 0)),
        first_send("a padded SEND FIRST", send(Opcode::RC_SEND_FIRST, 0, 1023)),
        first_send("a SEND ONLY longer than the path MTU", send(Opcode::RC_SEND_ONLY, 0, 1025)),
        first_send("a SEND ONLY of 4096 bytes at path MTU 1024", send(Opcode::RC_SEND_ONLY, 0, 4096)),
        second_send("a SEND MIDDLE shorter than the path MTU", bare(Opcode::RC_SEND_MIDDLE, 1, 1020)),
        second_send("a SEND MIDDLE longer than the path MTU", bare(Opcode::RC_SEND_MIDDLE, 1, 1028)),
        second_send("an empty SEND LAST", bare(Opcode::RC_SEND_LAST, 1, 0)),
        second_send("an empty SEND LAST with immediate", send(Opcode::RC_SEND_LAST_WITH_IMMEDIATE, 1, 0)),
        second_send("a SEND LAST longer than the path MTU", bare(Opcode::RC_SEND_LAST, 1, 1025)),
        case("a SEND LAST of one byte", rule)
            .given(rc().receive(1, 5000))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024), bare(Opcode::RC_SEND_LAST, 1, 1).ask()])
            .acks(1)
            .completes([got(1, 1025)])
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 1)
            .next(2),
        case("a SEND LAST of a whole path MTU", rule)
            .given(rc().receive(1, 5000))
            .packets([
                send(Opcode::RC_SEND_FIRST, 0, 1024),
                bare(Opcode::RC_SEND_LAST, 1, 1024).ask(),
            ])
            .acks(1)
            .completes([got(1, 2048)])
            .wrote(recv_at(1), 1024)
            .wrote(recv_at(1) + 1024, 1024)
            .next(2),
        case("a SEND of nothing", "9.4.1")
            .given(rc().receive(1, 0))
            .packets([send(Opcode::RC_SEND_ONLY, 0, 0).ask()])
            .acks(0)
            .completes([got(1, 0)])
            .next(1),
        case("a path MTU of 256 where packets of 1024 come", rule)
            .given(rc().mtu(Mtu::M256).receive(1, 5000))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024)])
            .dies(NakCode::InvalidRequest, 0)
            .completes([flushed(1)])
            .kernel(sends),
        case("a path MTU of 4096 where packets of 1024 come", rule)
            .given(rc().mtu(Mtu::M4096).receive(1, 5000))
            .packets([send(Opcode::RC_SEND_FIRST, 0, 1024)])
            .dies(NakCode::InvalidRequest, 0)
            .completes([flushed(1)])
            .kernel(sends),
        bad_write("a WRITE ONLY shorter than its RETH", write(0, 0, 8).dma_len(12)),
        bad_write("a WRITE ONLY longer than its RETH", write(0, 0, 8).dma_len(4)),
        bad_write("a WRITE ONLY with bytes where the RETH says none", write(0, 0, 8).dma_len(0)).kernel("Looks no region up for a length of 0 and fails when it copies: remote access error."),
        bad_write("a WRITE ONLY without bytes where the RETH says some", write(0, 0, 0).dma_len(8)),
        bad_write("a WRITE ONLY one byte shorter by its pad", write(0, 0, 8).pad(1)),
        bad_write("a WRITE ONLY longer than the path MTU", write(0, 0, 1028)),
        bad_write("a WRITE FIRST of a message that one packet holds", rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 1024)).kernel("Takes it."),
        bad_write("a WRITE FIRST of a message of nothing", rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 0)).kernel("Looks no region up for a length of 0 and fails when it copies: remote access error."),
        bad_write("a WRITE FIRST shorter than the path MTU", rdma(Opcode::RC_WRITE_FIRST, 0, 512, 0, 3000)),
        bad_write("a WRITE of more than 2 GiB", rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 0).dma_len(0x8000_0001)).kernel(two_gib),
        bad_write("a READ of more than 2 GiB", read(0, 0, 0).dma_len(0x8000_0001)).kernel(two_gib),
        bad_write("a READ of 4 GiB less one byte", read(0, 0, 0).dma_len(0xffff_ffff)).kernel(two_gib),
        second_write("a WRITE LAST that ends too early", 3000, bare(Opcode::RC_WRITE_LAST, 1, 1024))
        .kernel(
            "Not noticed where the packet's length is a path MTU: what remains is not looked at.",
        ),
        second_write("a WRITE LAST one byte short", 1100, bare(Opcode::RC_WRITE_LAST, 1, 75)),
        second_write("a WRITE LAST one byte too long", 1100, bare(Opcode::RC_WRITE_LAST, 1, 77)),
        second_write("an empty WRITE LAST", 1100, bare(Opcode::RC_WRITE_LAST, 1, 0)),
        second_write("a WRITE MIDDLE that reaches the end", 2048, bare(Opcode::RC_WRITE_MIDDLE, 1, 1024)).kernel("Takes it.")
        .note("a LAST must carry the end"),
        second_write("a WRITE MIDDLE beyond the end", 1100, bare(Opcode::RC_WRITE_MIDDLE, 1, 1024)),
        second_write("a WRITE MIDDLE shorter than the path MTU", 3000, bare(Opcode::RC_WRITE_MIDDLE, 1, 1020)),
        case("a WRITE of three packets, exactly", rule)
            .packets([
                rdma(Opcode::RC_WRITE_FIRST, 0, 1024, 0, 2049),
                bare(Opcode::RC_WRITE_MIDDLE, 1, 1024),
                bare(Opcode::RC_WRITE_LAST, 2, 1).ask(),
            ])
            .acks(2)
            .wrote(0, 1024)
            .wrote(1024, 1024)
            .wrote(2048, 1)
            .next(3),
    ]
}
