//! The frames of the control channel between a test process and the agent in its VM.
//!
//! A frame is `kind: u8, id: u32, len: u32` (little endian) and `len` bytes. The id identifies a
//! process started by [`Kind::Run`]; the host chooses it.

use std::io::{self, Read, Write};

/// The maximum payload of a frame in bytes, which a reader must be able to buffer.
pub(crate) const MAX: usize = 1 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Host: start a process; the payload is [`encode_list`] of cwd, the number of `K=V` strings,
    /// those strings, and the arguments.
    Run = 1,
    /// Host: bytes for the standard input of the process.
    Stdin = 2,
    /// Host: the end of the standard input.
    CloseStdin = 3,
    /// Host: send a signal (payload: its name or number) to the process group.
    Kill = 4,
    /// Guest: bytes of standard output.
    Stdout = 5,
    /// Guest: bytes of standard error.
    Stderr = 6,
    /// Guest: the process ended; the payload is an `i32`, 128 + n for signal n.
    Exit = 7,
    /// Guest: the process could not be started; the payload is the reason.
    Refused = 8,
    /// Guest: the agent is running.
    Ready = 9,
}

impl Kind {
    fn from_u8(v: u8) -> Option<Self> {
        use Kind::*;
        [Run, Stdin, CloseStdin, Kill, Stdout, Stderr, Exit, Refused, Ready]
            .into_iter()
            .find(|k| *k as u8 == v)
    }
}

/// A frame that was read.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The kind.
    pub(crate) kind: Kind,
    /// The process that the frame belongs to.
    pub(crate) id: u32,
    /// The payload.
    pub(crate) data: Vec<u8>,
}

/// Reads one frame.
///
/// # Errors
/// The stream ends or contains an invalid frame.
pub(crate) fn read(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0u8; 9];
    from.read_exact(&mut head)?;
    let [kind, a, b, c, d, e, f, g, h] = head;
    let len = u32::from_le_bytes([e, f, g, h]) as usize;
    let kind = Kind::from_u8(kind).filter(|_| len <= MAX);
    let Some(kind) = kind else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a control frame"));
    };
    let mut data = vec![0; len];
    from.read_exact(&mut data)?;
    Ok(Frame { kind, id: u32::from_le_bytes([a, b, c, d]), data })
}

/// Writes one frame in a single call to `write_all`.
///
/// # Errors
/// The payload is larger than [`MAX`] or the stream fails.
pub(crate) fn write(to: &mut impl Write, kind: Kind, id: u32, data: &[u8]) -> io::Result<()> {
    let len = u32::try_from(data.len()).ok().filter(|_| data.len() <= MAX);
    let len = len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "frame too large"))?;
    let mut buf = Vec::with_capacity(9 + data.len());
    buf.push(kind as u8);
    buf.extend_from_slice(&id.to_le_bytes());
    buf.extend_from_slice(&len.to_le_bytes());
    buf.extend_from_slice(data);
    to.write_all(&buf)
}

/// Packs strings, each as a `u32` length and its bytes.
pub(crate) fn encode_list<T: AsRef<[u8]>>(items: &[T]) -> Vec<u8> {
    let mut out = Vec::new();
    for item in items {
        let item = item.as_ref();
        out.extend_from_slice(&u32::try_from(item.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(item);
    }
    out
}

/// Unpacks the output of [`encode_list`]. Returns `None` if the lengths are inconsistent.
pub(crate) fn decode_list(mut data: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    while !data.is_empty() {
        let (len, rest) = data.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*len) as usize;
        let (item, rest) = rest.split_at_checked(len)?;
        out.push(item.to_vec());
        data = rest;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let mut wire = Vec::new();
        write(&mut wire, Kind::Stderr, 7, b"abc").unwrap();
        let f = read(&mut wire.as_slice()).unwrap();
        assert_eq!((f.kind, f.id, f.data.as_slice()), (Kind::Stderr, 7, b"abc".as_slice()));
    }

    #[test]
    fn a_stream_that_holds_no_frame_is_an_error() {
        assert!(read(&mut [0u8; 9].as_slice()).is_err());
        assert!(read(&mut [1, 0, 0, 0, 0, 255, 255, 255, 255].as_slice()).is_err());
    }

    #[test]
    fn lists_keep_empty_strings_and_lying_lengths_are_seen() {
        let items = [b"a".to_vec(), Vec::new(), b"bc".to_vec()];
        let mut data = encode_list(&items);
        assert_eq!(decode_list(&data).unwrap(), items);
        data.pop();
        assert!(decode_list(&data).is_none());
    }
}
