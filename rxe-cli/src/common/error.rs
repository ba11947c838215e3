//! The error of a command: one line that says what is wrong and what to do.

use std::fmt;

use rxe_net::NetError;
#[cfg(target_os = "linux")]
use rxe_verbs::device::DeviceError;
#[cfg(target_os = "linux")]
use rxe_verbs::device::links::LinkError;

/// An error that ends the command.
/// The exit code is 1, or 2 for a wrong command line, or 126 or 127 for a program that cannot be
/// run.
///
/// There is no conversion from `io::Error`: without the operation that failed, the kernel's message
/// does not help.
#[derive(Debug)]
pub(crate) struct Error {
    text: String,
    code: u8,
}

/// The exit code of a wrong command line, as in clap and most programs.
pub(crate) const WRONG_USAGE: u8 = 2;

/// Exit codes of shells and `env` for a program that is not executable or does not exist.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

impl Error {
    /// Creates an error: `what` is wrong, and `todo` says what to do.
    pub(crate) fn new(what: impl fmt::Display, todo: impl fmt::Display) -> Self {
        format!("{what}: {todo}").into()
    }

    /// Creates an error for a wrong command line.
    pub(crate) fn wrong_usage(what: impl fmt::Display, todo: impl fmt::Display) -> Self {
        Self { code: WRONG_USAGE, ..Self::new(what, todo) }
    }

    /// Returns the same error for a program that exists and cannot be executed.
    pub(crate) fn not_executable(self) -> Self {
        Self { code: NOT_EXECUTABLE, ..self }
    }

    /// Returns the same error for a program that does not exist.
    pub(crate) fn not_found(self) -> Self {
        Self { code: NOT_FOUND, ..self }
    }

    /// Returns the exit code with which the command ends.
    pub(crate) const fn code(&self) -> u8 {
        self.code
    }
}

/// Creates an error from a line that says what is wrong and what to do.
impl From<String> for Error {
    fn from(text: String) -> Self {
        Self { text, code: 1 }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Print one line, even if a text of the kernel or of a peer has several.
        for (i, line) in self.text.lines().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            f.write_str(line.trim())?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(target_os = "linux")]
impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Self {
        e.to_string().into()
    }
}

#[cfg(target_os = "linux")]
impl From<LinkError> for Error {
    fn from(e: LinkError) -> Self {
        e.to_string().into()
    }
}

impl From<NetError> for Error {
    fn from(e: NetError) -> Self {
        e.to_string().into()
    }
}

#[cfg(target_os = "linux")]
impl From<rxe_verbs::Error> for Error {
    fn from(e: rxe_verbs::Error) -> Self {
        e.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_one_line() {
        assert_eq!(Error::new("peer said \"a\n b\"", "try").to_string(), "peer said \"a b\": try");
    }
}
