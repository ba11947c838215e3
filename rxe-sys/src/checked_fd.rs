//! A descriptor that knows whether its number is still its own.
//!
//! A program that this library lives in may close descriptors that it did not open
//! (`close_range(3, ~0)`, a daemon's loop over all numbers) and then get the same numbers for files
//! of its own. What is written to such a number would land in the program's file, and closing it
//! would close that file. So:
//!
//! - [`CheckedFd::is_intact`] compares the device and inode behind the number with those recorded when the
//!   `CheckedFd` was created. A socket, a pipe and a memfd have an inode of their own, so for them the answer is exact.
//!   All event, timer and epoll descriptors of a system share one inode: for them the answer only
//!   tells a file, a socket or a pipe from a descriptor of that family. None of that family but an
//!   event descriptor can be written to.
//! - A table says whose each number is, so that what was opened after the program has closed all is
//!   never taken for what was open before, by a thread that is left over from then.
//! - [`CheckedFd::ensure`] is the same for the data path: it asks the system once per tick of the
//!   coarse clock (1 to 10 ms), which is read without a system call, and believes the answer until
//!   the next tick. In one tick a program would have to close the number and open it anew.
//! - Dropping closes the number only if it is intact. Otherwise it is the program's, or nobody's.
//! - Descriptors get high numbers ([`CheckedFd::internal`], [`CheckedFd::seen`]). The system gives out
//!   the lowest free number, so a program that closed everything gets these again only after hundreds of
//!   others; and a program with a table for few descriptors keeps the low ones for itself.
//!
//! Between the check and the use another thread may still close and reuse the number. No program is
//! known to do that; what protects from it is the high number.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::fork_generation;

/// A descriptor that is used and closed only while its number is its own.
#[derive(Debug)]
pub struct CheckedFd {
    /// `None` only while it is being dropped.
    fd: Option<OwnedFd>,
    identity: Identity,
    /// What stands in [`OWNERS`] while the number is its own.
    owner: u64,
    /// The tick in which it was last found intact.
    intact_in: AtomicI64,
    /// The process that made it, by [`fork_generation`].
    generation: u64,
}

/// Device and inode; zeros where the system would not tell, which no descriptor has.
type Identity = (u64, u64);

/// Whose a number is. Those that are higher than this table is long are known by their inode alone.
static OWNERS: [AtomicU64; 1 << 16] = [const { AtomicU64::new(0) }; 1 << 16];
static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);

/// Where the numbers of internal descriptors begin, unless the process may not have so many.
const HIGH: u64 = 512;

/// The same for descriptors that the program sees.
const SEEN: u64 = 256;

/// What select(2) takes is below this.
const SELECT: RawFd = 1024;

impl CheckedFd {
    /// Keeps the number that the descriptor has: for what is open only for a moment.
    pub fn new(fd: OwnedFd) -> Self {
        let identity = identity(fd.as_fd());
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = place(&fd) {
            // Whoever had it before has lost it: the system does not give away what is open.
            place.store(owner, Ordering::Relaxed);
        }
        let intact_in = AtomicI64::new(tick());
        Self { fd: Some(fd), identity, owner, intact_in, generation: fork_generation() }
    }

    /// Moves the descriptor to a high number, if one is free.
    pub fn internal(fd: OwnedFd) -> Self {
        Self::new(fd).into_internal()
    }

    /// The same for one that was checked already.
    pub fn into_internal(self) -> Self {
        rustix::io::fcntl_dupfd_cloexec(&self, floor(HIGH, 2)).map_or(self, Self::new)
    }

    /// For one that the program sees: a number above those that it opens itself, if one is free
    /// that select(2) takes.
    ///
    /// Some programs compare numbers. For example, `select` of librspreload searches the program's numbers for the
    /// first one that stands for a given descriptor of librdmacm. If that descriptor has a lower number than the
    /// program's, the search wrongly finds the descriptor itself.
    pub fn seen(fd: OwnedFd) -> Self {
        let low = Self::new(fd);
        match rustix::io::fcntl_dupfd_cloexec(&low, floor(SEEN, 4)) {
            Ok(high) if high.as_raw_fd() < SELECT => Self::new(high),
            _ => low,
        }
    }

    /// The descriptor, unchecked from now on.
    pub fn into_owned(mut self) -> OwnedFd {
        self.fd.take().expect("only a drop takes it")
    }

    /// Whether the number still stands for what it was made for (see the module's opening).
    pub fn is_intact(&self) -> bool {
        self.is_owner() && self.identity != (0, 0) && self.identity == identity(self.as_fd())
    }

    /// Whether this process made it. A forked child has the number too, but what stands behind it is shared
    /// with the parent: what the child writes or reads there, the parent finds changed.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }

    /// Whether nothing else of this library has got the number since.
    pub(crate) fn is_owner(&self) -> bool {
        place(self).is_none_or(|place| place.load(Ordering::Relaxed) == self.owner)
    }

    /// Refuses to use a number that is not its own any more. Cheap enough for the data path (see the
    /// module's opening).
    pub fn ensure(&self) -> Result<(), Error> {
        let now = tick();
        if self.intact_in.load(Ordering::Relaxed) == now && self.is_owner() {
            return Ok(());
        }
        if !self.is_intact() {
            return Err(Error::DescriptorsClosed);
        }
        self.intact_in.store(now, Ordering::Relaxed);
        Ok(())
    }

    /// Whether `other` stands for the same, as far as inodes tell.
    pub(crate) fn is_same(&self, other: BorrowedFd<'_>) -> bool {
        self.identity == identity(other)
    }
}

/// Where numbers are to begin: at `wanted`, or where this part of those begins that the process may have.
fn floor(wanted: u64, part: u64) -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    RawFd::try_from(wanted.min(limit / part)).unwrap_or(0)
}

impl Drop for CheckedFd {
    fn drop(&mut self) {
        let intact = self.fd.is_some() && self.is_intact();
        let Some(fd) = self.fd.take() else { return };
        let fd = fd.into_raw_fd();
        if intact {
            // SAFETY: it is this one's, and nobody uses it any more. If the program has closed it in this
            // moment, this call fails; a drop of the `OwnedFd` would end the process in a debug build.
            unsafe { rustix::io::close(fd) };
        }
    }
}

impl AsFd for CheckedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("only a drop takes it").as_fd()
    }
}

impl AsRawFd for CheckedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

fn place(fd: &impl AsRawFd) -> Option<&'static AtomicU64> {
    OWNERS.get(usize::try_from(fd.as_raw_fd()).ok()?)
}

/// The coarse clock: it stands still for some milliseconds.
fn tick() -> i64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec)
}

fn identity(fd: BorrowedFd<'_>) -> Identity {
    rustix::fs::fstat(fd).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    use super::*;

    /// Closes the number behind its owner's back, as a program may, and opens a file under it.
    pub(crate) fn replace_by_file(fd: &impl AsRawFd) -> File {
        let mut file = File::from(
            rustix::fs::memfd_create("program", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.write_all(b"the program's").unwrap();
        // SAFETY: the number is in use, and its owner is a `CheckedFd` that copes with this.
        #[expect(unsafe_code, reason = "does to a descriptor what its owner would not")]
        let rc = unsafe { libc::dup3(file.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
        assert_eq!(rc, fd.as_raw_fd());
        file
    }

    /// The file has what the program has written, and the number is open still.
    pub(crate) fn assert_untouched(mut file: File, number: RawFd) {
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"the program's");
        // SAFETY: the number is open: `replace_by_file` opened it and its owner must not close it.
        #[expect(unsafe_code, reason = "a number that nobody owns any more")]
        let left = unsafe { BorrowedFd::borrow_raw(number) };
        assert_eq!(identity(left), identity(file.as_fd()));
        // SAFETY: nobody owns it.
        #[expect(unsafe_code, reason = "as above")]
        drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number) });
    }

    #[test]
    fn a_number_that_the_program_uses_again_is_not_closed() {
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = CheckedFd::internal(socket.into());
        assert!(fd.is_intact());
        let number = fd.as_raw_fd();
        let file = replace_by_file(&fd);
        assert!(!fd.is_intact());
        drop(fd);
        assert_untouched(file, number);
    }

    #[test]
    fn another_socket_under_the_number_is_not_ours() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = CheckedFd::new(a.into());
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "does to a descriptor what its owner would not")]
        let rc = unsafe { libc::dup2(b.as_raw_fd(), fd.as_raw_fd()) };
        assert!(rc >= 0 && !fd.is_intact());
    }

    #[test]
    fn what_comes_after_is_not_taken_for_what_was_there_before() {
        use rustix::event::{EventfdFlags, eventfd};
        let make = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let before = CheckedFd::internal(make());
        let number = before.as_raw_fd();
        // SAFETY: `before` copes with this.
        #[expect(unsafe_code, reason = "does to a descriptor what its owner would not")]
        let after = CheckedFd::new(unsafe {
            assert_eq!(libc::dup3(make().as_raw_fd(), number, libc::O_CLOEXEC), number);
            <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(number)
        });
        assert!(!before.is_intact() && before.ensure().is_err() && after.is_intact());
        drop(before);
        assert!(after.is_intact(), "it was closed");
    }

    #[test]
    fn one_that_was_closed_is_refused_from_the_next_tick_on() {
        let (a, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = CheckedFd::internal(a.into());
        fd.ensure().unwrap();
        let number = fd.as_raw_fd();
        let file = replace_by_file(&fd);
        let before = tick();
        while tick() == before {
            std::thread::yield_now();
        }
        assert!(matches!(fd.ensure(), Err(Error::DescriptorsClosed)));
        drop(fd);
        assert_untouched(file, number);
    }

    #[test]
    fn internal_descriptors_leave_the_low_numbers_to_the_program() {
        let (a, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let low = a.as_raw_fd();
        let fd = CheckedFd::internal(a.into());
        assert!(fd.as_raw_fd() > low && fd.as_raw_fd() >= 32);
    }
}
