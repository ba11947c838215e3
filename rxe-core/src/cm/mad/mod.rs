//! Management datagrams of the communication management class: 256 bytes that are sent between the
//! queue pairs 1. IBTA 13.4.2 (the header) and 12.6 to 12.11 (the messages).
//!
//! [`Mad`] is a view; its length is checked once, at its creation. [`Message`] and [`MadHeader`]
//! are plain values. Reserved bits are ignored when received, and sent as zero.

mod bits;
mod layout;
mod messages;

pub use messages::{
    Apr, Drep, Dreq, Lap, Mra, Path, Rej, RejReason, Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus,
    Subject,
};

use layout::Block;

/// The length of a management datagram in bytes.
pub const LEN: usize = 256;

/// The length of its header in bytes.
const HEADER_LEN: usize = 24;

/// The header of a management datagram. IBTA 13.4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// The base version: always 1.
    pub base_version: u8,
    /// The management class: 7 for communication management.
    pub mgmt_class: u8,
    /// The class version: 2 for communication management.
    pub class_version: u8,
    /// The method: 3 (Send) for communication management.
    pub method: u8,
    /// The status: 0 in requests.
    pub status: u16,
    /// The transaction ID. An answer carries the ID of its request.
    pub tid: u64,
    /// The attribute ID, which identifies the message.
    pub attr_id: u16,
    /// The attribute modifier.
    pub attr_mod: u32,
}

impl MadHeader {
    /// Creates the header of a communication management message.
    pub const fn cm(attr_id: u16, tid: u64) -> Self {
        Self {
            base_version: 1,
            mgmt_class: CLASS,
            class_version: CLASS_VERSION,
            method: SEND,
            status: 0,
            tid,
            attr_id,
            attr_mod: 0,
        }
    }
}

/// The management class of communication management.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// The only method of the communication management class.
const SEND: u8 = 0x03;

/// A received management datagram.
#[derive(Clone, Copy, Debug)]
pub struct Mad<'a>(&'a [u8; LEN]);

impl<'a> Mad<'a> {
    /// Creates a view of these bytes. Returns `None` if their number is not 256.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Creates a view of these bytes.
    pub const fn from_array(bytes: &'a [u8; LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the header.
    pub fn header(&self) -> MadHeader {
        let field = |at, width| bits::get(self.0, at, 0, width);
        MadHeader {
            base_version: self.0[0],
            mgmt_class: self.0[1],
            class_version: self.0[2],
            method: self.0[3],
            status: layout::Field::from_bits(field(4, 16)),
            tid: field(8, 64),
            attr_id: layout::Field::from_bits(field(16, 16)),
            attr_mod: layout::Field::from_bits(field(20, 32)),
        }
    }

    /// Parses the message. Returns `None` for other management classes, versions and methods.
    pub fn message(&self) -> Option<Message> {
        let header = self.header();
        let ours = header.base_version == 1
            && header.mgmt_class == CLASS
            && header.class_version == CLASS_VERSION
            && header.method == SEND;
        if ours { Message::parse(header.attr_id, &self.0[HEADER_LEN..]) } else { None }
    }

    /// Returns the recipient of the message. Reads only the fields that identify it.
    pub fn recipient(&self) -> Option<Recipient> {
        let word = |at| layout::Field::from_bits(bits::get(self.0, HEADER_LEN + at, 0, 32));
        let service = |at| bits::get(self.0, HEADER_LEN + at, 0, 64);
        Some(match self.header() {
            MadHeader { mgmt_class, .. } if mgmt_class != CLASS => return None,
            MadHeader { attr_id: Message::REQ | Message::SIDR_REQ, .. } => {
                Recipient::Service(service(8))
            }
            MadHeader { attr_id: Message::SIDR_REP, .. } => Recipient::CommId(word(0)),
            MadHeader { attr_id: Message::MRA..=Message::APR, .. } => Recipient::CommId(word(4)),
            _ => return None,
        })
    }
}

/// The recipient of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipient {
    /// The listener on this service ID.
    Service(u64),
    /// The owner of this communication ID or SIDR request ID.
    CommId(u32),
}

macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident($body:ty) $id:ident = $number:literal,)*) => {
        /// A message of communication management.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$meta])* $name($body),)*
        }

        impl Message {
            $(#[doc = concat!("The attribute ID of a ", stringify!($name), ".")]
            pub const $id: u16 = $number;)*

            /// Parses the message with this attribute ID from the bytes after the header.
            fn parse(attr_id: u16, body: &[u8]) -> Option<Self> {
                Some(match attr_id {
                    $(Self::$id => Self::$name(Block::read(body, 0)),)*
                    _ => return None,
                })
            }

            /// Returns the attribute ID.
            pub const fn attr_id(&self) -> u16 {
                match self {
                    $(Self::$name(_) => Self::$id,)*
                }
            }

            /// Returns the name of the message in the specification.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($id),)*
                }
            }

            /// Returns the whole datagram.
            pub fn emit(&self, tid: u64) -> [u8; LEN] {
                let mut mad = [0; LEN];
                let header = MadHeader::cm(self.attr_id(), tid);
                mad[..4].copy_from_slice(&[
                    header.base_version,
                    header.mgmt_class,
                    header.class_version,
                    header.method,
                ]);
                bits::put(&mut mad, 8, 0, 64, header.tid);
                bits::put(&mut mad, 16, 0, 16, u64::from(header.attr_id));
                match self {
                    $(Self::$name(body) => body.write(&mut mad, HEADER_LEN),)*
                }
                mad
            }
        }
    };
}

messages! {
    /// Requests a connection.
    Req(Req) REQ = 0x0010,
    /// Requests more time to answer.
    Mra(Mra) MRA = 0x0011,
    /// Refuses or abandons a connection.
    Rej(Rej) REJ = 0x0012,
    /// Accepts a connection.
    Rep(Rep) REP = 0x0013,
    /// Reports that the sender is ready; the connection is established.
    Rtu(Rtu) RTU = 0x0014,
    /// Requests the end of a connection.
    Dreq(Dreq) DREQ = 0x0015,
    /// Answers a DREQ; the connection has ended.
    Drep(Drep) DREP = 0x0016,
    /// Requests the queue pair of a datagram service.
    SidrReq(SidrReq) SIDR_REQ = 0x0017,
    /// Reports the queue pair of a datagram service.
    SidrRep(SidrRep) SIDR_REP = 0x0018,
    /// Proposes an alternate path.
    Lap(Lap) LAP = 0x0019,
    /// Answers a LAP.
    Apr(Apr) APR = 0x001a,
}

#[cfg(test)]
mod tests;
