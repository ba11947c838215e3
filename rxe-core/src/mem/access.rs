//! Registered memory: its ownership, and spans of it that may be read or written. Only this file,
//! `copy` and `guarded` access the program's memory.
//!
//! Registered memory is shared: the program, its other threads and, with remote rights, peers read
//! and write it at any time. Therefore it is never exposed as `&[u8]` or `&mut [u8]`. Bytes are
//! copied in and out in a way that tolerates concurrent writes (see `copy`). A copy that races with
//! a write yields a mixture of old and new bytes, as with a hardware adapter. No decision depends
//! on bytes that stay in shared memory: checksums are computed over the copy that is sent.
//!
//! Invariant: a [`Span`] may be read and a [`WritableSpan`] written for as long as it lives, so all
//! their methods are safe. Spans have three sources:
//! - a buffer that owns its memory lends spans of itself;
//! - memory shared with another process becomes a span by its owner's promise
//!   ([`WritableSpan::from_raw`]);
//! - memory that the buffer does not own ([`Buffer::from_raw`]) is reached only through a
//!   [`MemoryGuard`](super::MemoryGuard) while it is registered, and written only if it was
//!   registered with a right to write.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use super::{Access, AccessError, guarded};

/// Memory to be registered: either an allocation of its own or a range whose validity the caller
/// promises.
///
/// An owned buffer is freed when its last clone is dropped.
#[derive(Debug, Clone)]
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
    owner: Option<std::sync::Arc<Allocation>>,
    /// Whether the memory may be registered with a right to write.
    writable: bool,
}

// SAFETY: a Buffer is only an address and a length, and the allocation behind it is freed only with
// the last clone.
unsafe impl Send for Buffer {}
// SAFETY: what can be done with the bytes through a shared reference are the copies and atomics of
// the spans, which any number of threads may do at once.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` zero bytes, aligned to a page because programs may expect that alignment. If
    /// there is not enough memory, the process ends, as with any allocation; [`Buffer::try_zeroed`]
    /// returns `None` instead.
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(Layout::new::<u8>()))
    }

    /// Like [`Buffer::zeroed`], but returns `None` if there is not enough memory.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let allocation = Allocation::zeroed(len)?;
        let (ptr, owner) = (allocation.ptr, Some(std::sync::Arc::new(allocation)));
        Some(Self { ptr, len, owner, writable: true })
    }

    /// Returns `len` bytes from `offset` on, as a buffer that keeps the whole allocation alive.
    /// Returns `None` if the range is outside the buffer, or if the buffer does not own its memory.
    #[must_use]
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        let ptr = self.span(offset as u64, len as u64)?.as_ptr();
        Some(Self { ptr, len, ..self.clone() })
    }

    /// Creates a buffer of memory that it does not own.
    ///
    /// # Safety
    /// From when the buffer, or a clone of it, is registered until the last region made of them is
    /// deregistered (or reregistered with other memory), `ptr..ptr + len` must be valid for reads
    /// and, if the region is registered with [`LOCAL_WRITE`](super::Access::LOCAL_WRITE), for
    /// writes. Pages of a region that is registered with [`ON_DEMAND`](super::Access::ON_DEMAND)
    /// may also fault, if a signal handler makes the copies of this crate return
    /// ([`recovery`](super::recovery)). The program must not hold Rust references to the memory
    /// that the engine's copies would violate. A region that is registered without `LOCAL_WRITE`
    /// gets it only with another promise ([`Buffer::promised_writable`]).
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len, owner: None, writable: true }
    }

    /// Creates a buffer of all memory of the process, for a region of implicit on-demand paging.
    /// Its first byte has the address 1, because nothing can be at 0. Its end is not below the end
    /// of any process's address space.
    ///
    /// # Safety
    /// As for [`Buffer::from_raw`] with [`ON_DEMAND`](super::Access::ON_DEMAND): all memory that
    /// the program, or a peer that knows the key, names in a request must be valid, or fault, and
    /// no Rust reference may point to it.
    pub unsafe fn address_space() -> Self {
        const LEN: usize = isize::MAX.unsigned_abs();
        // SAFETY: 1 is not 0.
        let ptr = unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(1)) };
        Self { ptr, len: LEN, owner: None, writable: true }
    }

    /// Restricts the buffer to a region with these rights. The caller promised that memory which
    /// the buffer does not own is valid for these rights only: without a right to write, it can no
    /// longer be registered with one.
    #[must_use]
    pub fn promised_for(mut self, access: Access) -> Self {
        self.writable &= self.is_owned() || access.contains(Access::LOCAL_WRITE);
        self
    }

    /// Permits registration of the buffer with any rights.
    ///
    /// # Safety
    /// As for [`Buffer::from_raw`].
    #[must_use]
    pub unsafe fn promised_writable(mut self) -> Self {
        self.writable = true;
        self
    }

    /// Returns whether the buffer may be registered with a right to write.
    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Returns whether the buffer owns its memory.
    pub fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns the `len` bytes at `offset`. Returns `None` if they are not inside the buffer, or if
    /// the buffer does not own its memory: only a [`MemoryGuard`](super::MemoryGuard) knows whether
    /// such memory is still registered, and with which rights.
    pub fn span(&self, offset: u64, len: u64) -> Option<WritableSpan<'_>> {
        self.owner.as_ref()?;
        // The span borrows the buffer, so the allocation lives at least as long as the span, and it
        // is writable.
        self.registered(offset, len).map(|span| span.writable())
    }

    /// Returns the `len` bytes at `offset`, if they are inside the buffer. For the table of
    /// regions, which lends spans only while the region is registered.
    pub(super) fn registered(&self, offset: u64, len: u64) -> Option<Unchecked<'_>> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        // On-demand memory need not be one allocation, so this is not `add`.
        let ptr = self.ptr.as_ptr().wrapping_add(offset);
        // SAFETY: offset <= self.len, so the result stays within the buffer or one past its end: it
        // does not wrap around to 0.
        let ptr = unsafe { NonNull::new_unchecked(ptr) };
        Some(Unchecked(Span { ptr, len, buffer: PhantomData }))
    }
}

/// Bytes inside a buffer before it is decided whether they may be read or written. Only this module
/// and the table of regions use this type.
#[derive(Debug)]
pub(super) struct Unchecked<'b>(Span<'b>);

impl<'b> Unchecked<'b> {
    /// Permits reading. The memory must be owned by the buffer, or stay registered while the span
    /// lives.
    pub(super) fn readable(self) -> Span<'b> {
        self.0
    }

    /// Permits reading and writing. The memory must be owned by the buffer, or be registered with a
    /// right to write and stay so while the span lives.
    pub(super) fn writable(self) -> WritableSpan<'b> {
        WritableSpan(self.0)
    }
}

/// Bytes inside a buffer that may be read.
#[derive(Debug, Clone, Copy)]
pub struct Span<'b> {
    ptr: NonNull<u8>,
    len: usize,
    buffer: PhantomData<&'b Buffer>,
}

/// Bytes inside a buffer that may be read and written. Other threads and processes may read and
/// write them concurrently.
#[derive(Debug, Clone, Copy)]
pub struct WritableSpan<'b>(Span<'b>);

impl<'b> Deref for WritableSpan<'b> {
    type Target = Span<'b>;

    fn deref(&self) -> &Span<'b> {
        &self.0
    }
}

impl<'b> Span<'b> {
    /// Returns `len` bytes from `offset` on, or `None` if they are outside the span.
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // As in `Buffer::registered`.
        let ptr = self.ptr.as_ptr().wrapping_add(offset);
        // SAFETY: offset + len <= self.len, so the result stays within the span.
        let ptr = unsafe { NonNull::new_unchecked(ptr) };
        Some(Self { ptr, len, buffer: PhantomData })
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Fills `out` with the first bytes of the span.
    ///
    /// # Errors
    /// The memory is not mapped ([`AccessError::Faulted`]). The content of `out` is then undefined.
    ///
    /// # Panics
    /// If the span is shorter than `out`.
    #[inline]
    pub fn read(&self, out: &mut [u8]) -> Result<(), AccessError> {
        assert!(out.len() <= self.len, "a copy must fit its span");
        // SAFETY: the span's bytes are valid for reads while it lives; `out` is exclusive memory,
        // which registered memory is not.
        Ok(unsafe { guarded::load(self.ptr.as_ptr(), out.as_mut_ptr(), out.len()) }?)
    }

    /// Appends all bytes of the span to `out`.
    ///
    /// # Errors
    /// The memory is not mapped. `out` is not changed then.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), AccessError> {
        out.reserve(self.len);
        let end = out.len();
        // SAFETY: the span's bytes are valid for reads while it lives; `reserve` has made room for
        // as many bytes after the end of the vector, which is private memory, and once they are
        // copied there the first `end + len` bytes are initialised.
        unsafe {
            guarded::load(self.ptr.as_ptr(), out.as_mut_ptr().add(end), self.len)?;
            out.set_len(end + self.len);
        }
        Ok(())
    }

    /// Loads the 8 bytes atomically, in native byte order, with acquire ordering: a caller that
    /// reads a value written by a peer also sees all earlier writes of that peer.
    ///
    /// # Errors
    /// The span does not have 8 bytes, is misaligned, or its memory is not mapped.
    #[inline]
    pub fn load(&self) -> Result<u64, AccessError> {
        // SAFETY: an aligned word of the span, which may be read while it lives.
        Ok(unsafe { guarded::load_word(self.word()?) }?)
    }

    /// Returns the 8 bytes as an aligned word, for atomic instructions.
    #[inline]
    fn word(&self) -> Result<*mut u64, AccessError> {
        let is_word = self.len == 8 && self.ptr.as_ptr().addr().is_multiple_of(8);
        if is_word { Ok(self.ptr.as_ptr().cast()) } else { Err(AccessError::Misaligned) }
    }
}

impl<'b> WritableSpan<'b> {
    /// Creates a span of memory that may change at any time, such as shared memory.
    ///
    /// # Safety
    /// `ptr..ptr + len` must be mapped for reading and writing for as long as the span lives (a
    /// fault there is an error of the copy). No Rust reference to the memory may exist meanwhile.
    #[inline]
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> Self {
        Self(Span { ptr, len, buffer: PhantomData })
    }

    /// Returns `len` bytes from `offset` on, or `None` if they are outside the span.
    pub(crate) fn part(&self, offset: u32, len: u32) -> Option<Self> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        self.0.part(offset, len).map(Self)
    }

    /// Returns the first `len` bytes, or `None` if the span is shorter.
    pub fn first(&self, len: usize) -> Option<Self> {
        self.0.part(0, len).map(Self)
    }

    /// Returns the bytes from `offset` on, or `None` if the span is shorter.
    pub fn at(&self, offset: usize) -> Option<Self> {
        self.0.part(offset, self.0.len.checked_sub(offset)?).map(Self)
    }

    /// Copies all bytes of `from` to the start of this span, the first byte first. Concurrent
    /// writes to `from` may or may not be copied. The spans must not overlap; if they do, the
    /// copied bytes are undefined.
    ///
    /// # Errors
    /// Some of the memory is not mapped. Some of the bytes may have been written.
    ///
    /// # Panics
    /// If this span is shorter than `from`.
    pub fn copy_from(&self, from: &Span<'_>) -> Result<(), AccessError> {
        assert!(from.len <= self.0.len, "a copy must fit its span");
        // SAFETY: `from` may be read while it lives, and this span be written. Either is memory that
        // is only accessed by such copies, so an overlap is no worse than a concurrent write.
        Ok(unsafe { guarded::copy(from.ptr.as_ptr(), self.0.ptr.as_ptr(), from.len) }?)
    }

    /// Copies all of `bytes` to the start of the span, the first byte first. A thread that sees the
    /// last byte, with an acquire load, sees all of them.
    ///
    /// # Errors
    /// The memory is not mapped. Some of the bytes may have been written.
    ///
    /// # Panics
    /// If the span is shorter than `bytes`.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> Result<(), AccessError> {
        assert!(bytes.len() <= self.0.len, "a copy must fit its span");
        // SAFETY: the span's bytes are valid for writes while it lives; `bytes` is a Rust slice of
        // private memory and so does not overlap registered memory.
        Ok(unsafe { guarded::store(bytes.as_ptr(), self.0.ptr.as_ptr(), bytes.len()) }?)
    }

    /// Executes COMPARE AND SWAP on the 8 bytes. Returns the old value. IBTA 9.4.5.1.
    ///
    /// # Errors
    /// The span does not have 8 bytes, is misaligned, or its memory is not mapped.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> Result<u64, AccessError> {
        // SAFETY: an aligned word of the span, which may be written while it lives. Every access of
        // this crate to registered memory is atomic; the program must make sure of its own accesses.
        Ok(unsafe { guarded::compare_swap(self.0.word()?, compare, swap) }?)
    }

    /// Stores the 8 bytes atomically, for ATOMIC WRITE.
    ///
    /// # Errors
    /// The span does not have 8 bytes, is misaligned, or its memory is not mapped.
    #[inline]
    pub fn store(&self, bytes: [u8; 8]) -> Result<(), AccessError> {
        // SAFETY: as above.
        Ok(unsafe { guarded::store_word(self.0.word()?, u64::from_ne_bytes(bytes)) }?)
    }

    /// Executes FETCH AND ADD on the 8 bytes, wrapping. Returns the old value. IBTA 9.4.5.1.
    ///
    /// # Errors
    /// The span does not have 8 bytes, is misaligned, or its memory is not mapped.
    pub fn fetch_add(&self, add: u64) -> Result<u64, AccessError> {
        // SAFETY: as above.
        Ok(unsafe { guarded::fetch_add(self.0.word()?, add) }?)
    }
}

#[derive(Debug)]
struct Allocation {
    ptr: NonNull<u8>,
    layout: Layout,
}

impl Allocation {
    fn zeroed(len: usize) -> Option<Self> {
        const PAGE: usize = 4096;
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        NonNull::new(ptr).map(|ptr| Self { ptr, layout })
    }
}

// SAFETY: the allocation is only memory; it may be freed by any thread.
unsafe impl Send for Allocation {}
// SAFETY: nothing is done through a shared reference.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_work_on_aligned_words_only() {
        let buffer = Buffer::zeroed(32);
        let word = buffer.span(8, 8).unwrap();
        assert_eq!(word.fetch_add(5), Ok(0));
        assert_eq!(word.compare_swap(5, 9), Ok(5));
        assert_eq!(word.compare_swap(5, 1), Ok(9), "no match, no swap");
        assert_eq!(word.fetch_add(u64::MAX), Ok(9));
        assert_eq!(word.load(), Ok(8), "adding wraps");
        assert_eq!(buffer.span(4, 8).unwrap().load(), Err(AccessError::Misaligned));
        assert_eq!(buffer.span(8, 4).unwrap().load(), Err(AccessError::Misaligned));
        assert_eq!(buffer.span(4, 8).unwrap().fetch_add(1), Err(AccessError::Misaligned));
    }

    #[test]
    fn bytes_go_in_and_come_out() {
        let buffer = Buffer::zeroed(10);
        buffer.span(3, 4).unwrap().write(b"abcd").unwrap();
        let mut out = [0; 10];
        buffer.span(0, 10).unwrap().read(&mut out).unwrap();
        assert_eq!(&out, b"\0\0\0abcd\0\0\0");
        assert!(buffer.span(7, 4).is_none());
        let mut all = b"> ".to_vec();
        buffer.span(2, 6).unwrap().append_to(&mut all).unwrap();
        assert_eq!(&all, b"> \0abcd\0");
    }
}
