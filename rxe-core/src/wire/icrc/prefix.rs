//! What stands in front of a BTH, as far as the ICRC covers it, worked out once for many packets.
//!
//! CRC is linear, so the lengths and the IPv4 identification, which differ from packet to packet, are
//! put in afterwards: each of their bytes changes the register by what a table says for its place.
//! BTH byte 4, which counts as ones whatever it is, is corrected in the same way, before it is read.
//! What remains is one pass over the packet as it stands.

use std::net::IpAddr;

use super::crc;
use super::poly::{self, REWIND_4};
use super::{CRC_OF_MASKED_LRH, DONT_FRAGMENT, LEN, len16, recover};
use crate::wire::{DropReason, IpId, NetHeader, Opcode, UDP_PORT, udp};

/// The IP and UDP headers of a packet, or of the packets of a burst, as the ICRC sees them.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// The CRC of everything before the BTH, lengths and identification taken as 0.
    base: u32,
    /// The identification, or what is tried first for it.
    id: u16,
    family: Family,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    /// The identification is not known.
    V4Hidden,
    V6,
}

/// The prefix of the last packet: those of the next have mostly the same.
#[derive(Clone, Copy, Debug)]
pub struct PrefixCache {
    net: NetHeader,
    prefix: Prefix,
}

impl PrefixCache {
    /// What [`Prefix::new`] makes of these headers.
    #[inline]
    pub fn get(&mut self, net: &NetHeader) -> Prefix {
        if self.net != *net {
            *self = Self { net: *net, prefix: Prefix::new(net) };
        }
        self.prefix
    }

    /// That of the last packet.
    #[inline]
    pub fn last(&self) -> Prefix {
        self.prefix
    }
}

impl Default for PrefixCache {
    fn default() -> Self {
        let net = NetHeader::default();
        Self { net, prefix: Prefix::new(&net) }
    }
}

impl Prefix {
    /// For packets with these headers. Hidden IPv4 fields are taken as ID 0, don't fragment.
    #[inline]
    pub fn new(net: &NetHeader) -> Self {
        match (net.src, net.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (id, flags, family) = match net.id {
                    IpId::Known { id, flags } => (id, flags, Family::V4),
                    IpId::Hidden => (0, DONT_FRAGMENT, Family::V4Hidden),
                    IpId::Absent => (0, DONT_FRAGMENT, Family::V4),
                };
                let mut head = [0xff; 20 + 8];
                head[0] = 0x45;
                head[2..6].fill(0);
                head[6..8].copy_from_slice(&flags.to_be_bytes());
                head[9] = udp::PROTOCOL;
                head[12..16].copy_from_slice(&src.octets());
                head[16..20].copy_from_slice(&dst.octets());
                Self::of(&mut head, net.src_port, id, family)
            }
            (src, dst) => {
                let mut head = [0xff; 40 + 8];
                head[0] = 0x6f;
                head[4..6].fill(0);
                head[6] = udp::PROTOCOL;
                head[8..24].copy_from_slice(&v6_octets(src));
                head[24..40].copy_from_slice(&v6_octets(dst));
                Self::of(&mut head, net.src_port, 0, Family::V6)
            }
        }
    }

    /// Completes a head with its UDP header.
    #[inline]
    fn of(head: &mut [u8], src_port: u16, id: u16, family: Family) -> Self {
        if let Some(([s0, s1, d0, d1, l0, l1], _checksum)) =
            head.last_chunk_mut::<8>().and_then(|udp| udp.split_first_chunk_mut())
        {
            [*s0, *s1] = src_port.to_be_bytes();
            [*d0, *d1] = UDP_PORT.to_be_bytes();
            [*l0, *l1] = [0; 2];
        }
        Self { base: crc::append(CRC_OF_MASKED_LRH, head), id, family }
    }

    /// Of the packet `index` places after this one in the same buffer: its identification is greater
    /// by that, or, where it is hidden, is first guessed to be.
    #[inline]
    pub fn nth(mut self, index: u16) -> Self {
        self.id = self.id.wrapping_add(index);
        self
    }

    /// The IPv4 identification that the ICRC is for; `None` if it is hidden or there is none.
    pub fn id(&self) -> Option<u16> {
        (self.family == Family::V4).then_some(self.id)
    }

    /// The ICRC of a packet given from BTH on, without the 4 bytes for the ICRC itself.
    #[inline]
    pub fn compute(&self, packet: &[u8]) -> u32 {
        let udp_len = len16(packet.len() + LEN + 8);
        let mut state = self.base ^ change(udp_len, &UDP_LEN);
        state ^= match self.family {
            Family::V6 => change(udp_len, &V6_LEN),
            Family::V4 | Family::V4Hidden => {
                change(udp_len.wrapping_add(20), &V4_LEN) ^ change(self.id, &V4_ID)
            }
        };
        if let Some(byte4) = packet.get(4) {
            state ^= REWIND_4[usize::from(byte4 ^ 0xff)];
        }
        crc::append(state, packet)
    }

    /// Appends the ICRC of the packet that stands in `buf` from `start` to its end.
    ///
    /// # Panics
    /// If `start` is beyond the end of `buf`.
    #[inline]
    pub fn append(&self, buf: &mut Vec<u8>, start: usize) {
        let icrc = self.compute(&buf[start..]);
        buf.extend_from_slice(&icrc.to_le_bytes());
    }

    /// Checks a packet given from BTH to ICRC. Where the IPv4 identification is hidden, any is
    /// accepted; a right guess ([`Prefix::nth`]) saves recovering it. A FLUSH may have the ICRC of
    /// `rdma_rxe` instead.
    #[inline]
    pub fn check(&self, packet: &[u8]) -> Result<(), DropReason> {
        let result = self.explain(self.residue(packet)?, packet.len());
        if result.is_err() && packet.first() == Some(&Opcode::RC_FLUSH.0) {
            return self.check_doubled(packet);
        }
        result
    }

    /// Checks a packet whose ICRC takes everything from BTH on in twice.
    #[cold]
    fn check_doubled(&self, packet: &[u8]) -> Result<(), DropReason> {
        let (body, icrc) = packet.split_last_chunk().ok_or(DropReason::Truncated)?;
        let residue = self.compute_doubled(body) ^ u32::from_le_bytes(*icrc);
        self.explain(residue, 2 * body.len() + LEN)
    }

    /// Gives the packet that stands in `buf` from `start` to its end, with an ICRC, the ICRC that
    /// `rdma_rxe` expects of a FLUSH instead.
    pub fn double(&self, buf: &mut [u8], start: usize) {
        let packet = buf.get_mut(start..).and_then(<[u8]>::split_last_chunk_mut);
        if let Some((body, icrc)) = packet {
            *icrc = self.compute_doubled(body).to_le_bytes();
        }
    }

    /// The second time nothing counts as ones.
    fn compute_doubled(&self, packet: &[u8]) -> u32 {
        crc::append(self.compute(packet), packet)
    }

    /// Whether a packet of `len` bytes with this residue is right.
    #[inline]
    fn explain(&self, residue: u32, len: usize) -> Result<(), DropReason> {
        if residue == 0 {
            return Ok(());
        }
        match self.family {
            Family::V4Hidden => {
                recover(residue, len, self.id).map(drop).ok_or(DropReason::IcrcMismatch)
            }
            Family::V4 | Family::V6 => Err(DropReason::IcrcMismatch),
        }
    }

    /// The difference between the ICRC in the packet and the one computed.
    #[inline]
    pub(super) fn residue(&self, packet: &[u8]) -> Result<u32, DropReason> {
        let (body, icrc) = packet.split_last_chunk().ok_or(DropReason::Truncated)?;
        Ok(self.compute(body) ^ u32::from_le_bytes(*icrc))
    }
}

impl From<&NetHeader> for Prefix {
    #[inline]
    fn from(net: &NetHeader) -> Self {
        Self::new(net)
    }
}

impl From<&Self> for Prefix {
    #[inline]
    fn from(prefix: &Self) -> Self {
        *prefix
    }
}

/// How a field of two bytes changes the register: a table for each byte.
type Change = [[u32; 256]; 2];

#[inline]
fn change(field: u16, tables: &Change) -> u32 {
    let [high, low] = field.to_be_bytes();
    tables[0][usize::from(high)] ^ tables[1][usize::from(low)]
}

/// For a field that ends so many bytes before the BTH.
const fn field(before: usize) -> Change {
    [poly::passed(before + 1), poly::passed(before)]
}

static UDP_LEN: Change = field(2);
static V4_LEN: Change = field(24);
static V4_ID: Change = field(22);
static V6_LEN: Change = field(42);

fn v6_octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
