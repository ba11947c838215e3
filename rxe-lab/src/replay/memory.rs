//! What the peer's memory has, as far as requests use it.

use std::collections::VecDeque;
use std::ops::Range;

use rxe_core::types::Psn;
use rxe_core::wire::OpKind;

use super::layout::{Layout, place};
use super::recording::Conversation;
use super::responder::Fate;

/// The byte that the peer's memory is filled with.
const FILL: u8 = 0x11;

/// READs whose data are remembered: the most that a queue pair may have outstanding.
const READS: usize = 256;

/// The peer's memory, as far as requests use it.
pub(super) struct Memory {
    bytes: Vec<u8>,
    /// Whether the recording says what was there before.
    is_known: Vec<bool>,
    is_written: Vec<bool>,
}

impl Memory {
    /// What it has before: what a scenario's engine has, or what READs and atomics of the recording tell.
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

    fn mark(&mut self, at: u64, len: u64) {
        if let Some(range) = self.range(at, len) {
            self.is_written[range].fill(true);
        }
    }

    /// These bytes are there, unless a request has written there.
    fn learn(&mut self, at: u64, bytes: &[u8]) {
        let Some(range) = self.range(at, bytes.len() as u64) else { return };
        for (at, byte) in range.zip(bytes) {
            if !self.is_written[at] && !self.is_known[at] {
                (self.bytes[at], self.is_known[at]) = (*byte, true);
            }
        }
    }

    /// What the engines of scenarios have at `offset` of their memory is there.
    fn learn_scenario(&mut self, at: u64, offset: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(self.bytes.len());
        let [first, ..] = offset.to_le_bytes();
        let content = (0..=u8::MAX).cycle().skip(first.into()).take(len);
        self.learn(at, &content.collect::<Vec<_>>());
    }

    /// Writes bytes, of which the first `captured` are those of the recording.
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

    /// What is known, in pieces.
    pub(super) fn known(&self) -> Vec<(u64, Vec<u8>)> {
        pieces(&self.bytes, &self.is_known)
    }

    /// What was written and is known, in pieces.
    pub(super) fn written(&self) -> Vec<(u64, Vec<u8>)> {
        pieces(&self.bytes, &self.is_written)
    }
}

/// What the last READs and atomics have read.
pub(super) struct ReadData {
    /// Their PSNs and their data.
    list: VecDeque<(i32, Vec<u8>)>,
    /// Bytes of these data, and the most that there may be.
    len: usize,
    most: usize,
}

impl ReadData {
    pub(super) fn new(most: usize) -> Self {
        Self { list: VecDeque::new(), len: 0, most }
    }

    pub(super) fn keep(&mut self, psn: i32, data: Vec<u8>) {
        self.len += data.len();
        self.list.push_back((psn, data));
        while (self.list.len() > READS || self.len > self.most)
            && let Some((_, oldest)) = self.list.pop_front()
        {
            self.len -= oldest.len();
        }
    }

    /// The data from the packet with this PSN on.
    pub(super) fn starting_at(&self, psn: i32, path_mtu: usize) -> Option<&[u8]> {
        self.list.iter().rev().find_map(|(first, data)| {
            let ahead = usize::try_from(psn.checked_sub(*first)?).ok()?;
            data.get(ahead.checked_mul(path_mtu)?..).filter(|rest| !rest.is_empty())
        })
    }
}

/// The bytes that are marked, in pieces without a gap.
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
