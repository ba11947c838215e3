//! An open device: its engines, their network backends, and the threads that serve peers while the
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

/// An open device. All other objects are created from it and keep it open.
#[derive(Clone)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

pub(super) struct DeviceInner {
    /// Dropped first, while everything that it reports on still exists.
    pub(super) _reporting: Option<Reporting>,
    pub(super) info: DeviceInfo,
    pub(super) backend: &'static str,
    /// The state that changes with the interface.
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
    /// The source port of all packets, if it is fixed.
    pub(super) source_port: Option<u16>,
}

impl Device {
    pub(super) fn from_inner(inner: DeviceInner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Returns the name, such as `rxe_eth0`.
    pub fn name(&self) -> &str {
        self.inner.info.name()
    }

    /// Returns the description of the device, as of when it was opened.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Returns the device's capabilities and limits.
    pub fn attr(&self) -> DeviceAttr {
        DeviceAttr::of(self.inner.info.interface(), &self.inner.limits)
    }

    /// Returns the present attributes of the port.
    pub fn port_attr(&self) -> PortAttr {
        let max_msg_sz = u32::try_from(self.inner.limits.max_message).unwrap_or(u32::MAX);
        let active_mtu = self.active_mtu();
        PortAttr { max_msg_sz, active_mtu, ..PortAttr::of(&self.inner.port.interface()) }
    }

    /// Returns the name of the backend and its mode: `udp`, `packet`, `xdp:driver`, …
    pub fn backend_name(&self) -> &'static str {
        self.inner.backend
    }

    /// Returns the high 8 bits of the QPNs in the first shard's first block; never 0.
    ///
    /// A block is a range of 65,536 QPNs. Other processes on the same addresses, and other shards,
    /// have other blocks. A shard with 65,000 queue pairs in a block takes a further one. `None` if
    /// the backend does not share addresses.
    pub fn qpn_block(&self) -> Option<u8> {
        self.inner.shards.first().qpns.first_block()
    }

    /// Returns what the device shares with other processes: its addresses, and the services that it
    /// listens to.
    pub(crate) fn port_groups(&self) -> Option<&PortGroups> {
        self.inner.shards.first().qpns.port_groups()
    }

    /// Returns the present local addresses by `sgid_index`.
    ///
    /// They follow the interface's addresses, unless the program has named them. [`Gid::ZERO`]
    /// marks entries from which nothing can be sent.
    pub fn gids(&self) -> Arc<[Gid]> {
        self.inner.port.gids()
    }

    /// Returns the GID table as a kernel device shows it, including entries from which nothing can
    /// be sent.
    pub fn gid_table(&self) -> Vec<Gid> {
        match self.inner.port.table() {
            Some(table) => table.iter().map(|entry| entry.gid).collect(),
            None => self.gids().to_vec(),
        }
    }

    /// Returns the index of the local address that is used if a program names none.
    pub fn preferred_gid(&self) -> u16 {
        let of_table = self.inner.port.table().and_then(|table| table.preferred());
        self.index(of_table.or_else(|| self.gids().iter().position(|g| !g.is_zero())))
    }

    /// Returns the index of the local address to use for a peer: on the same network if there is
    /// one, otherwise of the same family.
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

    /// Returns the largest path MTU that the link carries now.
    ///
    /// It follows the interface's MTU, but never exceeds its value at the time when the device was
    /// opened.
    pub fn active_mtu(&self) -> Mtu {
        self.inner.port.mtu()
    }

    /// Returns the time of the clock of [`crate::Completion::timestamp`].
    ///
    /// This is CLOCK_MONOTONIC, in nanoseconds; on a simulated host ([`crate::cluster`]), the time
    /// since its cluster was created.
    pub fn now(&self) -> Time {
        self.shard().environment().now()
    }

    /// Returns the present number of shards ([`super::OpenOptions::shards`]).
    pub fn shard_count(&self) -> usize {
        self.inner.shards.iter().count()
    }

    /// Returns the engines' counters, summed over all shards.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.inner.shards.iter().for_each(|member| sum += &member.shard.counters().0);
        sum
    }

    /// Returns the backends' counters, summed over all shards.
    pub fn net_counters(&self) -> rxe_net::Counters {
        let mut sum = rxe_net::Counters::default();
        self.inner.shards.iter().for_each(|member| sum += member.shard.counters().1);
        sum
    }

    /// Returns the capture of the traffic, if there is one.
    ///
    /// The file is written as packets pass, and is complete when the device is closed or
    /// [`PcapHandle::flush`] is called.
    pub fn capture(&self) -> Option<&PcapHandle> {
        self.inner.capture.as_ref()
    }

    /// Returns the injected faults and what they have done so far, if the device was opened with
    /// faults.
    pub fn faults(&self) -> Option<&InjectedFaults> {
        self.inner.faults.as_ref()
    }

    /// Returns descriptions of the events since the last call, one line each, oldest first.
    ///
    /// The events include dropped packets with the reason, NAKs, retries and failures. Only the
    /// newest 256 of each shard are kept, and the shards follow one after the other.
    pub fn explain(&self) -> Vec<String> {
        let logs = self.inner.shards.iter().map(|member| member.shard.take_log());
        logs.flat_map(|log| log.iter().map(explain).collect::<Vec<_>>()).collect()
    }

    /// Takes the oldest asynchronous event not yet taken.
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.inner.asyncs.take()
    }

    /// Returns the queue of asynchronous events.
    pub(crate) fn asyncs(&self) -> &AsyncEvents {
        &self.inner.asyncs
    }

    /// Returns the descriptor that is readable while [`Device::poll_async_event`] has an event.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.inner.asyncs.fd()
    }

    /// Returns the number of other references: handles, and objects created from the device.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns whether the interface, and with it the device, was removed.
    ///
    /// Nothing works any more then. An interface of the same name that is created later is another
    /// device.
    pub fn is_removed(&self) -> bool {
        self.inner.port.is_removed()
    }

    /// Returns whether both are handles of the same open device.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Notifies `bound` when the interface is removed, until [`Device::unbind`].
    pub(crate) fn bind(&self, bound: Arc<dyn BoundToDevice>) {
        self.inner.port.bind(bound);
    }

    /// Undoes [`Device::bind`] for the object at this memory address.
    pub(crate) fn unbind(&self, address: usize) {
        self.inner.port.unbind(address);
    }

    /// Returns whether the device checks that the peers of its connections are alive
    /// ([`OpenOptions::keepalive`](super::OpenOptions::keepalive)), and whether the checks may use
    /// a source port of their own.
    pub(crate) fn keepalive(&self) -> (bool, bool) {
        (self.inner.keepalive, self.inner.source_port.is_none())
    }

    /// Closes the device and reports remaining users.
    ///
    /// # Errors
    /// Fails if objects created from the device still exist. It is then closed with the last of
    /// them.
    pub fn close(self) -> Result<()> {
        closed(UseCounts::NONE, self.users(), "the device")
    }

    /// Returns a handle that does not keep the device open.
    pub(crate) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.inner))
    }

    /// Returns the index of a local address.
    pub(crate) fn gid_index_of(&self, ip: IpAddr) -> Option<u16> {
        let gid = Gid::from(ip);
        let at = self.gids().iter().position(|g| *g == gid)?;
        u16::try_from(at).ok()
    }

    /// Returns a new number for a protection domain, unique in this process, so that objects of
    /// different devices never share a domain.
    pub(crate) fn next_pd() -> PdId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        PdId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the next number for a shared receive queue: 24 bits, as in XRC requests.
    pub(crate) fn next_srq(&self) -> u32 {
        self.inner.next_srq.fetch_add(1, Ordering::Relaxed) & 0xff_ffff
    }

    /// Returns the number of the shard for a new queue pair. `used` has a bit for each shard of its
    /// completion queues, `vector` is the vector of its receive completion queue.
    pub(crate) fn choose_shard(&self, used: u32, vector: u32) -> usize {
        self.inner.shards.choose(used, vector)
    }

    /// Returns the QPN allocator of a shard.
    pub(crate) fn qpns(&self, shard: usize) -> &QpnAllocator {
        &self.inner.shards.get(shard).qpns
    }

    /// Returns the first shard, which has the connection manager and tells whether the device
    /// works.
    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        &self.inner.shards.first().shard
    }

    /// Returns a shard by its number.
    #[inline]
    pub(crate) fn shard_at(&self, number: usize) -> &Arc<Shard> {
        &self.inner.shards.get(number).shard
    }

    /// Returns the first shard of a set, or the device's first shard if the set is empty.
    #[inline]
    pub(crate) fn first_of(&self, shards: &ShardSet) -> &Shard {
        &self.inner.shards.get(shards.bits().trailing_zeros() as usize).shard
    }

    /// Returns the shards whose numbers have a bit set.
    pub(crate) fn shards_among(&self, mut bits: u32) -> impl Iterator<Item = &Shard> {
        std::iter::from_fn(move || {
            let number = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(&**self.shard_at(number as usize))
        })
    }

    /// Returns all present shards.
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

    /// Returns the local address at an index, or an error that lists the usable indexes.
    pub(crate) fn gid(&self, index: u16) -> Result<Gid> {
        let gids = self.gids();
        match gids.get(usize::from(index)) {
            Some(gid) if !gid.is_zero() => Ok(*gid),
            found => {
                // If the interface was removed, that error explains more.
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

    /// Fails if an object belongs to another device.
    pub(crate) fn owns(&self, other: &Self, what: &str) -> Result<()> {
        if self.is(other) {
            return Ok(());
        }
        let what = format!("{what} (it belongs to {}, opened apart)", other.name());
        Err(VerbsError::UnknownObject { what }.into())
    }

    /// Returns whether the device has an address of the peer's family.
    pub(crate) fn reaches(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.gids().iter().any(|g| !g.is_zero() && g.to_ip().is_ipv4() == ip.is_ipv4())
    }
}

/// A handle that does not keep the device open.
#[derive(Clone)]
pub(crate) struct WeakDevice(Weak<DeviceInner>);

impl WeakDevice {
    /// Returns the device, if it is still open.
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
