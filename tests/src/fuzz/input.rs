//! Decisions drawn from the fuzzer's bytes.
//! When the bytes are used up, a decision is the first choice, the least number or false.

use std::ops::RangeInclusive;

use arbitrary::Unstructured;

/// The fuzzer's bytes, of which each decision uses some.
#[derive(Debug)]
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// Creates an input that takes these bytes from the front.
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// Returns whether all bytes are used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns one of the choices.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        self.0.choose(choices).copied().unwrap_or(choices[0])
    }

    /// Returns an index below `len`, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.0.choose_index(len).unwrap_or(0)
    }

    /// Returns a number in the range.
    pub fn within(&mut self, range: RangeInclusive<u32>) -> u32 {
        let least = *range.start();
        self.0.int_in_range(range).unwrap_or(least)
    }

    /// Returns true in `n` of 256 cases.
    pub fn chance(&mut self, n: u8) -> bool {
        let byte = self.byte();
        byte != 0 && byte <= n
    }

    /// Returns any byte.
    pub fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns any 32 bits.
    pub fn word(&mut self) -> u32 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns the next `len` bytes, or as many as are left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let len = len.min(self.0.len());
        self.0.bytes(len).unwrap_or_default()
    }

    /// Returns all bytes that are left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }
}
