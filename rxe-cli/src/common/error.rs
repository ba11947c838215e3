//! Why a command failed, as one line that says what is wrong and what to do.

use std::fmt;

use rxe_net::NetError;
use rxe_verbs::device::DeviceError;
use rxe_verbs::device::links::LinkError;

/// Ends the command with exit code 1, or 2 if the command line is wrong.
///
/// There is no conversion from `io::Error`: the system's message does not help without what was tried.
#[derive(Debug)]
pub(crate) struct Error {
    text: String,
    is_wrong_usage: bool,
}

/// The exit code for a wrong command line, as in clap and most programs.
pub(crate) const WRONG_USAGE: u8 = 2;

impl Error {
    /// An error: `what` is wrong, and `todo` says what to do.
    pub(crate) fn new(what: impl fmt::Display, todo: impl fmt::Display) -> Self {
        format!("{what}: {todo}").into()
    }

    /// The same of a command line that nothing can be done with.
    pub(crate) fn wrong_usage(what: impl fmt::Display, todo: impl fmt::Display) -> Self {
        Self { is_wrong_usage: true, ..Self::new(what, todo) }
    }

    /// The exit code of a command that has no others.
    pub(crate) const fn code(&self) -> u8 {
        if self.is_wrong_usage { WRONG_USAGE } else { 1 }
    }
}

/// What is wrong, and what to do.
impl From<String> for Error {
    fn from(text: String) -> Self {
        Self { text, is_wrong_usage: false }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Always one line, even if the text of a system or a peer has several.
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

impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Self {
        e.to_string().into()
    }
}

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
