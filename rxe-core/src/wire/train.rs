//! The packets of a train ([`Apart`]), one by one.

use super::{Apart, Bth, Ext, Packet, emit};

impl<'a> Apart<'a> {
    /// Each packet by itself; what is no train of right form, as it is.
    pub fn packets(&self) -> impl Iterator<Item = Self> + use<'a> {
        let all = *self;
        let is_train = all.count() > 1 && Packet::parse_apart(&all).is_ok();
        let count = if is_train { all.count() } else { 1 };
        (0..count).filter_map(move |index| if is_train { all.nth(index) } else { Some(all) })
    }

    fn nth(&self, index: u16) -> Option<Self> {
        let train = Packet::parse_apart(self).ok()?;
        let position = train.info().position.of_one(index.into(), self.count().into());
        let opcode = train.opcode().at(position)?;
        let (info, all) = (opcode.info()?, train.ext());
        let ext = Ext {
            reth: all.reth.filter(|_| info.has_reth),
            // The response to a READ has it in its first and in its last packet.
            aeth: all.aeth.filter(|_| info.has_aeth),
            imm: all.imm.filter(|_| info.has_imm),
            ieth: all.ieth.filter(|_| info.has_ieth),
            xrc_srq: all.xrc_srq,
            ..Ext::default()
        };
        let last = index + 1 == self.count();
        let bth = train.bth();
        let bth = Bth {
            opcode,
            psn: bth.psn.add(index.into()),
            ack_req: bth.ack_req && last,
            solicited: bth.solicited && last,
            ..bth
        };
        let start = usize::from(index) * train.payload_len();
        let len = train.payload_len().min(self.payload.len() - start);
        let payload = self.payload.part(start, len)?;
        let mut head = Vec::with_capacity(Self::MAX_HEAD);
        emit::header(&mut head, &bth, &ext, len);
        Self::new(&head, payload)
    }
}
