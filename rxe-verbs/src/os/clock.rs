//! The engine's time is CLOCK_MONOTONIC, so that its deadlines can go to timer descriptors as they
//! are.

use rustix::time::{ClockId, Timespec, clock_gettime};
use rxe_core::types::Time;

/// Now.
pub(crate) fn now() -> Time {
    let t = clock_gettime(ClockId::Monotonic);
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
    use std::time::Duration;

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
}
