//! The queue pairs by number. They are stored in blocks, so that many of them take few pages. An index
//! with 8 bytes per entry maps a number to its slot. Numbers are chosen on this side, so a peer cannot
//! make them collide: a multiplication spreads them well enough, at a tenth of the standard hash's cost.
//!
//! The index is open addressing with linear probing. Invariants: the number of its places is a power of
//! two; at most three quarters are taken; there is no free place between the place that a number hashes
//! to and the place of its entry.

use crate::prefetch;
use crate::qp::Qp;
use crate::types::Qpn;

/// Queue pairs per block.
const BLOCK: usize = 32;
/// Up to this many queue pairs fit the L1 and L2 caches, and prefetching gains nothing.
const CACHED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct QpTable {
    index: Vec<Entry>,
    blocks: Vec<Box<[Option<Qp>]>>,
    /// Slots that hold no queue pair.
    free: Vec<usize>,
    len: usize,
}

/// An entry of the index.
#[derive(Debug, Default, Clone, Copy)]
struct Entry {
    /// The QP number; 0, which no queue pair has, marks a free place.
    number: u32,
    slot: u32,
}

/// 2³² divided by the golden ratio.
const SPREAD: u32 = 0x9e37_79b9;

impl QpTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, qpn: Qpn) -> bool {
        self.find(qpn).is_some()
    }

    pub(super) fn get(&self, qpn: Qpn) -> Option<&Qp> {
        let (block, at) = self.slot(qpn)?;
        debug_assert!(self.blocks[block][at].as_ref().is_some_and(|qp| qp.identity.qpn == qpn));
        self.blocks[block][at].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        let (block, at) = self.slot(qpn)?;
        debug_assert!(self.blocks[block][at].as_ref().is_some_and(|qp| qp.identity.qpn == qpn));
        self.blocks[block][at].as_mut()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.blocks.iter_mut().flatten().flatten()
    }

    /// Returns the queue pairs in the `max` slots from `first` on, and the slot after these, if any.
    pub(super) fn from(
        &self,
        first: usize,
        max: usize,
    ) -> (impl Iterator<Item = &Qp>, Option<usize>) {
        let end = first.saturating_add(max);
        debug_assert!(first <= end);
        let places = self.blocks.len() * BLOCK;
        let at = |slot: usize| self.blocks[slot / BLOCK][slot % BLOCK].as_ref();
        ((first..end.min(places)).filter_map(at), (end < places).then_some(end))
    }

    /// Returns whether there are too many queue pairs for the caches, so that prefetching gains.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.len > CACHED
    }

    /// Prefetches the index entry of a number, if there are many queue pairs.
    pub(super) fn prefetch_index(&self, qpn: Qpn) {
        if self.is_crowded()
            && let Some(entry) = self.index.get(self.home(qpn.value()))
        {
            prefetch::value(entry);
        }
    }

    /// Prefetches a queue pair, if there are many.
    pub(super) fn prefetch(&self, qpn: Qpn) {
        if self.is_crowded()
            && let Some((block, at)) = self.slot(qpn)
        {
            prefetch::value(&self.blocks[block][at]);
        }
    }

    /// Adds a queue pair under a number that is not there.
    pub(super) fn insert(&mut self, qpn: Qpn, qp: Qp) {
        debug_assert!(!self.contains(qpn) && qpn.value() != 0, "the engine has looked");
        debug_assert_eq!(qp.identity.qpn, qpn, "a queue pair is found by its own number");
        if 4 * (self.len + 1) > 3 * self.index.len() {
            let old = std::mem::take(&mut self.index);
            self.index = vec![Entry::default(); (2 * old.len()).max(8)];
            old.into_iter().filter(|entry| entry.number != 0).for_each(|entry| self.enter(entry));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = self.blocks.len() * BLOCK;
            self.blocks.push(std::iter::repeat_with(|| None).take(BLOCK).collect());
            self.free.extend((slot + 1..slot + BLOCK).rev());
            slot
        });
        debug_assert!(self.blocks[slot / BLOCK][slot % BLOCK].is_none(), "a free slot is empty");
        self.blocks[slot / BLOCK][slot % BLOCK] = Some(qp);
        self.enter(Entry { number: qpn.value(), slot: u32::try_from(slot).expect("24 bits") });
        self.len += 1;
        self.check();
        debug_assert!(self.get(qpn).is_some());
    }

    pub(super) fn remove(&mut self, qpn: Qpn) -> Option<Qp> {
        let mut hole = self.find(qpn)?;
        let slot = self.index[hole].slot as usize;
        // Entries behind the hole move up to keep probes short, but none before its own hash place.
        let mask = self.index.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.index[at];
            if entry.number == 0 {
                break;
            }
            let home = self.home(entry.number);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.index[hole] = entry;
                hole = at;
            }
        }
        debug_assert!(self.index[at].number == 0, "the entries that moved up end at a free place");
        self.index[hole] = Entry::default();
        self.free.push(slot);
        self.len -= 1;
        self.check();
        debug_assert!(!self.contains(qpn));
        let removed = self.blocks[slot / BLOCK][slot % BLOCK].take();
        debug_assert!(removed.is_some(), "the index names queue pairs that are there");
        removed
    }

    fn check(&self) {
        debug_assert!(self.index.len().is_power_of_two());
        debug_assert!(4 * self.len <= 3 * self.index.len(), "a search ends at a free place");
        debug_assert_eq!(self.len + self.free.len(), self.blocks.len() * BLOCK);
    }

    /// Adds an entry that is not in the index.
    fn enter(&mut self, new: Entry) {
        debug_assert!(new.number != 0 && new.number < 1 << 24, "a QP number: {new:?}");
        let mask = self.index.len() - 1;
        let mut at = self.home(new.number);
        while self.index[at].number != 0 {
            at = (at + 1) & mask;
        }
        debug_assert!(self.index[at].number == 0, "a place has one entry");
        self.index[at] = new;
    }

    /// Returns the block of a queue pair and its index in the block.
    #[inline]
    fn slot(&self, qpn: Qpn) -> Option<(usize, usize)> {
        let slot = self.index[self.find(qpn)?].slot as usize;
        debug_assert!(slot < self.blocks.len() * BLOCK, "the index names slots that exist");
        Some((slot / BLOCK, slot % BLOCK))
    }

    /// Returns the place of the queue pair's entry in the index.
    #[inline]
    fn find(&self, qpn: Qpn) -> Option<usize> {
        let number = qpn.value();
        let mut at = self.home(number);
        loop {
            let entry = self.index.get(at)?;
            if entry.number == number {
                return (number != 0).then_some(at);
            }
            if entry.number == 0 {
                return None;
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// Returns the place of the index that a number hashes to.
    #[inline]
    fn home(&self, number: u32) -> usize {
        let product = number.wrapping_mul(SPREAD);
        // The high bits of the product depend on all bits of the number, so they are folded in.
        (product ^ product >> 15) as usize & self.index.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::mem::PdId;
    use crate::qp::{QpCap, QpHandle, QpInit, QpType};
    use crate::queue::{CompletionQueue, Doorbells};

    fn qp(qpn: Qpn, cq: &Arc<CompletionQueue>, doorbells: &Arc<Doorbells>) -> Qp {
        let init = QpInit {
            service: QpType::Rc,
            pd: PdId(1),
            send_cq: Arc::clone(cq),
            recv_cq: Arc::clone(cq),
            cap: QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() },
            srq: None,
            xrcd: None,
            sq_sig_all: false,
        };
        Qp::new(Arc::new(QpHandle::new(qpn, init, Arc::clone(doorbells), 1 << 20).unwrap()), 0)
    }

    #[test]
    fn it_agrees_with_a_set_whatever_comes_and_goes() {
        let (cq, doorbells) = (Arc::new(CompletionQueue::new(1, None)), Arc::default());
        let mut table = QpTable::default();
        let mut model = HashSet::new();
        let mut state = 1_u32;
        assert!(table.get(Qpn::from_wire(5)).is_none(), "an empty table has none");
        for step in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few numbers, so that they collide; at times more of them, so that the table grows.
            let numbers = if step % 4000 < 2000 { 40 } else { 400 };
            let qpn = Qpn::from_wire(1 + (state >> 8) % numbers);
            if state >> 31 == 0 && model.insert(qpn) {
                table.insert(qpn, qp(qpn, &cq, &doorbells));
            } else if state >> 31 == 1 {
                assert_eq!(table.remove(qpn).map(|qp| qp.identity.qpn), model.take(&qpn));
            }
            assert_eq!(table.get(qpn).map(|qp| qp.identity.qpn), model.get(&qpn).copied());
            assert_eq!(table.get_mut(qpn).is_some(), table.contains(qpn));
            assert_eq!(table.len(), model.len());
        }
        let all: HashSet<_> = table.values_mut().map(|qp| qp.identity.qpn).collect();
        assert_eq!(all, model);
        assert!(all.iter().all(|&qpn| table.get(qpn).is_some_and(|qp| qp.identity.qpn == qpn)));
        assert!(table.blocks.len() <= 400_usize.div_ceil(BLOCK), "slots are used again");
        assert!(table.get(Qpn::from_wire(0)).is_none(), "what marks a free place is no number");
    }

    #[test]
    fn numbers_of_any_stride_are_found_at_once() {
        for stride in [1, 2, 16, 256, 4096, 0x1_0000] {
            let mut table = QpTable { index: vec![Entry::default(); 512], ..QpTable::default() };
            let numbers = || (1..=200_u32).map(|i| (i * stride + 0x11) & 0xff_ffff);
            numbers().for_each(|number| table.enter(Entry { number, slot: 0 }));
            let steps: usize = numbers()
                .map(|number| {
                    let found = table.find(Qpn::from_wire(number)).unwrap();
                    found.wrapping_sub(table.home(number)) & 511
                })
                .sum();
            // Random numbers would need 0.32 steps each.
            assert!(steps < 200, "{stride}: {steps} steps");
        }
    }
}
