//! Shared memory in front of any backend: packets to a process of this host and this user go through
//! a ring, as the same frames with the same headers and ICRCs; all others go onto the wire. What a
//! device sends to itself waits in a queue.
//!
//! The address and the QPN's block tell the destination: the process that has leased them listens for
//! offers under that name ([`crate::lease`]). No list is kept: the first packet to a destination
//! finds out, and now and then another one looks again.
//!
//! Invariants:
//! - Nothing here sleeps. While a ring is full, `send` says [`SendStatus::Congested`], and a timer
//!   makes a descriptor readable when to try again. A receiver that takes next to nothing for
//!   [`RECEIVER_TIMEOUT`] counts as stopped: packets to it are lost, as on a wire, and other
//!   destinations wait for it no more.
//! - Nothing in a ring is believed more than what comes over a network: the frame is copied out, and
//!   goes through the engine's checks.
//! - While a thread sleeps on the descriptors ([`Backend::watch`]), one is readable whenever there is
//!   something to receive. While none does, two ends that poll make no system call.

mod link;
mod listeners;
pub mod ring;
#[cfg(test)]
mod tests;
mod wake;
mod watched;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rxe_core::mem::{AccessError, Source};
use rxe_core::wire::{Direct, Frame, NetHeader, Placed, TxBatch, qpn_block};
use smallvec::SmallVec;

use self::link::{Incoming, Outgoing, Pushed, SendError, is_gone};
use self::listeners::Listeners;
use self::ring::{Broken, MAX_RECORD};
use self::watched::Watched;
use crate::backend::{Backend, Capabilities, SendStatus};
use crate::counters::Counters;
use crate::lease::{PortGroups, message};
use crate::sys::unix::UnixSocket;
use crate::{Epoll, Joiner, Membership, NetError, SharedFd, Sharing, TimerFd};

/// A backend, and shared memory for what stays on this host.
pub struct Shm<B> {
    /// Where rings are offered: for each block of this process on each of its addresses.
    listeners: Listeners,
    /// After the listeners: it gives back the leases that they belong to.
    inner: B,
    capabilities: Capabilities,
    counters: Counters,
    addresses: Vec<IpAddr>,
    /// Those that have connected and offered nothing yet, the oldest first.
    callers: Vec<Watched<UnixSocket>>,
    incoming: Vec<Incoming>,
    routes: HashMap<Destination, Route>,
    /// The rings of `routes`; `None` where one was given up.
    rings: Vec<Option<Watched<Outgoing>>>,
    /// The last answer of `route` for packets sent at once: from this address to that destination, and
    /// which ring, if any.
    last: Option<(IpAddr, Destination, Option<usize>)>,
    /// Rings that have got something since the last call of `send`.
    touched: SmallVec<[usize; 4]>,
    /// What this device sends to itself, as messages.
    own: VecDeque<Vec<u8>>,
    own_bytes: usize,
    /// [`RECEIVER_TIMEOUT`].
    receiver_timeout: Duration,
    /// Readable while there is something to receive that the sender has not signalled, and when a
    /// send that found a full ring is to be tried again. Made for the first ring, or the first
    /// packet to the device itself.
    alarm: Option<Watched<TimerFd>>,
    own_signalled: bool,
    retry_set: bool,
    /// Watches the wake-ups, `alarm`, listeners and connections; and, if it is the inner backend's,
    /// what that has.
    epoll: Epoll,
    /// It is not the inner backend's.
    own_epoll: bool,
    /// Listeners are missing because there were no descriptors left, or rings enough. They are made
    /// after so many looks.
    deaf: u32,
    /// Somebody sleeps on the descriptors.
    watching: bool,
    /// Calls of `receive` since a ring had something.
    since_ring: u32,
    /// When to look at the wire, and for offers and what is gone.
    wire: Interval,
    control: Interval,
    turn: usize,
    buf: Box<[u8; MAX_RECORD]>,
}

/// An address and a block.
type Destination = (IpAddr, u8);

enum Route {
    /// This device itself.
    Own,
    /// This one of the rings.
    Ring(usize),
    /// Not for shared memory, for so many bursts more.
    Wire(u32),
}

/// What became of a burst that may stay on this host.
enum LocalSend {
    /// It is sent, or lost.
    Done,
    /// It goes onto the wire.
    OnWire,
    /// Its ring is full.
    Congested,
}

/// Bytes that a device may have sent to itself and not yet received.
const OWN_CAPACITY: usize = ring::CAPACITY;
/// How long a receiver gets to make room in a full ring. Long enough to be woken and run; short enough
/// not to matter to other destinations when the receiver is stopped.
const RECEIVER_TIMEOUT: Duration = Duration::from_millis(20);
/// How long after it found a ring full `send` is to be tried again: less than the receiver needs to
/// empty it.
const RETRY: Duration = Duration::from_micros(100);
/// Bursts that go onto the wire before a destination is looked for on this host again.
const LOOK_AGAIN: u32 = 256;
/// Destinations remembered.
const MAX_ROUTES: usize = 4096;
/// Rings that others may send through at once: each takes two descriptors and 2 MiB of addresses. Whoever
/// comes after these uses the network.
const MAX_INCOMING: usize = 256;
/// A ring is busy if it had something within so many calls of `receive`.
const BUSY_CALLS: u32 = 1000;
/// While a ring is busy, a look at the wire that finds something is followed by the next after so much
/// work ([`Interval`]), and one in vain by the next after twice as much as before, up to the other limit:
/// some 50 µs of polling in vain, or of packets.
const WIRE_INTERVAL: [u32; 2] = [4, 256];
/// The same for looks for offers and for what is gone.
const LOOK_INTERVAL: [u32; 2] = [8, 256];
/// What the epoll descriptor says of wake-ups and of the alarm.
const WAKE: u64 = 1;
/// What it says of listeners and connections.
const CONTROL: u64 = 2;
/// Looks without listeners, until there may be descriptors or room for rings again.
const DEAF: u32 = 4096;
/// Those waited for who have connected and offered nothing yet; they do so at once, or never.
const CALLERS: usize = 256;

/// How much work there is between two looks at something that costs a system call.
#[derive(Debug)]
struct Interval {
    limits: [u32; 2],
    /// Calls and packets, until the next look, and now.
    length: u32,
    done: u32,
}

impl Interval {
    fn new(limits: [u32; 2]) -> Self {
        Self { limits, length: limits[0], done: 0 }
    }

    /// Counts one more call, and the packets that it took. Whether it is time to look.
    fn is_over(&mut self, packets: usize) -> bool {
        let packets = u32::try_from(packets).unwrap_or(u32::MAX);
        self.done = self.done.saturating_add(packets).saturating_add(1);
        self.done >= self.length
    }

    /// It has looked, and found something or not.
    fn begin(&mut self, found: bool) {
        let [shortest, longest] = self.limits;
        self.length = if found { shortest } else { (2 * self.length).min(longest) };
        self.done = 0;
    }
}

impl<B: Backend + Sharing> Shm<B> {
    /// Puts shared memory in front of a backend on these addresses. A backend whose
    /// QPNs are not leased ([`Capabilities::qpn_block`]) stays as it is.
    ///
    /// # Errors
    /// The system has no descriptors or no memory left.
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
            own: VecDeque::new(),
            own_bytes: 0,
            receiver_timeout: RECEIVER_TIMEOUT,
            alarm: None,
            own_signalled: false,
            retry_set: false,
            epoll,
            own_epoll,
            deaf: 0,
            watching: false,
            since_ring: BUSY_CALLS,
            wire: Interval::new(WIRE_INTERVAL),
            control: Interval::new(LOOK_INTERVAL),
            turn: 0,
            buf: vec![0; MAX_RECORD].try_into().map_err(|_| NetError::TooManyFiles)?,
        };
        shm.addresses = addresses.to_vec();
        shm.listen();
        Ok(shm)
    }

    /// These are the addresses now: forgets who was on others.
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

    /// Listens for offers for all blocks on all addresses.
    fn listen(&mut self) {
        let Some(groups) = self.inner.port_groups() else { return };
        let blocks = groups.blocks();
        let all = self.addresses.iter().flat_map(|a| blocks.iter().map(|b| (*a, *b)));
        // On an address that could not be entered, a block may be another's.
        let missing = all.filter(|own| groups.has(own.0, own.1) && !self.listeners.has(*own));
        let missing = missing.collect::<Vec<_>>();
        for (address, block) in missing {
            let Some(path) = groups.memory(address, block) else { continue };
            // Who had the block before may still be about to go. Then others use the wire.
            let _ = self.listeners.add((address, block), &path);
        }
    }

    /// The way of a burst.
    fn route(&mut self, to: Destination) -> &mut Route {
        let known = match self.routes.get_mut(&to) {
            Some(Route::Wire(0)) | None => false,
            Some(Route::Wire(left)) => {
                *left -= 1;
                true
            }
            Some(_) => true,
        };
        if !known {
            if self.routes.len() >= MAX_ROUTES {
                self.routes.retain(|_, route| !matches!(route, Route::Wire(_)));
            }
            let route = self.find(to);
            self.routes.insert(to, route);
        }
        self.routes.entry(to).or_insert(Route::Wire(LOOK_AGAIN))
    }

    fn find(&mut self, (address, block): Destination) -> Route {
        // A packet to QP1 is for any process that reads it, and one to a group for all members.
        if block == 0 || address.is_multicast() {
            return Route::Wire(LOOK_AGAIN);
        }
        if self.listeners.has((address, block)) {
            return if self.has_alarm() { Route::Own } else { Route::Wire(LOOK_AGAIN) };
        }
        let path = self.inner.port_groups().and_then(|groups| groups.memory(address, block));
        match path.map_or(Ok(None), |path| Outgoing::open(&path)) {
            Ok(Some(link)) if self.has_alarm() => match Watched::new(link, &self.epoll, CONTROL) {
                Ok(link) => {
                    let index = self.rings.iter().position(Option::is_none);
                    let index = index.unwrap_or_else(|| {
                        self.rings.push(None);
                        self.rings.len() - 1
                    });
                    self.rings[index] = Some(link);
                    self.last = None;
                    Route::Ring(index)
                }
                Err(_) => Route::Wire(LOOK_AGAIN),
            },
            _ => Route::Wire(LOOK_AGAIN),
        }
    }

    /// Sees to it that there is an alarm. Without one, nothing goes through memory.
    fn has_alarm(&mut self) -> bool {
        if self.alarm.is_none() {
            let watched = TimerFd::new().and_then(|timer| Watched::new(timer, &self.epoll, WAKE));
            self.alarm = watched.ok();
        }
        self.alarm.is_some()
    }

    fn set_alarm(&self) {
        let Some(alarm) = &self.alarm else { return };
        alarm.set_after(match (self.own_signalled, self.retry_set) {
            (true, _) => Some(Duration::ZERO),
            (false, true) => Some(RETRY),
            (false, false) => None,
        });
    }

    /// Sends the first pending burst if it stays on this host.
    fn send_here(&mut self, batch: &mut TxBatch) -> LocalSend {
        let burst = batch.pending()[0].clone();
        // An address that is not ours is the wire's to refuse.
        if !self.listeners.has_address(burst.net.src) {
            return LocalSend::OnWire;
        }
        let bytes = batch.bytes(&burst);
        let frame = Frame { segment: burst.segment.max(1), ..Frame::single(burst.net, bytes) };
        let to = (burst.net.dst, qpn_block(bytes));
        let timeout = self.receiver_timeout;
        let mut ring = None;
        let pushed = match *self.route(to) {
            Route::Wire(_) => return LocalSend::OnWire,
            Route::Ring(index) => {
                ring = Some(index);
                self.rings[index].as_mut().map_or(Err(Broken), |link| link.push(&frame, timeout))
            }
            Route::Own => Ok(self.send_to_self(&frame)),
        };
        let packets = frame.payloads().count() as u64;
        match pushed {
            Ok(Pushed::Sent) => {
                ring.into_iter().for_each(|index| self.touch(index));
                self.counters.tx_packets += packets;
                self.counters.tx_bytes += bytes.len() as u64;
            }
            Ok(Pushed::Full) => return LocalSend::Congested,
            Ok(Pushed::Lost) => self.counters.tx_no_buffer += packets,
            Err(Broken) => {
                self.counters.tx_other += packets;
                self.give_up(to);
            }
        }
        batch.mark_sent(1);
        LocalSend::Done
    }

    /// This ring has got something.
    fn touch(&mut self, index: usize) {
        if !self.touched.contains(&index) {
            self.touched.push(index);
        }
    }

    /// The ring to this destination is of no more use.
    fn give_up(&mut self, to: Destination) {
        if let Some(Route::Ring(index)) = self.routes.insert(to, Route::Wire(LOOK_AGAIN)) {
            self.rings[index] = None;
        }
        self.last = None;
    }

    /// The ring for packets from `src` to this destination, if they go through one.
    fn ring_of(&mut self, src: IpAddr, to: Destination) -> Option<usize> {
        match self.last {
            Some((last_src, last_to, ring)) if (last_src, last_to) == (src, to) => ring,
            _ => {
                let ring = match self.listeners.has_address(src).then(|| self.route(to)) {
                    Some(Route::Ring(index)) => Some(*index),
                    _ => None,
                };
                self.last = Some((src, to, ring));
                ring
            }
        }
    }

    fn send_to_self(&mut self, frame: &Frame<'_>) -> Pushed {
        if self.own_bytes + frame.payload.len() > OWN_CAPACITY {
            return Pushed::Lost;
        }
        self.own_bytes += frame.payload.len();
        self.own.push_back([&message::emit(frame)[..], frame.payload].concat());
        Pushed::Sent
    }

    /// How many of the pending bursts, from the first, go onto the wire.
    fn leading_wire_bursts(&mut self, batch: &TxBatch) -> usize {
        let mut count = 1;
        for burst in &batch.pending()[1..] {
            let ours = self.listeners.has_address(burst.net.src);
            let block = qpn_block(batch.bytes(burst));
            if ours && !matches!(self.route((burst.net.dst, block)), Route::Wire(_)) {
                break;
            }
            count += 1;
        }
        count
    }

    fn receive_here(&mut self, budget: usize, sink: &mut dyn FnMut(&Frame<'_>)) -> usize {
        let mut packets = 0;
        for message in self.own.drain(..) {
            if let Some(frame) = message::parse(&message) {
                packets += frame.payloads().count();
                self.counters.rx_bytes += frame.payload.len() as u64;
                sink(&frame);
            }
        }
        self.own_bytes = 0;
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

    /// Takes offers, and forgets who is gone. Returns whether there was anything of the kind.
    fn look_around(&mut self) -> bool {
        if self.deaf > 0 {
            self.deaf -= 1;
            if self.deaf == 0 && !self.is_full() {
                self.listen();
            } else if self.deaf == 0 {
                self.deaf = DEAF;
            }
        }
        if !self.epoll.has(CONTROL) {
            return false;
        }
        self.take_callers();
        for line in std::mem::take(&mut self.callers) {
            match Incoming::accept(&line) {
                Ok(None) => self.callers.push(line),
                Ok(Some((ring, wake))) => {
                    if !self.is_full()
                        && self.has_alarm()
                        && let Ok(wake) = Watched::new(wake, &self.epoll, WAKE)
                    {
                        self.incoming.push(Incoming::new(ring, wake, line));
                        self.since_ring = 0;
                        self.wire.begin(true);
                    }
                }
                // Nobody that one could do anything with.
                Err(_) => {}
            }
        }
        self.incoming.retain_mut(|link| !link.is_over());
        if self.is_full() {
            self.stop_listening();
        }
        self.routes.retain(|_, route| match route {
            Route::Ring(index) => {
                let ring = &mut self.rings[*index];
                let gone = ring.as_ref().is_none_or(|link| is_gone(&link.line));
                if gone {
                    *ring = None;
                }
                !gone
            }
            Route::Own | Route::Wire(_) => true,
        });
        self.last = None;
        true
    }

    /// Lets those in who have connected and are of this user.
    fn take_callers(&mut self) {
        let mut deaf = false;
        for listener in self.listeners.sockets() {
            // Others than this user may connect as fast as they are turned away: not for ever.
            for _ in 0..CALLERS {
                match listener.accept() {
                    Ok(caller) => {
                        if let Ok(caller) = Watched::new(caller, &self.epoll, CONTROL) {
                            self.callers.push(caller);
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
                    Err(e) => {
                        deaf |= is_out_of_files(&e);
                        break;
                    }
                }
            }
        }
        if deaf {
            // If the connection were not accepted, the caller would wait for ever and the listener
            // would stay readable. The listener is closed, so its callers use the network.
            self.stop_listening();
        }
        let surplus = self.callers.len().saturating_sub(CALLERS);
        self.callers.drain(..surplus);
    }

    fn is_full(&self) -> bool {
        self.incoming.len() >= MAX_INCOMING
    }

    /// Callers use the network for a while.
    fn stop_listening(&mut self) {
        self.listeners.retain(|_| false);
        self.deaf = DEAF;
    }

    /// Makes the descriptors tell what there is, if a thread sleeps on them.
    fn prepare_sleep(&mut self) {
        if !self.watching {
            return;
        }
        let mut unsignalled = !self.own.is_empty();
        for link in &mut self.incoming {
            unsignalled |= link.prepare_sleep();
        }
        if unsignalled != self.own_signalled {
            self.own_signalled = unsignalled;
            self.set_alarm();
        }
    }

    /// Has the batch tried again in a moment, or no more.
    fn set_retry(&mut self, on: bool) {
        // Once it has expired it is readable until it is set anew, which is for those who sleep: polls try
        // again anyway.
        if on && (self.watching || !self.retry_set) || !on && self.retry_set {
            self.retry_set = on;
            self.set_alarm();
        }
    }
}

/// Whether this process or the system has no descriptors left.
fn is_out_of_files(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl<B: Backend + Sharing> Direct for Shm<B> {
    fn send(
        &mut self,
        net: &NetHeader,
        head: &[u8],
        payload: &Source<'_>,
    ) -> Result<Placed, AccessError> {
        let to = (net.dst, qpn_block(head));
        let Some(index) = self.ring_of(net.src, to) else { return Ok(Placed::Elsewhere) };
        let Some(link) = &mut self.rings[index] else { return Ok(Placed::Elsewhere) };
        match link.send(net, head, payload) {
            Ok(true) => {
                self.touch(index);
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += (head.len() + payload.len()) as u64;
                Ok(Placed::Sent)
            }
            Ok(false) => Ok(Placed::NoRoom),
            Err(SendError::Payload(why)) => Err(why),
            Err(SendError::Broken) => {
                self.give_up(to);
                Ok(Placed::Elsewhere)
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
        if self.wire.is_over(packets) || !busy {
            let arrived = self.inner.receive(budget, sink)?;
            self.wire.begin(arrived > 0);
            packets += arrived;
        }
        if self.control.is_over(packets) {
            let found = self.look_around();
            self.control.begin(found || !busy);
        }
        self.prepare_sleep();
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let mut status = SendStatus::Done;
        while !batch.is_empty() {
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
        // Destinations on the wire are looked for on this host again.
        self.last = self.last.filter(|(.., ring)| ring.is_some());
        if !self.own.is_empty() {
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
        // What went to the new blocks before is looked for anew.
        self.routes.retain(|_, route| !matches!(route, Route::Wire(_)));
        result
    }

    fn set_gsi(&mut self, open: bool) -> Result<(), NetError> {
        self.inner.set_gsi(open)
    }

    fn joiner(&self) -> Joiner {
        self.inner.joiner()
    }

    fn add_membership(&mut self, membership: Membership) -> Result<Option<Membership>, NetError> {
        self.inner.add_membership(membership)
    }

    fn remove_membership(&mut self, group: IpAddr) -> Option<Membership> {
        self.inner.remove_membership(group)
    }
}
