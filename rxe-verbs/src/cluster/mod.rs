//! Simulates many hosts in one process and in virtual time, to test protocols.
//!
//! A [`Cluster`] has hosts, each with a device of this crate, connected to one switch. Links have
//! rates, delays and queues. The network loses, duplicates and delays packets, and can be
//! partitioned. Time is virtual: it advances from event to event, and only while the program waits
//! ([`crate::CompletionQueue::wait_one`], [`crate::cm::EventChannel::get_event`], …) or in
//! [`Cluster::run_until`], so a timeout of a second costs nothing. The seed determines everything
//! that happens, so a run that fails can be repeated.
//!
//! ```
//! use rxe_verbs::cluster::{Cluster, for_each_seed};
//! use rxe_verbs::{Access, ConnectOptions, Status};
//! use std::time::Duration;
//!
//! // A write completes although the network breaks for 2 ms and loses each tenth packet.
//! for_each_seed(0..100, |seed| {
//!     let mut cluster = Cluster::new(seed);
//!     let (client, server) = (cluster.add_host()?, cluster.add_host()?);
//!     cluster.network().set_faults(&"drop 10%".parse().expect("a plan"))?;
//!
//!     let (pd, cq) = (client.create_pd()?, client.create_cq(16)?);
//!     let (their_pd, their_cq) = (server.create_pd()?, server.create_cq(16)?);
//!     let (qp, their_qp) = (pd.qp(&cq).build()?, their_pd.qp(&their_cq).build()?);
//!     qp.connect(&their_qp.endpoint(), &ConnectOptions::default())?;
//!     their_qp.connect(&qp.endpoint(), &ConnectOptions::default())?;
//!     let memory = their_pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!
//!     let (a, b) = (client.id(), server.id());
//!     cluster.after(Duration::from_micros(1), move |network| network.partition(&[a], &[b]));
//!     cluster.after(Duration::from_millis(2), |network| network.heal());
//!     qp.write_bytes(1, b"hello", memory.remote(0)).post()?;
//!     assert_eq!(cq.wait_one(Duration::from_secs(9))?.status, Status::Success);
//!     assert_eq!(memory.to_vec(..5)?, b"hello");
//!     Ok::<_, rxe_verbs::Error>(())
//! });
//! ```
//!
//! Programs that run concurrently on several hosts are step functions: [`Cluster::run_until`] calls
//! one for a host after each event of that host.
//!
//! Real are the engine, the verbs, the connection manager, every packet and its ICRC, retries and
//! congestion control. Simplified: programs take no time; there is one switch, without multicast
//! groups; no thread can sleep on the file descriptors of a simulated device; pages of memory
//! cannot be missing. A host that has crashed does not return: a host that restarts is a new host,
//! which [`Cluster::add_host`] adds at any time.

mod network;
mod seeds;
mod world;

use std::fmt;
use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::engine::Limits;
use rxe_core::types::Time;
use rxe_net::{Address, Interface, MacAddr, Scope};

pub use network::{HostId, Network};
pub use rxe_net::{EgressQueue, FabricCounters, LinkConfig, Marking, SwitchCounters};
pub use seeds::for_each_seed;

use crate::cm::EventChannel;
use crate::device::{Device, DeviceInfo, OpenOptions};
use crate::error::{Error, Result};
use crate::os::Environment;
use world::{Port, SimulatedHost, World};

/// Hosts, a network and a virtual clock.
///
/// Use a cluster from one thread only: with a second thread, runs with the same seed differ.
pub struct Cluster {
    world: Arc<World>,
    hosts: Vec<HostId>,
    captures: bool,
}

/// The properties of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// The link to the switch.
    pub link: LinkConfig,
    /// The largest IP packet that the link carries, in bytes. With the default, 4200, the path MTU is 4096.
    pub mtu: u32,
    /// Whether congestion control is on, as in [`OpenOptions::congestion_control`].
    pub congestion_control: bool,
    /// The limits of the device, as in [`OpenOptions::limits`].
    pub limits: Limits,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            link: LinkConfig::default(),
            mtu: 4200,
            congestion_control: true,
            limits: Limits::default(),
        }
    }
}

impl Cluster {
    /// Creates a cluster without hosts, at time 0. `seed` determines everything random: faults of
    /// the network, QPNs, keys and PSNs.
    pub fn new(seed: u64) -> Self {
        Self { world: World::new(seed), hosts: Vec::new(), captures: false }
    }

    /// Adds a host with [`HostOptions::default`].
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn add_host(&mut self) -> Result<Host> {
        self.add_host_with(&HostOptions::default())
    }

    /// Adds a host. The first one has the address 10.0.0.1, the next one 10.0.0.2, and so on.
    ///
    /// # Errors
    /// Like [`Cluster::add_host`].
    pub fn add_host_with(&mut self, options: &HostOptions) -> Result<Host> {
        let number = self.hosts.len();
        let below = u32::try_from(number + 1).ok().filter(|number| *number < 1 << 24);
        let below = below.ok_or_else(|| too_many(number))?;
        let [_, a, b, c] = below.to_be_bytes();
        let address = IpAddr::V4(Ipv4Addr::new(10, a, b, c));
        let at = self.world.add();
        let interface = Interface {
            name: format!("host{number}"),
            index: below,
            mac: Some(MacAddr([2, 0, 0, a, b, c])),
            mtu: options.mtu,
            up: true,
            running: true,
            loopback: false,
            addresses: vec![Address {
                ip: address,
                prefix_len: 8,
                scope: Scope::Global,
                tentative: false,
                duplicate: false,
            }],
        };
        let environment =
            Environment::Simulated(Arc::new(SimulatedHost::new(Arc::clone(&self.world), at)));
        let port = Port::new(Arc::clone(&self.world), at, options.mtu);
        let device = OpenOptions::simulated(environment, Box::new(port))
            .address(address)
            .congestion_control(options.congestion_control)
            .limits(options.limits)
            .open_on(DeviceInfo::from(interface), None)
            .inspect_err(|_| self.world.take_back(at))?;
        self.world.opened(at, address, &options.link, device.shard_at(0));
        let id = HostId { number: at, address };
        self.hosts.push(id);
        Ok(Host { device, id })
    }

    /// Returns all hosts.
    pub fn hosts(&self) -> &[HostId] {
        &self.hosts
    }

    /// Returns the network between the hosts.
    pub fn network(&self) -> Network {
        Network::new(Arc::clone(&self.world))
    }

    /// Returns the virtual time since the cluster was created.
    pub fn now(&self) -> Duration {
        self.world.now().since(Time::ZERO)
    }

    /// Calls `action` with the network after `delay`.
    pub fn after(&mut self, delay: Duration, action: impl FnOnce(&Network) + Send + 'static) {
        let action = |world: &Arc<World>| action(&Network::new(Arc::clone(world)));
        self.world.act_at(self.world.now() + delay, Box::new(action));
    }

    /// Advances the time by `duration` without calling programs.
    pub fn run_for(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        while self.world.advance(until) {}
    }

    /// Calls `step` after each event of a host, until `step` returns true. At first calls it once
    /// for each host.
    ///
    /// Events of a host are the arrival of packets, a timer of its device, and a time that a step
    /// has asked for. Returns true if `step` did, and false when `limit` has passed.
    ///
    /// A step does the host's pending work and then returns: it polls completions, polls memory,
    /// posts. If it waits for a completion, the network continues meanwhile, but no other step is
    /// called.
    pub fn run_until(&mut self, limit: Duration, mut step: impl FnMut(&Step<'_>) -> bool) -> bool {
        let until = self.world.now() + limit;
        self.world.call_all();
        loop {
            while let Some(host) = self.world.take_ready() {
                if step(&Step { world: &self.world, host: self.hosts[host] }) {
                    return true;
                }
            }
            if !self.world.advance(until) {
                return false;
            }
        }
    }

    /// Writes all packets sent from now on to a file (pcapng), as they leave their hosts. Their
    /// timestamps are the virtual time since 1970. `rxe check` and `rxe ladder` read the file,
    /// which is complete when the cluster is dropped.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn capture(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let failed = |e| Error::io("write the capture", e);
        let file = File::create(path).map_err(failed)?;
        self.captures = true;
        self.world.state().switch.capture(Box::new(BufWriter::new(file))).map_err(failed)
    }

    /// Returns a hash of all packets so far and their times. If two runs of a program with the same
    /// seed return different numbers, the program depends on something other than the seed, such as
    /// the iteration order of a `HashMap`.
    pub fn fingerprint(&self) -> u64 {
        self.world.state().switch.fingerprint()
    }
}

/// Ends the capture. Hosts stay usable while the program has them.
impl Drop for Cluster {
    fn drop(&mut self) {
        if self.captures {
            // Drop cannot return the error.
            let _ = self.world.state().switch.end_capture();
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("now", &self.now())
            .field("hosts", &self.hosts.len())
            .finish_non_exhaustive()
    }
}

/// A host of a cluster, which dereferences to its device: `host.create_pd()`.
#[derive(Clone, Debug)]
pub struct Host {
    device: Device,
    id: HostId,
}

impl Host {
    /// Returns the name of the host for [`Network`].
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Returns the address of the host.
    pub fn address(&self) -> IpAddr {
        self.id.address
    }

    /// Returns the device of the host.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Creates a channel whose identifiers use this host's device.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn event_channel(&self) -> Result<EventChannel> {
        EventChannel::on(std::slice::from_ref(&self.device))
    }
}

impl Deref for Host {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

/// The host and time of a step of [`Cluster::run_until`].
pub struct Step<'c> {
    world: &'c World,
    host: HostId,
}

impl Step<'_> {
    /// Returns the host whose step it is.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Duration {
        self.world.now().since(Time::ZERO)
    }

    /// Asks for another step of this host after `delay`.
    pub fn again_after(&self, delay: Duration) {
        self.world.call_at(self.host.number, self.world.now() + delay);
    }
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("host", &self.host).field("now", &self.now()).finish()
    }
}

fn too_many(hosts: usize) -> Error {
    let limit = (1 << 24) - 1;
    let what = "hosts in a cluster";
    rxe_core::VerbsError::LimitExceeded { what, asked: hosts as u64 + 1, limit }.into()
}
