//! A ring of records in memory that two processes share. One process puts records in, the other
//! takes them out. The only file of `shm` with `unsafe`.
//!
//! Layout: `tail` at 0 (the place up to which the consumer has taken everything), `asleep` at 128
//! (1 while the consumer wants to be woken), the records from 4096 on. A record begins at a
//! multiple of 64 with its head word of 8 bytes: its length, and a tag of the caller. A record
//! never wraps around the end: a skip record says that the next one begins at the start. A head
//! word of 0 means that there is no record yet.
//!
//! A place counts the bytes since the beginning of the first lap. A short record moves one cache
//! line between CPUs: its head word is stored last and marks the record as present, so no counter
//! needs to be read. The head word of the next record is set to 0 before. `tail` is stored when a
//! part of the ring was taken out, or all of it; the producer reads it only when it needs room. An
//! empty ring occasionally restarts at its beginning, so that little traffic uses little cache.
//! Long records continue through the whole ring: a line that the consumer has just read is in its
//! CPU's cache, and writing that line again takes longer than writing one that has left the cache.
//!
//! Invariants:
//! - The other process may write anything anywhere at any time. Of its writes only `tail` and the
//!   head words are used, each read once and checked against this process's own state. Records are
//!   read by copies that tolerate concurrent writes ([`rxe_core::mem`]), never through a Rust
//!   reference.
//! - The memory cannot shrink under the mapping: it is sealed, which the consumer checks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rxe_core::mem::{Span, WritableSpan};

use rxe_sys::CheckedFd;

/// The size of the record area in bytes. Larger than the private caches of CPUs (1 to 2 MiB): a
/// line that the producer writes again has then left the consumer's cache, from where it would have
/// to be fetched.
pub const CAPACITY: usize = 4 << 20;
/// The maximum length of a record in bytes, without its head word.
pub const MAX_RECORD: usize = (64 << 10) + 128;

/// The offsets of `tail`, `asleep` and the records.
pub const LAYOUT: [usize; 3] = [TAIL, ASLEEP, RECORDS];
/// The alignment of records in bytes.
pub const ALIGN: usize = 64;
/// The length of a head word in bytes.
pub const HEAD: usize = 8;

const TAIL: usize = 0;
const ASLEEP: usize = 128;
const RECORDS: usize = 4096;
/// The tag of a skip record: the next record begins at the start of the ring.
const SKIP: u32 = u32::MAX;
/// The number of bytes that are taken out before `tail` is stored.
const PUBLISH: u64 = 128 << 10;
/// The number of bytes after which an empty ring restarts at its beginning, if none of its records
/// was long.
const REWIND: usize = 256 << 10;
/// The length in bytes from which a record is long.
const LONG: usize = 1 << 10;

/// The ring cannot be used any more. The other process has written an invalid value, or the memory
/// is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The producer's end of a ring.
#[derive(Debug)]
pub struct Producer {
    map: Map,
    /// The place of the next record.
    head: u64,
    /// The place up to which the consumer has taken everything, as last read.
    tail: u64,
    /// The offset from which the ring restarts at its beginning when it is empty.
    rewind_at: usize,
    /// A long record was put in since the last check for a restart.
    long: bool,
}

/// Reserved room for a record, which the consumer does not see before [`Reserved::commit`].
/// Dropping it has no effect.
#[derive(Debug)]
pub struct Reserved<'r> {
    ring: &'r mut Producer,
    len: usize,
}

impl Producer {
    /// Creates a ring, and a descriptor with which another process can open it.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Checked, because the program may close all descriptors at any moment.
        let fd = CheckedFd::new(memfd_create("rxe-ring", flags)?);
        ftruncate(&fd, (RECORDS + CAPACITY) as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Map::new(&fd)?;
        Ok((Self { map, head: 0, tail: 0, rewind_at: REWIND, long: false }, fd.into_owned()))
    }

    /// Reserves room for a record of `len` bytes. Returns `None` if there is none.
    ///
    /// # Panics
    /// If `len` is 0 or more than [`MAX_RECORD`].
    pub fn reserve(&mut self, len: usize) -> Result<Option<Reserved<'_>>, Broken> {
        assert!((1..=MAX_RECORD).contains(&len), "a record holds 1 to {MAX_RECORD} bytes");
        let at = offset(self.head);
        let mut skip = CAPACITY - at < size_of_record(len);
        if at >= self.rewind_at && !skip {
            if !std::mem::take(&mut self.long) {
                self.refresh_tail()?;
                skip = self.tail == self.head;
            }
            self.rewind_at = at + REWIND;
        }
        let skipped = if skip { CAPACITY - at } else { 0 };
        // The head word after the record must be free too, because it is set to 0.
        let need = skipped + size_of_record(len) + ALIGN;
        if self.free()? < need {
            self.refresh_tail()?;
            if self.free()? < need {
                return Ok(None);
            }
        }
        if skip {
            self.map.set_word(0, 0)?;
            self.map.set_word(at, head_word(0, SKIP))?;
            self.head += skipped as u64;
            self.rewind_at = REWIND;
        }
        // Stored now and not at the commit: the consumer polls the record's line, so a store to
        // another line between the record and its head word would make that line travel twice.
        self.map.set_word(offset(self.head + size_of_record(len) as u64), 0)?;
        Ok(Some(Reserved { ring: self, len }))
    }

    /// Puts in one record with these two parts. Returns `false` if there is no room.
    ///
    /// # Panics
    /// As [`Producer::reserve`].
    pub fn push(&mut self, tag: u32, parts: [&[u8]; 2]) -> Result<bool, Broken> {
        let Some(record) = self.reserve(parts[0].len() + parts[1].len())? else {
            return Ok(false);
        };
        record.write(0, parts[0])?;
        record.write(parts[0].len(), parts[1])?;
        record.commit(tag)?;
        Ok(true)
    }

    /// Reads how much the consumer has taken out.
    pub fn refresh_tail(&mut self) -> Result<(), Broken> {
        let tail = self.map.tail();
        if tail.wrapping_sub(self.tail) > self.head.wrapping_sub(self.tail) {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }

    /// Returns the bytes ever taken out, as last read.
    pub fn taken(&self) -> u64 {
        self.tail
    }

    /// Returns the number of free bytes, as last read.
    pub fn free(&self) -> Result<usize, Broken> {
        let used = usize::try_from(self.head.wrapping_sub(self.tail)).map_err(|_| Broken)?;
        CAPACITY.checked_sub(used).ok_or(Broken)
    }

    /// Returns whether the consumer sleeps; the caller must then wake it. Call this after the last
    /// record.
    pub fn must_wake(&self) -> bool {
        // Pairs with the fence in `Consumer::set_asleep`: either this load sees that the consumer
        // sleeps, or the consumer sees the record before it sleeps.
        fence(Ordering::SeqCst);
        let asleep = self.map.flag();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0
    }
}

impl Reserved<'_> {
    /// Writes bytes into the record at offset `from`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, from: usize, bytes: &[u8]) -> Result<(), Broken> {
        self.span(from, bytes.len()).write(bytes).map_err(|_| Broken)
    }

    /// Returns `len` bytes of the record at offset `from`. The other process may write them too.
    ///
    /// # Panics
    /// If the range exceeds the record.
    pub fn span(&self, from: usize, len: usize) -> WritableSpan<'_> {
        assert!(from <= self.len && len <= self.len - from, "a part of the record");
        self.ring.map.records(offset(self.ring.head) + HEAD + from, len)
    }

    /// Makes the record visible to the consumer. The tag is for the caller's use.
    ///
    /// # Panics
    /// If the tag is `u32::MAX`, which marks skip records.
    pub fn commit(self, tag: u32) -> Result<(), Broken> {
        assert!(tag != SKIP, "this tag is taken");
        let Self { ring, len } = self;
        let next = ring.head + size_of_record(len) as u64;
        ring.map.set_word(offset(ring.head), head_word(len, tag))?;
        ring.head = next;
        ring.long |= len >= LONG;
        if offset(next) == 0 {
            ring.rewind_at = REWIND;
        }
        Ok(())
    }
}

/// The consumer's end of a ring.
#[derive(Debug)]
pub struct Consumer {
    map: Map,
    /// The place of the next record.
    tail: u64,
    /// The place that was last stored in `tail`.
    published_tail: u64,
}

/// A record that was not taken out yet.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    ring: &'r Consumer,
    at: usize,
    len: usize,
    /// The tag that the producer has set.
    pub tag: u32,
}

/// Iterates over the present records without taking them out.
#[derive(Debug)]
pub struct Cursor<'r> {
    ring: &'r Consumer,
    place: u64,
}

impl Consumer {
    /// Opens a ring that another process has created.
    pub fn open(fd: &impl AsFd) -> io::Result<Self> {
        let size = rustix::fs::fstat(fd)?.st_size;
        let sealed = fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !sealed || usize::try_from(size) != Ok(RECORDS + CAPACITY) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { map: Map::new(fd)?, tail: 0, published_tail: 0 })
    }

    /// Returns whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.map.word(offset(self.tail)) == Ok(0)
    }

    /// Returns the place of the oldest record.
    pub fn place(&self) -> u64 {
        self.tail
    }

    /// Returns a cursor at the oldest record.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { ring: self, place: self.tail }
    }

    /// Takes out all records before `place`, which is the place of a cursor.
    pub fn release(&mut self, place: u64) -> Result<(), Broken> {
        self.tail = place;
        if place.wrapping_sub(self.published_tail) >= PUBLISH {
            self.publish_tail()
        } else {
            Ok(())
        }
    }

    /// Stores in `tail` what was taken out. Call this when there is no record.
    pub fn publish_tail(&mut self) -> Result<(), Broken> {
        if self.published_tail != self.tail {
            self.published_tail = self.tail;
            self.map.set_tail(self.tail)?;
        }
        Ok(())
    }

    /// Takes out the oldest record. Returns its tag and its length.
    pub fn pop(&mut self, out: &mut [u8; MAX_RECORD]) -> Result<Option<(u32, usize)>, Broken> {
        let mut cursor = self.cursor();
        let record = cursor.next()?;
        let taken = match record {
            Some(record) => {
                record.read(0, &mut out[..record.len])?;
                Some((record.tag, record.len))
            }
            None => None,
        };
        let place = cursor.place();
        self.release(place)?;
        if self.is_empty() {
            self.publish_tail()?;
        }
        Ok(taken)
    }

    /// Sets whether this end sleeps. Returns the previous value. The caller must check again for a
    /// record afterwards.
    pub fn set_asleep(&self, asleep: bool) -> bool {
        let before = self.map.flag().swap(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before != 0
    }

    /// Returns whether the flag of [`Consumer::set_asleep`] is still set, so the producer has not
    /// taken it.
    pub fn is_asleep(&self) -> bool {
        self.map.flag().load(Ordering::Acquire) != 0
    }
}

impl<'r> Cursor<'r> {
    /// Returns the next record, if there is one.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not tell that it broke")]
    pub fn next(&mut self) -> Result<Option<Record<'r>>, Broken> {
        let mut skipped = false;
        loop {
            let at = offset(self.place);
            let word = self.ring.map.word(at)?;
            let (len, tag) = parts_of(word)?;
            if word == 0 {
                return Ok(None);
            }
            if tag == SKIP {
                // A record must follow a skip to the start, so that the producer cannot keep this
                // loop busy with skips.
                if std::mem::replace(&mut skipped, true) || at == 0 {
                    return Err(Broken);
                }
                self.place += (CAPACITY - at) as u64;
                continue;
            }
            if len == 0 || len > MAX_RECORD || size_of_record(len) > CAPACITY - at {
                return Err(Broken);
            }
            self.place += size_of_record(len) as u64;
            return Ok(Some(Record { ring: self.ring, at, len, tag }));
        }
    }

    /// Returns the current place, for [`Consumer::release`].
    pub fn place(&self) -> u64 {
        self.place
    }
}

impl<'r> Record<'r> {
    /// Returns the length in bytes, 1 to [`MAX_RECORD`].
    #[expect(clippy::len_without_is_empty, reason = "it is not")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Fills `out` with the bytes of the record at offset `from`.
    ///
    /// # Panics
    /// If the range exceeds the record.
    pub fn read(&self, from: usize, out: &mut [u8]) -> Result<(), Broken> {
        self.span(from, out.len()).read(out).map_err(|_| Broken)
    }

    /// Returns `len` bytes of the record at offset `from`. The other process may change them at any
    /// time.
    ///
    /// # Panics
    /// If the range exceeds the record.
    pub fn span(&self, from: usize, len: usize) -> Span<'r> {
        assert!(from <= self.len && len <= self.len - from, "a part of the record");
        *self.ring.map.records(self.at + HEAD + from, len)
    }
}

/// Returns the size of a record in the ring in bytes: head word and padding included.
pub const fn size_of_record(len: usize) -> usize {
    (HEAD + len).next_multiple_of(ALIGN)
}

/// Returns the offset of a place in the record area.
#[expect(clippy::cast_possible_truncation, reason = "less than CAPACITY")]
fn offset(place: u64) -> usize {
    (place % CAPACITY as u64) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "at most MAX_RECORD")]
fn head_word(len: usize, tag: u32) -> u64 {
    // The length is stored plus one, so that no head word is 0.
    u64::from(tag) << 32 | u64::from(len as u32 + 1)
}

fn parts_of(word: u64) -> Result<(usize, u32), Broken> {
    let len = usize::try_from(word & 0xffff_ffff).map_err(|_| Broken)?;
    Ok((len.saturating_sub(1), u32::try_from(word >> 32).map_err(|_| Broken)?))
}

/// The shared memory. Dropping it unmaps the memory.
#[derive(Debug)]
struct Map(NonNull<u8>);

// SAFETY: the address is valid in the whole process until the drop, and is only used through
// atomics and spans.
unsafe impl Send for Map {}

impl Map {
    fn new(fd: &impl AsFd) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice, touches nothing that exists.
        // The file has this length and cannot become shorter (Consumer::open, Producer::create).
        let ptr = unsafe {
            mmap(ptr::null_mut(), RECORDS + CAPACITY, access, MapFlags::SHARED, fd.as_fd(), 0)
        }?;
        NonNull::new(ptr.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Returns `len` bytes at an offset of the mapping.
    fn span(&self, at: usize, len: usize) -> WritableSpan<'_> {
        assert!(at <= RECORDS + CAPACITY && len <= RECORDS + CAPACITY - at, "in the mapping");
        // SAFETY: the bytes lie in the mapping, which exists while `self` is borrowed. Nothing in
        // this process has a reference to them.
        unsafe { WritableSpan::from_raw(self.0.add(at), len) }
    }

    /// Returns `len` bytes at an offset of the record area.
    fn records(&self, at: usize, len: usize) -> WritableSpan<'_> {
        assert!(at <= CAPACITY && len <= CAPACITY - at, "in the records");
        self.span(RECORDS + at, len)
    }

    /// Loads the head word at an offset of the record area, with acquire ordering.
    fn word(&self, at: usize) -> Result<u64, Broken> {
        self.records(at, HEAD).load().map_err(|_| Broken)
    }

    /// Stores a head word, with release ordering.
    fn set_word(&self, at: usize, value: u64) -> Result<(), Broken> {
        self.records(at, HEAD).store(value.to_ne_bytes()).map_err(|_| Broken)
    }

    /// Loads `tail`. Returns an impossible place if the memory is gone.
    fn tail(&self) -> u64 {
        self.span(TAIL, 8).load().unwrap_or(u64::MAX)
    }

    fn set_tail(&self, value: u64) -> Result<(), Broken> {
        self.span(TAIL, 8).store(value.to_ne_bytes()).map_err(|_| Broken)
    }

    fn flag(&self) -> &AtomicU32 {
        self.number::<ASLEEP>()
    }

    fn number<const AT: usize>(&self) -> &AtomicU32 {
        const { assert!(AT.is_multiple_of(4) && AT + 4 <= RECORDS, "a place before the records") };
        // SAFETY: the number lies in the mapping, at a multiple of 4, and this process uses it only
        // as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(AT).cast()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` created, and no reference to it outlives self.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), RECORDS + CAPACITY) };
    }
}

#[cfg(test)]
mod tests;
