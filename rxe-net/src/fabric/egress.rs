//! One direction of a simulated link, and the queue in front of it.
//!
//! The queue is first in, first out, and the rate is constant. So when a packet enters the queue, it is
//! known when it will have left, and the length of the queue follows from the time that is left until
//! everything in it has been sent. No packet is held here.

use crate::rng::Rng;

/// Bytes on the link beyond BTH to ICRC: preamble and gap (20), Ethernet header and FCS (18), IPv4 (20)
/// and UDP (8).
const AROUND: u64 = 66;

/// Femtoseconds of a nanosecond.
const NANOSECOND: u128 = 1_000_000;

/// The queue of a switch's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressQueue {
    /// The bytes that it holds. A packet that does not fit is lost.
    pub capacity: u64,
    /// How it marks packets that are ECN capable.
    pub marking: Marking,
}

/// Marking by the length of the queue, as RED does and DCQCN expects: none up to `kmin`, from there on
/// with a probability that rises to `pmax` at `kmax`, and every packet above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    /// The longest queue at which nothing is marked, in bytes.
    pub kmin: u64,
    /// The shortest queue at which everything is marked, in bytes.
    pub kmax: u64,
    /// The probability just below `kmax`, in 1,000ths.
    pub pmax: u64,
}

impl Marking {
    /// The probability to mark at this length of the queue, as a fraction.
    fn chance(&self, length: u64) -> (u64, u64) {
        if length <= self.kmin {
            (0, 1)
        } else if length >= self.kmax {
            (1, 1)
        } else {
            (self.pmax * (length - self.kmin), 1000 * (self.kmax - self.kmin))
        }
    }
}

/// What becomes of a packet at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The queue is full.
    Lost,
    /// It arrives at the other end.
    Sent {
        /// When, in nanoseconds.
        arrives: u64,
        /// Whether the switch marks it.
        marked: bool,
    },
}

/// A port of a host or of a switch, in the direction out of it. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Egress {
    /// Femtoseconds that a byte takes.
    byte: u64,
    /// Nanoseconds from one end of the link to the other.
    delay: u64,
    /// The queue; `None` at a host, which gives its link no more than it can send.
    queue: Option<EgressQueue>,
    /// A packet starts up to so many picoseconds after the one before. Without this, hosts that send at the
    /// same rate would keep their order for ever, and a full queue always lose packets of the same ones.
    jitter: u64,
    /// When everything in the queue has been sent, in femtoseconds.
    free_at: u128,
    counters: EgressCounters,
}

/// What a port has counted since its counters were last reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct EgressCounters {
    /// Packets that it has sent.
    pub packets: u64,
    /// Packets that the queue had no room for.
    pub lost: u64,
    /// Packets that it has marked.
    pub marked: u64,
    /// The longest queue, in bytes.
    pub longest: u64,
    /// The length of the queue summed over time: bytes times femtoseconds.
    area: u128,
}

impl EgressCounters {
    /// The mean length of the queue over this time, in bytes.
    pub fn mean(&self, nanos: u64) -> u64 {
        u64::try_from(self.area / femtoseconds(nanos).max(1)).unwrap_or(u64::MAX)
    }
}

impl Egress {
    /// A port of `gigabits` per second, at least 1 and at most 8,000, and this delay in nanoseconds.
    pub fn new(gigabits: u64, delay: u64, queue: Option<EgressQueue>) -> Self {
        let gigabits = gigabits.clamp(1, 8000);
        let byte = 8_000_000 / gigabits;
        // At a host, the time of 64 bytes.
        let jitter = if queue.is_none() { 64 * 8000 / gigabits } else { 0 };
        Self { byte, delay, queue, jitter, free_at: 0, counters: EgressCounters::default() }
    }

    /// What it has counted.
    pub fn counters(&self) -> &EgressCounters {
        &self.counters
    }

    /// Counts from 0 again.
    pub fn reset_counters(&mut self) {
        self.counters = EgressCounters::default();
    }

    /// The length of the queue in bytes, with what is left of the packet that is being sent.
    pub fn length(&self, now: u64) -> u64 {
        let left = self.free_at.saturating_sub(femtoseconds(now));
        u64::try_from(left.div_ceil(self.byte.into())).unwrap_or(u64::MAX)
    }

    /// The bytes on the link of a packet of this many bytes from BTH to ICRC.
    pub fn size_on_link(bytes: usize) -> u64 {
        bytes as u64 + AROUND
    }

    /// When the queue is empty, in nanoseconds.
    pub fn idle_at(&self) -> u64 {
        u64::try_from(self.free_at.div_ceil(NANOSECOND)).unwrap_or(u64::MAX)
    }

    /// Takes a packet of this many bytes on the link ([`Egress::size_on_link`]). `capable`: it may be marked.
    pub fn send(&mut self, now: u64, bytes: u64, capable: bool, rng: &mut Rng) -> Passage {
        let length = self.length(now);
        let mut marked = false;
        if let Some(queue) = &self.queue {
            if length + bytes > queue.capacity {
                self.counters.lost += 1;
                return Passage::Lost;
            }
            let (n, of) = queue.marking.chance(length);
            marked = capable && n > 0 && rng.below(of) < n;
        }
        let start = femtoseconds(now);
        let takes = rng.below(self.jitter) * 1000 + bytes * self.byte;
        self.free_at = self.free_at.max(start) + u128::from(takes);
        self.counters.packets += 1;
        self.counters.marked += u64::from(marked);
        self.counters.longest = self.counters.longest.max(length + bytes);
        self.counters.area += u128::from(bytes) * (self.free_at - start);
        Passage::Sent { arrives: self.idle_at() + self.delay, marked }
    }
}

fn femtoseconds(nanos: u64) -> u128 {
    u128::from(nanos) * NANOSECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: EgressQueue =
        EgressQueue { capacity: 10_000, marking: Marking { kmin: 2000, kmax: 6000, pmax: 100 } };

    #[test]
    fn packets_leave_one_after_the_other_at_the_rate_of_the_link() {
        // 10 Gbit/s are 0.8 ns a byte.
        let mut port = Egress::new(10, 500, Some(QUEUE));
        let mut rng = Rng::new(1);
        let mut send = |port: &mut Egress, now| port.send(now, 1000, false, &mut rng);
        assert_eq!(send(&mut port, 100), Passage::Sent { arrives: 1400, marked: false });
        assert_eq!(send(&mut port, 100), Passage::Sent { arrives: 2200, marked: false });
        assert_eq!(port.length(500), 1500);
        assert_eq!(port.idle_at(), 1700);
        assert_eq!(send(&mut port, 2000), Passage::Sent { arrives: 3300, marked: false });
        assert_eq!(port.counters.longest, 2000);
        // 1,000 bytes for 800 ns, twice; 1,000 bytes for 1,600 ns.
        assert_eq!(port.counters.mean(3200), 1000);
    }

    #[test]
    fn a_port_works_for_centuries() {
        let century = 100 * 365 * 24 * 3600 * 1_000_000_000;
        let mut port = Egress::new(10, 500, Some(QUEUE));
        let mut rng = Rng::new(1);
        for arrives in [1300, 2100] {
            let passage = port.send(century, 1000, false, &mut rng);
            assert_eq!(passage, Passage::Sent { arrives: century + arrives, marked: false });
        }
        assert_eq!((port.length(century + 800), port.idle_at()), (1000, century + 1600));
    }

    #[test]
    fn a_rate_is_what_it_is_said_to_be() {
        const BYTES: u64 = 1_000_000_000;
        for gigabits in [1, 7, 10, 56, 400, 3200, 5000, 8000] {
            let queue = EgressQueue { capacity: BYTES, ..QUEUE };
            let mut port = Egress::new(gigabits, 0, Some(queue));
            port.send(0, BYTES, false, &mut Rng::new(1));
            let measured = 8 * BYTES * 1000 / port.idle_at();
            assert!(measured.abs_diff(1000 * gigabits) <= gigabits, "{measured} of {gigabits}");
        }
    }

    #[test]
    fn what_does_not_fit_is_lost() {
        let mut port = Egress::new(10, 500, Some(QUEUE));
        let mut rng = Rng::new(1);
        let fates: Vec<_> = (0..11).map(|_| port.send(0, 1000, false, &mut rng)).collect();
        assert!(fates[..10].iter().all(|fate| *fate != Passage::Lost));
        assert_eq!(
            (fates[10], port.counters.lost, port.counters.longest),
            (Passage::Lost, 1, 10_000)
        );
    }

    #[test]
    fn the_probability_of_a_mark_rises_with_the_queue() {
        let share = |length, capable| {
            let mut rng = Rng::new(1);
            let marked = (0..10_000).filter(|_| {
                let mut port = Egress::new(10, 500, Some(QUEUE));
                port.send(0, length, false, &mut rng);
                let fate = port.send(0, 10, capable, &mut rng);
                matches!(fate, Passage::Sent { marked: true, .. })
            });
            marked.count()
        };
        assert_eq!([share(2000, true), share(6000, true)], [0, 10_000]);
        assert!((400..600).contains(&share(4000, true)), "{}", share(4000, true));
        assert_eq!(share(6000, false), 0, "it is not ECN capable");
    }
}
