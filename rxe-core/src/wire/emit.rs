//! Creates packets from values. Every sent packet passes through here. IBTA 9.1 and A17.3.

use std::convert::Infallible;

use super::bth::Bth;
use super::header_len::pad;
use super::icrc::{self, Prefix};
use super::opcode::{OpInfo, Opcode};
use super::packet::wire_len;
use super::{Ext, PacketRepr};

/// Returns the bytes from BTH to ICRC of a packet with this opcode. The result is the argument for
/// [`TxBatch::push`](super::TxBatch::push). An opcode that is not in the table counts as a BTH
/// alone.
#[inline]
pub fn len(opcode: Opcode, payload_len: usize) -> usize {
    row(opcode).header_len + payload_len + pad(payload_len) + icrc::LEN
}

/// Returns the bytes from BTH to ICRC of all packets of a coalesced segment. See
/// [`Coalesced`](super::Coalesced).
#[inline]
pub(super) fn train_len(opcode: Opcode, count: u16, payload_len: usize) -> usize {
    wire_len(row(opcode), count, payload_len)
}

/// Appends one packet: BTH, the headers that its opcode names, `payload_len` bytes that `fill`
/// writes (over zeros), the pad and the ICRC for `net` (a [`NetHeader`](super::NetHeader), or a
/// [`Prefix`] made from one). The pad count in `bth` is set here.
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

/// Like [`packet`], but `append` appends the payload to the buffer. The buffer has room for it and
/// is not zeroed first. If `append` does not append `payload_len` bytes, which is a mistake of the
/// caller, the payload is filled with zeros or truncated.
///
/// # Errors
/// The error of `append`. The bytes after the old end of the buffer are then not a packet.
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

/// Like [`packet`], with a payload that exists in memory.
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

/// Appends a packet that [`Packet::to_repr`](super::Packet::to_repr) returned.
#[inline]
pub fn repr(net: impl Into<Prefix>, buf: &mut Vec<u8>, repr: &PacketRepr<'_>) {
    let start = buf.len();
    header(buf, &repr.bth, &repr.ext, repr.payload.len());
    buf.extend_from_slice(repr.payload);
    buf.extend_from_slice(&repr.pad_bytes[..pad(repr.payload.len())]);
    net.into().append(buf, start);
}

/// Appends only BTH and extension headers.
#[inline]
pub(super) fn header(buf: &mut Vec<u8>, bth: &Bth, ext: &Ext, payload_len: usize) {
    let info = row(bth.opcode);
    debug_assert!(info.has_payload || payload_len == 0, "{} has no payload", info.name);
    #[expect(clippy::cast_possible_truncation, reason = "a pad is 0 to 3 bytes")]
    let bth = Bth { pad: pad(payload_len) as u8, ..*bth };
    buf.extend_from_slice(&bth.emit());
    ext.emit(info, buf);
}

/// Returns the opcode's row, or a row without headers and payload for an unknown opcode.
#[inline]
fn row(opcode: Opcode) -> &'static OpInfo {
    debug_assert!(opcode.info().is_some(), "{opcode} is in the table");
    opcode.info().unwrap_or(&super::opcode::BARE)
}

#[cfg(test)]
mod tests;
