//! Datagrams: Q_Keys, the GRH, lengths, multicast groups. IBTA 9.8.3, 9.6.1, 10.5.

use crate::dsl::*;

const GROUP: &str = "239.1.2.3";
const GROUP6: &str = "ff0e::1:2";
const MC_QPN: u32 = 0xff_ffff;

pub(crate) fn cases() -> Vec<Case> {
    let qkey = "9.6.1 (Q_Key)";
    let size = "9.8.3.2, 9.9.3";
    let group = "10.5, 9.6.1";
    let with_receive = || ud().receive(1, 1000);
    let received = |name, rule, packet: Pkt| {
        case(name, rule)
            .given(with_receive())
            .packets([packet])
            .completes([got(1, 48)])
            .datagram_in(1, 8)
    };
    let unknown = |name, opcode| {
        case(name, "9.2.1")
            .given(with_receive())
            .packets([datagram(8).opcode_byte(opcode)])
            .drops(DropReason::UnknownOpcode)
    };
    vec![
        received("a datagram", "9.8.3.2", datagram(8)),
        received("a datagram from any address", "9.8.3.2", datagram(8).src("192.0.2.7")),
        received("a datagram with any PSN", "9.8.3.2", datagram(8).at(0x12_3456)),
        received("a datagram that asks for an answer gets none", "9.8.3.2", datagram(8).ask()),
        received(
            "a datagram with the DETH's reserved bits set",
            "9.3.2",
            datagram(8).bits(16, 0xff, 0xff, "resv8 ones"),
        ),
        received("a datagram with immediate data", "9.8.3.2", datagram_imm(8)),
        case("a datagram of nothing", "9.8.3.2")
            .given(ud().receive(1, 40))
            .packets([datagram(0)])
            .completes([got(1, 40)])
            .datagram_in(1, 0),
        case("a wrong Q_Key", qkey)
            .given(with_receive())
            .packets([datagram(8).qkey(0x1111_1112)])
            .drops(DropReason::WrongQkey),
        case("Q_Key 0", qkey)
            .given(with_receive())
            .packets([datagram(8).qkey(0)])
            .drops(DropReason::WrongQkey),
        case("the own Q_Key with the high bit set", qkey)
            .given(with_receive())
            .packets([datagram(8).qkey(0x9111_1111)])
            .drops(DropReason::WrongQkey)
            .note("the high bit stands for something only in a send request, not on the wire"),
        case("a controlled Q_Key that is the QP's", qkey)
            .given(with_receive().qkey(0x8000_0042))
            .packets([datagram(8).qkey(0x8000_0042)])
            .completes([got(1, 48)])
            .datagram_in(1, 8),
        case("the Q_Key of QP 1 to another QP", qkey)
            .given(with_receive())
            .packets([datagram(8).qkey(0x8001_0000)])
            .drops(DropReason::WrongQkey),
        case("a wrong Q_Key takes no receive", qkey)
            .given(with_receive())
            .packets([datagram(4).qkey(0x2222), datagram(8)])
            .drops(DropReason::WrongQkey)
            .completes([got(1, 48)])
            .datagram_in(1, 8),
        case("a datagram of another partition", "9.6.1, 10.9")
            .given(with_receive())
            .packets([datagram(8).pkey(0x8001)])
            .drops(DropReason::WrongPkey),
        case("a damaged datagram", "7.8.1, A17.3.3")
            .given(with_receive())
            .packets([datagram(8).damage(22, "payload")])
            .drops(DropReason::IcrcMismatch),
        case("a datagram without a receive", size)
            .given(ud())
            .packets([datagram(8)])
            .drops(DropReason::ReceiveQueueEmpty),
        case("a datagram without a receive in the shared queue", size)
            .given(ud().srq(0))
            .packets([datagram(8)])
            .drops(DropReason::ReceiveQueueEmpty),
        case("a datagram that takes the shared queue below its limit", "10.2.9")
            .given(ud().srq(1).receive(1, 1000))
            .packets([datagram(8)])
            .completes([got(1, 48)])
            .events([Async::SrqLimit])
            .datagram_in(1, 8),
        case("a receive without room for the GRH", size)
            .given(ud().receive(1, 39))
            .packets([datagram(0)])
            .completes([failed(1, Status::LocalLength)])
            .drops(DropReason::ReceiveTooSmall)
            .note("no byte is written; the QP stays in its state")
            .kernel("Writes what fits and keeps the receive for the next datagram."),
        case("a receive one byte too small for the payload", size)
            .given(ud().receive(1, 47))
            .packets([datagram(8)])
            .completes([failed(1, Status::LocalLength)])
            .drops(DropReason::ReceiveTooSmall)
            .kernel("Writes what fits and keeps the receive for the next datagram."),
        case("a receive exactly large enough", size)
            .given(ud().receive(1, 48))
            .packets([datagram(8)])
            .completes([got(1, 48)])
            .datagram_in(1, 8),
        case("a datagram receive that is not registered", "9.9.3")
            .given(ud())
            .receive_into(1, 1000, UNKNOWN, "an unknown region")
            .packets([datagram(8)])
            .completes([failed(1, Status::LocalProtection)])
            .drops(DropReason::AccessDenied)
            .kernel("Ends the QP in the error state."),
        case("a datagram of the largest path MTU", size)
            .given(ud().receive(1, 5000))
            .packets([datagram(4096)])
            .completes([got(1, 4136)])
            .datagram_in(1, 4096),
        case("a datagram longer than the largest path MTU", size)
            .given(ud().receive(1, 5000))
            .packets([datagram(4100)])
            .drops(DropReason::WrongLength)
            .kernel("Does not check."),
        case("a datagram to an address that is not ours", "9.6.1; A17.4")
            .given(with_receive())
            .packets([datagram(8).dst("10.0.0.8")])
            .drops(DropReason::WrongDestination),
        case("a datagram over IPv6 to a device of IPv4", "9.6.1; A17.4")
            .given(with_receive())
            .packets([datagram(8).src("fd00::1").dst("fd00::2")])
            .drops(DropReason::WrongDestination),
        case("a datagram over IPv6", "9.8.3.2")
            .given(with_receive().v6())
            .packets([datagram(8)])
            .completes([got(1, 48)])
            .datagram_in(1, 8),
        unknown("a UD SEND FIRST", 0x60),
        unknown("a UD SEND LAST", 0x62),
        unknown("a UD WRITE", 0x6a),
        case("a datagram to a group that the QP is attached to", group)
            .given(with_receive().group(GROUP))
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP)])
            .completes([got(1, 48)])
            .datagram_in(1, 8),
        case("a datagram to a group over IPv6", group)
            .given(with_receive().v6().group(GROUP6))
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP6)])
            .completes([got(1, 48)])
            .datagram_in(1, 8),
        case("a datagram to a group that nobody is attached to", group)
            .given(with_receive())
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP)])
            .drops(DropReason::NoMulticast),
        case("a datagram to another group", group)
            .given(with_receive().group(GROUP))
            .packets([datagram(8).dest_qp(MC_QPN).dst("239.1.2.4")])
            .drops(DropReason::NoMulticast),
        case("a datagram to the multicast QP number at a unicast address", group)
            .given(with_receive().group(GROUP))
            .packets([datagram(8).dest_qp(MC_QPN)])
            .drops(DropReason::BadMulticast),
        case("a datagram to the QP's own number at a group's address", group)
            .given(with_receive().group(GROUP))
            .packets([datagram(8).dst(GROUP)])
            .drops(DropReason::WrongDestination)
            .note("a group is reached under QP 0xffffff only"),
        case("an RC request to a group", group)
            .given(with_receive().group(GROUP))
            .packets([write(0, 0, 8).dest_qp(MC_QPN).dst(GROUP)])
            .drops(DropReason::BadMulticast),
        case("a UC SEND to a group", group)
            .given(with_receive().group(GROUP))
            .packets([send(Opcode::UC_SEND_ONLY, 0, 8).dest_qp(MC_QPN).dst(GROUP)])
            .drops(DropReason::BadMulticast),
        case("a datagram to a group with a wrong Q_Key", group)
            .given(with_receive().group(GROUP))
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP).qkey(0x2222)])
            .drops(DropReason::WrongQkey),
        case("a datagram to a group of another partition", group)
            .given(with_receive().group(GROUP))
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP).pkey(0x8001)])
            .drops(DropReason::WrongPkey),
        case("a damaged datagram to a group", group)
            .given(with_receive().group(GROUP))
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP).damage(22, "payload")])
            .drops(DropReason::IcrcMismatch),
        case("a datagram to the group of a QP that was destroyed", group)
            .given(with_receive().group(GROUP))
            .destroy()
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP)])
            .drops(DropReason::NoMulticast),
        case("a datagram to the group of a QP in ERR", group)
            .given(ud().state(QpState::Err).group(GROUP))
            .packets([datagram(8).dest_qp(MC_QPN).dst(GROUP)])
            .note("other members might be open: it is passed over in silence"),
    ]
}
