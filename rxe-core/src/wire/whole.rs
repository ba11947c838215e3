//! Packets that were sent through memory, in the form that they would have on a wire.

use super::{Coalesced, Frame, Packet, header_len, icrc};

impl Frame<'_> {
    /// Calls `f` with this frame, or with each of its coalesced packets as on a wire. Coalesced
    /// packets are built in `buf`, with pad and ICRC. For captures and similar uses.
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
            // An invalid packet gets no ICRC: with the pad added here it could otherwise become
            // valid.
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
