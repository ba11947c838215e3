//! Reads a small capture into memory.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::{CaptureError, Direction, Reader};

/// A frame of a capture that was read into memory.
/// The fields are documented at [`super::Record`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "documented there")]
pub struct Kept {
    pub at: Option<Duration>,
    pub frame: Vec<u8>,
    pub original_len: usize,
    pub direction: Option<Direction>,
    pub comments: Vec<String>,
}

/// All frames of a capture, in memory.
#[derive(Debug)]
pub struct Capture {
    /// The frames, in the order of the file.
    pub frames: Vec<Kept>,
    /// The error that ended reading, if the file is damaged or ends within a frame.
    pub error: Option<CaptureError>,
}

impl Capture {
    /// Reads a file into memory.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a capture.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        Reader::open(path).map(Self::of)
    }

    /// Reads a capture from `input` into memory.
    ///
    /// # Errors
    /// Fails if the input cannot be read or is not a capture.
    pub fn read(input: impl Read) -> Result<Self, CaptureError> {
        Reader::new(input).map(Self::of)
    }

    fn of(mut reader: Reader<'_>) -> Self {
        let mut frames = Vec::new();
        loop {
            match reader.next() {
                Ok(Some(record)) => frames.push(Kept {
                    at: record.at,
                    frame: record.bytes.to_vec(),
                    original_len: record.original_len,
                    direction: record.direction,
                    comments: record.comments,
                }),
                Ok(None) => return Self { frames, error: None },
                Err(e) => return Self { frames, error: Some(e) },
            }
        }
    }
}
