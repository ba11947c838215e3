//! The ICRC state before the BTH, computed once for many packets.
//!
//! CRC is linear, so the lengths and the IPv4 identification, which differ from packet to packet,
//! are added afterwards: a table gives the effect of each of their bytes on the register. BTH byte
//! 4, which counts as ones whatever its value, is corrected in the same way before it is processed.
//! What remains is one pass over the unmodified packet.

use std::net::IpAddr;

use super::crc;
use super::poly::{self, REWIND_4};
use super::{CRC_OF_MASKED_LRH, DONT_FRAGMENT, LEN, len16, recover};
use crate::wire::{DropReason, IpId, NetHeader, Opcode, UDP_PORT, udp};

/// The IP and UDP headers of a packet, or of the packets of a burst, as the ICRC covers them.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    /// The CRC of everything before the BTH, with lengths and identification taken as 0.
    base: u32,
    /// The identification, or the first guess if it is hidden.
    id: u16,
    family: Family,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    /// IPv4 with a hidden identification.
    V4Hidden,
    V6,
}

/// The prefix of the last packet, because the next packet usually has equal headers.
#[derive(Clone, Copy, Debug)]
pub struct PrefixCache {
    net: NetHeader,
    prefix: Prefix,
}

impl PrefixCache {
    /// Returns [`Prefix::new`] for these headers.
    #[inline]
    pub fn get(&mut self, net: &NetHeader) -> Prefix {
        if self.net != *net {
            *self = Self { net: *net, prefix: Prefix::new(net) };
        }
        self.prefix
    }

    /// Returns the prefix of the last packet.
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
    /// Computes the prefix for packets with these headers. Hidden IPv4 fields are taken as ID 0,
    /// don't fragment.
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

    /// Completes `head` with its UDP header, and computes the prefix.
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

    /// Returns the prefix of the packet `index` places later in the same buffer. Its identification
    /// (or the guess, if it is hidden) is greater by `index`.
    #[inline]
    pub fn nth(mut self, index: u16) -> Self {
        self.id = self.id.wrapping_add(index);
        self
    }

    /// Returns the IPv4 identification that the ICRC is for, or `None` if it is hidden or absent.
    pub fn id(&self) -> Option<u16> {
        (self.family == Family::V4).then_some(self.id)
    }

    /// Returns the ICRC of a packet, given from the BTH on without the ICRC.
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

    /// Appends the ICRC of the packet in `buf` that extends from `start` to the end.
    ///
    /// # Panics
    /// If `start` is beyond the end of `buf`.
    #[inline]
    pub fn append(&self, buf: &mut Vec<u8>, start: usize) {
        let icrc = self.compute(&buf[start..]);
        buf.extend_from_slice(&icrc.to_le_bytes());
    }

    /// Checks a packet, given from BTH to ICRC. If the IPv4 identification is hidden, any is
    /// accepted; a correct guess ([`Prefix::nth`]) saves recovering it. A FLUSH may have the ICRC
    /// of kernel `rdma_rxe` instead.
    #[inline]
    pub fn check(&self, packet: &[u8]) -> Result<(), DropReason> {
        let result = self.explain(self.residue(packet)?, packet.len());
        if result.is_err() && packet.first() == Some(&Opcode::RC_FLUSH.0) {
            return self.check_doubled(packet);
        }
        result
    }

    /// Checks a packet whose ICRC covers everything from the BTH on twice.
    #[cold]
    fn check_doubled(&self, packet: &[u8]) -> Result<(), DropReason> {
        let (body, icrc) = packet.split_last_chunk().ok_or(DropReason::Truncated)?;
        let residue = self.compute_doubled(body) ^ u32::from_le_bytes(*icrc);
        self.explain(residue, 2 * body.len() + LEN)
    }

    /// Replaces the ICRC of a packet by the one that kernel `rdma_rxe` expects of a FLUSH. The
    /// packet extends from `start` to the end of `buf`.
    pub fn double(&self, buf: &mut [u8], start: usize) {
        let packet = buf.get_mut(start..).and_then(<[u8]>::split_last_chunk_mut);
        if let Some((body, icrc)) = packet {
            *icrc = self.compute_doubled(body).to_le_bytes();
        }
    }

    /// Computes the ICRC over the packet twice. In the second pass no field is masked.
    fn compute_doubled(&self, packet: &[u8]) -> u32 {
        crc::append(self.compute(packet), packet)
    }

    /// Checks whether a packet of `len` bytes with this residue is valid.
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

    /// Returns the difference between the ICRC in the packet and the computed one.
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

/// The effect of a field of two bytes on the register: a table for each byte.
type Change = [[u32; 256]; 2];

#[inline]
fn change(field: u16, tables: &Change) -> u32 {
    let [high, low] = field.to_be_bytes();
    tables[0][usize::from(high)] ^ tables[1][usize::from(low)]
}

/// Returns the tables of a field that ends `before` bytes before the BTH.
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
