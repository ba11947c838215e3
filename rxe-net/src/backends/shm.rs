//! Shared memory in front of any backend.
//!
//! Packets to a process of this host and this user go through a ring. A packet in a ring has the
//! same headers as on a wire, and no ICRC if the engine writes it there itself ([`Direct`]). All
//! other packets go onto the wire. Packets that a device sends to itself wait in a queue.
//!
//! The address and the QPN's block identify the destination: the process that has leased them
//! listens for offers under that name ([`crate::host`]). No list is kept: the first packet to a
//! destination finds out, and later ones check again from time to time.
//!
//! Invariants:
//! - Nothing here sleeps. While a ring is full, `send` returns [`SendStatus::Congested`], and a
//!   timer makes a descriptor readable when it is time to try again. A receiver that takes next to
//!   nothing for [`RECEIVER_TIMEOUT`] counts as stopped: packets to it are lost, as on a wire, and
//!   no longer delay other destinations.
//! - The contents of a ring are trusted no more than packets from a network: the frame is copied
//!   out and passes the engine's checks.
//! - While a thread sleeps on the descriptors ([`Backend::watch`]), one is readable whenever there
//!   is something to receive. While none does, two polling ends make no system call for a message.
//!   Each polls the wire, the offers and the connections at growing intervals.

pub mod lane;
mod link;
mod listeners;
mod offers;
mod registered;
pub mod ring;
mod send;
#[cfg(test)]
mod tests;
mod wake;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::wire::{Direct, Frame, TxBatch};
use smallvec::SmallVec;

use self::link::{Incoming, Outgoing};
use self::listeners::Listeners;
use self::registered::Registered;
use self::ring::{Broken, MAX_RECORD};
use self::send::LocalSend;
use crate::backend::{Backend, Capabilities, SendStatus};
use crate::backends::poll_backoff::PollBackoff;
use crate::counters::Counters;
use crate::error::NetError;
use crate::host::membership::{Membership, MulticastJoiner};
use crate::host::peer_probes::PeerProbes;
use crate::host::sharing::Sharing;
use crate::host::{PortGroups, message};
use rxe_sys::unix::UnixSocket;
use rxe_sys::{Epoll, EventFd, SharedFd, TimerFd};

/// A backend, with shared memory for packets that stay on this host.
pub struct Shm<B> {
    /// The sockets where rings are offered: for each block of this process on each of its
    /// addresses.
    listeners: Listeners,
    /// Declared after the listeners, because dropping it releases the leases of their paths.
    inner: B,
    capabilities: Capabilities,
    counters: Counters,
    addresses: Vec<IpAddr>,
    /// The processes that have connected and not offered a ring yet, the oldest first.
    callers: Vec<Registered<UnixSocket>>,
    incoming: Vec<Incoming>,
    routes: HashMap<Destination, Route>,
    /// The rings of `routes`; `None` for a ring that was given up.
    rings: Vec<Option<Registered<Outgoing>>>,
    /// The last result of `route` for direct packets: source, destination and ring.
    last: Option<(IpAddr, Destination, Option<usize>)>,
    /// The rings that have received packets since the last call of `send`.
    touched: SmallVec<[usize; 4]>,
    /// The packets that this device sends to itself, as messages.
    loopback: VecDeque<Vec<u8>>,
    loopback_bytes: usize,
    /// The inner backend was given direct packets, so its `send` must be called.
    unflushed: bool,
    /// The timeout of a full ring: [`RECEIVER_TIMEOUT`], except in tests.
    receiver_timeout: Duration,
    /// Created with the first ring, or with the first packet to the device itself.
    wakeups: Option<Wakeups>,
    unsignalled_set: bool,
    retry_set: bool,
    /// Watches the wake-ups of rings and of the device itself, listeners and connections. It is the
    /// inner backend's epoll descriptor, if that has one.
    epoll: Epoll,
    /// The epoll descriptor is not the inner backend's.
    own_epoll: bool,
    /// While not 0, listeners may be missing, for lack of descriptors or because there are enough
    /// rings. They are created again after this many polls.
    listen_again_in: u32,
    /// A thread sleeps on the descriptors.
    watching: bool,
    /// The number of `receive` calls since a ring had something.
    since_ring: u32,
    /// When to poll the wire.
    wire: PollBackoff,
    /// When to poll for offers and for closed connections.
    control: PollBackoff,
    turn: usize,
    buf: Box<[u8; MAX_RECORD]>,
}

/// Wakes the thread that sleeps on the descriptors, in addition to the wake-ups of the rings.
struct Wakeups {
    /// Readable while there is something to receive that the sender has not signalled. A busy
    /// receiver sets and clears it for each full budget of packets. A timer that expires
    /// immediately would do the same, but it interrupts the CPU, which takes 30 µs in some VMs.
    unsignalled: Registered<EventFd>,
    /// Readable when a send that found a full ring should be tried again.
    retry: Registered<TimerFd>,
}

impl Wakeups {
    fn new(by: &Epoll) -> Result<Self, NetError> {
        Ok(Self {
            unsignalled: Registered::new(EventFd::new()?, by, WAKE)?,
            retry: Registered::new(TimerFd::new()?, by, WAKE)?,
        })
    }
}

/// The address and the block of a destination.
type Destination = (IpAddr, u8);

/// The path of packets to a destination.
enum Route {
    /// This device itself.
    Loopback,
    /// The ring with this index.
    Ring(usize),
    /// The inner backend, for this many further bursts; then shared memory is tried again.
    Wire(u32),
}

/// How long a receiver gets to make room in a full ring. Long enough for it to be woken and run;
/// short enough not to matter to other destinations if the receiver is stopped.
const RECEIVER_TIMEOUT: Duration = Duration::from_millis(20);
/// How long after a full ring `send` is tried again: less than the receiver needs to empty the
/// ring.
const RETRY: Duration = Duration::from_micros(100);
/// A ring is busy if it had something within this many calls of `receive`.
const BUSY_CALLS: u32 = 1000;
/// The shortest and the longest interval between polls of the wire while a ring is busy, in calls
/// plus packets ([`PollBackoff`]). A poll that finds something resets the interval; each one that
/// does not doubles it. The limit is about 50 µs of polling or of packets.
const WIRE_INTERVAL: [u32; 2] = [4, 256];
/// The shortest and the longest interval between polls for offers and closed connections, in the
/// same unit.
const CONTROL_INTERVAL: [u32; 2] = [8, 256];
/// The epoll data of all wake-ups.
const WAKE: u64 = 1;
/// The epoll data of listeners and connections.
const CONTROL: u64 = 2;

impl<B: Backend + Sharing> Shm<B> {
    /// Puts shared memory in front of a backend on these addresses. A backend whose QPNs are not
    /// leased ([`Capabilities::qpn_block`]) is used without shared memory.
    ///
    /// # Errors
    /// The kernel has no descriptors or no memory left.
    pub fn new(inner: B, addresses: &[IpAddr]) -> Result<Self, NetError> {
        let inners = Sharing::epoll(&inner);
        let own_epoll = inners.is_none();
        let epoll = inners.map_or_else(Epoll::new, Ok)?;
        let capabilities = inner.capabilities().clone();
        let mut shm = Self {
            capabilities,
            counters: Counters::default(),
            inner,
            addresses: Vec::new(),
            listeners: Listeners::new(epoll.clone()),
            callers: Vec::new(),
            incoming: Vec::new(),
            routes: HashMap::new(),
            rings: Vec::new(),
            last: None,
            touched: SmallVec::new(),
            loopback: VecDeque::new(),
            loopback_bytes: 0,
            unflushed: false,
            receiver_timeout: RECEIVER_TIMEOUT,
            wakeups: None,
            unsignalled_set: false,
            retry_set: false,
            epoll,
            own_epoll,
            listen_again_in: 0,
            watching: false,
            since_ring: BUSY_CALLS,
            wire: PollBackoff::new(WIRE_INTERVAL),
            control: PollBackoff::new(CONTROL_INTERVAL),
            turn: 0,
            buf: vec![0; MAX_RECORD].try_into().expect("as long as asked for"),
        };
        shm.addresses = addresses.to_vec();
        shm.listen();
        Ok(shm)
    }

    /// Changes the addresses, and drops the rings of other addresses.
    fn move_to(&mut self, addresses: &[IpAddr]) {
        let gone = |address: &IpAddr| !addresses.contains(address);
        self.listeners.retain(|(address, _)| !gone(address));
        self.incoming.retain(|link| !link.address.is_some_and(|address| gone(&address)));
        self.routes.clear();
        self.rings.clear();
        self.touched.clear();
        self.last = None;
        self.addresses = addresses.to_vec();
    }

    /// Creates the wake-ups of the device if necessary. Returns whether they exist: without them,
    /// shared memory is not used.
    fn has_wakeups(&mut self) -> bool {
        if self.wakeups.is_none() {
            self.wakeups = Wakeups::new(&self.epoll).ok();
        }
        self.wakeups.is_some()
    }

    /// Receives packets to the device itself and from rings. Returns their number.
    fn receive_here(&mut self, budget: usize, sink: &mut dyn FnMut(&Frame<'_>)) -> usize {
        let mut packets = 0;
        for message in self.loopback.drain(..) {
            if let Some(frame) = message::parse(&message) {
                packets += frame.payloads().count();
                self.counters.rx_bytes += frame.payload.len() as u64;
                sink(&frame);
            }
        }
        self.loopback_bytes = 0;
        let count = self.incoming.len();
        self.turn = self.turn.wrapping_add(1);
        let mut broken = None;
        for index in (0..count).map(|i| (self.turn + i) % count) {
            if packets >= budget {
                break;
            }
            match self.incoming[index].receive(budget - packets, &mut self.buf, sink) {
                Ok((got, bytes)) => {
                    packets += got;
                    self.counters.rx_bytes += bytes as u64;
                }
                Err(Broken) => broken = Some(index),
            }
        }
        if let Some(index) = broken {
            self.counters.rx_unusable += 1;
            self.incoming.swap_remove(index);
        }
        self.counters.rx_packets += packets as u64;
        packets
    }

    /// Makes the descriptors readable if there is something to receive and a thread sleeps on them.
    fn prepare_sleep(&mut self) {
        if !self.watching {
            return;
        }
        let mut unsignalled = !self.loopback.is_empty();
        for link in &mut self.incoming {
            unsignalled |= link.prepare_sleep();
        }
        if unsignalled != self.unsignalled_set {
            self.unsignalled_set = unsignalled;
            if let Some(Wakeups { unsignalled: event, .. }) = &self.wakeups {
                if unsignalled { event.set() } else { event.clear() }
            }
        }
    }

    /// Starts or stops the timer that triggers another attempt to send.
    fn set_retry(&mut self, on: bool) {
        // Once expired, the timer stays readable until it is set again. Only sleeping threads need
        // that: polling ones try again anyway.
        if on && (self.watching || !self.retry_set) || !on && self.retry_set {
            self.retry_set = on;
            if let Some(Wakeups { retry, .. }) = &self.wakeups {
                retry.set_after(on.then_some(RETRY));
            }
        }
    }
}

impl<B: Backend + Sharing> Backend for Shm<B> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let mut packets = self.receive_here(budget, sink);
        self.since_ring = if packets > 0 { 0 } else { self.since_ring.saturating_add(1) };
        let busy = self.since_ring < BUSY_CALLS;
        if self.wire.is_due(packets) || !busy {
            let arrived = self.inner.receive(budget, sink)?;
            self.wire.restart(arrived > 0);
            packets += arrived;
        }
        if self.control.is_due(packets) {
            let found = self.poll_control();
            self.control.restart(found || !busy);
        }
        self.prepare_sleep();
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let mut status = SendStatus::Done;
        if std::mem::take(&mut self.unflushed) {
            status = batch.with_first(0, |none| self.inner.send(none))?;
        }
        while status == SendStatus::Done && !batch.is_empty() {
            match self.send_here(batch) {
                LocalSend::Done => continue,
                LocalSend::Congested => {
                    status = SendStatus::Congested;
                    break;
                }
                LocalSend::OnWire => {}
            }
            let count = self.leading_wire_bursts(batch);
            status = batch.with_first(count, |batch| self.inner.send(batch))?;
            if self.capabilities.tx != self.inner.capabilities().tx {
                self.capabilities.tx = self.inner.capabilities().tx;
            }
            if status != SendStatus::Done {
                break;
            }
        }
        for index in std::mem::take(&mut self.touched) {
            let ring = self.rings.get_mut(index).and_then(Option::as_mut);
            if ring.is_none_or(|link| link.flush().is_ok()) {
                continue;
            }
            let is_it = |route: &Route| matches!(route, Route::Ring(other) if *other == index);
            let to = self.routes.iter().find(|(_, route)| is_it(route)).map(|(to, _)| *to);
            to.into_iter().for_each(|to| self.give_up(to));
        }
        // Destinations on the wire are searched for on this host again.
        self.last = self.last.filter(|(.., ring)| ring.is_some());
        if !self.loopback.is_empty() {
            self.prepare_sleep();
        }
        self.set_retry(status == SendStatus::Congested);
        Ok(status)
    }

    fn direct(&mut self) -> Option<&mut dyn Direct> {
        Some(self)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        self.inner.for_each_fd(f);
        if self.own_epoll {
            f(self.epoll.shared());
        }
    }

    fn counters(&self) -> Counters {
        let wire = self.inner.counters();
        let here = self.counters;
        Counters {
            rx_packets: wire.rx_packets + here.rx_packets,
            rx_bytes: wire.rx_bytes + here.rx_bytes,
            rx_unusable: wire.rx_unusable + here.rx_unusable,
            tx_packets: wire.tx_packets + here.tx_packets,
            tx_bytes: wire.tx_bytes + here.tx_bytes,
            tx_no_buffer: wire.tx_no_buffer + here.tx_no_buffer,
            tx_other: wire.tx_other + here.tx_other,
            ..wire
        }
    }

    fn watch(&mut self, on: bool) {
        self.inner.watch(on);
        self.watching = on;
        if on {
            self.set_retry(self.retry_set);
            self.prepare_sleep();
        } else {
            self.incoming.iter_mut().for_each(Incoming::end_sleep);
        }
    }

    fn sharing(&mut self) -> Option<&mut dyn Sharing> {
        Some(self)
    }
}

impl<B: Backend + Sharing> Sharing for Shm<B> {
    fn port_groups(&self) -> Option<Arc<PortGroups>> {
        self.inner.port_groups()
    }

    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), NetError> {
        self.move_to(addresses);
        let result = self.inner.set_addresses(addresses);
        self.listen();
        result
    }

    fn epoll(&self) -> Option<Epoll> {
        Some(self.epoll.clone())
    }

    fn take_up(&mut self) -> Result<(), NetError> {
        let result = self.inner.take_up();
        self.listen();
        // Packets to the new blocks went onto the wire so far: search for the blocks on this host
        // again.
        self.routes.retain(|_, route| !matches!(route, Route::Wire(_)));
        result
    }

    fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        self.inner.set_gsi(open)
    }

    fn peer_probes(&mut self) -> Option<&mut PeerProbes> {
        self.inner.peer_probes()
    }

    fn joiner(&self) -> MulticastJoiner {
        self.inner.joiner()
    }

    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError> {
        self.inner.add_membership(membership)
    }

    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        self.inner.remove_membership(group)
    }
}
