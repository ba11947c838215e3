use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Packet, Ipv6Repr};

use super::super::discovery::{address_info, ethernet};
use super::*;

#[test]
fn a_ping_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = with_stranger(&dir);
    write_frame(&mut far, &solicitation([2, 0, 0, 0, 0, 2], ip("10.9.0.2"), ip("10.9.0.1")));
    write_frame(&mut far, &ping());
    near.receive(64, &mut |_| panic!("it is not for the engine")).unwrap();
    let answer = read_frame(&mut far);
    assert_eq!(address_info(&answer), Some(AddressInfo::Has(ip("10.9.0.1"), [2, 0, 0, 0, 0, 1])));
    let answer = read_frame(&mut far);
    // An ICMP echo reply.
    assert_eq!((answer[23], answer[34], &answer[42..49]), (1, 0, &b"payload"[..]));
}

/// Returns a ping from fd09::2 to fd09::1.
fn ping6() -> Vec<u8> {
    let (src, dst) = ("fd09::2".parse().unwrap(), "fd09::1".parse().unwrap());
    let icmp = Icmpv6Repr::EchoRequest { ident: 7, seq_no: 1, data: b"payload" };
    let header = Ipv6Repr {
        src_addr: src,
        dst_addr: dst,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        hop_limit: 64,
    };
    let len = header.buffer_len() + icmp.buffer_len();
    let (from, to) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
    ethernet(from, to, EthernetProtocol::Ipv6, len, |payload| {
        let mut packet = Ipv6Packet::new_unchecked(payload);
        header.emit(&mut packet);
        let sums = ChecksumCapabilities::default();
        icmp.emit(&src, &dst, &mut Icmpv6Packet::new_unchecked(packet.payload_mut()), &sums);
    })
}

#[test]
fn a_ping_over_ipv6_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = with_stranger(&dir);
    let other = [2, 0, 0, 0, 0, 2];
    write_frame(&mut far, &solicitation(other, ip("fd09::2"), ip("fd09::1")));
    write_frame(&mut far, &ping6());
    near.receive(64, &mut |_| panic!("it is not for the engine")).unwrap();
    let answer = loop {
        let frame = read_frame(&mut far);
        match address_info(&frame) {
            Some(info) => assert_eq!(info, AddressInfo::Has(ip("fd09::1"), [2, 0, 0, 0, 0, 1])),
            // A report of its groups to routers.
            None if frame[20] == 0 => {}
            None => break frame,
        }
    };
    let packet = Ipv6Packet::new_checked(&answer[14..]).unwrap();
    let (src, dst) = (packet.src_addr(), packet.dst_addr());
    let icmp = Icmpv6Packet::new_checked(packet.payload()).unwrap();
    let said = Icmpv6Repr::parse(&src, &dst, &icmp, &ChecksumCapabilities::default()).unwrap();
    assert_eq!((IpAddr::from(src), IpAddr::from(dst)), (ip("fd09::1"), ip("fd09::2")));
    assert_eq!(said, Icmpv6Repr::EchoReply { ident: 7, seq_no: 1, data: b"payload" });
}
