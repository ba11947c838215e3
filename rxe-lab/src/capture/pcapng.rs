//! The pcapng format: sections of blocks. draft-ietf-opsawg-pcapng.
//!
//! Blocks other than packets and interface descriptions are skipped. If an option does not fit into
//! its block, it and the options after it are ignored; the packet itself is still returned.

use std::time::Duration;

use super::order::Order;
use super::source::Source;
use super::{Direction, Found, LinkType, MAX_FRAME, MAX_INTERFACES, Problem};

pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// The obsolete Packet Block, which the Enhanced Packet Block replaced.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER: u32 = 0x1a2b_3c4d;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const OPT_FLAGS: u16 = 2;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_IF_TSOFFSET: u16 = 14;

/// The length in bytes of a block's type and length fields.
pub(super) const BLOCK_HEADER: usize = 8;
/// The length in bytes of the smallest block: its header and the length at its end.
pub(super) const LEAST_BLOCK: u32 = 12;
/// The most bytes allowed for the options of a packet.
const MAX_OPTIONS: usize = 1 << 20;

/// The section that is being read.
#[derive(Default)]
pub(super) struct Section {
    order: Order,
    interfaces: Vec<Interface>,
}

/// A described interface of the section.
#[derive(Clone, Copy)]
struct Interface {
    link: LinkType,
    /// The most bytes captured per frame; 0 means no limit.
    snaplen: u32,
    ticks_per_second: u64,
    /// Seconds to add to each time.
    offset: i64,
}

impl Section {
    /// Creates a section with one Ethernet interface.
    /// Times are in nanoseconds, and the byte order is this machine's.
    pub(super) fn ethernet() -> Self {
        let (link, ticks_per_second) = (LinkType::ETHERNET, 1_000_000_000);
        let interface = Interface { link, snaplen: 0, ticks_per_second, offset: 0 };
        Self { order: Order::NATIVE, interfaces: vec![interface] }
    }

    /// Finds the next packet; `None` at the end of the file.
    pub(super) fn next(&mut self, source: &mut Source<'_>) -> Result<Option<Found>, Problem> {
        loop {
            if source.fill(1)? == 0 {
                return Ok(None);
            }
            let head = source.need(BLOCK_HEADER)?;
            // The type of a section header is the same number in both byte orders.
            if Order::Little.u32(head, 0) == SECTION_HEADER {
                let magic = Order::Little.u32(source.need(LEAST_BLOCK as usize)?, 8);
                self.order = match magic {
                    BYTE_ORDER => Order::Little,
                    _ if magic.swap_bytes() == BYTE_ORDER => Order::Big,
                    _ => return Err(Problem::ByteOrder),
                };
                self.interfaces.clear();
            }
            let order = self.order;
            let head = source.front(BLOCK_HEADER);
            let (kind, len) = (order.u32(head, 0), order.u32(head, 4));
            if len < LEAST_BLOCK || !len.is_multiple_of(4) {
                return Err(Problem::BlockLength(len));
            }
            let whole = len as usize;
            if !matches!(kind, INTERFACE | PACKET | SIMPLE_PACKET | ENHANCED_PACKET) {
                let missing = source.skip(len.into())?;
                if missing > 0 {
                    let missing = usize::try_from(missing).unwrap_or(whole);
                    return Err(Problem::Ends { there: whole - missing, of: whole });
                }
                continue;
            }
            if whole > MAX_FRAME + MAX_OPTIONS {
                return Err(Problem::TooLong(len.into()));
            }
            let block = source.need(whole)?;
            let end = order.u32(block, whole - 4);
            if end != len {
                return Err(Problem::BlockEnd { start: len, end });
            }
            let body = &block[BLOCK_HEADER..whole - 4];
            if kind == INTERFACE {
                if self.interfaces.len() == MAX_INTERFACES {
                    return Err(Problem::Interfaces);
                }
                self.interfaces.push(Interface::read(order, body));
                source.consume(whole);
                continue;
            }
            return self.packet(kind, body, whole).map(Some);
        }
    }

    /// Finds the frame in a packet block of `whole` bytes. `body` excludes the block's header and trailer.
    pub(super) fn packet(&self, kind: u32, body: &[u8], whole: usize) -> Result<Found, Problem> {
        let order = self.order;
        let interface = match kind {
            SIMPLE_PACKET => 0,
            PACKET => order.u16(body, 0).into(),
            _ => order.u32(body, 0),
        };
        let described = usize::try_from(interface).ok().and_then(|n| self.interfaces.get(n));
        let on = *described.ok_or(Problem::Interface(interface))?;
        let (fixed, len, original_len, ticks) = if kind == SIMPLE_PACKET {
            let original = order.u32(body, 0);
            let snaplen = if on.snaplen == 0 { original } else { on.snaplen };
            (4, original.min(snaplen), original, None)
        } else {
            let ticks = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
            (20, order.u32(body, 12), order.u32(body, 16), Some(ticks))
        };
        let end = fixed + len as usize;
        if end > body.len() {
            return Err(Problem::PacketBlock);
        }
        let (mut direction, mut comments) = (None, Vec::new());
        for (option, value) in options(order, body.get(end.next_multiple_of(4)..)) {
            match option {
                OPT_COMMENT => comments.push(comment(value)),
                OPT_FLAGS => {
                    direction = match order.u32(value, 0) & 0b11 {
                        1 => Some(Direction::Inbound),
                        2 => Some(Direction::Outbound),
                        _ => None,
                    }
                }
                _ => {}
            }
        }
        Ok(Found {
            whole,
            from: BLOCK_HEADER + fixed,
            to: BLOCK_HEADER + end,
            at: ticks.map(|ticks| on.time(ticks)),
            interface,
            link: on.link,
            original_len: original_len as usize,
            direction,
            comments,
        })
    }
}

impl Interface {
    fn read(order: Order, body: &[u8]) -> Self {
        let mut it = Self {
            link: LinkType(order.u16(body, 0)),
            snaplen: order.u32(body, 4),
            ticks_per_second: 1_000_000,
            offset: 0,
        };
        for (option, value) in options(order, body.get(8..)) {
            match (option, value) {
                (OPT_IF_TSRESOL, &[resolution, ..]) => {
                    let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
                    let exponent = u32::from(resolution & 0x7f);
                    it.ticks_per_second = base.checked_pow(exponent).unwrap_or(u64::MAX);
                }
                (OPT_IF_TSOFFSET, _) => it.offset = order.u64(value, 0).cast_signed(),
                _ => {}
            }
        }
        it
    }

    /// Converts a time in ticks to a time since the Unix epoch.
    fn time(&self, ticks: u64) -> Duration {
        let (seconds, rest) = (ticks / self.ticks_per_second, ticks % self.ticks_per_second);
        let nanos = u128::from(rest) * 1_000_000_000 / u128::from(self.ticks_per_second);
        let seconds = seconds.saturating_add_signed(self.offset);
        Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
    }
}

/// Returns the text of a comment.
/// Control characters other than newline and tab become U+FFFD, because they could control a
/// terminal and are not valid XML.
fn comment(bytes: &[u8]) -> String {
    let seen = |c: char| match c {
        '\t' | '\n' => c,
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    String::from_utf8_lossy(bytes).chars().map(seen).collect()
}

/// Returns the options of a block, up to the first one that does not fit.
fn options(order: Order, bytes: Option<&[u8]>) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes.unwrap_or_default();
    std::iter::from_fn(move || {
        let (option, len) = (order.u16(rest, 0), order.u16(rest, 2));
        let end = 4 + usize::from(len);
        if rest.len() < 4 || option == OPT_END {
            return None;
        }
        let value = rest.get(4..end)?;
        rest = rest.get(end.next_multiple_of(4)..).unwrap_or_default();
        Some((option, value))
    })
}
