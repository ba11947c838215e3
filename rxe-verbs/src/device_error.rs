//! Errors of finding a device.

use std::{fmt, io};

/// The device that was asked for does not exist.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// No device and no interface has this name.
    NoSuch {
        /// The requested name.
        name: String,
        /// The names of the existing devices.
        devices: Vec<String>,
    },
    /// The interface exists, but is no device because it has no address.
    NoAddress {
        /// The interface.
        netdev: String,
        /// The names of the existing devices.
        devices: Vec<String>,
    },
    /// There is no device, because no interface has an address.
    None,
    /// The interfaces cannot be listed.
    Os(io::Error),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuch { name, devices } => {
                write!(f, "no device {name:?}: {}", choice(devices))
            }
            Self::NoAddress { netdev, devices } => write!(
                f,
                "interface {netdev} has no address, so it is no device: give it one \
                 (`ip address add ADDRESS/LENGTH dev {netdev}`), or {}",
                choice(devices)
            ),
            Self::None => f.write_str(
                "no device: no interface has an address; `ip link set lo up` makes one on loopback",
            ),
            Self::Os(e) => {
                write!(f, "cannot list interfaces: {e}; does a sandbox forbid netlink sockets?")
            }
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os(e) => Some(e),
            _ => None,
        }
    }
}

/// Returns the part of an error that suggests existing devices or interfaces.
pub(crate) fn choice(devices: &[String]) -> String {
    match devices {
        [] => "there is no other".into(),
        [one] => format!("use {one}"),
        [rest @ .., last] => format!("use {} or {last}", rest.join(", ")),
    }
}
