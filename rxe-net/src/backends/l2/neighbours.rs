//! The Ethernet addresses of hosts on the link, and frames that wait for them. RFC 826, RFC 4861
//! section 7.3.
//!
//! Invariants: only hosts that packets are sent to have an entry, so strangers cannot fill the
//! table; entries and waiting bytes are bounded; an expired address is still used while it is
//! requested again, and removed if no answer arrives.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::Time;

/// The table of hosts that packets are sent to.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    entries: HashMap<IpAddr, Entry>,
    /// The total number of waiting bytes.
    waiting: usize,
    /// The number of frames dropped with entries that were removed to make room.
    dropped: u64,
}

#[derive(Debug)]
struct Entry {
    mac: Option<[u8; 6]>,
    /// When the host was last heard from.
    confirmed: Time,
    /// When the entry was last used.
    used: Time,
    /// When the address was last requested.
    asked: Time,
    /// The number of requests since the host was last heard from.
    tries: u32,
    /// Waiting frames, whose destination Ethernet address is not filled in yet.
    frames: Vec<Vec<u8>>,
}

/// What to do with a frame to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// Send it to this Ethernet address.
    Known([u8; 6]),
    /// Ask for the address, and queue the frame.
    Ask,
    /// Queue the frame: the address has been requested.
    Asked,
}

/// The work that is due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// The hosts to ask for.
    pub(super) ask: Vec<IpAddr>,
    /// The number of frames dropped, because the host did not answer, or its entry had to make
    /// room.
    pub(super) dropped: u64,
}

const MAX_ENTRIES: usize = 4096;
const MAX_WAITING: usize = 1 << 20;
/// How long an address is valid without confirmation. RFC 4861 randomises the time between half and
/// one and a half of this.
const REACHABLE: Duration = Duration::from_secs(30);
/// How long to wait for an answer before the next request.
const RETRY: Duration = Duration::from_secs(1);
/// How often to ask.
const MAX_TRIES: u32 = 3;

impl Neighbours {
    /// Looks up the Ethernet address of a host on the link.
    pub(super) fn lookup(&mut self, ip: IpAddr, now: Time) -> Lookup {
        if let Some(entry) = self.entries.get_mut(&ip) {
            entry.used = now;
            return entry.mac.map_or(Lookup::Asked, Lookup::Known);
        }
        if self.entries.len() >= MAX_ENTRIES {
            self.forget_oldest();
        }
        let frames = Vec::new();
        let entry = Entry { mac: None, confirmed: now, used: now, asked: now, tries: 1, frames };
        self.entries.insert(ip, entry);
        Lookup::Ask
    }

    /// Queues a frame until the address of `ip` is known; its first 6 bytes are then filled in.
    /// Returns `false` if there is no room.
    pub(super) fn wait(&mut self, ip: IpAddr, frame: Vec<u8>) -> bool {
        let Some(entry) = self.entries.get_mut(&ip) else { return false };
        if self.waiting + frame.len() > MAX_WAITING {
            return false;
        }
        self.waiting += frame.len();
        entry.frames.push(frame);
        true
    }

    /// Records the Ethernet address of a host. Returns the frames that have waited for it.
    pub(super) fn learn(&mut self, ip: IpAddr, mac: [u8; 6], now: Time) -> Vec<Vec<u8>> {
        // A host cannot have a group address.
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Vec::new();
        }
        let Some(entry) = self.entries.get_mut(&ip) else { return Vec::new() };
        (entry.mac, entry.confirmed, entry.tries) = (Some(mac), now, 0);
        let mut frames = std::mem::take(&mut entry.frames);
        for frame in &mut frames {
            self.waiting -= frame.len();
            if let Some(dst) = frame.first_chunk_mut() {
                *dst = mac;
            }
        }
        frames
    }

    /// Returns the work that is due now.
    pub(super) fn due(&mut self, now: Time) -> Due {
        let mut due = Due { dropped: std::mem::take(&mut self.dropped), ..Due::default() };
        let waiting = &mut self.waiting;
        self.entries.retain(|ip, entry| {
            if entry.deadline().is_some_and(|at| at > now) {
                return true;
            }
            let unused = now.since(entry.used) >= REACHABLE && entry.frames.is_empty();
            if entry.tries >= MAX_TRIES || unused {
                due.dropped += entry.frames.len() as u64;
                *waiting -= entry.frames.iter().map(Vec::len).sum::<usize>();
                return false;
            }
            (entry.asked, entry.tries) = (now, entry.tries + 1);
            due.ask.push(*ip);
            true
        });
        due
    }

    /// Returns when there is work next.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.entries.values().filter_map(Entry::deadline).min()
    }

    fn forget_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(ip, _)| *ip);
        if let Some(entry) = oldest.and_then(|ip| self.entries.remove(&ip)) {
            self.waiting -= entry.frames.iter().map(Vec::len).sum::<usize>();
            self.dropped += entry.frames.len() as u64;
        }
    }
}

impl Entry {
    fn deadline(&self) -> Option<Time> {
        Some(if self.tries == 0 { self.confirmed + REACHABLE } else { self.asked + RETRY })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn ip(last: u16) -> IpAddr {
        let [a, b] = last.to_be_bytes();
        [10, 0, a, b].into()
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn frames_wait_until_the_host_is_heard_of() {
        let mut hosts = Neighbours::default();
        assert_eq!(hosts.lookup(ip(1), at(0)), Lookup::Ask);
        assert_eq!(hosts.lookup(ip(1), at(0)), Lookup::Asked);
        assert!(hosts.wait(ip(1), vec![0; 20]));
        assert!(hosts.learn(ip(2), MAC, at(0)).is_empty(), "nobody has asked for it");
        assert!(hosts.learn(ip(1), [0xff; 6], at(0)).is_empty(), "no host has it");
        let frames = hosts.learn(ip(1), MAC, at(0));
        assert_eq!((frames.len(), &frames[0][..6]), (1, &MAC[..]));
        assert_eq!(hosts.lookup(ip(1), at(1)), Lookup::Known(MAC));
        assert_eq!((hosts.entries.len(), hosts.waiting), (1, 0));
    }

    #[test]
    fn a_host_that_does_not_answer_is_asked_three_times_and_given_up() {
        let mut hosts = Neighbours::default();
        hosts.lookup(ip(1), at(0));
        hosts.wait(ip(1), vec![0; 20]);
        assert_eq!(hosts.due(at(0)), Due::default());
        for second in [1, 2] {
            assert_eq!(hosts.deadline(), Some(at(second)));
            assert_eq!(hosts.due(at(second)), Due { ask: vec![ip(1)], dropped: 0 });
        }
        assert_eq!(hosts.due(at(3)), Due { ask: vec![], dropped: 1 });
        assert_eq!((hosts.deadline(), hosts.waiting), (None, 0));
    }

    #[test]
    fn an_old_address_is_used_while_it_is_asked_for_again() {
        let mut hosts = Neighbours::default();
        hosts.lookup(ip(1), at(0));
        hosts.learn(ip(1), MAC, at(0));
        hosts.lookup(ip(1), at(29));
        assert_eq!(hosts.due(at(30)).ask, [ip(1)]);
        assert_eq!(hosts.lookup(ip(1), at(30)), Lookup::Known(MAC));
        hosts.learn(ip(1), MAC, at(30));
        assert_eq!(hosts.deadline(), Some(at(60)));
        // The entry is not used any more.
        assert_eq!(hosts.due(at(60)), Due::default());
        assert_eq!(hosts.deadline(), None);
    }

    #[test]
    fn frames_to_a_host_that_makes_room_for_another_count_as_dropped() {
        let mut hosts = Neighbours::default();
        hosts.lookup(ip(0), at(0));
        assert!(hosts.wait(ip(0), vec![0; 20]) && hosts.wait(ip(0), vec![0; 20]));
        (1..=4096).for_each(|n| assert_eq!(hosts.lookup(ip(n), at(1)), Lookup::Ask));
        assert_eq!((hosts.entries.len(), hosts.waiting), (MAX_ENTRIES, 0));
        assert_eq!([hosts.due(at(1)).dropped, hosts.due(at(1)).dropped], [2, 0]);
    }

    #[test]
    fn hosts_and_waiting_bytes_are_bounded() {
        let mut hosts = Neighbours::default();
        for n in 0..5000 {
            hosts.lookup(ip(n), at(0));
            hosts.wait(ip(n), vec![0; 1000]);
        }
        assert_eq!(hosts.entries.len(), MAX_ENTRIES);
        assert!(hosts.waiting <= MAX_WAITING);
        hosts.due(at(9));
        hosts.due(at(19));
        hosts.due(at(29));
        assert_eq!((hosts.entries.len(), hosts.waiting), (0, 0));
    }
}
