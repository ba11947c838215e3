//! The one file that touches the program's memory through raw pointers.
//!
//! Registered memory is shared: the program, its other threads and, with remote rights, peers read
//! and write it at any time. So it is never exposed as `&[u8]` or `&mut [u8]`; bytes are copied in
//! and out. What a copy that races with another write yields is some mixture of old and new bytes,
//! as with a hardware adapter; nothing is ever concluded from bytes that stayed in shared memory
//! (checksums are computed over the copy that is sent).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory to be registered: either its own allocation or a range that the caller vouches for.
///
/// An owned buffer is freed when the last of its clones is gone.
#[derive(Debug, Clone)]
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
    owner: Option<std::sync::Arc<Allocation>>,
}

// SAFETY: a Buffer is only an address and a length; all access goes through copies that tolerate
// concurrent writers (see the module's opening), and the allocation behind it is freed only with
// the last clone.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// An allocation of `len` zero bytes, aligned to a page so that atomics and programs that
    /// expect page alignment work. Where there is not as much memory the process ends, as with any
    /// allocation; [`Buffer::try_zeroed`] tells instead.
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(Layout::new::<u8>()))
    }

    /// The same; `None` where there is not as much memory.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let allocation = Allocation::zeroed(len)?;
        Some(Self { ptr: allocation.ptr, len, owner: Some(std::sync::Arc::new(allocation)) })
    }

    /// Memory of somebody else.
    ///
    /// # Safety
    /// `ptr..ptr + len` must stay valid for reads and writes (writes only if it is registered with
    /// a right to write) until the region made of it is deregistered, and the program must not
    /// hold Rust references to it that the engine's copies would violate.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len, owner: None }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Whether it is an allocation of its own.
    pub fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// The `len` bytes at `offset`, if they are inside.
    pub fn span(&self, offset: u64, len: u64) -> Option<Span<'_>> {
        let end = offset.checked_add(len)?;
        if end > self.len as u64 {
            return None;
        }
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        // SAFETY: offset <= self.len, so the result stays within the buffer or one past its end.
        let ptr = unsafe { self.ptr.add(offset) };
        Some(Span { ptr, len, buffer: PhantomData })
    }
}

/// Bytes inside a buffer, checked. Lives no longer than the guard it came from.
#[derive(Debug, Clone, Copy)]
pub struct Span<'b> {
    ptr: NonNull<u8>,
    len: usize,
    buffer: PhantomData<&'b Buffer>,
}

impl Span<'_> {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` of its bytes, from `offset` on; `None` if there are not as many.
    pub(crate) fn part(&self, offset: u32, len: u32) -> Option<Self> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: offset + len <= self.len, so the result stays within the span.
        let ptr = unsafe { self.ptr.add(offset) };
        Some(Self { ptr, len, buffer: PhantomData })
    }

    /// Copies all of `bytes` to the span's start.
    ///
    /// # Panics
    /// If the span is shorter than `bytes`: callers size the span by what they copy.
    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "a copy must fit its span");
        // SAFETY: the span's bytes are valid for writes while it lives; `bytes` is a Rust slice of
        // private memory and so does not overlap registered memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.as_ptr(), bytes.len()) }
    }

    /// Fills `out` from the span's start.
    ///
    /// # Panics
    /// If the span is shorter than `out`.
    pub fn read(&self, out: &mut [u8]) {
        assert!(out.len() <= self.len, "a copy must fit its span");
        // SAFETY: the span's bytes are valid for reads while it lives; `out` is exclusive memory.
        unsafe { ptr::copy_nonoverlapping(self.ptr.as_ptr(), out.as_mut_ptr(), out.len()) }
    }

    /// Appends all of its bytes to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        let end = out.len();
        // SAFETY: the span's bytes are valid for reads while it lives; `reserve` has made room for
        // as many behind the vector's end, which is private memory, and once they are copied there
        // the first `end + len` bytes are initialised.
        unsafe {
            ptr::copy_nonoverlapping(self.ptr.as_ptr(), out.as_mut_ptr().add(end), self.len);
            out.set_len(end + self.len);
        }
    }

    /// The 8 bytes as a CPU atomic, or `None` if they are not aligned to 8 or not 8.
    fn as_atomic(&self) -> Option<&AtomicU64> {
        if self.len != 8 || !self.ptr.as_ptr().addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: valid for reads and writes and aligned; programs that share this word with peers
        // access it atomically, and a torn mixture can at worst yield a wrong value, see above.
        Some(unsafe { AtomicU64::from_ptr(self.ptr.as_ptr().cast()) })
    }

    /// COMPARE-AND-SWAP on the 8 bytes; the value before. `None` if misaligned. IBTA 9.4.5.1.
    pub fn compare_swap(&self, compare: u64, swap: u64) -> Option<u64> {
        let (acq, rel) = (Ordering::SeqCst, Ordering::SeqCst);
        let word = self.as_atomic()?;
        Some(word.compare_exchange(compare, swap, acq, rel).unwrap_or_else(|before| before))
    }

    /// Stores the 8 bytes at once: nobody sees half of them. `None` if misaligned. ATOMIC WRITE.
    pub fn store(&self, bytes: [u8; 8]) -> Option<()> {
        self.as_atomic()?.store(u64::from_ne_bytes(bytes), Ordering::Release);
        Some(())
    }

    /// FETCH-AND-ADD on the 8 bytes, wrapping; the value before. `None` if misaligned.
    pub fn fetch_add(&self, add: u64) -> Option<u64> {
        Some(self.as_atomic()?.fetch_add(add, Ordering::SeqCst))
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
        assert_eq!(word.fetch_add(5), Some(0));
        assert_eq!(word.compare_swap(5, 9), Some(5));
        assert_eq!(word.compare_swap(5, 1), Some(9), "no match, no swap");
        assert_eq!(word.fetch_add(u64::MAX), Some(9));
        assert_eq!(word.fetch_add(0), Some(8), "adding wraps");
        assert_eq!(buffer.span(4, 8).unwrap().fetch_add(1), None);
    }

    #[test]
    fn bytes_go_in_and_come_out() {
        let buffer = Buffer::zeroed(10);
        buffer.span(3, 4).unwrap().write(b"abcd");
        let mut out = [0; 10];
        buffer.span(0, 10).unwrap().read(&mut out);
        assert_eq!(&out, b"\0\0\0abcd\0\0\0");
        assert!(buffer.span(7, 4).is_none());
        let mut all = b"> ".to_vec();
        buffer.span(2, 6).unwrap().append_to(&mut all);
        assert_eq!(&all, b"> \0abcd\0");
    }
}
