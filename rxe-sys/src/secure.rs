//! Tells whether the process has more privileges than its user.

/// Returns whether the program gained privileges at start (setuid, setgid, file capabilities). Its
/// user controls the environment, so no variable may be trusted then, as with secure_getenv(3).
pub fn has_gained_rights() -> bool {
    // SAFETY: reads a number that the kernel passed to the process at start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_has_the_rights_of_its_user() {
        assert!(!super::has_gained_rights());
    }
}
