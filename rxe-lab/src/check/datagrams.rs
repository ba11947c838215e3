//! Follows datagrams (UD): their sources, destinations, Q_Keys and missing PSNs. IBTA 9.8.3.
//!
//! The PSN of a UD queue pair increases by one with each datagram, whatever its destination.
//! Nothing is acknowledged or retransmitted, and loss is permitted, so missing PSNs are a note.
//! Management datagrams (QP 0 and QP 1) are ignored.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use rxe_core::types::Psn;
use rxe_core::wire::Deth;

use super::damage::Damage;
use super::finding::{Confidence, Kind, MAX_FRAMES, Span};
use super::gaps::{Gap, Gaps, RESTART};
use super::summary::{DatagramSender, DatagramsTo};
use super::{Found, MAX_DIRECTIONS, Seen};
use crate::frame::{Address, Icrc};
use crate::point::{Point, TakenFrom};

/// The largest path MTU, in bytes.
const MAX_MTU: usize = 4096;

/// The destination QP of multicast. IBTA 9.2.1.
const MULTICAST: u32 = 0xff_ffff;

/// The number of datagrams that are remembered per sender, to recognise duplicates.
const MAX_RECENT: usize = 32;

/// All datagrams of a capture.
#[derive(Debug, Default)]
pub(super) struct Datagrams {
    senders: Vec<Sender>,
    by_source: HashMap<(Address, u32), usize>,
    ways: Vec<Way>,
    /// The indices of `ways`, by sender and destination.
    by_destination: HashMap<(usize, Address, u32), usize>,
    keys: HashMap<(Address, u32), Keys>,
}

/// A queue pair that sends datagrams.
#[derive(Debug)]
struct Sender {
    from: Address,
    qp: u32,
    taken_from: TakenFrom,
    next: Option<Psn>,
    /// The newest frame, its first PSN, its time, and how many uncaptured datagrams it may have.
    unseen: (u64, Psn, Duration, u32),
    gaps: Gaps,
    /// The missing PSNs of gaps that are no longer kept.
    given_up: u64,
    /// The number of gaps.
    places: u64,
    /// The first gap, the times of the first and the last one, and frames after gaps.
    /// The gap is given by the index in `ways` of the datagram after it, and by its first PSN.
    first_gap: Option<(usize, (Psn, Span), Vec<u64>)>,
    late: u64,
    duplicated: u64,
    recent: VecDeque<(Psn, u32, u64)>,
    cnps: u64,
}

/// The datagrams of a sender to one destination.
#[derive(Debug)]
struct Way {
    sender: usize,
    found: Found,
    damage: Damage,
    /// The Q_Key of the newest datagram.
    q_key: u32,
    /// The number of times that the Q_Key changed.
    key_changes: u64,
    /// The duplicates: the two frames and the PSN of the first, the times of the first and the last,
    /// and the number of all.
    twice: Option<([u64; 2], (Psn, Span), u64)>,
}

/// The Q_Keys in datagrams to one queue pair.
#[derive(Debug)]
struct Keys {
    first: (u32, u64),
    second: Option<(u32, u64)>,
    is_reported: bool,
}

impl Datagrams {
    /// Follows a datagram. Returns the findings of its destination; `None` if there are too many.
    pub(super) fn take(
        &mut self,
        (from, to): (Address, Address),
        point: Point,
        seen: &Seen<'_>,
        deth: Deth,
        marked: bool,
    ) -> Option<&mut Found> {
        let dest_qp = seen.packet.bth.dest_qp.value();
        let sender = self.sender(from, deth.src_qp.value())?;
        let at = self.way(sender, (from, to, dest_qp), deth.qkey.value())?;
        let (sender, way) = (&mut self.senders[sender], &mut self.ways[at]);
        if sender.taken_from.is_copy(point) {
            return Some(&mut way.found);
        }
        if seen.packet.icrc == Icrc::Wrong {
            way.damage.add(seen);
            // The datagram is damaged, not missing.
            let psn = seen.packet.bth.psn;
            sender.next = sender.next.map(|next| if next == psn { psn.next() } else { next });
            return Some(&mut way.found);
        }
        way.damage.add_sound();
        sender.settle_cut(seen, &mut way.found);
        if let Some(before) = sender.follow(seen, at) {
            let place = (seen.packet.bth.psn, (seen.at, seen.at));
            let (_, place, count) = way.twice.get_or_insert(([before, seen.number], place, 0));
            (place.1.1, *count) = (seen.at, *count + 1);
            return Some(&mut way.found);
        }
        way.count(seen, marked, deth.qkey.value());
        if !is_multicast(to, dest_qp) {
            let first = (deth.qkey.value(), seen.number);
            let new = Keys { first, second: None, is_reported: false };
            let keys = self.keys.entry((to, dest_qp)).or_insert(new);
            keys.add(deth.qkey.value(), seen, &mut way.found);
        }
        Some(&mut way.found)
    }

    /// Counts a congestion notification to a queue pair.
    pub(super) fn notified(&mut self, to: Address, qp: u32) {
        if let Some(sender) = self.by_source.get(&(to, qp)) {
            self.senders[*sender].cnps += 1;
        }
    }

    /// Returns the findings of each destination.
    pub(super) fn found(&self) -> impl Iterator<Item = &Found> {
        self.ways.iter().map(|way| &way.found)
    }

    /// Ends the analysis at the end of the capture.
    /// Returns the statistics, and calls `each` for the findings of each destination.
    pub(super) fn finish(self, mut each: impl FnMut(&mut Found)) -> Vec<DatagramSender> {
        let Self { senders, mut ways, .. } = self;
        let mut all: Vec<_> = Vec::new();
        for sender in senders {
            let missing = sender.given_up + sender.gaps.missing();
            if let Some((way, place, frames)) = sender.first_gap
                && missing > 0
            {
                let what = match (missing, sender.places) {
                    (1, _) => "A PSN of this queue pair is missing".to_owned(),
                    (n, 1) => format!("{n} PSNs of this queue pair are missing in a row"),
                    (n, m) => format!("{n} PSNs of this queue pair are missing, in {m} places"),
                };
                let text = format!(
                    "{what}: datagrams that were lost before the place of the capture, or went to \
                     other destinations."
                );
                let found = &mut ways[way].found;
                let kind = Kind::DatagramsMissing;
                found.push(kind, Confidence::Possible, place, frames, text).count = sender.places;
            }
            let Sender { from, qp, late, duplicated, cnps, .. } = sender;
            let destinations = Vec::new();
            all.push(DatagramSender { from, qp, missing, late, duplicated, cnps, destinations });
        }
        for mut way in ways {
            way.report();
            each(&mut way.found);
            let Way { found, q_key, key_changes, .. } = way;
            let (to, dest_qp, stats) = (found.to, found.dest_qp, found.stats);
            let is_multicast = is_multicast(to, dest_qp);
            let it = DatagramsTo { to, dest_qp, is_multicast, q_key, key_changes, stats };
            all[way.sender].destinations.push(it);
        }
        all
    }

    fn sender(&mut self, from: Address, qp: u32) -> Option<usize> {
        if let Some(at) = self.by_source.get(&(from, qp)) {
            return Some(*at);
        }
        if self.senders.len() == MAX_DIRECTIONS {
            return None;
        }
        self.by_source.insert((from, qp), self.senders.len());
        self.senders.push(Sender {
            from,
            qp,
            taken_from: TakenFrom::default(),
            next: None,
            unseen: (0, Psn::ZERO, Duration::ZERO, 0),
            gaps: Gaps::default(),
            given_up: 0,
            places: 0,
            first_gap: None,
            late: 0,
            duplicated: 0,
            recent: VecDeque::new(),
            cnps: 0,
        });
        Some(self.senders.len() - 1)
    }

    fn way(
        &mut self,
        sender: usize,
        (from, to, dest_qp): (Address, Address, u32),
        q_key: u32,
    ) -> Option<usize> {
        if let Some(at) = self.by_destination.get(&(sender, to, dest_qp)) {
            return Some(*at);
        }
        if self.ways.len() == MAX_DIRECTIONS {
            return None;
        }
        self.by_destination.insert((sender, to, dest_qp), self.ways.len());
        self.ways.push(Way {
            sender,
            found: Found::new(from, to, dest_qp),
            damage: Damage::default(),
            q_key,
            key_changes: 0,
            twice: None,
        });
        Some(self.ways.len() - 1)
    }
}

impl Sender {
    /// Assigns missing PSNs to the newest frame if that was truncated and may contain them.
    fn settle_cut(&mut self, seen: &Seen<'_>, found: &mut Found) {
        let (psn, (frame, first, at, most)) = (seen.packet.bth.psn, self.unseen);
        let ahead = self.next.map_or(0, |next| psn.diff(next));
        if (-RESTART..0).contains(&ahead) {
            return;
        }
        let count = most.min(ahead.unsigned_abs());
        if count > 0 && ahead <= RESTART {
            self.next = self.next.map(|next| next + count);
            found.cut.add(frame, first, at);
        }
        self.unseen = (seen.number, psn, seen.at, seen.packet.unseen.most(None));
    }

    /// Follows the PSNs. Returns the earlier frame of the datagram if it is a duplicate.
    fn follow(&mut self, seen: &Seen<'_>, way: usize) -> Option<u64> {
        let (psn, icrc) = (seen.packet.bth.psn, seen.icrc);
        let ahead = self.next.map_or(0, |next| psn.diff(next));
        if ahead < 0 {
            let same = |(p, i, _): &&(Psn, u32, u64)| (*p, *i) == (psn, icrc) && icrc != 0;
            if let Some((_, _, frame)) = self.recent.iter().find(same) {
                self.duplicated += 1;
                return Some(*frame);
            }
        }
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((psn, icrc, seen.number));
        if ahead < 0 && self.gaps.take(psn).is_some() {
            self.late += 1;
            return None;
        }
        if !(0..=RESTART).contains(&ahead) {
            // The queue pair was reset.
            self.given_up += std::mem::take(&mut self.gaps).missing();
        } else if ahead > 0 {
            let (first, count) = (psn - ahead.unsigned_abs(), ahead.unsigned_abs());
            let gap = Gap { first, count, frame: seen.number, at: seen.at, unreliable: true };
            self.given_up += self.gaps.add(gap).map_or(0, |gap| u64::from(gap.count));
            self.places += 1;
            let place = (first, (seen.at, seen.at));
            let (_, place, frames) = self.first_gap.get_or_insert((way, place, Vec::new()));
            place.1.1 = seen.at;
            if frames.len() < MAX_FRAMES {
                frames.push(seen.number);
            }
        }
        self.next = Some(psn.next());
        None
    }
}

impl Way {
    /// Counts a datagram.
    fn count(&mut self, seen: &Seen<'_>, marked: bool, q_key: u32) {
        let len = seen.packet.payload_len;
        let stats = &mut self.found.stats;
        stats.requests += 1;
        stats.messages += 1;
        stats.bytes += len as u64;
        stats.marked += u64::from(marked);
        stats.span = Some((stats.span.map_or(seen.at, |(first, _)| first), seen.at));
        if self.q_key != q_key {
            self.q_key = q_key;
            self.key_changes += 1;
        }
        if seen.packet.unseen.is_certain(None) {
            self.found.cut.add(seen.number, seen.packet.bth.psn, seen.at);
        } else if len > MAX_MTU {
            let text = format!(
                "A datagram of {len} bytes: it must fit one packet, and no path MTU is larger than \
                 {MAX_MTU}."
            );
            let frames = vec![seen.number];
            self.found.add(seen, Kind::Length, Confidence::Certain, frames, text);
        }
    }

    /// Reports what the end of the capture shows.
    fn report(&mut self) {
        let found = &mut self.found;
        self.damage.report(found);
        let Some((frames, place, count)) = self.twice else { return };
        // A switch that mirrors a port shows one copy per member of a multicast group.
        if is_multicast(found.to, found.dest_qp) {
            return;
        }
        let text = "A datagram came twice, byte for byte: the network has duplicated it, and the receiver gets \
                    it twice.";
        let (kind, text) = (Kind::Duplicate, text.to_owned());
        found.push(kind, Confidence::Likely, place, frames.to_vec(), text).count = count;
    }
}

impl Keys {
    /// Reports alternating Q_Keys, of which at most one can be right.
    /// A single change may be a new queue pair with the same number.
    fn add(&mut self, q_key: u32, seen: &Seen<'_>, found: &mut Found) {
        if q_key != self.first.0 {
            self.second.get_or_insert((q_key, seen.number));
            return;
        }
        let Some((other, frame)) = self.second.filter(|_| !self.is_reported) else { return };
        self.is_reported = true;
        let text = format!(
            "Datagrams to this queue pair have the Q_Keys 0x{q_key:08x} and 0x{other:08x} by turns: \
             it drops those that do not have its own."
        );
        let frames = vec![self.first.1, frame, seen.number];
        found.add(seen, Kind::QKey, Confidence::Likely, frames, text);
    }
}

/// Returns whether datagrams go to a multicast group.
fn is_multicast(to: Address, dest_qp: u32) -> bool {
    dest_qp == MULTICAST || matches!(to, Address::Ip(ip) if is_group(ip))
}

fn is_group(ip: IpAddr) -> bool {
    ip.to_canonical().is_multicast()
}
