//! The frames of a capture, one at a time: pcap (draft-ietf-opsawg-pcap) with microseconds or
//! nanoseconds and pcapng (draft-ietf-opsawg-pcapng), in either byte order, also compressed with gzip
//! or zstd.
//!
//! Memory is bounded whatever the file's length: the largest frame is [`MAX_FRAME`] bytes, and at most
//! [`MAX_INTERFACES`] interfaces of a section are kept. No length in the file is trusted.

mod blocks;
mod compressed;
mod error;
mod order;
mod pcap;
mod pcapng;
mod source;
mod start;
#[cfg(test)]
mod tests;
mod whole;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

pub use blocks::Blocks;
pub use error::{CaptureError, Problem};
use source::Source;
pub use start::Start;
pub use whole::{Capture, Kept};

/// The most bytes that a frame may have. tcpdump captures 262,144 at most.
pub const MAX_FRAME: usize = 16 << 20;

/// The most interfaces that a section may describe.
pub const MAX_INTERFACES: usize = 65_536;

/// What the first header of a frame is: a number of <https://www.tcpdump.org/linktypes.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
}

/// The direction of a frame, as seen by the host that captured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// It arrived.
    Inbound,
    /// It left.
    Outbound,
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its place in the file, counted from 1 as in Wireshark.
    pub number: u64,
    /// The time since 1970, if the file says it.
    pub at: Option<Duration>,
    /// The interface that it was captured on, counted from 0 in each section of a file.
    pub interface: u32,
    /// What its first header is.
    pub link: LinkType,
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Bytes that it had on the wire. Not below `bytes.len()`.
    pub original_len: usize,
    /// Its direction, if the file says it.
    pub direction: Option<Direction>,
    /// Its comments.
    pub comments: Vec<String>,
}

/// Reads a capture, frame by frame.
pub struct Reader<'r> {
    source: Source<'r>,
    format: Format,
    /// Frames read so far.
    frames: u64,
    /// Nothing is read after an error.
    failed: bool,
}

enum Format {
    Pcap(pcap::Header),
    Pcapng(pcapng::Section),
}

/// Where a frame is in the source's front, and what the file says about it.
struct Found {
    /// The whole packet header or block, which is consumed with the next call.
    whole: usize,
    /// The frame in it.
    from: usize,
    to: usize,
    at: Option<Duration>,
    interface: u32,
    link: LinkType,
    original_len: usize,
    direction: Option<Direction>,
    comments: Vec<String>,
}

impl Reader<'static> {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no capture.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let file = File::open(path).map_err(|e| CaptureError::at_start(Problem::Io(e)))?;
        Self::new(file)
    }
}

impl<'r> Reader<'r> {
    /// Reads a capture from `input`, for example standard input.
    ///
    /// # Errors
    /// The input cannot be read, or is no capture.
    pub fn new(input: impl Read + 'r) -> Result<Self, CaptureError> {
        let start = CaptureError::at_start;
        let mut source = compressed::open(Box::new(input)).map_err(|e| start(e.into()))?;
        let there = source.fill(4).map_err(|e| start(e.into()))?;
        if there == 0 {
            return Err(start(Problem::Empty));
        }
        let magic = source.front(4).first_chunk().ok_or_else(|| start(Problem::NoCapture))?;
        let format = if u32::from_le_bytes(*magic) == pcapng::SECTION_HEADER {
            Format::Pcapng(pcapng::Section::default())
        } else {
            Format::Pcap(pcap::Header::read(&mut source).map_err(start)?)
        };
        Ok(Self { source, format, frames: 0, failed: false })
    }

    /// The next frame; `None` at the end of the file. After an error there is none.
    ///
    /// # Errors
    /// The file is damaged or ends within a frame, or cannot be read. All frames before were returned.
    #[expect(clippy::should_implement_trait, reason = "a frame borrows the reader's buffer")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        if self.failed {
            return Ok(None);
        }
        let offset = self.source.offset();
        let found = match &mut self.format {
            Format::Pcap(header) => header.next(&mut self.source),
            Format::Pcapng(section) => section.next(&mut self.source),
        };
        let number = self.frames + 1;
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(problem) => {
                self.failed = true;
                let offset = self.source.offset().max(offset);
                return Err(CaptureError { frame: number, offset, problem });
            }
        };
        self.frames = number;
        let Found { whole, from, to, at, interface, link, original_len, direction, comments } =
            found;
        let bytes = self.source.advance(whole).get(from..to).unwrap_or_default();
        let original_len = original_len.max(bytes.len());
        Ok(Some(Record { number, at, interface, link, bytes, original_len, direction, comments }))
    }

    /// Bytes of the file, without its compression, that were read so far.
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }
}

impl Source<'_> {
    /// Reads `n` bytes of something that must be whole.
    fn need(&mut self, n: usize) -> Result<&[u8], Problem> {
        let there = self.fill(n)?;
        if there < n {
            return Err(Problem::Ends { there, of: n });
        }
        Ok(self.front(n))
    }
}

impl From<io::Error> for Problem {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            // Only the decoders of compressed files report this: they lack the rest of a stream.
            io::ErrorKind::UnexpectedEof => Self::CompressedEnds,
            _ => Self::Io(e),
        }
    }
}
