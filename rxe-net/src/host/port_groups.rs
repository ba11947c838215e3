//! The shared addresses of a device, with its leased blocks of QPNs and its sockets.
//!
//! Invariants:
//! - A thread that waits for other processes, or accesses files, holds `adding`, never `state`. So
//!   the calls that a device makes on its data path ([`PortGroups::leave`],
//!   [`PortGroups::take_ready`]) never wait.
//! - A device has each of its blocks on all its addresses, except on addresses that it could not
//!   enter and on those that were added after the lease.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::control::{ControlSocket, ControlSockets};
use super::deadline::{Deadline, ProgressWait, TIMEOUT, WaitAction};
use super::directory::{Directory, ScopedAddr};
use super::forwarder::Forwarder;
use super::group::{self, GroupLocation};
use super::lock::Lock;
use super::opened;
use super::report::Reporter;
use super::services::Services;
use super::sweep::sweep;
use super::{BLOCKS, Blocks, Endpoint, Forwarding, Group};
use crate::error::NetError;
use crate::host::port_owner;
use crate::host::udp_socket::UdpSocket;
use parking_lot::{Mutex, MutexGuard};
use rxe_sys::Epoll;
use rxe_sys::unix::{NamedSocket, Rights, SocketPaths};

/// The port groups of a device, one for each of its addresses. They include the leased blocks of
/// QPNs, and the services that the device listens to.
///
/// Calls that may wait for other processes or for files are made here, on any thread, without the
/// backend ([`crate::Sharing::port_groups`]). The backend uses their results after the next
/// [`crate::Sharing::take_up`] or [`crate::Sharing::set_addresses`].
#[derive(Debug)]
pub struct PortGroups {
    scope: u32,
    directory: Arc<Directory>,
    control: ControlSockets,
    /// The paths of the control socket and of the inbox.
    paths: [SocketPaths; 2],
    services: Arc<Services>,
    forwarder: Arc<Forwarder>,
    /// Locked while a thread enters addresses or leases blocks.
    adding: Mutex<()>,
    state: Mutex<State>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The leased blocks in the order of their leases.
    blocks: Vec<u8>,
    entered: BTreeMap<IpAddr, SharedAddress>,
    /// Endpoints that the backend has not taken up yet. Each is complete; it is only removed when
    /// its address is left.
    ready: Vec<Endpoint>,
    /// Addresses that could not be entered, with errors that the backend has not fetched yet.
    failed: Vec<(IpAddr, NetError)>,
    /// Addresses that the backend has left, but whose sockets and files still exist.
    left: Vec<(IpAddr, SharedAddress)>,
}

/// An address that the device has entered.
#[derive(Debug)]
struct SharedAddress {
    /// The group's sockets, up to the highest block in `blocks`.
    group: Group,
    blocks: Blocks,
    /// The paths of the device's inbox, with their blocks.
    inboxes: Vec<(u8, NamedSocket)>,
}

impl State {
    /// Offers these endpoints to the backend, except on addresses that were left meanwhile.
    fn make_ready(&mut self, endpoints: impl Iterator<Item = Endpoint>) {
        let Self { entered, ready, .. } = self;
        let has = |e: &Endpoint| entered.get(&e.address()).is_some_and(|on| on.blocks.has(e.block));
        ready.extend(endpoints.filter(has));
    }
}

impl PortGroups {
    /// Leases a block on these addresses of the interface with index `scope`, and joins their
    /// groups. Skips addresses that the interface does not have.
    ///
    /// # Errors
    /// An address cannot be shared, the interface has none of the addresses, or all blocks are in
    /// use.
    pub(crate) fn open(
        addresses: &[IpAddr],
        scope: u32,
    ) -> Result<(Handle, Vec<Endpoint>), NetError> {
        let directory = Arc::new(Directory::open());
        let services = Arc::new(Services::new(Arc::clone(&directory), scope));
        let forwarder = Arc::new(Forwarder::new(Arc::clone(&directory), &services));
        directory.root().into_iter().for_each(sweep);
        let groups = Handle(Arc::new(Self {
            scope,
            directory,
            control: ControlSockets::new()?,
            paths: Default::default(),
            services,
            forwarder,
            adding: Mutex::default(),
            state: Mutex::default(),
            closed: AtomicBool::new(false),
        }));
        groups.lease_on(Some(addresses))?;
        let endpoints = groups.take_ready();
        Ok((groups, endpoints))
    }

    /// Leases one more block on all addresses.
    ///
    /// # Errors
    /// All blocks are in use, or another process does not hand over its sockets.
    pub fn lease(&self) -> Result<u8, NetError> {
        self.lease_on(None)
    }

    /// Joins the groups of these addresses, unless already joined. If an address cannot be shared,
    /// [`crate::Sharing::set_addresses`] returns the error.
    pub fn enter(&self, addresses: &[IpAddr]) {
        self.state().failed.clear();
        let adding = self.adding();
        self.release_held();
        self.enter_all(addresses);
        drop(adding);
        self.release_left();
    }

    /// Starts to receive requests to this service. `address` is where: all addresses of its family
    /// if it is unspecified, all addresses if it is `None`. The backend must receive packets to QP1
    /// ([`crate::Sharing::set_gsi`]). May block.
    ///
    /// # Errors
    /// [`NetError::ServiceTaken`]: a process on the address already listens to the service.
    pub fn listen(&self, service: u64, address: Option<IpAddr>) -> Result<(), NetError> {
        self.services.listen(service, address)
    }

    /// Undoes [`PortGroups::listen`]. May block.
    pub fn unlisten(&self, service: u64, address: Option<IpAddr>) {
        self.services.unlisten(service, address);
    }

    /// Like [`PortGroups::unlisten`], for a listener that has ended. For
    /// [`rxe_core::cm::CLOSED_FOR`], requests that reach other processes still come here, unless
    /// another process listens: they wait for the program's next listener.
    pub fn close_listener(&self, service: u64, address: Option<IpAddr>) {
        self.services.close(service, address);
        self.forwarder.expire();
    }

    /// Sets or removes the reporter of this device. Waits for a report in progress. The reporter
    /// must not own the port groups. If a capture of all devices runs, it asks the reporter for
    /// packets before this returns.
    pub fn set_reporter(&self, reporter: Option<Box<dyn Reporter>>) {
        let is_opened = reporter.is_some();
        self.control.set_reporter(reporter);
        if let Some(root) = self.directory.root().filter(|_| is_opened) {
            opened::announce(root, opened::PATIENCE);
        }
    }

    /// Returns whether [`PortGroups::enter`] has work for these addresses.
    pub fn lacks_any(&self, addresses: &[IpAddr]) -> bool {
        !self.lacks(addresses).is_empty()
    }

    /// Enters these addresses. The caller holds `adding`.
    fn enter_all(&self, addresses: &[IpAddr]) {
        let blocks = self.blocks();
        for (address, missing) in self.lacks(addresses) {
            let addr = self.scoped(address);
            let is_new = !self.addresses().contains(&address);
            let entered = self.lock(&addr).and_then(|lock| {
                let missing = blocks.iter().filter(|block| missing.has(**block));
                let joined = missing.copied().map(|block| {
                    let leased = self.bind(&addr, block);
                    let leased = leased.map_err(|e| match e.kind() {
                        io::ErrorKind::AddrInUse => NetError::BlockTaken { address, block },
                        _ => NetError::os("bind a unix socket", e),
                    })?;
                    self.join(addr, block, leased, is_new && block == blocks[0])
                });
                let joined = joined.collect::<Result<Vec<_>, _>>()?;
                lock.note_success();
                Ok(joined)
            });
            match entered {
                Ok(endpoints) => self.state().make_ready(endpoints.into_iter().flatten()),
                Err(e) => {
                    if is_new {
                        self.leave(address);
                        self.release_held();
                    }
                    self.state().failed.push((address, e));
                }
            }
        }
    }

    /// Returns the addresses that lack blocks and have not been tried, with the blocks that they
    /// lack.
    fn lacks(&self, addresses: &[IpAddr]) -> Vec<(IpAddr, Blocks)> {
        let state = self.state();
        let tried = |address| state.failed.iter().any(|(a, _)| *a == address);
        let lack = addresses.iter().filter(|address| !tried(**address)).map(|&address| {
            let has = state.entered.get(&address).map_or(Blocks::default(), |e| e.blocks);
            (address, state.blocks.iter().copied().filter(|block| !has.has(*block)).collect())
        });
        lack.filter(|(_, blocks): &(_, Blocks)| !blocks.is_empty()).collect()
    }

    /// Leases a block on the addresses `new`, or on the entered ones if `new` is `None`.
    fn lease_on(&self, new: Option<&[IpAddr]>) -> Result<u8, NetError> {
        let adding = self.adding();
        let leased = self.lease_held(new);
        drop(adding);
        self.release_left();
        leased
    }

    /// Leases a block like [`PortGroups::lease_on`]. The caller holds `adding`.
    fn lease_held(&self, new: Option<&[IpAddr]>) -> Result<u8, NetError> {
        let mut addresses = new.map_or_else(|| self.addresses(), <[_]>::to_vec);
        // All processes lock addresses in the same order, which prevents a deadlock.
        addresses.sort_unstable();
        addresses.dedup();
        let addrs: Vec<_> = addresses.iter().map(|a| self.scoped(*a)).collect();
        let locks = addrs.iter().map(|addr| self.lock(addr)).collect::<Result<Vec<_>, _>>()?;
        let (block, leased) = self.bind_lowest(&addrs)?;
        let mut not_there = None;
        let mut joined = Vec::new();
        for (addr, leased) in addrs.into_iter().zip(leased) {
            match self.join(addr, block, leased, new.is_some()) {
                Ok(endpoint) => joined.push(endpoint),
                Err(e @ NetError::NoSuchAddress { .. }) => not_there = Some(e),
                Err(e) => {
                    self.take_back(block);
                    return Err(e);
                }
            }
        }
        locks.iter().for_each(Lock::note_success);
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

    /// Binds the sockets of the lowest block that is free on all these addresses. The caller has
    /// locked them.
    fn bind_lowest(&self, addrs: &[ScopedAddr]) -> Result<(u8, Vec<Leased>), NetError> {
        for block in BLOCKS {
            let leased: io::Result<Vec<_>> =
                addrs.iter().map(|addr| self.bind(addr, block)).collect();
            match leased {
                Ok(leased) => return Ok((block, leased)),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(NetError::os("bind a unix socket", e)),
            }
        }
        let address = addrs.first().map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |a| a.address);
        Err(NetError::NoBlock { address })
    }

    /// Binds the sockets of a block on an address. The caller has locked it. Fails with
    /// [`io::ErrorKind::AddrInUse`] if another process has the block.
    fn bind(&self, addr: &ScopedAddr, block: u8) -> io::Result<Leased> {
        let [control, inbox] = &self.paths;
        let path = self.directory.control(addr, block);
        let control = path.map(|path| control.listen(&path, Rights::Refused)).transpose()?;
        let path = self.directory.inbox(addr, block);
        let inbox = path.map(|path| inbox.inbox(&path)).transpose()?;
        Ok(Leased { control, inbox })
    }

    /// Joins the group of an address. The caller has locked it. Returns `None` if the address is
    /// not `new` and was left meanwhile.
    fn join(
        &self,
        addr: ScopedAddr,
        block: u8,
        leased: Leased,
        new: bool,
    ) -> Result<Option<Endpoint>, NetError> {
        let address = addr.address;
        let have = match self.state().entered.get(&address) {
            Some(entered) => Arc::clone(&entered.group),
            None => Arc::from([]),
        };
        let make = |address| UdpSocket::make(address, self.scope);
        let at = GroupLocation { directory: &self.directory, addr };
        let all = group::enter(at, block, &have, &make, self.deadline(TIMEOUT))?;
        let group: Group = all[..=usize::from(block)].into();
        let Leased { control, inbox } = leased;
        let mut state = self.state();
        if self.closed.load(Ordering::Relaxed) || !(new || state.entered.contains_key(&address)) {
            return Ok(None);
        }
        self.control.add(ControlSocket::new(addr, block, control, Arc::clone(&group)));
        let entered = state.entered.entry(address).or_insert_with(|| SharedAddress {
            group: Arc::clone(&group),
            blocks: Blocks::default(),
            inboxes: Vec::new(),
        });
        let is_first = entered.blocks.is_empty();
        entered.blocks.insert(block);
        if group.len() > entered.group.len() {
            entered.group = Arc::clone(&group);
        }
        let socket = inbox.as_ref().map(|inbox| Arc::clone(inbox.socket()));
        entered.inboxes.extend(inbox.map(|inbox| (block, inbox)));
        drop(state);
        if is_first && let Err(e) = self.services.enter(address, block) {
            // The address is used nevertheless: only a service is missing.
            self.state().failed.push((address, e));
        }
        Ok(Some(Endpoint { addr, block, group, inbox: socket }))
    }

    /// Undoes [`PortGroups::join`] for a block.
    fn take_back(&self, block: u8) {
        let mut state = self.state();
        let (mut gone, mut addresses) = (Vec::new(), Vec::new());
        state.entered.retain(|address, entered| {
            entered.blocks = entered.blocks.iter().filter(|b| *b != block).collect();
            gone.extend(entered.inboxes.extract_if(.., |(b, _)| *b == block));
            if entered.blocks.is_empty() {
                addresses.push(*address);
            }
            // A socket without a block would keep other processes out of the group.
            let sockets = entered.blocks.iter().last().map_or(0, |last| usize::from(last) + 1);
            entered.group = entered.group[..sockets].into();
            sockets > 0
        });
        drop(state);
        drop(gone);
        addresses.into_iter().for_each(|address| self.services.leave(address));
        self.control.remove(|socket| socket.block() == block);
    }

    /// Leaves the group of an address. [`PortGroups::release_left`] closes its sockets and files.
    pub(crate) fn leave(&self, address: IpAddr) {
        let mut state = self.state();
        let entered = state.entered.remove(&address);
        state.left.extend(entered.map(|entered| (address, entered)));
        state.ready.retain(|endpoint| endpoint.address() != address);
    }

    /// Releases the sockets and files of addresses that the backend has left. May block. If another
    /// thread holds `adding`, that thread releases them, and this returns.
    pub fn release_left(&self) {
        while !self.state().left.is_empty() {
            let Some(_adding) = self.adding.try_lock() else { return };
            self.release_held();
        }
    }

    /// Releases left addresses. The caller holds `adding`.
    fn release_held(&self) {
        let left = std::mem::take(&mut self.state().left);
        for (address, entered) in left {
            drop(entered);
            self.services.leave(address);
            self.control.remove(|socket| socket.address() == address);
            self.directory.tidy(&self.scoped(address));
        }
    }

    /// Returns the endpoints added since the last call.
    pub(crate) fn take_ready(&self) -> Vec<Endpoint> {
        std::mem::take(&mut self.state().ready)
    }

    /// Returns the first error since the last call for an address that could not be entered. Its
    /// addresses may be tried again.
    pub(crate) fn take_failed(&self) -> Option<NetError> {
        self.state().failed.drain(..).next().map(|(_, e)| e)
    }

    /// Returns the blocks of QPNs that only this device has, in the order of their leases.
    pub fn blocks(&self) -> Vec<u8> {
        self.state().blocks.clone()
    }

    /// Returns the first leased block.
    pub(crate) fn block(&self) -> u8 {
        self.state().blocks.first().copied().expect("one was leased at the beginning")
    }

    /// Returns whether this device has the block on this address.
    pub(crate) fn has(&self, address: IpAddr, block: u8) -> bool {
        self.state().entered.get(&address).is_some_and(|entered| entered.blocks.has(block))
    }

    /// Returns the shared addresses.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.state().entered.keys().copied().collect()
    }

    /// Releases everything and cancels all waits for other processes.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let mut state = self.state();
        let left = std::mem::take(&mut state.left);
        let all: Vec<_> = std::mem::take(&mut state.entered).into_iter().chain(left).collect();
        state.ready.clear();
        drop(state);
        self.services.close_all();
        self.control.close();
        for (address, entered) in all {
            drop(entered);
            self.directory.tidy(&self.scoped(address));
        }
    }

    /// Locks an address: waits until no other process is joining its group. Continues to wait while
    /// other processes join it one after another.
    fn lock(&self, addr: &ScopedAddr) -> Result<Lock, NetError> {
        rxe_sys::may_block("waiting for an address's lock");
        let mut attempt = self.directory.lock_attempt(addr);
        let mut wait = ProgressWait::new(Instant::now(), attempt.latest_success());
        loop {
            let locked = attempt.take();
            if let Some(lock) = locked.map_err(|e| NetError::os("lock an address", e))? {
                return Ok(lock);
            }
            let closed = self.closed.load(Ordering::Relaxed);
            let action = wait.next(Instant::now(), attempt.latest_success());
            if closed || action != WaitAction::Wait {
                let owner = self.directory.lock_owner(addr);
                let at = GroupLocation { directory: &self.directory, addr: *addr };
                let member = || group::stopped_member(at);
                let stopped = owner.clone().filter(port_owner::is_stopped).or_else(member);
                if closed || action == WaitAction::GiveUp || stopped.is_some() {
                    let owner = stopped.or(owner);
                    return Err(NetError::NoAnswer { address: addr.address, owner });
                }
            }
            attempt.pause();
        }
    }

    /// Returns the forwarding between this device and other processes. `epoll` becomes readable
    /// when there is something to forward.
    pub(crate) fn forwarding(&self, epoll: Epoll) -> Forwarding {
        let directory = Arc::clone(&self.directory);
        let (services, forwarder) = (Arc::clone(&self.services), Arc::clone(&self.forwarder));
        Forwarding::new(directory, self.scope, services, forwarder, epoll)
    }

    /// Returns the path of the socket on which the owner of this block accepts shared memory.
    /// Returns `None` if there is no directory, or if it is on a disk: offers are made and accepted
    /// under a shard's lock, where only paths in memory may be looked up.
    pub(crate) fn memory(&self, address: IpAddr, block: u8) -> Option<PathBuf> {
        let directory = Some(&self.directory).filter(|directory| directory.in_memory());
        directory?.memory(&self.scoped(address), block)
    }

    fn scoped(&self, address: IpAddr) -> ScopedAddr {
        ScopedAddr::new(address, self.scope)
    }

    fn deadline(&self, time: Duration) -> Deadline<'_> {
        Deadline::new(&self.closed, time)
    }

    fn adding(&self) -> MutexGuard<'_, ()> {
        self.adding.lock()
    }

    /// Locks the state. It is consistent even if a thread has panicked.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// A backend's handle of its [`PortGroups`]. Dropping it releases everything, even if other owners
/// of the port groups remain.
pub(crate) struct Handle(Arc<PortGroups>);

impl Handle {
    /// Returns the port groups, for threads that enter addresses or lease blocks.
    pub(crate) fn port_groups(&self) -> Arc<PortGroups> {
        Arc::clone(&self.0)
    }
}

impl Deref for Handle {
    type Target = PortGroups;

    fn deref(&self) -> &PortGroups {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The sockets of a lease on one address. The device has one socket of each kind, with a path for
/// each lease.
struct Leased {
    control: Option<NamedSocket>,
    inbox: Option<NamedSocket>,
}
