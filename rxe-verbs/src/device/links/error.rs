//! Errors of naming devices and of removing names.

use std::fmt;
use std::io;

use crate::device_error::choice;

/// Why a name cannot be given or removed.
#[derive(Debug)]
#[non_exhaustive]
pub enum LinkError {
    /// The name is not valid for a device.
    Name {
        /// The name.
        name: String,
        /// What is wrong with the name.
        why: &'static str,
    },
    /// The interface does not exist.
    NoInterface {
        /// The requested interface.
        netdev: String,
        /// The existing interfaces.
        interfaces: Vec<String>,
    },
    /// The interface has no address, so it is no device.
    NoAddress {
        /// The interface.
        netdev: String,
    },
    /// The name belongs to another interface or device, or this interface has it already.
    Taken {
        /// The name.
        name: String,
        /// The interface or endpoint that has the name.
        by: String,
        /// Whether the name was given by [`add`](super::add).
        given: bool,
    },
    /// The interface's device has been given another name.
    HasName {
        /// The interface.
        netdev: String,
        /// The name of the interface's device.
        name: String,
    },
    /// The name is the device's default name and was not given.
    NotGiven {
        /// The name.
        name: String,
        /// The device's interface.
        netdev: String,
    },
    /// The name was not given.
    NoSuch {
        /// The name.
        name: String,
        /// The names that were given.
        links: Vec<String>,
    },
    /// A system call failed.
    Os {
        /// What was attempted.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl LinkError {
    pub(super) fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { what, source }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name, why } => {
                write!(f, "{name:?} cannot be a device's name: {why}; choose one like rxe0")
            }
            Self::NoInterface { netdev, interfaces } => {
                write!(f, "no interface {netdev:?}: {}", choice(interfaces))
            }
            Self::NoAddress { netdev } => write!(
                f,
                "interface {netdev} has no address, so it is no device: give it one first \
                 (`ip address add ADDRESS/LENGTH dev {netdev}`)"
            ),
            Self::Taken { name, by, given: true } => write!(
                f,
                "{name} exists already, on {by}: choose another name, or `rxe link delete {name}` \
                 first"
            ),
            Self::Taken { name, by, given: false } => {
                write!(f, "{name} is a name of {by}: choose another name")
            }
            Self::HasName { netdev, name } => {
                write!(f, "{netdev} has the device {name}: `rxe link delete {name}` first")
            }
            Self::NotGiven { name, netdev } => write!(
                f,
                "{name} was not added: it is there because {netdev} has an address, and cannot be \
                 deleted; `rxe run --device` shows a program only some devices"
            ),
            Self::NoSuch { name, links } if links.is_empty() => {
                write!(f, "no link {name:?}: none was added")
            }
            Self::NoSuch { name, links } => {
                write!(f, "no link {name:?}: those added are {}", links.join(", "))
            }
            Self::Os { what, source } => write!(f, "cannot {what}: {source}"),
        }
    }
}

impl std::error::Error for LinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}
