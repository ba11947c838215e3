//! Converts the time of a completion to wall-clock time.
//!
//! Completions are stamped with CLOCK_MONOTONIC when they are created. Their wall-clock time is
//! that stamp plus an offset. The offset is the same for all completions, so their times have the
//! order of the stamps. If it were measured for each completion, times would go backwards by up to
//! some microseconds, because two clocks cannot be read at the same instant.
//!
//! NTP adjusts the rate of both clocks alike, so the offset stays correct until the wall clock is
//! set.

use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A larger difference in nanoseconds means that the wall clock has been set (stepped).
const STEP: i64 = 1_000_000;

/// The offset of the wall clock from CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) struct WallClock {
    /// The offset in nanoseconds; [`UNKNOWN`] at first.
    offset: AtomicI64,
}

/// The value of the offset before the first measurement.
const UNKNOWN: i64 = i64::MIN;

/// A measurement of the offset, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Sample {
    offset: i64,
    /// The largest possible error: half of the time that the reads took.
    error: i64,
}

impl WallClock {
    pub(super) const fn new() -> Self {
        Self { offset: AtomicI64::new(UNKNOWN) }
    }

    /// Returns the wall-clock time, in nanoseconds since 1970, of a stamp of CLOCK_MONOTONIC.
    pub(super) fn time_of(&self, stamp: u64) -> u64 {
        stamp.saturating_add_signed(self.offset(Sample::take))
    }

    fn offset(&self, mut sample: impl FnMut() -> Sample) -> i64 {
        let known = self.offset.load(Ordering::Relaxed);
        let now = sample();
        if known != UNKNOWN && known.abs_diff(now.offset) <= (now.error + STEP).unsigned_abs() {
            return known;
        }
        // This is the first time, or the clock was set. The best of several samples is used,
        // because a thread may be preempted between its reads.
        let best = [now, sample(), sample(), sample()].into_iter().min_by_key(|s| s.error);
        let offset = best.unwrap_or(now).offset;
        match self.offset.compare_exchange(known, offset, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => offset,
            // Another thread has just measured the offset.
            Err(theirs) => theirs,
        }
    }
}

impl Sample {
    fn take() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
        };
        let before = read(ClockId::Monotonic);
        let wall = read(ClockId::Realtime);
        let error = (read(ClockId::Monotonic) - before) / 2;
        Self { offset: wall - (before + error), error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_that_differ_a_little_change_no_time() {
        let clock = WallClock::new();
        let hour = 3_600_000_000_000;
        let mut samples = [(-300, 900), (120, 50), (7, 40), (2_000, 2_500)]
            .into_iter()
            .map(|(off, error)| Sample { offset: hour + off, error });
        let first = clock.offset(|| samples.next().unwrap());
        assert_eq!(first, hour + 7, "the most exact");
        for (off, error) in [(-1000, 1500), (2000, 2100), (1, 30), (40_000_000, 41_000_000)] {
            assert_eq!(clock.offset(|| Sample { offset: hour + off, error }), first);
        }
        // The wall clock is set back.
        assert_eq!(clock.offset(|| Sample { offset: 5, error: 40 }), 5);
        assert_eq!(clock.offset(|| Sample { offset: 25, error: 40 }), 5);
    }
}
