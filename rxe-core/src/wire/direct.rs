//! Direct transmission: a path that sends each packet immediately, without a batch, by writing it
//! into memory that the receiver or the network interface reads. Used by shared memory between
//! processes of one host and by AF_XDP.

use super::NetHeader;
use super::header_len::pad;
use super::icrc::{self, Prefix};
use crate::mem::{AccessError, Source};
use crate::types::Qpn;

/// Sends single packets directly. A packet that stays on this host has neither pad nor ICRC: memory
/// is not a wire, and a process that could damage the packet could also write a correct ICRC. For a
/// wire, [`write_whole`] creates the packet.
pub trait Direct {
    /// Sends a packet if this path reaches its destination and there is room. `head` contains its
    /// headers from the BTH on. If `count` is greater than 1, sends a coalesced segment of `count`
    /// packets, whose payload must not exceed [`Direct::max_coalesced`].
    ///
    /// # Errors
    /// The payload's memory is not mapped; nothing was sent.
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
        count: u16,
    ) -> Result<Placed, AccessError>;

    /// Returns the maximum payload bytes of a coalesced segment to this queue pair. The result is 0
    /// if the path to it carries no segments. See [`Coalesced`](super::Coalesced).
    fn max_coalesced(&mut self, net: &NetHeader, dest_qp: Qpn) -> usize {
        let _ = (net, dest_qp);
        0
    }
}

/// Returns the bytes of a packet from BTH to ICRC. `head` and `payload` are the lengths of its
/// headers and its payload.
#[inline]
pub fn whole_len(head: usize, payload: usize) -> usize {
    head + payload + pad(payload) + icrc::LEN
}

/// Writes a packet from BTH to ICRC to `packet`. `packet` must have [`whole_len`] bytes and no
/// concurrent reader. The payload is read once, and the ICRC is computed over the copy.
///
/// # Errors
/// The payload's memory is not mapped, or `packet` has another length. `packet` is then invalid.
#[inline]
pub fn write_whole(
    prefix: &Prefix,
    head: &[u8],
    payload: &Source<'_>,
    packet: &mut [u8],
) -> Result<(), AccessError> {
    if packet.len() != whole_len(head.len(), payload.len()) {
        return Err(AccessError::OutOfBounds);
    }
    let (body, icrc) = packet.split_at_mut(packet.len() - icrc::LEN);
    let (headers, rest) = body.split_at_mut(head.len());
    headers.copy_from_slice(head);
    let (bytes, padding) = rest.split_at_mut(payload.len());
    payload.read_to(bytes)?;
    padding.fill(0);
    icrc.copy_from_slice(&prefix.compute(body).to_le_bytes());
    Ok(())
}

/// The outcome of [`Direct::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The packet is sent.
    Sent,
    /// This path does not reach the packet's destination.
    Unsupported,
    /// There is currently no room for the packet.
    NoRoom,
}

#[cfg(test)]
mod tests {
    use super::super::{Bth, Ext, Opcode, emit};
    use super::*;
    use crate::mem::Buffer;
    use crate::types::{Psn, Qpn};

    #[test]
    fn a_packet_in_place_is_that_which_a_batch_has() {
        let net = NetHeader::outgoing([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc001);
        let prefix = Prefix::new(&net);
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::from_wire(0x01_0002), Psn::new(7));
        for len in [0usize, 1, 2, 3, 4, 1021, 1024] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
            let mut expected = Vec::new();
            emit::packet_from(prefix, &mut expected, &bth, &Ext::default(), &bytes);
            let mut head = Vec::new();
            emit::header(&mut head, &bth, &Ext::default(), len);
            let memory = Buffer::zeroed(len);
            let all = memory.span(0, len as u64).unwrap();
            all.write(&bytes).unwrap();
            // The payload is in two pieces, as with a scatter/gather list.
            let cut = len as u64 / 3;
            let pieces = [(0, cut), (cut, len as u64 - cut)];
            let pieces = pieces.map(|(at, len)| *memory.span(at, len).unwrap());
            for payload in [Source::Bytes(&bytes), Source::Spans(&pieces)] {
                let mut packet = vec![0xee; whole_len(head.len(), len)];
                write_whole(&prefix, &head, &payload, &mut packet).unwrap();
                assert_eq!(packet, expected, "{len} bytes");
                packet.push(0);
                assert!(write_whole(&prefix, &head, &payload, &mut packet).is_err());
            }
        }
    }
}
