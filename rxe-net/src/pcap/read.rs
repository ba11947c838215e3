//! Reads captures: pcap (with microseconds or nanoseconds) and pcapng, in either byte order. Lengths
//! in the file are not trusted.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::write::{
    BYTE_ORDER, Direction, ENHANCED_PACKET, ETHERNET, INTERFACE, OPT_COMMENT, OPT_END,
    OPT_EPB_FLAGS, OPT_IF_TSRESOL, SECTION_HEADER, SIMPLE_PACKET,
};
use crate::NetError;

/// A packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    /// The time since 1970; zero if the file does not say.
    pub at: Duration,
    /// The captured bytes of the Ethernet frame.
    pub frame: Vec<u8>,
    /// Bytes that the frame had on the wire.
    pub original_len: usize,
    /// Its direction, if the file says so.
    pub direction: Option<Direction>,
    /// Its comments.
    pub comments: Vec<String>,
}

/// A capture, whole in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PcapReader {
    packets: Vec<CapturedPacket>,
    truncated: bool,
}

impl PcapReader {
    /// Reads a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, NetError> {
        let path = path.as_ref();
        let file = |source| NetError::File { path: path.display().to_string(), source };
        let bytes = fs::read(path).map_err(file)?;
        Self::parse(&bytes).map_err(|what| file(std::io::Error::other(what)))
    }

    /// Parses the bytes of a file. If the file ends within a packet, returns the packets before it.
    ///
    /// # Errors
    /// The file is no capture of Ethernet frames; the text says why.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let magic = bytes.first_chunk().ok_or("not a capture: too short")?;
        let (swapped, nanos) = match u32::from_ne_bytes(*magic) {
            SECTION_HEADER => return parse_pcapng(bytes),
            0xa1b2_c3d4 => (false, false),
            0xa1b2_3c4d => (false, true),
            0xd4c3_b2a1 => (true, false),
            0x4d3c_b2a1 => (true, true),
            _ => return Err("neither pcap nor pcapng"),
        };
        parse_pcap(Order { swapped }, nanos, bytes)
    }

    /// The packets, in the file's order.
    pub fn packets(&self) -> &[CapturedPacket] {
        &self.packets
    }

    /// Whether the file ends within a packet, as after its writer was killed.
    pub fn truncated(&self) -> bool {
        self.truncated
    }
}

/// The byte order of a file.
#[derive(Clone, Copy)]
struct Order {
    swapped: bool,
}

impl Order {
    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let v = u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?);
        Some(if self.swapped { v.swap_bytes() } else { v })
    }

    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let v = u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?);
        Some(if self.swapped { v.swap_bytes() } else { v })
    }

    fn len(self, bytes: &[u8], at: usize) -> Option<usize> {
        usize::try_from(self.u32(bytes, at)?).ok()
    }
}

fn parse_pcap(order: Order, nanos: bool, bytes: &[u8]) -> Result<PcapReader, &'static str> {
    const FILE_HEADER: usize = 24;
    const PACKET_HEADER: usize = 16;
    let link = order.u32(bytes, 20).ok_or("a pcap file that ends in its header")?;
    // The upper 16 bits are flags.
    if link & 0xffff != u32::from(ETHERNET) {
        return Err("a capture of something else than Ethernet");
    }
    let mut rest = &bytes[FILE_HEADER..];
    let mut reader = PcapReader::default();
    while !rest.is_empty() {
        let packet = || {
            let unit = if nanos { 1 } else { 1000 };
            let seconds = Duration::from_secs(order.u32(rest, 0)?.into());
            let fraction = Duration::from_nanos(u64::from(order.u32(rest, 4)?) * unit);
            let end = PACKET_HEADER.checked_add(order.len(rest, 8)?)?;
            let packet = CapturedPacket {
                at: seconds + fraction,
                frame: rest.get(PACKET_HEADER..end)?.to_vec(),
                original_len: order.len(rest, 12)?,
                direction: None,
                comments: Vec::new(),
            };
            Some((packet, &rest[end..]))
        };
        let Some((packet, after)) = packet() else {
            reader.truncated = true;
            break;
        };
        reader.packets.push(packet);
        rest = after;
    }
    Ok(reader)
}

/// The clock of an interface: nanoseconds per tick, as a fraction.
#[derive(Clone, Copy)]
struct Clock {
    ticks_per_second: u64,
}

impl Clock {
    fn from_resolution(resolution: u8) -> Self {
        let exponent = u32::from(resolution & 0x7f);
        let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
        Self { ticks_per_second: base.checked_pow(exponent).unwrap_or(u64::MAX) }
    }

    fn time(self, ticks: u64) -> Duration {
        let (seconds, rest) = (ticks / self.ticks_per_second, ticks % self.ticks_per_second);
        let nanos = u128::from(rest) * 1_000_000_000 / u128::from(self.ticks_per_second);
        Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }
}

fn parse_pcapng(bytes: &[u8]) -> Result<PcapReader, &'static str> {
    let mut order = Order { swapped: false };
    let mut clocks: Vec<Clock> = Vec::new();
    let mut reader = PcapReader::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        // The type of a section header is the same in both byte orders; its magic tells the order.
        if order.u32(rest, 0) == Some(SECTION_HEADER) {
            order.swapped = match order_magic(rest) {
                Some(BYTE_ORDER) => false,
                Some(m) if m.swap_bytes() == BYTE_ORDER => true,
                _ => return Err("a pcapng section without its magic"),
            };
            clocks.clear();
        }
        let block = || {
            let len = order.len(rest, 4)?;
            let body = rest.get(8..len.checked_sub(4)?)?;
            Some((order.u32(rest, 0)?, body, rest.get(len.next_multiple_of(4)..)?))
        };
        let Some((kind, body, after)) = block() else {
            reader.truncated = true;
            break;
        };
        rest = after;
        let packet = match kind {
            INTERFACE => {
                if order.u16(body, 0) != Some(ETHERNET) {
                    return Err("a capture of something else than Ethernet");
                }
                let resolution = options(order, body.get(8..).unwrap_or_default())
                    .find(|(kind, _)| *kind == OPT_IF_TSRESOL)
                    .and_then(|(_, value)| value.first().copied());
                clocks.push(Clock::from_resolution(resolution.unwrap_or(6)));
                continue;
            }
            ENHANCED_PACKET => enhanced_packet(order, &clocks, body),
            SIMPLE_PACKET => simple_packet(order, body),
            _ => continue,
        };
        reader.packets.push(packet.ok_or("a packet block with wrong lengths")?);
    }
    Ok(reader)
}

fn order_magic(section: &[u8]) -> Option<u32> {
    Order { swapped: false }.u32(section, 8)
}

fn enhanced_packet(order: Order, clocks: &[Clock], body: &[u8]) -> Option<CapturedPacket> {
    let clock = clocks.get(order.len(body, 0)?)?;
    let ticks = u64::from(order.u32(body, 4)?) << 32 | u64::from(order.u32(body, 8)?);
    let (captured, original_len) = (order.len(body, 12)?, order.len(body, 16)?);
    let rest = body.get(20..)?;
    let frame = rest.get(..captured)?.to_vec();
    let (mut direction, mut comments) = (None, Vec::new());
    let after = rest.get(captured.next_multiple_of(4)..).unwrap_or_default();
    for (kind, value) in options(order, after) {
        match kind {
            OPT_COMMENT => comments.push(String::from_utf8_lossy(value).into_owned()),
            OPT_EPB_FLAGS => {
                direction = match order.u32(value, 0)? & 0b11 {
                    1 => Some(Direction::Inbound),
                    2 => Some(Direction::Outbound),
                    _ => None,
                }
            }
            _ => {}
        }
    }
    Some(CapturedPacket { at: clock.time(ticks), frame, original_len, direction, comments })
}

fn simple_packet(order: Order, body: &[u8]) -> Option<CapturedPacket> {
    let original_len = order.len(body, 0)?;
    let rest = body.get(4..)?;
    let frame = rest[..original_len.min(rest.len())].to_vec();
    Some(CapturedPacket {
        at: Duration::ZERO,
        frame,
        original_len,
        direction: None,
        comments: Vec::new(),
    })
}

fn options(order: Order, mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let kind = order.u16(rest, 0).filter(|kind| *kind != OPT_END)?;
        let end = 4 + usize::from(order.u16(rest, 2)?);
        let value = rest.get(4..end)?;
        rest = rest.get(end.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
