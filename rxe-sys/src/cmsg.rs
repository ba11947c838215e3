//! Control messages: the ancillary data of a datagram, written and read without `unsafe`.
//!
//! Layout (cmsg(3)): the length as a `size_t`, level and type as `int`, then the data. Each message
//! begins at a multiple of the size of a `size_t`.

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;

const fn align(n: usize) -> usize {
    n.next_multiple_of(WORD)
}

/// A buffer of control messages, to send with a datagram or as received with one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Control {
    bytes: [u8; Control::CAPACITY],
    len: usize,
}

impl Control {
    /// The size of the buffer in bytes: six messages with up to 8 bytes of data each.
    pub const CAPACITY: usize = 6 * (HEADER + 8);
    /// A buffer without messages.
    pub const EMPTY: Self = Self { bytes: [0; Self::CAPACITY], len: 0 };

    /// Appends a message.
    ///
    /// # Panics
    /// If the buffer has no room for the message.
    pub fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let len = HEADER + data.len();
        let b = &mut self.bytes[self.len..][..align(len)];
        b[..WORD].copy_from_slice(&len.to_ne_bytes());
        b[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        b[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        b[HEADER..len].copy_from_slice(data);
        self.len += align(len);
    }

    /// Copies the control messages that the kernel wrote; those beyond the capacity are cut off.
    pub fn received(from: &[u8]) -> Self {
        let mut control = Self::EMPTY;
        control.len = from.len().min(Self::CAPACITY);
        control.bytes[..control.len].copy_from_slice(&from[..control.len]);
        control
    }

    /// Returns the messages in the kernel's layout.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A control message that came with a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The protocol level, such as `SOL_UDP`.
    pub level: libc::c_int,
    /// The type of the message within its protocol.
    pub kind: libc::c_int,
    /// The data after the header.
    pub data: &'a [u8],
}

impl Message<'_> {
    /// Returns the data as an `int`, the type of most options. A single byte is converted; no data
    /// is 0.
    pub fn int(&self) -> u32 {
        match *self.data {
            [a, b, c, d, ..] => u32::from_ne_bytes([a, b, c, d]),
            [a, ..] => a.into(),
            [] => 0,
        }
    }
}

/// Iterates over the control messages in a buffer that the kernel wrote.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_at_checked(HEADER)?;
        let len = usize::from_ne_bytes(head[..WORD].try_into().ok()?);
        let int = |at: usize| Some(libc::c_int::from_ne_bytes(head[at..at + 4].try_into().ok()?));
        let data = rest.get(..len.checked_sub(HEADER)?)?;
        let message = Message { level: int(WORD)?, kind: int(WORD + 4)?, data };
        bytes = bytes.get(align(len)..).unwrap_or_default();
        Some(message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way_there_and_back() {
        let mut control = Control::EMPTY;
        control.push(17, 103, &1024u16.to_ne_bytes());
        control.push(0, 1, &[0x2a]);
        control.push(41, 67, &7u32.to_ne_bytes());
        let got: Vec<_> = messages(control.as_bytes()).map(|m| (m.level, m.kind)).collect();
        assert_eq!(got, [(17, 103), (0, 1), (41, 67)]);
        let ints: Vec<_> = messages(control.as_bytes()).skip(1).map(|m| m.int()).collect();
        assert_eq!(ints, [0x2a, 7]);
    }

    #[test]
    fn lying_lengths_end_the_list() {
        let mut control = Control::EMPTY;
        control.push(1, 2, &[0; 8]);
        for len in [0usize, 1, HEADER - 1, HEADER + 9, usize::MAX] {
            let mut bytes = control.as_bytes().to_vec();
            bytes[..WORD].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "length {len}");
        }
    }
}
