//! Errors of verbs, grouped by who is to blame. Each error prints as one line: what happened,
//! where, and what to do.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rxe_core::VerbsError;
use rxe_core::mem::AccessError;
use rxe_net::{L2Failure, NetError};

use crate::device_error::DeviceError;

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a verb did not do what was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The program asked for something that verbs do not allow. Nothing was changed.
    Verbs(VerbsError),
    /// The network backend cannot be opened or used.
    Net(NetError),
    /// The device does not exist.
    Device(DeviceError),
    /// A system call failed.
    Io {
        /// What was attempted.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The awaited object or event did not arrive in time.
    TimedOut {
        /// What was awaited.
        what: &'static str,
        /// How long the call waited.
        after: Duration,
    },
    /// The device has stopped working, together with all objects created on it.
    DeviceFailed {
        /// The device.
        device: String,
        /// The cause.
        why: String,
    },
    /// The device was opened before `fork` by a parent of this process and belongs to the parent.
    Forked {
        /// The device.
        device: String,
    },
    /// More requests completed than the completion queue holds. Some completions are lost.
    CqOverflow {
        /// The number of completions that the queue holds.
        depth: usize,
    },
    /// Another listener has this address and port.
    ListenedTo {
        /// The requested address and port.
        asked: SocketAddr,
        /// The address of the other process's listener, unspecified if it listens on all addresses.
        /// `None` if the listener belongs to this process.
        taken: Option<IpAddr>,
    },
    /// A text does not describe an endpoint.
    Endpoint {
        /// The text.
        text: String,
    },
}

/// The error of a post that stopped before the end of a list of requests.
#[derive(Debug)]
pub struct PostError {
    /// The number of requests posted, all of them before the one that failed.
    pub posted: usize,
    /// Why the next request was not posted.
    pub error: Error,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        error.error
    }
}

impl Error {
    pub(crate) fn io(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { what, source: source.into() }
    }

    /// Returns the error for bytes inside a region that could not be accessed.
    pub(crate) fn unusable(offset: usize, why: AccessError) -> Self {
        let why = match why {
            AccessError::Misaligned => {
                format!("{offset}: an atomic word must be at a multiple of 8")
            }
            other => format!("{offset}: {}", other.explain()),
        };
        VerbsError::InvalidAttribute { name: "offset", why }.into()
    }

    /// Returns whether the program's memory was not mapped, or was protected.
    pub fn faulted(&self) -> bool {
        matches!(self, Self::Verbs(VerbsError::Prefetch(AccessError::Faulted(_))))
    }

    /// Returns the errno that rdma-core would report.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Verbs(e) => e.errno(),
            Self::Net(
                NetError::PortInUse { .. }
                | NetError::OtherUser { .. }
                | NetError::NotShared { .. }
                | NetError::OtherVersion { .. }
                | NetError::ForeignSocket { .. }
                | NetError::BlockTaken { .. }
                | NetError::ServiceTaken { .. },
            ) => libc::EADDRINUSE,
            Self::Net(NetError::SourcePort { source, .. }) => {
                source.raw_os_error().unwrap_or(libc::EADDRINUSE)
            }
            Self::ListenedTo { .. } => libc::EADDRINUSE,
            Self::Net(NetError::L2 { reason, .. }) => match reason {
                L2Failure::InUse { .. } => libc::EBUSY,
                L2Failure::AddressTaken { .. } | L2Failure::LeaseTaken { .. } => libc::EADDRINUSE,
                L2Failure::NoSuchAddress { .. } | L2Failure::NoLease => libc::EADDRNOTAVAIL,
                L2Failure::OtherBackend { .. } => libc::EINVAL,
                L2Failure::Tap { source, .. } | L2Failure::NoTun(source) => {
                    source.raw_os_error().unwrap_or(libc::EIO)
                }
                _ => libc::EIO,
            },
            Self::Net(NetError::NoBlock { .. }) => libc::ENOMEM,
            Self::Net(NetError::NoAnswer { .. }) => libc::ETIMEDOUT,
            Self::Net(NetError::TooManyFiles { .. }) => libc::EMFILE,
            Self::Net(
                NetError::NoSuchAddress { .. }
                | NetError::NoAddress { .. }
                | NetError::Tentative { .. },
            ) => libc::EADDRNOTAVAIL,
            Self::Net(NetError::NoPrivilege { .. }) => libc::EPERM,
            Self::Net(NetError::NoSuchDevice { .. }) | Self::Device(_) => libc::ENODEV,
            Self::Net(
                NetError::File { source, .. }
                | NetError::Join { source, .. }
                | NetError::System(rxe_sys::Error::Os { source, .. }),
            )
            | Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::OutOfMemory => libc::ENOMEM,
                _ => source.raw_os_error().unwrap_or(libc::EIO),
            },
            Self::Net(NetError::NoMulticast { .. }) => libc::EOPNOTSUPP,
            Self::Net(NetError::System(rxe_sys::Error::DescriptorsClosed)) => libc::EBADF,
            Self::Net(_) | Self::Endpoint { .. } => libc::EINVAL,
            Self::TimedOut { .. } => libc::ETIMEDOUT,
            Self::DeviceFailed { .. } | Self::Forked { .. } => libc::EIO,
            Self::CqOverflow { .. } => libc::EOVERFLOW,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(e) => e.fmt(f),
            Self::Net(e) => e.fmt(f),
            Self::Device(e) => e.fmt(f),
            Self::Io { what, source } => write!(f, "cannot {what}: {source}"),
            Self::TimedOut { what, after } => write!(
                f,
                "no {what} within {after:?}: is the peer alive and connected, and has it posted \
                 what this waits for?"
            ),
            Self::DeviceFailed { device, why } => {
                write!(f, "{device} has stopped working: {why}; close it and open it again")
            }
            Self::Forked { device } => write!(
                f,
                "{device} was opened before fork(), by the parent of this process, and is the \
                 parent's: open it again in the child"
            ),
            Self::CqOverflow { depth } => write!(
                f,
                "the completion queue overflowed: make it deeper than {depth}, or poll it more often"
            ),
            Self::ListenedTo { asked, taken } => {
                let (ip, port) = (asked.ip(), asked.port());
                let all = if ip.is_unspecified() { "all addresses, " } else { "" };
                write!(f, "port {port} of {all}{ip} is listened to already")?;
                match taken {
                    None => f.write_str(" by this program")?,
                    Some(taken) if *taken == ip => f.write_str(" by another program")?,
                    Some(taken) => {
                        let all = if taken.is_unspecified() { "all addresses, " } else { "" };
                        write!(f, ": another program does so on {all}{taken}")?;
                    }
                }
                f.write_str("; end that listener or choose another port")
            }
            Self::Endpoint { text } => write!(
                f,
                "{text:?} is no endpoint: it looks like \
                 \"qpn=0x000011 psn=0x0a0b0c mtu=1024 gid=127.0.0.1\""
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Verbs(_)
            | Self::Net(_)
            | Self::Device(_)
            | Self::TimedOut { .. }
            | Self::DeviceFailed { .. }
            | Self::Forked { .. }
            | Self::CqOverflow { .. }
            | Self::ListenedTo { .. }
            | Self::Endpoint { .. } => None,
        }
    }
}

impl From<VerbsError> for Error {
    fn from(e: VerbsError) -> Self {
        Self::Verbs(e)
    }
}

impl From<NetError> for Error {
    fn from(e: NetError) -> Self {
        Self::Net(e)
    }
}

impl From<rxe_sys::Error> for Error {
    fn from(e: rxe_sys::Error) -> Self {
        Self::Net(e.into())
    }
}

impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Self {
        Self::Device(e)
    }
}
