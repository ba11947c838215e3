//! Bit fields of any width at any position. Bits are counted as in the tables of the specification,
//! most significant first.

/// Returns the field of `width` bits (up to 64) at bit `bit` of byte `at`. Bits beyond the end read
/// as zero.
pub(super) fn get(bytes: &[u8], at: usize, bit: usize, width: usize) -> u64 {
    let first = at * 8 + bit;
    (first..first + width).fold(0, |value, i| {
        let byte = bytes.get(i / 8).copied().unwrap_or(0);
        value << 1 | u64::from(byte >> (7 - i % 8) & 1)
    })
}

/// Writes the low `width` bits of `value` to the field at this position.
pub(super) fn put(bytes: &mut [u8], at: usize, bit: usize, width: usize, value: u64) {
    let first = at * 8 + bit;
    for (n, i) in (first..first + width).enumerate() {
        let mask = 0x80 >> (i % 8);
        let set = value >> (width - 1 - n) & 1 == 1;
        if let Some(byte) = bytes.get_mut(i / 8) {
            *byte = if set { *byte | mask } else { *byte & !mask };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_are_counted_from_the_most_significant() {
        let mut bytes = [0; 4];
        put(&mut bytes, 1, 5, 2, 0b10);
        assert_eq!(bytes, [0, 0b0000_0100, 0, 0]);
        put(&mut bytes, 1, 0, 20, 0xabcde);
        assert_eq!(bytes, [0, 0xab, 0xcd, 0xe0]);
        assert_eq!(get(&bytes, 1, 0, 20), 0xabcde);
        assert_eq!(get(&bytes, 3, 4, 12), 0, "beyond the end there are zeros");
    }

    proptest! {
        #[test]
        fn what_is_put_is_got_and_nothing_else_changes(
            mut bytes: [u8; 16], at in 0usize..8, bit in 0usize..8, width in 1usize..=56, value: u64,
        ) {
            let before = bytes;
            put(&mut bytes, at, bit, width, value);
            prop_assert_eq!(get(&bytes, at, bit, width), value & ((1 << width) - 1));
            put(&mut bytes, at, bit, width, get(&before, at, bit, width));
            prop_assert_eq!(bytes, before);
        }
    }
}
