//! The invariant CRC: the last 4 bytes of every packet. IBTA 7.8.1 and A17.3.3.
//!
//! CRC-32 as Ethernet has it, over: 8 bytes of ones in place of an LRH; the IP header with type of
//! service, time to live and checksum as ones (IPv6: traffic class, flow label and hop limit); the
//! UDP header with its checksum as ones; the BTH with byte 4 as ones; and everything after that.
//! Stored least significant byte first. A VLAN tag is not covered.
//!
//! The IPv4 identification and flags are covered, but a UDP socket hides them
//! ([`IpId::Hidden`]). CRC is linear: two packets that differ in these 4 bytes alone have ICRCs that
//! differ by a known function of the difference, and that function can be turned round. So the
//! fields are recovered from the packet itself, at the price of a check of 15 bits instead of 32:
//! damage elsewhere passes if it looks like another identification.

use std::net::IpAddr;

use crc32fast::Hasher;

use super::{DropReason, IpId, NetHeader, UDP_PORT, bth};

mod poly;

/// Bytes of an ICRC.
pub const LEN: usize = 4;

/// The flags field of a whole datagram with "don't fragment" set.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The ICRC of a packet given from BTH on, without the 4 bytes for the ICRC itself. The lengths in
/// the IP and UDP headers follow from it; hidden IPv4 fields are taken as ID 0, don't fragment.
#[inline]
pub fn compute(net: &NetHeader, packet: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(CRC_OF_MASKED_LRH);
    let (masked, rest) = match packet.split_first_chunk::<{ bth::LEN }>() {
        Some((bth, rest)) => {
            let mut masked = *bth;
            masked[4] = 0xff;
            (masked, rest)
        }
        // Too short to be a packet: any value will do.
        None => ([0xff; bth::LEN], packet),
    };
    match (net.src, net.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let (id, flags) = match net.id {
                IpId::Known { id, flags } => (id, flags),
                IpId::Hidden | IpId::Absent => (0, DONT_FRAGMENT),
            };
            let udp_len = len16(packet.len() + LEN + 8);
            let mut head = [0xff; 20 + 8 + bth::LEN];
            head[0] = 0x45;
            head[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            head[4..6].copy_from_slice(&id.to_be_bytes());
            head[6..8].copy_from_slice(&flags.to_be_bytes());
            head[9] = UDP_PROTOCOL;
            head[12..16].copy_from_slice(&src.octets());
            head[16..20].copy_from_slice(&dst.octets());
            head[20..26].copy_from_slice(&udp(net.src_port, udp_len));
            head[28..].copy_from_slice(&masked);
            hasher.update(&head);
        }
        (src, dst) => {
            let udp_len = len16(packet.len() + LEN + 8);
            let mut head = [0xff; 40 + 8 + bth::LEN];
            head[0] = 0x6f;
            head[4..6].copy_from_slice(&udp_len.to_be_bytes());
            head[6] = UDP_PROTOCOL;
            head[8..24].copy_from_slice(&v6_octets(src));
            head[24..40].copy_from_slice(&v6_octets(dst));
            head[40..46].copy_from_slice(&udp(net.src_port, udp_len));
            head[48..].copy_from_slice(&masked);
            hasher.update(&head);
        }
    }
    hasher.update(rest);
    hasher.finalize()
}

/// Appends the ICRC of the packet that stands in `buf` from `start` to its end.
///
/// # Panics
/// If `start` is beyond the end of `buf`.
#[inline]
pub fn append(net: &NetHeader, buf: &mut Vec<u8>, start: usize) {
    let icrc = compute(net, &buf[start..]);
    buf.extend_from_slice(&icrc.to_le_bytes());
}

/// Checks a packet given from BTH to ICRC. Where the IPv4 identification is hidden, any is accepted.
#[inline]
pub fn check(net: &NetHeader, packet: &[u8]) -> Result<(), DropReason> {
    check_hint(net, packet, 0)
}

/// The same, trying `hint` as the hidden identification first (with "don't fragment"): a right guess
/// saves recovering it. The hint weakens nothing and is ignored where the fields are known.
#[inline]
pub fn check_hint(net: &NetHeader, packet: &[u8], hint: u16) -> Result<(), DropReason> {
    let residue = residue(net, packet, hint)?;
    if residue == 0 {
        return Ok(());
    }
    match net.id {
        IpId::Hidden if is_v4(net) => {
            recover(residue, packet.len(), hint).map(drop).ok_or(DropReason::IcrcMismatch)
        }
        _ => Err(DropReason::IcrcMismatch),
    }
}

/// The IPv4 identification and flags with which the ICRC of a packet (given from BTH to ICRC) is
/// right, whatever `net` says of them. `None` if there are none such with flags 0 or "don't
/// fragment", or if the packet is IPv6 or too short.
pub fn recover_id(net: &NetHeader, packet: &[u8]) -> Option<(u16, u16)> {
    if !is_v4(net) {
        return None;
    }
    let net = NetHeader { id: IpId::Hidden, ..*net };
    recover(residue(&net, packet, 0).ok()?, packet.len(), 0)
}

/// CRC-32 of 8 bytes of ones: the state in which the IP header begins.
const CRC_OF_MASKED_LRH: u32 = 0x2144_df1c;

const UDP_PROTOCOL: u8 = 17;

/// The difference between the ICRC in the packet and the one computed; hidden fields taken as `hint`
/// and "don't fragment".
#[inline]
fn residue(net: &NetHeader, packet: &[u8], hint: u16) -> Result<u32, DropReason> {
    let (body, icrc) = packet.split_last_chunk().ok_or(DropReason::Truncated)?;
    let assumed = match net.id {
        IpId::Hidden => IpId::Known { id: hint, flags: DONT_FRAGMENT },
        known => known,
    };
    Ok(compute(&NetHeader { id: assumed, ..*net }, body) ^ u32::from_le_bytes(*icrc))
}

/// What identification and flags explain a residue that came of assuming `hint` and "don't
/// fragment", in a packet of `len` bytes from BTH to ICRC.
fn recover(residue: u32, len: usize, hint: u16) -> Option<(u16, u16)> {
    // From the identification on: the rest of the IP header, the UDP header, the packet.
    let covered = 16 + 8 + len.checked_sub(LEN)?;
    // The 4 bytes that differ, as the CRC register takes them in: first byte lowest.
    let [id0, id1, flags0, flags1] = poly::rewind(residue, covered).to_le_bytes();
    let id = u16::from_be_bytes([id0, id1]) ^ hint;
    let flags = u16::from_be_bytes([flags0, flags1]) ^ DONT_FRAGMENT;
    matches!(flags, 0 | DONT_FRAGMENT).then_some((id, flags))
}

fn is_v4(net: &NetHeader) -> bool {
    net.src.is_ipv4() && net.dst.is_ipv4()
}

/// The UDP header up to its checksum.
#[inline]
fn udp(src_port: u16, len: u16) -> [u8; 6] {
    let ([s0, s1], [d0, d1]) = (src_port.to_be_bytes(), UDP_PORT.to_be_bytes());
    let [l0, l1] = len.to_be_bytes();
    [s0, s1, d0, d1, l0, l1]
}

fn v6_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A length as its field holds it.
#[expect(clippy::cast_possible_truncation, reason = "no packet is longer; if one were, it fails")]
fn len16(len: usize) -> u16 {
    len as u16
}

#[cfg(test)]
mod tests;
