//! A link over a TAP interface. The other end is this host's network stack, or the bridge that the
//! interface is in. Documentation/networking/tuntap.rst.
//!
//! Each read and each write is one frame. Frames from the kernel are segmented and have their
//! checksums.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::{Errno, read, writev};

use super::link::{Arrival, Link};
use super::stream::MAX_FRAME;
use crate::backends::loss::Loss;
use crate::error::{L2Failure, NetError};
use rxe_sys::SharedFd;
use rxe_sys::sockopt;

/// A link over a TAP interface.
#[derive(Debug)]
pub(super) struct TapLink {
    name: String,
    fd: SharedFd,
    buffer: Box<[u8]>,
}

impl TapLink {
    /// Opens the TAP interface `name`, or creates it.
    pub(super) fn open(name: &str) -> Result<Self, NetError> {
        let failed = |reason| NetError::L2 { link: format!("tap:{name}"), reason };
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = File::options();
        options.read(true).write(true).custom_flags(nonblocking);
        let file = options.open("/dev/net/tun").map_err(|e| failed(L2Failure::NoTun(e)))?;
        sockopt::attach_tap(file.as_fd(), name).map_err(|e| {
            failed(match e.raw_os_error() {
                Some(libc::EBUSY) => L2Failure::InUse { owner: None },
                _ => L2Failure::Tap { name: name.into(), source: e },
            })
        })?;
        let fd = SharedFd::guarded(OwnedFd::from(file));
        Ok(Self { name: name.into(), fd, buffer: vec![0; MAX_FRAME].into() })
    }
}

impl Link for TapLink {
    fn next(&mut self, f: &mut dyn FnMut(&Arrival<'_>)) -> Result<bool, NetError> {
        match read(self.fd.intact()?, &mut *self.buffer) {
            Ok(length) => {
                f(&Arrival::single(&self.buffer[..length]));
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => {
                let reason = L2Failure::Gone(io::Error::from(e));
                Err(NetError::L2 { link: format!("tap:{}", self.name), reason })
            }
        }
    }

    /// Sends the frame immediately. It is lost while the interface is down.
    fn push(&mut self, parts: &[&[u8]]) -> Result<(), Loss> {
        let fd = self.fd.intact().map_err(|_| Loss::Down)?;
        let parts: smallvec::SmallVec<[IoSlice<'_>; 4]> =
            parts.iter().map(|part| IoSlice::new(part)).collect();
        loop {
            match writev(fd, &parts) {
                Err(Errno::INTR) => {}
                sent => return sent.map(drop).map_err(|_| Loss::Down),
            }
        }
    }

    /// The kernel accepts each frame, or the frame is lost.
    fn has_room(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), NetError> {
        Ok(())
    }

    fn shared(&self) -> &SharedFd {
        &self.fd
    }
}
