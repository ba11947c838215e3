//! The memory that an AF_XDP socket and the kernel exchange frames in (UMEM), in chunks of
//! [`CHUNK`] bytes.
//!
//! Invariant: a chunk belongs to the kernel while its address is in the fill or the transmit ring,
//! and until it comes back by the receive or the completion ring. Only [`super::socket`] uses this
//! module, and it touches only chunks that belong to it.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a chunk. The kernel allows no more than a page.
pub(super) const CHUNK: usize = 4096;

/// See the module's opening.
#[derive(Debug)]
pub(super) struct Umem {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address that is valid in the whole process until it is dropped.
unsafe impl Send for Umem {}

impl Umem {
    /// Memory for so many chunks.
    pub(super) fn new(chunks: usize) -> io::Result<Self> {
        let len = chunks * CHUNK;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice, touches nothing that exists.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        // SAFETY: the whole of that mapping. A forked child does not get it: copy-on-write would give
        // the parent other pages than those that the kernel writes to.
        let advised = unsafe { madvise(at, len, Advice::LinuxDontFork) };
        let start = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let umem = Self { start, len };
        advised?;
        Ok(umem)
    }

    /// Where it begins, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Its bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// The bytes of a received frame. `None` if they lie outside.
    pub(super) fn received(&self, at: u64, len: u32) -> Option<&[u8]> {
        let (at, len) = self.range(at, usize::try_from(len).ok()?)?;
        // SAFETY: in the mapping, and initialised: it began as zeros. The chunk belongs to this
        // process, which does not write to it.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) })
    }

    /// A chunk to write a frame to. `None` if it lies outside.
    pub(super) fn chunk(&mut self, at: u64) -> Option<&mut [u8]> {
        let (at, len) = self.range(at, CHUNK)?;
        // SAFETY: as above; and `self` is borrowed mutably, so that there is no other reference.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), len) })
    }

    fn range(&self, at: u64, len: usize) -> Option<(usize, usize)> {
        let at = usize::try_from(at).ok()?;
        (at.checked_add(len)? <= self.len).then_some((at, len))
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and no reference to it outlives self. The kernel
        // holds the pages themselves for as long as it uses them.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_not_handed_out() {
        let mut umem = Umem::new(2).unwrap();
        umem.chunk(4096).unwrap()[4095] = 7;
        assert_eq!(umem.received(8190, 2), Some(&[0, 7][..]));
        assert_eq!(umem.received(8190, 3), None);
        assert_eq!(umem.received(u64::MAX, 3), None);
        assert_eq!(umem.chunk(4097), None);
        assert_eq!(umem.chunk(8192), None);
    }
}
