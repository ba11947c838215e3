//! Messages of the communication manager: received ones, and ones to send.

use std::time::Instant;

use rxe_core::cm::mad::{Mad, Message, Recipient};

/// A received message.
#[derive(Clone)]
pub(in super::super) struct Came {
    pub(in super::super) at: Instant,
    pub(in super::super) message: Message,
    pub(in super::super) bytes: Vec<u8>,
}

impl Came {
    pub(super) fn tid(&self) -> u64 {
        Mad::new(&self.bytes).map_or(0, |mad| mad.header().tid)
    }

    /// Returns the local communication ID that the message names; `None` if it names a service.
    pub(super) fn id(&self) -> Option<u32> {
        match Mad::new(&self.bytes)?.recipient()? {
            Recipient::CommId(id) => Some(id),
            Recipient::Service(_) => None,
        }
    }
}

/// A datagram to send, with the Q_Key and a description.
pub(in super::super) struct Letter {
    pub(super) bytes: Vec<u8>,
    pub(super) qkey: u32,
    pub(super) words: String,
}

impl Letter {
    /// Replaces the Q_Key of queue pair 1.
    pub(in super::super) fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = qkey;
        self.note(&format!("Q_Key 0x{qkey:x}"))
    }

    /// Replaces the byte at `at`.
    pub(in super::super) fn byte(mut self, at: usize, value: u8, what: &str) -> Self {
        self.bytes[at] = value;
        self.note(what)
    }

    /// Cuts the datagram to `len` bytes, or extends it with zeros.
    pub(in super::super) fn len(mut self, len: usize) -> Self {
        self.bytes.resize(len, 0);
        self.note(&format!("{len} B"))
    }

    fn note(mut self, note: &str) -> Self {
        self.words += ", ";
        self.words += note;
        self
    }
}
