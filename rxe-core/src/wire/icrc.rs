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
//!
//! `rdma_rxe` (Linux 6.2, when FLUSH came, to at least 7.2) computes another ICRC for FLUSH: its table
//! of opcodes does not say where the payload of a FLUSH begins, so everything from BTH on is taken in a
//! second time, as payload. Such a kernel understands only its like. [`check`] accepts a FLUSH of theirs,
//! and [`Prefix::double`] makes one that they accept.

use super::{DropReason, IpId, NetHeader};

mod crc;
mod poly;
mod prefix;

pub use crc::choose;
pub use prefix::{Prefix, PrefixCache};

/// Bytes of an ICRC.
pub const LEN: usize = 4;

/// The flags field of a whole datagram with "don't fragment" set.
pub const DONT_FRAGMENT: u16 = 0x4000;

/// The ICRC of a packet given from BTH on, without the 4 bytes for the ICRC itself. The lengths in
/// the IP and UDP headers follow from it; hidden IPv4 fields are taken as ID 0, don't fragment.
#[inline]
pub fn compute(net: &NetHeader, packet: &[u8]) -> u32 {
    Prefix::new(net).compute(packet)
}

/// Appends the ICRC of the packet that stands in `buf` from `start` to its end.
///
/// # Panics
/// If `start` is beyond the end of `buf`.
#[inline]
pub fn append(net: &NetHeader, buf: &mut Vec<u8>, start: usize) {
    Prefix::new(net).append(buf, start);
}

/// Checks a packet given from BTH to ICRC. Where the IPv4 identification is hidden, any is accepted.
#[inline]
pub fn check(net: &NetHeader, packet: &[u8]) -> Result<(), DropReason> {
    Prefix::new(net).check(packet)
}

/// The IPv4 identification and flags with which the ICRC of a packet (given from BTH to ICRC) is
/// right, whatever `net` says of them. `None` if there are none such with flags 0 or "don't
/// fragment", or if the packet is IPv6 or too short.
pub fn recover_id(net: &NetHeader, packet: &[u8]) -> Option<(u16, u16)> {
    if !is_v4(net) {
        return None;
    }
    let net = NetHeader { id: IpId::Hidden, ..*net };
    recover(Prefix::new(&net).residue(packet).ok()?, packet.len(), 0)
}

/// CRC-32 of 8 bytes of ones: the state in which the IP header begins.
const CRC_OF_MASKED_LRH: u32 = 0x2144_df1c;

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

/// A length as its field holds it.
#[expect(clippy::cast_possible_truncation, reason = "no packet is longer; if one were, it fails")]
fn len16(len: usize) -> u16 {
    len as u16
}

#[cfg(test)]
mod tests;
