//! Random numbers from the kernel that a stranger must not guess: keys, QP numbers, starting PSNs.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// Returns 8 random bytes.
pub(crate) fn random_u64() -> Result<u64> {
    let mut bytes = [0; 8];
    loop {
        // The kernel never returns fewer bytes than requested, up to 256.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) => return Ok(u64::from_ne_bytes(bytes)),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::io("get random numbers", e)),
        }
    }
}

/// Returns 4 random bytes.
pub(crate) fn random_u32() -> Result<u32> {
    let [a, b, c, d, ..] = random_u64()?.to_ne_bytes();
    Ok(u32::from_ne_bytes([a, b, c, d]))
}
