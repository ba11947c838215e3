//! Classic BPF programs that accept only RoCEv2 to our addresses and queue pairs. Other traffic of
//! a busy host thus costs this process nothing.

use std::net::IpAddr;

use libc::sock_filter;
use rxe_core::wire::{QPN_BLOCK, UDP_PORT};

use crate::host::Blocks;

const LD_W_ABS: u16 = 0x20;
pub(super) const LD_H_ABS: u16 = 0x28;
const LD_B_ABS: u16 = 0x30;
const LD_H_IND: u16 = 0x48;
const LD_B_IND: u16 = 0x50;
const AND_K: u16 = 0x54;
const LSH_K: u16 = 0x64;
const TAX: u16 = 0x07;
const JEQ_K: u16 = 0x15;
pub(super) const JSET_K: u16 = 0x45;
pub(super) const JA: u16 = 0x05;
pub(super) const RET_K: u16 = 0x06;

/// SKF_AD_OFF + SKF_AD_PROTOCOL: the EtherType, independent of its offset in the frame.
const PROTOCOL: u32 = 0xffff_f000;
/// SKF_AD_OFF + SKF_AD_VLAN_TAG: the VLAN tag that the kernel has removed from the frame, or 0.
const VLAN_TAG: u32 = 0xffff_f02c;
/// SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT: whether the kernel has removed a tag.
const VLAN_TAG_PRESENT: u32 = 0xffff_f030;
pub(super) const WHOLE: u32 = u32::MAX;

/// The offset of the destination QPN's high 8 bits after the IP header: UDP, then BTH.
#[expect(clippy::cast_possible_truncation, reason = "a place in a header")]
const BLOCK: u32 = 8 + QPN_BLOCK as u32;

/// Returns the program for packets whose IP header begins at `ip`, to QPNs of `blocks`. It drops
/// frames of other VLANs, which a packet socket receives before the host checks their recipient.
pub(super) fn program(ip: u32, addresses: &[IpAddr], blocks: Blocks) -> Vec<sock_filter> {
    let v4 = match_v4(ip, addresses, blocks);
    let v6 = match_v6(ip, addresses, blocks);
    let mut p = own_vlan();
    p.push(op(LD_H_ABS, PROTOCOL));
    p.extend(if_equal(0x0800, &v4));
    p.extend(if_equal(0x86dd, &v6));
    p.push(op(RET_K, 0));
    p
}

/// Returns the program for the frames of a separate station. It accepts frames to its Ethernet
/// address, and of those to groups RoCEv2, the discovery of neighbours and of group members (ARP,
/// ICMPv6, IGMP), and answers of DHCP servers. It drops frames of other VLANs.
pub(crate) fn station(mac: [u8; 6]) -> Vec<sock_filter> {
    const IP: u32 = 14;
    let [a, b, c, d, e, f] = mac;
    let mut p = own_vlan();
    p.extend([op(LD_W_ABS, 0), jump(u32::from_be_bytes([a, b, c, d]), 0, 3)]);
    p.extend([op(LD_H_ABS, 4), jump(u32::from_be_bytes([0, 0, e, f]), 0, 1), op(RET_K, WHOLE)]);
    p.extend([op(LD_B_ABS, 0), sock_filter { code: JSET_K, jt: 1, jf: 0, k: 1 }, op(RET_K, 0)]);
    p.push(op(LD_H_ABS, PROTOCOL));
    p.extend(pass_if(0x0806));
    // ICMPv6, also after a hop-by-hop header.
    let mut v6 = vec![op(LD_B_ABS, IP + 6)];
    v6.extend([pass_if(58), pass_if(0)].concat());
    v6.extend(roce_v6(IP));
    v6.push(op(RET_K, WHOLE));
    p.extend(if_equal(0x86dd, &v6));
    const IGMP: u32 = 2;
    let mut v4 = vec![op(LD_B_ABS, IP + 9)];
    v4.extend(pass_if(IGMP));
    v4.extend(udp_port_v4(IP));
    v4.extend([pass_if(68), pass_if(UDP_PORT.into())].concat());
    v4.push(op(RET_K, 0));
    p.extend(if_equal(0x0800, &v4));
    p.push(op(RET_K, 0));
    p
}

/// Drops frames of other VLANs. A tag that only carries a priority does not name a VLAN.
fn own_vlan() -> Vec<sock_filter> {
    // On the interface of a VLAN the kernel has consumed the tag; Linux 4.20 to 6.1 leave its value
    // in the metadata.
    let other = [&[op(LD_H_ABS, VLAN_TAG), op(AND_K, 0xfff)][..], &or_drop(0)].concat();
    let mut p = vec![op(LD_H_ABS, VLAN_TAG_PRESENT)];
    p.extend(if_equal(1, &other));
    p
}

/// Runs `part` only if the accumulator equals `value`.
pub(super) fn if_equal(value: u32, part: &[sock_filter]) -> Vec<sock_filter> {
    let over = u32::try_from(part.len()).unwrap_or(u32::MAX);
    let mut p = vec![jump(value, 1, 0), op(JA, over)];
    p.extend_from_slice(part);
    p
}

fn match_v4(ip: u32, addresses: &[IpAddr], blocks: Blocks) -> Vec<sock_filter> {
    let mut p = roce_v4(ip);
    p.push(op(LD_B_IND, ip + BLOCK));
    p.extend(one_or_drop(blocks));
    p.push(op(LD_W_ABS, ip + 16));
    for address in addresses {
        if let IpAddr::V4(address) = address {
            p.extend(pass_if(u32::from(*address)));
        }
    }
    p.push(op(RET_K, 0));
    p
}

fn match_v6(ip: u32, addresses: &[IpAddr], blocks: Blocks) -> Vec<sock_filter> {
    let mut p = roce_v6(ip);
    p.push(op(LD_B_ABS, ip + 40 + BLOCK));
    p.extend(one_or_drop(blocks));
    for address in addresses {
        if let IpAddr::V6(address) = address {
            // Each of the four words is loaded and compared. On a mismatch the next address is
            // tried.
            for (word, left) in address.octets().chunks_exact(4).zip([7, 5, 3, 1]) {
                let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
                let at = ip + 24 + 2 * (7 - u32::from(left));
                p.extend([op(LD_W_ABS, at), jump(word, 0, left)]);
            }
            p.push(op(RET_K, WHOLE));
        }
    }
    p.push(op(RET_K, 0));
    p
}

/// Continues with UDP to RoCEv2's port after the IPv4 header at `ip`, and drops everything else.
/// Leaves the length of that header, options included, in X.
pub(super) fn roce_v4(ip: u32) -> Vec<sock_filter> {
    let mut p = udp_port_v4(ip);
    p.extend(or_drop(UDP_PORT.into()));
    p
}

/// Loads the UDP destination port, and drops everything but UDP. Leaves the length of the IPv4
/// header in X.
fn udp_port_v4(ip: u32) -> Vec<sock_filter> {
    let mut p = vec![op(LD_B_ABS, ip + 9)];
    p.extend(or_drop(17));
    p.extend([op(LD_B_ABS, ip), op(AND_K, 0xf), op(LSH_K, 2), op(TAX, 0)]);
    p.push(op(LD_H_IND, ip + 2));
    p
}

/// Like [`roce_v4`], after the IPv6 header at `ip`.
pub(super) fn roce_v6(ip: u32) -> Vec<sock_filter> {
    let mut p = vec![op(LD_B_ABS, ip + 6)];
    p.extend(or_drop(17));
    p.push(op(LD_H_ABS, ip + 42));
    p.extend(or_drop(UDP_PORT.into()));
    p
}

/// Accepts the packet if the accumulator equals `value`, and continues otherwise.
fn pass_if(value: u32) -> [sock_filter; 2] {
    [jump(value, 0, 1), op(RET_K, WHOLE)]
}

/// Continues if the accumulator equals `value`, and drops the packet otherwise.
fn or_drop(value: u32) -> [sock_filter; 2] {
    [jump(value, 1, 0), op(RET_K, 0)]
}

/// Continues if the accumulator is one of these blocks, and drops the packet otherwise.
fn one_or_drop(blocks: Blocks) -> Vec<sock_filter> {
    let last = blocks.iter().count();
    // There are at most 255 blocks, so a jump from the first can pass the last.
    let to = |at: usize| u8::try_from(last - at).unwrap_or(u8::MAX);
    let mut p: Vec<_> =
        blocks.iter().enumerate().map(|(at, block)| jump(block.into(), to(at), 0)).collect();
    p.push(op(RET_K, 0));
    p
}

pub(super) fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Skips `jt` instructions if the accumulator equals `k`, else `jf` instructions.
pub(super) fn jump(k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: JEQ_K, jt, jf, k }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::backends::packet::headers::ethertype;
    use rxe_core::wire::NetHeader;
    use rxe_core::wire::frame::{IpUdpHeader, UdpChecksum};

    /// Runs a program as the kernel would. Returns `None` for a load outside the packet, which
    /// drops it.
    pub(in crate::backends::packet) fn run(
        program: &[sock_filter],
        ethertype: u16,
        packet: &[u8],
    ) -> Option<u32> {
        run_tagged(program, ethertype, Tag::None { before: 0 }, packet)
    }

    /// The VLAN tag that the kernel has removed from a frame.
    #[derive(Clone, Copy)]
    enum Tag {
        /// No tag is left. `before` is the tag that a VLAN's interface has consumed, whose value
        /// Linux 4.20 to 6.1 leave behind.
        None {
            before: u16,
        },
        Some(u16),
    }

    /// Like [`run`], for a frame with a tag.
    fn run_tagged(program: &[sock_filter], ethertype: u16, tag: Tag, packet: &[u8]) -> Option<u32> {
        let (is_tagged, tag) = match tag {
            Tag::None { before } => (0, before),
            Tag::Some(tag) => (1, tag),
        };
        let (mut a, mut x, mut pc) = (0u32, 0u32, 0usize);
        let load = |at: u32, n: usize| -> Option<u32> {
            let bytes = packet.get(at as usize..at as usize + n)?;
            Some(bytes.iter().fold(0, |v, b| v << 8 | u32::from(*b)))
        };
        loop {
            let i = program[pc];
            pc += 1;
            match i.code {
                LD_H_ABS if i.k == PROTOCOL => a = ethertype.into(),
                LD_H_ABS if i.k == VLAN_TAG_PRESENT => a = is_tagged,
                LD_H_ABS if i.k == VLAN_TAG => a = tag.into(),
                LD_W_ABS => a = load(i.k, 4)?,
                LD_H_ABS => a = load(i.k, 2)?,
                LD_B_ABS => a = load(i.k, 1)?,
                LD_H_IND => a = load(x + i.k, 2)?,
                LD_B_IND => a = load(x + i.k, 1)?,
                AND_K => a &= i.k,
                LSH_K => a <<= i.k,
                TAX => x = a,
                JEQ_K => pc += usize::from(if a == i.k { i.jt } else { i.jf }),
                JSET_K => pc += usize::from(if a & i.k != 0 { i.jt } else { i.jf }),
                JA => pc += i.k as usize,
                RET_K => return Some(i.k),
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn only_our_addresses_and_port_pass() {
        let ours: Vec<IpAddr> = ["10.0.0.1", "10.0.0.2", "fe80::1", "2001:db8::1:2"]
            .iter()
            .map(|a| a.parse().unwrap())
            .collect();
        let program = program(14, &ours, Blocks::from_iter([7, 9, 200]));
        let passes_to = |dst: &str, port, block| {
            let dst: IpAddr = dst.parse().unwrap();
            let net = NetHeader::outgoing(dst, dst, 1);
            let ip = IpUdpHeader::new(&net, port, UdpChecksum::None, &[0; 6]);
            let frame = [&[0; 14], ip.as_bytes(), &[0, 0, 0, 0, 0, block]].concat();
            run(&program, ethertype(dst), &frame) == Some(WHOLE)
        };
        let passes = |dst: &str, port| passes_to(dst, port, 7);
        for ours in &ours {
            assert!(passes(&ours.to_string(), 4791), "{ours}");
            assert!(!passes(&ours.to_string(), 4790));
            for (block, own) in
                [(7, true), (9, true), (200, true), (0, false), (8, false), (201, false)]
            {
                assert_eq!(passes_to(&ours.to_string(), 4791, block), own, "{block}");
            }
        }
        for other in ["10.0.0.3", "fe80::2", "fe80:1::1", "2001:db8:1::1:2"] {
            assert!(!passes(other, 4791), "{other}");
        }
        assert_eq!(run(&program, 0x0806, &[0; 60]), Some(0), "ARP");
    }

    #[test]
    fn a_station_gets_what_is_for_it_and_what_finds_it() {
        let mac = [2, 0, 0, 0x12, 0xff, 1];
        let program = station(mac);
        let passes_with = |dst: [u8; 6], ethertype: u16, tag, packet: &[u8]| {
            let frame = [&dst[..], &[4; 6], &ethertype.to_be_bytes(), packet].concat();
            run_tagged(&program, ethertype, tag, &frame) == Some(WHOLE)
        };
        let passes = |dst, ethertype, tag, packet: &[u8]| {
            let tag = if tag == 0 { Tag::None { before: 0 } } else { Tag::Some(tag) };
            passes_with(dst, ethertype, tag, packet)
        };
        let (all, arp) = ([0xff; 6], [0; 28]);
        assert!(passes(mac, 0x0800, 0, &[0; 20]) && passes(mac, 0x88cc, 0, &[]));
        for other in [[2, 0, 0, 0x12, 0xff, 2], [2, 0, 0, 0x13, 0xff, 1], [4; 6]] {
            assert!(!passes(other, 0x0806, 0, &arp), "{other:x?}");
        }
        assert!(passes(all, 0x0806, 0, &arp));
        assert!(!passes(all, 0x88cc, 0, &[0; 60]));
        // A tag that only carries a priority does not name a VLAN.
        assert!(passes(mac, 0x0806, 0xe000, &arp) && passes(all, 0x0806, 0xe000, &arp));
        assert!(!passes(mac, 0x0806, 0xe005, &arp) && !passes(all, 0x0806, 5, &arp));
        assert!(passes_with(mac, 0x0806, Tag::None { before: 5 }, &arp), "an interface of VLAN 5");
        let group = [0x33, 0x33, 0, 0, 0, 1];
        let ipv6 = |next: u8| [&[0x60, 0, 0, 0, 0, 8, next, 255][..], &[0; 40]].concat();
        assert!(passes(group, 0x86dd, 0, &ipv6(58)) && !passes(group, 0x86dd, 0, &ipv6(17)));
        assert!(passes(group, 0x86dd, 0, &ipv6(0)), "MLD");
        for (to, passed) in [(68, true), (67, false), (UDP_PORT, true)] {
            for ip in ["10.0.0.1", "fd09::1"] {
                let ip: IpAddr = ip.parse().unwrap();
                let net = NetHeader::outgoing(ip, ip, 1);
                let udp = IpUdpHeader::new(&net, to, UdpChecksum::None, &[]);
                let passed = passed && (ip.is_ipv4() || to == UDP_PORT);
                assert_eq!(passes(all, ethertype(ip), 0, udp.as_bytes()), passed, "{ip} {to}");
            }
        }
        let ipv4 =
            |protocol: u8| [&[0x45, 0, 0, 28, 0, 0, 0, 0, 1, protocol][..], &[0; 18]].concat();
        assert!(passes(all, 0x0800, 0, &ipv4(2)) && !passes(all, 0x0800, 0, &ipv4(1)));
    }

    #[test]
    fn frames_of_other_vlans_do_not_pass() {
        let ours: IpAddr = "10.0.0.1".parse().unwrap();
        let net = NetHeader::outgoing(ours, ours, 1);
        let ip = IpUdpHeader::new(&net, 4791, UdpChecksum::None, &[0; 6]);
        let frame = [&[0; 14], ip.as_bytes(), &[0, 0, 0, 0, 0, 7]].concat();
        let program = program(14, &[ours], Blocks::from_iter([7]));
        let passes = |tag| run_tagged(&program, 0x0800, tag, &frame) == Some(WHOLE);
        assert!(!passes(Tag::Some(5)) && !passes(Tag::Some(0xe005)));
        // A tag that only carries a priority does not name a VLAN.
        assert!(passes(Tag::Some(0xe000)) && passes(Tag::None { before: 5 }));
    }

    #[test]
    fn a_process_may_have_all_blocks() {
        let ours: IpAddr = "10.0.0.1".parse().unwrap();
        let program = program(0, &[ours], (1..=255).collect());
        let net = NetHeader::outgoing(ours, ours, 1);
        let ip = IpUdpHeader::new(&net, 4791, UdpChecksum::None, &[0; 6]);
        for block in 0..=255 {
            let packet = [ip.as_bytes(), &[0, 0, 0, 0, 0, block]].concat();
            assert_eq!(run(&program, 0x0800, &packet) == Some(WHOLE), block > 0, "{block}");
        }
    }

    #[test]
    fn options_move_the_port() {
        let ours: IpAddr = "10.0.0.1".parse().unwrap();
        let net = NetHeader::outgoing(ours, ours, 1);
        let mut packet = IpUdpHeader::new(&net, 4791, UdpChecksum::None, &[]).as_bytes().to_vec();
        packet[0] = 0x46;
        packet.splice(20..20, [1, 1, 1, 0]);
        packet.extend([0, 0, 0, 0, 0, 7]);
        assert_eq!(run(&program(0, &[ours], Blocks::from_iter([7])), 0x0800, &packet), Some(WHOLE));
    }
}
