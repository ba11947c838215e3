//! Errors of reading a capture.

use std::fmt;
use std::io;

use super::{MAX_FRAME, MAX_INTERFACES};

/// An error in a capture file, and its position.
#[derive(Debug)]
pub struct CaptureError {
    /// The number of the unreadable frame, counted from 1; 0 if the file is not a capture.
    pub frame: u64,
    /// The offset in the uncompressed file, in bytes.
    pub offset: u64,
    /// The kind of error.
    pub problem: Problem,
}

/// A kind of error in a capture file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The file is empty.
    Empty,
    /// The file begins neither as pcap nor as pcapng.
    NoCapture,
    /// The file has a format that is not read.
    Unread {
        /// The format, as a phrase.
        what: &'static str,
        /// What reads or converts it, as a sentence.
        todo: &'static str,
    },
    /// The file ends too early: `there` of `of` bytes are left.
    Ends {
        /// Bytes that are left.
        there: usize,
        /// Bytes that are needed.
        of: usize,
    },
    /// The compressed data end too early.
    CompressedEnds,
    /// A frame states this length, which is more than [`MAX_FRAME`].
    TooLong(u64),
    /// A pcapng block states a length that no block can have.
    BlockLength(u32),
    /// The length at the end of a pcapng block differs from the length at its start.
    BlockEnd {
        /// The length at the start.
        start: u32,
        /// The length at the end.
        end: u32,
    },
    /// A section header has no valid byte-order magic.
    ByteOrder,
    /// A packet block is shorter than the packet in it.
    PacketBlock,
    /// A packet belongs to an interface that is not described.
    Interface(u32),
    /// A section describes more than [`MAX_INTERFACES`] interfaces.
    Interfaces,
    /// The file cannot be read.
    Io(io::Error),
}

/// Formats that are not read: their first bytes, a phrase that names them, and what to do.
const UNREAD: [(&[u8], &str, &str); 5] = [
    (b"snoop\0\0\0", "a snoop capture", "`editcap -F pcapng FILE out.pcapng` converts it"),
    (
        b"GMBU",
        "a capture of Microsoft Network Monitor",
        "`editcap -F pcapng FILE out.pcapng` converts it",
    ),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "`lz4 -dc FILE | rxe decode -` reads it"),
    (b"\xfd7zXZ\0", "compressed with xz", "`xz -dc FILE | rxe decode -` reads it"),
    (b"BZh", "compressed with bzip2", "`bzip2 -dc FILE | rxe decode -` reads it"),
];

impl Problem {
    /// Returns the error for a file that begins with these bytes and is not a capture.
    pub(super) fn not_a_capture(head: &[u8]) -> Self {
        let found = UNREAD.iter().find(|(magic, ..)| head.starts_with(magic));
        found.map_or(Self::NoCapture, |(_, what, todo)| Self::Unread { what, todo })
    }
}

impl CaptureError {
    /// Creates an error at the start of the file, before any frame.
    pub(super) fn at_start(problem: Problem) -> Self {
        Self { frame: 0, offset: 0, problem }
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.frame > 0 {
            write!(f, "frame {}, at byte {}: ", self.frame, self.offset)?;
        }
        self.problem.fmt(f)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the file is empty"),
            Self::NoCapture => {
                f.write_str("this is no capture: the file begins neither as pcap nor as pcapng")
            }
            Self::Unread { what, .. } => write!(f, "this is {what}, which is not read here"),
            Self::Ends { there, of } => {
                write!(f, "the file ends here: {there} of {of} bytes are left")
            }
            Self::CompressedEnds => f.write_str("the compressed file ends here"),
            Self::TooLong(len) => {
                write!(f, "the file is damaged here: a frame of {len} bytes, more than {MAX_FRAME}")
            }
            Self::BlockLength(len) => {
                write!(f, "the file is damaged here: a block cannot have {len} bytes")
            }
            Self::BlockEnd { start, end } => write!(
                f,
                "the file is damaged here: a block has {start} bytes at its start and {end} at its end"
            ),
            Self::ByteOrder => {
                f.write_str("the file is damaged here: a section begins without its byte order")
            }
            Self::PacketBlock => {
                f.write_str("the file is damaged here: a block is shorter than the packet in it")
            }
            Self::Interface(n) => write!(
                f,
                "the file is damaged here: a packet of interface {n}, which is not described"
            ),
            Self::Interfaces => write!(f, "more than {MAX_INTERFACES} interfaces in one section"),
            Self::Io(e) => write!(f, "cannot be read: {e}"),
        }
    }
}

impl std::error::Error for CaptureError {}
