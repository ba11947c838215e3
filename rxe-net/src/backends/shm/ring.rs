//! A ring of records in memory that two processes share: one puts them in, the other takes them out.
//! The one file of `shm` with `unsafe`.
//!
//! Layout: `tail` at 0 (the place up to which all was taken out), `asleep` at 128 (1 while the taker
//! wants to be woken), the records from 4096 on. A record begins at a multiple of 64 with its head word
//! of 8 bytes: its length, and a tag of the caller's. It never goes around the end: a skip record says
//! that the next one begins at the start. A head word of 0 means that nothing is there yet.
//!
//! A place counts the bytes from the beginning of the first lap on. A short record moves one cache line
//! from one processor to the other: its head word is stored last and says that it is there, so no
//! counter needs to be read. The head word of the next record is set to 0 before. `tail` is stored when
//! a part of the ring was taken out, or all of it; the producer looks at it only when it needs room. A
//! ring that is empty begins anew at its start now and then, so that little traffic uses little cache.
//! Long records go on through the whole ring: a line that the taker has just read is in its processor's
//! cache, and to write it again takes longer than to write one that has left that cache.
//!
//! Invariants:
//! - The other process may write anything anywhere at any time. Of what it writes only `tail` and the
//!   head words are believed, each read once and checked against what this process knows by itself.
//!   Records are read by copies that others may write under ([`rxe_core::mem`]), never through a Rust
//!   reference.
//! - The memory cannot shrink under the mapping: it is sealed, which the taker checks.

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

/// Bytes of records. More than the caches that processors have for themselves (1 to 2 MiB): what the producer
/// writes anew is then no more in that of the taker, from where it would have to be fetched line by line.
pub const CAPACITY: usize = 4 << 20;
/// Bytes of a record at most, without its head word.
pub const MAX_RECORD: usize = (64 << 10) + 128;

/// Where `tail`, `asleep` and the records stand.
pub const LAYOUT: [usize; 3] = [TAIL, ASLEEP, RECORDS];
/// Records begin at multiples of this.
pub const ALIGN: usize = 64;
/// Bytes of a head word.
pub const HEAD: usize = 8;

const TAIL: usize = 0;
const ASLEEP: usize = 128;
const RECORDS: usize = 4096;
/// The tag of a record that says: the next one begins at the start of the ring.
const SKIP: u32 = u32::MAX;
/// Bytes that are taken out before `tail` is stored.
const PUBLISH: u64 = 128 << 10;
/// After so many bytes an empty ring begins anew at its start, if no record among them was a long one.
const REWIND: usize = 256 << 10;
/// Records from this length on are long.
const LONG: usize = 1 << 10;

/// The other process has written what cannot be, or the memory is not there: the ring is of no more
/// use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The end that puts records in.
#[derive(Debug)]
pub struct Producer {
    map: Map,
    /// The place of the next record.
    head: u64,
    /// Up to where all was taken out, as last seen.
    tail: u64,
    /// From this offset on the ring begins anew when it is empty.
    rewind_at: usize,
    /// A long record has been put in since the last time that this was asked.
    long: bool,
}

/// Room for a record, which is not there for the taker before [`Reserved::commit`]. If it is dropped,
/// nothing has happened.
#[derive(Debug)]
pub struct Reserved<'r> {
    ring: &'r mut Producer,
    len: usize,
}

impl Producer {
    /// Makes a ring, and a descriptor by which another process can open it.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // The program may close all descriptors at any moment.
        let fd = CheckedFd::new(memfd_create("rxe-ring", flags)?);
        ftruncate(&fd, (RECORDS + CAPACITY) as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Map::new(&fd)?;
        Ok((Self { map, head: 0, tail: 0, rewind_at: REWIND, long: false }, fd.into_owned()))
    }

    /// Room for a record of `len` bytes; `None` if there is none.
    ///
    /// # Panics
    /// If `len` is 0 or more than [`MAX_RECORD`].
    pub fn reserve(&mut self, len: usize) -> Result<Option<Reserved<'_>>, Broken> {
        assert!((1..=MAX_RECORD).contains(&len), "a record holds 1 to {MAX_RECORD} bytes");
        let at = offset(self.head);
        let mut skip = CAPACITY - at < size_of_record(len);
        if at >= self.rewind_at && !skip {
            if !std::mem::take(&mut self.long) {
                self.look()?;
                skip = self.tail == self.head;
            }
            self.rewind_at = at + REWIND;
        }
        let skipped = if skip { CAPACITY - at } else { 0 };
        // The head word behind the record must be free too.
        let need = skipped + size_of_record(len) + ALIGN;
        if self.free()? < need {
            self.look()?;
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
        // Now and not when the record is there: the taker looks at the record's line all the time, so the line
        // would be fetched twice if another had to be written between the record and its head word.
        self.map.set_word(offset(self.head + size_of_record(len) as u64), 0)?;
        Ok(Some(Reserved { ring: self, len }))
    }

    /// Puts in one record made of these parts. `false`: there is no room.
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

    /// Looks how much has been taken out.
    pub fn look(&mut self) -> Result<(), Broken> {
        let tail = self.map.tail();
        if tail.wrapping_sub(self.tail) > self.head.wrapping_sub(self.tail) {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }

    /// Bytes ever taken out, as last seen.
    pub fn taken(&self) -> u64 {
        self.tail
    }

    /// Bytes that are free, as last seen.
    pub fn free(&self) -> Result<usize, Broken> {
        let used = usize::try_from(self.head.wrapping_sub(self.tail)).map_err(|_| Broken)?;
        CAPACITY.checked_sub(used).ok_or(Broken)
    }

    /// Whether the taker sleeps, and is now to be woken by the caller. To be asked after the last
    /// record.
    pub fn must_wake(&self) -> bool {
        // Either this sees that the taker sleeps, or the taker sees the record before it does: see
        // Consumer::sleeps.
        fence(Ordering::SeqCst);
        let asleep = self.map.flag();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::AcqRel) != 0
    }
}

impl Reserved<'_> {
    /// Writes these bytes into the record, from byte `from` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, from: usize, bytes: &[u8]) -> Result<(), Broken> {
        self.span(from, bytes.len()).write(bytes).map_err(|_| Broken)
    }

    /// `len` of its bytes, from byte `from` on. The other process may write them too.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn span(&self, from: usize, len: usize) -> WritableSpan<'_> {
        assert!(from <= self.len && len <= self.len - from, "a part of the record");
        self.ring.map.records(offset(self.ring.head) + HEAD + from, len)
    }

    /// Lets the other end have the record. The tag is for the caller's use.
    ///
    /// # Panics
    /// If the tag is the greatest number.
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

/// The end that takes records out.
#[derive(Debug)]
pub struct Consumer {
    map: Map,
    /// The place of the next record.
    tail: u64,
    /// The place that the other end was told.
    told: u64,
}

/// A record that has not been taken out yet.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    ring: &'r Consumer,
    at: usize,
    len: usize,
    /// What the other end has given it.
    pub tag: u32,
}

/// Goes through the records that are there, and takes none out.
#[derive(Debug)]
pub struct Cursor<'r> {
    ring: &'r Consumer,
    place: u64,
}

impl Consumer {
    /// Opens a ring that another process has made.
    pub fn open(fd: &impl AsFd) -> io::Result<Self> {
        let size = rustix::fs::fstat(fd)?.st_size;
        let sealed = fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !sealed || usize::try_from(size) != Ok(RECORDS + CAPACITY) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { map: Map::new(fd)?, tail: 0, told: 0 })
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.map.word(offset(self.tail)) == Ok(0)
    }

    /// The place of the oldest record.
    pub fn place(&self) -> u64 {
        self.tail
    }

    /// Goes through the records, from the oldest on.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { ring: self, place: self.tail }
    }

    /// Takes out all records before this place, where a cursor was.
    pub fn release(&mut self, place: u64) -> Result<(), Broken> {
        self.tail = place;
        if place.wrapping_sub(self.told) >= PUBLISH { self.tell() } else { Ok(()) }
    }

    /// Tells the other end what was taken out: to be called when there is no record.
    pub fn tell(&mut self) -> Result<(), Broken> {
        if self.told != self.tail {
            self.told = self.tail;
            self.map.set_tail(self.tail)?;
        }
        Ok(())
    }

    /// Takes out the oldest record; its tag and its length.
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
            self.tell()?;
        }
        Ok(taken)
    }

    /// Sets whether this end sleeps. Returns the last value. The caller must check again for a record
    /// afterwards.
    pub fn sleeps(&self, asleep: bool) -> bool {
        let before = self.map.flag().swap(asleep.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before != 0
    }

    /// Whether the other end has left this one asleep.
    pub fn is_asleep(&self) -> bool {
        self.map.flag().load(Ordering::Acquire) != 0
    }
}

impl<'r> Cursor<'r> {
    /// The next record, if there is one.
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
                // A skip leads to the start, where a record follows: the other end cannot keep this one
                // busy with skips.
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

    /// Where it is, for [`Consumer::release`].
    pub fn place(&self) -> u64 {
        self.place
    }
}

impl<'r> Record<'r> {
    /// Its bytes, 1 to [`MAX_RECORD`].
    #[expect(clippy::len_without_is_empty, reason = "it is not")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Fills `out` with its bytes from byte `from` on.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn read(&self, from: usize, out: &mut [u8]) -> Result<(), Broken> {
        self.span(from, out.len()).read(out).map_err(|_| Broken)
    }

    /// `len` of its bytes, from byte `from` on. The other process may change them at any time.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn span(&self, from: usize, len: usize) -> Span<'r> {
        assert!(from <= self.len && len <= self.len - from, "a part of the record");
        *self.ring.map.records(self.at + HEAD + from, len)
    }
}

/// Bytes of a record with its head word, up to where the next may begin.
pub const fn size_of_record(len: usize) -> usize {
    (HEAD + len).next_multiple_of(ALIGN)
}

/// Where a place is in the records.
#[expect(clippy::cast_possible_truncation, reason = "less than CAPACITY")]
fn offset(place: u64) -> usize {
    (place % CAPACITY as u64) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "at most MAX_RECORD")]
fn head_word(len: usize, tag: u32) -> u64 {
    // One more than the length: no head word is 0.
    u64::from(tag) << 32 | u64::from(len as u32 + 1)
}

fn parts_of(word: u64) -> Result<(usize, u32), Broken> {
    let len = usize::try_from(word & 0xffff_ffff).map_err(|_| Broken)?;
    Ok((len.saturating_sub(1), u32::try_from(word >> 32).map_err(|_| Broken)?))
}

/// The memory, for as long as it is mapped.
#[derive(Debug)]
struct Map(NonNull<u8>);

// SAFETY: it is an address that is valid in the whole process until it is dropped; it is only used
// through atomics and spans.
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

    /// `len` bytes at an offset of the mapping.
    fn span(&self, at: usize, len: usize) -> WritableSpan<'_> {
        assert!(at <= RECORDS + CAPACITY && len <= RECORDS + CAPACITY - at, "in the mapping");
        // SAFETY: the bytes lie in the mapping, which is there as long as `self` is borrowed. Nobody in
        // this process has a reference to them.
        unsafe { WritableSpan::from_raw(self.0.add(at), len) }
    }

    /// `len` bytes at an offset of the records.
    fn records(&self, at: usize, len: usize) -> WritableSpan<'_> {
        assert!(at <= CAPACITY && len <= CAPACITY - at, "in the records");
        self.span(RECORDS + at, len)
    }

    /// The head word at an offset of the records, with acquire ordering.
    fn word(&self, at: usize) -> Result<u64, Broken> {
        self.records(at, HEAD).load().map_err(|_| Broken)
    }

    /// Sets a head word, with release ordering.
    fn set_word(&self, at: usize, value: u64) -> Result<(), Broken> {
        self.records(at, HEAD).store(value.to_ne_bytes()).map_err(|_| Broken)
    }

    /// As a place that cannot be if the memory is not there.
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
        // SAFETY: it lies in the mapping, at a multiple of 4, and nobody in this process uses it but as
        // an atomic.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(AT).cast()) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and no reference to it outlives self.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), RECORDS + CAPACITY) };
    }
}

#[cfg(test)]
mod tests;
