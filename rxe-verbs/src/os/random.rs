//! Numbers that a stranger must not guess: keys, QP numbers, starting PSNs. From the kernel.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};

/// Eight bytes of it.
pub(crate) fn random_u64() -> Result<u64> {
    let mut bytes = [0; 8];
    loop {
        // Up to 256 bytes always come whole.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) => return Ok(u64::from_ne_bytes(bytes)),
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::io("get random numbers", e)),
        }
    }
}

/// Four bytes of it.
pub(crate) fn random_u32() -> Result<u32> {
    let [a, b, c, d, ..] = random_u64()?.to_ne_bytes();
    Ok(u32::from_ne_bytes([a, b, c, d]))
}
