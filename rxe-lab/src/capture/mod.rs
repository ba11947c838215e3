//! Reads the frames of a capture, one at a time.
//!
//! The formats are pcap (draft-ietf-opsawg-pcap), with microseconds or nanoseconds, and pcapng
//! (draft-ietf-opsawg-pcapng), in either byte order, optionally compressed with gzip or zstd.
//!
//! Memory is bounded for files of any length: a frame has at most [`MAX_FRAME`] bytes, and a
//! section at most [`MAX_INTERFACES`] interfaces. No length in the file is trusted.

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

/// The most bytes that a frame may have. tcpdump captures at most 262,144.
pub const MAX_FRAME: usize = 16 << 20;

/// The most interfaces that a pcapng section may describe.
pub const MAX_INTERFACES: usize = 65_536;

/// The type of a frame's first header.
/// The numbers are those of <https://www.tcpdump.org/linktypes.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
}

/// The direction of a frame, as seen by the host that captured it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The frame was received.
    Inbound,
    /// The frame was sent.
    Outbound,
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The number of the frame in the file, counted from 1 as in Wireshark.
    pub number: u64,
    /// The time of capture since the Unix epoch, if the file states one.
    pub at: Option<Duration>,
    /// The interface of the frame, counted from 0 in each section of the file.
    pub interface: u32,
    /// The type of the frame's first header.
    pub link: LinkType,
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// The length of the frame on the wire in bytes, at least `bytes.len()`.
    pub original_len: usize,
    /// The direction of the frame, if the file states one.
    pub direction: Option<Direction>,
    /// The comments that the file attaches to the frame.
    pub comments: Vec<String>,
}

/// Reads a capture frame by frame.
pub struct Reader<'r> {
    source: Source<'r>,
    format: Format,
    /// Frames read so far.
    frames: u64,
    /// Whether an error was returned. Nothing is read after an error.
    failed: bool,
}

/// The format of the file, with what its headers have told so far.
enum Format {
    Pcap(pcap::Header),
    Pcapng(pcapng::Section),
}

/// The position of a frame in the source's buffer, and its metadata.
struct Found {
    /// The length of the whole packet header or block, consumed before `next` returns.
    whole: usize,
    /// The range of the frame within these bytes.
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
    /// Opens a capture file.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a capture.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        let file = File::open(path).map_err(|e| CaptureError::at_start(Problem::Io(e)))?;
        Self::new(file)
    }
}

impl<'r> Reader<'r> {
    /// Reads a capture from `input`, for example standard input.
    ///
    /// # Errors
    /// Fails if the input cannot be read or is not a capture.
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

    /// Returns the next frame; `None` at the end of the file and after an error.
    ///
    /// # Errors
    /// Fails if the file is damaged, ends within a frame, or cannot be read.
    /// All earlier frames were returned.
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

    /// Returns how many bytes of the uncompressed file were read so far.
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }
}

impl Source<'_> {
    /// Returns the next `n` bytes, or an error if the file ends before them.
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
            // Only the decompressors report this kind: their stream ends too early.
            io::ErrorKind::UnexpectedEof => Self::CompressedEnds,
            _ => Self::Io(e),
        }
    }
}
