//! The shards of a device: engines that run in parallel, each with its own sockets, lock and driver
//! thread. A queue pair belongs to one shard for its whole life. Memory, domains, completion queues
//! and shared receive queues belong to all. Decision 042.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use rxe_net::PortGroups;

use super::attr::comp_vectors;
use super::qpn_allocator::QpnAllocator;
use crate::error::Result;
use crate::observe::LiveCaptureSlot;
use crate::os::Environment;
use crate::progress::{Driver, Monitor, Shard, Wakeup};

/// The most shards of a device: each has a bit in [`ShardSet`].
pub(super) const MAX_SHARDS: u32 = u32::BITS;

/// The most shards of a device by default. Each leases a block of QPNs, and other processes on the
/// address need blocks too.
const MAX_UNASKED: u32 = 8;

/// How queue pairs are spread over shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// Each thread that creates queue pairs has a shard for each completion vector, as long as
    /// there are CPUs.
    Threads,
    /// This number of shards is assigned in turn to completion queues. All completion queues of one
    /// vector other than 0 share a shard.
    Queues(u32),
}

impl Spread {
    /// Returns the most shards that there may be.
    pub(super) fn limit(self) -> u32 {
        match self {
            Self::Threads => comp_vectors().min(MAX_UNASKED),
            Self::Queues(count) => count,
        }
    }
}

/// A shard and the parts that belong to it alone.
pub(super) struct Member {
    pub(super) shard: Arc<Shard>,
    pub(super) qpns: QpnAllocator,
    /// The driver thread, which ends with the device; `None` if a simulation drives the shard.
    _driver: Option<Driver>,
}

impl Member {
    /// Creates the member and starts its driver.
    pub(super) fn new(
        shard: Arc<Shard>,
        groups: Option<Arc<PortGroups>>,
        port_monitor: Option<Box<dyn Monitor>>,
    ) -> Result<Self> {
        let driver = match shard.environment() {
            Environment::System => Some(Driver::start(Arc::clone(&shard), port_monitor)?),
            Environment::Simulated(_) => None,
        };
        Ok(Self { shard, qpns: QpnAllocator::new(groups), _driver: driver })
    }
}

/// Opens a further shard.
pub(super) type Open = Box<dyn Fn() -> Result<(Member, Option<Arc<PortGroups>>)> + Send>;

/// The shards of a device, including those not yet opened.
pub(super) struct Shards {
    first: Member,
    /// The further shards, which are opened one after another.
    further: [OnceLock<Member>; MAX_SHARDS as usize - 1],
    /// The state for opening further shards; `None` if there is only one shard.
    growth: Option<Mutex<Growth>>,
}

/// The state for opening further shards.
struct Growth {
    open: Open,
    spread: Spread,
    limit: usize,
    count: usize,
    /// The owners of shards, with their shard's number.
    owners: Vec<(Owner, usize)>,
    vectors: u32,
    /// The number of the next completion queue's shard.
    next: usize,
    ports: Arc<Ports>,
    monitor: Arc<Wakeup>,
}

/// An owner, whose queue pairs all belong to one shard.
struct Owner {
    /// The thread that creates the queue pairs; `None` stands for all threads.
    thread: Option<Weak<()>>,
    /// The vector of the queue pairs' completion queues.
    vector: u32,
}

thread_local! {
    /// Weak handles to this identify a thread and tell whether it has ended.
    static THREAD: Arc<()> = Arc::default();
}

impl Shards {
    /// Creates the set of a device with one shard only.
    pub(super) fn one(first: Member) -> Self {
        Self { first, further: [const { OnceLock::new() }; MAX_SHARDS as usize - 1], growth: None }
    }

    /// Creates the set of a device that opens further shards when they are needed, up to `limit`.
    pub(super) fn growing(
        first: Member,
        spread: Spread,
        limit: u32,
        ports: Arc<Ports>,
        open: Open,
    ) -> Self {
        let (limit, vectors) = (limit as usize, comp_vectors());
        let monitor = first.shard.wakeup();
        let (count, owners, next) = (1, Vec::new(), 0);
        let growth = Growth { open, spread, limit, count, owners, vectors, next, ports, monitor };
        Self { growth: Some(Mutex::new(growth)), ..Self::one(first) }
    }

    /// Returns the first shard, which always exists. The connection manager belongs to it.
    #[inline]
    pub(super) fn first(&self) -> &Member {
        &self.first
    }

    /// Returns the shard with this number, or the first if there is none.
    #[inline]
    pub(super) fn get(&self, number: usize) -> &Member {
        let further = number.checked_sub(1).and_then(|at| self.further.get(at)?.get());
        further.unwrap_or(&self.first)
    }

    /// Returns all open shards.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        let further = self.further.iter().map_while(OnceLock::get);
        std::iter::once(&self.first).chain(further)
    }

    /// Returns the number of the shard for a new queue pair. `used` has a bit for each shard of its
    /// completion queues, `vector` is the vector of its receive completion queue.
    pub(super) fn choose(&self, used: u32, vector: u32) -> usize {
        if used != 0 {
            return used.trailing_zeros() as usize;
        }
        let Some(growth) = &self.growth else { return 0 };
        let mut growth = growth.lock();
        let owner = growth.owner(vector);
        if let Some(number) = growth.shard_of(owner.as_ref()) {
            return number;
        }
        let wanted = growth.wanted();
        let number = if wanted == growth.count { self.grow(&mut growth) } else { wanted };
        growth.next = number + 1;
        growth.owners.extend(owner.map(|owner| (owner, number)));
        number
    }

    /// Opens a further shard and returns its number. If that fails, the device keeps the shards
    /// that it has.
    fn grow(&self, growth: &mut Growth) -> usize {
        let open = &mut growth.open;
        let Ok((member, groups)) = rxe_sys::on_own_stack("rxe-open", open) else {
            growth.limit = growth.count;
            return 0;
        };
        let number = growth.count;
        growth.ports.add(groups, Arc::clone(&member.shard));
        if self.further[number - 1].set(member).is_ok() {
            growth.count += 1;
        }
        // Addresses may have changed while the shard was opened.
        growth.monitor.wake();
        number
    }
}

impl Growth {
    /// Returns the owner of a queue pair that this thread creates for a completion queue of this
    /// vector, unless queue pairs of vector 0 are spread in turn.
    fn owner(&self, vector: u32) -> Option<Owner> {
        let vector = vector % self.vectors;
        match self.spread {
            Spread::Threads => {
                let own = THREAD.try_with(Arc::downgrade).unwrap_or_default();
                Some(Owner { thread: Some(own), vector })
            }
            Spread::Queues(_) => (vector > 0).then_some(Owner { thread: None, vector }),
        }
    }

    /// Returns the shard that an owner already has.
    fn shard_of(&mut self, owner: Option<&Owner>) -> Option<usize> {
        self.owners.retain(|(owner, _)| owner.lives());
        let owner = owner?;
        self.owners.iter().find(|(known, _)| known.is(owner)).map(|&(_, number)| number)
    }

    /// Returns the shard for a new owner. If it equals `count`, a further shard must be opened.
    fn wanted(&self) -> usize {
        match self.spread {
            Spread::Queues(_) => self.next % self.limit,
            Spread::Threads => self.least_used(),
        }
    }

    /// Returns the shard with the fewest owners, or a further one if each has an owner.
    fn least_used(&self) -> usize {
        let owners = |number| self.owners.iter().filter(|(_, of)| *of == number).count();
        (0..self.limit.min(self.count + 1)).min_by_key(|&number| owners(number)).unwrap_or(0)
    }
}

impl Owner {
    fn lives(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| thread.strong_count() > 0)
    }

    fn is(&self, other: &Self) -> bool {
        let same_thread = match (&self.thread, &other.thread) {
            (Some(one), Some(other)) => one.ptr_eq(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        same_thread && self.vector == other.vector
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|member| &member.shard)).finish()
    }
}

/// A set of a device's shards.
#[derive(Debug, Default)]
pub(crate) struct ShardSet(AtomicU32);

impl ShardSet {
    /// Returns the set, one bit for each shard number.
    #[inline]
    pub(crate) fn bits(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Adds a shard. Returns whether it was not in the set.
    pub(crate) fn add(&self, number: usize) -> bool {
        let bit = 1 << number;
        self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }
}

/// The shards whose addresses follow the interface, and whose packets a live capture receives.
#[derive(Debug, Default)]
pub(super) struct Ports {
    list: RwLock<Vec<Port>>,
    pub(super) live_capture: Arc<LiveCaptureSlot>,
}

/// A shard and what it shares with other processes and shards.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) groups: Option<Arc<PortGroups>>,
    pub(super) shard: Arc<Shard>,
}

impl Ports {
    pub(super) fn add(&self, groups: Option<Arc<PortGroups>>, shard: Arc<Shard>) {
        self.live_capture
            .add(&shard, || self.list.write().push(Port { groups, shard: Arc::clone(&shard) }));
    }

    /// Returns all present shards.
    pub(super) fn all(&self) -> Vec<Port> {
        self.list.read().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.list.read().len()
    }
}
