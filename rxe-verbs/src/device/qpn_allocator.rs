//! The QPN allocator. QPNs are random, so that a stranger can not guess them. Where several processes
//! share an address, they come from the blocks of 65,536 that the device has leased; it leases a further
//! block when those it has are full.

use std::sync::Arc;

use parking_lot::Mutex;
use rxe_core::types::Qpn;
use rxe_net::PortGroups;

use crate::error::Result;
use crate::os::random_u32;
use crate::progress::Shard;

/// See the module's opening.
#[derive(Debug)]
pub(crate) struct QpnAllocator {
    /// `None`: all are this device's.
    groups: Option<Arc<PortGroups>>,
    blocks: Arc<Mutex<Vec<Block>>>,
    /// One at a time leases a block.
    leasing: Mutex<()>,
}

#[derive(Debug)]
struct Block {
    /// The high 8 bits.
    high: u8,
    used: u32,
}

/// Queue pairs in a block: some fewer than it has numbers, so that a random one is soon a free one.
const MAX_QPS_PER_BLOCK: u32 = 65_000;

impl QpnAllocator {
    pub(super) fn new(groups: Option<Arc<PortGroups>>) -> Self {
        let blocks = groups.iter().flat_map(|groups| groups.blocks());
        let blocks = blocks.map(|high| Block { high, used: 0 }).collect();
        Self { groups, blocks: Arc::new(Mutex::new(blocks)), leasing: Mutex::default() }
    }

    /// The high 8 bits of the first numbers.
    pub(super) fn first_block(&self) -> Option<u8> {
        self.blocks.lock().first().map(|block| block.high)
    }

    /// A permit for one more queue pair.
    ///
    /// # Errors
    /// All blocks are taken, or a process with which the address is shared does not answer.
    pub(crate) fn take(&self, shard: &Shard) -> Result<QpnPermit> {
        let Some(groups) = &self.groups else { return Ok(QpnPermit { block: None }) };
        loop {
            if let Some(permit) = self.take_leased() {
                return Ok(permit);
            }
            let _leasing = self.leasing.lock();
            // Another may have leased one meanwhile.
            if let Some(permit) = self.take_leased() {
                return Ok(permit);
            }
            // This waits for other processes: without the shard, which serves peers meanwhile.
            let high = groups.lease()?;
            shard.with(|core| core.take_up())??;
            self.blocks.lock().push(Block { high, used: 0 });
        }
    }

    fn take_leased(&self) -> Option<QpnPermit> {
        let mut blocks = self.blocks.lock();
        let block = blocks.iter_mut().find(|block| block.used < MAX_QPS_PER_BLOCK)?;
        block.used += 1;
        Some(QpnPermit { block: Some((Arc::clone(&self.blocks), block.high)) })
    }
}

/// A queue pair's permit to a number of a block, until it is dropped.
pub(crate) struct QpnPermit {
    block: Option<(Arc<Mutex<Vec<Block>>>, u8)>,
}

impl QpnPermit {
    /// One that may be free.
    pub(crate) fn random(&self) -> Result<Qpn> {
        let random = random_u32()?;
        Ok(Qpn::from_wire(match &self.block {
            Some((_, high)) => u32::from(*high) << 16 | random & 0xffff,
            None => random,
        }))
    }
}

impl Drop for QpnPermit {
    fn drop(&mut self) {
        if let Some((blocks, high)) = &self.block
            && let Some(block) = blocks.lock().iter_mut().find(|block| block.high == *high)
        {
            block.used -= 1;
        }
    }
}
