//! Models the part of the peer's memory that requests use.

use std::collections::VecDeque;
use std::ops::Range;

use rxe_core::types::Psn;
use rxe_core::wire::OpKind;

use super::layout::{Layout, place};
use super::recording::Conversation;
use super::responder::Fate;

/// The byte with which the peer's memory is filled initially.
const FILL: u8 = 0x11;

/// The number of READs whose data are remembered: the most that can be outstanding.
const READS: usize = 256;

/// The part of the peer's memory that requests use.
pub(super) struct Memory {
    bytes: Vec<u8>,
    /// Whether the recording shows the initial content of each byte.
    is_known: Vec<bool>,
    /// Whether a request wrote each byte.
    is_written: Vec<bool>,
}

impl Memory {
    /// Reconstructs the content before the first request.
    /// It is known from the scenario's engine, or from the READ responses and atomic
    /// acknowledgements of the recording.
    pub(super) fn new(
        it: &Conversation,
        fates: &[Fate],
        layout: &Layout,
        first: Psn,
        mtu: usize,
    ) -> Self {
        let used = usize::try_from(layout.used).unwrap_or(0);
        let (known, written) = (vec![false; used], vec![false; used]);
        let mut this = Self { bytes: vec![FILL; used], is_known: known, is_written: written };
        let mut cursor = None;
        let mut reads: VecDeque<(i32, u64, u64)> = VecDeque::new();
        for ((is_request, packet), fate) in it.packets.iter().zip(fates) {
            let psn = packet.bth.psn.diff(first);
            let at = is_request.then(|| place(layout, packet)).flatten();
            let at = at.filter(|place| place.is_inside).map(|place| place.offset);
            match packet.info.kind {
                OpKind::Write | OpKind::AtomicWrite if *fate == Fate::Executed => {
                    let Some(at) = at.or(cursor) else { continue };
                    let len = packet.payload().len() as u64;
                    this.mark(at, len);
                    cursor = (!packet.info.ends).then_some(at + len);
                }
                OpKind::ReadRequest | OpKind::CompareSwap | OpKind::FetchAdd
                    if *fate == Fate::Executed =>
                {
                    let Some(at) = at else { continue };
                    if let Some(offset) = layout.in_region(at) {
                        this.learn_scenario(at, offset, packet.dma_len());
                    }
                    if reads.len() == READS {
                        reads.pop_front();
                    }
                    reads.push_back((psn, at, packet.dma_len()));
                }
                OpKind::ReadResponse => {
                    let found = reads.iter().rev().find_map(|(first, at, len)| {
                        let ahead = u64::try_from(psn.checked_sub(*first)?).ok()?;
                        let ahead = ahead * mtu as u64;
                        (ahead < *len).then_some(at + ahead)
                    });
                    if let Some(at) = found {
                        this.learn(at, packet.captured());
                    }
                }
                OpKind::AtomicAcknowledge => {
                    let found = reads.iter().find(|(first, ..)| *first == psn);
                    if let (Some((_, at, _)), Some(value)) = (found, packet.ext.atomic_ack) {
                        this.learn(*at, &value.to_le_bytes());
                        this.mark(*at, 8);
                    }
                }
                _ => {}
            }
        }
        this.is_written.fill(false);
        this
    }

    fn range(&self, at: u64, len: u64) -> Option<Range<usize>> {
        let from = usize::try_from(at).ok()?;
        let to = from.checked_add(usize::try_from(len).ok()?)?;
        (to <= self.bytes.len()).then_some(from..to)
    }

    /// Marks bytes as written.
    fn mark(&mut self, at: u64, len: u64) {
        if let Some(range) = self.range(at, len) {
            self.is_written[range].fill(true);
        }
    }

    /// Sets the initial content of these bytes, except where a request wrote before.
    fn learn(&mut self, at: u64, bytes: &[u8]) {
        let Some(range) = self.range(at, bytes.len() as u64) else { return };
        for (at, byte) in range.zip(bytes) {
            if !self.is_written[at] && !self.is_known[at] {
                (self.bytes[at], self.is_known[at]) = (*byte, true);
            }
        }
    }

    /// Sets the initial content of a scenario's memory: byte `n` is `n` modulo 256.
    fn learn_scenario(&mut self, at: u64, offset: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(self.bytes.len());
        let [first, ..] = offset.to_le_bytes();
        let content = (0..=u8::MAX).cycle().skip(first.into()).take(len);
        self.learn(at, &content.collect::<Vec<_>>());
    }

    /// Writes bytes, of which the first `captured` were captured.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8], captured: usize) {
        if let Some(range) = self.range(at, bytes.len() as u64) {
            self.bytes[range.clone()].copy_from_slice(bytes);
            let (known, rest) = self.is_written[range].split_at_mut(captured.min(bytes.len()));
            known.fill(true);
            rest.fill(false);
        }
    }

    pub(super) fn read(&self, at: u64, len: u64) -> Option<&[u8]> {
        self.range(at, len).map(|range| &self.bytes[range])
    }

    /// Returns the bytes whose initial content is known, in contiguous pieces.
    pub(super) fn known(&self) -> Vec<(u64, Vec<u8>)> {
        pieces(&self.bytes, &self.is_known)
    }

    /// Returns the bytes that were written with captured data, in contiguous pieces.
    pub(super) fn written(&self) -> Vec<(u64, Vec<u8>)> {
        pieces(&self.bytes, &self.is_written)
    }
}

/// The data of the latest READs and atomics.
pub(super) struct ReadData {
    /// The PSN and data of each READ or atomic, oldest first.
    list: VecDeque<(i32, Vec<u8>)>,
    /// The bytes of all these data.
    len: usize,
    /// The most bytes of data that are kept.
    most: usize,
}

impl ReadData {
    pub(super) fn new(most: usize) -> Self {
        Self { list: VecDeque::new(), len: 0, most }
    }

    /// Keeps the data of a READ or atomic, and drops the oldest ones beyond the limits.
    pub(super) fn keep(&mut self, psn: i32, data: Vec<u8>) {
        self.len += data.len();
        self.list.push_back((psn, data));
        while (self.list.len() > READS || self.len > self.most)
            && let Some((_, oldest)) = self.list.pop_front()
        {
            self.len -= oldest.len();
        }
    }

    /// Returns the data from the response packet with this PSN on.
    pub(super) fn starting_at(&self, psn: i32, path_mtu: usize) -> Option<&[u8]> {
        self.list.iter().rev().find_map(|(first, data)| {
            let ahead = usize::try_from(psn.checked_sub(*first)?).ok()?;
            data.get(ahead.checked_mul(path_mtu)?..).filter(|rest| !rest.is_empty())
        })
    }
}

/// Returns the marked bytes in contiguous pieces.
fn pieces(bytes: &[u8], marks: &[bool]) -> Vec<(u64, Vec<u8>)> {
    let mut at = 0;
    let mut found = Vec::new();
    for run in marks.chunk_by(|a, b| a == b) {
        if run[0] {
            found.push((at as u64, bytes[at..at + run.len()].to_vec()));
        }
        at += run.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_data_are_kept_as_far_as_they_fit() {
        let mut reads = ReadData::new(1000);
        reads.keep(0, vec![1; 500]);
        reads.keep(2, vec![2; 500]);
        assert_eq!(reads.starting_at(1, 256), Some(&[1; 244][..]), "from its second packet on");
        reads.keep(4, vec![4; 8]);
        assert_eq!(
            (reads.starting_at(1, 256), reads.starting_at(2, 256)),
            (None, Some(&[2; 500][..]))
        );
        assert_eq!((reads.len, reads.list.len()), (508, 2));
        (0..300).for_each(|psn| reads.keep(psn, vec![5]));
        assert_eq!((reads.len, reads.list.len()), (READS, READS));
    }
}
