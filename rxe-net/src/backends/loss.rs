//! Tells socket errors that only mean lost packets from those that end a backend.

use std::io;

use crate::counters::Counters;

/// Why packets were not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    NoBuffer,
    Unreachable,
    Denied,
    Down,
    TooBig,
    BadAddress,
    Other,
}

impl Loss {
    /// Returns the loss that an error stands for, or `None` if the socket cannot be used any more.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        Some(match error.raw_os_error()? {
            libc::ENOBUFS | libc::ENOMEM => Self::NoBuffer,
            libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::ENONET => Self::Unreachable,
            libc::EPERM | libc::EACCES => Self::Denied,
            libc::ENETDOWN | libc::ENODEV | libc::ENXIO => Self::Down,
            libc::EMSGSIZE => Self::TooBig,
            libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT => Self::BadAddress,
            libc::EIO | libc::EINVAL | libc::ETIMEDOUT => Self::Other,
            _ => return None,
        })
    }
}

/// Counts packets that were not sent.
pub(crate) fn count_lost(counters: &mut Counters, loss: Loss, packets: u64) {
    let counter = match loss {
        Loss::NoBuffer => &mut counters.tx_no_buffer,
        Loss::Unreachable => &mut counters.tx_unreachable,
        Loss::Denied => &mut counters.tx_denied,
        Loss::Down => &mut counters.tx_down,
        Loss::TooBig => &mut counters.tx_too_big,
        Loss::BadAddress => &mut counters.tx_bad_address,
        Loss::Other => &mut counters.tx_other,
    };
    *counter += packets;
}
