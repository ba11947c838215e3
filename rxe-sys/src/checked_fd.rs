//! A descriptor that checks whether its number still refers to the file it was opened for.
//!
//! A program that this library is loaded into may close descriptors that it did not open
//! (`close_range(3, ~0)`, a daemon's loop over all numbers) and then get the same numbers for its
//! own files. A write to such a number would go to the program's file, and closing the number would
//! close that file. Therefore:
//!
//! - [`CheckedFd::is_intact`] compares the device and inode behind the number with those recorded
//!   when the `CheckedFd` was created. A socket, a pipe and a memfd each have their own inode, so
//!   for them the answer is exact. All event, timer and epoll descriptors of a host share one
//!   inode: for them the answer only tells a file, a socket or a pipe from a descriptor of that
//!   family. Of that family, only an event descriptor can be written to.
//! - A table records which `CheckedFd` owns each number. A stale `CheckedFd`, whose number the
//!   program has closed, thus never uses a descriptor that this library opened later under the same
//!   number.
//! - [`CheckedFd::ensure`] is the check for the data path. It calls fstat once per tick of the
//!   coarse clock (1 to 10 ms), which is read without a system call, and reuses the answer until
//!   the next tick. To go unnoticed, a program would have to close and reopen the number within one
//!   tick.
//! - Dropping closes the number only if it is intact. Otherwise the number belongs to the program
//!   or is closed.
//! - Descriptors get high numbers ([`CheckedFd::internal`], [`CheckedFd::for_program`]). The kernel
//!   hands out the lowest free number, so a program that has closed everything gets these numbers
//!   again only after hundreds of others. The low numbers also stay free for programs with small
//!   tables of descriptors.
//!
//! Between the check and the use another thread may still close and reuse the number. No program is
//! known to do that; only the high number protects against it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::fork_generation;

/// A descriptor that is used and closed only while it still owns its number.
#[derive(Debug)]
pub struct CheckedFd {
    /// `None` only during the drop.
    fd: Option<OwnedFd>,
    identity: Identity,
    /// The value in [`OWNERS`] while this descriptor owns its number.
    owner: u64,
    /// The tick in which [`CheckedFd::ensure`] last found the number intact.
    intact_in: AtomicI64,
    /// The process that created the descriptor, as [`fork_generation`] numbers it.
    generation: u64,
}

/// Device and inode, or zeros if fstat failed. No real descriptor has zeros.
type Identity = (u64, u64);

/// The owner of each descriptor number. Numbers beyond the table are checked by inode only.
static OWNERS: [AtomicU64; 1 << 16] = [const { AtomicU64::new(0) }; 1 << 16];
static NEXT_OWNER: AtomicU64 = AtomicU64::new(1);

/// The lowest number for internal descriptors, unless the process limit is too low
/// (`lowest_number`).
const HIGH: u64 = 512;

/// The lowest number for descriptors that the program sees.
const FOR_PROGRAM: u64 = 256;

/// FD_SETSIZE: select(2) accepts only numbers below.
const SELECT: RawFd = 1024;

impl CheckedFd {
    /// Wraps a descriptor and keeps its number: for descriptors that are open only briefly.
    pub fn new(fd: OwnedFd) -> Self {
        let identity = identity(fd.as_fd());
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = owner_slot(&fd) {
            // The kernel only hands out closed numbers, so a previous owner has lost this one.
            slot.store(owner, Ordering::Relaxed);
        }
        let intact_in = AtomicI64::new(tick());
        Self { fd: Some(fd), identity, owner, intact_in, generation: fork_generation() }
    }

    /// Wraps a descriptor and moves it to a high number, if one is free.
    pub fn internal(fd: OwnedFd) -> Self {
        Self::new(fd).into_internal()
    }

    /// Moves a descriptor that is checked already to a high number, if one is free.
    pub fn into_internal(self) -> Self {
        rustix::io::fcntl_dupfd_cloexec(&self, lowest_number(HIGH, 2)).map_or(self, Self::new)
    }

    /// Wraps a descriptor that is handed to the program. Its number is above those that the program
    /// opens itself, if one that select(2) accepts is free.
    ///
    /// Some programs compare numbers. For example, `select` of librspreload searches the program's
    /// numbers for the first one that stands for a given descriptor of librdmacm. If that
    /// descriptor had a lower number than the program's, the search would wrongly find the
    /// descriptor itself.
    pub fn for_program(fd: OwnedFd) -> Self {
        let low = Self::new(fd);
        match rustix::io::fcntl_dupfd_cloexec(&low, lowest_number(FOR_PROGRAM, 4)) {
            Ok(high) if high.as_raw_fd() < SELECT => Self::new(high),
            _ => low,
        }
    }

    /// Returns the plain descriptor, which is not checked any more.
    pub fn into_owned(mut self) -> OwnedFd {
        self.fd.take().expect("only a drop takes it")
    }

    /// Returns whether the number still refers to the original file (see the module's head).
    pub fn is_intact(&self) -> bool {
        self.is_owner() && self.identity != (0, 0) && self.identity == identity(self.as_fd())
    }

    /// Returns whether this process created the descriptor. A forked child has a copy of the
    /// number, but shares the open file with its parent: the parent would notice every read and
    /// write of the child.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }

    /// Returns whether no other [`CheckedFd`] has received this number since.
    pub(crate) fn is_owner(&self) -> bool {
        owner_slot(self).is_none_or(|slot| slot.load(Ordering::Relaxed) == self.owner)
    }

    /// Checks that the number is still intact, at most once per tick of the coarse clock. Cheap
    /// enough for the data path (see the module's head).
    ///
    /// # Errors
    /// [`Error::DescriptorsClosed`] if the number is not intact.
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

    /// Returns whether `other` has the same inode.
    pub(crate) fn is_same(&self, other: BorrowedFd<'_>) -> bool {
        self.identity == identity(other)
    }
}

/// Returns the lowest number to use: `wanted`, or a `part`-th of the process limit if that is less.
fn lowest_number(wanted: u64, part: u64) -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    RawFd::try_from(wanted.min(limit / part)).unwrap_or(0)
}

impl Drop for CheckedFd {
    fn drop(&mut self) {
        let intact = self.fd.is_some() && self.is_intact();
        let Some(fd) = self.fd.take() else { return };
        let fd = fd.into_raw_fd();
        if intact {
            // SAFETY: this descriptor owns the number and nothing uses it any more. If the program
            // closes it at this very moment, this call fails; dropping the `OwnedFd` would instead
            // abort a debug build.
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

fn owner_slot(fd: &impl AsRawFd) -> Option<&'static AtomicU64> {
    OWNERS.get(usize::try_from(fd.as_raw_fd()).ok()?)
}

/// Returns the time of the coarse monotonic clock in ns. It advances every 1 to 10 ms.
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

    /// Closes the number without its owner's knowledge, as a program may, and opens a file under
    /// it.
    pub(crate) fn replace_by_file(fd: &impl AsRawFd) -> File {
        let mut file = File::from(
            rustix::fs::memfd_create("program", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
        );
        file.write_all(b"the program's").unwrap();
        // SAFETY: the number is in use, and its owner is a `CheckedFd`, which handles this.
        #[expect(unsafe_code, reason = "does to a descriptor what its owner would not")]
        let rc = unsafe { libc::dup3(file.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
        assert_eq!(rc, fd.as_raw_fd());
        file
    }

    /// Checks that the file still has the program's content, and that the number is still open.
    pub(crate) fn assert_untouched(mut file: File, number: RawFd) {
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"the program's");
        // SAFETY: the number is open: `replace_by_file` opened it and its owner must not close it.
        #[expect(unsafe_code, reason = "a number that nobody owns any more")]
        let left = unsafe { BorrowedFd::borrow_raw(number) };
        assert_eq!(identity(left), identity(file.as_fd()));
        // SAFETY: no owner is left.
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
        // SAFETY: `before` is a `CheckedFd`, which handles this.
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
