//! The QPN allocator. QPNs are random, so that a stranger cannot guess them. If several processes
//! share an address, a device uses QPNs from the blocks that it has leased. A block is a range of
//! 65,536 QPNs. If its blocks are full, the device leases a further one.
//!
//! A freed number rests, because its last peer may still send to it. A block first assigns the
//! numbers that it has never assigned, at random, and then the freed ones, oldest first. All other
//! free numbers are therefore assigned before a number is reused: at least 535, because a block
//! with 65,000 queue pairs is full.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::types::Qpn;
use rxe_net::PortGroups;
use rxe_sys::fork_generation;

use crate::error::Result;
use crate::progress::Shard;

/// The allocator of QPNs for the queue pairs of one shard.
#[derive(Debug)]
pub(crate) struct QpnAllocator {
    /// `None` if all QPNs are available to this device.
    groups: Option<Arc<PortGroups>>,
    blocks: Arc<Mutex<Vec<Block>>>,
    /// Held by the one thread that leases a block.
    leasing: Mutex<()>,
}

/// The most queue pairs in a block. It is less than 65,536, so that freed numbers rest.
const MAX_QPS_PER_BLOCK: u32 = 65_000;

/// A block that this device has leased.
struct Block {
    /// The high 8 bits of its QPNs.
    high: u8,
    used: u32,
    /// A bit for each number that was ever assigned.
    given: Box<[u64]>,
    /// The low 16 bits of freed numbers, oldest first.
    resting: VecDeque<u16>,
}

impl Block {
    fn new(high: u8) -> Self {
        let given = vec![0; (1 << 16) / 64].into();
        let mut block = Self { high, used: 0, given, resting: VecDeque::new() };
        if Qpn::MULTICAST.block() == high {
            block.mark(low_bits(Qpn::MULTICAST));
        }
        block
    }

    /// Takes a number, unless the block is full.
    fn take(&mut self, random: u32) -> Option<Qpn> {
        if self.used >= MAX_QPS_PER_BLOCK {
            return None;
        }
        let low = self.take_new(random).or_else(|| self.resting.pop_front())?;
        self.used += 1;
        Qpn::new(u32::from(self.high) << 16 | u32::from(low))
    }

    /// Takes the first number from a random one on that was never assigned. Drawing random numbers
    /// until one is free would take long if few are left.
    fn take_new(&mut self, random: u32) -> Option<u16> {
        let start = random as usize % (1 << 16);
        let (first, bit) = (start / 64, start % 64);
        let words = self.given.len();
        // The first word is searched twice: first its bits from the start on, and finally those
        // before.
        let low = (0..=words).find_map(|step| {
            let word = (first + step) % words;
            let before = if step == 0 { (1 << bit) - 1 } else { 0 };
            let new = !(self.given[word] | before);
            (new != 0).then(|| word * 64 + new.trailing_zeros() as usize)
        })?;
        let low = u16::try_from(low).ok()?;
        self.mark(low);
        Some(low)
    }

    fn give_back(&mut self, number: Qpn) {
        self.resting.push_back(low_bits(number));
        self.used -= 1;
    }

    fn mark(&mut self, low: u16) {
        self.given[usize::from(low) / 64] |= 1 << (low % 64);
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { high, used, .. } = self;
        f.debug_struct("Block").field("high", high).field("used", used).finish_non_exhaustive()
    }
}

fn low_bits(number: Qpn) -> u16 {
    let [low, high, ..] = number.value().to_le_bytes();
    u16::from_le_bytes([low, high])
}

impl QpnAllocator {
    /// Returns the port groups from which blocks are leased.
    pub(super) fn port_groups(&self) -> Option<&PortGroups> {
        self.groups.as_deref()
    }

    pub(super) fn new(groups: Option<Arc<PortGroups>>) -> Self {
        let blocks = groups.iter().flat_map(|groups| groups.blocks());
        let blocks = blocks.map(Block::new).collect();
        Self { groups, blocks: Arc::new(Mutex::new(blocks)), leasing: Mutex::default() }
    }

    /// Returns the high 8 bits of the first block's QPNs.
    pub(super) fn first_block(&self) -> Option<u8> {
        self.blocks.lock().first().map(|block| block.high)
    }

    /// Takes a QPN for one queue pair. If the device has no blocks, the QPN may be in use.
    ///
    /// # Errors
    /// Fails if all blocks are leased, or if a process that shares the address does not respond.
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
            // Another thread may have leased a block meanwhile.
            if let Some(permit) = self.take_leased(shard)? {
                return Ok(permit);
            }
            // This waits for other processes, so it does not hold the shard's lock; the shard
            // serves peers meanwhile.
            let high = groups.lease()?;
            shard.with(|core| core.add_leased_blocks())??;
            self.blocks.lock().push(Block::new(high));
        }
    }

    fn take_leased(&self, shard: &Shard) -> Result<Option<QpnPermit>> {
        let random = shard.environment().random_u32()?;
        let taken = self.blocks.lock().iter_mut().find_map(|block| block.take(random));
        Ok(taken.map(|number| QpnPermit::new(number, Some(Arc::clone(&self.blocks)))))
    }
}

/// A queue pair's exclusive use of a QPN, until this is dropped.
pub(crate) struct QpnPermit {
    qpn: Qpn,
    /// The fork generation of the owning process. In a forked child the lock may be held forever.
    generation: u64,
    /// `None` if the device has no blocks, and other queue pairs may have the number.
    blocks: Option<Arc<Mutex<Vec<Block>>>>,
}

impl QpnPermit {
    fn new(qpn: Qpn, blocks: Option<Arc<Mutex<Vec<Block>>>>) -> Self {
        Self { qpn, generation: fork_generation(), blocks }
    }

    /// Returns the number.
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
            block.give_back(self.qpn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;
    use crate::os::random_u32;

    fn draw(block: &mut Block) -> Option<Qpn> {
        block.take(random_u32().unwrap())
    }

    #[test]
    fn a_block_gives_each_number_once_and_never_the_reserved_one() {
        for high in [1, 255] {
            let mut block = Block::new(high);
            let mut numbers: HashSet<_> =
                (0..MAX_QPS_PER_BLOCK).map(|_| draw(&mut block).unwrap()).collect();
            assert_eq!((numbers.len(), draw(&mut block)), (65_000, None));
            assert!(numbers.iter().all(|number| number.block() == high));
            assert!(!numbers.contains(&Qpn::MULTICAST));
            // A full block still assigns freed numbers, and never one that is in use.
            for _ in 0..2000 {
                let number = *numbers.iter().next().unwrap();
                numbers.remove(&number);
                block.give_back(number);
                let next = draw(&mut block).unwrap();
                assert!(numbers.insert(next), "{next} is in use");
                assert_ne!(next, Qpn::MULTICAST);
            }
        }
    }

    /// For any number of queue pairs, destroyed in any order.
    #[test]
    fn a_number_rests_until_all_others_that_are_free_have_been_given() {
        for live in [1, 1000, 40_000, MAX_QPS_PER_BLOCK as usize] {
            let mut block = Block::new(7);
            let mut used: Vec<_> = (0..live).map(|_| draw(&mut block).unwrap()).collect();
            let mut freed = HashMap::new();
            for creation in 0..150_000_usize {
                let ends = random_u32().unwrap() as usize % used.len();
                let number = used.swap_remove(ends);
                block.give_back(number);
                freed.insert(number, creation);
                let number = draw(&mut block).unwrap();
                if let Some(at) = freed.remove(&number) {
                    let others = creation - at;
                    assert!(others >= 65_536 - live, "{live} in use: {others} others in between");
                }
                used.push(number);
            }
        }
    }

    #[test]
    fn numbers_are_found_around_the_end_of_a_block() {
        let number = |low: u32| Qpn::new(0x7_0000 | low);
        let mut block = Block::new(7);
        assert_eq!(block.take(0xffff), number(0xffff));
        assert_eq!(block.take(0xffff), number(0));
        block.given.fill(u64::MAX);
        // The only free number precedes the start, in the same word.
        block.given[0] = !(1 << 0x3e);
        assert_eq!(block.take(0x3f), number(0x3e));
        block.given[2] = !1;
        assert_eq!(block.take(0x20), number(0x80));
    }
}
