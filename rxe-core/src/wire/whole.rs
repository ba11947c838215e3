//! Packets that were on no wire, as they would have been on one.

use super::{Coalesced, Frame, Packet, header_len, icrc};

impl Frame<'_> {
    /// Calls `f` with this frame; or, if its packets stand apart, with each of them as it would have been
    /// on a wire, with pad and ICRC, made in `buf`. For captures and the like.
    pub fn for_each_whole(&self, buf: &mut Vec<u8>, f: &mut dyn FnMut(&Frame<'_>)) {
        if self.coalesced.is_empty() {
            return f(self);
        }
        let mut one = |packet: Coalesced<'_>| {
            let payload = packet.payload;
            buf.clear();
            buf.extend_from_slice(packet.head());
            if payload.append_to(buf).is_err() {
                return;
            }
            let pad = header_len::pad(payload.len());
            buf.extend_from_slice(&[0; 3][..pad]);
            // What is no packet has no ICRC either: else it might be one with the pad that it gets here.
            if Packet::parse_coalesced(&packet).is_ok() {
                icrc::append(&self.net, buf, 0);
            }
            f(&Frame::single(self.net, buf));
        };
        for coalesced in self.coalesced {
            coalesced.packets().for_each(&mut one);
        }
    }
}
