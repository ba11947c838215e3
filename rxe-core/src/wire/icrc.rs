//! The invariant CRC: the last 4 bytes of every packet. IBTA 7.8.1 and A17.3.3.
//!
//! It is the CRC-32 of Ethernet over: 8 bytes of ones in place of an LRH; the IP header with type
//! of service, time to live and checksum as ones (IPv6: traffic class, flow label and hop limit);
//! the UDP header with its checksum as ones; the BTH with byte 4 as ones; and everything after the
//! BTH. It is stored least significant byte first. It does not cover a VLAN tag.
//!
//! The ICRC covers the IPv4 identification and flags, but a UDP socket hides them
//! ([`IpId::Hidden`]). CRC is linear: if two packets differ only in these 4 bytes, their ICRCs
//! differ by a known, invertible function of the difference. Therefore the fields are recovered
//! from the packet itself. The price is a check of 15 bits instead of 32: other damage passes if it
//! looks like another identification.
//!
//! Kernel `rdma_rxe` (Linux 6.2, which added FLUSH, to at least 7.2) computes another ICRC for
//! FLUSH: its table of opcodes lacks the payload offset of a FLUSH, so everything from the BTH on
//! is included a second time, as payload. Such a kernel accepts only this ICRC. [`check`] accepts a
//! FLUSH with this ICRC, and [`Prefix::double`] creates one.

use super::{DropReason, IpId, NetHeader};

mod crc;
mod poly;
mod prefix;

pub use crc::choose;
pub use prefix::{Prefix, PrefixCache};

/// The length of an ICRC in bytes.
pub const LEN: usize = 4;

/// The IPv4 flags and fragment offset of an unfragmented datagram with "don't fragment" set.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// Returns the ICRC of a packet, given from the BTH on without the ICRC. The lengths in the IP and
/// UDP headers follow from the packet; hidden IPv4 fields are taken as ID 0, don't fragment.
#[inline]
pub fn compute(net: &NetHeader, packet: &[u8]) -> u32 {
    Prefix::new(net).compute(packet)
}

/// Appends the ICRC of the packet in `buf` that extends from `start` to the end.
///
/// # Panics
/// If `start` is beyond the end of `buf`.
#[inline]
pub fn append(net: &NetHeader, buf: &mut Vec<u8>, start: usize) {
    Prefix::new(net).append(buf, start);
}

/// Checks a packet, given from BTH to ICRC. If the IPv4 identification is hidden, any is accepted.
#[inline]
pub fn check(net: &NetHeader, packet: &[u8]) -> Result<(), DropReason> {
    Prefix::new(net).check(packet)
}

/// Returns the IPv4 identification and flags for which the ICRC of a packet is correct. The packet
/// is given from BTH to ICRC; the identification in `net` is ignored. Returns `None` if there are
/// none with flags 0 or "don't fragment", or if the packet is IPv6 or too short.
pub fn recover_id(net: &NetHeader, packet: &[u8]) -> Option<(u16, u16)> {
    if !is_v4(net) {
        return None;
    }
    let net = NetHeader { id: IpId::Hidden, ..*net };
    recover(Prefix::new(&net).residue(packet).ok()?, packet.len(), 0)
}

/// The CRC-32 of 8 bytes of ones, which is the state before the IP header.
const CRC_OF_MASKED_LRH: u32 = 0x2144_df1c;

/// Returns the identification and flags that explain a residue. The residue was computed with
/// `hint` and "don't fragment", for a packet of `len` bytes from BTH to ICRC.
fn recover(residue: u32, len: usize, hint: u16) -> Option<(u16, u16)> {
    // The covered bytes from the identification on: the rest of the IP header, the UDP header, the
    // packet.
    let covered = 16 + 8 + len.checked_sub(LEN)?;
    // The 4 bytes that differ, in the order in which the CRC register processes them: first byte
    // lowest.
    let [id0, id1, flags0, flags1] = poly::rewind(residue, covered).to_le_bytes();
    let id = u16::from_be_bytes([id0, id1]) ^ hint;
    let flags = u16::from_be_bytes([flags0, flags1]) ^ DONT_FRAGMENT;
    matches!(flags, 0 | DONT_FRAGMENT).then_some((id, flags))
}

fn is_v4(net: &NetHeader) -> bool {
    net.src.is_ipv4() && net.dst.is_ipv4()
}

/// Truncates a length to a 16-bit header field.
#[expect(clippy::cast_possible_truncation, reason = "no packet is longer; if one were, it fails")]
fn len16(len: usize) -> u16 {
    len as u16
}

#[cfg(test)]
mod tests;
