//! Random numbers that an attacker must not be able to guess.

mod common;

use std::collections::BTreeSet;

use common::{Side, address, open};

/// Checks that each bit in `bits` varies among 200 numbers, and that few pairs of neighbours have
/// the same distance. With 24 random bits a false failure is practically impossible.
fn assert_random(what: &str, numbers: &[u32], bits: u32) {
    let (and, or) = numbers.iter().fold((u32::MAX, 0), |(and, or), n| (and & n, or | n));
    assert_eq!((!and & or) & bits, bits, "{what}: some bits never change: {numbers:x?}");
    let distances: BTreeSet<u32> = numbers.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    assert!(
        distances.len() > numbers.len() / 2,
        "{what}: they follow from each other: {numbers:x?}"
    );
}

#[test]
fn keys_and_numbers_do_not_follow_from_each_other() {
    let side = Side::new(open(address()));
    let regions: Vec<_> = (0..200).map(|_| side.region(16)).collect();
    let keys: Vec<u32> = regions.iter().map(|region| region.rkey().value()).collect();
    assert_random("rkeys", &keys, 0xffff_ff00);
    let qps: Vec<_> = (0..200).map(|_| side.pd.qp(&side.cq).build().unwrap()).collect();
    let numbers: Vec<u32> = qps.iter().map(|qp| qp.qpn().value()).collect();
    // The upper 8 bits are the QPN block.
    assert_random("QPNs", &numbers, 0x00_ffff);
}
