//! Splits a coalesced segment ([`Coalesced`]) into its packets.

use super::{Bth, Coalesced, Ext, Packet, emit};

impl<'a> Coalesced<'a> {
    /// Returns each packet by itself, or an invalid segment unchanged.
    pub fn packets(&self) -> impl Iterator<Item = Self> + use<'a> {
        let all = *self;
        let is_coalesced = all.count() > 1 && Packet::parse_coalesced(&all).is_ok();
        let count = if is_coalesced { all.count() } else { 1 };
        (0..count).filter_map(move |index| if is_coalesced { all.nth(index) } else { Some(all) })
    }

    fn nth(&self, index: u16) -> Option<Self> {
        let coalesced = Packet::parse_coalesced(self).ok()?;
        let position = coalesced.info().position.of_one(index.into(), self.count().into());
        let opcode = coalesced.opcode().at(position)?;
        let (info, all) = (opcode.info()?, coalesced.ext());
        let ext = Ext {
            reth: all.reth.filter(|_| info.has_reth),
            // A READ response has an AETH in its first and in its last packet.
            aeth: all.aeth.filter(|_| info.has_aeth),
            imm: all.imm.filter(|_| info.has_imm),
            ieth: all.ieth.filter(|_| info.has_ieth),
            xrc_srq: all.xrc_srq,
            ..Ext::default()
        };
        let last = index + 1 == self.count();
        let bth = coalesced.bth();
        let bth = Bth {
            opcode,
            psn: bth.psn.add(index.into()),
            ack_req: bth.ack_req && last,
            solicited: bth.solicited && last,
            ..bth
        };
        let start = usize::from(index) * coalesced.payload_len();
        let len = coalesced.payload_len().min(self.payload.len() - start);
        let payload = self.payload.part(start, len)?;
        let mut head = Vec::with_capacity(Self::MAX_HEAD);
        emit::header(&mut head, &bth, &ext, len);
        Self::new(&head, payload)
    }
}
