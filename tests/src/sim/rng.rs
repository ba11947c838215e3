//! Pseudo-random numbers: the same seed gives the same numbers on every system and in every version.

use std::ops::RangeInclusive;

/// A generator.
#[derive(Clone, Debug)]
pub struct Rng(rxe_net::Rng);

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds must give unrelated numbers.
        Self(rxe_net::Rng::new(rxe_net::Rng::new(seed).next()))
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next()
    }

    /// The high 32 of 64 bits.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.bits() >> 32).unwrap_or(0)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// [`Rng::below`] for 32 bits.
    pub fn below32(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(bound.into())).unwrap_or(0)
    }

    /// [`Rng::below`] for indices.
    pub fn index(&mut self, bound: usize) -> usize {
        self.0.index(bound)
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
