//! Pseudo-random numbers: the same seed gives the same numbers on every system and in every version.
//! The algorithm is splitmix64 (Steele, Lea and Flood 2014).

use std::ops::RangeInclusive;

/// A generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed);
        // Neighbouring seeds must give unrelated numbers.
        Self(rng.bits())
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The high 32 of 64 bits.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.bits() >> 32).unwrap_or(0)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.bits()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// [`Rng::below`] for 32 bits.
    pub fn below32(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(bound.into())).unwrap_or(0)
    }

    /// [`Rng::below`] for indices.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// A number in the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True `n` times of `of`.
    pub fn chance(&mut self, n: u64, of: u64) -> bool {
        self.below(of) < n
    }

    /// One of the values.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}
