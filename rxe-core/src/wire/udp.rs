//! UDP header and the internet checksum. RFC 768, RFC 1071.
//!
//! RoCEv2 needs no UDP checksum, because the ICRC is stronger. The checksum is sent as 0 unless the
//! caller requests one, also over IPv6 like kernel `rdma_rxe`, and it is not checked.

use std::net::IpAddr;

use super::DropReason;

/// The length of a UDP header in bytes.
pub(super) const LEN: usize = 8;

/// The IP protocol number of UDP.
pub(super) const PROTOCOL: u8 = 17;

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Udp {
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) checksum: u16,
}

impl Udp {
    /// Parses the header of a datagram, and returns it with the payload. The length field must
    /// equal the length of the datagram, because the ICRC is computed for one length.
    pub(super) fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let (head, rest) = datagram.split_first_chunk::<LEN>().ok_or(DropReason::Truncated)?;
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *head;
        if usize::from(u16::from_be_bytes([l0, l1])) != datagram.len() {
            return Err(DropReason::BadIpHeader);
        }
        let [src_port, dst_port, checksum] = [[s0, s1], [d0, d1], [c0, c1]].map(u16::from_be_bytes);
        Ok((Self { src_port, dst_port, checksum }, rest))
    }

    /// Returns the header of a datagram with `payload_len` bytes of payload.
    pub(super) fn emit(&self, payload_len: usize) -> [u8; LEN] {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [l0, l1] = len16(LEN + payload_len).to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }

    /// Returns the header with its checksum over `payload` and the addresses.
    pub(super) fn with_checksum(self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> Self {
        let blank = Self { checksum: 0, ..self };
        let length = len16(LEN + payload.len());
        let sum = Sum::default()
            .add_ip(src)
            .add_ip(dst)
            .add(&[0, PROTOCOL])
            .add(&length.to_be_bytes())
            .add(&blank.emit(payload.len()))
            .add(payload)
            .finish();
        // 0 would mean that there is no checksum.
        Self { checksum: if sum == 0 { 0xffff } else { sum }, ..self }
    }
}

/// An internet checksum, computed in parts. Each part except the last must have an even number of
/// bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        let (pairs, last) = bytes.as_chunks::<2>();
        let pairs: u64 = pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum();
        let last: u64 = last.iter().map(|&byte| u64::from(byte) << 8).sum();
        Self(self.0 + pairs + last)
    }

    fn add_ip(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => self.add(&ip.octets()),
            IpAddr::V6(ip) => self.add(&ip.octets()),
        }
    }

    pub(super) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !len16(usize::try_from(sum).unwrap_or(0))
    }
}

/// Truncates a length to a 16-bit header field.
#[expect(clippy::cast_possible_truncation, reason = "the caller keeps to 65,535 bytes")]
pub(super) fn len16(len: usize) -> u16 {
    debug_assert!(len <= 0xffff, "{len} bytes do not fit an IP packet");
    len as u16
}
