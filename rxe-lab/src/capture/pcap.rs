//! The pcap format: a file header, then packets, each behind a header of 16 bytes.
//! draft-ietf-opsawg-pcap.

use std::time::Duration;

use super::order::Order;
use super::source::Source;
use super::{Found, LinkType, MAX_FRAME, Problem};

const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;

/// The file header.
pub(super) struct Header {
    order: Order,
    /// The unit of the fraction of a packet's time, in nanoseconds.
    unit: u64,
    link: LinkType,
}

impl Header {
    /// Reads the file header.
    pub(super) fn read(source: &mut Source<'_>) -> Result<Self, Problem> {
        source.fill(FILE_HEADER)?;
        let head = source.front(FILE_HEADER);
        let (order, unit) = match Order::Little.u32(head, 0) {
            0xa1b2_c3d4 => (Order::Little, 1000),
            0xa1b2_3c4d => (Order::Little, 1),
            0xd4c3_b2a1 => (Order::Big, 1000),
            0x4d3c_b2a1 => (Order::Big, 1),
            _ => return Err(Problem::not_a_capture(head)),
        };
        // The upper 16 bits of the link type are flags.
        let link = LinkType((order.u32(source.need(FILE_HEADER)?, 20) & 0xffff) as u16);
        source.consume(FILE_HEADER);
        Ok(Self { order, unit, link })
    }

    /// Finds the next packet; `None` at the end of the file.
    pub(super) fn next(&self, source: &mut Source<'_>) -> Result<Option<Found>, Problem> {
        if source.fill(1)? == 0 {
            return Ok(None);
        }
        let head = source.need(PACKET_HEADER)?;
        let word = |at| self.order.u32(head, at);
        let at = Duration::from_secs(word(0).into())
            + Duration::from_nanos(u64::from(word(4)) * self.unit);
        let (len, original_len) = (word(8) as usize, word(12) as usize);
        if len > MAX_FRAME {
            return Err(Problem::TooLong(len as u64));
        }
        let whole = PACKET_HEADER + len;
        source.need(whole)?;
        Ok(Some(Found {
            whole,
            from: PACKET_HEADER,
            to: whole,
            at: Some(at),
            interface: 0,
            link: self.link,
            original_len,
            direction: None,
            comments: Vec::new(),
        }))
    }
}
