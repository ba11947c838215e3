//! Destinations for which the kernel does not segment packets (UDP_SEGMENT).
//!
//! An IPsec policy or the MTU of a path can prevent segmentation for one destination and not for
//! others. Bursts to such destinations are sent packet by packet.
//!
//! A socket sends a single packet with ID 0, but packet `i` of a burst carries the ICRC for ID `i`
//! ([`crate::host::udp_socket`]). So each packet gets the ICRC for ID 0 here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rxe_core::wire::{IpId, NetHeader, icrc};

/// The time after which segmentation is tried again, because the obstacle may be gone.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// The maximum number of destinations remembered.
const MAX_DESTINATIONS: usize = 1024;

/// Destinations to which bursts are sent packet by packet, each with the time when that ends.
#[derive(Debug, Default)]
pub(super) struct Unsegmented(HashMap<IpAddr, Instant>);

impl Unsegmented {
    /// Makes bursts to this destination leave packet by packet for [`RETRY_AFTER`].
    pub(super) fn insert(&mut self, dst: IpAddr) {
        let now = Instant::now();
        if self.0.len() >= MAX_DESTINATIONS {
            self.0.retain(|_, until| now < *until);
        }
        if self.0.len() >= MAX_DESTINATIONS {
            // The next burst to a removed destination adds it again.
            self.0.clear();
        }
        self.0.insert(dst, now + RETRY_AFTER);
    }

    /// Allows segmentation for this destination again: the burst was refused for another reason.
    pub(super) fn remove(&mut self, dst: IpAddr) {
        self.0.remove(&dst);
    }

    /// Returns whether bursts to this destination are sent packet by packet.
    pub(super) fn has(&mut self, dst: IpAddr) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let has = self.0.get(&dst).is_some_and(|until| Instant::now() < *until);
        if !has {
            self.0.remove(&dst);
        }
        has
    }

    /// Makes all entries expire immediately.
    #[cfg(test)]
    pub(super) fn expire(&mut self) {
        self.0.values_mut().for_each(|until| *until = Instant::now());
    }
}

/// Returns packet `index` of a burst without its ICRC, and its new ICRC for being sent alone. `net`
/// is the header of the burst's first packet.
pub(super) fn single<'p>(net: &NetHeader, index: usize, packet: &'p [u8]) -> (&'p [u8], [u8; 4]) {
    let Some((body, trailer)) = packet.split_last_chunk::<4>() else { return (packet, [0; 4]) };
    let of_burst = net.nth(u16::try_from(index).unwrap_or(0));
    let IpId::Known { flags, .. } = of_burst.id else { return (body, *trailer) };
    let alone = NetHeader { id: IpId::Known { id: 0, flags }, ..of_burst };
    // The two ICRCs are combined by XOR, so that a wrong ICRC stays wrong.
    let change = icrc::compute(&of_burst, body) ^ icrc::compute(&alone, body);
    (body, (u32::from_le_bytes(*trailer) ^ change).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_forgets_and_has_a_bound() {
        let mut unsegmented = Unsegmented::default();
        let ip = |n: u32| IpAddr::from(std::net::Ipv4Addr::from(n));
        for n in 0..5000 {
            unsegmented.insert(ip(n));
            assert!(unsegmented.has(ip(n)) && unsegmented.0.len() <= MAX_DESTINATIONS);
        }
        unsegmented.expire();
        assert!(!unsegmented.has(ip(4999)));
    }

    #[test]
    fn a_single_packet_has_the_icrc_for_id_0() {
        let [a, b]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        let net = NetHeader::outgoing(a, b, 4791);
        let mut packet = vec![7; 60];
        icrc::append(&net.nth(5), &mut packet, 0);
        let (body, trailer) = single(&net, 5, &packet);
        let alone = [body, &trailer].concat();
        assert_eq!(icrc::check(&net, &alone), Ok(()));
        packet[63] ^= 1;
        let (body, trailer) = single(&net, 5, &packet);
        assert!(icrc::check(&net, &[body, &trailer].concat()).is_err());
    }
}
