//! The memory in which AF_XDP sockets exchange frames with the kernel (UMEM). Each queue has one,
//! in chunks of [`CHUNK`] bytes.
//!
//! Invariants: the first chunks are for receiving, and this process only reads them. The others are
//! divided among the shards that send, and only its shard writes to a chunk. A chunk
//! belongs to the kernel while its address is in the fill or the transmit ring, and until it comes
//! back through the receive or the completion ring.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size of a chunk in bytes. The kernel allows no more than a page.
pub(super) const CHUNK: usize = 4096;

/// The memory for the frames of a queue.
#[derive(Debug)]
pub(super) struct Umem {
    start: NonNull<u8>,
    len: usize,
    /// The size of the receive chunks in bytes.
    received: usize,
}

// SAFETY: the address is valid in the whole process until the drop.
unsafe impl Send for Umem {}

// SAFETY: a shared reference only gives access to bytes of receive chunks, which no thread writes.
unsafe impl Sync for Umem {}

/// The chunks that one shard sends from.
#[derive(Debug)]
pub(super) struct TxChunks {
    umem: Arc<Umem>,
    /// The addresses of the chunks in the UMEM.
    range: Range<u64>,
}

impl Umem {
    /// Allocates memory for `rx` receive chunks, and for these numbers of transmit chunks, one
    /// number for each shard.
    pub(super) fn new(rx: u32, tx: &[u32]) -> io::Result<(Arc<Self>, Vec<TxChunks>)> {
        let bytes = |chunks: u32| chunks as usize * CHUNK;
        let received = bytes(rx);
        let len = received + bytes(tx.iter().sum());
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice, touches nothing that exists.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        // SAFETY: exactly that mapping. A forked child does not inherit it: copy-on-write would
        // give the parent other pages than those that the kernel writes to.
        let advised = unsafe { madvise(at, len, Advice::LinuxDontFork) };
        let start = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let umem = Arc::new(Self { start, len, received });
        advised?;
        let mut next = received as u64;
        let tx_chunks = tx.iter().map(|chunks| {
            let start = next;
            next += bytes(*chunks) as u64;
            TxChunks { umem: Arc::clone(&umem), range: start..next }
        });
        let tx_chunks = tx_chunks.collect();
        Ok((umem, tx_chunks))
    }

    /// Returns the start address, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Returns the size in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns the bytes of a received frame, or `None` if they are not in receive chunks.
    pub(super) fn received(&self, at: u64, len: u32) -> Option<&[u8]> {
        let (at, len) = (usize::try_from(at).ok()?, usize::try_from(len).ok()?);
        if at.checked_add(len)? > self.received {
            return None;
        }
        // SAFETY: in the mapping, and initialised: it began as zeros. This process never writes to
        // a receive chunk.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), len) })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` created, and no reference to it outlives self. The
        // kernel keeps the pages while it uses them.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl TxChunks {
    /// Returns the addresses of the chunks as a range.
    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Returns the address of each chunk.
    pub(super) fn chunks(&self) -> impl Iterator<Item = u64> + use<> {
        self.range.clone().step_by(CHUNK)
    }

    /// Returns a chunk to write a frame to, or `None` if it belongs to another shard.
    pub(super) fn chunk(&mut self, at: u64) -> Option<&mut [u8]> {
        let end = at.checked_add(CHUNK as u64)?;
        if at < self.range.start || end > self.range.end {
            return None;
        }
        let at = usize::try_from(at).ok()?;
        // SAFETY: in the mapping, and initialised: it began as zeros. No two shards share a
        // chunk, and `self` is borrowed mutably, so there is no other reference.
        Some(unsafe { std::slice::from_raw_parts_mut(self.umem.start.as_ptr().add(at), CHUNK) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_not_handed_out() {
        let (umem, mut tx_chunks) = Umem::new(2, &[1, 2]).unwrap();
        assert_eq!(umem.received(8190, 2), Some(&[0, 0][..]));
        assert_eq!(umem.received(8190, 3), None);
        assert_eq!(umem.received(u64::MAX, 3), None);
        let ranges: Vec<_> = tx_chunks.iter().map(|chunks| chunks.range().clone()).collect();
        assert_eq!(ranges, [8192..12288, 12288..20480]);
        assert!(tx_chunks[1].chunks().eq([12288, 16384]));
        for (shard, at) in [(0, 4096), (0, 8193), (0, 12288), (1, 8192), (1, 20480), (1, u64::MAX)]
        {
            assert_eq!(tx_chunks[shard].chunk(at), None, "shard {shard}, {at}");
        }
        tx_chunks[0].chunk(8192).unwrap()[4095] = 7;
        assert_eq!(tx_chunks[0].chunk(8192).unwrap()[4095], 7);
    }

    #[test]
    fn the_memory_lasts_as_long_as_its_chunks_for_sending() {
        let (umem, mut tx_chunks) = Umem::new(1, &[1]).unwrap();
        drop(umem);
        tx_chunks[0].chunk(4096).unwrap().fill(1);
    }
}
