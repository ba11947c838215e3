//! The engine's time: CLOCK_MONOTONIC, so that its deadlines can be passed to timer descriptors
//! unchanged.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use rxe_core::types::Time;

/// Returns the present time.
pub(crate) fn now() -> Time {
    read(ClockId::Monotonic)
}

/// Returns whether a moment is so far ahead that the coarse clock suffices to tell. That clock lags
/// by some milliseconds and costs a fraction of the exact one.
pub(crate) fn is_far(moment: Time) -> bool {
    moment > read(ClockId::MonotonicCoarse) + COARSE
}

/// The coarse clock is behind by up to a tick of the kernel, which is 10 ms at 100 Hz. This is more.
const COARSE: Duration = Duration::from_millis(16);

fn read(clock: ClockId) -> Time {
    let t = clock_gettime(clock);
    let (seconds, nanos) = (t.tv_sec.cast_unsigned(), t.tv_nsec.cast_unsigned());
    Time::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// Returns the timeout for a poll(2) that wakes at `deadline`; `None` is no timeout.
pub(crate) fn until(deadline: Time) -> Option<Timespec> {
    if deadline == Time::MAX {
        return None;
    }
    let left = deadline.since(now());
    Some(Timespec::try_from(left).unwrap_or(MAX_TIME))
}

const MAX_TIME: Timespec = Timespec { tv_sec: 1 << 30, tv_nsec: 0 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_never_is_never() {
        let before = now();
        let sleep = Duration::from_millis(2);
        std::thread::sleep(sleep);
        assert!(now().since(before) >= sleep);
        assert!(until(Time::MAX).is_none());
        let past = until(before).unwrap();
        assert_eq!((past.tv_sec, past.tv_nsec), (0, 0));
    }

    #[test]
    fn what_is_past_or_near_is_not_far() {
        let now = now();
        assert!(!is_far(Time::ZERO) && !is_far(now));
        assert!(is_far(now + Duration::from_secs(3600)) && is_far(Time::MAX));
    }
}
