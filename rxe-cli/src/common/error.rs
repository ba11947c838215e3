//! Why a command failed, as one line that says what is wrong and what to do.

use std::fmt;

use rxe_net::NetError;
use rxe_verbs::device::DeviceError;
use rxe_verbs::device::links::LinkError;

/// Ends the command with exit code 1.
///
/// There is no conversion from `io::Error`: the system's message does not help without what was tried.
#[derive(Debug)]
pub(crate) struct Error(String);

impl Error {
    /// An error: `what` is wrong, and `todo` says what to do.
    pub(crate) fn new(what: impl fmt::Display, todo: impl fmt::Display) -> Self {
        Self(format!("{what}: {todo}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Always one line, even if the text of a system or a peer has several.
        for (i, line) in self.0.lines().enumerate() {
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
        Self(e.to_string())
    }
}

impl From<LinkError> for Error {
    fn from(e: LinkError) -> Self {
        Self(e.to_string())
    }
}

impl From<NetError> for Error {
    fn from(e: NetError) -> Self {
        Self(e.to_string())
    }
}

impl From<rxe_verbs::Error> for Error {
    fn from(e: rxe_verbs::Error) -> Self {
        Self(e.to_string())
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
