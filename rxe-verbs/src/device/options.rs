//! How to open a device.

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

/// How to open a device; begin with [`Device::options`].
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
}

impl Device {
    /// Opens the device of this name (`rxe_eth0`) or on the interface of this name (`eth0`) as
    /// [`OpenOptions::new`] does it.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(name: &str) -> Result<Self> {
        OpenOptions::new(name).open()
    }

    /// Opens the first of [`crate::devices`].
    ///
    /// # Errors
    /// As [`OpenOptions::open`]; or there is none.
    pub fn open_first() -> Result<Self> {
        Self::open(DeviceInfo::first()?.name())
    }

    /// How to open a device in another way than [`Device::open`].
    pub fn options(name: &str) -> OpenOptions {
        OpenOptions::new(name)
    }
}

impl OpenOptions {
    /// How many shards there may be ([`OpenOptions::shards`]).
    pub const SHARDS: RangeInclusive<u32> = 1..=MAX_SHARDS;

    /// The device of this name or on the interface of this name; all its addresses; over UDP sockets.
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
        }
    }

    /// A device on a simulated host, which is driven by its simulation.
    pub(crate) fn simulated(environment: Environment, backend: Box<dyn Backend>) -> Self {
        // A simulation ends when nothing is left to do, so nobody asks in vain.
        Self { custom: Some(backend), environment, keepalive: false, ..Self::new("") }
    }

    /// Use only this address; called again, this one too. They need not be listed on the interface:
    /// all of 127.0.0.0/8 can be used on `lo`. They are the GID table, in this order.
    pub fn address(mut self, ip: IpAddr) -> Self {
        self.addresses.push(ip);
        self
    }

    /// Which way onto a wire; UDP sockets if this is not called.
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.wire.kind = kind;
        self
    }

    /// Use this way onto a wire, which the program has opened for the same addresses.
    pub fn custom_backend(mut self, backend: Box<dyn Backend>) -> Self {
        self.custom = Some(backend);
        self
    }

    /// Write all packets to this file (pcapng), with comments on why they were dropped, refused or sent
    /// again. An existing file is overwritten with the first packet.
    pub fn pcap(self, path: impl Into<PathBuf>) -> Self {
        self.pcap_options(PcapOptions::new(path))
    }

    /// The same, with a limit of its own to the file's size.
    pub fn pcap_options(mut self, options: PcapOptions) -> Self {
        self.pcap = Some(options);
        self
    }

    /// Do this to the packets that this device sends and to those that reach it, to its requests and to
    /// its completions. The same seed does the same to the same packets. If packets are hit, those to processes of this host go through shared memory one by one
    /// and with an ICRC then, as on a wire.
    pub fn faults(mut self, seed: u64, plan: FaultPlan) -> Self {
        self.faults = Some((seed, plan));
        self
    }

    /// Whether to take part in congestion control: to send packets as ECN capable, to answer marks
    /// with notifications and to slow down when notified. On unless switched off; a peer that does
    /// not take part is noticed.
    pub fn congestion_control(mut self, on: bool) -> Self {
        self.congestion_control = on;
        self
    }

    /// The most packets that a queue pair leaves unacknowledged.
    pub fn window_packets(mut self, packets: u32) -> Self {
        self.window_packets = Some(packets.max(1));
        self
    }

    /// The most bytes that a queue pair leaves unacknowledged. By default what the receive buffer
    /// takes that the system gave this device, since the peer's is unknown and likely alike.
    pub fn window_bytes(mut self, bytes: u32) -> Self {
        self.window_bytes = Some(bytes.max(1));
        self
    }

    /// Bytes of receive buffer to ask the system for.
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.wire.recv_buffer = Some(bytes);
        self
    }

    /// The descriptor that is readable while an asynchronous event waits ([`Device::async_fd`]): one that the
    /// program had before the device is open.
    pub fn async_fd(mut self, fd: Arc<EventFd>) -> Self {
        self.async_fd = Some(fd);
        self
    }

    /// Calls `observer` with everything worth knowing, in order, one event at a time, from whichever
    /// thread it happened on. The engine works on meanwhile; events that come faster than 4,096
    /// behind are missed. Of a request that failed it is told before a program takes the completion, if it needs
    /// no more than half a second for that.
    pub fn on_event(mut self, observer: Box<dyn Fn(&Event) + Send>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// When acknowledgements of messages leave that the program polls.
    pub fn ack_policy(mut self, acks: AckPolicy) -> Self {
        self.acks = acks;
        self
    }

    /// Which UDP source ports packets leave from: one for each queue pair, unless a firewall on the way wants
    /// one for all. A backend of the program's own ([`OpenOptions::custom_backend`]) may have but one.
    pub fn source_port(mut self, policy: SourcePortPolicy) -> Self {
        self.wire.source_port = policy;
        self
    }

    /// Whether the peers of connections made by address ([`crate::cm`]) are asked every two seconds if they
    /// are still there, so that the program hears of one that was killed
    /// ([`Disconnected`](crate::cm::CmEventKind::Disconnected)). On unless switched off.
    pub fn keepalive(mut self, on: bool) -> Self {
        self.keepalive = on;
        self
    }

    /// How many objects there may be, and how large: for a program that must not take more than its
    /// share. [`DeviceAttr`](super::DeviceAttr) tells them.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether packets to other processes of this host and this user go through shared memory
    /// instead of the wire: the same packets, and a capture shows them. On unless switched off.
    pub fn shared_memory(mut self, on: bool) -> Self {
        self.wire.shared_memory = on;
        self
    }

    /// Whether many packets are handed to the system in one piece, which it cuts up (GSO), and taken
    /// from it so (GRO): much faster, but captures of the interface may show such pieces instead of
    /// packets. On unless switched off.
    pub fn segmentation(mut self, on: bool) -> Self {
        self.wire.segmentation = on;
        self
    }

    /// Spread queue pairs over so many shards ([`OpenOptions::SHARDS`]): engines that run side by side, on a CPU each. They
    /// are dealt out in turn by their completion queues: queue pairs that complete in one queue, or in queues
    /// of one completion vector other than 0 ([`crate::CompletionQueue::set_comp_vector`]), are of one shard.
    ///
    /// Without this, each thread that makes queue pairs has a shard for them, and one more for each
    /// completion vector that it names, but there are no more shards than CPUs, and at most 8. With captures,
    /// with faults, with [`OpenOptions::custom_backend`] and for endpoints of layer 2 there is always one;
    /// over AF_XDP, before Linux 6.0 (in generic mode 6.15), too.
    pub fn shards(mut self, count: u32) -> Self {
        self.spread = Spread::Queues(count.clamp(1, MAX_SHARDS));
        self
    }

    /// Opens it. If all addresses of the interface are tentative, as for a second or two after it came
    /// up with IPv6 only, this waits for the first that can be used, a few seconds at most.
    ///
    /// # Errors
    /// [`crate::Error::Device`] where there is none of this name, [`crate::Error::Net`] where the
    /// backend cannot be opened (port 4791 in use, missing privileges, …).
    pub fn open(self) -> Result<Device> {
        rxe_sys::on_own_stack("rxe-open", || self.open_here())
    }

    fn open_here(mut self) -> Result<Device> {
        // First, so that no change is missed. Without, the device stays as it is opened.
        let mut monitor = InterfaceMonitor::open().ok();
        let mut info = DeviceInfo::find(&self.name)?;
        let named = !self.addresses.is_empty();
        if let Some(config) = info.endpoint().cloned().filter(|_| self.custom.is_none()) {
            // The host's interfaces say nothing about it.
            monitor = None;
            info = self.open_endpoint(&config, info)?;
        } else if !named && self.custom.is_none() {
            info = wait_until_usable(info, monitor.as_mut())?;
        }
        self.open_on(info, monitor)
    }

    /// Opens the device that is described so. `monitor` tells of changes.
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
            captured: Arc::clone(&ports.captured),
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

    /// A further shard, with a way onto the wire of its own.
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

    /// Wraps the way onto the wire by what was asked for. The capture shows what the engine sees:
    /// what faults take away is not in it, what they do is.
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

    /// Opens an endpoint of layer 2, which is its own way onto the wire. The device as it is now.
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

/// What all shards of a device have in common.
struct Common {
    device: String,
    memory: Arc<Memory>,
    asyncs: Arc<AsyncEvents>,
    observers: Option<Arc<Observers>>,
    capture: Option<PcapHandle>,
    acks: AckPolicy,
    environment: Environment,
}

impl Common {
    /// A shard without queue pairs, and what it shares with other processes.
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
            environment: self.environment.clone(),
        })?;
        Ok((Arc::new(shard), groups))
    }
}

/// Handles to what is around a backend.
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

/// The window, in bytes, for a peer whose receive buffer is like this device's. A packet of 1024
/// bytes takes 2.3 times as much of the buffer, and answers and other queue pairs want some too.
fn window(capabilities: &Capabilities) -> u32 {
    const MIN: u32 = 32 << 10;
    const MAX: u32 = 1 << 20;
    match capabilities.recv_buffer {
        0 => MAX,
        bytes => u32::try_from(bytes / 3).unwrap_or(MAX).clamp(MIN, MAX),
    }
}

/// What all QPs to one address together leave unacknowledged: as far as is known, the peer's buffer is like
/// this device's own, and READ data arrives in this one.
fn shared_window(capabilities: &Capabilities) -> u32 {
    match capabilities.recv_buffer {
        0 => u32::MAX,
        bytes => u32::try_from(bytes / 3).unwrap_or(u32::MAX),
    }
}

/// Has ICRCs made in the way that is faster on this processor.
fn choose_icrc() {
    static CHOSEN: Once = Once::new();
    CHOSEN.call_once(|| icrc::choose(now));
}
