//! The window that queue pairs to one address share. Their packets pass the same queues, and the peer
//! receives all of them through one buffer, so the queue pairs with much in flight divide a window
//! ([`Config::shared_window`](crate::config::Config)). Only counts are kept, so that one division yields
//! a queue pair's part.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::qp::Scheduled;

/// The addresses that queue pairs are connected to.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_address: HashMap<IpAddr, u32>,
    /// Indexed by [`Scheduled::peer`] minus 1.
    peers: Vec<Option<Peer>>,
    /// Numbers of peers that were removed.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Peer {
    address: IpAddr,
    /// How many queue pairs are connected to the address.
    members: u32,
    /// How many of them have a weight: much in flight, or more to send.
    busy: u32,
    /// The sum of their weights: packets in flight.
    packets: u32,
}

/// A queue pair gets at least 1/`LEAST` of its fair part while others have more than theirs in flight.
/// Those may take long to give it back if their peer no longer responds.
const LEAST: u32 = 4;

impl Peers {
    /// Moves a queue pair to the peer at `address`, or to none.
    pub(super) fn connect(&mut self, scheduled: &mut Scheduled, address: Option<IpAddr>) {
        let now = self.peer_mut(scheduled).map(|peer| peer.address);
        if now == address {
            return;
        }
        self.set_weight(scheduled, 0);
        debug_assert_eq!(
            scheduled.inflight_weight, 0,
            "only a queue pair with a peer has a weight"
        );
        let Self { by_address, peers, free } = self;
        if let Some(place) = peers.get_mut((scheduled.peer as usize).wrapping_sub(1))
            && let Some(peer) = place
        {
            debug_assert!(peer.members > 0, "a queue pair leaves the peer that it joined");
            peer.members -= 1;
            if peer.members == 0 {
                debug_assert_eq!((peer.busy, peer.packets), (0, 0), "nothing is left on the way");
                by_address.remove(&peer.address);
                *place = None;
                free.push(scheduled.peer);
            }
        }
        scheduled.peer = 0;
        let Some(address) = address else { return };
        let number = *by_address.entry(address).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                peers.push(None);
                u32::try_from(peers.len()).expect("no more than queue pairs, which have 24 bits")
            })
        });
        scheduled.peer = number;
        let place = &mut peers[number as usize - 1];
        let peer = place.get_or_insert(Peer { address, members: 0, busy: 0, packets: 0 });
        debug_assert_eq!(peer.address, address, "a number stands for one address");
        peer.members += 1;
        self.check();
    }

    /// Sets the weight of a queue pair: [`Qp::inflight_weight`].
    ///
    /// [`Qp::inflight_weight`]: crate::qp::Qp::inflight_weight
    #[inline]
    pub(super) fn set_weight(&mut self, scheduled: &mut Scheduled, weight: u16) {
        if scheduled.inflight_weight == weight {
            return;
        }
        if let Some(peer) = self.peer_mut(scheduled) {
            peer.busy =
                peer.busy + u32::from(weight > 0) - u32::from(scheduled.inflight_weight > 0);
            peer.packets = peer.packets + u32::from(weight) - u32::from(scheduled.inflight_weight);
            scheduled.inflight_weight = weight;
            debug_assert!(peer.busy <= peer.members, "{peer:?}");
            debug_assert!(peer.busy <= peer.packets, "each busy one has a packet: {peer:?}");
        }
    }

    /// Returns a queue pair's part of the window `all`, in packets: how many it may have in flight. At
    /// least 1, so that each queue pair makes progress; no limit if it is the only one with a weight.
    #[inline]
    pub(super) fn peer_window(&self, scheduled: &Scheduled, all: u32) -> u32 {
        let Some(Some(peer)) = self.peers.get((scheduled.peer as usize).wrapping_sub(1)) else {
            return u32::MAX;
        };
        debug_assert!(peer.packets >= u32::from(scheduled.inflight_weight), "{peer:?}");
        debug_assert!(peer.busy >= u32::from(scheduled.inflight_weight > 0), "{peer:?}");
        let others = peer.busy - u32::from(scheduled.inflight_weight > 0);
        if others == 0 {
            return u32::MAX;
        }
        let fair = all / (others + 1);
        let left = all.saturating_sub(peer.packets - u32::from(scheduled.inflight_weight));
        left.clamp(fair / LEAST, fair).max(1)
    }

    fn check(&self) {
        debug_assert_eq!(self.by_address.len() + self.free.len(), self.peers.len());
        debug_assert!(self.free.iter().all(|&number| self.peers[number as usize - 1].is_none()));
    }

    fn peer_mut(&mut self, scheduled: &Scheduled) -> Option<&mut Peer> {
        self.peers.get_mut((scheduled.peer as usize).wrapping_sub(1))?.as_mut()
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
            members.iter().map(|member| peers.peer_window(member, 60)).collect()
        };
        assert_eq!(shares(&peers, &members), [u32::MAX; 4]);
        peers.set_weight(&mut members[0], 1);
        assert_eq!(shares(&peers, &members), [u32::MAX, 30, 30, u32::MAX]);
        peers.set_weight(&mut members[1], 1);
        peers.set_weight(&mut members[3], 50);
        assert_eq!(shares(&peers, &members), [30, 30, 20, u32::MAX]);
        assert_eq!(peers.peer_window(&members[0], 1), 1);
        peers.connect(&mut members[1], None);
        assert_eq!(shares(&peers, &members), [u32::MAX, u32::MAX, 30, u32::MAX]);
    }

    #[test]
    fn who_comes_later_waits_for_what_others_have_on_the_way() {
        let mut peers = Peers::default();
        let mut members = [Scheduled::default(); 2];
        members.iter_mut().for_each(|member| peers.connect(member, address(1)));
        peers.set_weight(&mut members[0], 60);
        let mut share = |first, second| {
            peers.set_weight(&mut members[0], first);
            peers.set_weight(&mut members[1], second);
            members.map(|member| peers.peer_window(&member, 60))
        };
        assert_eq!(share(60, 1), [30, 7]);
        assert_eq!(share(45, 7), [30, 15]);
        assert_eq!(share(30, 15), [30, 30]);
    }

    #[test]
    fn an_address_without_queue_pairs_is_forgotten() {
        let mut peers = Peers::default();
        let mut member = Scheduled::default();
        for last in 1..100 {
            peers.connect(&mut member, address(last));
            peers.set_weight(&mut member, 9);
        }
        peers.connect(&mut member, None);
        assert!(peers.by_address.is_empty() && peers.peers.len() <= 1);
        peers.set_weight(&mut member, 9);
        assert_eq!(peers.peer_window(&member, 1), u32::MAX);
    }
}
