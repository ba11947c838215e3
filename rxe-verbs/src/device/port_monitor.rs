//! Keeps an open device up to date while its interface goes down and up and its addresses change.
//! IBTA 11.6.3.3, A17.4.4.
//!
//! Queue pairs keep the addresses with which they were connected. If such an address is removed,
//! their requests are sent in vain until the retries are exhausted, as with an unplugged cable.
//!
//! Sharing a new address with other processes may require waiting for them, and one of them may be
//! stopped. A separate thread waits, while the device continues with its other addresses; it uses
//! the new ones after the thread has finished. Addresses that could not be shared are retried after
//! a second, and then at growing intervals. So are queries for the interface's state that fail, for
//! example because the program has no descriptor left.
//!
//! If the interface is removed, so is its device, as with kernel devices: all requests complete as
//! flushed, the program gets IBV_EVENT_DEVICE_FATAL, and each identifier that is bound to the
//! device gets RDMA_CM_EVENT_DEVICE_REMOVAL. An interface of the same name that is created later is
//! another device.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rxe_core::types::{Gid, Mtu};
use rxe_net::{GidTable, Interface, InterfaceMonitor};

use super::shards::{Port, Ports};
use super::{PortAttr, PortState};
use crate::error::{Error, Result};
use crate::event::{AsyncEvents, AsyncKind};
use crate::observe::Observed;
use crate::progress::{Monitor, Shard, Wakeup};

/// The changing state of a device's port: its interface, its GID table, and how often it went down.
#[derive(Debug)]
pub(super) struct PortData {
    state: RwLock<State>,
    link_downed: AtomicU64,
    /// The largest path MTU that the link carried when the device was opened. The buffers have this
    /// size.
    opened_mtu: Mtu,
    removal: Mutex<Removal>,
}

/// An object that is notified when the device's interface is removed.
pub(crate) trait BoundToDevice: Send + Sync {
    /// Called when the interface has been removed.
    fn device_removed(self: Arc<Self>);
}

#[derive(Default)]
struct Removal {
    done: bool,
    /// The objects to notify, by their memory addresses.
    bound: HashMap<usize, Weak<dyn BoundToDevice>>,
}

impl std::fmt::Debug for Removal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Removal").field("done", &self.done).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct State {
    interface: Interface,
    /// The GID table; `None` if the program has named the addresses.
    table: Option<GidTable>,
    /// The local addresses by `sgid_index`; zero if nothing can be sent from the entry.
    gids: Arc<[Gid]>,
}

impl PortData {
    /// Creates the state. `mtu` is the largest path MTU that the link carries now.
    pub(super) fn new(
        interface: Interface,
        table: Option<GidTable>,
        gids: Arc<[Gid]>,
        mtu: Mtu,
    ) -> Self {
        let state = RwLock::new(State { interface, table, gids });
        Self { state, link_downed: AtomicU64::new(0), opened_mtu: mtu, removal: Mutex::default() }
    }

    /// Notifies `bound` when the interface is removed, until [`PortData::unbind`]. If it has
    /// already been removed, notifies immediately.
    pub(super) fn bind(&self, bound: Arc<dyn BoundToDevice>) {
        let mut removal = self.removal.lock();
        removal.bound.insert(Arc::as_ptr(&bound).addr(), Arc::downgrade(&bound));
        let done = removal.done;
        drop(removal);
        if done {
            bound.device_removed();
        }
    }

    /// Undoes [`PortData::bind`] for the object at this memory address.
    pub(super) fn unbind(&self, address: usize) {
        self.removal.lock().bound.remove(&address);
    }

    /// Records that the interface has been removed and notifies the bound objects.
    fn removed(&self) {
        let mut removal = self.removal.lock();
        removal.done = true;
        let bound: Vec<_> = removal.bound.values().filter_map(Weak::upgrade).collect();
        drop(removal);
        bound.into_iter().for_each(BoundToDevice::device_removed);
    }

    /// Returns whether the interface has been removed.
    pub(super) fn is_removed(&self) -> bool {
        self.removal.lock().done
    }

    pub(super) fn interface(&self) -> Interface {
        self.state.read().interface.clone()
    }

    /// Returns the largest usable path MTU: the interface's present one, but not more than when the
    /// device was opened.
    pub(super) fn mtu(&self) -> Mtu {
        let of_interface = PortAttr::of(&self.state.read().interface).active_mtu;
        of_interface.min(self.opened_mtu)
    }

    pub(super) fn table(&self) -> Option<GidTable> {
        self.state.read().table.clone()
    }

    pub(super) fn gids(&self) -> Arc<[Gid]> {
        Arc::clone(&self.state.read().gids)
    }
}

/// The port and the shards of a device, as its reports see them.
pub(super) struct ObservedPort {
    pub(super) ports: Weak<Ports>,
    pub(super) port: Arc<PortData>,
}

impl Observed for ObservedPort {
    fn netdev(&self) -> String {
        self.port.interface().name
    }

    fn link_downed(&self) -> u64 {
        self.port.link_downed.load(Ordering::Relaxed)
    }

    fn shards(&self) -> Vec<Arc<Shard>> {
        // The device outlives its reports, so this thread never drops the last reference to a
        // shard.
        let ports = self.ports.upgrade().map(|ports| ports.all()).unwrap_or_default();
        ports.into_iter().map(|port| port.shard).collect()
    }
}

/// Keeps a device's port up to date.
#[derive(Debug)]
pub(super) struct PortMonitor {
    monitor: InterfaceMonitor,
    ports: Arc<Ports>,
    /// How many of `ports` have the addresses of `port`.
    known: usize,
    port: Arc<PortData>,
    asyncs: Arc<AsyncEvents>,
    /// Whether the interface has changed since it was last queried.
    stale: bool,
    /// The next state, which waits until its addresses have been entered.
    pending: Option<State>,
    signals: Arc<AddressSignals>,
    /// Why not all addresses can be used, if so.
    failure: Option<String>,
    /// How long to wait before the next retry.
    backoff: Duration,
    /// Whether a thread will signal the time of the next retry.
    retry_set: bool,
    retry: bool,
    removed: bool,
}

/// How long to wait before addresses are retried: first, and at most.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(64);

/// Signals to the driver from the threads that enter addresses and wait for retries.
#[derive(Debug)]
struct AddressSignals {
    entered: AtomicBool,
    retry: AtomicBool,
    /// Wakes the driver, which checks both flags.
    wake: Arc<Wakeup>,
}

impl AddressSignals {
    fn notify(&self) {
        self.entered.store(true, Ordering::Release);
        self.wake.wake();
    }

    /// Signals at this moment that it is time for a retry, unless the device is closed before.
    fn retry_at(this: &Weak<Self>, at: Instant) {
        /// How long the thread outlives a closed device at most.
        const STEP: Duration = Duration::from_millis(500);
        loop {
            let left = at.saturating_duration_since(Instant::now());
            let Some(signals) = this.upgrade() else { return };
            if left.is_zero() {
                signals.retry.store(true, Ordering::Release);
                return signals.wake.wake();
            }
            drop(signals);
            thread::sleep(left.min(STEP));
        }
    }

    /// Returns whether addresses have been entered since the last call.
    fn take(&self) -> bool {
        self.entered.swap(false, Ordering::Acquire)
    }
}

impl PortMonitor {
    pub(super) fn new(
        monitor: InterfaceMonitor,
        ports: Arc<Ports>,
        port: Arc<PortData>,
        asyncs: Arc<AsyncEvents>,
        wake: Arc<Wakeup>,
    ) -> Self {
        let signals = Arc::new(AddressSignals {
            entered: AtomicBool::new(false),
            retry: AtomicBool::new(false),
            wake,
        });
        Self {
            monitor,
            known: ports.len(),
            ports,
            port,
            asyncs,
            stale: false,
            pending: None,
            signals,
            failure: None,
            backoff: MIN_BACKOFF,
            retry_set: false,
            retry: false,
            removed: false,
        }
    }

    fn refresh(&mut self, shard: &Shard) -> Result<()> {
        let before = self.port.state.read().clone();
        let Some(interface) = self.refresh_port() else { return Ok(()) };
        let mut now = State { interface, ..before.clone() };
        if let Some(table) = &mut now.table {
            table.update(&now.interface);
            now.gids = table.usable().into();
        }
        if now.gids == before.gids {
            self.port.state.write().table = now.table;
            return Ok(());
        }
        self.enter(shard, now)
    }

    /// Makes these the device's addresses, immediately or when they have been entered.
    fn enter(&mut self, shard: &Shard, now: State) -> Result<()> {
        if self.start_entering(&now.gids) {
            self.pending = Some(now);
            return Ok(());
        }
        self.apply(shard, &now)
    }

    /// Queries the interface and reports resulting port events to the program. Returns `None` if
    /// the query fails; it is retried later.
    fn refresh_port(&mut self) -> Option<Interface> {
        let before = self.port.interface();
        let interface = match Interface::by_index(before.index) {
            Ok(Some(interface)) => interface,
            Ok(None) => {
                self.removed = true;
                removed(&before)
            }
            // The kernel's tables change faster than they can be read, or there is no descriptor or
            // memory left for the query. The device continues with the known state.
            Err(_) => {
                self.stale = true;
                self.retry_later();
                return None;
            }
        };
        self.port.state.write().interface = interface.clone();
        if interface.mtu != before.mtu {
            self.set_mtu(&self.ports.all());
        }
        if let Some((kind, text)) = port_event(&before, &interface, self.removed) {
            if kind == AsyncKind::PortErr {
                self.port.link_downed.fetch_add(1, Ordering::Relaxed);
            }
            self.asyncs.of_device(kind, text);
        }
        Some(interface)
    }

    /// Sets the engines' largest path MTU to what the link carries now.
    fn set_mtu(&self, ports: &[Port]) {
        let mtu = self.port.mtu();
        for port in ports {
            // A shard that has failed has already flushed its queue pairs, so its error is ignored.
            let _ = port.shard.with(|core| core.engine.set_max_mtu(mtu));
        }
    }

    /// Starts a thread that enters the addresses that the device does not have. Returns whether one
    /// runs.
    fn start_entering(&self, gids: &[Gid]) -> bool {
        let addresses: Vec<_> = gids.iter().filter(|g| !g.is_zero()).map(Gid::to_ip).collect();
        let mut lacking: Vec<_> = self.ports.all().into_iter().filter_map(|p| p.groups).collect();
        lacking.retain(|groups| groups.lacks_any(&addresses));
        if lacking.is_empty() {
            return false;
        }
        let signals = Arc::clone(&self.signals);
        let enter = {
            let (lacking, addresses) = (lacking.clone(), addresses.clone());
            move || {
                lacking.iter().for_each(|groups| groups.enter(&addresses));
                signals.notify();
            }
        };
        if rxe_sys::spawn_thread("rxe-enter", enter).is_ok() {
            return true;
        }
        // No thread could be started, so this one waits. It does not hold the shard's lock, so
        // programs that poll continue.
        lacking.iter().for_each(|groups| groups.enter(&addresses));
        false
    }

    /// Makes these the device's addresses, in all shards.
    fn apply(&mut self, shard: &Shard, now: &State) -> Result<()> {
        let before = self.port.gids();
        let mut failure = shard.with(|core| core.set_gids(&now.gids))?.err();
        let ports = self.ports.all();
        // New shards were opened with the MTU that was known then.
        self.set_mtu(ports.get(self.known..).unwrap_or_default());
        self.known = ports.len();
        for port in &ports[1..] {
            // A shard that has failed has already flushed its queue pairs, so its error is ignored.
            let of_port = port.shard.with(|core| core.set_gids(&now.gids)).unwrap_or(Ok(()));
            failure = failure.or(of_port.err());
        }
        for groups in ports.iter().filter_map(|port| port.groups.as_ref()) {
            groups.release_left();
        }
        {
            let mut port = self.port.state.write();
            port.table.clone_from(&now.table);
            port.gids = Arc::clone(&now.gids);
        }
        let failure = failure.map(|e| e.to_string());
        let was = std::mem::replace(&mut self.failure, failure.clone());
        if failure.is_some() {
            self.retry_later();
        }
        if before == now.gids && was == failure {
            return Ok(());
        }
        let text = match &failure {
            None if before == now.gids => {
                format!("addresses of {}: all can be used now", now.interface.name)
            }
            _ => gid_text(&now.interface.name, &before, &now.gids, failure),
        };
        self.asyncs.of_device(AsyncKind::GidChange, text);
        Ok(())
    }

    /// Schedules a retry after the backoff.
    fn retry_later(&mut self) {
        if self.retry_set {
            return;
        }
        let (at, signals) = (Instant::now() + self.backoff, Arc::downgrade(&self.signals));
        self.backoff = MAX_BACKOFF.min(2 * self.backoff);
        let run = move || AddressSignals::retry_at(&signals, at);
        // Without a thread, the retry happens at the next change.
        self.retry_set = rxe_sys::spawn_thread("rxe-retry", run).is_ok();
    }
}

impl Monitor for PortMonitor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.as_fd()
    }

    fn update(&mut self, shard: &Shard) -> Result<()> {
        let followed = self.follow(shard);
        if self.removed {
            self.end_device();
        }
        followed
    }
}

impl PortMonitor {
    /// Ends the device, because its interface was removed and cannot come back.
    fn end_device(&self) {
        let why = format!("interface {} was removed", self.port.interface().name);
        let ports = self.ports.all();
        let end = |any, port: &Port| port.shard.fail_with_device(why.clone()) || any;
        // A device that failed as a whole before has already reported it.
        if ports.iter().fold(false, end) {
            self.asyncs.of_device(AsyncKind::DeviceFatal, why);
        }
        self.port.removed();
    }

    /// Checks what has changed and updates the device.
    fn follow(&mut self, shard: &Shard) -> Result<()> {
        let index = self.port.state.read().interface.index;
        let changed = self.monitor.changed(index).map_err(query_failed)?;
        if changed {
            self.stale = true;
            self.backoff = MIN_BACKOFF;
        }
        let entered = self.signals.take();
        if self.signals.retry.swap(false, Ordering::Acquire) {
            self.retry = true;
            self.retry_set = false;
        }
        if self.pending.is_some() && !entered {
            // The port may go down meanwhile. Further address changes wait until the pending ones
            // have been entered.
            if changed {
                self.refresh_port();
            }
            return Ok(());
        }
        if let Some(now) = self.pending.take() {
            self.apply(shard, &now)?;
        }
        if std::mem::take(&mut self.stale) {
            self.refresh(shard)?;
        }
        if self.pending.is_none() && self.known != self.ports.len() {
            let now = self.port.state.read().clone();
            self.enter(shard, now)?;
        }
        if self.pending.is_none() && std::mem::take(&mut self.retry) && self.failure.is_some() {
            let now = self.port.state.read().clone();
            if self.start_entering(&now.gids) {
                self.pending = Some(now);
            }
        }
        Ok(())
    }
}

fn query_failed(e: std::io::Error) -> Error {
    Error::io("ask for interfaces", e)
}

/// Returns what remains of an interface that was removed.
fn removed(interface: &Interface) -> Interface {
    Interface { up: false, running: false, addresses: Vec::new(), ..interface.clone() }
}

/// Returns the event about a changed port, if there is one.
fn port_event(before: &Interface, now: &Interface, removed: bool) -> Option<(AsyncKind, String)> {
    let name = &now.name;
    match (PortAttr::of(before).state, PortAttr::of(now).state) {
        (PortState::Active, PortState::Down) => {
            let why = match (removed, now.up) {
                (true, _) => "was removed",
                (false, true) => "has no carrier",
                (false, false) => "is down",
            };
            Some((AsyncKind::PortErr, format!("{name} {why}")))
        }
        (PortState::Down, PortState::Active) => {
            Some((AsyncKind::PortActive, format!("{name} is up")))
        }
        _ => None,
    }
}

/// Describes a change of addresses for the program.
fn gid_text(name: &str, before: &[Gid], now: &[Gid], failure: Option<String>) -> String {
    let not_in = |a: &[Gid], b: &[Gid]| -> Vec<String> {
        let only = a.iter().filter(|g| !g.is_zero() && !b.contains(g));
        only.map(|g| g.to_ip().to_string()).collect()
    };
    let list = |what: &str, gids: Vec<String>| {
        (!gids.is_empty()).then(|| format!("{what}: {}", gids.join(", ")))
    };
    let parts = [list("new", not_in(now, before)), list("gone", not_in(before, now)), failure];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("addresses of {name}: {}", parts.join("; "))
}
