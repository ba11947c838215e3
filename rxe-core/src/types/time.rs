use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on the caller's monotonic clock, in nanoseconds since an origin of the caller's choice.
///
/// The engine has no clock: its caller passes the time to it, so that a simulation can run in
/// virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// The latest moment, which serves as a deadline that is never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the moment `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the duration from `earlier` to `self`, or zero if `self` is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates at [`Time::MAX`].
    fn add(self, d: Duration) -> Self {
        let seconds = d.as_secs().saturating_mul(1_000_000_000);
        Self(self.0.saturating_add(seconds).saturating_add(u64::from(d.subsec_nanos())))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    /// Equals [`Time::since`].
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Time::ZERO.since(Time::from_nanos(5)), Duration::ZERO);
        assert_eq!(Time::MAX + Duration::from_secs(1), Time::MAX);
        assert_eq!(
            Time::from_nanos(7) + Duration::from_micros(1) - Time::from_nanos(7),
            Duration::from_micros(1)
        );
    }
}
