//! Scatter/gather lists, which describe the bytes of a message as pieces of regions. IBTA 10.6.6.

use smallvec::SmallVec;

use super::{Access, AccessError, MemoryGuard, PdId, Span, WritableSpan};
use crate::types::Key;

/// A scatter/gather element: bytes of one registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// The address of the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub length: u32,
    /// The local key of the region.
    pub lkey: Key,
}

/// A scatter/gather list. Up to two elements, the usual case, are stored without allocation.
pub type SgeList = SmallVec<[Sge; 2]>;

/// The pieces of registered memory that hold some bytes of a message, in order.
pub(crate) type Spans<S> = SmallVec<[S; 2]>;

impl MemoryGuard<'_> {
    /// Checks that every element of the list permits the access `need`. The key of an empty element
    /// is not checked.
    ///
    /// # Errors
    /// Returns the error of the first element that does not permit the access.
    pub fn check_list(&self, pd: PdId, list: &[Sge], need: Access) -> Result<(), AccessError> {
        self.find_bad(pd, list, need).map_or(Ok(()), |(_, why)| Err(why))
    }

    /// Returns the first element that does not permit the access `need`, and the reason.
    pub fn find_bad(&self, pd: PdId, list: &[Sge], need: Access) -> Option<(Sge, AccessError)> {
        list.iter().filter(|sge| sge.length > 0).find_map(|sge| {
            let span = self.span(pd, sge.lkey, sge.addr, u64::from(sge.length), need);
            span.err().map(|why| (*sge, why))
        })
    }

    /// Returns readable spans of bytes `offset..offset + len` of the message in `list`.
    ///
    /// # Errors
    /// The list is shorter ([`AccessError::OutOfBounds`]), or an element does not permit the
    /// access.
    pub(crate) fn gather(
        &self,
        pd: PdId,
        list: &[Sge],
        offset: u64,
        len: usize,
    ) -> Result<Spans<Span<'_>>, AccessError> {
        if let Some((key, addr)) = sole_piece(list, offset, len) {
            let span = self.span(pd, key, addr, len as u64, Access::empty())?;
            debug_assert_eq!(span.len(), len);
            return Ok(Spans::from_buf_and_len([span; 2], 1));
        }
        let mut spans = Spans::new();
        for_each_piece(list, offset, len, |key, addr, len| {
            spans.push(self.span(pd, key, addr, len, Access::empty())?);
            Ok(())
        })?;
        debug_assert_eq!(spans.iter().map(Span::len).sum::<usize>(), len);
        Ok(spans)
    }

    /// Returns writable spans of bytes `offset..offset + len` of the message in `list`.
    ///
    /// # Errors
    /// The list is shorter ([`AccessError::OutOfBounds`]), or an element does not permit the
    /// access.
    pub(crate) fn scatter(
        &self,
        pd: PdId,
        list: &[Sge],
        offset: u64,
        len: usize,
    ) -> Result<Spans<WritableSpan<'_>>, AccessError> {
        if let Some((key, addr)) = sole_piece(list, offset, len) {
            let span = self.writable(pd, key, addr, len as u64, Access::LOCAL_WRITE)?;
            debug_assert_eq!(span.len(), len);
            return Ok(Spans::from_buf_and_len([span; 2], 1));
        }
        let mut spans = Spans::new();
        for_each_piece(list, offset, len, |key, addr, len| {
            spans.push(self.writable(pd, key, addr, len, Access::LOCAL_WRITE)?);
            Ok(())
        })?;
        debug_assert_eq!(spans.iter().map(|span| span.len()).sum::<usize>(), len);
        Ok(spans)
    }
}

/// Returns key and address of a part of a message in a list with one element. This is the usual
/// case.
#[inline]
fn sole_piece(list: &[Sge], offset: u64, len: usize) -> Option<(Key, u64)> {
    let [sge] = list else { return None };
    let fits = len > 0 && offset.checked_add(len as u64)? <= u64::from(sge.length);
    if fits { Some((sge.lkey, sge.addr.checked_add(offset)?)) } else { None }
}

/// Calls `piece` with key, address and length of each piece of a part of the message in `list`. The
/// part is `offset..offset + len`.
#[inline]
fn for_each_piece(
    list: &[Sge],
    offset: u64,
    len: usize,
    mut piece: impl FnMut(Key, u64, u64) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let (mut skip, mut left) = (offset, len as u64);
    for sge in list {
        if left == 0 {
            break;
        }
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            continue;
        }
        let take = left.min(length - skip);
        let addr = sge.addr.checked_add(skip).ok_or(AccessError::OutOfBounds)?;
        debug_assert!(take > 0 && take <= length - skip);
        piece(sge.lkey, addr, take)?;
        skip = 0;
        left -= take;
    }
    if left > 0 { Err(AccessError::OutOfBounds) } else { Ok(()) }
}

/// Appends all bytes of the spans to `out`.
///
/// # Errors
/// Some of the memory is not mapped.
pub(crate) fn append_spans(spans: &[Span<'_>], out: &mut Vec<u8>) -> Result<(), AccessError> {
    spans.iter().try_for_each(|span| span.append_to(out))
}

/// Copies `bytes` into the spans, which must have room for them.
///
/// # Errors
/// Some of the memory is not mapped. Earlier spans have then been written.
pub(crate) fn write_spans(spans: &[WritableSpan<'_>], mut bytes: &[u8]) -> Result<(), AccessError> {
    for span in spans {
        let (head, rest) = bytes.split_at(span.len().min(bytes.len()));
        span.write(head)?;
        bytes = rest;
    }
    debug_assert!(bytes.is_empty(), "{} bytes have no place", bytes.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, Memory};
    use super::*;

    const PD: PdId = PdId(1);

    #[test]
    fn a_message_crosses_elements_and_skips_empty_ones() {
        let memory = Memory::new();
        let buffer = Buffer::zeroed(100);
        let key = memory.register(PD, buffer, 0, Access::LOCAL_WRITE, || 0x900).unwrap();
        let sge = |addr, length| Sge { addr, length, lkey: key };
        let empty = Sge { addr: 7, length: 0, lkey: Key::new(0) };
        let list = [sge(10, 3), empty, sge(50, 4), sge(90, 10)];
        let guard = memory.guard();
        guard.check_list(PD, &list, Access::LOCAL_WRITE).unwrap();
        let spans = guard.scatter(PD, &list, 2, 6).unwrap();
        assert_eq!(spans.iter().map(|span| span.len()).collect::<Vec<_>>(), [1, 4, 1]);
        write_spans(&spans, b"abcdef").unwrap();
        let mut out = Vec::new();
        let spans = guard.gather(PD, &list, 1, 7).unwrap();
        append_spans(&spans, &mut out).unwrap();
        assert_eq!(out, b"\0abcdef");
        let beyond = guard.gather(PD, &list, 10, 8).unwrap_err();
        assert_eq!(beyond, AccessError::OutOfBounds);
        let missing = [sge(95, 6)];
        assert!(guard.check_list(PD, &missing, Access::empty()).is_err());
    }
}
