//! Ethernet header with up to two VLAN tags. IEEE 802.3, 802.1Q, 802.1ad.

use std::fmt;

use super::DropReason;

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mac({self})")
    }
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// The EtherType of the tag: [`VlanTag::CUSTOMER`] or [`VlanTag::SERVICE`].
    pub tpid: u16,
    /// Priority (3 bits), drop eligible indicator (1 bit) and VLAN ID (12 bits).
    pub tci: u16,
}

impl VlanTag {
    /// The tag type of 802.1Q.
    pub const CUSTOMER: u16 = 0x8100;
    /// The tag type of the outer of two tags, 802.1ad.
    pub const SERVICE: u16 = 0x88a8;

    /// Returns the VLAN ID.
    pub const fn vid(self) -> u16 {
        self.tci & 0xfff
    }
}

/// An Ethernet header with its VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ethernet {
    /// The destination address.
    pub dst: Mac,
    /// The source address.
    pub src: Mac,
    /// The only tag, or the outer of two.
    pub vlan: Option<VlanTag>,
    /// The inner of two tags.
    pub inner_vlan: Option<VlanTag>,
    /// The EtherType of the payload.
    pub ethertype: u16,
}

impl Ethernet {
    /// The EtherType of IPv4.
    pub const IPV4: u16 = 0x0800;
    /// The EtherType of IPv6.
    pub const IPV6: u16 = 0x86dd;

    /// Parses the header of a frame, and returns it with the rest of the frame.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let (dst, rest) = frame.split_first_chunk().ok_or(DropReason::Truncated)?;
        let (src, rest) = rest.split_first_chunk().ok_or(DropReason::Truncated)?;
        let (vlan, rest) = take_tag(rest)?;
        let (inner_vlan, rest) = if vlan.is_some() { take_tag(rest)? } else { (None, rest) };
        let (ethertype, rest) = rest.split_first_chunk().ok_or(DropReason::Truncated)?;
        let ethertype = u16::from_be_bytes(*ethertype);
        Ok((Self { dst: Mac(*dst), src: Mac(*src), vlan, inner_vlan, ethertype }, rest))
    }

    /// Appends the header to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.dst.0);
        out.extend_from_slice(&self.src.0);
        for tag in [self.vlan, self.inner_vlan].into_iter().flatten() {
            out.extend_from_slice(&tag.tpid.to_be_bytes());
            out.extend_from_slice(&tag.tci.to_be_bytes());
        }
        out.extend_from_slice(&self.ethertype.to_be_bytes());
    }
}

fn take_tag(bytes: &[u8]) -> Result<(Option<VlanTag>, &[u8]), DropReason> {
    let (tpid, rest) = bytes.split_first_chunk().ok_or(DropReason::Truncated)?;
    let tpid = u16::from_be_bytes(*tpid);
    if tpid != VlanTag::CUSTOMER && tpid != VlanTag::SERVICE {
        return Ok((None, bytes));
    }
    let (tci, rest) = rest.split_first_chunk().ok_or(DropReason::Truncated)?;
    Ok((Some(VlanTag { tpid, tci: u16::from_be_bytes(*tci) }), rest))
}
