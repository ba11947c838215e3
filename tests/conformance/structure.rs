//! Malformed packets, and packets with contradictory fields. IBTA 9.2, 9.6.1.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let send = |len| send(Opcode::RC_SEND_ONLY, 0, len).ask();
    let with_receive = || rc().receive(1, 100);
    vec![
        case("nothing but the UDP header", "9.6.1")
            .packets([send(8).cut_whole(0)])
            .drops(DropReason::Truncated),
        case("less than a BTH", "9.6.1")
            .packets([send(8).cut_whole(11)])
            .drops(DropReason::Truncated),
        case("a BTH without an ICRC", "9.6.1")
            .given(with_receive())
            .packets([send(0).cut_whole(12)])
            .drops(DropReason::Truncated),
        case("a BTH and half an ICRC", "9.6.1")
            .given(with_receive())
            .packets([send(0).cut_whole(14)])
            .drops(DropReason::Truncated),
        case("a WRITE that ends inside its RETH", "9.3.3")
            .packets([write(0, 0, 8).ask().cut(20)])
            .drops(DropReason::Truncated),
        case("a WRITE with immediate that ends before the immediate", "9.3.6")
            .packets([rdma(Opcode::RC_WRITE_ONLY_WITH_IMMEDIATE, 0, 0, 0, 0).cut(28)])
            .drops(DropReason::Truncated),
        case("an atomic that ends inside its AtomicETH", "9.3.4")
            .packets([fetch_add(0, 0, 1).cut(36)])
            .drops(DropReason::Truncated),
        case("an acknowledgement without an AETH", "9.3.5")
            .post_write(1, 8)
            .packets([acked(0).cut(12)])
            .drops(DropReason::Truncated),
        case("a length that is no multiple of 4", "9.2 (pad count)")
            .given(with_receive())
            .packets([send(8).append(1), send(8).append(2), send(8).append(3)])
            .drops_n(DropReason::BadLength, 3)
            .kernel("Does not check; the ICRC alone decides."),
        case("a pad count larger than the payload", "9.2 (pad count)")
            .given(with_receive())
            .packets([send(0).pad(1), send(0).pad(3)])
            .drops_n(DropReason::BadPad, 2)
            .kernel("Computes a negative payload size."),
        case("a pad count on a READ request", "9.2 (pad count)")
            .packets([read(0, 0, 8).pad(2)])
            .drops(DropReason::BadPad),
        case("a pad of 3 leaves 1 byte of 4", "9.2 (pad count)")
            .given(with_receive())
            .packets([send(4).pad(3)])
            .acks(0)
            .completes([got(1, 1)])
            .wrote(recv_at(1), 1)
            .next(1),
        case("a payload behind a READ request", "9.3.3")
            .packets([read(0, 0, 8).append(8)])
            .drops(DropReason::UnexpectedPayload)
            .kernel("Carries out the READ."),
        case("a payload behind an atomic", "9.3.4")
            .packets([fetch_add(0, 0, 1).append(4)])
            .drops(DropReason::UnexpectedPayload)
            .kernel("Carries out the atomic."),
        case("a payload behind an acknowledgement", "9.3.5")
            .post_write(1, 8)
            .packets([acked(0).append(4)])
            .drops(DropReason::UnexpectedPayload)
            .kernel("Takes the acknowledgement."),
        case("transport header version 1", "9.2 (version)")
            .given(with_receive())
            .packets([send(8).tver(1)])
            .drops(DropReason::BadVersion),
        case("transport header version 15", "9.2 (version)")
            .given(with_receive())
            .packets([send(8).tver(15)])
            .drops(DropReason::BadVersion),
        case("opcodes of reliable datagram", "9.2.1")
            .packets([send(8).opcode_byte(0x44), send(8).opcode_byte(0x4c)])
            .drops_n(DropReason::UnknownOpcode, 2),
        case("opcodes of manufacturers", "9.2.1")
            .packets([send(8).opcode_byte(0xc0), send(8).opcode_byte(0xff)])
            .drops_n(DropReason::UnknownOpcode, 2),
        case("a bit of the payload flipped on the way", "7.8.1, A17.3.3")
            .given(with_receive())
            .packets([send(8).damage(14, "payload")])
            .drops(DropReason::IcrcMismatch),
        case("a bit of the PSN flipped on the way", "7.8.1, A17.3.3")
            .given(with_receive())
            .packets([send(8).damage(11, "PSN")])
            .drops(DropReason::IcrcMismatch),
        case("a bit of the RETH's address flipped on the way", "7.8.1, A17.3.3")
            .packets([write(0, 0, 8).damage(19, "address")])
            .drops(DropReason::IcrcMismatch),
        case("a bit of the ICRC flipped on the way", "7.8.1, A17.3.3")
            .given(with_receive())
            .packets([send(8).damage(usize::MAX, "ICRC")])
            .drops(DropReason::IcrcMismatch),
        case("a bit of an acknowledgement flipped on the way", "7.8.1, A17.3.3")
            .post_write(1, 8)
            .packets([acked(0).damage(12, "syndrome")])
            .drops(DropReason::IcrcMismatch),
        case("FECN, BECN and reserved bits changed on the way", "7.8.1")
            .given(with_receive())
            .packets([send(8).damage(4, "reserved byte")])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1)
            .note("byte 4 of the BTH is outside the ICRC: a switch may set it"),
        case("all reserved bits of the BTH set", "9.2")
            .given(with_receive())
            .packets([send(8).bits(4, 0x3f, 0x3f, "resv6 ones").bits(8, 0x7f, 0x7f, "resv7 ones")])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("FECN and BECN set on a request", "A10")
            .given(with_receive())
            .packets([send(8).bits(4, 0xc0, 0xc0, "FECN BECN")])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("MigReq 0", "9.2 (MigReq)")
            .given(with_receive())
            .packets([send(8).bits(1, 0x40, 0, "MigReq 0")])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("MigReq 1", "9.2 (MigReq)")
            .given(with_receive())
            .packets([send(8).bits(1, 0x40, 0x40, "MigReq 1")])
            .acks(0)
            .completes([got(1, 8)])
            .wrote(recv_at(1), 8)
            .next(1),
        case("a pad that is not zeros", "9.2 (pad count)")
            .given(with_receive())
            .packets([send(5).bits(17, 0xff, 0xaa, "pad byte 0xaa")])
            .acks(0)
            .completes([got(1, 5)])
            .wrote(recv_at(1), 5)
            .next(1),
        case("any UDP source port", "A17.3.1")
            .packets([
                write(0, 0, 4).ask().src_port(0),
                write(1, 0, 4).ask().src_port(69),
                write(2, 0, 4).ask().src_port(65535),
            ])
            .acks(0)
            .acks(1)
            .acks(2)
            .wrote(0, 4)
            .next(3),
        case("any IPv4 identification", "A17.3.1")
            .packets([write(0, 0, 4).ask().ip_id(0), write(1, 4, 4).ask().ip_id(0xffff)])
            .acks(0)
            .acks(1)
            .wrote(0, 4)
            .wrote(4, 4)
            .next(2),
    ]
}
