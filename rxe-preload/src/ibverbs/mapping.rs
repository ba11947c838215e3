//! Maps DMA buffers (dma-buf) into the memory of the process.
//!
//! An adapter accesses the pages of a buffer through the kernel, wherever they are. Here the CPU
//! copies, so the buffer is mapped. Most exporters allow that: `udmabuf`, the heaps of
//! `/dev/dma_heap`, graphics drivers. Exporters of memory that the CPU cannot reach do not.
//!
//! The copies are not bracketed by `DMA_BUF_IOCTL_SYNC`, because a region is accessed whenever a
//! peer wants to. Where the CPU and devices have a coherent view of memory, as on x86-64, the ioctl
//! would change nothing.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::ffi::{Failure, Outcome};

/// The file system magic of all DMA buffers (`DMA_BUF_MAGIC`).
const FILE_SYSTEM: u64 = 0x444d_4142;
/// The descriptor with which programs probe whether DMA buffers can be registered.
/// UCX is among them. The errno `EBADF` means yes. That is not a mistake, so it is not explained.
const NO_FILE: c_int = -1;

/// A part of a DMA buffer, mapped until this value is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The address of the first mapped page.
    base: *mut c_void,
    /// The length of the mapping in bytes.
    len: usize,
    /// The offset of the requested part in the first page.
    first: usize,
}

impl Mapping {
    /// Maps `length` bytes from `offset` of a DMA buffer. The descriptor may be closed afterwards.
    pub(super) fn of_dma_buf(fd: c_int, offset: u64, length: usize, write: bool) -> Outcome<Self> {
        let size = size(fd)?;
        let end = offset.checked_add(length as u64).filter(|end| *end <= size);
        if length == 0 || end.is_none() {
            let why = format!("{length} bytes at {offset} of a DMA buffer that has {size}");
            return Err(Failure::new(libc::EINVAL, why));
        }
        let first = offset % rustix::param::page_size() as u64;
        let (Ok(at), Ok(first)) = (libc::off_t::try_from(offset - first), usize::try_from(first))
        else {
            return Err(Failure::plain(libc::EINVAL));
        };
        let len = first + length;
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, at) };
        match base {
            libc::MAP_FAILED => {
                Err(refused(std::io::Error::last_os_error().raw_os_error().unwrap_or_default()))
            }
            base => Ok(Self { base, len, first }),
        }
    }

    pub(crate) fn addr(&self) -> *mut c_void {
        self.base.wrapping_byte_add(self.first)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping, which nothing uses any more because its region has ended.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

/// Returns the length of a DMA buffer in bytes. Fails if the descriptor is of another kind.
fn size(fd: c_int) -> Outcome<u64> {
    let mut about = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: our own variable.
    if unsafe { libc::fstatfs(fd, about.as_mut_ptr()) } != 0 {
        if fd == NO_FILE {
            return Err(Failure::plain(libc::EBADF));
        }
        let why = format!("descriptor {fd}: no file is open under this number");
        return Err(Failure::new(libc::EBADF, why));
    }
    // SAFETY: the call has filled it in.
    let kind = unsafe { about.assume_init() }.f_type;
    if u64::try_from(kind) != Ok(FILE_SYSTEM) {
        let why = format!(
            "descriptor {fd} is not of a DMA buffer: one comes from a driver, from /dev/dma_heap, or, of \
             a sealed memfd, from /dev/udmabuf"
        );
        return Err(Failure::new(libc::EINVAL, why));
    }
    // SAFETY: queries a number. The position of a DMA buffer does not change.
    let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    u64::try_from(size).map_err(|_| Failure::plain(libc::EINVAL))
}

/// Returns the failure for a buffer that could not be mapped.
fn refused(errno: c_int) -> Failure {
    match errno {
        libc::ENOMEM => Failure::new(errno, "there is no room for its mapping"),
        libc::EACCES => Failure::new(
            errno,
            "its descriptor was opened for reading only: open it for writing too, or register it without \
             IBV_ACCESS_LOCAL_WRITE",
        ),
        _ => Failure::new(
            libc::EOPNOTSUPP,
            format!(
                "the driver that the DMA buffer is from does not let programs map it ({}), and here the CPU \
                 copies: only an adapter can use it",
                std::io::Error::from_raw_os_error(errno)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn errno(fd: c_int) -> c_int {
        Mapping::of_dma_buf(fd, 0, 4096, true).unwrap_err().errno
    }

    #[test]
    fn what_is_no_dma_buffer_is_refused() {
        let file = rustix::fs::memfd_create("memfd", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert_eq!(errno(file.as_raw_fd()), libc::EINVAL);
        let (pipe, _other) = std::io::pipe().unwrap();
        assert_eq!(errno(pipe.as_raw_fd()), libc::EINVAL);
        for closed in [NO_FILE, c_int::MIN, c_int::MAX] {
            assert_eq!(errno(closed), libc::EBADF);
        }
    }

    #[test]
    fn a_program_that_only_asks_is_not_told_of_a_mistake() {
        let told = |fd| Mapping::of_dma_buf(fd, 0, 4096, true).unwrap_err().text.is_some();
        assert!(!told(NO_FILE) && told(c_int::MAX));
    }

    #[test]
    fn a_buffer_that_cannot_be_mapped_is_not_supported() {
        for errno in [libc::EINVAL, libc::ENODEV, libc::EPERM, libc::ENXIO] {
            assert_eq!(refused(errno).errno, libc::EOPNOTSUPP);
        }
        assert_eq!(refused(libc::ENOMEM).errno, libc::ENOMEM);
        assert_eq!(refused(libc::EACCES).errno, libc::EACCES);
    }
}
