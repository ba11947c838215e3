use std::fmt;
use std::ops::{Add, Sub};

/// A packet sequence number: 24 bits that wrap. IBTA 9.7.1 and 9.2.2 (BTH).
///
/// PSNs have no total order, hence no `Ord`. They have a signed distance, which is meaningful
/// between two PSNs less than half the number space (2²³) apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// The number of PSNs: 2²⁴.
    pub const SPACE: u32 = 1 << 24;

    const MASK: u32 = Self::SPACE - 1;

    /// Creates a PSN from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// Returns the number, below 2²⁴.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the PSN `n` packets later.
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// Returns the PSN `n` packets earlier.
    pub const fn sub(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// Returns the PSN of the next packet.
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Returns the signed distance `self - other`, from -2²³ to 2²³ - 1. It is negative if `self`
    /// comes before `other`.
    pub const fn diff(self, other: Self) -> i32 {
        // Shifts the 24-bit difference to the top, so that its bit 23 becomes the sign.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// Returns whether `self` comes before `other`.
    pub const fn before(self, other: Self) -> bool {
        self.diff(other) < 0
    }

    /// Returns whether `self` comes after `other`.
    pub const fn after(self, other: Self) -> bool {
        self.diff(other) > 0
    }
}

impl Add<u32> for Psn {
    type Output = Self;

    fn add(self, n: u32) -> Self {
        Psn::add(self, n)
    }
}

impl Sub<u32> for Psn {
    type Output = Self;

    fn sub(self, n: u32) -> Self {
        Psn::sub(self, n)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:06x}", self.0)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_circle_closes() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::ZERO);
        assert_eq!(Psn::ZERO - 1, last);
        assert_eq!(Psn::ZERO.diff(last), 1);
        assert_eq!(last.diff(Psn::ZERO), -1);
        assert!(last.before(Psn::ZERO) && Psn::ZERO.after(last));
        assert_eq!(Psn::new(0x1_000_005), Psn::new(5), "only 24 bits count");
    }

    #[test]
    fn the_far_side_counts_as_before() {
        // Numbers exactly half the number space apart have no defined order; IBTA 9.7.1 keeps them
        // out of use.
        assert_eq!(Psn::new(1 << 23).diff(Psn::ZERO), -(1 << 23));
        assert_eq!(Psn::ZERO.diff(Psn::new(1 << 23)), -(1 << 23));
    }

    #[test]
    fn it_prints_as_six_hex_digits() {
        assert_eq!(Psn::new(0xabc).to_string(), "0x000abc");
        assert_eq!(format!("{:?}", Psn::new(0xabc)), "Psn(0x000abc)");
    }

    proptest! {
        #[test]
        fn adding_then_measuring_gives_what_was_added(start: u32, n in 0u32..(1 << 23)) {
            let start = Psn::new(start);
            prop_assert_eq!((start + n).diff(start), n.cast_signed());
            prop_assert_eq!((start - n).diff(start), -n.cast_signed());
            prop_assert_eq!(start + n - n, start);
        }

        #[test]
        fn diff_leads_from_one_to_the_other(a: u32, b: u32) {
            let (a, b) = (Psn::new(a), Psn::new(b));
            let d = a.diff(b);
            prop_assert!((-(1 << 23)..1 << 23).contains(&d));
            prop_assert_eq!(b + d.cast_unsigned(), a);
            prop_assert_eq!(a.before(b), d < 0);
            prop_assert_eq!(a.after(b), d > 0);
        }

        #[test]
        fn order_does_not_depend_on_where_the_circle_is_cut(a: u32, b: u32, turn: u32) {
            let (a, b) = (Psn::new(a), Psn::new(b));
            prop_assert_eq!((a + turn).diff(b + turn), a.diff(b));
        }
    }
}
