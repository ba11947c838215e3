//! Packets to another queue pair or from another peer. IBTA 9.6.1, A17.

use crate::dsl::*;

pub(crate) fn cases() -> Vec<Case> {
    let w = || write(0, 0, 8).ask();
    let p_key = "9.6.1, 10.9";
    let source = "9.6.1; A17.4";
    vec![
        case("a request to QP 0", "A16 (QP0 does not exist in RoCE)")
            .packets([w().dest_qp(0)])
            .drops(DropReason::QpnZero),
        case("a request to a QP that does not exist", "9.6.1")
            .packets([w().dest_qp(0x77)])
            .drops(DropReason::UnknownQp),
        case("an RC request to QP 1", "9.6.1")
            .packets([w().dest_qp(1)])
            .drops(DropReason::UnknownQp)
            .note("no management QP is open here"),
        case("an RC request to the multicast QP number", "9.6.1, 10.5")
            .packets([w().dest_qp(0xff_ffff)])
            .drops(DropReason::BadMulticast),
        case("an acknowledgement for a QP that does not exist", "9.6.1")
            .packets([acked(0).dest_qp(0x13)])
            .drops(DropReason::UnknownQp),
        case("a UC request to an RC QP", "9.6.1")
            .packets([rdma(Opcode::UC_WRITE_ONLY, 0, 8, 0, 8)])
            .drops(DropReason::WrongService)
            .kernel("Older versions compare single bits of the opcode: an RC QP takes opcodes of any service."),
        case("a datagram to an RC QP", "9.6.1")
            .given(rc().receive(1, 100))
            .packets([datagram(8)])
            .drops(DropReason::WrongService),
        case("an RC request to a UC QP", "9.6.1")
            .given(uc())
            .packets([w()])
            .drops(DropReason::WrongService),
        case("an RC acknowledgement to a UC QP", "9.6.1")
            .given(uc())
            .packets([acked(0)])
            .drops(DropReason::WrongService),
        case("a datagram to a UC QP", "9.6.1")
            .given(uc().receive(1, 100))
            .packets([datagram(8)])
            .drops(DropReason::WrongService)
            .kernel("Older versions compare single bits of the opcode: a UC QP takes datagrams."),
        case("an RC request to a UD QP", "9.6.1")
            .given(ud().receive(1, 100))
            .packets([send(Opcode::RC_SEND_ONLY, 0, 8)])
            .drops(DropReason::WrongService),
        case("a UC request to a UD QP", "9.6.1")
            .given(ud().receive(1, 100))
            .packets([send(Opcode::UC_SEND_ONLY, 0, 8)])
            .drops(DropReason::WrongService),
        case("a request from another address", source)
            .packets([w().src("10.0.0.9")])
            .drops(DropReason::WrongSource),
        case("a request to another address of this host", source)
            .packets([w().dst("10.0.0.8")])
            .drops(DropReason::WrongDestination),
        case("a request with source and destination exchanged", source)
            .packets([w().src("10.0.0.2").dst("10.0.0.1")])
            .drops(DropReason::WrongSource),
        case("a request from the own address", source)
            .packets([w().src("10.0.0.2")])
            .drops(DropReason::WrongSource),
        case("a request over IPv6 to a QP connected over IPv4", source)
            .packets([w().src("fd00::1").dst("fd00::2")])
            .drops(DropReason::WrongSource)
            .kernel("Reads the address vector in the family of the packet, not in its own."),
        case("a request over IPv6 from the IPv4-mapped address of the peer", source)
            .packets([w().src("::ffff:10.0.0.1").dst("::ffff:10.0.0.2")])
            .drops(DropReason::WrongSource),
        case("a request over IPv4 to a QP connected over IPv6", source)
            .given(rc().v6())
            .packets([w().src("10.0.0.1").dst("10.0.0.2")])
            .drops(DropReason::WrongSource),
        case("a request over IPv6 from another address", source)
            .given(rc().v6())
            .packets([w().src("fd00::9")])
            .drops(DropReason::WrongSource),
        case("a good request over IPv6", source)
            .given(rc().v6())
            .packets([w()])
            .acks(0)
            .wrote(0, 8)
            .next(1),
        case("an acknowledgement from another address", source)
            .post_write(1, 8)
            .packets([acked(0).src("10.0.0.9")])
            .drops(DropReason::WrongSource),
        case("a NAK from another address", source)
            .post_write(1, 8)
            .packets([naked(0, NakCode::RemoteAccessError).src("10.0.0.9")])
            .drops(DropReason::WrongSource)
            .note("nobody but the peer can end a connection"),
        case("a UC request from another address", source)
            .given(uc())
            .packets([rdma(Opcode::UC_WRITE_ONLY, 0, 8, 0, 8).src("10.0.0.9")])
            .drops(DropReason::WrongSource),
        case("another partition", p_key)
            .packets([w().pkey(0x8001)])
            .drops(DropReason::WrongPkey),
        case("partition 0", p_key).packets([w().pkey(0x8000)]).drops(DropReason::WrongPkey),
        case("P_Key 0", p_key).packets([w().pkey(0)]).drops(DropReason::WrongPkey),
        case("a limited member of the default partition", p_key)
            .packets([w().pkey(0x7fff)])
            .acks(0)
            .wrote(0, 8)
            .next(1)
            .note("limited to full may talk: the own entry is 0xffff"),
        case("a response with another partition", p_key)
            .post_write(1, 8)
            .packets([acked(0).pkey(0x9999)])
            .drops(DropReason::WrongPkey),
        case("a wrong P_Key and a wrong ICRC", "9.6")
            .packets([w().pkey(0x8001).damage(usize::MAX, "ICRC")])
            .drops(DropReason::WrongPkey)
            .note("either way nothing happens; the cheap check comes first"),
    ]
}
