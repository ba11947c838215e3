//! An open device: the engine, the way onto the wire, and the thread that serves peers while the
//! program is busy elsewhere. IBTA 11.2.1.1.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rxe_core::VerbsError;
use rxe_core::engine::{Counters, Limits};
use rxe_core::mem::{Memory, PdId};
use rxe_core::types::{Gid, Mtu, Time};
use rxe_net::{PcapHandle, PortGroups};

use super::port_monitor::{BoundToDevice, PortData};
use super::qpn_allocator::QpnAllocator;
use super::shards::{ShardSet, Shards};
use super::{DeviceAttr, DeviceInfo, PortAttr};
use crate::error::Result;
use crate::event::{AsyncEvent, AsyncEvents, explain};
use crate::faults::InjectedFaults;
use crate::observe::{Reporting, Resources, UseCounts, closed};
use crate::progress::Shard;

/// An open device. Everything else is made from it, and keeps it open.
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

pub(super) struct DeviceInner {
    /// Ended first: what it reports on is there until then.
    pub(super) _reporting: Option<Reporting>,
    pub(super) info: DeviceInfo,
    pub(super) backend: &'static str,
    /// What changes with the interface.
    pub(super) port: Arc<PortData>,
    pub(super) limits: Limits,
    pub(super) resources: Arc<Resources>,
    pub(super) memory: Arc<Memory>,
    pub(super) asyncs: Arc<AsyncEvents>,
    pub(super) capture: Option<PcapHandle>,
    pub(super) faults: Option<InjectedFaults>,
    pub(super) shards: Shards,
    pub(super) next_srq: AtomicU32,
    pub(super) keepalive: bool,
    /// The source port of all packets, if there is one.
    pub(super) source_port: Option<u16>,
}

impl Device {
    pub(super) fn from_inner(inner: DeviceInner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Its name, as in `rxe_eth0`.
    pub fn name(&self) -> &str {
        self.inner.info.name()
    }

    /// What is known of it without opening it, as of when it was opened.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// What it can do.
    pub fn attr(&self) -> DeviceAttr {
        DeviceAttr::of(self.inner.info.interface(), &self.inner.limits)
    }

    /// What its port is like now.
    pub fn port_attr(&self) -> PortAttr {
        let max_msg_sz = u32::try_from(self.inner.limits.max_message).unwrap_or(u32::MAX);
        let active_mtu = self.active_mtu();
        PortAttr { max_msg_sz, active_mtu, ..PortAttr::of(&self.inner.port.interface()) }
    }

    /// `udp`, `packet`, `xdp:driver`, …: the name of a backend, in the mode that it is in.
    pub fn backend_name(&self) -> &'static str {
        self.inner.backend
    }

    /// The high 8 bits of the QPNs of this device's first shard, never 0: other processes on the same
    /// addresses, and other shards, have others. (When it has 65,000 queue pairs of this block, it takes a
    /// further one.) `None` where its way onto the wire is its own.
    pub fn qpn_block(&self) -> Option<u8> {
        self.inner.shards.first().qpns.first_block()
    }

    /// What it shares with other processes: its addresses, and the services that it listens to.
    pub(crate) fn port_groups(&self) -> Option<&PortGroups> {
        self.inner.shards.first().qpns.port_groups()
    }

    /// The own addresses by `sgid_index`, as of now: they follow those of the interface, unless the
    /// program has named them. [`Gid::ZERO`] stands where nothing can be sent from.
    pub fn gids(&self) -> Arc<[Gid]> {
        self.inner.port.gids()
    }

    /// The GID table as a kernel device shows it: with the entries that nothing can be sent from.
    pub fn gid_table(&self) -> Vec<Gid> {
        match self.inner.port.table() {
            Some(table) => table.iter().map(|entry| entry.gid).collect(),
            None => self.gids().to_vec(),
        }
    }

    /// The index of the own address that is used where a program names none.
    pub fn preferred_gid(&self) -> u16 {
        let of_table = self.inner.port.table().and_then(|table| table.preferred());
        self.index(of_table.or_else(|| self.gids().iter().position(|g| !g.is_zero())))
    }

    /// The index of the own address to use towards a peer: on the same network if there is one, else
    /// of the same family.
    pub fn gid_index_for(&self, peer: Gid) -> u16 {
        let ip = peer.to_ip();
        let of_family = |g: &Gid| !g.is_zero() && g.to_ip().is_ipv4() == ip.is_ipv4();
        let of_table = self.inner.port.table().and_then(|table| table.preferred_for(ip));
        match of_table.or_else(|| self.gids().iter().position(of_family)) {
            Some(at) => self.index(Some(at)),
            None => self.preferred_gid(),
        }
    }

    fn index(&self, at: Option<usize>) -> u16 {
        at.and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
    }

    /// The largest path MTU that the link carries now. If the interface's MTU becomes smaller, so does this;
    /// it becomes no larger than it was when the device was opened.
    pub fn active_mtu(&self) -> Mtu {
        self.inner.port.mtu()
    }

    /// The clock that [`crate::Completion::timestamp`] is read from: CLOCK_MONOTONIC, in nanoseconds; on a
    /// simulated host ([`crate::cluster`]) the time since its cluster was made.
    pub fn now(&self) -> Time {
        self.shard().environment().now()
    }

    /// How many shards it has now ([`super::OpenOptions::shards`]).
    pub fn shard_count(&self) -> usize {
        self.inner.shards.iter().count()
    }

    /// What the engine has counted, of all shards together.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.inner.shards.iter().for_each(|member| sum += &member.shard.counters().0);
        sum
    }

    /// What the backend has counted, of all shards together.
    pub fn net_counters(&self) -> rxe_net::Counters {
        let mut sum = rxe_net::Counters::default();
        self.inner.shards.iter().for_each(|member| sum += member.shard.counters().1);
        sum
    }

    /// The capture of its traffic, if there is one: it is written as the traffic goes, and whole when
    /// the device is closed or [`PcapHandle::flush`] is called.
    pub fn capture(&self) -> Option<&PcapHandle> {
        self.inner.capture.as_ref()
    }

    /// The faults that it was opened with, and what they have done so far.
    pub fn faults(&self) -> Option<&InjectedFaults> {
        self.inner.faults.as_ref()
    }

    /// What has happened since this was last asked, one line each, the oldest first: packets dropped
    /// and why, NAKs, retries, failures. Only the newest 256 of each shard are kept, one shard after the
    /// other.
    pub fn explain(&self) -> Vec<String> {
        let logs = self.inner.shards.iter().map(|member| member.shard.take_log());
        logs.flat_map(|log| log.iter().map(explain).collect::<Vec<_>>()).collect()
    }

    /// The oldest asynchronous event not yet taken.
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.inner.asyncs.take()
    }

    /// The asynchronous events that wait.
    pub(crate) fn asyncs(&self) -> &AsyncEvents {
        &self.inner.asyncs
    }

    /// Readable while [`Device::poll_async_event`] has one.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.inner.asyncs.fd()
    }

    /// How many others have it: handles, and what was made from it.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Whether its interface was removed, and with it the device: nothing works any more. An interface of
    /// the same name that is made later is another device.
    pub fn is_removed(&self) -> bool {
        self.inner.port.is_removed()
    }

    /// Whether this is a handle of the same open device as `other`.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Tells `bound` when the interface is removed, until [`Device::unbind`].
    pub(crate) fn bind(&self, bound: Arc<dyn BoundToDevice>) {
        self.inner.port.bind(bound);
    }

    /// Undoes [`Device::bind`] for what has this address in memory.
    pub(crate) fn unbind(&self, address: usize) {
        self.inner.port.unbind(address);
    }

    /// Whether it asks if the peers of its connections are still there
    /// ([`OpenOptions::keepalive`](super::OpenOptions::keepalive)), and whether questions may leave from
    /// a source port of their own.
    pub(crate) fn keepalive(&self) -> (bool, bool) {
        (self.inner.keepalive, self.inner.source_port.is_none())
    }

    /// Closes it.
    ///
    /// # Errors
    /// Something made from it is still there; it then closes with the last of these.
    pub fn close(self) -> Result<()> {
        closed(UseCounts::NONE, self.users(), "the device")
    }

    /// A handle that does not keep it open.
    pub(crate) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.inner))
    }

    /// The index of an own address.
    pub(crate) fn gid_index_of(&self, ip: IpAddr) -> Option<u16> {
        let gid = Gid::from(ip);
        let at = self.gids().iter().position(|g| *g == gid)?;
        u16::try_from(at).ok()
    }

    /// A number for a protection domain. No other of this process has it, so that what is of another device
    /// is of another domain too.
    pub(crate) fn next_pd() -> PdId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        PdId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A number for a shared receive queue: 24 bits, as many as an XRC request has for it.
    pub(crate) fn next_srq(&self) -> u32 {
        self.inner.next_srq.fetch_add(1, Ordering::Relaxed) & 0xff_ffff
    }

    /// Chooses the shard for a new queue pair, by its number. `used`: its completion queues are of these
    /// already. `vector`: that of its receive completion queue.
    pub(crate) fn choose_shard(&self, used: u32, vector: u32) -> usize {
        self.inner.shards.choose(used, vector)
    }

    /// Where the numbers of a shard's queue pairs come from.
    pub(crate) fn qpns(&self, shard: usize) -> &QpnAllocator {
        &self.inner.shards.get(shard).qpns
    }

    /// The first shard: it has the connection manager, and says whether the device works.
    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        &self.inner.shards.first().shard
    }

    /// A shard by its number.
    #[inline]
    pub(crate) fn shard_at(&self, number: usize) -> &Arc<Shard> {
        &self.inner.shards.get(number).shard
    }

    /// The first shard of a set; of an empty one the device's first.
    #[inline]
    pub(crate) fn first_of(&self, shards: &ShardSet) -> &Shard {
        &self.inner.shards.get(shards.bits().trailing_zeros() as usize).shard
    }

    /// Returns the shards of these bits, by their numbers.
    pub(crate) fn shards_among(&self, mut bits: u32) -> impl Iterator<Item = &Shard> {
        std::iter::from_fn(move || {
            let number = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(&**self.shard_at(number as usize))
        })
    }

    /// All shards that there are.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.inner.shards.iter().map(|member| &*member.shard)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.inner.resources
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// The address behind an index, or why there is none.
    pub(crate) fn gid(&self, index: u16) -> Result<Gid> {
        let gids = self.gids();
        match gids.get(usize::from(index)) {
            Some(gid) if !gid.is_zero() => Ok(*gid),
            found => {
                // Its interface may be removed, which says more.
                self.shard().check()?;
                let usable = gids.iter().enumerate().filter(|(_, g)| !g.is_zero());
                let usable: Vec<_> = usable.map(|(i, g)| format!("{i} ({})", g.to_ip())).collect();
                let why = match found {
                    Some(_) => "nothing can be sent from it: the interface lacks that address",
                    None => "the GID table has no such entry",
                };
                let has = if usable.is_empty() { "no address".into() } else { usable.join(", ") };
                let why = format!("{index}: {why}; {} has {has}", self.name());
                Err(VerbsError::InvalidAttribute { name: "sgid_index", why }.into())
            }
        }
    }

    /// Refuses what belongs to another device.
    pub(crate) fn owns(&self, other: &Self, what: &str) -> Result<()> {
        if self.is(other) {
            return Ok(());
        }
        let what = format!("{what} (it belongs to {}, opened apart)", other.name());
        Err(VerbsError::UnknownObject { what }.into())
    }

    /// Whether a peer's address is of a family that this device has.
    pub(crate) fn reaches(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.gids().iter().any(|g| !g.is_zero() && g.to_ip().is_ipv4() == ip.is_ipv4())
    }
}

/// A handle that does not keep a device open.
#[derive(Clone)]
pub(crate) struct WeakDevice(Weak<DeviceInner>);

impl WeakDevice {
    /// The device, if it is still open.
    pub(crate) fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(|inner| Device { inner })
    }
}

impl fmt::Debug for WeakDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakDevice")
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("gids", &self.gids())
            .finish_non_exhaustive()
    }
}
