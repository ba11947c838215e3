//! Many hosts in one process and in virtual time, to test a program's protocol.
//!
//! A [`Cluster`] has hosts, each with a device of this crate, at one switch. Their links have rates, delays
//! and queues; the network loses, duplicates and delays packets, and breaks apart when it is told to. Time is
//! virtual: it goes on only while the program waits ([`crate::CompletionQueue::wait_one`],
//! [`crate::cm::EventChannel::get_event`], …) or in [`Cluster::run_until`], and then from one event to the
//! next, so a timeout of a second costs nothing. Everything that happens follows from the seed: a run that
//! fails fails again.
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
//! Programs that run side by side on several hosts are step functions: [`Cluster::run_until`] calls one for a
//! host after each event of that host.
//!
//! What is real: the engine, the verbs, the connection manager, every packet and its ICRC, retries, congestion
//! control. What is not: programs take no time; there is one switch, without multicast groups; nothing can sleep
//! on the file descriptors of a simulated device, and pages of memory cannot be missing. A host that has crashed
//! does not come back: one that starts again is a new host, which [`Cluster::add_host`] adds at any time.

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
/// All of it is for one thread: another one that uses the hosts at the same time makes runs differ.
pub struct Cluster {
    world: Arc<World>,
    hosts: Vec<HostId>,
    captures: bool,
}

/// What a host is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    /// Its link to the switch.
    pub link: LinkConfig,
    /// The largest IP packet that the link carries, in bytes. With the default, 4200, the path MTU is 4096.
    pub mtu: u32,
    /// As [`OpenOptions::congestion_control`].
    pub congestion_control: bool,
    /// As [`OpenOptions::limits`].
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
    /// A cluster without hosts, at time 0. Everything random follows from `seed`: what the network does, QPNs,
    /// keys and PSNs.
    pub fn new(seed: u64) -> Self {
        Self { world: World::new(seed), hosts: Vec::new(), captures: false }
    }

    /// Adds a host with a link as [`HostOptions::default`] says.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn add_host(&mut self) -> Result<Host> {
        self.add_host_with(&HostOptions::default())
    }

    /// Adds a host. Its address is 10.0.0.1 for the first one, 10.0.0.2 for the next, and so on.
    ///
    /// # Errors
    /// As [`Cluster::add_host`].
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

    /// All hosts.
    pub fn hosts(&self) -> &[HostId] {
        &self.hosts
    }

    /// The network between them.
    pub fn network(&self) -> Network {
        Network::new(Arc::clone(&self.world))
    }

    /// The virtual time since the cluster was made.
    pub fn now(&self) -> Duration {
        self.world.now().since(Time::ZERO)
    }

    /// Does something to the network when so much time has passed.
    pub fn after(&mut self, delay: Duration, action: impl FnOnce(&Network) + Send + 'static) {
        let action = |world: &Arc<World>| action(&Network::new(Arc::clone(world)));
        self.world.act_at(self.world.now() + delay, Box::new(action));
    }

    /// Lets so much time pass without calling programs.
    pub fn run_for(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        while self.world.advance(until) {}
    }

    /// Calls `step` once for each host, and then for a host whenever something has happened to it: packets
    /// have arrived, a timer of its device was due, or the time has come for which it asked. Ends when `step`
    /// returns true, or when `limit` has passed; returns whether it was the former.
    ///
    /// A step is to do what there is to do, and then return: poll completions, look at memory, post. If it
    /// waits for a completion, the network goes on meanwhile, but no other step is called.
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

    /// Writes all packets that are sent from now on to a file (pcapng), as they leave their hosts, with the
    /// virtual time since 1970. `rxe check` and `rxe ladder` show what happened. The file is whole when the
    /// cluster is dropped.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn capture(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let failed = |e| Error::io("write the capture", e);
        let file = File::create(path).map_err(failed)?;
        self.captures = true;
        self.world.state().star.capture(Box::new(BufWriter::new(file))).map_err(failed)
    }

    /// A number that follows from all packets until now and their times. Two runs of a program with the same
    /// seed must have the same: if they do not, the program does something that does not follow from the seed,
    /// such as iterating over a `HashMap`.
    pub fn fingerprint(&self) -> u64 {
        self.world.state().star.fingerprint()
    }
}

/// As a cluster it ends; its hosts stay usable for as long as somebody has them.
impl Drop for Cluster {
    fn drop(&mut self) {
        if self.captures {
            // Nobody is left to be told.
            let _ = self.world.state().star.end_capture();
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

/// A host of a cluster. It stands for its device: `host.create_pd()`.
#[derive(Clone, Debug)]
pub struct Host {
    device: Device,
    id: HostId,
}

impl Host {
    /// What [`Network`] knows it by.
    pub fn id(&self) -> HostId {
        self.id
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        self.id.address
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A channel for connections by address and port, whose identifiers use this host's device.
    ///
    /// # Errors
    /// The system has no descriptor left.
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

/// The moment of a step of [`Cluster::run_until`].
pub struct Step<'c> {
    world: &'c World,
    host: HostId,
}

impl Step<'_> {
    /// Whose step it is.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.world.now().since(Time::ZERO)
    }

    /// Asks for another step of this host after this time.
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
