//! The shards of a device: engines that run side by side, each with sockets, a lock and a driver thread
//! of its own. A queue pair is of one shard all its life; memory, domains, completion queues and shared
//! receive queues are of all. Decision 042.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use rxe_net::PortGroups;

use super::attr::comp_vectors;
use super::qpn_allocator::QpnAllocator;
use crate::error::Result;
use crate::observe::Captured;
use crate::os::Environment;
use crate::progress::{Driver, Monitor, Shard, Wakeup};

/// The most shards of a device: a bit each in [`ShardSet`].
pub(super) const MAX_SHARDS: u32 = u32::BITS;

/// The most that a device takes without being asked: each leases a block of QPNs, and other processes on the
/// address want some too.
const MAX_UNASKED: u32 = 8;

/// How queue pairs are spread over shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// Each thread that makes queue pairs has a shard for each completion vector, as long as there are CPUs.
    Threads,
    /// Over so many shards in turn, by their completion queues; those of a vector other than 0 have one.
    Queues(u32),
}

impl Spread {
    /// How many shards there may be.
    pub(super) fn limit(self) -> u32 {
        match self {
            Self::Threads => comp_vectors().min(MAX_UNASKED),
            Self::Queues(count) => count,
        }
    }
}

/// A shard, and what is of it alone.
pub(super) struct Member {
    pub(super) shard: Arc<Shard>,
    pub(super) qpns: QpnAllocator,
    /// Ended when the device is; `None` where a simulation is the driver.
    _driver: Option<Driver>,
}

impl Member {
    /// A shard, which runs from now on.
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

/// Makes a further shard.
pub(super) type Open = Box<dyn Fn() -> Result<(Member, Option<Arc<PortGroups>>)> + Send>;

/// The shards of a device, open or not.
pub(super) struct Shards {
    first: Member,
    /// Opened one after another.
    further: [OnceLock<Member>; MAX_SHARDS as usize - 1],
    /// `None`: there is one shard only.
    growth: Option<Mutex<Growth>>,
}

/// How a device comes to further shards.
struct Growth {
    open: Open,
    spread: Spread,
    /// Shards there may be.
    limit: usize,
    /// Shards there are.
    count: usize,
    /// Who has a shard, and which.
    owners: Vec<(Owner, usize)>,
    /// How many completion vectors there are.
    vectors: u32,
    /// The next completion queue's shard.
    next: usize,
    ports: Arc<Ports>,
    /// Wakes the port monitor.
    monitor: Arc<Wakeup>,
}

/// Whose queue pairs are all of one shard.
struct Owner {
    /// The thread that makes them; `None` stands for all threads.
    thread: Option<Weak<()>>,
    /// The vector of their completion queues.
    vector: u32,
}

thread_local! {
    /// Its weak handles tell a thread from all others, and whether it has ended.
    static THREAD: Arc<()> = Arc::default();
}

impl Shards {
    /// One shard, and never another.
    pub(super) fn one(first: Member) -> Self {
        Self { first, further: [const { OnceLock::new() }; MAX_SHARDS as usize - 1], growth: None }
    }

    /// One shard, and further ones when they are wanted, up to `limit`.
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

    /// The shard that is always there. The connection manager, and what is of no shard, use it.
    #[inline]
    pub(super) fn first(&self) -> &Member {
        &self.first
    }

    /// The shard with this number; the first if there is none.
    #[inline]
    pub(super) fn get(&self, number: usize) -> &Member {
        let further = number.checked_sub(1).and_then(|at| self.further.get(at)?.get());
        further.unwrap_or(&self.first)
    }

    /// All that there are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Member> {
        let further = self.further.iter().map_while(OnceLock::get);
        std::iter::once(&self.first).chain(further)
    }

    /// The number of the shard for a new queue pair. `used`: its completion queues are of these already.
    /// `vector`: that of its receive completion queue.
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

    /// Opens a further shard. Where that cannot be, the device has as many as there are.
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
        // Addresses may have changed while it was opened.
        growth.monitor.wake();
        number
    }
}

impl Growth {
    /// Whose queue pair it is that this thread makes for a completion queue of this vector, if that matters.
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

    /// The shard that it has already.
    fn shard_of(&mut self, owner: Option<&Owner>) -> Option<usize> {
        self.owners.retain(|(owner, _)| owner.lives());
        let owner = owner?;
        self.owners.iter().find(|(known, _)| known.is(owner)).map(|&(_, number)| number)
    }

    /// The shard for who has none; as many as there are, if a further one.
    fn wanted(&self) -> usize {
        match self.spread {
            Spread::Queues(_) => self.next % self.limit,
            Spread::Threads => self.least_used(),
        }
    }

    /// The shard that the fewest have, a further one if each is somebody's.
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

/// Shards of a device, as a set.
#[derive(Debug, Default)]
pub(crate) struct ShardSet(AtomicU32);

impl ShardSet {
    /// The set as bits, by the shards' numbers.
    #[inline]
    pub(crate) fn bits(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Adds a shard. Whether it was not in the set.
    pub(crate) fn add(&self, number: usize) -> bool {
        let bit = 1 << number;
        self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }
}

/// The shards whose addresses follow those of the interface, and whose packets a live capture has.
#[derive(Debug, Default)]
pub(super) struct Ports {
    list: RwLock<Vec<Port>>,
    pub(super) captured: Arc<Captured>,
}

/// A shard, and what it shares with other processes and shards.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) groups: Option<Arc<PortGroups>>,
    pub(super) shard: Arc<Shard>,
}

impl Ports {
    pub(super) fn add(&self, groups: Option<Arc<PortGroups>>, shard: Arc<Shard>) {
        self.captured
            .add(&shard, || self.list.write().push(Port { groups, shard: Arc::clone(&shard) }));
    }

    /// All of them, as of now.
    pub(super) fn all(&self) -> Vec<Port> {
        self.list.read().clone()
    }

    pub(super) fn len(&self) -> usize {
        self.list.read().len()
    }
}
