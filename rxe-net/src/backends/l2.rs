//! The `l2` backend: RoCEv2 from an endpoint beside the host's network stack. The endpoint has its
//! own Ethernet and IP addresses; for other hosts on the link it is a neighbour. Decision 045.
//!
//! UDP to port 4791 goes to the engine. All other frames go to a small stack ([`stack`]) that
//! answers ARP, neighbour discovery and ping. An endpoint belongs to one process, so nothing is
//! shared with others: of [`Sharing`] it implements only the multicast groups ([`groups`]).
//!
//! Invariants: frames from the link are validated before use; queues (frames to hosts that are not
//! known yet, answers, frames to the endpoint itself) are bounded; nothing blocks after
//! [`L2Backend::open`].

mod config;
mod dgram;
mod discovery;
mod endpoint;
mod groups;
mod interface;
mod link;
mod neighbours;
#[cfg(feature = "pnet")]
mod pnet;
mod qemu;
mod stack;
mod stream;
mod tap;
#[cfg(test)]
mod tests;
mod waiting;

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rxe_core::types::Time;
use rxe_core::wire::{Frame, Mac, TxBatch};

use self::dgram::DgramLink;
use self::discovery::{AddressInfo, probe};
use self::endpoint::Endpoint;
use self::interface::InterfaceLink;
use self::link::{Arrival, Link};
#[cfg(feature = "pnet")]
use self::pnet::PnetLink;
use self::qemu::QemuLink;
use self::tap::TapLink;
use crate::backend::{Backend, Capabilities, SendStatus, SrcPort};
use crate::counters::Counters;
use crate::error::{L2Failure, NetError};
use crate::host::membership::{Membership, MulticastJoiner};
use crate::host::port_owner;
use crate::host::sharing::Sharing;
use crate::interface::{Address, Interface, MacAddr};
use rxe_sys::may_block;
use rxe_sys::{SharedFd, TimerFd};

pub use config::{L2Config, L2ConfigError, L2Link};

/// The `l2` backend: RoCEv2 from a layer 2 endpoint.
pub struct L2Backend {
    link: Box<dyn Link>,
    endpoint: Endpoint,
    /// Readable when the endpoint has work that no frame triggers.
    timer: TimerFd,
    start: Instant,
    memberships: Vec<Membership>,
    capabilities: Capabilities,
    /// The lock that keeps other processes from the same endpoint, held while this is open.
    _lock: Option<SharedFd>,
}

/// How long to look for duplicates. RFC 4862, section 5.1: RetransTimer.
const DAD_TIME: Duration = Duration::from_secs(1);
/// How long to wait for a DHCP server. The DHCP client repeats its request after 10 s.
const DHCP_TIME: Duration = Duration::from_secs(12);
/// The number of frames that are processed between two checks of the time while opening.
const FRAMES: usize = 64;

impl L2Backend {
    /// Opens the link and checks that no other host has the addresses. This takes a second with
    /// duplicate address detection. With DHCP, waits for a server too.
    ///
    /// # Errors
    /// [`NetError::L2`].
    pub fn open(config: &L2Config) -> Result<Self, NetError> {
        may_block("opening an endpoint of layer 2");
        let name = config.link.to_string();
        let failed = |reason| NetError::L2 { link: name.clone(), reason };
        let lock = lock(config).map_err(failed)?;
        let link: Box<dyn Link> = match &config.link {
            L2Link::Qemu(path) => Box::new(QemuLink::open(path)?),
            L2Link::Dgram { own, peer } => Box::new(DgramLink::open(own, peer)?),
            L2Link::Tap(name) => Box::new(TapLink::open(name)?),
            L2Link::Interface(name) => Box::new(InterfaceLink::open(name, config)?),
            #[cfg(feature = "pnet")]
            L2Link::Pnet(name) => Box::new(PnetLink::open(name, config)?),
            #[cfg(not(feature = "pnet"))]
            L2Link::Pnet(_) => return Err(failed(L2Failure::WithoutPnet)),
        };
        let start = Instant::now();
        let endpoint = Endpoint::new(config);
        let capabilities = Capabilities {
            name: "l2",
            link_mtu: usize::try_from(config.mtu).unwrap_or(1500),
            tx: link.limits(),
            src_port: SrcPort::of_bursts(0),
            recv_buffer: 0,
            qpn_block: None,
        };
        let timer = TimerFd::new()?;
        let memberships = Vec::new();
        let mut this =
            Self { link, endpoint, timer, start, memberships, capabilities, _lock: lock };
        let own = config.own_addresses();
        if config.dad {
            this.find_duplicates(&own)?;
        }
        this.endpoint.set_addresses(own);
        if config.dhcp {
            this.wait_for_lease(config.dad)?;
        }
        this.endpoint.accept();
        let now = this.now();
        this.endpoint.announce(&mut *this.link, now);
        this.link.flush()?;
        this.set_timer(now);
        Ok(this)
    }

    /// Returns the addresses: those of the configuration, and the one from DHCP.
    pub fn addresses(&self) -> &[Address] {
        &self.endpoint.addresses
    }

    /// Returns the description of the endpoint as an interface.
    pub fn interface(&self, name: &str, index: u32) -> Interface {
        Interface {
            name: name.into(),
            index,
            mac: Some(MacAddr(self.endpoint.mac)),
            mtu: u32::try_from(self.capabilities.link_mtu).unwrap_or(u32::MAX),
            up: true,
            running: true,
            loopback: false,
            addresses: self.endpoint.addresses.clone(),
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Fails if another host has one of these addresses, or probes for one.
    fn find_duplicates(&mut self, addresses: &[Address]) -> Result<(), NetError> {
        let begun = self.now();
        for at in [Duration::ZERO, DAD_TIME / 2] {
            for address in addresses {
                let _ = self.link.push(&[&probe(self.endpoint.mac, address.ip)]);
            }
            self.link.flush()?;
            self.work_until(begun + at + DAD_TIME / 2, |endpoint, info| {
                let (AddressInfo::Has(address, mac) | AddressInfo::Probes(address, mac)) = info?;
                // A bridge may return our own frames.
                let other = mac != endpoint.mac;
                (other && addresses.iter().any(|a| a.ip == address))
                    .then_some(L2Failure::AddressTaken { address, mac: Mac(mac) })
                    .map(Err)
            })?;
        }
        Ok(())
    }

    /// Waits for an address from a DHCP server. With `dad`, checks that no other host has the
    /// address, and otherwise declines it. RFC 2131, section 4.4.1.
    fn wait_for_lease(&mut self, dad: bool) -> Result<(), NetError> {
        let until = self.now() + DHCP_TIME;
        self.work_until(until, |endpoint, _| endpoint.offer.is_some().then_some(Ok(())))?;
        let Some(lease) = self.endpoint.offer else {
            // The link-local address always exists, so a single address means that no other is
            // configured.
            return match self.endpoint.addresses.len() {
                ..=1 => Err(self.endpoint.failed(L2Failure::NoLease)),
                _ => Ok(()),
            };
        };
        if !dad {
            return Ok(());
        }
        self.find_duplicates(&[lease.address()]).map_err(|error| match error {
            NetError::L2 { link, reason: L2Failure::AddressTaken { address, mac } } => {
                let _ = self.link.push(&[&lease.decline(self.endpoint.mac)]);
                let _ = self.link.flush();
                NetError::L2 { link, reason: L2Failure::LeaseTaken { address, mac } }
            }
            other => other,
        })
    }

    /// Processes frames until `until`, or until `done` returns a result. `done` is called after
    /// each frame, with what the frame tells about addresses.
    fn work_until(
        &mut self,
        until: Time,
        mut done: impl FnMut(&Endpoint, Option<AddressInfo>) -> Option<Result<(), L2Failure>>,
    ) -> Result<(), NetError> {
        loop {
            let now = self.now();
            self.endpoint.tick(&mut *self.link, now);
            let mut result = done(&self.endpoint, None);
            // Bounded, because in a flood the loop would never end.
            let mut left = FRAMES;
            while result.is_none() && left > 0 {
                let mut info = None;
                let endpoint = &mut self.endpoint;
                let other = &mut |arrival: &Arrival<'_>| {
                    info = Some(endpoint.process_other(arrival.bytes, now));
                };
                if !self.link.next(other)? {
                    break;
                }
                left -= 1;
                self.endpoint.after_input(&mut *self.link, now);
                result = done(&self.endpoint, info.flatten());
            }
            self.link.flush()?;
            if let Some(result) = result {
                return result.map_err(|reason| self.endpoint.failed(reason));
            }
            let now = self.now();
            if now >= until {
                return Ok(());
            }
            if left == 0 {
                // The link may have further frames that its descriptor does not indicate.
                continue;
            }
            let wake = self.endpoint.deadline.map_or(until, |at| at.min(until));
            let wait = wake.since(now).max(Duration::from_millis(1));
            let wait = Timespec::try_from(wait).ok();
            let _ = poll(&mut [PollFd::new(self.link.shared(), PollFlags::IN)], wait.as_ref());
        }
    }
}

/// Takes the lock of an endpoint, if it has one.
fn lock(config: &L2Config) -> Result<Option<SharedFd>, L2Failure> {
    let Some(path) = &config.lock else { return Ok(None) };
    let file = File::create(path).map_err(L2Failure::Listen)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(SharedFd::guarded(OwnedFd::from(file)))),
        Err(_) => {
            let found = file.metadata().ok();
            let owner = found.and_then(|meta| port_owner::of_flock(meta.dev(), meta.ino()));
            Err(L2Failure::InUse { owner })
        }
    }
}

impl Backend for L2Backend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let now = self.now();
        let Self { link, endpoint, .. } = self;
        let before = endpoint.deadline;
        endpoint.tick(&mut **link, now);
        let mut packets = 0;
        while packets < budget && endpoint.take_own(sink) {
            packets += 1;
        }
        while packets < budget {
            let (mut taken, mut info) = (None, None);
            let more = link.next(&mut |arrival| {
                taken = endpoint.take_packets(arrival, sink);
                if taken.is_none() {
                    info = endpoint.process_other(arrival.bytes, now);
                }
            })?;
            if !more {
                break;
            }
            packets += taken.unwrap_or(1);
            if taken.is_none() {
                endpoint.after_input(&mut **link, now);
                if let Some(info) = info {
                    endpoint.process_address_info(info, &mut **link, now);
                }
            }
        }
        link.flush()?;
        if endpoint.deadline == Some(Time::ZERO) {
            endpoint.deadline = endpoint.next_deadline(now);
        }
        if endpoint.deadline != before {
            self.set_timer(now);
        }
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let now = self.now();
        let before = self.endpoint.deadline;
        while let Some(burst) = batch.pending().first().cloned() {
            if !self.link.has_room() {
                self.link.flush()?;
                if !self.link.has_room() {
                    return Ok(SendStatus::Congested);
                }
            }
            self.endpoint.send(&mut *self.link, batch, &burst, now);
            batch.mark_sent(1);
        }
        self.link.flush()?;
        if self.endpoint.deadline != before {
            self.set_timer(now);
        }
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        f(self.link.shared());
        f(self.timer.shared());
    }

    fn counters(&self) -> Counters {
        self.endpoint.counters
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        Some(self)
    }
}

impl Sharing for L2Backend {
    fn joiner(&self) -> MulticastJoiner {
        let addresses = &self.endpoint.addresses;
        let families = [IpAddr::is_ipv4, IpAddr::is_ipv6];
        let families = families.map(|is| addresses.iter().any(|address| is(&address.ip)));
        MulticastJoiner::station(self.link.interface(), families)
    }

    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError> {
        let (group, now) = (membership.group(), self.now());
        if self.memberships.iter().any(|m| m.group() == group) {
            return Ok(Some(membership));
        }
        self.endpoint.join(group, now);
        self.memberships.push(membership);
        self.set_timer(now);
        Ok(None)
    }

    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        let at = self.memberships.iter().position(|m| m.group() == group)?;
        let now = self.now();
        self.endpoint.leave(group, now);
        self.set_timer(now);
        Some(self.memberships.swap_remove(at))
    }
}

impl L2Backend {
    /// Sets the timer that wakes a sleeping thread when the endpoint has work.
    fn set_timer(&self, now: Time) {
        self.timer.set_after(self.endpoint.deadline.map(|at| at.since(now)));
    }
}
