//! UDP header and the internet checksum. RFC 768, RFC 1071.
//!
//! RoCEv2 needs no UDP checksum, the ICRC is better: it is sent as 0, over IPv6 too as kernel rxe
//! does, unless asked for, and not checked.

use std::net::IpAddr;

use super::DropReason;

/// Bytes of a UDP header.
pub(super) const LEN: usize = 8;

/// UDP's number among the protocols of IP.
pub(super) const PROTOCOL: u8 = 17;

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Udp {
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) checksum: u16,
}

impl Udp {
    /// Takes the header off a datagram. Its length must be that of the datagram: the ICRC is
    /// computed for one length.
    pub(super) fn parse(datagram: &[u8]) -> Result<(Self, &[u8]), DropReason> {
        let (head, rest) = datagram.split_first_chunk::<LEN>().ok_or(DropReason::Truncated)?;
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *head;
        if usize::from(u16::from_be_bytes([l0, l1])) != datagram.len() {
            return Err(DropReason::BadIpHeader);
        }
        let [src_port, dst_port, checksum] = [[s0, s1], [d0, d1], [c0, c1]].map(u16::from_be_bytes);
        Ok((Self { src_port, dst_port, checksum }, rest))
    }

    /// The header of a datagram with so many bytes after it.
    pub(super) fn emit(&self, payload_len: usize) -> [u8; LEN] {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [l0, l1] = len16(LEN + payload_len).to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }

    /// The same with its checksum over `payload` and the addresses.
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
        // 0 would say that there is none.
        Self { checksum: if sum == 0 { 0xffff } else { sum }, ..self }
    }
}

/// The internet checksum, part by part; each part but the last has an even number of bytes.
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

/// A length as its field holds it.
#[expect(clippy::cast_possible_truncation, reason = "the caller keeps to 65,535 bytes")]
pub(super) fn len16(len: usize) -> u16 {
    debug_assert!(len <= 0xffff, "{len} bytes do not fit an IP packet");
    len as u16
}
