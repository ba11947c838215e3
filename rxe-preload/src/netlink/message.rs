//! Netlink messages: parses requests and creates replies.
//! RFC 3549 section 2.3.2 and `linux/netlink.h`.
//!
//! Numbers are in host byte order. Lengths in a request are checked before they are used.

/// The length of a message's header in bytes.
const HEADER: usize = 16;
/// The length of an attribute's header in bytes.
const ATTRIBUTE: usize = 4;
/// The alignment of messages and attributes in bytes.
const ALIGN: usize = 4;

/// The type of a message that reports the failure or the completion of a request.
const NLMSG_ERROR: u16 = 2;
/// The type of the message that ends a list.
const NLMSG_DONE: u16 = 3;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_MULTI: u16 = 2;
const NLM_F_ACK: u16 = 4;
/// The flags of a request for a list: `NLM_F_ROOT | NLM_F_MATCH`.
const NLM_F_DUMP: u16 = 0x300;

/// The bits of an attribute's type that are not part of its number (`NLA_TYPE_MASK`).
const NLA_FLAGS: u16 = 0xc000;

/// A netlink request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'m> {
    /// The service and the operation.
    pub(super) kind: u16,
    flags: u16,
    sequence: u32,
    attributes: &'m [u8],
}

impl<'m> Request<'m> {
    /// Returns the requests of a datagram.
    /// The first incomplete message ends them, as in the kernel.
    pub(super) fn all(mut bytes: &'m [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
            let attributes = bytes.get(HEADER..length)?;
            let request = Self {
                kind: u16_at(bytes, 4)?,
                flags: u16_at(bytes, 6)?,
                sequence: u32_at(bytes, 8)?,
                attributes,
            };
            bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
            Some(request)
        })
        .filter(|request| request.flags & NLM_F_REQUEST != 0)
    }

    /// Returns whether the request asks for a list.
    pub(super) fn wants_list(&self) -> bool {
        self.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    fn wants_acknowledgement(&self) -> bool {
        self.flags & NLM_F_ACK != 0
    }

    /// Returns the value of an attribute.
    pub(super) fn get(&self, attribute: u16) -> Option<&'m [u8]> {
        find(self.attributes, attribute)
    }

    /// Returns the value of an attribute of 4 bytes.
    pub(super) fn u32(&self, attribute: u16) -> Option<u32> {
        u32_at(self.get(attribute)?, 0)
    }

    /// Returns the value of an attribute that is text.
    pub(super) fn text(&self, attribute: u16) -> Option<&'m str> {
        let value = self.get(attribute)?;
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        std::str::from_utf8(&value[..end]).ok()
    }

    /// Returns the datagrams of the reply: the messages or an errno, and the message that ends
    /// them.
    pub(super) fn reply(&self, port: u32, answer: Result<Vec<Attributes>, i32>) -> Vec<Vec<u8>> {
        let list = self.wants_list();
        let failed = answer.as_ref().err().copied();
        let flags = if list { NLM_F_MULTI } else { 0 };
        let messages = answer.unwrap_or_default();
        let mut datagrams: Vec<_> =
            messages.iter().map(|body| self.message(self.kind, flags, port, &body.0)).collect();
        if list && failed.is_none() {
            datagrams.push(self.message(NLMSG_DONE, NLM_F_MULTI, port, &0i32.to_ne_bytes()));
        } else if failed.is_some() || self.wants_acknowledgement() {
            // The negated errno, or 0 for success, and the header of the request.
            let mut body = (-failed.unwrap_or(0)).to_ne_bytes().to_vec();
            let length = u32::try_from(HEADER + self.attributes.len()).unwrap_or(u32::MAX);
            body.extend(header(length, self.kind, self.flags, self.sequence, port));
            datagrams.push(self.message(NLMSG_ERROR, 0, port, &body));
        }
        datagrams
    }

    /// Returns the request as it is forwarded to the kernel.
    /// A flag makes the kernel mark the end of its answer.
    pub(super) fn to_kernel(self) -> Vec<u8> {
        let flags = if self.wants_list() { self.flags } else { self.flags | NLM_F_ACK };
        let length = u32::try_from(HEADER + self.attributes.len()).unwrap_or(u32::MAX);
        let mut message = header(length, self.kind, flags, self.sequence, 0).to_vec();
        message.extend(self.attributes);
        message
    }

    fn message(&self, kind: u16, flags: u16, port: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
        let mut message = header(length, kind, flags, self.sequence, port).to_vec();
        message.extend(body);
        message
    }
}

/// A part of the kernel's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Message(Attributes),
    /// The end of the answer, with an errno or 0.
    End(i32),
}

impl Part {
    /// Returns the parts of a datagram, up to the first incomplete message.
    pub(super) fn all(mut bytes: &[u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
            let body = bytes.get(HEADER..length)?;
            let part = match u16_at(bytes, 4)? {
                // The body begins with the negated errno.
                NLMSG_ERROR | NLMSG_DONE => {
                    Self::End(u32_at(body, 0).map_or(0, |error| error.cast_signed().wrapping_neg()))
                }
                _ => Self::Message(Attributes(body.to_vec())),
            };
            bytes = bytes.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
            Some(part)
        })
    }
}

fn header(length: u32, kind: u16, flags: u16, sequence: u32, port: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..6].copy_from_slice(&kind.to_ne_bytes());
    header[6..8].copy_from_slice(&flags.to_ne_bytes());
    header[8..12].copy_from_slice(&sequence.to_ne_bytes());
    header[12..].copy_from_slice(&port.to_ne_bytes());
    header
}

/// The attributes of a message, or of another attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    /// Appends an attribute. A value that is too long for an attribute is left out.
    fn with(mut self, number: u16, value: &[u8]) -> Self {
        if let Ok(length) = u16::try_from(ATTRIBUTE + value.len()) {
            self.0.extend(length.to_ne_bytes());
            self.0.extend(number.to_ne_bytes());
            self.0.extend(value);
            self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        }
        self
    }

    pub(super) fn u8(self, number: u16, value: u8) -> Self {
        self.with(number, &[value])
    }

    pub(super) fn u32(self, number: u16, value: u32) -> Self {
        self.with(number, &value.to_ne_bytes())
    }

    pub(super) fn u64(self, number: u16, value: u64) -> Self {
        self.with(number, &value.to_ne_bytes())
    }

    pub(super) fn text(self, number: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.with(number, &bytes)
    }

    pub(super) fn bytes(self, number: u16, value: &[u8]) -> Self {
        self.with(number, value)
    }

    pub(super) fn nested(self, number: u16, value: &Self) -> Self {
        self.with(number, &value.0)
    }

    /// Returns the value of an attribute of 4 bytes.
    pub(super) fn get_u32(&self, number: u16) -> Option<u32> {
        u32_at(find(&self.0, number)?, 0)
    }

    /// Returns the length of all attributes in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the value of an attribute in a sequence of attributes.
fn find(mut rest: &[u8], attribute: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(rest, 0)?);
        let (number, value) = (u16_at(rest, 2)? & !NLA_FLAGS, rest.get(ATTRIBUTE..length)?);
        if number == attribute {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(ALIGN)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a request with these flags and attributes.
    fn request(flags: u16, attributes: &Attributes) -> Vec<u8> {
        let length = u32::try_from(HEADER + attributes.len()).unwrap();
        let mut bytes = header(length, 0x1405, flags | NLM_F_REQUEST, 7, 0).to_vec();
        bytes.extend(&attributes.0);
        bytes
    }

    #[test]
    fn requests_are_read_with_their_attributes() {
        let attributes = Attributes::default().u32(1, 9).text(2, "rxe0").u8(3, 1);
        let mut bytes = request(NLM_F_DUMP, &attributes);
        bytes.extend(request(NLM_F_ACK, &Attributes::default()));
        let all: Vec<_> = Request::all(&bytes).collect();
        assert_eq!(all.len(), 2);
        assert_eq!(
            (all[0].u32(1), all[0].text(2), all[0].get(3)),
            (Some(9), Some("rxe0"), Some(&[1][..]))
        );
        assert!(all[0].wants_list() && !all[1].wants_list());
        assert_eq!((all[0].u32(3), all[0].get(4), all[1].get(1)), (None, None, None));
    }

    #[test]
    fn what_is_cut_off_is_no_request() {
        let whole = request(0, &Attributes::default().u32(1, 9).text(2, "a name"));
        for length in 0..whole.len() {
            assert_eq!(Request::all(&whole[..length]).count(), 0, "{length}");
        }
        // An attribute length that is too long, and one of 0, with which the parser would never
        // advance.
        for length in [0xffffu16, 0] {
            let mut bad = whole.clone();
            bad[HEADER..HEADER + 2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(Request::all(&bad).next().unwrap().text(2), None);
        }
    }

    #[test]
    fn a_reply_ends_as_it_was_asked_for() {
        let replies = |flags: u16, answer| {
            let bytes = request(flags, &Attributes::default());
            let request = Request::all(&bytes).next().unwrap();
            let replies = request.reply(5, answer);
            replies
                .iter()
                .map(|reply| (u16_at(reply, 4).unwrap(), i32_at(reply)))
                .collect::<Vec<_>>()
        };
        let i32_body = |value: i32| Some(value);
        let one = || Ok(vec![Attributes::default().u32(1, 9)]);
        let header = i32::from_ne_bytes([8, 0, 1, 0]);
        assert_eq!(replies(0, one()), [(0x1405, Some(header))]);
        assert_eq!(replies(NLM_F_ACK, one()), [(0x1405, Some(header)), (NLMSG_ERROR, i32_body(0))]);
        assert_eq!(
            replies(NLM_F_ACK | NLM_F_DUMP, one()),
            [(0x1405, Some(header)), (NLMSG_DONE, i32_body(0))]
        );
        assert_eq!(replies(NLM_F_DUMP, Err(22)), [(NLMSG_ERROR, i32_body(-22))]);
    }

    #[test]
    fn an_answer_of_the_kernel_is_taken_apart() {
        let list = request(NLM_F_DUMP, &Attributes::default().u32(1, 9));
        let asked = Request::all(&list).next().unwrap();
        assert_eq!(asked.to_kernel(), list);
        let one = request(0, &Attributes::default().u32(1, 9));
        let asked = Request::all(&one).next().unwrap();
        let handed_on = asked.to_kernel();
        assert_eq!(u16_at(&handed_on, 6), Some(NLM_F_REQUEST | NLM_F_ACK));
        assert_eq!(handed_on[8..], one[8..]);

        let body = Attributes::default().u32(1, 9).text(2, "rxe0");
        let mut bytes = asked.message(0x1405, NLM_F_MULTI, 5, &body.0);
        bytes.extend(asked.message(0x1405, NLM_F_MULTI, 5, &[]));
        bytes.extend(asked.message(NLMSG_DONE, NLM_F_MULTI, 5, &0i32.to_ne_bytes()));
        let parts: Vec<_> = Part::all(&bytes).collect();
        let empty = Part::Message(Attributes::default());
        assert_eq!(parts, [Part::Message(body), empty, Part::End(0)]);
        let refused = asked.message(NLMSG_ERROR, 0, 5, &(-22i32).to_ne_bytes());
        assert_eq!(Part::all(&refused).collect::<Vec<_>>(), [Part::End(22)]);
        for length in 0..refused.len() {
            assert_eq!(Part::all(&refused[..length]).count(), 0, "{length}");
        }
    }

    fn i32_at(message: &[u8]) -> Option<i32> {
        Some(i32::from_ne_bytes(*message.get(HEADER..)?.first_chunk()?))
    }
}
