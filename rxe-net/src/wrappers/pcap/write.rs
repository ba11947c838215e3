//! Writes the blocks of a pcapng file (draft-ietf-opsawg-pcapng). They have the machine's byte
//! order and times in nanoseconds.

use std::io::{self, Write};
use std::time::Duration;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const OPT_EPB_FLAGS: u16 = 2;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_SHB_USERAPPL: u16 = 4;
const OPT_IF_NAME: u16 = 2;
const OPT_IF_DESCRIPTION: u16 = 3;
const OPT_ISB_OSDROP: u16 = 7;

/// The maximum capacity in bytes that [`PcapWriter::take`] allocates in advance for the next
/// blocks.
const MAX_ROOM: usize = 80 << 10;

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The packet arrived.
    Inbound,
    /// The packet was sent.
    Outbound,
}

/// A packet to write.
#[derive(Clone, Copy, Debug)]
pub struct PacketBlock<'a> {
    /// The time since 1970.
    pub at: Duration,
    /// The index of the interface, counted from 0 in the order of [`PcapWriter::add_interface`].
    pub interface: u32,
    /// The direction of the packet.
    pub direction: Direction,
    /// The whole Ethernet frame.
    pub frame: &'a [u8],
    /// The comments on the packet; each may have several lines.
    pub comments: &'a [String],
}

/// Writes a capture of Ethernet interfaces, block by block.
#[derive(Debug)]
pub struct PcapWriter<W> {
    out: W,
    block: Vec<u8>,
    written: u64,
}

impl<W: Write> PcapWriter<W> {
    /// Starts a capture of the interface `name`.
    ///
    /// # Errors
    /// Fails if writing to `out` fails.
    pub fn new(out: W, name: &str) -> io::Result<Self> {
        let mut writer = Self::without_interfaces(out)?;
        writer.add_interface(name, "")?;
        Ok(writer)
    }

    /// Continues a capture whose first blocks are written elsewhere.
    pub(super) fn continued(out: W) -> Self {
        Self { out, block: Vec::new(), written: 0 }
    }

    /// Starts a capture. Add each interface before its first packet.
    ///
    /// # Errors
    /// Fails if writing to `out` fails.
    pub fn without_interfaces(out: W) -> io::Result<Self> {
        let mut writer = Self::continued(out);
        writer.write_block(SECTION_HEADER, |b| {
            b.extend(BYTE_ORDER.to_ne_bytes());
            b.extend(1u16.to_ne_bytes());
            b.extend(0u16.to_ne_bytes());
            // The length of the section is unknown.
            b.extend(u64::MAX.to_ne_bytes());
            option(b, OPT_SHB_USERAPPL, concat!("rxe ", env!("CARGO_PKG_VERSION")).as_bytes());
            option(b, OPT_END, &[]);
        })?;
        Ok(writer)
    }

    /// Adds an interface. The description may be empty.
    ///
    /// # Errors
    /// Fails if the inner writer fails.
    pub fn add_interface(&mut self, name: &str, description: &str) -> io::Result<()> {
        self.write_block(INTERFACE, |b| {
            b.extend(ETHERNET.to_ne_bytes());
            b.extend(0u16.to_ne_bytes());
            // No snap length: packets are complete.
            b.extend(0u32.to_ne_bytes());
            option(b, OPT_IF_NAME, name.as_bytes());
            if !description.is_empty() {
                option(b, OPT_IF_DESCRIPTION, description.as_bytes());
            }
            option(b, OPT_IF_TSRESOL, &[9]);
            option(b, OPT_END, &[]);
        })
    }

    /// Appends a packet.
    ///
    /// # Errors
    /// Fails if the inner writer fails or the frame is too long.
    pub fn write(&mut self, packet: &PacketBlock<'_>) -> io::Result<()> {
        self.block.clear();
        let len = packet.append_to(&mut self.block)?;
        self.out.write_all(&self.block)?;
        self.written += u64::from(len);
        Ok(())
    }

    /// Appends the number of packets of an interface that the capture dropped. `at` is the time
    /// since 1970.
    ///
    /// # Errors
    /// Fails if the inner writer fails.
    pub fn write_statistics(
        &mut self,
        interface: u32,
        at: Duration,
        dropped: u64,
    ) -> io::Result<()> {
        self.write_block(INTERFACE_STATISTICS, |b| {
            b.extend(interface.to_ne_bytes());
            time(b, at);
            option(b, OPT_ISB_OSDROP, &dropped.to_ne_bytes());
            option(b, OPT_END, &[]);
        })
    }

    /// Returns the number of bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Flushes the inner writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns the inner writer.
    pub(super) fn get_ref(&self) -> &W {
        &self.out
    }

    /// Returns the inner writer.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn write_block(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.block.clear();
        let len = append_block(&mut self.block, kind, body)?;
        self.out.write_all(&self.block)?;
        self.written += u64::from(len);
        Ok(())
    }
}

impl PcapWriter<Vec<u8>> {
    /// Like [`PcapWriter::write`], but without a copy, since the output is in memory.
    pub(super) fn append(&mut self, packet: &PacketBlock<'_>) -> io::Result<()> {
        self.written += u64::from(packet.append_to(&mut self.out)?);
        Ok(())
    }

    /// Takes the blocks written since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let room = self.out.capacity().min(MAX_ROOM);
        std::mem::replace(&mut self.out, Vec::with_capacity(room))
    }
}

impl PacketBlock<'_> {
    /// Appends the block and returns its length in bytes.
    fn append_to(&self, b: &mut Vec<u8>) -> io::Result<u32> {
        let len = u32::try_from(self.frame.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        append_block(b, ENHANCED_PACKET, |b| {
            b.extend(self.interface.to_ne_bytes());
            time(b, self.at);
            b.extend(len.to_ne_bytes());
            b.extend(len.to_ne_bytes());
            b.extend(self.frame);
            pad(b);
            for comment in self.comments {
                option(b, OPT_COMMENT, comment.as_bytes());
            }
            let flags: u32 = match self.direction {
                Direction::Inbound => 1,
                Direction::Outbound => 2,
            };
            option(b, OPT_EPB_FLAGS, &flags.to_ne_bytes());
            option(b, OPT_END, &[]);
        })
    }
}

/// Appends a block, which begins at a multiple of 4 bytes, and returns its length in bytes.
fn append_block(b: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) -> io::Result<u32> {
    let start = b.len();
    b.extend(kind.to_ne_bytes());
    b.extend([0; 4]);
    body(b);
    let len = u32::try_from(b.len() - start + 4).map_err(|_| io::ErrorKind::InvalidInput)?;
    b[start + 4..start + 8].copy_from_slice(&len.to_ne_bytes());
    b.extend(len.to_ne_bytes());
    Ok(len)
}

/// Appends a time in nanoseconds, the upper half first.
fn time(b: &mut Vec<u8>, at: Duration) {
    let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    for half in [nanos >> 32, nanos & 0xffff_ffff] {
        b.extend(u32::try_from(half).unwrap_or(0).to_ne_bytes());
    }
}

/// Appends an option. A value longer than an option can hold is truncated.
fn option(b: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    b.extend(kind.to_ne_bytes());
    b.extend(len.to_ne_bytes());
    b.extend(&value[..len.into()]);
    pad(b);
}

fn pad(b: &mut Vec<u8>) {
    b.resize(b.len().next_multiple_of(4), 0);
}
