//! Fuzzes frames.
//! Parsing never panics and never reads past the end. An accepted frame is emitted again as the
//! same bytes. The ICRC is correct after it was computed, and wrong after any change that it covers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_core::types::{Key, Pkey, Psn, Qkey, Qpn};
use rxe_core::wire::frame::{self, UdpChecksum};
use rxe_core::wire::{
    Aeth, AtomicEth, Bth, Deth, Ethernet, Ext, Feth, IpId, Mac, NetHeader, OpInfo, OpKind, Opcode,
    Packet, PacketRepr, Reth, Syndrome, UDP_PORT, VlanTag, emit, icrc,
};

use super::input::Input;

/// Parses the bytes as a frame, or builds a frame from them.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() % 4 {
        0 => ethernet(input.rest()),
        1 => ip(input.rest()),
        2 => packet(&NetHeader::default(), input.rest()),
        _ => made(&mut input),
    }
}

fn ethernet(bytes: &[u8]) {
    let Ok((ethernet, datagram)) = frame::parse_ethernet(bytes) else { return };
    assert!(datagram.payload.len() <= bytes.len());
    if let Ok(frame) = datagram.frame() {
        packet(&frame.net, frame.payload);
    }
    // Emits an accepted frame again. Options and padding are not kept, so only the fields are compared.
    let checksum = UdpChecksum::Exact(datagram.checksum);
    let mut again = Vec::new();
    frame::emit_ethernet(
        &ethernet,
        &datagram.net,
        datagram.dst_port,
        checksum,
        datagram.payload,
        &mut again,
    );
    assert_eq!(frame::parse_ethernet(&again), Ok((ethernet, datagram)));
}

fn ip(bytes: &[u8]) {
    let Ok(datagram) = frame::parse_ip(bytes) else { return };
    if let Ok(frame) = datagram.frame() {
        packet(&frame.net, frame.payload);
    }
}

/// Checks the bytes from BTH to ICRC.
fn packet(net: &NetHeader, bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        // The ICRC check must not panic either if these bytes are not a packet.
        let _ = icrc::check(net, bytes);
        let _ = icrc::recover_id(net, bytes);
        return;
    };
    let repr = packet.to_repr();
    assert!(packet.payload().len() + packet.pad() <= bytes.len());
    let mut again = Vec::new();
    emit::repr(net, &mut again, &repr);
    let body = bytes.len() - icrc::LEN;
    assert_eq!(again[..body], bytes[..body], "{packet:?}");
    assert_eq!(icrc::check(net, &again), Ok(()));
    let _ = icrc::check(net, bytes);
    if let Some((id, flags)) = icrc::recover_id(net, bytes) {
        let known = NetHeader { id: IpId::Known { id, flags }, ..*net };
        assert_eq!(icrc::check(&known, bytes), Ok(()));
    }
}

/// Builds a packet from the bytes and checks it.
fn made(input: &mut Input<'_>) {
    let net = net(input);
    let infos: Vec<_> = Opcode::all().collect();
    let info = input.pick(&infos);
    let bth = Bth {
        solicited: input.chance(128),
        ack_req: input.chance(128),
        pkey: Pkey::new(half(input)),
        ..Bth::new(info.opcode, Qpn::from_wire(input.word()), Psn::new(input.word()))
    };
    let ext = ext(input, info);
    let len = if info.has_payload { input.byte() } else { 0 };
    let payload = input.bytes(usize::from(len));
    let repr = PacketRepr { bth, ext, payload, pad_bytes: [0; 3] };
    let mut bytes = Vec::new();
    emit::repr(&net, &mut bytes, &repr);
    assert_eq!(icrc::check(&net, &bytes), Ok(()));
    let parsed = Packet::parse(&bytes).expect("what is emitted is well formed");
    let pad = parsed.bth().pad;
    assert_eq!(parsed.to_repr(), PacketRepr { bth: Bth { pad, ..bth }, ..repr });
    packet(&net, &bytes);

    let hidden = NetHeader { id: IpId::Hidden, ..net };
    if let IpId::Known { id, flags } = net.id {
        assert_eq!(icrc::check(&hidden, &bytes), Ok(()), "any ID is accepted");
        assert_eq!(icrc::recover_id(&hidden, &bytes), Some((id, flags)));
    }

    // One to three adjacent bytes are changed: an error burst of at most 24 bits, which CRC-32
    // always detects if all 32 bits are checked.
    let at = input.index(bytes.len() - 2);
    let mut spoiled = bytes.clone();
    for (byte, change) in spoiled[at..].iter_mut().zip(input.bytes(3)) {
        *byte ^= change;
    }
    let mut covered = (spoiled.clone(), bytes.clone());
    (covered.0[4], covered.1[4]) = (0, 0);
    let same = covered.0 == covered.1;
    assert_eq!(icrc::check(&net, &spoiled).is_ok(), same, "{at}");

    whole(input, &net, &bytes);
}

/// Checks the packet with Ethernet, IP and UDP headers.
fn whole(input: &mut Input<'_>, net: &NetHeader, payload: &[u8]) {
    let tpid = input.pick(&[VlanTag::CUSTOMER, VlanTag::SERVICE]);
    let vlan = input.chance(64).then(|| VlanTag { tpid, tci: half(input) });
    let (dst, src) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let ethernet = Ethernet { dst, src, vlan, ..Ethernet::default() };
    let checksum =
        input.pick(&[UdpChecksum::None, UdpChecksum::Compute, UdpChecksum::Exact(0x1234)]);
    let mut bytes = Vec::new();
    frame::emit_ethernet(&ethernet, net, UDP_PORT, checksum, payload, &mut bytes);
    bytes.resize(bytes.len() + usize::from(input.byte() % 8), 0);
    let (_, datagram) = frame::parse_ethernet(&bytes).expect("it was just made");
    assert_eq!((datagram.net, datagram.payload), (*net, payload));
    // A truncated frame is rejected, unless only padding was cut.
    let keep = input.index(bytes.len());
    if let Ok((_, datagram)) = frame::parse_ethernet(&bytes[..keep]) {
        assert_eq!(datagram.payload, payload);
    }
}

fn half(input: &mut Input<'_>) -> u16 {
    u16::from_be_bytes([input.byte(), input.byte()])
}

fn net(input: &mut Input<'_>) -> NetHeader {
    let v4 = |input: &mut Input<'_>| IpAddr::V4(Ipv4Addr::from_bits(input.word()));
    let v6 = |input: &mut Input<'_>| {
        IpAddr::V6(Ipv6Addr::from_bits(u128::from(input.bits()) << 64 | u128::from(input.bits())))
    };
    let is_v4 = input.chance(128);
    let (src, dst) = if is_v4 { (v4(input), v4(input)) } else { (v6(input), v6(input)) };
    let id = if is_v4 {
        IpId::Known { id: half(input), flags: input.pick(&[icrc::DONT_FRAGMENT, 0]) }
    } else {
        IpId::Absent
    };
    let flow_label = if is_v4 { 0 } else { input.word() & 0xf_ffff };
    NetHeader {
        src,
        dst,
        src_port: half(input),
        tos: input.byte(),
        ttl: input.byte(),
        flow_label,
        id,
    }
}

/// Returns the headers of an opcode, with arbitrary values.
pub(super) fn ext(input: &mut Input<'_>, info: &OpInfo) -> Ext {
    let is_cnp = info.kind == OpKind::Cnp;
    Ext {
        reth: info.has_reth.then(|| Reth {
            va: input.bits(),
            rkey: Key::new(input.word()),
            dma_len: input.word(),
        }),
        aeth: info.has_aeth.then(|| Aeth {
            syndrome: Syndrome::from_byte(input.byte()),
            msn: input.word() & 0xff_ffff,
        }),
        atomic: info.has_atomic.then(|| AtomicEth {
            va: input.bits(),
            rkey: Key::new(input.word()),
            swap_add: input.bits(),
            compare: input.bits(),
        }),
        atomic_ack: info.has_atomic_ack.then(|| input.bits()),
        imm: info.has_imm.then(|| input.word()),
        ieth: info.has_ieth.then(|| input.word()),
        deth: info
            .has_deth
            .then(|| Deth::new(Qkey::new(input.word()), Qpn::from_wire(input.word()))),
        xrc_srq: info.has_xrceth.then(|| input.word()),
        feth: info.has_feth.then(|| Feth::parse(&input.word().to_be_bytes())),
        cnp: is_cnp.then(|| [input.byte(); 16]),
    }
}
