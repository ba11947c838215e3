//! The 40 bytes that stand in front of every datagram received: the IP header that it came with.
//! An IPv4 header stands in the last 20 of them. IBTA A17.4.5.2.

use std::net::IpAddr;

use crate::wire::frame::{IpUdpHeader, UdpChecksum};
use crate::wire::{NetHeader, UDP_PORT};

/// Bytes in front of a datagram.
pub(super) const LEN: usize = 40;

/// The header of a datagram whose UDP payload, from BTH to ICRC, is `packet`.
pub(super) fn of(net: &NetHeader, packet: &[u8]) -> [u8; LEN] {
    const IPV4: usize = 20;
    let header = IpUdpHeader::new(net, UDP_PORT, UdpChecksum::None, packet);
    let bytes = header.as_bytes();
    let mut grh = [0; LEN];
    match net.src {
        IpAddr::V4(_) => grh[LEN - IPV4..].copy_from_slice(&bytes[..IPV4]),
        IpAddr::V6(_) => grh.copy_from_slice(&bytes[..LEN]),
    }
    grh
}
