//! Tests with third-party captures of hardware. Each frame is decoded, its ICRC is verified, and it
//! is emitted again byte for byte. Damage to any covered bit is noticed; damage to other bits is
//! not.
//!
//! The captures are not part of the project. Without them the tests are reported as skipped.

use rxe_core::wire::frame::{Datagram, UdpChecksum, emit_ethernet, parse_ethernet};
use rxe_core::wire::{
    DropReason, Ethernet, IpId, NakCode, NetHeader, OpKind, Packet, Syndrome, UDP_PORT, emit, icrc,
};
use rxe_tests::captures::{pcap_frames, read, read_bytes, rows_of, unhex};

/// A RoCEv2 frame and its source.
struct Sample {
    name: String,
    frame: Vec<u8>,
}

#[test]
fn every_frame_comes_back_byte_for_byte_from_its_decoded_value() {
    let Some(samples) = samples("every_frame_comes_back_byte_for_byte_from_its_decoded_value")
    else {
        return;
    };
    for Sample { name, frame } in &samples {
        let (ethernet, datagram) = parse_ethernet(frame).unwrap_or_else(|e| panic!("{name}: {e}"));
        let packet = Packet::parse(datagram.payload).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (ethernet, net, repr) = (ethernet, datagram.net, packet.to_repr());

        let mut payload = Vec::new();
        emit::repr(&net, &mut payload, &repr);
        assert_eq!(payload, datagram.payload, "{name}: {packet:?}");
        assert_eq!(payload.len(), emit::len(packet.opcode(), packet.payload().len()), "{name}");

        let mut again = Vec::new();
        let checksum = UdpChecksum::Exact(datagram.checksum);
        emit_ethernet(&ethernet, &net, UDP_PORT, checksum, &payload, &mut again);
        assert_eq!(&again, frame, "{name}");
    }
}

#[test]
fn every_icrc_is_right_with_the_identification_and_without() {
    let Some(samples) = samples("every_icrc_is_right_with_the_identification_and_without") else {
        return;
    };
    for Sample { name, frame } in &samples {
        let Datagram { net, payload, .. } = parse_ethernet(frame).unwrap().1;
        assert_eq!(icrc::check(&net, payload), Ok(()), "{name}");
        let IpId::Known { id, flags } = net.id else { panic!("{name}: these are all IPv4") };
        let hidden = NetHeader { id: IpId::Hidden, ..net };
        assert_eq!(icrc::check(&hidden, payload), Ok(()), "{name}");
        assert_eq!(icrc::recover_id(&hidden, payload), Some((id, flags)), "{name}");
    }
}

#[test]
fn a_flipped_bit_is_noticed_exactly_where_the_icrc_covers_it() {
    let Some(samples) = samples("a_flipped_bit_is_noticed_exactly_where_the_icrc_covers_it") else {
        return;
    };
    for Sample { name, frame } in &samples {
        let payload = parse_ethernet(frame).unwrap().1.payload.len();
        let (udp, ip) = (frame.len() - payload - 8, frame.len() - payload - 28);
        for at in ip..frame.len() {
            // The masked bytes: type of service, time to live, header checksum; UDP checksum; BTH
            // byte 4.
            let masked = [1, 8, 10, 11].contains(&(at - ip))
                || [udp + 6, udp + 7, udp + 8 + 4].contains(&at);
            for bit in 0..8 {
                let mut flipped = frame.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(receive(&flipped).is_ok(), masked, "{name}: byte {at} bit {bit}");
            }
        }
    }
}

/// Handles a frame as a device does that receives whole frames.
fn receive(frame: &[u8]) -> Result<(), DropReason> {
    let arrived = parse_ethernet(frame)?.1.frame()?;
    Packet::parse(arrived.payload)?;
    icrc::check(&arrived.net, arrived.payload)
}

#[test]
fn vectors_are_what_their_labels_say() {
    let Some(text) = read("vectors_are_what_their_labels_say", "vectors.tsv") else { return };
    let mut rows = 0;
    for row in rows_of(&text) {
        let [_, name, kind, opcode, icrc, frame] = row[..] else { panic!("six columns: {row:?}") };
        let frame = unhex(frame);
        let (ethernet, datagram) = parse_ethernet(&frame).unwrap();
        assert_eq!(ethernet.ethertype, Ethernet::IPV4, "{name}");
        assert_eq!(ethernet.vlan.is_some(), kind.ends_with("+vlan"), "{name}");
        let packet = Packet::parse(datagram.payload).unwrap();
        assert_eq!(packet.opcode().name(), ours(opcode), "{name}");
        assert_eq!(packet.icrc().to_le_bytes(), unhex(icrc)[..], "{name}");
        rows += 1;
    }
    assert_eq!(rows, 73);
}

/// Returns the specification's name of an opcode label in the vectors.
fn ours(label: &str) -> &str {
    match label {
        "CNP" => "CNP",
        "RC_ACK" => "RC_ACKNOWLEDGE",
        "RC_ATOMIC_ACK" => "RC_ATOMIC_ACKNOWLEDGE",
        "RC_CAS" => "RC_COMPARE_SWAP",
        "RC_0x18(ext masked CAS)" => "RC_MASKED_COMPARE_SWAP",
        "RC_RD_REQ" => "RC_READ_REQUEST",
        "RC_RD_RESP_ONLY" => "RC_READ_RESPONSE_ONLY",
        "RC_SEND_FIRST" => "RC_SEND_FIRST",
        "RC_SEND_LAST_IMM" => "RC_SEND_LAST_WITH_IMMEDIATE",
        "RC_SEND_ONLY" => "RC_SEND_ONLY",
        "RC_SEND_ONLY_IMM" => "RC_SEND_ONLY_WITH_IMMEDIATE",
        "RC_WR_ONLY" => "RC_WRITE_ONLY",
        "UC_SEND_ONLY" => "UC_SEND_ONLY",
        "UD_SEND_ONLY" => "UD_SEND_ONLY",
        other => panic!("an opcode label not seen before: {other}"),
    }
}

#[test]
fn the_connectx_conversation_reads_as_it_happened() {
    let test = "the_connectx_conversation_reads_as_it_happened";
    let Some(bytes) = read_bytes(test, "mlx5-read-cas.pcap") else { return };
    let frames = pcap_frames(&bytes);
    let packets: Vec<_> = frames
        .iter()
        .filter_map(|frame| {
            let roce = parse_ethernet(frame).and_then(|(_, datagram)| datagram.frame()).ok()?;
            Some(Packet::parse(roce.payload).expect("each is well formed"))
        })
        .collect();
    assert_eq!((frames.len(), packets.len()), (24, 16), "the others are TCP");

    let request = packets.iter().find(|p| p.info().kind == OpKind::ReadRequest).unwrap();
    let response = packets.iter().find(|p| p.info().kind == OpKind::ReadResponse).unwrap();
    assert_eq!(response.psn(), request.psn());
    assert_eq!(request.reth().unwrap().dma_len as usize, response.payload().len());

    let masked: Vec<_> =
        packets.iter().filter(|p| p.info().kind == OpKind::MaskedCompareSwap).collect();
    assert!(masked.iter().all(|p| p.payload().len() == 16), "two masks follow the operands");
    let addresses: Vec<_> = masked.iter().map(|p| p.atomic().unwrap().va).collect();
    assert_eq!(addresses, [0, 0, 1]);

    let nak = packets.iter().find(|p| p.info().kind == OpKind::Acknowledge).unwrap();
    let want = (masked[2].psn(), Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!((nak.psn(), nak.aeth().unwrap().syndrome), want, "an atomic must be aligned");
}

/// Returns all RoCEv2 frames. Without the captures, reports the test as skipped and returns `None`.
fn samples(test: &str) -> Option<Vec<Sample>> {
    let text = read(test, "vectors.tsv")?;
    let capture = read_bytes(test, "mlx5-read-cas.pcap")?;
    let mut samples: Vec<_> = rows_of(&text)
        .map(|row| Sample { name: format!("{} {}", row[0], row[1]), frame: unhex(row[5]) })
        .collect();
    for (i, frame) in pcap_frames(&capture).into_iter().enumerate() {
        if parse_ethernet(frame).is_ok_and(|(_, datagram)| datagram.dst_port == UDP_PORT) {
            samples.push(Sample { name: format!("pcap {}", i + 1), frame: frame.to_vec() });
        }
    }
    assert_eq!(samples.len(), 73 + 16);
    Some(samples)
}
