//! A ring of records in memory that two processes share: one puts them in, the other takes them out.
//! The one file of `shm` with `unsafe`.
//!
//! Layout: `head` at 0 (bytes ever put in), `tail` at 128 (bytes ever taken out), `asleep` at 256 (1
//! while the taker wants to be woken), the records from 4096 on, around and around. A record is its
//! length, 4 bytes, then its bytes, and begins at a multiple of 64.
//!
//! Invariants:
//! - The other process may write anything anywhere at any time. Of what it writes only `head` or
//!   `tail` and the lengths are believed, after a check against what this process knows by itself;
//!   records are copied out before anybody looks at them, by a copy that others may write under
//!   ([`rxe_core::mem::load_shared`]).
//! - The memory cannot shrink under the mapping: it is sealed, which the taker checks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rxe_core::mem::{load_shared, store_shared};

/// Bytes of records.
pub const CAPACITY: usize = 2 << 20;
/// Bytes of a record at most.
pub const MAX_RECORD: usize = (64 << 10) + 64;

/// Where `head`, `tail`, `asleep` and the records stand.
pub const LAYOUT: [usize; 4] = [HEAD, TAIL, ASLEEP, RECORDS];

const HEAD: usize = 0;
const TAIL: usize = 128;
const ASLEEP: usize = 256;
const RECORDS: usize = 4096;
const LEN: usize = 4;
const ALIGN: usize = 64;

/// The other process has written what cannot be, or the memory is not there: the ring is of no more
/// use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The end that puts records in.
#[derive(Debug)]
pub struct Producer {
    map: Map,
    /// Bytes ever put in.
    head: u64,
    /// Bytes ever taken out, as last seen.
    tail: u64,
}

impl Producer {
    /// Makes a ring, and a descriptor by which another process can open it.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create("rxe-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, (RECORDS + CAPACITY) as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self { map: Map::new(&fd)?, head: 0, tail: 0 }, fd))
    }

    /// Puts in one record made of these parts. `false`: there is no room.
    pub fn push(&mut self, parts: [&[u8]; 2]) -> Result<bool, Broken> {
        let len = parts[0].len() + parts[1].len();
        let size = size_of_record(len);
        if self.free()? < size {
            self.look()?;
            if self.free()? < size {
                return Ok(false);
            }
        }
        let prefix = u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes();
        let mut at = self.head;
        for part in [&prefix[..], parts[0], parts[1]] {
            self.map.write(at, part)?;
            at += part.len() as u64;
        }
        self.head += size as u64;
        self.map.word(HEAD).store(self.head, Ordering::Release);
        Ok(true)
    }

    /// Looks how many bytes have been taken out.
    pub fn look(&mut self) -> Result<(), Broken> {
        let tail = self.map.word(TAIL).load(Ordering::Acquire);
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

/// The end that takes records out.
#[derive(Debug)]
pub struct Consumer {
    map: Map,
    /// Bytes ever taken out.
    tail: u64,
}

impl Consumer {
    /// Opens a ring that another process has made.
    pub fn open(fd: &OwnedFd) -> io::Result<Self> {
        let size = rustix::fs::fstat(fd)?.st_size;
        let sealed = fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !sealed || usize::try_from(size) != Ok(RECORDS + CAPACITY) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { map: Map::new(fd)?, tail: 0 })
    }

    /// Whether there is a record.
    pub fn is_empty(&self) -> bool {
        self.map.word(HEAD).load(Ordering::Acquire) == self.tail
    }

    /// Takes out the oldest record; its length.
    pub fn pop(&mut self, out: &mut [u8; MAX_RECORD]) -> Result<Option<usize>, Broken> {
        let head = self.map.word(HEAD).load(Ordering::Acquire);
        let there = usize::try_from(head.wrapping_sub(self.tail)).map_err(|_| Broken)?;
        if there == 0 {
            return Ok(None);
        }
        let mut prefix = [0; LEN];
        self.map.read(self.tail, &mut prefix)?;
        let len = usize::try_from(u32::from_ne_bytes(prefix)).map_err(|_| Broken)?;
        let out = out.get_mut(..len).ok_or(Broken)?;
        let size = size_of_record(len);
        if there > CAPACITY || size > there {
            return Err(Broken);
        }
        self.map.read(self.tail + LEN as u64, out)?;
        self.tail += size as u64;
        self.map.word(TAIL).store(self.tail, Ordering::Release);
        Ok(Some(len))
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

const fn size_of_record(len: usize) -> usize {
    (LEN + len).next_multiple_of(ALIGN)
}

/// The memory, for as long as it is mapped.
#[derive(Debug)]
struct Map(NonNull<u8>);

// SAFETY: it is an address that is valid in the whole process until it is dropped; words are only
// used as atomics, and records are copied as the two counters allow.
unsafe impl Send for Map {}

impl Map {
    fn new(fd: &OwnedFd) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice, touches nothing that exists.
        // The file has this length and cannot become shorter (Consumer::open, Producer::create).
        let ptr = unsafe {
            mmap(ptr::null_mut(), RECORDS + CAPACITY, access, MapFlags::SHARED, fd.as_fd(), 0)
        }?;
        NonNull::new(ptr.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at == HEAD || at == TAIL);
        // SAFETY: both lie in the mapping, at multiples of 8, and nobody in this process uses them
        // but as atomics.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(at).cast()) }
    }

    fn flag(&self) -> &AtomicU32 {
        // SAFETY: as for the words.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(ASLEEP).cast()) }
    }

    /// Copies into the records from place `at` on, around the end.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Broken> {
        assert!(bytes.len() <= CAPACITY);
        let (offset, first) = split(at, bytes.len());
        let (a, b) = bytes.split_at(first);
        // SAFETY: `split` keeps both parts within the records, as bytes.len() <= CAPACITY. What the
        // other process does there meanwhile can only spoil bytes, which nobody relies on.
        let written = unsafe {
            let records = self.0.as_ptr().add(RECORDS);
            store_shared(a.as_ptr(), records.add(offset), a.len())
                .and_then(|()| store_shared(b.as_ptr(), records, b.len()))
        };
        written.map_err(|_| Broken)
    }

    /// Copies out of the records from place `at` on, around the end.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Broken> {
        assert!(bytes.len() <= CAPACITY);
        let (offset, first) = split(at, bytes.len());
        let (a, b) = bytes.split_at_mut(first);
        // SAFETY: as for `write`; what comes out is some bytes or other, and taken as such.
        let read = unsafe {
            let records = self.0.as_ptr().add(RECORDS);
            load_shared(records.add(offset), a.as_mut_ptr(), a.len())
                .and_then(|()| load_shared(records, b.as_mut_ptr(), b.len()))
        };
        read.map_err(|_| Broken)
    }
}

/// Where place `at` is, and how many of `len` bytes fit between it and the end.
fn split(at: u64, len: usize) -> (usize, usize) {
    #[expect(clippy::cast_possible_truncation, reason = "less than CAPACITY")]
    let offset = (at % CAPACITY as u64) as usize;
    (offset, len.min(CAPACITY - offset))
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and no reference to it outlives self.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), RECORDS + CAPACITY) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn pair() -> (Producer, Consumer) {
        let (producer, fd) = Producer::create().unwrap();
        (producer, Consumer::open(&fd).unwrap())
    }

    fn pop(ring: &mut Consumer) -> Result<Option<Vec<u8>>, Broken> {
        let mut out = [0; MAX_RECORD];
        Ok(ring.pop(&mut out)?.map(|len| out[..len].to_vec()))
    }

    #[test]
    fn records_come_out_as_they_went_in_around_and_around() {
        let (mut from, mut to) = pair();
        let mut taken = 0usize;
        for n in 0..500usize {
            let bytes = vec![n.to_le_bytes()[0]; (n * 977) % (64 << 10)];
            let head = n.to_le_bytes();
            while !from.push([&head, &bytes]).unwrap() {
                let got = pop(&mut to).unwrap().unwrap();
                assert_eq!(got[..8], taken.to_le_bytes());
                taken += 1;
            }
        }
        while let Some(got) = pop(&mut to).unwrap() {
            assert_eq!(
                (&got[..8], got.len()),
                (&taken.to_le_bytes()[..], 8 + taken * 977 % (64 << 10))
            );
            assert!(got[8..].iter().all(|b| *b == taken.to_le_bytes()[0]));
            taken += 1;
        }
        assert_eq!(taken, 500);
        assert!(to.is_empty());
    }

    #[test]
    fn who_sleeps_is_woken_once() {
        let (mut from, to) = pair();
        from.push([b"a", b""]).unwrap();
        assert!(!from.must_wake());
        to.sleeps(true);
        assert!(!to.is_empty() && to.is_asleep());
        assert!(from.must_wake() && !from.must_wake() && !to.is_asleep());
        to.sleeps(true);
        to.sleeps(false);
        assert!(!from.must_wake());
    }

    #[test]
    fn what_can_not_be_is_not_believed() {
        for (head, len) in [
            (64, 1000),                // longer than what is there
            (CAPACITY as u64 + 64, 4), // more than there is room for
            (u64::MAX, 4),             // before the tail
            (1 << 20, u32::MAX),       // longer than any record
            (1 << 20, u32::try_from(MAX_RECORD).unwrap() + 1),
            (1, 0), // less than a record
        ] {
            let (from, mut to) = pair();
            from.map.write(0, &len.to_ne_bytes()).unwrap();
            from.map.word(HEAD).store(head, Ordering::Release);
            assert_eq!(pop(&mut to), Err(Broken), "{head} {len}");
        }
        for tail in [u64::MAX, 1 << 40] {
            let (mut from, to) = pair();
            to.map.word(TAIL).store(tail, Ordering::Release);
            let mut result = Ok(true);
            for _ in 0..200 {
                result = result.and_then(|_| from.push([&[0; 60_000], &[]]));
            }
            assert_eq!(result, Err(Broken), "{tail}");
        }
    }

    /// The other end writes anything anywhere while this one works: it notices or takes what it finds.
    #[test]
    fn a_ring_that_is_scribbled_on_breaks_and_nothing_else_does() {
        let stop = AtomicBool::new(false);
        let (from, fd) = Producer::create().unwrap();
        let honest = Consumer::open(&fd).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = crate::rng::Rng::new(1);
                while !stop.load(Ordering::Relaxed) {
                    let at = match rng.next() % 8 {
                        0 => HEAD,
                        1 => TAIL,
                        2 => ASLEEP,
                        3 | 4 => RECORDS + usize::try_from(rng.next() % 64).unwrap() * ALIGN,
                        _ => usize::try_from(rng.next()).unwrap() % (RECORDS + CAPACITY - 8),
                    };
                    let value = rng.next() >> (rng.next() % 64);
                    rustix::io::pwrite(&fd, &value.to_ne_bytes(), at as u64).unwrap();
                }
            });
            let mut out = [0; MAX_RECORD];
            // Each side begins anew where it was when it has noticed.
            let (mut from, mut to) = (from, honest);
            let mut noticed = [false; 2];
            while noticed != [true; 2] {
                // Long ones: the producer looks at the tail when the ring seems full.
                if from.push([&[1; 8], &out[..60_000]]).is_err() {
                    noticed[0] = true;
                    from.tail = from.head;
                }
                from.must_wake();
                if to.pop(&mut out).is_err() {
                    noticed[1] = true;
                    to.tail = from.head;
                }
                to.sleeps(true);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let fd =
            memfd_create("not-sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, (RECORDS + CAPACITY) as u64).unwrap();
        assert!(Consumer::open(&fd).is_err());
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(Consumer::open(&fd).is_ok());
        ftruncate(&fd, (RECORDS + CAPACITY) as u64 + 1).unwrap();
        assert!(Consumer::open(&fd).is_err());
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(Consumer::open(&null).is_err());
    }
}
