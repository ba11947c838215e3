//! The engine's time is CLOCK_MONOTONIC, so that its deadlines can go to timer descriptors as they
//! are.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use rxe_core::types::Time;

/// Now.
pub(crate) fn now() -> Time {
    read(ClockId::Monotonic)
}

/// Whether this moment is so far ahead that the coarse clock is enough to tell. That clock is some
/// milliseconds late, and costs a fraction of the other.
pub(crate) fn is_far(moment: Time) -> bool {
    moment > read(ClockId::MonotonicCoarse) + COARSE
}

/// More than the system's tick, by which the coarse clock is late: at 100 Hz, 10 ms.
const COARSE: Duration = Duration::from_millis(16);

fn read(clock: ClockId) -> Time {
    let t = clock_gettime(clock);
    let (seconds, nanos) = (t.tv_sec.cast_unsigned(), t.tv_nsec.cast_unsigned());
    Time::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// How long to sleep in poll(2) to wake at `deadline`; `None` is for ever.
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
