//! Pseudo-random numbers. A seed gives the same numbers on every platform and in every version.

use std::ops::RangeInclusive;

/// A pseudo-random number generator.
#[derive(Clone, Debug)]
pub struct Rng(rxe_net::Rng);

impl Rng {
    /// Creates the generator of this seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must give unrelated numbers.
        Self(rxe_net::Rng::new(rxe_net::Rng::new(seed).next()))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns 32 random bits: the upper half of a 64-bit number.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.bits() >> 32).unwrap_or(0)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Returns a 32-bit number below `bound`; 0 if `bound` is 0.
    pub fn below32(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(bound.into())).unwrap_or(0)
    }

    /// Returns an index below `bound`.
    pub fn index(&mut self, bound: usize) -> usize {
        self.0.index(bound)
    }

    /// Returns a number in the range.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Returns true with a probability of `n` in `of`.
    pub fn chance(&mut self, n: u64, of: u64) -> bool {
        self.below(of) < n
    }

    /// Returns one of the values.
    ///
    /// # Panics
    /// If `of` is empty.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}
