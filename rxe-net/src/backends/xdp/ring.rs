//! The rings between an AF_XDP socket and the kernel. They are single producer, single consumer, in
//! memory shared with the kernel. Documentation/networking/af_xdp.rst.
//!
//! Indexes count up and wrap at 2^32; the position of an entry is its index modulo the ring's size,
//! which is a power of two. The producer stores its index after it has written the entries
//! (release), the consumer stores its own after it has read them.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingOffset};

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

/// The entries of rings: plain numbers, for which all bit patterns are valid.
pub(super) trait Entry: Copy {}
/// The address of a chunk in the UMEM.
impl Entry for u64 {}
/// The descriptor of a frame, or of a part of one.
impl Entry for XdpDesc {}

/// A ring that this process fills: the fill or the transmit ring.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// The next index to write.
    next: u32,
    /// The kernel's index, as last read.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// Maps the ring of `size` entries (a power of two) at offset `page` of `fd`.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(fd, page, offsets, size)?, next: 0, consumed: 0 })
    }

    /// Returns how many entries can be pushed.
    pub(super) fn room(&mut self) -> usize {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        let used = self.next.wrapping_sub(self.consumed);
        self.ring.size.saturating_sub(used) as usize
    }

    /// Writes an entry, which the kernel sees after the next [`Producer::publish`]. Returns `false`
    /// if there is no room.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) >= self.ring.size && self.room() == 0 {
            return false;
        }
        self.ring.write(self.next, entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes all pushed entries visible to the kernel.
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Returns how many entries the kernel has not taken yet.
    pub(super) fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// Returns whether the kernel needs a system call. If not, it sees everything that was
    /// published before.
    pub(super) fn needs_wakeup(&self) -> bool {
        // A driver sets the flag before it polls the ring for the last time. Without the fence,
        // this CPU could read the flag before the driver sees the published index, and both would
        // wait.
        fence(Ordering::SeqCst);
        self.ring.flags().is_none_or(|flags| flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }
}

/// A ring that the kernel fills: the receive or the completion ring.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// The next index to read.
    next: u32,
}

impl<T: Entry> Consumer<T> {
    /// Maps the ring of `size` entries (a power of two) at offset `page` of `fd`.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(fd, page, offsets, size)?, next: 0 })
    }

    /// Returns the number of entries that the ring has room for.
    pub(super) fn size(&self) -> usize {
        self.ring.size as usize
    }

    /// Returns the number of entries that can be read.
    pub(super) fn available(&self) -> usize {
        let produced = self.ring.producer().load(Ordering::Acquire);
        produced.wrapping_sub(self.next).min(self.ring.size) as usize
    }

    /// Returns the number of entries given back so far.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u32 {
        self.next
    }

    /// Returns the entry `ahead` places after the next one. Meaningless beyond
    /// [`Consumer::available`].
    #[expect(clippy::cast_possible_truncation, reason = "indexes wrap")]
    pub(super) fn peek(&self, ahead: usize) -> T {
        self.ring.read(self.next.wrapping_add(ahead as u32))
    }

    /// Gives the next `count` entries back to the kernel.
    #[expect(clippy::cast_possible_truncation, reason = "at most `available`")]
    pub(super) fn release(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count as u32);
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

/// The mapping of a ring. Dropping it unmaps the memory.
#[derive(Debug)]
struct Ring<T> {
    start: NonNull<u8>,
    len: usize,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: NonNull<T>,
    size: u32,
}

// SAFETY: the addresses are valid in the whole process until the drop. Indexes are atomics, and
// only the side whose turn it is reads or writes an entry.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    fn map(fd: BorrowedFd<'_>, page: u64, offsets: &XdpRingOffset, size: u32) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "the kernel makes no other rings");
        let offset = |at: u64| usize::try_from(at).map_err(|_| io::ErrorKind::InvalidData);
        let desc = offset(offsets.desc)?;
        let len = desc + size as usize * size_of::<T>();
        let [producer, consumer] = [offset(offsets.producer)?, offset(offsets.consumer)?];
        let flags = offsets.flags.map(offset).transpose()?;
        let fits = |at: usize| at.is_multiple_of(4) && at + 4 <= len;
        if !desc.is_multiple_of(align_of::<T>())
            || ![Some(producer), Some(consumer), flags].into_iter().flatten().all(fits)
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let how = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address of the kernel's choice, touches nothing that exists.
        let at = unsafe { mmap(ptr::null_mut(), len, access, how, fd, page) }?;
        let start = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: within the mapping.
        let entries = unsafe { start.add(desc) }.cast();
        Ok(Self { start, len, producer, consumer, flags, entries, size })
    }

    fn producer(&self) -> &AtomicU32 {
        self.index(self.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.index(self.consumer)
    }

    fn flags(&self) -> Option<&AtomicU32> {
        self.flags.map(|at| self.index(at))
    }

    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `map` has checked that it lies in the mapping, at a multiple of 4. This process and
        // the kernel use it only as an atomic.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    fn place(&self, index: u32) -> NonNull<T> {
        // SAFETY: less than `size` entries after the first one, which the mapping contains.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }

    fn read(&self, index: u32) -> T {
        // SAFETY: in the mapping and aligned (`map`); any bits are a valid `T`.
        unsafe { self.place(index).as_ptr().read_volatile() }
    }

    fn write(&mut self, index: u32, entry: T) {
        // SAFETY: in the mapping and aligned (`map`).
        unsafe { self.place(index).as_ptr().write_volatile(entry) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` created, and no reference to it outlives self.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// Returns both ends of a ring of 4 entries in ordinary memory.
    pub(in crate::backends::xdp) fn both() -> (Producer<u64>, Consumer<u64>) {
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let at = XdpRingOffset { producer: 0, consumer: 64, desc: 192, flags: Some(128) };
        let [a, b] = [(); 2].map(|()| fd.as_fd());
        (Producer::map(a, 0, &at, 4).unwrap(), Consumer::map(b, 0, &at, 4).unwrap())
    }

    #[test]
    fn entries_come_in_order_and_when_they_are_published() {
        let (mut to, mut from) = both();
        let mut next = 0;
        for round in 0..5 {
            for entry in 0..3 {
                assert!(to.push(10 * round + entry));
            }
            assert_eq!(from.available(), 0, "nothing is published");
            to.publish();
            assert_eq!((from.available(), to.pending(), to.room()), (3, 3, 1));
            let got: Vec<_> = (0..3).map(|i| from.peek(i)).collect();
            assert_eq!(got, [10 * round, 10 * round + 1, 10 * round + 2]);
            from.release(3);
            assert_eq!((from.available(), to.pending(), to.room()), (0, 0, 4));
            next += 3;
        }
        assert_eq!(next, 15);
    }

    #[test]
    fn a_full_ring_takes_no_more() {
        let (mut to, mut from) = both();
        assert_eq!((0..6).map(|i| to.push(i)).filter(|pushed| *pushed).count(), 4);
        to.publish();
        from.release(1);
        assert!(to.push(9) && !to.push(10));
        to.publish();
        let got: Vec<_> = (0..from.available()).map(|i| from.peek(i)).collect();
        assert_eq!(got, [1, 2, 3, 9]);
    }

    #[test]
    fn indexes_wrap() {
        let (mut to, mut from) = both();
        (to.next, to.consumed, from.next) = (u32::MAX - 1, u32::MAX - 1, u32::MAX - 1);
        to.ring.consumer().store(u32::MAX - 1, Ordering::Relaxed);
        assert!((0..4).all(|i| to.push(i)) && !to.push(4));
        to.publish();
        assert_eq!((from.available(), from.peek(3)), (4, 3));
        from.release(4);
        assert_eq!(to.room(), 4);
    }

    #[test]
    fn the_kernel_says_when_it_wants_to_be_woken() {
        let (to, _from) = both();
        assert!(!to.needs_wakeup());
        to.ring.flags().unwrap().store(NEED_WAKEUP, Ordering::Relaxed);
        assert!(to.needs_wakeup());
    }

    #[test]
    fn offsets_outside_of_the_mapping_are_refused() {
        let fd = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let at = XdpRingOffset { producer: 0, consumer: 4096, desc: 192, flags: None };
        assert!(Producer::<u64>::map(fd.as_fd(), 0, &at, 4).is_err());
        let at = XdpRingOffset { producer: 0, consumer: 63, desc: 192, flags: None };
        assert!(Producer::<u64>::map(fd.as_fd(), 0, &at, 4).is_err());
    }
}
