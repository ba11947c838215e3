//! Options for opening a device, and the opening itself.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use rxe_core::engine::{Config, Engine, Event, Limits};
use rxe_core::mem::Memory;
use rxe_core::types::{Gid, Mtu};
use rxe_core::wire::icrc;
use rxe_net::{
    Backend, BackendKind, Capabilities, Fault, FaultReport, InterfaceMonitor, L2Backend, L2Config,
    L2Failure, NetError, Pcap, PcapHandle, PcapOptions, PortGroups,
};
use rxe_sys::EventFd;

use super::open::DeviceInner;
use super::port_monitor::{ObservedPort, PortData, PortMonitor};
use super::shards::{MAX_SHARDS, Member, Ports, Shards, Spread};
use super::tentative::wait_until_usable;
use super::wire::{Wire, WireOptions};
use super::{Device, DeviceAttr, DeviceInfo, SourcePortPolicy};
use crate::error::Result;
use crate::event::{AsyncEvents, Events, Observer, Observers};
use crate::faults::{FaultPlan, InjectedFaults, VerbsTally};
use crate::observe::{DeviceReporter, Reporting, Resources};
use crate::os::{Environment, now};
use crate::progress::{AckPolicy, Core, Monitor, Shard, ShardParts};

/// The options for opening a device; begin with [`Device::options`].
#[must_use = "a device is opened by open()"]
pub struct OpenOptions {
    name: String,
    addresses: Vec<IpAddr>,
    wire: WireOptions,
    custom: Option<Box<dyn Backend>>,
    pcap: Option<PcapOptions>,
    faults: Option<(u64, FaultPlan)>,
    window_packets: Option<u32>,
    congestion_control: bool,
    window_bytes: Option<u32>,
    observer: Option<Observer>,
    async_fd: Option<Arc<EventFd>>,
    acks: AckPolicy,
    limits: Limits,
    spread: Spread,
    environment: Environment,
    keepalive: bool,
    realtime: bool,
}

impl Device {
    /// Opens the device with this name (`rxe_eth0`), or on the interface with this name (`eth0`),
    /// with the options of [`OpenOptions::new`].
    ///
    /// # Errors
    /// Fails like [`OpenOptions::open`].
    pub fn open(name: &str) -> Result<Self> {
        OpenOptions::new(name).open()
    }

    /// Opens the first of [`crate::devices`].
    ///
    /// # Errors
    /// Fails like [`OpenOptions::open`], and if there is no device.
    pub fn open_first() -> Result<Self> {
        Self::open(DeviceInfo::first()?.name())
    }

    /// Returns options for opening a device in another way than [`Device::open`].
    pub fn options(name: &str) -> OpenOptions {
        OpenOptions::new(name)
    }
}

impl OpenOptions {
    /// The possible numbers of shards ([`OpenOptions::shards`]).
    pub const SHARDS: RangeInclusive<u32> = 1..=MAX_SHARDS;

    /// Returns the default options: all addresses of the device, over UDP sockets.
    ///
    /// `name` is the name of the device or of its interface.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            addresses: Vec::new(),
            wire: WireOptions::default(),
            custom: None,
            pcap: None,
            faults: None,
            window_packets: None,
            congestion_control: true,
            window_bytes: None,
            observer: None,
            async_fd: None,
            acks: AckPolicy::default(),
            limits: Limits::default(),
            spread: Spread::Threads,
            environment: Environment::System,
            keepalive: true,
            realtime: true,
        }
    }

    /// Returns the options for a device on a simulated host, which its simulation drives.
    pub(crate) fn simulated(environment: Environment, backend: Box<dyn Backend>) -> Self {
        // A simulation ends when no event is left, so keepalives would keep it running.
        Self { custom: Some(backend), environment, keepalive: false, ..Self::new("") }
    }

    /// Uses only this address; call it again to add further ones.
    ///
    /// The addresses form the GID table in this order. They need not be listed on the interface:
    /// all of 127.0.0.0/8 can be used on `lo`.
    pub fn address(mut self, ip: IpAddr) -> Self {
        self.addresses.push(ip);
        self
    }

    /// Sets the kind of network backend; the default is UDP sockets.
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.wire.kind = kind;
        self
    }

    /// Uses a backend that the program has opened for the same addresses.
    pub fn custom_backend(mut self, backend: Box<dyn Backend>) -> Self {
        self.custom = Some(backend);
        self
    }

    /// Writes all packets to this file (pcapng).
    ///
    /// Comments tell why packets were dropped, refused or retransmitted. An existing file is
    /// overwritten when the first packet is written.
    pub fn pcap(self, path: impl Into<PathBuf>) -> Self {
        self.pcap_options(PcapOptions::new(path))
    }

    /// Like [`OpenOptions::pcap`], with options such as the largest file size.
    pub fn pcap_options(mut self, options: PcapOptions) -> Self {
        self.pcap = Some(options);
        self
    }

    /// Injects faults into the device's packets in both directions, its requests and its
    /// completions.
    ///
    /// The same seed has the same effect on the same packets. If packets are affected, those to
    /// processes of this host go through shared memory one by one and with an ICRC, as on a wire.
    pub fn faults(mut self, seed: u64, plan: FaultPlan) -> Self {
        self.faults = Some((seed, plan));
        self
    }

    /// Sets whether to take part in congestion control; the default is on.
    ///
    /// The device then sends packets as ECN capable, answers marks with notifications, and slows
    /// down when it is notified. It detects peers that do not take part.
    pub fn congestion_control(mut self, on: bool) -> Self {
        self.congestion_control = on;
        self
    }

    /// Sets the most packets that a queue pair may have unacknowledged.
    pub fn window_packets(mut self, packets: u32) -> Self {
        self.window_packets = Some(packets.max(1));
        self
    }

    /// Sets the most bytes that a queue pair may have unacknowledged.
    ///
    /// By default, as much as fits into the receive buffer that the kernel gave this device,
    /// because the peer's buffer is unknown and probably alike.
    pub fn window_bytes(mut self, bytes: u32) -> Self {
        self.window_bytes = Some(bytes.max(1));
        self
    }

    /// Sets the size of the receive buffer to request from the kernel, in bytes.
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.wire.recv_buffer = Some(bytes);
        self
    }

    /// Uses an existing descriptor for asynchronous events ([`Device::async_fd`]).
    pub fn async_fd(mut self, fd: Arc<EventFd>) -> Self {
        self.async_fd = Some(fd);
        self
    }

    /// Calls `observer` with every event of the device, in order, one at a time.
    ///
    /// It is called on any thread that drives the device, while the engine continues. If 4,096
    /// events wait, further ones are not reported. The events that explain a failed request are
    /// reported before a program takes the completion, if the observer needs no more than half a
    /// second.
    pub fn on_event(mut self, observer: Box<dyn Fn(&Event) + Send>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets when the acknowledgements of polled messages are sent.
    pub fn ack_policy(mut self, acks: AckPolicy) -> Self {
        self.acks = acks;
        self
    }

    /// Sets the UDP source ports of packets; the default is one for each queue pair.
    ///
    /// One port for all packets suits a firewall that admits only one. A backend of the program
    /// ([`OpenOptions::custom_backend`]) may be limited to one port.
    pub fn source_port(mut self, policy: SourcePortPolicy) -> Self {
        self.wire.source_port = policy;
        self
    }

    /// Sets whether to check every two seconds that the peers of connections are alive; the default
    /// is on.
    ///
    /// This applies to connections by address ([`crate::cm`]). The program is notified of a peer
    /// that was killed ([`Disconnected`](crate::cm::CmEventKind::Disconnected)).
    pub fn keepalive(mut self, on: bool) -> Self {
        self.keepalive = on;
        self
    }

    /// Sets whether the device's threads sleep at a real-time priority (SCHED_RR, the lowest); the
    /// default is on. sched(7).
    ///
    /// They then get a CPU as soon as a packet arrives, also while the program's threads poll memory
    /// on every CPU. They work at an ordinary priority. Where the process may not have real-time
    /// priorities (without CAP_SYS_NICE or RLIMIT_RTPRIO), or if the thread that opens the device
    /// has another policy than SCHED_OTHER, the option changes nothing.
    pub fn realtime(mut self, on: bool) -> Self {
        self.realtime = on;
        self
    }

    /// Sets the limits of objects' numbers and sizes ([`DeviceAttr`](super::DeviceAttr)), for a
    /// program that must not take more than its share.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets whether packets to processes of this user on this host go through shared memory; the
    /// default is on.
    ///
    /// The packets are those of the wire, and captures show them.
    pub fn shared_memory(mut self, on: bool) -> Self {
        self.wire.shared_memory = on;
        self
    }

    /// Sets whether the kernel segments (GSO) and merges (GRO) packets; the default is on.
    ///
    /// This is much faster, but captures of the interface may show merged packets.
    pub fn segmentation(mut self, on: bool) -> Self {
        self.wire.segmentation = on;
        self
    }

    /// Spreads queue pairs over this number of shards ([`OpenOptions::SHARDS`]): engines that run
    /// in parallel, on a CPU each.
    ///
    /// Shards are assigned in turn by completion queue: queue pairs that complete in one queue, or
    /// in queues of one completion vector other than 0
    /// ([`crate::CompletionQueue::set_comp_vector`]), belong to one shard.
    ///
    /// By default, each thread that creates queue pairs has a shard for each completion vector that
    /// it uses, up to the number of CPUs and at most 8 shards. There is always one shard with
    /// captures, with faults, with [`OpenOptions::custom_backend`], for endpoints of layer 2, and
    /// over AF_XDP before Linux 6.0 (in generic mode before 6.15).
    pub fn shards(mut self, count: u32) -> Self {
        self.spread = Spread::Queues(count.clamp(1, MAX_SHARDS));
        self
    }

    /// Opens the device.
    ///
    /// If all addresses of the interface are tentative, as for a second or two after it came up
    /// with IPv6 only, this waits a few seconds at most for the first usable one.
    ///
    /// # Errors
    /// Fails with [`crate::Error::Device`] if there is no such device, and with
    /// [`crate::Error::Net`] if the backend cannot be opened (port 4791 in use, missing privileges,
    /// …).
    pub fn open(self) -> Result<Device> {
        rxe_sys::on_own_stack("rxe-open", || self.open_here())
    }

    fn open_here(mut self) -> Result<Device> {
        // Opened first, so that no change is missed. Without a monitor, the device stays as it is
        // opened.
        let mut monitor = InterfaceMonitor::open().ok();
        let mut info = DeviceInfo::find(&self.name)?;
        let named = !self.addresses.is_empty();
        if let Some(config) = info.endpoint().cloned().filter(|_| self.custom.is_none()) {
            // The host's interfaces do not describe an endpoint.
            monitor = None;
            info = self.open_endpoint(&config, info)?;
        } else if !named && self.custom.is_none() {
            info = wait_until_usable(info, monitor.as_mut())?;
        }
        self.open_on(info, monitor)
    }

    /// Opens the device with this description. `monitor` reports changes of the interface.
    pub(crate) fn open_on(
        mut self,
        info: DeviceInfo,
        monitor: Option<InterfaceMonitor>,
    ) -> Result<Device> {
        choose_icrc();
        let named = !self.addresses.is_empty();
        let gids: Vec<Gid> = if named {
            self.addresses.iter().map(|&ip| ip.into()).collect()
        } else {
            info.gids().usable()
        };
        let most =
            if self.pcap.is_some() || self.faults.is_some() { 1 } else { self.spread.limit() };
        let (backend, wire) = match self.custom.take() {
            Some(backend) => (backend, None),
            None => {
                let wire = Wire::prepare(&self.wire, &info.interface().name, most)?;
                (wire.open(&gids)?, Some(wire))
            }
        };
        let (backend, Wrappers { capture, faults }) = self.wrap(backend)?;
        let name = backend.capabilities().name;
        let config = self.engine_config(backend.capabilities(), &info, gids.clone());
        let (mtu, limits) = (config.max_mtu, config.limits);
        let asyncs = Arc::new(match self.environment {
            Environment::System => AsyncEvents::new(match self.async_fd.take() {
                Some(fd) => fd,
                None => Arc::new(EventFd::new()?),
            }),
            Environment::Simulated(_) => AsyncEvents::simulated()?,
        });
        if let Some(faults) = &faults {
            faults.verbs.start_events(&asyncs)?;
        }
        let common = Common {
            device: info.name().into(),
            memory: Arc::new(Memory::new()),
            asyncs: Arc::clone(&asyncs),
            observers: self.observer.take().map(|observer| Arc::new(Observers::new(observer))),
            capture: capture.clone(),
            acks: self.acks,
            realtime: self.realtime,
            environment: self.environment.clone(),
        };
        let memory = Arc::clone(&common.memory);
        let table = (!named).then(|| info.gids().clone());
        let port = Arc::new(PortData::new(info.interface().clone(), table, gids.into(), mtu));
        let ports = Arc::new(Ports::default());
        let (shard, groups) = common.shard(config, backend)?;
        ports.add(groups.clone(), Arc::clone(&shard));
        shard.with(Core::admit_mads)?;
        let (keepalive, source_port) = (self.keepalive, self.wire.source_port.fixed());
        let resources = Arc::new(Resources::new(&limits, DeviceAttr::MAX_DM_SIZE));
        let observed = ObservedPort { ports: Arc::downgrade(&ports), port: Arc::clone(&port) };
        let reporter = DeviceReporter {
            name: info.name().into(),
            backend: name,
            device: Box::new(observed),
            memory: Arc::clone(&memory),
            resources: Arc::clone(&resources),
            live_capture: Arc::clone(&ports.live_capture),
        };
        let reporting = groups.clone().map(|groups| Reporting::start(groups, reporter));
        let port_monitor = monitor.map(|monitor| {
            let (port, ports) = (Arc::clone(&port), Arc::clone(&ports));
            PortMonitor::new(monitor, ports, port, Arc::clone(&asyncs), shard.wakeup())
        });
        let port_monitor = port_monitor.map(|monitor| Box::new(monitor) as Box<dyn Monitor>);
        let first = Member::new(shard, groups, port_monitor)?;
        let shards = match wire {
            Some(wire) if most > 1 => {
                let (spread, options) = (self.spread, Mutex::new(self));
                let (info, port) = (info.clone(), Arc::clone(&port));
                let open = move || options.lock().open_further(&wire, &info, &port.gids(), &common);
                Shards::growing(first, spread, most, ports, Box::new(open))
            }
            _ => Shards::one(first),
        };
        Ok(Device::from_inner(DeviceInner {
            _reporting: reporting,
            backend: name,
            info,
            port,
            limits,
            resources,
            memory,
            asyncs,
            capture,
            faults,
            shards,
            next_srq: AtomicU32::new(1),
            keepalive,
            source_port,
        }))
    }

    /// Opens a further shard, with its own backend.
    fn open_further(
        &self,
        wire: &Wire,
        info: &DeviceInfo,
        gids: &[Gid],
        common: &Common,
    ) -> Result<(Member, Option<Arc<PortGroups>>)> {
        let backend = wire.open(gids)?;
        let config = self.engine_config(backend.capabilities(), info, gids.to_vec());
        let (shard, groups) = common.shard(config, backend)?;
        Ok((Member::new(shard, groups.clone(), None)?, groups))
    }

    fn engine_config(
        &self,
        capabilities: &Capabilities,
        info: &DeviceInfo,
        gids: Vec<Gid>,
    ) -> Config {
        let link = u32::try_from(capabilities.link_mtu).unwrap_or(u32::MAX);
        let defaults = Config::default();
        let window_packets = self.window_packets.unwrap_or(defaults.window_packets);
        Config {
            gids,
            source_port: self.wire.source_port.over(capabilities.src_port),
            max_mtu: Mtu::largest_for_link(link.min(info.interface().mtu)).unwrap_or(Mtu::M256),
            window_packets,
            congestion_control: self.congestion_control,
            window_bytes: self.window_bytes.unwrap_or_else(|| window(capabilities)),
            shared_window_bytes: shared_window(capabilities),
            shared_window_packets: match capabilities.recv_buffer {
                0 => u32::MAX,
                _ => defaults.shared_window_packets.max(window_packets),
            },
            limits: self.limits,
        }
    }

    /// Wraps the backend with faults and capture. The capture shows what the engine sees: packets
    /// that faults drop are not in it, other effects of faults are.
    fn wrap(
        &mut self,
        mut backend: Box<dyn Backend>,
    ) -> Result<(Box<dyn Backend>, Wrappers), NetError> {
        let mut wrappers = Wrappers::default();
        if let Some((seed, plan)) = self.faults.take() {
            let mut report = FaultReport::default();
            if !plan.rules().is_empty() {
                let fault = Fault::new(backend, seed, plan.rules())?;
                report = fault.report();
                backend = Box::new(fault);
            }
            let verbs = VerbsTally::new(&plan);
            wrappers.faults = Some(InjectedFaults { seed, report, verbs });
        }
        if let Some(options) = self.pcap.take() {
            let pcap = Pcap::new(backend, &options)?;
            wrappers.capture = Some(pcap.handle());
            backend = Box::new(pcap);
        }
        Ok((backend, wrappers))
    }

    /// Opens an endpoint of layer 2, which is a backend of its own. Returns the device as it is
    /// now.
    fn open_endpoint(
        &mut self,
        config: &L2Config,
        info: DeviceInfo,
    ) -> Result<DeviceInfo, NetError> {
        let failed = |reason| NetError::L2 { link: config.link.to_string(), reason };
        if self.wire.kind != BackendKind::default() {
            return Err(failed(L2Failure::OtherBackend { backend: self.wire.kind.name() }));
        }
        let backend = L2Backend::open(config)?;
        let is_own = |ip: &IpAddr| backend.addresses().iter().any(|own| own.ip == *ip);
        if let Some(address) = self.addresses.iter().find(|ip| !is_own(ip)) {
            return Err(failed(L2Failure::NoSuchAddress { address: *address }));
        }
        let interface = backend.interface(&info.interface().name, info.interface().index);
        self.custom = Some(Box::new(backend));
        Ok(info.with_interface(interface))
    }
}

/// What all shards of a device share.
struct Common {
    device: String,
    memory: Arc<Memory>,
    asyncs: Arc<AsyncEvents>,
    observers: Option<Arc<Observers>>,
    capture: Option<PcapHandle>,
    acks: AckPolicy,
    realtime: bool,
    environment: Environment,
}

impl Common {
    /// Creates a shard without queue pairs. Also returns what the shard shares with other
    /// processes.
    fn shard(
        &self,
        config: Config,
        mut backend: Box<dyn Backend>,
    ) -> Result<(Arc<Shard>, Option<Arc<PortGroups>>)> {
        let groups = backend.sharing().and_then(|sharing| sharing.port_groups());
        let (asyncs, observers) = (Arc::clone(&self.asyncs), self.observers.clone());
        let shard = Shard::new(ShardParts {
            device: self.device.clone(),
            engine: Engine::new(config, Arc::clone(&self.memory)),
            backend,
            events: Events::new(Arc::clone(&asyncs), self.capture.clone(), observers),
            asyncs,
            acks: self.acks,
            realtime: self.realtime,
            environment: self.environment.clone(),
        })?;
        Ok((Arc::new(shard), groups))
    }
}

/// Handles to the wrappers around a backend.
#[derive(Default)]
struct Wrappers {
    capture: Option<PcapHandle>,
    faults: Option<InjectedFaults>,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("name", &self.name)
            .field("addresses", &self.addresses)
            .field("kind", &self.wire.kind)
            .finish_non_exhaustive()
    }
}

/// Returns the window, in bytes, for a peer whose receive buffer is like this device's. A packet of
/// 1024 bytes takes 2.3 times its size of the buffer, and replies and other queue pairs need some
/// of it.
fn window(capabilities: &Capabilities) -> u32 {
    const MIN: u32 = 32 << 10;
    const MAX: u32 = 1 << 20;
    match capabilities.recv_buffer {
        0 => MAX,
        bytes => u32::try_from(bytes / 3).unwrap_or(MAX).clamp(MIN, MAX),
    }
}

/// Returns how many bytes all queue pairs to one address together may have unacknowledged. The
/// peer's buffer is assumed to be like this device's, into which READ data arrives.
fn shared_window(capabilities: &Capabilities) -> u32 {
    match capabilities.recv_buffer {
        0 => u32::MAX,
        bytes => u32::try_from(bytes / 3).unwrap_or(u32::MAX),
    }
}

/// Chooses the ICRC implementation that is faster on this CPU.
fn choose_icrc() {
    static CHOSEN: Once = Once::new();
    CHOSEN.call_once(|| icrc::choose(now));
}
