//! Frames over a stream: each is preceded by its length in 4 bytes, big-endian. QEMU's `-netdev
//! stream` and `-netdev socket` use this format.
//!
//! The input is not trusted: an invalid length ends the stream, and memory is bounded.

use std::io;

/// The maximum length of a frame in bytes: the size of QEMU's own buffer.
pub(super) const MAX_FRAME: usize = (64 << 10) + 4096;
/// The length in bytes of a length field.
pub(super) const LENGTH: usize = 4;

/// Splits a stream into frames.
#[derive(Debug)]
pub(super) struct FrameReader {
    buffer: Box<[u8]>,
    /// The range of the buffer that was read and not handed out yet.
    start: usize,
    end: usize,
}

/// The result of [`FrameReader::next`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// A frame. It may be empty.
    Frame(&'a [u8]),
    /// The next frame has not arrived completely.
    Nothing,
    /// The stream is invalid: no frame has this length.
    TooLong(usize),
}

/// The result of [`FrameReader::fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Bytes were read.
    Some,
    /// Nothing has arrived.
    Nothing,
    /// The peer has closed the stream.
    End,
}

impl FrameReader {
    const CAPACITY: usize = 4 * (MAX_FRAME + LENGTH);

    pub(super) fn new() -> Self {
        Self { buffer: vec![0; Self::CAPACITY].into(), start: 0, end: 0 }
    }

    /// Returns the next frame of what was read.
    pub(super) fn next(&mut self) -> Found<'_> {
        let read = &self.buffer[self.start..self.end];
        let Some((length, rest)) = read.split_first_chunk::<LENGTH>() else {
            return Found::Nothing;
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_FRAME {
            return Found::TooLong(length);
        }
        if rest.len() < length {
            return Found::Nothing;
        }
        let at = self.start + LENGTH;
        self.start = at + length;
        Found::Frame(&self.buffer[at..at + length])
    }

    /// Calls `read` once, which returns 0 at the end of the stream.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Read> {
        // Moved to the front, so that there always is room for a whole frame.
        if self.buffer.len() - self.start < MAX_FRAME + LENGTH || self.start == self.end {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match read(&mut self.buffer[self.end..]) {
            Ok(0) => Ok(Read::End),
            Ok(n) => {
                self.end = self.buffer.len().min(self.end + n);
                Ok(Read::Some)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Read::Nothing),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(Read::Nothing),
            Err(e) => Err(e),
        }
    }

    /// Discards what was read.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the frames in these pieces of a stream, and the length that ended it.
    fn frames(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Option<usize>) {
        let mut reader = FrameReader::new();
        let mut frames = Vec::new();
        for piece in pieces {
            let mut piece = *piece;
            while !piece.is_empty() {
                let read = reader.fill(|room| {
                    let n = room.len().min(piece.len());
                    room[..n].copy_from_slice(&piece[..n]);
                    piece = &piece[n..];
                    Ok(n)
                });
                assert_eq!(read.unwrap(), Read::Some);
                loop {
                    match reader.next() {
                        Found::Frame(frame) => frames.push(frame.to_vec()),
                        Found::Nothing => break,
                        Found::TooLong(length) => return (frames, Some(length)),
                    }
                }
            }
        }
        (frames, None)
    }

    fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
        let each = frames.iter().flat_map(|frame| {
            let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
            [&length, &frame[..]].concat()
        });
        each.collect()
    }

    #[test]
    fn empty_and_longest_frames_are_handed_out_and_longer_ones_end_the_stream() {
        let all = vec![vec![], vec![7; MAX_FRAME], vec![], vec![8; 60]];
        assert_eq!(frames(&[&stream(&all)]), (all.clone(), None));
        let mut bytes = stream(&all[3..]);
        bytes.extend(stream(&[vec![0; MAX_FRAME + 1]]));
        assert_eq!(frames(&[&bytes]), (all[3..].to_vec(), Some(MAX_FRAME + 1)));
        assert_eq!(frames(&[&[0xff; 4]]), (vec![], Some(0xffff_ffff)));
    }

    #[test]
    fn a_cut_frame_is_not_handed_out() {
        let bytes = stream(&[vec![1; 60]]);
        assert_eq!(frames(&[&bytes[..bytes.len() - 1]]), (vec![], None));
        assert_eq!(frames(&[&bytes[..3]]), (vec![], None));
    }

    #[test]
    fn the_end_and_errors_are_told_apart() {
        let mut reader = FrameReader::new();
        assert_eq!(reader.fill(|_| Ok(0)).unwrap(), Read::End);
        let none = |_: &mut [u8]| Err(io::ErrorKind::WouldBlock.into());
        assert_eq!(reader.fill(none).unwrap(), Read::Nothing);
        assert!(reader.fill(|_| Err(io::ErrorKind::ConnectionReset.into())).is_err());
    }

    proptest! {
        #[test]
        fn frames_do_not_depend_on_how_the_stream_is_cut(
            lengths in prop::collection::vec(0usize..3000, 1..40),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let all: Vec<_> = (0u8..).zip(lengths).map(|(i, len)| vec![i; len]).collect();
            let bytes = stream(&all);
            let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces: Vec<_> = at.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(frames(&pieces), (all, None));
        }

        #[test]
        fn any_bytes_are_read_without_harm(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..40),
        ) {
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            let (found, _) = frames(&pieces);
            prop_assert!(found.iter().all(|frame| frame.len() <= MAX_FRAME));
        }
    }
}
