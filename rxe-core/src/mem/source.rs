//! The source of a packet's payload: private bytes, or pieces of memory that may change
//! concurrently.

use super::{AccessError, Span, WritableSpan, append_spans, write_spans};

/// The bytes of a payload, in order.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Private bytes, which cannot change.
    Bytes(&'a [u8]),
    /// Pieces of registered memory, or of memory shared with another process. Their bytes may
    /// change at any time, so each byte is read once.
    Spans(&'a [Span<'a>]),
}

impl Source<'_> {
    /// Returns the size in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Spans([span]) => span.len(),
            Self::Spans(spans) => spans.iter().map(Span::len).sum(),
        }
    }

    /// Returns whether the payload is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all bytes, or `None` if the payload does not have exactly `N` bytes.
    ///
    /// # Errors
    /// Some of the memory is not mapped.
    #[inline]
    pub(crate) fn read<const N: usize>(&self) -> Result<Option<[u8; N]>, AccessError> {
        let mut bytes = [0; N];
        if self.len() != N {
            return Ok(None);
        }
        self.read_to(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Copies all bytes to `out`, which must have the length of the payload.
    ///
    /// # Errors
    /// Some of the memory is not mapped, or `out` has another length. Some of the bytes may have
    /// been written.
    #[inline]
    pub fn read_to(&self, out: &mut [u8]) -> Result<(), AccessError> {
        if out.len() != self.len() {
            return Err(AccessError::OutOfBounds);
        }
        match self {
            Self::Bytes(all) => out.copy_from_slice(all),
            Self::Spans(spans) => {
                let mut rest = out;
                for span in *spans {
                    let (head, tail) = rest.split_at_mut(span.len());
                    span.read(head)?;
                    rest = tail;
                }
                debug_assert!(rest.is_empty(), "as long as the payload");
            }
        }
        Ok(())
    }

    /// Appends all bytes to `out`.
    ///
    /// # Errors
    /// Some of the memory is not mapped.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), AccessError> {
        match self {
            Self::Bytes(bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Self::Spans(spans) => append_spans(spans, out),
        }
    }

    /// Copies all bytes into the pieces `to`, which must have room for them.
    ///
    /// # Errors
    /// Some of the memory is not mapped, or there is no room. Some of the bytes may have been written.
    #[inline(always)]
    pub fn write_to(&self, to: &[WritableSpan<'_>]) -> Result<(), AccessError> {
        match self {
            Self::Bytes(bytes) => write_spans(to, bytes),
            Self::Spans(spans) => copy_spans(spans, to),
        }
    }
}

/// Copies all bytes of `spans` into the pieces `to`.
fn copy_spans(spans: &[Span<'_>], to: &[WritableSpan<'_>]) -> Result<(), AccessError> {
    if let ([from], [to]) = (spans, to)
        && from.len() <= to.len()
    {
        return to.copy_from(from);
    }
    // `full` is the number of bytes already written to the current piece.
    let (mut to, mut full) = (to.iter(), 0);
    let mut piece = to.next();
    for span in spans {
        let mut done = 0;
        while done < span.len() {
            let Some(target) = piece else { return Err(AccessError::OutOfBounds) };
            debug_assert!(full <= target.len() && done < span.len());
            let len = (target.len() - full).min(span.len() - done);
            if let (Some(from), Some(target)) = (span.part(done, len), target.at(full)) {
                target.copy_from(&from)?;
            }
            done += len;
            full += len;
            if full == target.len() {
                (piece, full) = (to.next(), 0);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Buffer;
    use super::*;

    #[test]
    fn pieces_of_any_sizes_are_copied_into_others() {
        let text: Vec<u8> = (1..=40).collect();
        let from = Buffer::zeroed(64);
        from.span(3, 40).unwrap().write(&text).unwrap();
        for cuts in [&[40][..], &[1, 39], &[7, 0, 20, 13]] {
            let mut at = 3;
            let spans: Vec<_> = cuts
                .iter()
                .map(|&len| {
                    at += len;
                    *from.span(at - len, len).unwrap()
                })
                .collect();
            for source in [Source::Spans(&spans), Source::Bytes(&text)] {
                assert_eq!((source.len(), source.is_empty()), (40, false));
                let mut out = vec![0];
                source.append_to(&mut out).unwrap();
                assert_eq!(out[1..], text);
                assert_eq!(source.read::<40>().unwrap().unwrap()[..], text);
                assert_eq!(source.read::<8>(), Ok(None));
                let to = Buffer::zeroed(64);
                let pieces = [(50, 5), (0, 0), (8, 30), (40, 9)];
                let pieces = pieces.map(|(at, len)| to.span(at, len).unwrap());
                source.write_to(&pieces).unwrap();
                let mut got = Vec::new();
                pieces.iter().for_each(|piece| piece.append_to(&mut got).unwrap());
                assert_eq!((&got[..40], &got[40..]), (&text[..], &[0; 4][..]));
            }
        }
        let short = from.span(0, 8).unwrap();
        let long = [*from.span(10, 9).unwrap()];
        assert_eq!(Source::Spans(&long).write_to(&[short]), Err(AccessError::OutOfBounds));
    }
}
