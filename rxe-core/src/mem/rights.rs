//! Access rights from the flags of verbs. IBTA 10.6.3.

use crate::error::VerbsError;
use crate::types::Access;

impl Access {
    /// Returns the access rights for the flags of a verbs program.
    ///
    /// Optional flags (`IBV_ACCESS_OPTIONAL_RANGE`, for example RELAXED_ORDERING) are hints that a
    /// device may ignore; all are accepted. HUGETLB is also accepted without effect: it only states
    /// how the memory is mapped.
    ///
    /// # Errors
    /// A flag is undefined.
    pub fn from_verbs(flags: u32) -> Result<Self, VerbsError> {
        const HUGETLB: u32 = 1 << 7;
        const OPTIONAL: u32 = 0x3ff0_0000;
        let known = Self::from_bits_truncate(flags);
        let unknown = flags & !(known.bits() | OPTIONAL | HUGETLB);
        if unknown != 0 {
            let why = format!("this device does not have the flags {unknown:#x}: leave them out");
            return Err(VerbsError::InvalidAttribute { name: "access", why });
        }
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_flags_are_accepted_and_unknown_ones_are_not() {
        let access = |flags| Access::from_verbs(flags).map_err(|e| e.errno());
        assert_eq!(access(0x000f), Ok(Access::from_bits_truncate(0xf)));
        assert_eq!(access(1 << 20), Ok(Access::RELAXED_ORDERING));
        assert_eq!(access(1 | 1 << 7 | 1 << 21 | 1 << 29), Ok(Access::LOCAL_WRITE));
        assert_eq!(access(1 << 6), Ok(Access::ON_DEMAND));
        for flags in [1 << 10, 1 << 30, 1 << 31] {
            assert_eq!(access(flags), Err(22), "{flags:#x}");
        }
    }
}
