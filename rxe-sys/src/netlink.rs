//! Queries the kernel's routing tables over netlink (`AF_NETLINK`, `NETLINK_ROUTE`). Lists
//! interfaces and addresses, or looks up one route or neighbour. RFC 3549 section 2.3.2.
//!
//! The queries need no privileges, and neither /sys nor /proc. Lengths in a reply are checked
//! before use; a length that does not fit ends the iteration.

use std::io;

use rustix::io::retry_on_intr;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{recvfrom, send, socket_with};

use crate::CheckedFd;
use crate::may_block;

/// Reads a whole table. `kind` is an `RTM_GET…`, `header` its fixed part.
pub fn dump(kind: u16, header: &[u8]) -> io::Result<Reply> {
    for _ in 0..MAX_ATTEMPTS {
        // If the table changes during a dump, the reply may repeat or lack an entry, so try again.
        if let Some(reply) = exchange(kind, NLM_F_REQUEST | NLM_F_DUMP, header)? {
            return Ok(reply);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "the network set-up changes all the time"))
}

/// Looks up one entry. `kind` is an `RTM_GET…`, `request` its fixed part and attributes.
pub fn get(kind: u16, request: &[u8]) -> io::Result<Reply> {
    exchange(kind, NLM_F_REQUEST, request)?.ok_or_else(|| io::ErrorKind::ResourceBusy.into())
}

/// Changes an entry. `kind` is an `RTM_SET…` or `RTM_NEW…`, `request` its fixed part and
/// attributes.
pub fn set(kind: u16, request: &[u8]) -> io::Result<()> {
    const NLM_F_ACK: u16 = 0x4;
    match exchange(kind, NLM_F_REQUEST | NLM_F_ACK, request) {
        Err(e) if e.raw_os_error() != Some(0) => Err(e),
        _ => Ok(()),
    }
}

/// The kernel's reply to a request.
pub struct Reply {
    /// The messages one after the other, each with its header.
    bytes: Vec<u8>,
}

impl Reply {
    /// Builds a reply from these messages, for tests.
    pub fn from_messages(messages: &[(u16, Vec<u8>)]) -> Self {
        let mut bytes = Vec::new();
        for (kind, body) in messages {
            push_message(&mut bytes, *kind, NLM_F_MULTI, body);
        }
        Self { bytes }
    }

    /// Iterates over the messages in the kernel's order.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        messages(&self.bytes)
    }
}

/// One message of a reply.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The type, such as `RTM_NEWLINK`.
    pub kind: u16,
    flags: u16,
    /// The fixed part and the attributes.
    pub body: &'a [u8],
}

/// Iterates over the messages in a datagram from a netlink socket.
pub fn messages(bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    Messages(bytes)
}

/// Iterates over attributes as type and value. `bytes` begins after the fixed part of a message.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)?;
        let value = rest.get(4..len)?;
        rest = rest.get(align(len)..).unwrap_or_default();
        // The two high bits of the type are flags (nested, network byte order).
        Some((kind & 0x3fff, value))
    })
}

/// Reads the native-endian number at offset `at`, or `None` past the end.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Reads the native-endian number at offset `at`, or `None` past the end.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

const MAX_ATTEMPTS: u32 = 16;
const HEADER: usize = 16;
/// The receive buffer in bytes. The kernel fills at most 32 KiB per datagram of a dump.
const BUFFER: usize = 64 << 10;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_MULTI: u16 = 0x2;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 0x2;
const NLMSG_DONE: u16 = 0x3;

/// Sends a request and collects the reply. Returns `None` if the table changed meanwhile.
fn exchange(kind: u16, flags: u16, header: &[u8]) -> io::Result<Option<Reply>> {
    may_block("asking the kernel's routing tables");
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // Checked, because the program may close all descriptors at this very moment.
    let socket = CheckedFd::new(socket);
    let mut request = Vec::with_capacity(HEADER + header.len());
    push_message(&mut request, kind, flags, header);
    retry_on_intr(|| send(&socket, &request, SendFlags::empty()))?;

    let mut bytes = Vec::new();
    let mut intact = true;
    let mut buffer = vec![0; BUFFER];
    loop {
        let (len, real, from) =
            retry_on_intr(|| recvfrom(&socket, &mut buffer[..], RecvFlags::TRUNC))?;
        let from_kernel =
            from.and_then(|a| SocketAddrNetlink::try_from(a).ok()).is_none_or(|a| a.pid() == 0);
        if !from_kernel {
            continue;
        }
        if real > len {
            return Err(io::Error::other("a netlink message larger than 64 KiB"));
        }
        for message in Messages(&buffer[..len]) {
            intact &= message.flags & NLM_F_DUMP_INTR == 0;
            match message.kind {
                // An error after the first message of a dump is reported in the last message.
                NLMSG_DONE if errno(&message) == 0 => {
                    return Ok(intact.then_some(Reply { bytes }));
                }
                NLMSG_DONE | NLMSG_ERROR => {
                    return Err(io::Error::from_raw_os_error(errno(&message)));
                }
                kind => push_message(&mut bytes, kind, message.flags, message.body),
            }
            if message.flags & NLM_F_MULTI == 0 {
                return Ok(Some(Reply { bytes }));
            }
        }
    }
}

/// Returns the kernel's status of the request: 0 or an error number.
fn errno(message: &Message<'_>) -> i32 {
    u32_at(message.body, 0).unwrap_or(0).cast_signed().wrapping_neg()
}

fn push_message(out: &mut Vec<u8>, kind: u16, flags: u16, body: &[u8]) {
    let len = u32::try_from(HEADER + body.len()).expect("a message of some KiB");
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    // Sequence number and port ID: each socket carries one request, so both may stay 0.
    out.extend([0; 8]);
    out.extend(body);
    out.resize(align(out.len()), 0);
}

/// Rounds up to 4 bytes, the alignment of netlink messages and attributes.
fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let message = Message {
            kind: u16_at(self.0, 4)?,
            flags: u16_at(self.0, 6)?,
            body: self.0.get(HEADER..len)?,
        };
        self.0 = self.0.get(align(len)..).unwrap_or_default();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_lie_end_the_iteration() {
        assert_eq!(Messages(&[0; 16]).count(), 0, "shorter than its own header");
        assert_eq!(Messages(&[0xff; 64]).count(), 0, "longer than the buffer");
        assert_eq!(attributes(&[2, 0, 0, 0]).count(), 0);
        assert_eq!(attributes(&[8, 0, 1, 0, 9]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1, 0, 9]).collect::<Vec<_>>(), [(1, &[9][..])]);
    }

    #[test]
    fn a_table_that_can_not_be_read_is_an_error() {
        const RTM_GETLINK: u16 = 18;
        const IFLA_TARGET_NETNSID: u16 = 46;
        // The kernel finds this error only after the dump has begun.
        let mut request = vec![0; 16];
        for half in [8, IFLA_TARGET_NETNSID] {
            request.extend(half.to_ne_bytes());
        }
        request.extend(9999u32.to_ne_bytes());
        let error = dump(RTM_GETLINK, &request).err().expect("there is no such namespace");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn messages_come_back_as_they_were_put_in() {
        let reply = Reply::from_messages(&[(16, vec![1, 2, 3]), (20, vec![4; 8])]);
        let got: Vec<_> = reply.messages().map(|m| (m.kind, m.body.to_vec())).collect();
        assert_eq!(got, [(16, vec![1, 2, 3]), (20, vec![4; 8])]);
    }
}
