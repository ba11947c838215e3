//! The QPN allocator. QPNs are random, so that a stranger cannot guess them. Where several processes
//! share an address, they come from the blocks of 65,536 that the device has leased; it leases a further
//! block when those it has are full.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::types::Qpn;
use rxe_net::{PortGroups, fork_generation};

use crate::error::Result;
use crate::progress::Shard;

/// The numbers that queue pairs of a device can get.
#[derive(Debug)]
pub(crate) struct QpnAllocator {
    /// `None`: all are this device's.
    groups: Option<Arc<PortGroups>>,
    blocks: Arc<Mutex<Vec<Block>>>,
    /// One at a time leases a block.
    leasing: Mutex<()>,
}

/// Queue pairs in a block: some fewer than it has numbers, so that there is always a choice.
const MAX_QPS_PER_BLOCK: u32 = 65_000;

/// A block that is this device's.
struct Block {
    /// The high 8 bits.
    high: u8,
    used: u32,
    /// A bit for each of its numbers.
    taken: Box<[u64]>,
}

impl Block {
    fn new(high: u8) -> Self {
        let mut block = Self { high, used: 0, taken: vec![0; (1 << 16) / 64].into() };
        if Qpn::MULTICAST.block() == high {
            block.mark(Qpn::MULTICAST.value());
        }
        block
    }

    /// Takes the free number that is the next from a random one on. Trying random ones until one is free
    /// would take long where few are.
    fn take(&mut self, random: u32) -> Option<u32> {
        if self.used >= MAX_QPS_PER_BLOCK {
            return None;
        }
        let start = random as usize % (1 << 16);
        let (first, bit) = (start / 64, start % 64);
        let words = self.taken.len();
        // The first word comes twice: its bits from the start on, and at last those before.
        let low = (0..=words).find_map(|step| {
            let word = (first + step) % words;
            let before = if step == 0 { (1 << bit) - 1 } else { 0 };
            let free = !(self.taken[word] | before);
            (free != 0).then(|| word * 64 + free.trailing_zeros() as usize)
        })?;
        let low = u32::try_from(low).ok()?;
        self.mark(low);
        self.used += 1;
        Some(u32::from(self.high) << 16 | low)
    }

    fn give_back(&mut self, number: u32) {
        let (word, bit) = place(number);
        self.taken[word] &= !bit;
        self.used -= 1;
    }

    fn mark(&mut self, number: u32) {
        let (word, bit) = place(number);
        self.taken[word] |= bit;
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { high, used, .. } = self;
        f.debug_struct("Block").field("high", high).field("used", used).finish_non_exhaustive()
    }
}

fn place(number: u32) -> (usize, u64) {
    let low = number as usize % (1 << 16);
    (low / 64, 1 << (low % 64))
}

impl QpnAllocator {
    /// Where the blocks are leased.
    pub(super) fn port_groups(&self) -> Option<&PortGroups> {
        self.groups.as_deref()
    }

    pub(super) fn new(groups: Option<Arc<PortGroups>>) -> Self {
        let blocks = groups.iter().flat_map(|groups| groups.blocks());
        let blocks = blocks.map(Block::new).collect();
        Self { groups, blocks: Arc::new(Mutex::new(blocks)), leasing: Mutex::default() }
    }

    /// The high 8 bits of the first numbers.
    pub(super) fn first_block(&self) -> Option<u8> {
        self.blocks.lock().first().map(|block| block.high)
    }

    /// A permit for one more queue pair. Of a device that has no blocks, it is for a number that may be free.
    ///
    /// # Errors
    /// All blocks are taken, or a process with which the address is shared does not answer.
    pub(crate) fn take(&self, shard: &Shard) -> Result<QpnPermit> {
        let Some(groups) = &self.groups else {
            let qpn = Qpn::from_wire(shard.environment().random_u32()?);
            return Ok(QpnPermit::new(qpn, None));
        };
        loop {
            if let Some(permit) = self.take_leased(shard)? {
                return Ok(permit);
            }
            let _leasing = self.leasing.lock();
            // Another may have leased one meanwhile.
            if let Some(permit) = self.take_leased(shard)? {
                return Ok(permit);
            }
            // This waits for other processes: without the shard, which serves peers meanwhile.
            let high = groups.lease()?;
            shard.with(|core| core.take_up())??;
            self.blocks.lock().push(Block::new(high));
        }
    }

    fn take_leased(&self, shard: &Shard) -> Result<Option<QpnPermit>> {
        let random = shard.environment().random_u32()?;
        let taken = self.blocks.lock().iter_mut().find_map(|block| block.take(random));
        Ok(taken
            .map(|number| QpnPermit::new(Qpn::from_wire(number), Some(Arc::clone(&self.blocks)))))
    }
}

/// A queue pair's permit to its number, which is its alone until this is dropped.
pub(crate) struct QpnPermit {
    qpn: Qpn,
    /// Of the process that it is of. In a forked child the lock may be held for ever.
    generation: u64,
    /// `None`: the device has no blocks, and others may have the number.
    blocks: Option<Arc<Mutex<Vec<Block>>>>,
}

impl QpnPermit {
    fn new(qpn: Qpn, blocks: Option<Arc<Mutex<Vec<Block>>>>) -> Self {
        Self { qpn, generation: fork_generation(), blocks }
    }

    /// The number.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }
}

impl Drop for QpnPermit {
    fn drop(&mut self) {
        if let Some(blocks) = &self.blocks
            && self.generation == fork_generation()
            && let Some(block) = blocks.lock().iter_mut().find(|b| b.high == self.qpn.block())
        {
            block.give_back(self.qpn.value());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_block_gives_each_number_once_and_never_the_reserved_one() {
        for high in [1, 255] {
            let mut block = Block::new(high);
            let mut numbers: HashSet<_> = (0..MAX_QPS_PER_BLOCK)
                .map(|_| block.take(crate::os::random_u32().unwrap()).unwrap())
                .collect();
            assert_eq!((numbers.len(), block.take(0)), (65_000, None));
            assert!(numbers.iter().all(|number| number >> 16 == u32::from(high)));
            assert!(!numbers.contains(&Qpn::MULTICAST.value()));
            // The only choice is found from every start.
            for start in [0, 63, 64, 0xffff] {
                let number = *numbers.iter().next().unwrap();
                numbers.remove(&number);
                block.give_back(number);
                let again = block.take(start).unwrap();
                assert!(numbers.insert(again), "{again:#x} is taken already");
            }
        }
    }

    #[test]
    fn numbers_are_found_around_the_end_of_a_block() {
        let mut block = Block::new(7);
        assert_eq!(block.take(0xffff), Some(0x7_ffff));
        assert_eq!(block.take(0xffff), Some(0x7_0000));
        block.taken.fill(u64::MAX);
        block.give_back(0x7_003f);
        // Behind the start, in the word that it is in.
        block.used = 1;
        assert_eq!(block.take(0x3f + 1), Some(0x7_003f));
        block.give_back(0x7_0002);
        assert_eq!(block.take(0x20), Some(0x7_0002));
    }
}
