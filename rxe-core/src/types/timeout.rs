use std::time::Duration;

/// The time that a requester waits for an acknowledgement, as a 5-bit code. IBTA 9.9.2.1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// No timeout.
    pub const INFINITE: Self = Self(0);

    /// Creates a timeout from its code. Returns `None` if the code needs more than 5 bits.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// Returns the 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns 4.096 µs · 2^code, or `None` if there is no timeout (code 0).
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            n => Some(Duration::from_nanos(4096 << n)),
        }
    }
}

/// The time that a requester waits after an RNR NAK, as a 5-bit code. IBTA 9.7.5.2.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Creates a timer from its code. Returns `None` if the code needs more than 5 bits.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// Creates a timer from the low 5 bits of an AETH syndrome.
    pub const fn from_wire(syndrome: u8) -> Self {
        Self(syndrome & 0x1f)
    }

    /// Returns the 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time to wait. From code 1 (0.01 ms) on it grows with the code; code 0 is the
    /// longest, 655.36 ms.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(10 * RNR_TENS_OF_MICROS[self.0 as usize & 31])
    }

    /// Returns the shortest timer of at least `wait`, or the longest (code 0) if all are shorter.
    pub fn at_least(wait: Duration) -> Self {
        (1..32).map(Self).find(|timer| timer.duration() >= wait).unwrap_or(Self(0))
    }
}

/// The time of each RNR timer code, in units of 10 µs. IBTA 9.7.5.2.8.
const RNR_TENS_OF_MICROS: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_double() {
        let duration = |code| AckTimeout::new(code).unwrap().duration();
        assert_eq!(duration(0), None);
        assert_eq!(duration(1), Some(Duration::from_nanos(8_192)));
        assert_eq!(duration(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(duration(31), Some(Duration::from_nanos(8_796_093_022_208)));
        assert_eq!(AckTimeout::new(32), None);
    }

    #[test]
    fn rnr_timers_are_the_specification_s() {
        let micros = |code| RnrTimer::new(code).unwrap().duration().as_micros();
        assert_eq!(
            [0, 1, 5, 6, 12, 13, 20, 31].map(micros),
            [655_360, 10, 60, 80, 640, 960, 10_240, 491_520]
        );
        assert_eq!(RnrTimer::new(32), None);
        for code in 1..31 {
            assert!(micros(code) < micros(code + 1), "it grows after code {code}");
        }
    }

    #[test]
    fn a_wanted_wait_is_rounded_up() {
        let code = |micros| RnrTimer::at_least(Duration::from_micros(micros)).code();
        assert_eq!([0, 10, 11, 491_520, 491_521].map(code), [1, 1, 2, 31, 0]);
    }
}
