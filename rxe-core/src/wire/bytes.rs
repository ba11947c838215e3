//! Big-endian words in arrays of fixed size, for the header modules.

/// Returns the 32-bit word at `at`, which must lie within the array.
#[inline]
pub(super) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Returns the 64-bit word at `at`, which must lie within the array.
#[inline]
pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// Concatenates the parts, which must fill the array exactly.
#[inline]
pub(super) fn join<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut out = [0; N];
    let mut rest = &mut out[..];
    for part in parts {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
    debug_assert!(rest.is_empty(), "the parts fill the header");
    out
}
