//! The pattern with which both peers fill and check memory.

/// The length of a row in bytes.
const ROW: usize = 64;

/// Returns the bytes `[at, at + len)` of the pattern of `seed`.
/// The pattern consists of rows of 64 bytes, which contain the seed and the number of the row.
pub(crate) fn pattern(seed: u32, at: usize, len: usize) -> Vec<u8> {
    let rows = at / ROW..(at + len).div_ceil(ROW);
    let mut out = Vec::with_capacity(rows.len() * ROW);
    for row in rows {
        #[expect(clippy::cast_possible_truncation, reason = "the row's number is 32 bits")]
        let row = row as u32;
        out.extend_from_slice(&seed.to_le_bytes());
        out.extend_from_slice(&row.to_le_bytes());
        let first = seed.wrapping_add(row).to_le_bytes()[0];
        out.extend((0..56).map(|j| first.wrapping_add(j)));
    }
    out.drain(..at % ROW);
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_pattern_is_that_part_of_the_whole() {
        let whole = pattern(0x1234_56fe, 0, 1000);
        assert_eq!(&whole[..10], [0xfe, 0x56, 0x34, 0x12, 0, 0, 0, 0, 0xfe, 0xff]);
        assert_eq!(&whole[64..74], [0xfe, 0x56, 0x34, 0x12, 1, 0, 0, 0, 0xff, 0]);
        for (at, len) in [(0, 0), (1, 63), (63, 2), (64, 64), (100, 900), (999, 1)] {
            assert_eq!(pattern(0x1234_56fe, at, len), whole[at..at + len], "{at} {len}");
        }
    }
}
