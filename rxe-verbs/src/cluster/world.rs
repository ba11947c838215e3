//! The events and the virtual time of a cluster.
//!
//! An event is the arrival of a packet at a host, a timer of a host's device, a time at which a
//! program asked to be called, or an action. Simultaneous events happen in the order in which they
//! were scheduled, but actions come first and packets second. So the seed and the program determine
//! everything.
//!
//! Lock order: a shard's lock before the world's. The world's lock is not held while a shard is
//! turned or an action runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use rxe_core::types::Time;
use rxe_core::wire::{Frame, TxBatch, TxLimits};
use rxe_net::{
    Backend, Capabilities, Counters, Delivery, LinkConfig, NetError, Rng, SendStatus, SrcPort,
    SwitchedNetwork,
};
use rxe_sys::SharedFd;

use crate::os::Simulation;
use crate::progress::Shard;

/// A function that changes the network at a scheduled time.
pub(super) type Action = Box<dyn FnOnce(&Arc<World>) + Send>;

/// The hosts, the pending events and the time of a cluster.
pub(super) struct World {
    /// Nanoseconds since the start.
    now: AtomicU64,
    state: Mutex<State>,
}

/// The state that the world's lock protects.
pub(super) struct State {
    pub(super) switch: SwitchedNetwork,
    seeds: Rng,
    hosts: Vec<Host>,
    alarms: BinaryHeap<Reverse<(Time, u64, Alarm)>>,
    actions: BTreeMap<(Time, u64), Action>,
    /// The number of alarms and actions scheduled so far.
    order: u64,
    /// Hosts whose programs must be called.
    ready: VecDeque<usize>,
}

/// A host, from the world's point of view.
struct Host {
    /// The shard of the host's device; empty before the device is open and after a crash.
    shard: Weak<Shard>,
    rng: Rng,
    /// When the device must be turned; [`Time::MAX`] is never.
    timer: Time,
    /// The host is in [`State::ready`].
    is_ready: bool,
    is_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    /// The device of a host must be turned.
    Device(usize),
    /// The program of a host must be called.
    Program(usize),
}

/// The next event.
enum Event {
    /// A packet has reached the switch, or an alarm was cancelled: nothing needs to be done.
    Nothing,
    Action(Action),
    /// A host's device must be turned: its timer is due, or packets have arrived.
    Turn {
        host: usize,
        shard: Weak<Shard>,
        timer: bool,
    },
    Program(usize),
}

/// The next host number, unique among all clusters of this process.
static IDS: AtomicU64 = AtomicU64::new(1);

impl World {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        // Adjacent seeds must give unrelated numbers.
        let mut seeds = Rng::new(Rng::new(seed).next());
        let state = State {
            switch: SwitchedNetwork::new(seeds.next()),
            seeds,
            hosts: Vec::new(),
            alarms: BinaryHeap::new(),
            actions: BTreeMap::new(),
            order: 0,
            ready: VecDeque::new(),
        };
        Arc::new(Self { now: AtomicU64::new(0), state: Mutex::new(state) })
    }

    pub(super) fn now(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Relaxed))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a host whose device is about to be opened. Returns its number.
    pub(super) fn add(&self) -> usize {
        let mut state = self.state();
        let rng = Rng::new(state.seeds.next());
        let shard = Weak::new();
        state.hosts.push(Host { shard, rng, timer: Time::MAX, is_ready: false, is_up: true });
        state.hosts.len() - 1
    }

    /// Connects the host that was added last, whose device is open. From now on the device is
    /// turned.
    pub(super) fn opened(
        &self,
        host: usize,
        address: IpAddr,
        link: &LinkConfig,
        shard: &Arc<Shard>,
    ) {
        let mut state = self.state();
        state.hosts[host].shard = Arc::downgrade(shard);
        let number = state.switch.attach(&[address], link);
        debug_assert_eq!(number, host, "each host that stays is connected");
    }

    /// Undoes [`World::add`], because the device could not be opened.
    pub(super) fn take_back(&self, host: usize) {
        let mut state = self.state();
        state.hosts.truncate(host);
        state.alarms.retain(|Reverse((.., alarm))| *alarm != Alarm::Device(host));
    }

    /// Crashes a host.
    pub(super) fn crash(&self, host: usize) {
        let mut state = self.state();
        state.switch.detach(host);
        state.ready.retain(|ready| *ready != host);
        let host = &mut state.hosts[host];
        (host.shard, host.timer) = (Weak::new(), Time::MAX);
        (host.is_ready, host.is_up) = (false, false);
    }

    /// Schedules a call of the programs of all hosts that are up.
    pub(super) fn call_all(&self) {
        let mut state = self.state();
        (0..state.hosts.len()).for_each(|host| state.call(host));
    }

    /// Takes the next host whose program must be called.
    pub(super) fn take_ready(&self) -> Option<usize> {
        let mut state = self.state();
        let host = state.ready.pop_front()?;
        state.hosts[host].is_ready = false;
        Some(host)
    }

    /// Schedules a call of this host's program at `at`.
    pub(super) fn call_at(&self, host: usize, at: Time) {
        self.state().set(at, Alarm::Program(host));
    }

    /// Schedules `action` at `at`.
    pub(super) fn act_at(&self, at: Time, action: Action) {
        let mut state = self.state();
        let order = state.next_order();
        state.actions.insert((at, order), action);
    }

    /// Advances to the next event and runs it, like [`Simulation::advance`].
    pub(super) fn advance(self: &Arc<Self>, until: Time) -> bool {
        let event = {
            let mut state = self.state();
            let Some(at) = state.next_event().filter(|at| *at <= until) else {
                if until != Time::MAX {
                    self.go_to(until);
                }
                return false;
            };
            self.go_to(at);
            state.take(self.now())
        };
        match event {
            Event::Nothing => {}
            Event::Action(action) => action(self),
            Event::Program(host) => self.state().call(host),
            Event::Turn { host, shard, timer } => {
                let Some(shard) = shard.upgrade() else { return true };
                // If the device has failed, the next verb returns the error.
                let _ = shard.drive(timer);
                self.state().call(host);
            }
        }
        true
    }

    fn go_to(&self, at: Time) {
        self.now.fetch_max(at.as_nanos(), Ordering::Relaxed);
    }
}

impl State {
    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn set(&mut self, at: Time, alarm: Alarm) {
        let order = self.next_order();
        self.alarms.push(Reverse((at, order, alarm)));
    }

    fn call(&mut self, host: usize) {
        let Some(known) = self.hosts.get_mut(host).filter(|known| known.is_up) else { return };
        if !std::mem::replace(&mut known.is_ready, true) {
            self.ready.push_back(host);
        }
    }

    fn next_event(&self) -> Option<Time> {
        let action = self.actions.first_key_value().map(|((at, _), _)| *at);
        let alarm = self.alarms.peek().map(|Reverse((at, ..))| *at);
        [action, alarm, self.switch.next_event()].into_iter().flatten().min()
    }

    /// Takes the event that happens at `now`.
    fn take(&mut self, now: Time) -> Event {
        if let Some(entry) = self.actions.first_entry()
            && entry.key().0 <= now
        {
            return Event::Action(entry.remove());
        }
        if let Some(host) = self.switch.advance(now) {
            return self.turn(host, now);
        }
        let Some(&Reverse((at, _, alarm))) = self.alarms.peek() else { return Event::Nothing };
        if at > now {
            return Event::Nothing;
        }
        self.alarms.pop();
        match alarm {
            Alarm::Program(host) => Event::Program(host),
            Alarm::Device(host) if self.hosts[host].timer == at => self.turn(host, now),
            Alarm::Device(_) => Event::Nothing,
        }
    }

    fn turn(&mut self, host: usize, now: Time) -> Event {
        let known = &mut self.hosts[host];
        let timer = known.timer <= now;
        if timer {
            known.timer = Time::MAX;
        }
        Event::Turn { host, shard: Weak::clone(&known.shard), timer }
    }
}

/// The environment of a host's device.
pub(super) struct SimulatedHost {
    world: Arc<World>,
    number: usize,
    id: u64,
}

impl SimulatedHost {
    pub(super) fn new(world: Arc<World>, number: usize) -> Self {
        Self { world, number, id: IDS.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Simulation for SimulatedHost {
    fn now(&self) -> Time {
        self.world.now()
    }

    fn random(&self) -> u64 {
        self.world.state().hosts[self.number].rng.next()
    }

    fn wake_at(&self, at: Time) {
        let mut state = self.world.state();
        let host = &mut state.hosts[self.number];
        if !host.is_up {
            return;
        }
        let at = at.max(self.world.now());
        if at < host.timer {
            host.timer = at;
            state.set(at, Alarm::Device(self.number));
        }
    }

    fn advance(&self, until: Time) -> bool {
        self.world.advance(until)
    }

    fn id(&self) -> u64 {
        self.id
    }
}

/// The backend of a host.
pub(super) struct Port {
    world: Arc<World>,
    host: usize,
    capabilities: Capabilities,
    counters: Counters,
}

impl Port {
    pub(super) fn new(world: Arc<World>, host: usize, mtu: u32) -> Self {
        let capabilities = Capabilities {
            name: "cluster",
            link_mtu: mtu as usize,
            // As little as a link accepts in advance.
            tx: TxLimits { burst_segments: 4, batch_bytes: 16 << 10, ..TxLimits::default() },
            src_port: SrcPort::Any,
            recv_buffer: 0,
            qpn_block: None,
        };
        Self { world, host, capabilities, counters: Counters::default() }
    }
}

impl Backend for Port {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(&Frame<'_>),
    ) -> Result<usize, NetError> {
        let now = self.world.now();
        let next = || -> Option<Delivery> { self.world.state().switch.receive(now, self.host) };
        let mut packets = 0;
        while packets < budget
            && let Some(delivery) = next()
        {
            let frame = delivery.frame();
            self.counters.rx_bytes += frame.payload.len() as u64;
            sink(&frame);
            packets += 1;
        }
        self.counters.rx_packets += packets as u64;
        Ok(packets)
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        let now = self.world.now();
        let before = pending(batch);
        let mut state = self.world.state();
        let status = state.switch.send(now, self.host, batch);
        let after = pending(batch);
        self.counters.tx_packets += before.0 - after.0;
        self.counters.tx_bytes += before.1 - after.1;
        if status == SendStatus::Blocked {
            let idle_at = state.switch.idle_at(self.host);
            let host = &mut state.hosts[self.host];
            if idle_at < host.timer {
                host.timer = idle_at;
                state.set(idle_at, Alarm::Device(self.host));
            }
        }
        Ok(status)
    }

    fn for_each_fd(&self, _: &mut dyn FnMut(&SharedFd)) {}

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// Returns the packets and bytes that wait in a batch.
fn pending(batch: &TxBatch) -> (u64, u64) {
    batch.pending().iter().fold((0, 0), |(packets, bytes), burst| {
        (packets + burst.packets() as u64, bytes + burst.bytes.len() as u64)
    })
}
