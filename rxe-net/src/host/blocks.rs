//! A set of blocks of queue pair numbers.

use std::fmt;

/// A set of blocks of queue pair numbers: a bitmap of 256 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Blocks([u64; 4]);

impl Blocks {
    pub(crate) fn insert(&mut self, block: u8) {
        self.0[usize::from(block / 64)] |= 1 << (block % 64);
    }

    pub(crate) fn has(self, block: u8) -> bool {
        self.0[usize::from(block / 64)] & 1 << (block % 64) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Iterates over the blocks in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(move |block| self.has(*block))
    }
}

impl FromIterator<u8> for Blocks {
    fn from_iter<I: IntoIterator<Item = u8>>(blocks: I) -> Self {
        let mut set = Self::default();
        blocks.into_iter().for_each(|block| set.insert(block));
        set
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_there() {
        let blocks: Blocks = [255, 1, 64, 63, 1].into_iter().collect();
        assert!(blocks.iter().eq([1, 63, 64, 255]));
        assert!(blocks.has(64) && !blocks.has(0) && !blocks.has(65));
        assert!(Blocks::default().is_empty() && !blocks.is_empty());
    }
}
