//! One direction of a simulated link, and the queue in front of it.
//!
//! The queue is first in, first out, and the rate is constant. So the departure time of a packet is
//! known when it enters the queue, and the queue length follows from the time until everything in
//! the queue has been sent. No packet is stored here.

use crate::rng::Rng;

/// The bytes that a packet has on the link in addition to BTH to ICRC. They are preamble and gap
/// (20), Ethernet header and FCS (18), IPv4 (20) and UDP (8).
const AROUND: u64 = 66;

/// The number of femtoseconds in a nanosecond.
const NANOSECOND: u128 = 1_000_000;

/// The configuration of the queue at a switch port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressQueue {
    /// The size of the queue in bytes. A packet that does not fit is lost.
    pub capacity: u64,
    /// How ECN-capable packets are marked.
    pub marking: Marking,
}

/// The marking probability as a function of queue length, as RED does and DCQCN expects. It is zero
/// up to `kmin`, rises linearly to `pmax` at `kmax`, and is one from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    /// The longest queue at which no packet is marked, in bytes.
    pub kmin: u64,
    /// The shortest queue at which every packet is marked, in bytes.
    pub kmax: u64,
    /// The marking probability just below `kmax`, in thousandths.
    pub pmax: u64,
}

impl Marking {
    /// Returns the marking probability at this queue length, as numerator and denominator.
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

/// What happens to a packet at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The packet is lost because the queue is full.
    Lost,
    /// The packet arrives at the other end of the link.
    Sent {
        /// The arrival time in nanoseconds.
        arrives: u64,
        /// Whether the switch marks the packet.
        marked: bool,
    },
}

/// The outgoing side of a port of a host or switch. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Egress {
    /// The time to send one byte, in femtoseconds.
    byte: u64,
    /// The propagation delay of the link in nanoseconds.
    delay: u64,
    /// The queue. `None` at a host, whose caller does not send more than the link can take.
    queue: Option<EgressQueue>,
    /// The maximum random gap before a packet, in picoseconds. Without gaps, hosts that send at the
    /// same rate would always keep their order, and a full queue would always drop the same hosts'
    /// packets.
    jitter: u64,
    /// The time at which everything in the queue has been sent, in femtoseconds.
    free_at: u128,
    counters: EgressCounters,
}

/// The counts of a port since the last reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct EgressCounters {
    /// Packets sent.
    pub packets: u64,
    /// Packets lost because the queue was full.
    pub lost: u64,
    /// Packets marked.
    pub marked: u64,
    /// The maximum queue length in bytes.
    pub longest: u64,
    /// The integral of the queue length over time, in bytes times femtoseconds.
    area: u128,
}

impl EgressCounters {
    /// Returns the mean queue length in bytes over a period of `nanos` nanoseconds.
    pub fn mean(&self, nanos: u64) -> u64 {
        u64::try_from(self.area / femtoseconds(nanos).max(1)).unwrap_or(u64::MAX)
    }
}

impl Egress {
    /// Creates a port. The rate is in Gbit/s, limited to 1 to 8,000; `delay` is in nanoseconds.
    pub fn new(gigabits: u64, delay: u64, queue: Option<EgressQueue>) -> Self {
        let gigabits = gigabits.clamp(1, 8000);
        let byte = 8_000_000 / gigabits;
        // At a host, up to the time to send 64 bytes.
        let jitter = if queue.is_none() { 64 * 8000 / gigabits } else { 0 };
        Self { byte, delay, queue, jitter, free_at: 0, counters: EgressCounters::default() }
    }

    /// Returns the counts since the last reset.
    pub fn counters(&self) -> &EgressCounters {
        &self.counters
    }

    /// Resets all counts to 0.
    pub fn reset_counters(&mut self) {
        self.counters = EgressCounters::default();
    }

    /// Returns the queue length in bytes, with the unsent part of the current packet.
    pub fn length(&self, now: u64) -> u64 {
        let left = self.free_at.saturating_sub(femtoseconds(now));
        u64::try_from(left.div_ceil(self.byte.into())).unwrap_or(u64::MAX)
    }

    /// Returns the size on the link of a packet with this many bytes from BTH to ICRC.
    pub fn size_on_link(bytes: usize) -> u64 {
        bytes as u64 + AROUND
    }

    /// Returns the time at which the queue is empty, in nanoseconds.
    pub fn idle_at(&self) -> u64 {
        u64::try_from(self.free_at.div_ceil(NANOSECOND)).unwrap_or(u64::MAX)
    }

    /// Sends a packet of `bytes` bytes on the link ([`Egress::size_on_link`]). Only a `capable`
    /// packet may be marked.
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
