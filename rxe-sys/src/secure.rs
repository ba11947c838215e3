//! Whether the process has more rights than its user.

/// Whether the program gained rights when it was started (setuid, setgid, file capabilities). The
/// environment is its user's, so no variable in it counts then, as with secure_getenv(3).
pub fn has_gained_rights() -> bool {
    // SAFETY: reads a number that the kernel gave the process when it started.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_has_the_rights_of_its_user() {
        assert!(!super::has_gained_rights());
    }
}
