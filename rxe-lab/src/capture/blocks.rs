//! Reads a part of a pcapng file that has neither section header nor interface blocks.
//! A live capture delivers its packets in this form.

use super::order::Order;
use super::pcapng::{BLOCK_HEADER, ENHANCED_PACKET, LEAST_BLOCK, Section};
use super::{Found, Problem, Record};

/// Reads Enhanced Packet Blocks of one Ethernet interface.
/// Times are in nanoseconds, and the byte order is this machine's. Other blocks are skipped.
pub struct Blocks<'b> {
    section: Section,
    rest: &'b [u8],
}

impl<'b> Blocks<'b> {
    /// Reads the blocks in `bytes`.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { section: Section::ethernet(), rest: bytes }
    }

    fn read(&mut self, number: u64) -> Result<Option<Record<'b>>, Problem> {
        let order = Order::NATIVE;
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let (kind, len) = (order.u32(self.rest, 0), order.u32(self.rest, 4));
            let whole = len as usize;
            if len < LEAST_BLOCK || !len.is_multiple_of(4) {
                return Err(Problem::BlockLength(len));
            }
            let there = self.rest.len();
            let Some((block, rest)) = self.rest.split_at_checked(whole) else {
                return Err(Problem::Ends { there, of: whole });
            };
            let end = order.u32(block, whole - 4);
            if end != len {
                return Err(Problem::BlockEnd { start: len, end });
            }
            self.rest = rest;
            if kind != ENHANCED_PACKET {
                continue;
            }
            let found = self.section.packet(kind, &block[BLOCK_HEADER..whole - 4], whole)?;
            let Found { from, to, at, interface, link, original_len, direction, comments, .. } =
                found;
            let bytes = block.get(from..to).unwrap_or_default();
            let original_len = original_len.max(bytes.len());
            let record =
                Record { number, at, interface, link, bytes, original_len, direction, comments };
            return Ok(Some(record));
        }
    }

    /// Returns the next packet and gives it this number; `None` at the end.
    ///
    /// # Errors
    /// Fails if the bytes are not whole, valid blocks.
    /// All earlier packets were returned; the following calls return `None`.
    pub fn next(&mut self, number: u64) -> Result<Option<Record<'b>>, Problem> {
        let read = self.read(number);
        if read.is_err() {
            self.rest = &[];
        }
        read
    }
}
