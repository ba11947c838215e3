//! One device: its objects, and the requests that were posted and have completed.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rxe_core::engine::{Config, Engine, Limits};
use rxe_core::mem::{Access, Buffer, Memory, PdId};
use rxe_core::qp::{QpHandle, QpState, QpType};
use rxe_core::queue::{
    AddressHandle, Completion, CompletionQueue, SharedReceiveQueue, Status, XrcDomain,
};
use rxe_core::types::{Gid, Key, Qpn};
use rxe_core::wire::{TxBatch, TxLimits};

/// The bit that marks the ID of a receive.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The two protection domains. Every object belongs to one of them.
pub(super) const PDS: [PdId; 2] = [PdId(1), PdId(2)];

/// A device and all objects created on it.
pub(super) struct Node {
    pub(super) engine: Engine,
    pub(super) memory: Arc<Memory>,
    pub(super) cqs: Vec<Arc<CompletionQueue>>,
    pub(super) srqs: Vec<Shared>,
    pub(super) xrcd: Arc<XrcDomain>,
    pub(super) qps: Vec<Pair>,
    pub(super) regions: Vec<Region>,
    pub(super) windows: Vec<Key>,
    pub(super) ahs: Vec<Arc<AddressHandle>>,
    pub(super) batch: TxBatch,
    pub(super) ids: u64,
}

/// A queue pair, which may have been destroyed, and its posted requests.
pub(super) struct Pair {
    pub(super) handle: Arc<QpHandle>,
    pub(super) alive: bool,
    pub(super) sends: VecDeque<u64>,
    pub(super) receives: VecDeque<u64>,
}

/// A shared receive queue and its posted receives.
pub(super) struct Shared {
    pub(super) srq: Arc<SharedReceiveQueue>,
    pub(super) receives: Vec<u64>,
}

/// A memory region.
pub(super) struct Region {
    pub(super) key: Key,
    pub(super) base: u64,
    pub(super) len: u64,
    buffer: Buffer,
    /// The contents of the region when it was deregistered.
    sealed: Option<Vec<u8>>,
}

impl Region {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.len()];
        self.buffer.span(0, self.len).expect("all of it").read(&mut bytes).expect("mapped");
        bytes
    }
}

pub(super) fn address(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, if node == 0 { 1 } else { 2 }).into()
}

impl Node {
    pub(super) fn new(index: usize) -> Self {
        let memory = Arc::new(Memory::new());
        let v6 = if index == 0 { "fd00::1" } else { "fd00::2" };
        let gids = vec![
            Gid::from(address(index)),
            Gid::from(v6.parse::<IpAddr>().expect("an address")),
            Gid::ZERO,
        ];
        let limits = Limits { max_qp: 7, max_qp_wr: 32, max_sge: 4, ..Limits::default() };
        let config = Config { gids, limits, ..Config::default() };
        let engine = Engine::new(config, Arc::clone(&memory));
        let xrcd = Arc::new(XrcDomain::new());
        let cqs = [64, 4].map(|depth| Arc::new(CompletionQueue::new(depth, None)));
        let mut node = Self {
            engine,
            memory,
            cqs: cqs.to_vec(),
            srqs: Vec::new(),
            xrcd,
            qps: Vec::new(),
            regions: Vec::new(),
            windows: Vec::new(),
            ahs: Vec::new(),
            batch: TxBatch::new(TxLimits { batch_bytes: 1 << 13, ..TxLimits::default() }),
            ids: 0,
        };
        node.add_srq(PDS[0], 8);
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        node.register(PDS[0], all, 0x1000, 1200).expect("a region");
        node
    }

    /// Creates a shared receive queue that an XRC peer can also name.
    pub(super) fn add_srq(&mut self, pd: PdId, depth: u32) {
        // Both devices use the same numbers.
        let number = self.srqs.len() as u32 + 1;
        let cq = Arc::clone(&self.cqs[0]);
        let srq = Arc::new(SharedReceiveQueue::new_xrc(number, pd, depth, 2, cq));
        self.xrcd.add(Arc::clone(&srq));
        self.srqs.push(Shared { srq, receives: Vec::new() });
    }

    pub(super) fn register(
        &mut self,
        pd: PdId,
        access: Access,
        base: u64,
        len: u64,
    ) -> Result<(), rxe_core::mem::AccessError> {
        let buffer = Buffer::zeroed(usize::try_from(len).expect("a small number"));
        let number = (self.regions.len() + self.windows.len() + 1) as u32;
        let key = self.memory.register(pd, buffer.clone(), base, access, counted(number))?;
        self.regions.push(Region { key, base, len, buffer, sealed: None });
        Ok(())
    }

    pub(super) fn deregister(&mut self, index: usize) {
        let region = &mut self.regions[index];
        assert_eq!(self.memory.deregister(region.key), region.sealed.is_none());
        if region.sealed.is_none() {
            region.sealed = Some(region.bytes());
        }
    }

    pub(super) fn add_window(&mut self, pd: PdId, kind: rxe_core::mem::WindowType) {
        let number = (self.regions.len() + self.windows.len() + 1) as u32;
        self.windows.push(self.memory.create_window(pd, kind, counted(number)));
    }

    /// Returns the index of the queue pair with this number, which must exist.
    pub(super) fn find(&self, qpn: Qpn) -> usize {
        let found = self.qps.iter().position(|pair| pair.alive && pair.handle.qpn() == qpn);
        found.expect("completions name a queue pair that is there")
    }

    /// Polls all completions, and compares them with the posted requests.
    pub(super) fn poll(&mut self) {
        for cq in self.cqs.clone() {
            let complete = !cq.is_overflowed();
            while let Some(done) = cq.poll() {
                self.account(&done, complete);
            }
        }
    }

    fn account(&mut self, done: &Completion, complete: bool) {
        let at = self.find(done.qpn);
        let pair = &mut self.qps[at];
        if done.id & RECEIVE == 0 {
            // Earlier requests were not signaled, or their completions were lost in an overflow.
            let place = pair.sends.iter().position(|&id| id == done.id);
            let place = place.unwrap_or_else(|| panic!("{done:?} was not outstanding"));
            pair.sends.drain(..=place);
        } else if let Some(place) = pair.receives.iter().position(|&id| id == done.id) {
            assert!(place == 0 || !complete, "{done:?} overtakes {place} others");
            pair.receives.drain(..=place);
        } else {
            let mut shared = self.srqs.iter_mut();
            let taken = shared.find_map(|shared| {
                let place = shared.receives.iter().position(|&id| id == done.id)?;
                Some(shared.receives.remove(place))
            });
            assert!(taken.is_some(), "{done:?} was not outstanding");
        }
        assert!(done.status != Status::Success || done.byte_len <= 1 << 20, "{done:?}");
    }

    /// Forgets the posted requests of a queue pair.
    pub(super) fn forget(&mut self, index: usize) {
        self.poll();
        self.qps[index].sends.clear();
        self.qps[index].receives.clear();
    }

    /// Checks the invariants that hold whenever nothing is in progress.
    pub(super) fn check(&self) {
        let alive = self.qps.iter().filter(|pair| pair.alive);
        assert_eq!(alive.clone().count(), self.engine.qp_count());
        for Pair { handle, .. } in alive {
            assert_eq!(self.engine.qp_state(handle.qpn()), Some(handle.state()));
            let (sends, receives) = (handle.sends_outstanding(), handle.receives_outstanding());
            let cap = &handle.init().cap;
            assert!(sends <= cap.max_send_wr && receives <= cap.max_recv_wr);
            if handle.state() == QpState::Err {
                let own = handle.init().srq.is_none() && handle.init().service != QpType::XrcRecv;
                assert_eq!(sends, 0, "requests in the error state");
                assert!(!own || receives == 0, "receives in the error state");
            }
        }
    }

    /// Checks that deregistered memory has not changed.
    pub(super) fn check_memory(&self) {
        for region in &self.regions {
            assert!(region.sealed.as_ref().is_none_or(|sealed| *sealed == region.bytes()));
        }
    }
}

/// Returns a source of keys that are equal in each run with the same bytes.
fn counted(number: u32) -> impl FnMut() -> u32 {
    move || number << 8 | 0x10
}
