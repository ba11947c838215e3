//! Pseudo-random numbers: a seed gives the same numbers on every platform and in every version. The
//! algorithm is splitmix64 (Steele, Lea and Flood 2014). Not for secrets.

/// A generator of pseudo-random numbers, for faults and simulations. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator. Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0. The bias of at most `bound` in 2⁶⁴
    /// does not matter here.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        // The high half is below `bound`.
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// Like [`Rng::below`], for indexes.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// Damages a packet as a bad link does: flips one to four bits or, with probability 1/8,
    /// truncates it.
    pub(crate) fn damage(&mut self, bytes: &mut Vec<u8>) {
        if self.below(8) == 0 {
            bytes.truncate(self.index(bytes.len()));
            return;
        }
        let mut flipped = Vec::new();
        for _ in 0..=self.below(4) {
            let bit = (self.index(bytes.len()), self.below(8));
            // Flipping a bit twice would restore it.
            if !flipped.contains(&bit)
                && let Some(byte) = bytes.get_mut(bit.0)
            {
                *byte ^= 1 << bit.1;
            }
            flipped.push(bit);
        }
    }

    /// Returns true with probability `p` (0 to 1). Draws no number if `p` is 0, so that a disabled
    /// fault does not change the random decisions of other faults.
    pub fn chance(&mut self, p: f64) -> bool {
        if p <= 0.0 {
            return false;
        }
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let x = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        x < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        let mut rng = Rng::new(1_234_567);
        let got = [rng.next(), rng.next(), rng.next()];
        assert_eq!(
            got,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn bounds_and_chances_hold() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| rng.below(7) < 7));
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| rng.chance(1.0) && !rng.chance(0.0)));
        let hits = (0..10_000).filter(|_| rng.chance(0.25)).count();
        assert!((2300..2700).contains(&hits), "{hits}");
    }
}
