//! The GID table of an interface, in the order of a new kernel RoCEv2 device. IBTA annex A17.4.4;
//! Linux `ib_core`.
//!
//! Index 0 is the *default GID*: the link-local address made of the MAC, whether or not the
//! interface has that address. Then follow each IPv4 address, mapped, and each IPv6 address, as the
//! kernel lists them; one that equals the default GID is not repeated. Verified against kernels 6.1
//! and 7.2.
//!
//! The table differs from the kernel's in two ways. If the interface is not Ethernet (loopback,
//! tunnels), the table begins with its addresses: the kernel's default GID is useless there. And on
//! a point-to-point interface the kernel lists the IPv4 address of the peer; this table lists the
//! interface's own address, from which packets are sent.

use std::net::IpAddr;

use rxe_core::types::Gid;

use super::{Address, Interface};

/// The GID table of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable(Vec<GidEntry>);

/// An entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// The address of the interface that the GID stands for. `None` for a default GID that is not
    /// an address of the interface: it is listed, as in the kernel, but cannot be sent from.
    pub address: Option<Address>,
}

impl GidEntry {
    /// Returns whether packets can be sent from this GID now.
    pub fn is_usable(&self) -> bool {
        self.address.is_some_and(|a| !a.tentative)
    }
}

impl GidTable {
    /// The maximum number of entries, the same as in kernel `rdma_rxe`.
    pub const CAPACITY: usize = 1024;

    /// Returns the table of a newly created device on this interface.
    pub(super) fn of(interface: &Interface) -> Self {
        let default = default_gid(interface);
        let entry = |a: &Address| GidEntry { gid: a.ip.into(), address: Some(*a) };
        let mut entries = Vec::with_capacity(interface.addresses.len() + 1);
        entries.extend(default.map(|gid| GidEntry { gid, address: None }));
        for address in &interface.addresses {
            let new = entry(address);
            match entries.iter_mut().find(|e| e.gid == new.gid) {
                Some(old) => old.address = old.address.or(new.address),
                None => entries.push(new),
            }
        }
        entries.truncate(Self::CAPACITY);
        Self(entries)
    }

    /// Updates the table to the interface's current addresses, as the kernel does. A GID that stays
    /// keeps its index, a removed one leaves an empty entry (GID zero), and a new one takes the
    /// first empty entry or is appended.
    pub fn update(&mut self, interface: &Interface) {
        let now = Self::of(interface);
        for old in &mut self.0 {
            let same = now.0.iter().find(|new| new.gid == old.gid);
            *old = same.copied().unwrap_or(GidEntry { gid: Gid::ZERO, address: None });
        }
        for new in now.0 {
            if self.position(&new.gid).is_some() {
                continue;
            }
            match self.0.iter().position(|entry| entry.gid.is_zero()) {
                Some(empty) => self.0[empty] = new,
                None if self.0.len() < Self::CAPACITY => self.0.push(new),
                None => {}
            }
        }
    }

    /// Returns the GIDs by index, with zero for each that packets cannot be sent from now.
    pub fn usable(&self) -> Vec<Gid> {
        self.0.iter().map(|e| if e.is_usable() { e.gid } else { Gid::ZERO }).collect()
    }

    /// Returns the entry at `index`.
    pub fn get(&self, index: usize) -> Option<&GidEntry> {
        self.0.get(index)
    }

    /// Iterates over the entries by index.
    pub fn iter(&self) -> std::slice::Iter<'_, GidEntry> {
        self.0.iter()
    }

    /// Returns the number of entries, including empty ones.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the index of a GID.
    pub fn position(&self, gid: &Gid) -> Option<usize> {
        self.0.iter().position(|e| e.gid == *gid)
    }

    /// Returns the index to use by default. It is that of the first usable IPv4 address, else of
    /// the IPv6 address with the widest scope.
    pub fn preferred(&self) -> Option<usize> {
        self.first(IpAddr::is_ipv4).or_else(|| self.widest_v6())
    }

    /// Returns the index to use towards `peer`. An address on the same network is preferred, then
    /// the best one of the same family.
    pub fn preferred_for(&self, peer: IpAddr) -> Option<usize> {
        let near = |e: &&GidEntry| e.is_usable() && e.address.is_some_and(|a| a.is_near(peer));
        let near = self.0.iter().position(|e| near(&e));
        near.or_else(|| match peer {
            IpAddr::V4(_) => self.first(IpAddr::is_ipv4),
            IpAddr::V6(_) => self.widest_v6(),
        })
    }

    fn first(&self, wanted: impl Fn(&IpAddr) -> bool) -> Option<usize> {
        self.0.iter().position(|e| e.is_usable() && wanted(&e.gid.to_ip()))
    }

    fn widest_v6(&self) -> Option<usize> {
        let usable = self.0.iter().enumerate().filter(|(_, e)| e.is_usable());
        let v6 = usable.filter_map(|(i, e)| e.address.filter(|a| a.ip.is_ipv6()).map(|a| (i, a)));
        // `max_by_key` takes the last of equals, so the reversed order yields the first.
        v6.rev().max_by_key(|(_, a)| a.scope).map(|(i, _)| i)
    }
}

impl<'a> IntoIterator for &'a GidTable {
    type Item = &'a GidEntry;
    type IntoIter = std::slice::Iter<'a, GidEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Address {
    /// Returns whether `peer` is on the network of this address.
    pub fn is_near(&self, peer: IpAddr) -> bool {
        match (self.ip, peer) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = u32::from(a) ^ u32::from(b);
                differ.leading_zeros() >= u32::from(self.prefix_len)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = u128::from(a) ^ u128::from(b);
                differ.leading_zeros() >= u32::from(self.prefix_len)
            }
            _ => false,
        }
    }
}

/// Returns the link-local address made of the interface's MAC, if it is not loopback.
fn default_gid(interface: &Interface) -> Option<Gid> {
    let mac = interface.mac.filter(|_| !interface.loopback)?;
    Some(IpAddr::from(mac.link_local()).into())
}

#[cfg(test)]
mod tests {
    use super::super::tests::interface;
    use super::*;

    const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];
    const DEFAULT: &str = "fe80::5054:ff:fe12:3456";

    fn ips(table: &GidTable) -> Vec<String> {
        table.iter().map(|e| e.gid.to_ip().to_string()).collect()
    }

    #[test]
    fn default_gid_first_then_ipv4_then_ipv6_none_twice() {
        let table = interface(Some(MAC), &["10.0.0.1", "10.0.0.2", "fd00::1", DEFAULT]).gids();
        assert_eq!(ips(&table), [DEFAULT, "10.0.0.1", "10.0.0.2", "fd00::1"]);
        assert!(table.iter().all(GidEntry::is_usable));
    }

    #[test]
    fn default_gid_is_listed_where_the_interface_lacks_the_address() {
        let table = interface(Some(MAC), &["10.0.0.1", "fe80::1234"]).gids();
        assert_eq!(ips(&table), [DEFAULT, "10.0.0.1", "fe80::1234"]);
        assert!(!table.get(0).unwrap().is_usable(), "nobody has this address");
        assert!(table.get(2).unwrap().is_usable());
    }

    #[test]
    fn loopback_and_tunnels_have_only_their_addresses() {
        let mut lo = interface(Some([0; 6]), &["127.0.0.1", "::1"]);
        lo.loopback = true;
        assert_eq!(ips(&lo.gids()), ["127.0.0.1", "::1"]);
        assert_eq!(ips(&interface(None, &["10.0.0.1"]).gids()), ["10.0.0.1"]);
    }

    #[test]
    fn preferred_is_ipv4_then_the_widest_ipv6() {
        let table = interface(Some(MAC), &["10.0.0.1", "fd00::1", DEFAULT]).gids();
        assert_eq!(table.preferred(), Some(1));
        let table = interface(Some(MAC), &["fd00::1", "fd00::2", DEFAULT]).gids();
        assert_eq!(table.preferred(), Some(1));
        assert_eq!(interface(Some(MAC), &[DEFAULT]).gids().preferred(), Some(0));
        assert_eq!(interface(Some(MAC), &[]).gids().preferred(), None);
    }

    #[test]
    fn preferred_for_a_peer_is_on_its_network_or_of_its_family() {
        let table = interface(Some(MAC), &["10.0.0.1", "10.0.1.1", "fd00::1", DEFAULT]).gids();
        let index = |peer: &str| table.preferred_for(peer.parse().unwrap());
        assert_eq!(index("10.0.1.77"), Some(2));
        assert_eq!(index("8.8.8.8"), Some(1));
        assert_eq!(index("fd99::1"), Some(3));
        assert_eq!(index("fe80::1"), Some(0), "link-local to link-local");
    }

    #[test]
    fn gids_that_stay_keep_their_index_and_new_ones_fill_the_gaps() {
        let mut table = interface(Some(MAC), &["10.0.0.1", "10.0.0.2", "fd00::1"]).gids();
        let mut update = |addresses: &[&str]| {
            table.update(&interface(Some(MAC), addresses));
            let gids = table.usable();
            gids.iter().map(|g| g.to_ip().to_string()).collect::<Vec<_>>()
        };
        let (gone, v6) = ("::", "fd00::1");
        assert_eq!(update(&["10.0.0.2", v6]), [gone, gone, "10.0.0.2", v6]);
        assert_eq!(update(&["10.0.0.2", "10.0.0.3", v6]), [gone, "10.0.0.3", "10.0.0.2", v6]);
        assert_eq!(update(&["10.0.0.3", DEFAULT]), [DEFAULT, "10.0.0.3", gone, gone]);
        let all = ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
        assert_eq!(update(&all)[1..], ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        assert_eq!(table.position(&DEFAULT.parse::<IpAddr>().unwrap().into()), Some(0));
    }

    #[test]
    fn tentative_addresses_keep_their_place_but_are_not_usable() {
        let mut eth0 = interface(Some(MAC), &["fd00::1", "fd00::2"]);
        eth0.addresses[0].tentative = true;
        let table = eth0.gids();
        assert_eq!(ips(&table), [DEFAULT, "fd00::1", "fd00::2"]);
        assert_eq!(table.preferred(), Some(2));
    }
}
