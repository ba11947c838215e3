//! A small capture, whole in memory.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use super::{CaptureError, Direction, Reader};

/// A frame of a capture that is whole in memory. The fields are those of [`super::Record`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "documented there")]
pub struct Kept {
    pub at: Option<Duration>,
    pub frame: Vec<u8>,
    pub original_len: usize,
    pub direction: Option<Direction>,
    pub comments: Vec<String>,
}

/// All frames of a capture.
#[derive(Debug)]
pub struct Capture {
    /// The frames, in the file's order.
    pub frames: Vec<Kept>,
    /// Why there are no more, if the file is damaged or ends within a frame.
    pub error: Option<CaptureError>,
}

impl Capture {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no capture.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        Reader::open(path).map(Self::of)
    }

    /// Reads a capture from `input`.
    ///
    /// # Errors
    /// The input cannot be read, or is no capture.
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
