//! What queue pairs that send to one address share. The peer receives for all of them through one
//! buffer, so those that have much on the way divide what that buffer is believed to take. They are
//! counted, so that a division tells each one's share.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::qp::Scheduled;
use crate::types::Mtu;

/// The addresses that queue pairs are connected to.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_address: HashMap<IpAddr, u32>,
    /// By the number that [`Scheduled`] holds, less one.
    peers: Vec<Option<Peer>>,
    /// Numbers that are in use no more.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Peer {
    address: IpAddr,
    /// Queue pairs that are connected to it.
    members: u32,
    /// Those of them that have much on the way.
    busy: u32,
}

impl Peers {
    /// Connects a queue pair to an address, or to none.
    pub(super) fn connect(&mut self, note: &mut Scheduled, address: Option<IpAddr>) {
        let now = self.peer_mut(note).map(|peer| peer.address);
        if now == address {
            return;
        }
        self.set_busy(note, false);
        let Self { by_address, peers, free } = self;
        if let Some(place) = peers.get_mut((note.peer as usize).wrapping_sub(1))
            && let Some(peer) = place
        {
            peer.members -= 1;
            if peer.members == 0 {
                by_address.remove(&peer.address);
                *place = None;
                free.push(note.peer);
            }
        }
        note.peer = 0;
        let Some(address) = address else { return };
        let number = *by_address.entry(address).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                peers.push(None);
                u32::try_from(peers.len()).expect("no more than queue pairs, which have 24 bits")
            })
        });
        note.peer = number;
        let place = &mut peers[number as usize - 1];
        place.get_or_insert(Peer { address, members: 0, busy: 0 }).members += 1;
    }

    /// Notes whether a queue pair has much on the way.
    #[inline]
    pub(super) fn set_busy(&mut self, note: &mut Scheduled, busy: bool) {
        if note.busy == busy {
            return;
        }
        if let Some(peer) = self.peer_mut(note) {
            peer.busy = if busy { peer.busy + 1 } else { peer.busy - 1 };
            note.busy = busy;
        }
    }

    /// How many packets a queue pair may have on the way, of `bytes` that its peer takes from all. It is
    /// one at least, so that each gets on.
    #[inline]
    pub(super) fn share(&self, note: &Scheduled, bytes: u32, mtu: Mtu) -> u32 {
        let peer = self.peers.get((note.peer as usize).wrapping_sub(1));
        let others =
            peer.and_then(Option::as_ref).map_or(0, |peer| peer.busy - u32::from(note.busy));
        if others == 0 {
            return u32::MAX;
        }
        ((bytes / (others + 1)) >> mtu.bytes().ilog2()).max(1)
    }

    fn peer_mut(&mut self, note: &Scheduled) -> Option<&mut Peer> {
        self.peers.get_mut((note.peer as usize).wrapping_sub(1))?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    #[test]
    fn busy_queue_pairs_to_one_address_share() {
        let mut peers = Peers::default();
        let mut members = [Scheduled::default(); 4];
        for (member, last) in members.iter_mut().zip([1, 1, 1, 2]) {
            peers.connect(member, address(last));
        }
        let shares = |peers: &Peers, members: &[Scheduled]| -> Vec<u32> {
            members.iter().map(|member| peers.share(member, 60_000, Mtu::M1024)).collect()
        };
        assert_eq!(shares(&peers, &members), [u32::MAX; 4]);
        peers.set_busy(&mut members[0], true);
        assert_eq!(shares(&peers, &members), [u32::MAX, 29, 29, u32::MAX]);
        peers.set_busy(&mut members[1], true);
        peers.set_busy(&mut members[3], true);
        assert_eq!(shares(&peers, &members), [29, 29, 19, u32::MAX]);
        assert_eq!(peers.share(&members[0], 1, Mtu::M1024), 1);
        peers.connect(&mut members[1], None);
        assert_eq!(shares(&peers, &members), [u32::MAX, u32::MAX, 29, u32::MAX]);
    }

    #[test]
    fn an_address_without_queue_pairs_is_forgotten() {
        let mut peers = Peers::default();
        let mut member = Scheduled::default();
        for last in 1..100 {
            peers.connect(&mut member, address(last));
            peers.set_busy(&mut member, true);
        }
        peers.connect(&mut member, None);
        assert!(peers.by_address.is_empty() && peers.peers.len() <= 1);
        peers.set_busy(&mut member, true);
        assert_eq!(peers.share(&member, 1, Mtu::M256), u32::MAX);
    }
}
