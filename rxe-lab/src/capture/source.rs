//! A buffered byte source. The buffer grows only as far as one packet needs.

use std::io::{self, Read};

/// The initial size of the buffer in bytes.
const CHUNK: usize = 256 << 10;

/// A buffered byte source.
pub(super) struct Source<'r> {
    inner: Box<dyn Read + 'r>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes consumed so far.
    offset: u64,
}

impl<'r> Source<'r> {
    pub(super) fn new(inner: Box<dyn Read + 'r>) -> Self {
        Self { inner, buffer: vec![0; CHUNK], start: 0, end: 0, offset: 0 }
    }

    /// Returns the number of bytes consumed, which is the position in the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads until `n` bytes are buffered or the file ends. Returns the number of buffered bytes.
    pub(super) fn fill(&mut self, n: usize) -> io::Result<usize> {
        while self.end - self.start < n {
            if self.buffer.len() - self.start < n {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                self.buffer.resize(self.buffer.len().max(n), 0);
            }
            match self.inner.read(&mut self.buffer[self.end..]) {
                Ok(0) => break,
                Ok(got) => self.end += got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(self.end - self.start)
    }

    /// Returns the next `n` buffered bytes, or fewer if fewer are buffered.
    pub(super) fn front(&self, n: usize) -> &[u8] {
        &self.buffer[self.start..self.end.min(self.start.saturating_add(n))]
    }

    /// Consumes up to `n` of the buffered bytes.
    pub(super) fn consume(&mut self, n: usize) {
        let n = n.min(self.end - self.start);
        self.start += n;
        self.offset += n as u64;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Consumes up to `n` of the buffered bytes and returns them.
    pub(super) fn advance(&mut self, n: usize) -> &[u8] {
        let from = self.start;
        let to = self.end.min(from.saturating_add(n));
        self.start = to;
        self.offset += (to - from) as u64;
        &self.buffer[from..to]
    }

    /// Skips `n` bytes. Returns how many of them are missing because the file ended.
    pub(super) fn skip(&mut self, mut n: u64) -> io::Result<u64> {
        while n > 0 {
            let there = self.fill(1)?;
            if there == 0 {
                break;
            }
            let step = usize::try_from(n).unwrap_or(usize::MAX).min(there);
            self.consume(step);
            n -= step as u64;
        }
        Ok(n)
    }
}

impl Read for Source<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let there = self.fill(1)?.min(out.len());
        out[..there].copy_from_slice(self.front(there));
        self.consume(there);
        Ok(there)
    }
}
