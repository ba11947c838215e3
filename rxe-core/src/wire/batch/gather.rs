//! Puts packets of several queue pairs that leave from one source port into one burst.
//!
//! Queue pairs that have one port for all join each other's bursts as they send in turn. If they have a few
//! ports in turn, as good as no packet has the port of the one before it, and each small message would
//! cost a call. So the bursts are sorted by port, and small ones are copied together.
//!
//! Invariants: packets from one port, and so those of a queue pair, stay in their order. Packet `i` of a
//! burst carries the ICRC for `net.nth(i)`.

use super::super::icrc::Prefix;
use super::super::net::id_step;
use super::super::{Opcode, qpn_block};
use super::TxBatch;

/// The longest burst that is copied, in bytes: a call costs as much as copying some kilobytes.
const SMALL: usize = 1024;

impl TxBatch {
    /// Gathers the pending bursts but the first `settled`, a part of which may have left already.
    pub(crate) fn gather(&mut self, settled: usize) {
        let from = self.sent + settled;
        let Some(rest) = self.bursts.get_mut(from..) else { return };
        if rest.windows(2).all(|two| two[0].net.src_port == two[1].net.src_port) {
            return;
        }
        rest.sort_by_key(|burst| burst.net.src_port);
        // The burst that was appended last may now be elsewhere.
        self.open = false;
        let mut last = from;
        for at in from + 1..self.bursts.len() {
            if !self.join(last, at) {
                last += 1;
                self.bursts.swap(last, at);
            }
        }
        self.bursts.truncate(last + 1);
        self.end = self.bursts.len();
    }

    /// Appends the packets of one burst to another, if they may be in one. The other moves to the end of
    /// the buffer for that.
    fn join(&mut self, to: usize, from: usize) -> bool {
        let (into, more) = (&self.bursts[to], &self.bursts[from]);
        let bytes = |burst: &super::Burst| &self.buf[burst.bytes.clone()];
        let block = |burst| qpn_block(bytes(burst));
        let is_last = into.bytes.end == self.buf.len();
        let mut packets = bytes(more).chunks(more.segment.max(1));
        let may = into.net == more.net
            && into.segment == more.segment
            && into.bytes.len().is_multiple_of(into.segment.max(1))
            && into.packets() + more.packets() <= self.limits.burst_segments
            && into.bytes.len() + more.bytes.len() <= self.limits.burst_bytes
            && more.bytes.len() <= SMALL
            && (is_last || into.bytes.len() <= SMALL)
            && block(into) == block(more)
            // Its ICRC may be the one that `rdma_rxe` expects.
            && packets.all(|packet| packet.first() != Some(&Opcode::RC_FLUSH.0));
        if !may {
            return false;
        }
        let (net, segment, earlier) = (more.net, more.segment, into.packets());
        let (mut joined, more) = (into.bytes.clone(), more.bytes.clone());
        if !is_last {
            let start = self.buf.len();
            self.buf.extend_from_within(joined);
            joined = start..self.buf.len();
        }
        let start = self.buf.len();
        self.buf.extend_from_within(more);
        joined.end = self.buf.len();
        self.bursts[to].bytes = joined;
        if net.dst.is_ipv4() {
            let prefix = Prefix::new(&net);
            let packets = self.buf[start..].chunks_mut(segment);
            for (before, packet) in packets.enumerate() {
                let Some((body, icrc)) = packet.split_last_chunk_mut::<4>() else { continue };
                let icrc_of = |index| prefix.nth(id_step(index)).compute(body);
                let change = icrc_of(before) ^ icrc_of(earlier + before);
                *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::super::{NetHeader, icrc};
    use super::super::TxLimits;
    use super::*;
    use crate::types::Qpn;

    /// A batch of packets: each with a source port, the block that it is for, and its length. Their
    /// numbers are in them.
    fn batch(addresses: [&str; 2], packets: &[(u16, u8, usize)], limits: TxLimits) -> TxBatch {
        let [src, dst] = addresses.map(|ip| ip.parse::<IpAddr>().unwrap());
        let mut batch = TxBatch::new(limits);
        for (number, &(port, block, len)) in (0..).zip(packets) {
            let net = NetHeader::outgoing(src, dst, port);
            let qpn = Qpn::from_wire(u32::from(block) << 16 | 7);
            batch.push_to(net, qpn, len, |prefix, buf| {
                let start = buf.len();
                buf.extend([100, number, 0, 0, 0, block, 0, 7]);
                buf.resize(start + len - 4, number);
                prefix.append(buf, start);
            });
        }
        batch
    }

    /// The bursts: each with its port and the numbers of its packets, whose ICRCs are right.
    fn bursts(batch: &TxBatch) -> Vec<(u16, Vec<u8>)> {
        let look = |burst: &super::super::Burst| {
            let packets = batch.bytes(burst).chunks(burst.segment);
            let number = |(i, packet): (usize, &[u8])| {
                let net = burst.net.nth(id_step(i));
                assert_eq!(icrc::check(&net, packet), Ok(()), "packet {i} of {burst:?}");
                packet[1]
            };
            (burst.net.src_port, packets.enumerate().map(number).collect())
        };
        batch.pending().iter().map(look).collect()
    }

    const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

    #[test]
    fn packets_from_one_port_leave_in_one_burst_and_in_their_order() {
        for addresses in [V4, ["fd00::1", "fd00::2"]] {
            let packets: Vec<_> = (0..12).map(|n| (9 - n % 3, 1, 60)).collect();
            let mut batch = batch(addresses, &packets, TxLimits::default());
            assert_eq!(batch.pending().len(), 12);
            batch.gather(0);
            let expected = [(7, vec![2, 5, 8, 11]), (8, vec![1, 4, 7, 10]), (9, vec![0, 3, 6, 9])];
            assert_eq!(bursts(&batch), expected);
            // What comes next is whole too.
            batch.push(batch.pending()[2].net, 40, |prefix, buf| {
                let start = buf.len();
                buf.resize(start + 36, 99);
                prefix.append(buf, start);
            });
            assert_eq!(bursts(&batch)[3], (9, vec![99]));
            batch.mark_sent(4);
            assert!(batch.is_empty());
        }
    }

    #[test]
    fn what_may_not_be_in_one_burst_is_not_put_into_one() {
        let gathered = |packets: &[(u16, u8, usize)], limits| {
            let mut batch = batch(V4, packets, limits);
            batch.gather(0);
            bursts(&batch)
        };
        let all = TxLimits::default();
        // Another size, another process, too large to be copied; and in order all the same.
        let packets = [(2, 1, 60), (1, 1, 60), (2, 1, 64), (2, 2, 64), (2, 1, 2000), (1, 1, 60)];
        let expected = [(1, vec![1, 5]), (2, vec![0]), (2, vec![2]), (2, vec![3]), (2, vec![4])];
        assert_eq!(gathered(&packets, all), expected);
        // A shorter packet is the last of its burst.
        let packets = [(2, 1, 60), (2, 1, 40), (1, 1, 60), (2, 1, 60), (2, 1, 40)];
        assert_eq!(gathered(&packets, all), [(1, vec![2]), (2, vec![0, 1]), (2, vec![3, 4])]);
        let packets = [(2, 1, 60), (1, 1, 60), (2, 1, 60), (2, 1, 40), (1, 1, 60)];
        assert_eq!(gathered(&packets, all), [(1, vec![1, 4]), (2, vec![0, 2, 3])]);
        // The system does not segment, or not so many.
        let packets: Vec<_> = (0..8).map(|n| (n % 2, 1, 60)).collect();
        let limits = |burst_segments| TxLimits { burst_segments, ..all };
        assert_eq!(gathered(&packets, limits(1)).len(), 8);
        let three = [(0, vec![0, 2, 4]), (0, vec![6]), (1, vec![1, 3, 5]), (1, vec![7])];
        assert_eq!(gathered(&packets, limits(3)), three);
    }

    #[test]
    fn what_was_in_the_batch_before_stays_where_it_is() {
        let packets = [(3, 1, 60), (2, 1, 60), (3, 1, 60), (2, 1, 60)];
        let mut batch = batch(V4, &packets, TxLimits::default());
        batch.gather(1);
        assert_eq!(bursts(&batch), [(3, vec![0]), (2, vec![1, 3]), (3, vec![2])]);
        batch.gather(3);
        batch.gather(7);
        assert_eq!(bursts(&batch).len(), 3);
    }
}
