use super::super::{Packet, Position, SendExtra, Service};
use super::*;
use crate::types::{Psn, Qpn};
use crate::wire::NetHeader;
use proptest::prelude::*;

fn bth(opcode: Opcode) -> Bth {
    Bth::new(opcode, Qpn::from_wire(0x11), Psn::new(7))
}

#[test]
fn a_packet_is_headers_payload_pad_and_icrc() {
    let mut buf = vec![0xaa];
    let net = NetHeader::default();
    let ext = Ext { imm: Some(0x0102_0304), ..Ext::default() };
    let opcode = Opcode::send(Service::Rc, Position::Only, SendExtra::Immediate).unwrap();
    packet(&net, &mut buf, &bth(opcode), &ext, 5, |payload| {
        assert_eq!(payload, [0; 5]);
        payload.copy_from_slice(b"hello");
    });
    assert_eq!(buf.len(), 1 + len(opcode, 5));
    let (headers, rest) = buf[1..].split_at(16);
    let want = [0x05, 0x70, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 7, 1, 2, 3, 4];
    assert_eq!(headers, want, "the pad count is set");
    assert_eq!(rest[..8], *b"hello\0\0\0");
    assert_eq!(icrc::check(&net, &buf[1..]), Ok(()));

    let mut copied = vec![0xaa];
    packet_from(&net, &mut copied, &bth(opcode), &ext, b"hello");
    assert_eq!(copied, buf);
}

#[test]
fn a_cnp_is_32_bytes() {
    let mut buf = Vec::new();
    let bth = super::super::cnp::bth(Qpn::from_wire(0x1234));
    packet(&NetHeader::default(), &mut buf, &bth, &Ext::default(), 0, |_| ());
    assert_eq!(buf.len(), 32);
    assert_eq!(buf[..12], [0x81, 0x00, 0xff, 0xff, 0x40, 0, 0x12, 0x34, 0, 0, 0, 0]);
    assert_eq!(buf[12..28], [0; 16]);
}

proptest! {
    #[test]
    fn emitting_what_was_parsed_gives_the_same_bytes(
        opcode in prop::sample::select(Opcode::all().map(|i| i.opcode).collect::<Vec<_>>()),
        flags in 0u8..16,
        headers in prop::collection::vec(any::<u8>(), 44),
        body in prop::collection::vec(any::<[u8; 4]>(), 1..20),
    ) {
        let info = opcode.info().unwrap();
        let mut bytes = headers[..info.header_len].to_vec();
        (bytes[0], bytes[1]) = (opcode.0, flags << 4);
        if info.has_payload {
            bytes.extend(body.as_flattened());
        } else {
            bytes[1] &= !0x30;
        }
        let net = NetHeader::default();
        icrc::append(&net, &mut bytes, 0);

        let value = Packet::parse(&bytes).unwrap().to_repr();
        let mut again = Vec::new();
        repr(&net, &mut again, &value);
        prop_assert_eq!(&again, &bytes);
        prop_assert_eq!(Packet::parse(&again).unwrap().to_repr(), value);
    }
}
