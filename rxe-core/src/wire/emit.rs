//! Packets from values: the only way out. IBTA 9.1 and A17.3.

use std::convert::Infallible;

use super::bth::Bth;
use super::header_len::pad;
use super::icrc::{self, Prefix};
use super::opcode::{OpInfo, Opcode};
use super::packet::wire_len;
use super::{Ext, PacketRepr};

/// Bytes from BTH to ICRC of a packet with this opcode and so many bytes of payload: what to tell
/// [`TxBatch::push`](super::TxBatch::push). An opcode that is not in the table counts as a BTH alone.
#[inline]
pub fn len(opcode: Opcode, payload_len: usize) -> usize {
    row(opcode).header_len + payload_len + pad(payload_len) + icrc::LEN
}

/// Bytes from BTH to ICRC of all packets of a coalesced segment ([`Coalesced`](super::Coalesced)) with this opcode.
#[inline]
pub(super) fn train_len(opcode: Opcode, count: u16, payload_len: usize) -> usize {
    wire_len(row(opcode), count, payload_len)
}

/// Appends one packet: BTH, the headers that its opcode names, `payload_len` bytes that `fill`
/// writes (it sees zeros), the pad and the ICRC for `net` (a [`NetHeader`](super::NetHeader), or a
/// [`Prefix`] that was made of one). The pad count in `bth` is set here.
///
/// `ext` must have exactly the headers of the opcode's row; in debug builds this is asserted.
#[inline]
pub fn packet(
    net: impl Into<Prefix>,
    buf: &mut Vec<u8>,
    bth: &Bth,
    ext: &Ext,
    payload_len: usize,
    fill: impl FnOnce(&mut [u8]),
) {
    let Ok(()) = packet_with(net, buf, bth, ext, payload_len, |buf| {
        let payload = buf.len();
        buf.resize(payload + payload_len, 0);
        fill(&mut buf[payload..]);
        Ok::<(), Infallible>(())
    });
}

/// The same, with a payload that `append` puts at the end of the buffer: nothing is zeroed first,
/// and there is room for it. Where it appends fewer bytes than `payload_len`, zeros make up for
/// them, and what is beyond is cut off: either is the caller's mistake.
///
/// # Errors
/// That of `append`. What stands in the buffer behind its old end is no packet then.
#[inline]
pub fn packet_with<E>(
    net: impl Into<Prefix>,
    buf: &mut Vec<u8>,
    bth: &Bth,
    ext: &Ext,
    payload_len: usize,
    append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let start = buf.len();
    buf.reserve(len(bth.opcode, payload_len));
    header(buf, bth, ext, payload_len);
    let payload_end = buf.len() + payload_len;
    append(buf)?;
    debug_assert_eq!(buf.len(), payload_end, "a payload of the announced length");
    if buf.len() != payload_end {
        buf.resize(payload_end, 0);
    }
    buf.extend_from_slice(&[0; 3][..pad(payload_len)]);
    net.into().append(buf, start);
    Ok(())
}

/// The same, with a payload that already stands somewhere.
#[inline]
pub fn packet_from(
    net: impl Into<Prefix>,
    buf: &mut Vec<u8>,
    bth: &Bth,
    ext: &Ext,
    payload: &[u8],
) {
    let Ok(()) = packet_with(net, buf, bth, ext, payload.len(), |buf| {
        buf.extend_from_slice(payload);
        Ok::<(), Infallible>(())
    });
}

/// Appends the packet that [`Packet::to_repr`](super::Packet::to_repr) took apart.
#[inline]
pub fn repr(net: impl Into<Prefix>, buf: &mut Vec<u8>, repr: &PacketRepr<'_>) {
    let start = buf.len();
    header(buf, &repr.bth, &repr.ext, repr.payload.len());
    buf.extend_from_slice(repr.payload);
    buf.extend_from_slice(&repr.pad_bytes[..pad(repr.payload.len())]);
    net.into().append(buf, start);
}

/// Appends BTH and extension headers alone.
#[inline]
pub(super) fn header(buf: &mut Vec<u8>, bth: &Bth, ext: &Ext, payload_len: usize) {
    let info = row(bth.opcode);
    debug_assert!(info.has_payload || payload_len == 0, "{} has no payload", info.name);
    #[expect(clippy::cast_possible_truncation, reason = "a pad is 0 to 3 bytes")]
    let bth = Bth { pad: pad(payload_len) as u8, ..*bth };
    buf.extend_from_slice(&bth.emit());
    ext.emit(info, buf);
}

/// The opcode's row; that of a packet with neither headers nor payload for one that has none.
#[inline]
fn row(opcode: Opcode) -> &'static OpInfo {
    debug_assert!(opcode.info().is_some(), "{opcode} is in the table");
    opcode.info().unwrap_or(&super::opcode::BARE)
}

#[cfg(test)]
mod tests;
