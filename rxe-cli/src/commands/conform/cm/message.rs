//! A message of the communication manager: one that has come, and one to be sent.

use std::time::Instant;

use rxe_core::cm::mad::{Mad, Message, Recipient};

/// A message that has come.
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

    /// The own communication ID that it names; `None` of one that names a service.
    pub(super) fn id(&self) -> Option<u32> {
        match Mad::new(&self.bytes)?.recipient()? {
            Recipient::CommId(id) => Some(id),
            Recipient::Service(_) => None,
        }
    }
}

/// A datagram to be sent.
pub(in super::super) struct Letter {
    pub(super) bytes: Vec<u8>,
    pub(super) qkey: u32,
    pub(super) words: String,
}

impl Letter {
    /// With another Q_Key than that of queue pair 1.
    pub(in super::super) fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = qkey;
        self.note(&format!("Q_Key 0x{qkey:x}"))
    }

    /// With another byte at `at` of the datagram.
    pub(in super::super) fn byte(mut self, at: usize, value: u8, what: &str) -> Self {
        self.bytes[at] = value;
        self.note(what)
    }

    /// Its first `len` bytes only, or zeros behind it.
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
