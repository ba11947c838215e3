use super::*;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn v4() -> NetHeader {
    let [a, b] = [[10, 1, 2, 3], [10, 4, 5, 6]].map(|o| IpAddr::from(Ipv4Addr::from(o)));
    NetHeader { id: IpId::Known { id: 0x1234, flags: DONT_FRAGMENT }, ..outgoing(a, b) }
}

fn v6() -> NetHeader {
    let ip = |last| IpAddr::from(Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, last));
    outgoing(ip(1), ip(2))
}

fn outgoing(src: IpAddr, dst: IpAddr) -> NetHeader {
    NetHeader::outgoing(src, dst, 0xc123)
}

/// Returns pseudo-random bytes that are equal in every run.
fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    })
}

/// Creates a packet of `len` bytes with a correct ICRC.
fn packet(net: &NetHeader, len: usize, seed: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        noise(seed).flat_map(u64::to_le_bytes).take(len.saturating_sub(LEN)).collect();
    append(net, &mut bytes, 0);
    bytes
}

fn hidden(net: NetHeader) -> NetHeader {
    NetHeader { id: IpId::Hidden, ..net }
}

/// Returns all copies of a packet with one bit flipped.
fn flips(packet: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..packet.len() * 8).map(|bit| {
        let mut flipped = packet.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        (bit, flipped)
    })
}

#[test]
fn the_state_after_a_masked_lrh_is_right() {
    assert_eq!(crc32fast::hash(&[0xff; 8]), CRC_OF_MASKED_LRH);
}

/// A FLUSH from Linux 6.12, from BTH on: 10.47.91.11 to 10.47.91.1, source port 0xfa03, ID 0x8977.
const KERNEL_FLUSH: [u8; 36] = [
    0x1c, 0x00, 0xff, 0xff, 0x00, 0x01, 0xff, 0xa6, 0x80, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01,
    0x00, 0x00, 0x56, 0x0f, 0x38, 0xab, 0xe0, 0x00, 0xc6, 0x77, 0x0f, 0x8a, 0x00, 0x00, 0x13, 0x88,
    0x24, 0x95, 0x44, 0x63,
];

#[test]
fn a_flush_of_rdma_rxe_is_accepted_and_one_that_it_accepts_can_be_made() {
    let net = NetHeader {
        id: IpId::Known { id: 0x8977, flags: DONT_FRAGMENT },
        ..NetHeader::outgoing([10, 47, 91, 11].into(), [10, 47, 91, 1].into(), 0xfa03)
    };
    assert_eq!(check(&net, &KERNEL_FLUSH), Ok(()));
    assert_eq!(check(&hidden(net), &KERNEL_FLUSH), Ok(()));
    assert_ne!(Prefix::new(&net).residue(&KERNEL_FLUSH), Ok(0), "it is not the right one");
    // Byte 4 of the BTH is covered the second time. With a changed opcode, the packet is no FLUSH.
    for (bit, flipped) in flips(&KERNEL_FLUSH) {
        assert_eq!(check(&net, &flipped), Err(DropReason::IcrcMismatch), "bit {bit}");
    }
    let mut other = [0x1d; 36];
    other[1..].copy_from_slice(&KERNEL_FLUSH[1..]);
    Prefix::new(&net).double(&mut other, 0);
    assert_eq!(check(&net, &other), Err(DropReason::IcrcMismatch), "only FLUSH has two");
    let mut ours = [&[0; 3], &KERNEL_FLUSH[..]].concat();
    ours[3 + 32..].fill(0);
    Prefix::new(&net).double(&mut ours, 3);
    assert_eq!(ours[3..], KERNEL_FLUSH);
}

#[test]
fn every_bit_of_the_packet_but_bth_byte_4_is_covered() {
    for net in [v4(), v6()] {
        let packet = packet(&net, 60, 1);
        assert_eq!(check(&net, &packet), Ok(()));
        for (bit, flipped) in flips(&packet) {
            assert_eq!(check(&net, &flipped).is_ok(), bit / 8 == 4, "bit {bit}");
        }
    }
}

#[test]
fn what_routers_may_change_is_not_covered() {
    for net in [v4(), v6()] {
        let packet = packet(&net, 60, 2);
        let changed = NetHeader { tos: 0xc2, ttl: 3, flow_label: 0xabcde, ..net };
        assert_eq!(check(&changed, &packet), Ok(()));
        let port = NetHeader { src_port: net.src_port ^ 1, ..net };
        assert_eq!(check(&port, &packet), Err(DropReason::IcrcMismatch));
        let swapped = NetHeader { src: net.dst, dst: net.src, ..net };
        assert_eq!(check(&swapped, &packet), Err(DropReason::IcrcMismatch));
    }
    let net = v4();
    for id in [
        IpId::Known { id: 0x1235, flags: DONT_FRAGMENT },
        IpId::Known { id: 0x1234, flags: 0 },
        IpId::Absent,
    ] {
        let packet = packet(&net, 60, 2);
        assert_eq!(check(&NetHeader { id, ..net }, &packet), Err(DropReason::IcrcMismatch));
    }
}

#[test]
fn short_and_empty_packets_are_answered_without_a_panic() {
    for len in 0..40 {
        for net in [v4(), hidden(v4()), v6()] {
            let verdict = check(&net, &vec![0; len]);
            assert!(verdict.is_err(), "{len}");
            assert_eq!(verdict == Err(DropReason::Truncated), len < LEN, "{len}");
            recover_id(&net, &vec![0; len]);
        }
    }
}

#[test]
fn a_hidden_identification_is_recovered_at_any_length() {
    for len in (16..5000).step_by(52).chain([16, 20, 279, 280, 281, 1040, 65_000]) {
        for id in [0, 1, 0x00ff, 0xff00, 0x8000, 0xffff] {
            for flags in [0, DONT_FRAGMENT] {
                let net = NetHeader { id: IpId::Known { id, flags }, ..v4() };
                let packet = packet(&net, len, id.into());
                assert_eq!(recover_id(&net, &packet), Some((id, flags)));
                assert_eq!(check(&hidden(net), &packet), Ok(()));
                let guess = |id| Prefix::new(&hidden(net)).nth(id).check(&packet);
                assert_eq!(guess(id), Ok(()), "a right guess");
                assert_eq!(guess(id.wrapping_add(77)), Ok(()), "a wrong one");
            }
        }
    }
}

#[test]
fn other_flags_are_no_explanation() {
    for flags in [0x2000, 0x8000, 0x6000, 0x4001, 0x1fff] {
        let net = NetHeader { id: IpId::Known { id: 5, flags }, ..v4() };
        let packet = packet(&net, 100, 3);
        assert_eq!(check(&hidden(net), &packet), Err(DropReason::IcrcMismatch));
        assert_eq!(recover_id(&net, &packet), None);
    }
}

#[test]
fn an_ipv6_packet_has_nothing_to_recover() {
    let packet = packet(&v6(), 100, 4);
    assert_eq!(recover_id(&v6(), &packet), None);
    assert_eq!(check(&hidden(v6()), &packet), Ok(()));
    let mut damaged = packet;
    damaged[50] ^= 1;
    assert_eq!(check(&hidden(v6()), &damaged), Err(DropReason::IcrcMismatch));
}

/// Of all 2³² damage patterns, 2¹⁷ look like another identification: one in 32,768.
#[test]
fn damage_passes_for_another_identification_as_rarely_as_it_must() {
    let net = hidden(v4());
    let mut random = noise(5);
    let mut passed = 0;
    const TRIES: usize = 200_000;
    for _ in 0..TRIES {
        let mut packet = packet(&net, 40, 6);
        // A burst of up to 64 bits somewhere before the ICRC, outside byte 4 of the BTH.
        let burst = random.next().unwrap() | 1;
        let at = 5 + usize::try_from(random.next().unwrap() % 24).unwrap();
        for (byte, error) in packet[at..].iter_mut().zip(burst.to_le_bytes()) {
            *byte ^= error;
        }
        passed += usize::from(check(&net, &packet).is_ok());
    }
    let expected = TRIES / 32_768;
    assert!((1..=3 * expected).contains(&passed), "{passed} of {TRIES}, about {expected} expected");
}

#[test]
fn few_single_flipped_bits_pass_for_another_identification() {
    let net = hidden(v4());
    let mut passed = 0;
    let mut tries = 0;
    for len in [16, 32, 1040] {
        for (bit, flipped) in flips(&packet(&net, len, 7)).filter(|(bit, _)| bit / 8 != 4) {
            tries += 1;
            let ok = check(&net, &flipped).is_ok();
            assert_eq!(ok, recover_id(&net, &flipped).is_some(), "bit {bit}");
            passed += usize::from(ok);
        }
    }
    assert!(passed <= 2, "{passed} of {tries}");
}

/// Returns the ICRC as IBTA A17.3.3 describes it: computed over all headers, masked, and the
/// packet.
fn by_the_book(net: &NetHeader, packet: &[u8]) -> u32 {
    use crate::wire::frame::{UdpChecksum, emit_ip};
    let with_icrc = [packet, &[0; LEN]].concat();
    let mut bytes = Vec::new();
    emit_ip(net, crate::wire::UDP_PORT, UdpChecksum::None, &with_icrc, &mut bytes);
    let ip_len = bytes.len() - with_icrc.len() - 8;
    let masked: &[usize] = if is_v4(net) { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    for &at in masked.iter().chain(&[ip_len + 6, ip_len + 7, ip_len + 8 + 4]) {
        bytes[at] = 0xff;
    }
    if !is_v4(net) {
        bytes[0] |= 0x0f;
    }
    bytes.truncate(bytes.len() - LEN);
    crc32fast::hash(&[&[0xff; 8], &bytes[..]].concat())
}

proptest! {
    #[test]
    fn the_short_way_gives_what_the_book_says(
        ipv6: bool, src: u128, dst: u128, port: u16, id: u16, df: bool, index: u16,
        bytes in prop::collection::vec(any::<u8>(), 12..3000),
    ) {
        let flags = if df { DONT_FRAGMENT } else { 0 };
        let ip = |n: u128| match ipv6 {
            true => IpAddr::from(n.to_be_bytes()),
            false => IpAddr::from([n.to_be_bytes()[0], 7, 8, n.to_be_bytes()[3]]),
        };
        let id = if ipv6 { IpId::Absent } else { IpId::Known { id, flags } };
        let net = NetHeader { id, ..NetHeader::outgoing(ip(src), ip(dst), port) };
        prop_assert_eq!(compute(&net, &bytes), by_the_book(&net, &bytes));
        let nth = Prefix::new(&net).nth(index).compute(&bytes);
        prop_assert_eq!(nth, by_the_book(&net.nth(index), &bytes));
    }

    #[test]
    fn the_hidden_check_accepts_what_the_full_one_does(
        id: u16, hint: u16, df: bool, seed: u64, len in 16usize..2000,
    ) {
        let flags = if df { DONT_FRAGMENT } else { 0 };
        let net = NetHeader { id: IpId::Known { id, flags }, ..v4() };
        let packet = packet(&net, len, seed);
        prop_assert_eq!(check(&net, &packet), Ok(()));
        prop_assert_eq!(Prefix::new(&hidden(net)).nth(hint).check(&packet), Ok(()));
        prop_assert_eq!(recover_id(&net, &packet), Some((id, flags)));
    }

    #[test]
    fn what_is_recovered_satisfies_the_full_check(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Some((id, flags)) = recover_id(&v4(), &bytes) {
            let net = NetHeader { id: IpId::Known { id, flags }, ..v4() };
            prop_assert_eq!(check(&net, &bytes), Ok(()));
        }
    }
}
