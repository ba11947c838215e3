use super::*;
use proptest::prelude::*;

/// Creates a packet of this opcode: fields of zeros, `body` more bytes, a pad count, an ICRC.
fn bytes(opcode: u8, body: usize, pad: u8) -> Vec<u8> {
    let mut bytes = vec![0; Opcode(opcode).info().unwrap().header_len + body + icrc::LEN];
    (bytes[0], bytes[1]) = (opcode, pad << 4);
    bytes
}

fn reason(bytes: &[u8]) -> Option<DropReason> {
    Packet::parse(bytes).err()
}

#[test]
fn what_is_too_short_for_its_opcode_is_truncated() {
    for info in Opcode::all() {
        let whole = bytes(info.opcode.0, 0, 0);
        assert_eq!(reason(&whole), None, "{}", info.name);
        for len in 0..whole.len() {
            assert_eq!(reason(&whole[..len]), Some(DropReason::Truncated), "{} {len}", info.name);
        }
    }
}

#[test]
fn each_rule_of_structure_has_its_reason() {
    let good = bytes(0x04, 8, 3);
    assert_eq!(reason(&good), None);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        reason(&bytes)
    };
    assert_eq!(with(1, 0x01), Some(DropReason::BadVersion));
    assert_eq!(with(0, 0x2c), Some(DropReason::UnknownOpcode));
    assert_eq!(with(0, 0xff), Some(DropReason::UnknownOpcode));
    assert_eq!(reason(&bytes(0x04, 7, 0)), Some(DropReason::BadLength));
    assert_eq!(reason(&bytes(0x04, 0, 1)), Some(DropReason::BadPad));
    assert_eq!(reason(&bytes(0x04, 4, 3)), None);
    for opcode in [0x0c, 0x11, 0x12, 0x13, 0x14, 0x1c, 0x81] {
        let reason = reason(&bytes(opcode, 4, 0));
        assert_eq!(reason, Some(DropReason::UnexpectedPayload), "0x{opcode:02x}");
    }
}

#[test]
fn the_payload_ends_before_the_pad() {
    let mut bytes = bytes(0x05, 8, 3);
    let headers = 16;
    for (i, byte) in bytes[headers..].iter_mut().enumerate() {
        *byte = 1 + u8::try_from(i).unwrap();
    }
    bytes[12..16].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.payload(), [1, 2, 3, 4, 5]);
    assert_eq!(packet.pad(), 3);
    assert_eq!(packet.imm(), Some(0xdead_beef));
    assert_eq!(packet.icrc(), 0x0c0b_0a09, "least significant byte first");
    assert_eq!(packet.to_repr().pad_bytes, [6, 7, 8]);
}

#[test]
fn there_are_exactly_the_headers_of_the_row() {
    for info in Opcode::all() {
        let bytes = bytes(info.opcode.0, 0, 0);
        let ext = Packet::parse(&bytes).unwrap().ext();
        let have = [
            ext.reth.is_some(),
            ext.aeth.is_some(),
            ext.atomic.is_some(),
            ext.atomic_ack.is_some(),
            ext.imm.is_some(),
            ext.ieth.is_some(),
            ext.deth.is_some(),
            ext.feth.is_some(),
        ];
        let want = [
            info.has_reth,
            info.has_aeth,
            info.has_atomic,
            info.has_atomic_ack,
            info.has_imm,
            info.has_ieth,
            info.has_deth,
            info.has_feth,
        ];
        assert_eq!(have, want, "{}", info.name);
    }
}

#[test]
fn a_flush_has_its_feth_before_its_reth() {
    let mut bytes = bytes(0x1c, 0, 0);
    (bytes[15], bytes[23]) = (0x11, 0x22);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.feth(), Some(Feth { placement: 1, selectivity: 1, resv26: 0 }));
    assert_eq!(packet.reth().unwrap().va, 0x22);
}

/// Reads every field, so that a panic would be noticed.
fn touch(bytes: &[u8]) {
    if let Ok(packet) = Packet::parse(bytes) {
        let repr = packet.to_repr();
        assert_eq!(repr.payload.len() % 4, (4 - packet.pad()) % 4);
        assert_eq!(packet.opcode(), repr.bth.opcode);
        assert!(format!("{packet:?}").contains("psn"));
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        touch(&bytes);
    }

    #[test]
    fn bytes_that_begin_like_a_packet_never_panic(
        opcode in prop::sample::select(Opcode::all().map(|i| i.opcode.0).collect::<Vec<_>>()),
        flags in 0u8..16,
        rest in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut bytes = vec![opcode, flags << 4];
        bytes.extend(rest);
        touch(&bytes);
    }
}
