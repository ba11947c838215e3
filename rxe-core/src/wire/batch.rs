//! Packets that wait to be sent. The engine appends packets, a backend takes them from the front.
//!
//! Packets of equal size to one destination are stored back to back as a burst (the last may be
//! shorter). UDP_SEGMENT can send such a burst of up to 64 packets in one call.

use std::convert::Infallible;
use std::ops::Range;

use super::direct::{Direct, Placed};
use super::icrc::{Prefix, PrefixCache};
use super::net::{Frame, NetHeader, id_step};
use super::{Bth, Ext, QPN_BLOCK, emit};
use crate::mem::{AccessError, Source};
use crate::types::Qpn;

/// A GSO burst: packets for one destination that can be sent in one call. All have `segment` bytes,
/// except the last, which may be shorter. Packet `i` of the burst carries the ICRC for
/// `net.nth(i)`.
#[derive(Clone, Debug)]
pub struct Burst {
    /// The network header of the first packet.
    pub net: NetHeader,
    /// The range of the packets in the batch's buffer.
    pub bytes: Range<usize>,
    /// The size of each packet in bytes.
    pub segment: usize,
}

impl Burst {
    /// Returns the number of packets.
    pub fn packets(&self) -> usize {
        self.bytes.len().div_ceil(self.segment.max(1))
    }
}

/// Outgoing packets in order: a buffer and the bursts that it is divided into. The engine appends
/// (`Engine::poll_transmit`), a backend takes from the front.
#[derive(Debug)]
pub struct TxBatch {
    buf: Vec<u8>,
    bursts: Vec<Burst>,
    /// The ICRC prefix of the last burst.
    prefix: PrefixCache,
    /// The number of packets in the last burst.
    packets: usize,
    /// Whether the last burst may grow: its last packet is as long as its first.
    open: bool,
    /// The index of the first burst that is not yet sent.
    sent: usize,
    /// The index from which on bursts are hidden by [`TxBatch::with_first`].
    end: usize,
    limits: TxLimits,
    /// The number of packets and bytes ever pushed or sent directly.
    total: (u64, u64),
    /// The number of bytes sent directly ([`Direct`]) since [`TxBatch::take_direct`].
    direct: usize,
    /// Whether a packet that was to be sent directly found no room and is in the batch: no further
    /// packets are sent directly before it has been sent.
    held_up: bool,
    /// A buffer for the headers of a packet.
    head: Vec<u8>,
}

/// The maximum sizes of bursts and batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxLimits {
    /// The maximum number of packets in a burst: 1 without segmentation, 64 with UDP_SEGMENT.
    pub burst_segments: usize,
    /// The maximum bytes in a burst: at most 65,507 (a UDP payload over IPv4).
    pub burst_bytes: usize,
    /// The maximum bytes in a batch. A batch always has room for one burst.
    pub batch_bytes: usize,
}

impl Default for TxLimits {
    fn default() -> Self {
        Self { burst_segments: 64, burst_bytes: 65_000, batch_bytes: 256 << 10 }
    }
}

impl TxBatch {
    /// Creates an empty batch for a backend with these limits.
    pub fn new(limits: TxLimits) -> Self {
        Self {
            buf: Vec::with_capacity(limits.batch_bytes),
            bursts: Vec::new(),
            prefix: PrefixCache::default(),
            packets: 0,
            open: false,
            sent: 0,
            end: 0,
            limits,
            total: (0, 0),
            direct: 0,
            held_up: false,
            head: Vec::new(),
        }
    }

    /// Returns the limits.
    pub fn limits(&self) -> &TxLimits {
        &self.limits
    }

    /// Returns whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.sent == self.end
    }

    /// Returns whether the batch has reached its size and must be sent.
    pub fn is_full(&self) -> bool {
        self.held_up || self.buf.len() + self.direct >= self.limits.batch_bytes
    }

    /// Returns whether packets were sent directly since the last call. The backend must then be
    /// called even if the batch is empty, because the receiver may sleep.
    pub fn take_direct(&mut self) -> bool {
        std::mem::take(&mut self.direct) > 0
    }

    /// Returns the number of packets and bytes since the batch was created. Packets sent directly
    /// are included.
    pub fn total(&self) -> (u64, u64) {
        self.total
    }

    /// Returns the bursts not yet sent, the next one first.
    pub fn pending(&self) -> &[Burst] {
        &self.bursts[self.sent..self.end]
    }

    /// Returns the bytes of a burst.
    pub fn bytes(&self, burst: &Burst) -> &[u8] {
        &self.buf[burst.bytes.clone()]
    }

    /// Returns the bursts not yet sent as frames, as their receiver would see them.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        let bursts = self.pending();
        (0..).zip(bursts).map(move |(at, burst): (usize, _)| Frame {
            net: burst.net,
            payload: self.bytes(burst),
            segment: burst.segment,
            prefetch_next: bursts
                .get(at + Frame::PREFETCH_DISTANCE)
                .map_or(&[], |burst| self.bytes(burst)),
            coalesced: &[],
        })
    }

    /// Marks the first `n` pending bursts as sent. When no burst is left, the batch is cleared, and
    /// keeps its memory.
    ///
    /// # Panics
    /// If fewer than `n` bursts are pending.
    pub fn mark_sent(&mut self, n: usize) {
        assert!(n <= self.end - self.sent, "more bursts sent than pending");
        self.sent += n;
        if self.sent == self.bursts.len() {
            self.clear();
        }
    }

    /// Changes the source port of the next pending burst, and updates the ICRCs of its packets.
    /// Wrong ICRCs stay wrong.
    ///
    /// # Panics
    /// If no burst is pending.
    pub fn change_source_port(&mut self, src_port: u16) {
        assert!(!self.is_empty(), "a burst is pending");
        if self.sent + 1 == self.bursts.len() {
            // Further packets of this burst would be made for the old port.
            self.open = false;
        }
        let burst = &mut self.bursts[self.sent];
        let made_for = Prefix::new(&burst.net);
        burst.net.src_port = src_port;
        let leaves_as = Prefix::new(&burst.net);
        let packets = self.buf[burst.bytes.clone()].chunks_mut(burst.segment.max(1));
        for (i, packet) in packets.enumerate() {
            let Some((body, icrc)) = packet.split_last_chunk_mut::<4>() else { continue };
            let nth = |prefix: Prefix| prefix.nth(id_step(i)).compute(body);
            let change = nth(made_for) ^ nth(leaves_as);
            *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
        }
    }

    /// Calls `f` with only the first `n` pending bursts visible. `f` must not append packets.
    ///
    /// # Panics
    /// If fewer than `n` bursts are pending.
    pub fn with_first<R>(&mut self, n: usize, f: impl FnOnce(&mut Self) -> R) -> R {
        assert!(n <= self.end - self.sent, "more bursts asked for than pending");
        self.end = self.sent + n;
        let result = f(self);
        self.end = self.bursts.len();
        result
    }

    /// Removes all packets and keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.bursts.clear();
        self.sent = 0;
        self.end = 0;
        self.held_up = false;
    }

    /// Sends one packet directly if `direct` takes it, and appends it otherwise. The pad count in
    /// `bth` is set here. `ext` must have exactly the headers of the opcode's row.
    ///
    /// # Errors
    /// The payload's memory is not mapped; the packet is then neither sent nor appended.
    #[inline]
    pub(crate) fn packet(
        &mut self,
        direct: Option<&mut (dyn Direct + '_)>,
        net: &NetHeader,
        bth: &Bth,
        ext: &Ext,
        payload: Source<'_>,
    ) -> Result<(), AccessError> {
        self.packets(direct, net, bth, ext, payload, 1).map(drop)
    }

    /// Like [`TxBatch::packet`], for `count` packets. Several packets form a coalesced segment
    /// ([`Coalesced`](super::Coalesced)). Returns `false` for a segment that `direct` does not
    /// take; nothing is changed then.
    ///
    /// # Errors
    /// As for [`TxBatch::packet`].
    #[inline]
    pub(crate) fn packets(
        &mut self,
        direct: Option<&mut (dyn Direct + '_)>,
        net: &NetHeader,
        bth: &Bth,
        ext: &Ext,
        payload: Source<'_>,
        count: u16,
    ) -> Result<bool, AccessError> {
        let len = payload.len();
        let mut waits = false;
        // A packet is sent directly only if no packet to its destination waits in the batch, which
        // keeps their order.
        if let Some(direct) = direct
            && !self.held_up
            && self.pending().iter().all(|burst| burst.net.dst != net.dst)
        {
            self.head.clear();
            // All packets of a coalesced segment except the last have no pad.
            emit::header(&mut self.head, bth, ext, len);
            match direct.send(net, &self.head, &payload, count)? {
                Placed::Sent => {
                    let total = emit::train_len(bth.opcode, count, len);
                    self.direct += total;
                    self.total.0 += u64::from(count);
                    self.total.1 += total as u64;
                    return Ok(true);
                }
                Placed::NoRoom => waits = true,
                Placed::Unsupported => {}
            }
        }
        if count > 1 {
            return Ok(false);
        }
        let total = emit::len(bth.opcode, len);
        self.append(net, Some(bth.dest_qp.block()), total, |prefix, buf| {
            emit::packet_with(prefix, buf, bth, ext, len, |out| payload.append_to(out))
        })?;
        self.held_up |= waits;
        Ok(true)
    }

    /// Appends one packet: `write` appends BTH to ICRC to the buffer, with the prefix for the ICRC.
    /// The packet joins the last burst if destination, size and limits permit, and begins a new
    /// burst otherwise. `len` is the number of bytes that `write` appends.
    pub fn push(&mut self, net: NetHeader, len: usize, write: impl FnOnce(&Prefix, &mut Vec<u8>)) {
        let Ok(()) = self.append(&net, None, len, infallible(write));
    }

    /// Like [`TxBatch::push`], for a packet to QP `dest_qp`. A burst may reach a host in one piece,
    /// so it never contains packets for different processes that share the address of the host;
    /// [`Qpn::block`] tells their QPs apart.
    pub fn push_to(
        &mut self,
        net: NetHeader,
        dest_qp: Qpn,
        len: usize,
        write: impl FnOnce(&Prefix, &mut Vec<u8>),
    ) {
        let Ok(()) = self.append(&net, Some(dest_qp.block()), len, infallible(write));
    }

    /// Like [`TxBatch::push_to`], with a `write` that can fail.
    ///
    /// # Errors
    /// The error of `write`; the batch is then unchanged.
    pub fn try_push_to<E>(
        &mut self,
        net: NetHeader,
        dest_qp: Qpn,
        len: usize,
        write: impl FnOnce(&Prefix, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.append(&net, Some(dest_qp.block()), len, write)
    }

    fn append<E>(
        &mut self,
        net: &NetHeader,
        block: Option<u8>,
        len: usize,
        write: impl FnOnce(&Prefix, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        debug_assert!(self.sent <= self.end && self.end == self.bursts.len(), "no burst is hidden");
        let start = self.buf.len();
        let joins = self.open
            && self.packets < self.limits.burst_segments
            && self.bursts.len() > self.sent
            && self.bursts.last().is_some_and(|burst| {
                len <= burst.segment
                    && burst.bytes.len() + len <= self.limits.burst_bytes
                    && block.is_none_or(|b| self.buf.get(burst.bytes.start + QPN_BLOCK) == Some(&b))
                    && burst.net == *net
            });
        let index = if joins { self.packets } else { 0 };
        debug_assert!(index < self.limits.burst_segments.max(1));
        if !joins {
            self.bursts.push(Burst { net: *net, bytes: start..start, segment: len });
            self.end = self.bursts.len();
            self.prefix.get(net);
        }
        if let Err(e) = write(&self.prefix.last().nth(id_step(index)), &mut self.buf) {
            self.buf.truncate(start);
            if !joins {
                self.bursts.pop();
                self.end = self.bursts.len();
                if let Some(burst) = self.bursts.last() {
                    self.prefix.get(&burst.net);
                }
            }
            return Err(e);
        }
        debug_assert_eq!(self.buf.len() - start, len, "a packet of the announced size");
        let burst = self.bursts.last_mut().expect("a burst was just made or found");
        burst.bytes.end = self.buf.len();
        self.packets = index + 1;
        self.open = len == burst.segment;
        self.total.0 += 1;
        self.total.1 += len as u64;
        Ok(())
    }
}

/// Wraps a `write` that cannot fail.
fn infallible(
    write: impl FnOnce(&Prefix, &mut Vec<u8>),
) -> impl FnOnce(&Prefix, &mut Vec<u8>) -> Result<(), Infallible> {
    |prefix, buf| {
        write(prefix, buf);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::UDP_PORT;
    use super::*;

    fn net() -> NetHeader {
        let a = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let b = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        NetHeader::outgoing(a, b, UDP_PORT)
    }

    fn push(batch: &mut TxBatch, len: usize) {
        batch.push(net(), len, |prefix, buf| {
            let start = buf.len();
            buf.resize(start + len - 4, 0);
            prefix.append(buf, start);
        });
    }

    #[test]
    fn a_burst_holds_equal_sizes_and_ends_with_a_shorter_one() {
        let mut batch = TxBatch::new(TxLimits::default());
        for len in [1056, 1040, 1040, 20, 20, 1040] {
            push(&mut batch, len);
        }
        let bursts: Vec<_> = batch.pending().iter().map(|r| (r.segment, r.bytes.len())).collect();
        // A smaller packet ends a burst, so the next packet starts another.
        assert_eq!(bursts, [(1056, 2096), (1040, 1060), (20, 20), (1040, 1040)]);
        let second = &batch.bytes(&batch.pending()[0])[1056..];
        let check = |index| crate::wire::icrc::check(&net().nth(index), second);
        assert_eq!(check(1), Ok(()), "the second packet of a burst has ID 1");
        assert!(check(0).is_err());
    }

    #[test]
    fn packets_can_leave_with_another_source_port_than_they_were_made_for() {
        let mut batch = TxBatch::new(TxLimits::default());
        (0..3).for_each(|_| push(&mut batch, 100));
        push(&mut batch, 40);
        let other = NetHeader { src_port: 0xf010, ..net() };
        batch.change_source_port(other.src_port);
        let check = |batch: &TxBatch, net: NetHeader| {
            let burst = batch.pending()[0].clone();
            assert_eq!((burst.net, burst.packets()), (net, 4));
            let mut packets = (0..).zip(batch.bytes(&burst).chunks(burst.segment));
            packets.all(|(i, p)| crate::wire::icrc::check(&net.nth(i), p).is_ok())
        };
        assert!(check(&batch, other));
        // The next packet is made for the former port of these packets.
        batch.change_source_port(net().src_port);
        push(&mut batch, 40);
        assert_eq!(batch.pending().len(), 2);
        assert!(check(&batch, net()));
        batch.mark_sent(1);
        let burst = batch.pending()[0].clone();
        assert_eq!(crate::wire::icrc::check(&net(), batch.bytes(&burst)), Ok(()));
        // A damaged packet stays damaged.
        batch.buf[burst.bytes.start] ^= 1;
        batch.change_source_port(7);
        let seven = NetHeader { src_port: 7, ..net() };
        assert!(crate::wire::icrc::check(&seven, batch.bytes(&burst)).is_err());
    }

    #[test]
    fn what_goes_to_different_processes_is_not_in_one_burst() {
        let mut batch = TxBatch::new(TxLimits::default());
        for qpn in [0x05_0001, 0x05_ffff, 0x06_0001, 0x06_0002, 0x05_0001] {
            let qpn = Qpn::from_wire(qpn);
            batch.push_to(net(), qpn, 32, |_, buf| {
                buf.extend([0; 4]);
                buf.extend(qpn.value().to_be_bytes());
                buf.extend([0; 24]);
            });
        }
        let lens: Vec<_> = batch.pending().iter().map(|burst| burst.bytes.len()).collect();
        assert_eq!(lens, [64, 64, 32]);
    }

    #[test]
    fn a_part_of_the_batch_can_be_sent_by_itself() {
        let mut batch = TxBatch::new(TxLimits { burst_segments: 1, ..TxLimits::default() });
        (0..4).for_each(|_| push(&mut batch, 100));
        batch.with_first(2, |first| {
            assert_eq!((first.pending().len(), first.is_empty()), (2, false));
            first.mark_sent(2);
            assert!(first.is_empty() && first.pending().is_empty());
        });
        assert_eq!((batch.pending().len(), batch.is_empty()), (2, false));
        batch.with_first(2, |all| all.mark_sent(1));
        batch.with_first(1, |last| last.mark_sent(1));
        assert!(batch.is_empty());
        push(&mut batch, 100);
        assert_eq!(batch.pending().len(), 1);
    }

    #[test]
    fn a_packet_that_can_not_be_written_leaves_no_trace() {
        let elsewhere = NetHeader { src_port: 7, ..net() };
        for net_of_failed in [net(), elsewhere] {
            let mut batch = TxBatch::new(TxLimits::default());
            push(&mut batch, 100);
            let failed = batch.try_push_to(net_of_failed, Qpn::from_wire(0), 50, |_, buf| {
                buf.extend([1; 20]);
                Err("no memory")
            });
            assert_eq!((failed, batch.total()), (Err("no memory"), (1, 100)));
            push(&mut batch, 100);
            let [burst] = batch.pending() else { panic!("one burst: {:?}", batch.pending()) };
            let packets: Vec<_> = batch.bytes(burst).chunks(100).collect();
            assert_eq!(packets.len(), 2);
            for (index, packet) in packets.into_iter().enumerate() {
                let net = net().nth(id_step(index));
                assert_eq!(crate::wire::icrc::check(&net, packet), Ok(()));
            }
        }
    }

    #[test]
    fn limits_end_a_burst() {
        let limits = TxLimits { burst_segments: 2, ..TxLimits::default() };
        let mut batch = TxBatch::new(limits);
        for _ in 0..5 {
            push(&mut batch, 100);
        }
        assert_eq!(batch.pending().len(), 3);
        batch.mark_sent(3);
        assert!(batch.is_empty() && batch.pending().is_empty());
    }
}
