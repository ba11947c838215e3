//! Arithmetic modulo the polynomial of CRC-32. Values are reflected, like the CRC register: bit 31
//! is the coefficient of x⁰, bit 0 that of x³¹.

/// x³² modulo the polynomial.
const POLY: u32 = 0xedb8_8320;

const ONE: u32 = 0x8000_0000;

/// Reverses the effect of `bytes` zero bytes on a CRC register: multiplies by x^(-8·bytes). `bytes`
/// is taken modulo 65,536, because no packet is longer.
#[inline]
pub(super) fn rewind(register: u32, bytes: usize) -> u32 {
    let low = REWIND[bytes & 0xff];
    let high = REWIND_256[bytes >> 8 & 0xff];
    multiply(multiply(register, low), high)
}

/// The change of the register that makes the byte 4 bytes later appear changed by `i`.
pub(super) static REWIND_4: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    let mut register = 0u32;
    while i < table.len() {
        table[i] = multiply(register, REWIND[4]);
        i += 1;
        register += 1;
    }
    table
};

/// Returns the change of the register after a byte that differs by `i` and `bytes` further bytes.
pub(super) const fn passed(bytes: usize) -> [u32; 256] {
    let mut table = FORWARD;
    let mut i = 0;
    while i < table.len() {
        let mut n = 0;
        while n < bytes {
            table[i] = table[i] >> 8 ^ FORWARD[(table[i] & 0xff) as usize];
            n += 1;
        }
        i += 1;
    }
    table
}

/// x^(-8·i) for each `i`.
static REWIND: [u32; 256] = powers(rewind_byte(ONE));

/// x^(-8·256·i) for each `i`.
static REWIND_256: [u32; 256] = powers(multiply(REWIND[255], REWIND[1]));

/// The change of the register by each value of its low byte, as a byte is processed.
const FORWARD: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    let mut register = 0u32;
    while i < table.len() {
        let mut value = register;
        let mut bit = 0;
        while bit < 8 {
            value = value >> 1 ^ if value & 1 == 1 { POLY } else { 0 };
            bit += 1;
        }
        table[i] = value;
        i += 1;
        register += 1;
    }
    table
};

/// Returns the product of two polynomials modulo the polynomial.
const fn multiply(a: u32, b: u32) -> u32 {
    // Bit k of the product stands for x^(62-k). After a shift by one, bit 63 stands for x⁰, and the
    // lower half must be reduced: its bits stand 32 places too low.
    let product = carryless(a, b) << 1;
    let [l0, l1, l2, l3, h0, h1, h2, h3] = product.to_le_bytes();
    let mut low = u32::from_le_bytes([l0, l1, l2, l3]);
    let mut passes = 0;
    while passes < 4 {
        low = low >> 8 ^ FORWARD[(low & 0xff) as usize];
        passes += 1;
    }
    low ^ u32::from_le_bytes([h0, h1, h2, h3])
}

/// Returns the carry-less product. Ordinary multiplications of every fourth bit compute it: at most
/// 8 terms meet in a place, and the three free bits above it hold their carries.
const fn carryless(a: u32, b: u32) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    let (a, b) = (a as u64, b as u64);
    let mut product = 0;
    let mut shift = 0;
    while shift < 4 {
        let mut i = 0;
        let mut sum = 0;
        while i < 4 {
            let j = (shift + 4 - i) % 4;
            sum ^= (a & EVERY_FOURTH << i) * (b & EVERY_FOURTH << j);
            i += 1;
        }
        product |= sum & EVERY_FOURTH << shift;
        shift += 1;
    }
    product
}

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = multiply(powers[i - 1], base);
        i += 1;
    }
    powers
}

/// Divides by x⁸: returns the register before a zero byte.
const fn rewind_byte(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        // Only the polynomial can have set the top bit, because a shift clears it.
        register = if register & ONE == 0 { register << 1 } else { (register ^ POLY) << 1 | 1 };
        bit += 1;
    }
    register
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn forward(register: u32, bytes: usize) -> u32 {
        (0..bytes).fold(register, |r, _| r >> 8 ^ FORWARD[(r & 0xff) as usize])
    }

    #[test]
    fn the_first_powers_of_x() {
        assert_eq!(multiply(ONE, 0x1234_5678), 0x1234_5678, "1 changes nothing");
        assert_eq!(multiply(0x4000_0000, 1), POLY, "x times x^31 is x^32");
    }

    proptest! {
        #[test]
        fn rewinding_undoes_zero_bytes(register: u32, bytes in 0usize..5000) {
            prop_assert_eq!(rewind(forward(register, bytes), bytes), register);
        }

        #[test]
        fn products_agree_with_long_multiplication(a: u32, b: u32) {
            let (mut power, mut want) = (b, 0);
            for i in 0..32 {
                if a & ONE >> i != 0 {
                    want ^= power;
                }
                power = power >> 1 ^ if power & 1 == 1 { POLY } else { 0 };
            }
            prop_assert_eq!(multiply(a, b), want);
        }
    }
}
