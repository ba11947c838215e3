//! A device's part in the groups of its addresses: the blocks of queue pair numbers that it has
//! leased, and its sockets.
//!
//! Invariants:
//! - Whoever waits for other processes holds `adding`, never `state`: what a device needs while it
//!   works ([`Share::leave`], [`Share::take_ready`]) waits for nobody.
//! - A block is this device's on all of its addresses, but on those that it could not enter and on
//!   those that were not there when it was leased.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::door::{Door, Doors};
use super::group;
use super::name::Place;
use super::patience::{PATIENCE, Patience};
use super::{BLOCKS, Blocks, Group, Station};
use crate::NetError;
use crate::sys::unix::UnixSocket;
use crate::udp::owner;
use crate::udp::socket::UdpSocket;

/// What a device shares with other processes: its addresses, and the queue pair numbers on them.
///
/// What may have to wait for these processes is done here, by any thread, without the backend
/// ([`crate::Sharing::share`]); what has come of it works from the next
/// [`crate::Sharing::take_up`] or [`crate::Sharing::set_addresses`] on.
#[derive(Debug)]
pub struct Share {
    scope: u32,
    doors: Doors,
    /// One at a time enters addresses or leases blocks.
    adding: Mutex<()>,
    state: Mutex<State>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// In the order in which they were leased.
    blocks: Vec<u8>,
    entered: BTreeMap<IpAddr, Entered>,
    /// The backend has not taken them up yet. What is here is complete: nothing takes it back but
    /// leaving the address.
    ready: Vec<Station>,
    /// What could not be entered, and the backend has not been told of.
    failed: Vec<(IpAddr, NetError)>,
}

#[derive(Debug)]
struct Entered {
    /// Up to the highest of `blocks`.
    group: Group,
    blocks: Blocks,
}

impl State {
    /// The backend may have these, but those on addresses that were left meanwhile.
    fn make_ready(&mut self, stations: impl Iterator<Item = Station>) {
        let Self { entered, ready, .. } = self;
        let has = |s: &Station| entered.get(&s.address()).is_some_and(|e| e.blocks.has(s.block));
        ready.extend(stations.filter(has));
    }
}

impl Share {
    /// Leases a block on these addresses of the interface with index `scope`, and takes part in
    /// their groups. An address that is not there is left out; the reason comes back if none is.
    ///
    /// # Errors
    /// Some address can not be shared, or none is there, or all blocks are taken.
    pub(crate) fn open(
        addresses: &[IpAddr],
        scope: u32,
    ) -> Result<(Member, Vec<Station>), NetError> {
        let share = Member(Arc::new(Self {
            scope,
            doors: Doors::new()?,
            adding: Mutex::default(),
            state: Mutex::default(),
            closed: AtomicBool::new(false),
        }));
        share.lease_on(Some(addresses))?;
        let stations = share.take_ready();
        Ok((share, stations))
    }

    /// Leases one more block, on all addresses.
    ///
    /// # Errors
    /// All blocks are taken, or another process does not let this one have its sockets.
    pub fn lease(&self) -> Result<u8, NetError> {
        self.lease_on(None)
    }

    /// Takes part in the groups of those of these addresses on which it does not yet. What is wrong
    /// with one that can not be shared is said by [`crate::Sharing::set_addresses`].
    pub fn enter(&self, addresses: &[IpAddr]) {
        self.state().failed.clear();
        self.enter_rest(addresses);
    }

    /// Whether [`Share::enter`] has something to do for these.
    pub fn lacks_any(&self, addresses: &[IpAddr]) -> bool {
        !self.lacks(addresses).is_empty()
    }

    /// The same, but for those that it has tried already.
    pub(crate) fn enter_rest(&self, addresses: &[IpAddr]) {
        if self.lacks(addresses).is_empty() {
            return;
        }
        let _adding = self.adding();
        let blocks = self.blocks();
        for (address, missing) in self.lacks(addresses) {
            let place = Place::new(address, self.scope);
            let is_new = !self.addresses().contains(&address);
            let entered = self.lock(&place).and_then(|_lock| {
                let missing = blocks.iter().filter(|block| missing.has(**block));
                let joined = missing.copied().map(|block| {
                    let leased = Leased::bind(&place, block).map_err(|e| match e.kind() {
                        std::io::ErrorKind::AddrInUse => NetError::BlockTaken { address, block },
                        _ => NetError::os("bind a unix socket", e),
                    })?;
                    self.join(place, block, leased, is_new && block == blocks[0])
                });
                joined.collect::<Result<Vec<_>, _>>()
            });
            match entered {
                Ok(stations) => self.state().make_ready(stations.into_iter().flatten()),
                Err(e) => {
                    if is_new {
                        self.leave(address);
                    }
                    self.state().failed.push((address, e));
                }
            }
        }
    }

    /// Those of these addresses that lack blocks and have not been tried, and which.
    fn lacks(&self, addresses: &[IpAddr]) -> Vec<(IpAddr, Blocks)> {
        let state = self.state();
        let tried = |address| state.failed.iter().any(|(a, _)| *a == address);
        let lack = addresses.iter().filter(|address| !tried(**address)).map(|&address| {
            let has = state.entered.get(&address).map_or(Blocks::default(), |e| e.blocks);
            (address, state.blocks.iter().copied().filter(|block| !has.has(*block)).collect())
        });
        lack.filter(|(_, blocks): &(_, Blocks)| !blocks.is_empty()).collect()
    }

    /// On these addresses, which are new, or on those that are entered.
    fn lease_on(&self, new: Option<&[IpAddr]>) -> Result<u8, NetError> {
        let _adding = self.adding();
        let mut addresses = new.map_or_else(|| self.addresses(), <[_]>::to_vec);
        // In the same order in all processes, so that none waits for one that waits for it.
        addresses.sort_unstable();
        addresses.dedup();
        let places: Vec<_> = addresses.iter().map(|a| Place::new(*a, self.scope)).collect();
        let locks = places.iter().map(|place| self.lock(place)).collect::<Result<Vec<_>, _>>()?;
        let (block, leased) = lease(&places)?;
        let mut not_there = None;
        let mut joined = Vec::new();
        for (place, leased) in places.into_iter().zip(leased) {
            match self.join(place, block, leased, new.is_some()) {
                Ok(station) => joined.push(station),
                Err(e @ NetError::NoSuchAddress { .. }) => not_there = Some(e),
                Err(e) => {
                    self.take_back(block);
                    return Err(e);
                }
            }
        }
        drop(locks);
        match not_there {
            Some(e) if joined.is_empty() => Err(e),
            _ => {
                let mut state = self.state();
                state.blocks.push(block);
                state.make_ready(joined.into_iter().flatten());
                Ok(block)
            }
        }
    }

    /// Takes a place in an address's group; the address is locked. `None` if it is not `new` and has
    /// been left meanwhile.
    fn join(
        &self,
        place: Place,
        block: u8,
        leased: Leased,
        new: bool,
    ) -> Result<Option<Station>, NetError> {
        let address = place.address;
        let have = match self.state().entered.get(&address) {
            Some(entered) => Arc::clone(&entered.group),
            None => Arc::from([]),
        };
        let make = |address| UdpSocket::make(address, self.scope);
        let all = group::enter(&place, block, &have, &make, self.patience(PATIENCE))?;
        let group: Group = all[..=usize::from(block)].into();
        let mut state = self.state();
        if self.closed.load(Ordering::Relaxed) || !(new || state.entered.contains_key(&address)) {
            return Ok(None);
        }
        self.doors.add(Door::new(place, block, leased.door, Arc::clone(&group)));
        let entered = state
            .entered
            .entry(address)
            .or_insert_with(|| Entered { group: Arc::clone(&group), blocks: Blocks::default() });
        entered.blocks.insert(block);
        if group.len() > entered.group.len() {
            entered.group = Arc::clone(&group);
        }
        Ok(Some(Station { place, block, group, letterbox: leased.letterbox }))
    }

    /// Undoes what [`Share::join`] has done for a block.
    fn take_back(&self, block: u8) {
        let mut state = self.state();
        state.entered.retain(|_, entered| {
            entered.blocks = entered.blocks.iter().filter(|b| *b != block).collect();
            // Who holds a socket that is no block's keeps others from the group.
            let sockets = entered.blocks.iter().last().map_or(0, |last| usize::from(last) + 1);
            entered.group = entered.group[..sockets].into();
            sockets > 0
        });
        drop(state);
        self.doors.remove(|door| door.block() == block);
    }

    /// Leaves the group of an address.
    pub(crate) fn leave(&self, address: IpAddr) {
        let mut state = self.state();
        state.entered.remove(&address);
        state.ready.retain(|station| station.address() != address);
        drop(state);
        self.doors.remove(|door| door.address() == address);
    }

    /// The places in groups that are new since this was last asked.
    pub(crate) fn take_ready(&self) -> Vec<Station> {
        std::mem::take(&mut self.state().ready)
    }

    /// Why an address could not be entered since this was last asked. They may be tried again.
    pub(crate) fn take_failed(&self) -> Option<NetError> {
        self.state().failed.drain(..).next().map(|(_, e)| e)
    }

    /// The blocks of QPNs that this device alone has, the first one first.
    pub fn blocks(&self) -> Vec<u8> {
        self.state().blocks.clone()
    }

    /// The first of them.
    pub(crate) fn block(&self) -> u8 {
        self.state().blocks.first().copied().expect("one was leased at the beginning")
    }

    /// Whether this block is this device's on this address.
    pub(crate) fn has(&self, address: IpAddr, block: u8) -> bool {
        self.state().entered.get(&address).is_some_and(|entered| entered.blocks.has(block))
    }

    /// The addresses that are shared.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.state().entered.keys().copied().collect()
    }

    /// Gives everything back, and waits for nobody any more.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let mut state = self.state();
        state.entered.clear();
        state.ready.clear();
        drop(state);
        self.doors.close();
    }

    /// Waits until nobody else is about to join this address's group.
    fn lock(&self, place: &Place) -> Result<UnixSocket, NetError> {
        let name = place.lock();
        let patience = self.patience(2 * PATIENCE);
        loop {
            match UnixSocket::bind(&name) {
                Ok(lock) => return Ok(lock),
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(NetError::os("bind a unix socket", e)),
            }
            if patience.is_over() {
                let owner = owner::of_abstract(&name);
                return Err(NetError::NoAnswer { address: place.address, owner });
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn patience(&self, time: Duration) -> Patience<'_> {
        Patience::new(&self.closed, time)
    }

    fn adding(&self) -> MutexGuard<'_, ()> {
        self.adding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is whole whatever panicked.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A backend's hold on a [`Share`]: gives everything back when dropped, whoever else has it.
pub(crate) struct Member(Arc<Share>);

impl Member {
    /// For those who enter and lease.
    pub(crate) fn share(&self) -> Arc<Share> {
        Arc::clone(&self.0)
    }
}

impl Deref for Member {
    type Target = Share;

    fn deref(&self) -> &Share {
        &self.0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The sockets whose names make a lease on one address.
struct Leased {
    door: UnixSocket,
    letterbox: UnixSocket,
}

impl Leased {
    fn bind(place: &Place, block: u8) -> std::io::Result<Self> {
        let door = UnixSocket::bind(&place.door(block))?;
        Ok(Self { door, letterbox: UnixSocket::bind(&place.letterbox(block))? })
    }
}

/// Takes the lowest block that is free on all of these addresses, which are locked.
fn lease(places: &[Place]) -> Result<(u8, Vec<Leased>), NetError> {
    for block in BLOCKS {
        let leased: std::io::Result<Vec<_>> =
            places.iter().map(|place| Leased::bind(place, block)).collect();
        match leased {
            Ok(leased) => return Ok((block, leased)),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(NetError::os("bind a unix socket", e)),
        }
    }
    let address = places.first().map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |p| p.address);
    Err(NetError::NoBlock { address })
}
