//! A way out that takes each packet at once, into memory that the receiver or the network interface
//! reads, without a batch between: shared memory between processes of one host, and frames of AF_XDP.

use super::NetHeader;
use super::header_len::pad;
use super::icrc::{self, Prefix};
use crate::mem::{AccessError, Source};
use crate::types::Qpn;

/// Sends single packets at once. One that stays on this host has neither pad nor ICRC: memory is no wire, and
/// whoever could damage it could as well write a right ICRC. For a wire, [`write_whole`] makes the packet.
pub trait Direct {
    /// Sends a packet with these headers, from the BTH on, if this is the way to its destination, and there is room; or
    /// a coalesced segment of `count` packets, of no more payload than [`Direct::max_coalesced`] says.
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

    /// How many bytes of payload a coalesced segment to this queue pair may have ([`Coalesced`](super::Coalesced)); 0
    /// if the way there carries none.
    fn max_coalesced(&mut self, net: &NetHeader, dest_qp: Qpn) -> usize {
        let _ = (net, dest_qp);
        0
    }
}

/// Bytes from BTH to ICRC of a packet with `head` bytes of headers and `payload` bytes of payload.
#[inline]
pub fn whole_len(head: usize, payload: usize) -> usize {
    head + payload + pad(payload) + icrc::LEN
}

/// Writes a packet from BTH to ICRC to `packet`, which has [`whole_len`] bytes and which nobody else reads
/// meanwhile. The payload is read once, and the ICRC is that of the copy.
///
/// # Errors
/// The payload's memory is not mapped, or `packet` has another length; there is no packet then.
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

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// It is sent.
    Sent,
    /// Its destination is reached in another way.
    Unsupported,
    /// There is no room for it now.
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
            // In two pieces, as a list of scatter/gather entries has them.
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
