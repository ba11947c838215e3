//! Congestion control by marks (DCQCN). The receiver answers packets with a congestion mark (ECN) with
//! notifications (CNP); the sender reduces its rate for each. IBTA A17.9; Zhu et al., "Congestion
//! Control for Large-Scale RDMA Deployments", SIGCOMM 2015.
//!
//! Packets are sent as "ECN capable" until the peer has shown that it does not take part. Switches mark
//! ECN capable packets instead of dropping them, so with a peer that ignores marks, as kernel
//! `rdma_rxe` does, no sender would slow down. A queue pair that was never notified pays one comparison
//! each time it sends.
//!
//! The pace holds for requests and READ responses together, so it belongs to the queue pair and not to
//! its requester. Losses are the requester's business ([`Controller`](crate::rc::Controller)).

use std::time::Duration;

use crate::types::Time;
use crate::wire::NetHeader;

/// ECN capable transport, ECT(0). RFC 3168.
const ECT: u8 = 0b10;
/// The ECN bits of the type of service.
const ECN: u8 = 0b11;
/// If none of the peer's first `PROBE` packets is ECN capable, the peer does not take part.
const PROBE: u8 = 32;
/// The shortest time between two notifications: DCQCN's notification point timer.
const CNP_INTERVAL: Duration = Duration::from_micros(50);

/// The congestion state of a queue pair, for both directions.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    on: bool,
    peer: Peer,
    cnp_due: bool,
    last_cnp: Option<Time>,
    pace: Option<Box<Pace>>,
    meter: Meter,
}

/// Whether the peer takes part in congestion control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// Not known yet. The number of packets that have arrived, none of them ECN capable.
    Unknown(u8),
    Yes,
    No,
}

impl Default for Peer {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

impl Congestion {
    pub(super) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// Returns whether packets with these headers would change this state.
    pub(super) fn learns_from(&self, net: &NetHeader) -> bool {
        let known = if net.tos & ECN != 0 { Peer::Yes } else { Peer::No };
        let same = self.peer == known || (self.peer, known) == (Peer::Yes, Peer::No);
        self.on && (!same || net.congestion_experienced())
    }

    /// Reads the ECN bits of a packet from the peer. Returns whether a notification is now due.
    pub(super) fn observe(&mut self, now: Time, net: &NetHeader) -> bool {
        if !self.on {
            return false;
        }
        if net.tos & ECN != 0 {
            self.peer = Peer::Yes;
        } else if let Peer::Unknown(seen) = self.peer {
            debug_assert!(seen < PROBE);
            self.peer = if seen + 1 >= PROBE { Peer::No } else { Peer::Unknown(seen + 1) };
        }
        let silent = |last: Time| now.since(last) >= CNP_INTERVAL;
        if net.congestion_experienced() && self.last_cnp.is_none_or(silent) {
            self.last_cnp = Some(now);
            self.cnp_due = true;
            return true;
        }
        false
    }

    /// Takes the notification that is due. Returns whether there was one.
    pub(super) fn take_cnp(&mut self) -> bool {
        std::mem::take(&mut self.cnp_due)
    }

    pub(super) fn has_cnp(&self) -> bool {
        self.cnp_due
    }

    /// Returns the type of service of packets to the peer: `tos` with the ECN bits set or cleared.
    pub(super) fn mark(&self, tos: u8) -> u8 {
        let marked = if self.on && self.peer != Peer::No { tos & !ECN | ECT } else { tos & !ECN };
        debug_assert_eq!((marked ^ tos) & !ECN, 0, "only the ECN bits change");
        marked
    }

    /// Reduces the rate, because the peer has sent a notification. Returns whether this side takes part.
    pub(super) fn notified(&mut self, now: Time) -> bool {
        if !self.on {
            return false;
        }
        let measured = self.meter.rate(now);
        let pace = self.pace.get_or_insert_with(|| Box::new(Pace::new(now, measured)));
        pace.cut(now);
        true
    }

    /// Returns how many packets of `mtu` bytes may be sent now. Begins to hold sending up if none may.
    pub(super) fn allowance(&mut self, now: Time, mtu: usize) -> usize {
        let Some(pace) = &mut self.pace else { return usize::MAX };
        pace.recover(now);
        if pace.is_over() {
            self.pace = None;
            return usize::MAX;
        }
        pace.allowance(now, mtu)
    }

    /// Counts bytes that were sent.
    pub(super) fn sent(&mut self, now: Time, bytes: u64) {
        self.meter.add(now, bytes);
        if let Some(pace) = &mut self.pace {
            pace.sent(now, bytes);
        }
    }

    /// Returns whether a rate limit is in force.
    pub(super) fn is_pacing(&self) -> bool {
        self.pace.is_some()
    }

    /// Returns the rate limit in force, in bytes per second.
    pub(super) fn rate(&self) -> Option<u64> {
        self.pace.as_ref().map(|pace| pace.current)
    }

    /// Returns when sending may continue, if it is held up.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.pace.as_ref().and_then(|pace| pace.held.then_some(pace.next))
    }

    /// Returns whether sending waits for [`Congestion::deadline`].
    pub(super) fn is_held(&self) -> bool {
        self.deadline().is_some()
    }

    /// Returns whether more was sent than the pace allows until now. A request, or the packet that asks
    /// for an acknowledgement, may be waiting for that.
    pub(super) fn is_ahead(&self, now: Time) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.next > now)
    }

    /// Ends the wait if its deadline has passed.
    pub(super) fn release(&mut self, now: Time) {
        if let Some(pace) = &mut self.pace
            && pace.next <= now
        {
            pace.held = false;
        }
        debug_assert!(self.deadline().is_none_or(|at| at > now), "a wait that is over ends");
    }
}

/// Measures the present rate, which the first notification reduces.
#[derive(Debug, Default)]
struct Meter {
    since: Option<Time>,
    bytes: u64,
    /// Bytes per second in the last whole period.
    rate: u64,
}

impl Meter {
    const PERIOD: Duration = Duration::from_millis(1);

    fn add(&mut self, now: Time, bytes: u64) {
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= Self::PERIOD {
            // These bytes belong to the next period: before them there may have been a pause.
            self.rate = per_second(self.bytes, now.since(since));
            debug_assert!(self.since.is_some_and(|since| since <= now), "time goes on");
            (self.since, self.bytes) = (Some(now), 0);
        }
        self.bytes += bytes;
    }

    fn rate(&self, now: Time) -> u64 {
        let lately = self.since.map_or(0, |since| {
            per_second(self.bytes, now.since(since).max(Duration::from_micros(100)))
        });
        self.rate.max(lately)
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(1_000_000_000) / nanos
}

/// DCQCN's reaction point: a rate that notifications cut and time restores.
#[derive(Debug)]
struct Pace {
    /// Bytes per second.
    current: u64,
    target: u64,
    /// The rate before the first notification. Pacing ends when it is reached again.
    full: u64,
    /// DCQCN's estimate of the congestion, in 1/1024.
    alpha: u64,
    alpha_at: Time,
    increase_at: Time,
    /// Increases since the last cut.
    stage: u32,
    last_cut: Option<Time>,
    /// When the next packet may leave.
    next: Time,
    held: bool,
}

impl Pace {
    const ONE: u64 = 1024;
    /// 1/g of the paper: each step moves alpha by 1/16 of the distance.
    const G: u64 = 16;
    const ALPHA_TIMER: Duration = Duration::from_micros(55);
    const INCREASE_TIMER: Duration = Duration::from_micros(300);
    /// How many increases after a cut only approach the old rate.
    const FAST_RECOVERY: u32 = 5;
    /// Growth of the target in each further increase, in bytes per second.
    const ADDITIVE: u64 = 1_000_000;
    /// Growth of the target after `2 * FAST_RECOVERY` increases, in bytes per second.
    const HYPER: u64 = 10_000_000;
    const MINIMUM: u64 = 500_000;
    /// How far ahead of its pace a QP may send, so that packets still leave in bursts of a system call.
    const BURST: Duration = Duration::from_micros(20);

    fn new(now: Time, measured: u64) -> Self {
        let full = measured.max(10 * Self::MINIMUM);
        Self {
            current: full,
            target: full,
            full,
            alpha: Self::ONE,
            alpha_at: now + Self::ALPHA_TIMER,
            increase_at: now + Self::INCREASE_TIMER,
            stage: 0,
            last_cut: None,
            next: now,
            held: false,
        }
    }

    fn cut(&mut self, now: Time) {
        // A conforming peer sends at most one CNP in this time; a flood of them counts as one.
        if self.last_cut.is_some_and(|last| now.since(last) < CNP_INTERVAL) {
            return;
        }
        self.recover(now);
        self.last_cut = Some(now);
        self.target = self.current;
        let cut = self.current / (2 * Self::ONE) * self.alpha;
        self.current = self.current.saturating_sub(cut).max(Self::MINIMUM);
        self.alpha += (Self::ONE - self.alpha) / Self::G;
        self.stage = 0;
        self.alpha_at = now + Self::ALPHA_TIMER;
        self.increase_at = now + Self::INCREASE_TIMER;
        self.check();
    }

    fn check(&self) {
        debug_assert!(self.alpha <= Self::ONE, "a share: {self:?}");
        debug_assert!(self.current >= Self::MINIMUM, "never stops: {self:?}");
        debug_assert!(self.current <= self.target, "grows towards the target: {self:?}");
        debug_assert!(self.full >= 10 * Self::MINIMUM);
    }

    /// Applies the increases of the time that has passed until `now`.
    fn recover(&mut self, now: Time) {
        while self.alpha_at <= now && self.alpha > 0 {
            self.alpha -= self.alpha.div_ceil(Self::G).min(self.alpha);
            self.alpha_at = self.alpha_at + Self::ALPHA_TIMER;
        }
        while self.increase_at <= now && !self.is_over() {
            self.stage += 1;
            self.increase_at = self.increase_at + Self::INCREASE_TIMER;
            if self.stage > 2 * Self::FAST_RECOVERY {
                self.target += Self::HYPER;
            } else if self.stage > Self::FAST_RECOVERY {
                self.target += Self::ADDITIVE;
            }
            self.current = (self.current + self.target).div_ceil(2);
        }
        debug_assert!(self.alpha_at > now || self.alpha == 0, "alpha has decayed until now");
        debug_assert!(self.increase_at > now || self.is_over(), "the rate has grown until now");
        self.check();
    }

    fn is_over(&self) -> bool {
        self.current >= self.full && self.stage > Self::FAST_RECOVERY
    }

    fn allowance(&mut self, now: Time, mtu: usize) -> usize {
        let ahead = self.next.since(now);
        if ahead > Self::BURST {
            self.held = true;
            return 0;
        }
        let time = Self::BURST - ahead;
        let bytes = u128::from(self.current) * time.as_nanos() / 1_000_000_000;
        usize::try_from(bytes).unwrap_or(usize::MAX) / mtu.max(1) + 1
    }

    fn sent(&mut self, now: Time, bytes: u64) {
        let nanos = bytes.saturating_mul(1_000_000_000) / self.current.max(1);
        self.next = self.next.max(now) + Duration::from_nanos(nanos);
        debug_assert!(self.next >= now, "a pace is never behind");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(tos: u8) -> NetHeader {
        NetHeader { tos, ..NetHeader::default() }
    }

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn marks_are_answered_at_most_once_in_an_interval() {
        let mut congestion = Congestion::new(true);
        let mut due = |micros| congestion.observe(at(micros), &net(0b11));
        assert_eq!([due(0), due(10), due(49), due(50), due(51)], [true, false, false, true, false]);
        assert!(congestion.take_cnp() && !congestion.take_cnp());
        assert!(!Congestion::new(false).observe(at(0), &net(0b11)));
    }

    #[test]
    fn packets_are_ecn_capable_until_the_peer_turns_out_not_to_be() {
        let mut congestion = Congestion::new(true);
        assert_eq!(congestion.mark(0xb9), 0xba);
        (0..PROBE).for_each(|_| assert!(!congestion.observe(at(0), &net(0))));
        assert_eq!(congestion.mark(0xb9), 0xb8);
        congestion.observe(at(0), &net(0b10));
        assert_eq!(congestion.mark(0), ECT, "it does after all");
        assert_eq!(Congestion::new(false).mark(0), 0);
    }

    /// Sends packets of 1,000 bytes as fast as allowed for `micros`. Returns bytes per second.
    fn rate(congestion: &mut Congestion, start: u64, micros: u64) -> u64 {
        let mut sent = 0;
        for now in start..start + micros {
            congestion.release(at(now));
            // A link of 1 GB/s.
            let packets = congestion.allowance(at(now), 1000).min(1);
            congestion.sent(at(now), packets as u64 * 1000);
            sent += packets as u64 * 1000;
        }
        per_second(sent, Duration::from_micros(micros))
    }

    #[test]
    fn notifications_cut_the_rate_and_time_restores_it() {
        let mut congestion = Congestion::new(true);
        let full = rate(&mut congestion, 0, 2000);
        assert_eq!(full, 1_000_000_000);
        for i in 0..4 {
            congestion.notified(at(2000 + 50 * i));
            rate(&mut congestion, 2000 + 50 * i, 50);
        }
        let slow = rate(&mut congestion, 2200, 200);
        assert!(slow < full / 5, "{slow}");
        rate(&mut congestion, 2400, 100_000);
        assert_eq!(rate(&mut congestion, 102_400, 1000), full);
        assert!(congestion.pace.is_none(), "and costs nothing any more");
    }

    #[test]
    fn the_first_cut_is_from_the_rate_of_the_burst_that_follows_a_pause() {
        let mut congestion = Congestion::new(true);
        for start in [0, 5000, 1_000_000] {
            // A burst of 200 kB. The notification arrives before more is sent.
            congestion.sent(at(start), 200_000);
            congestion.notified(at(start + 100));
            // Half of 200 kB in 100 µs.
            let rate = congestion.rate().unwrap();
            assert!((999_000_000..1_001_000_000).contains(&rate), "{rate} at {start}");
            congestion.allowance(at(start + 4000), 1000);
            assert_eq!(congestion.rate(), None, "the rate is restored");
        }
    }

    #[test]
    fn a_flood_of_notifications_does_not_stop_the_sender() {
        let mut congestion = Congestion::new(true);
        for i in 0..100_000 {
            congestion.notified(at(i));
        }
        let slow = rate(&mut congestion, 100_000, 100_000);
        assert!(slow >= Pace::MINIMUM / 2, "{slow}");
    }
}
