//! One turn, taken by the thread that has the lock of the [`super::Shard`]: [`Core::receive`] gives
//! the engine the packets that have arrived and runs timers, [`Core::transmit`] sends.
//! [`super::policy`] limits the length of a turn.

use rxe_core::engine::Engine;
use rxe_core::types::{Gid, Qpn, Time};
use rxe_core::wire::{Frame, TxBatch};
use rxe_net::{Backend, NetError, SendStatus, Sharing, Tap};

use super::at_exit::Unsent;
use super::manager::ConnectionManager;
use super::policy::{
    AckPolicy, DoorbellBatching, Interest, PingPong, Post, TimerGate, Timers, TurnLimit, Watchers,
};
use super::wakeup::{WakeupState, Wakeups};
use crate::event::Events;
use crate::os::Environment;

/// After at most this many packets, the time read before them is still good enough to send with.
const FEW: usize = 2;

/// What the last turn left unsent, and why. The next turn of any thread sends it; each variant says
/// what else happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Backlog {
    /// Everything has left.
    #[default]
    Nothing,
    /// Acknowledgements that wait for the program's next post ([`Engine::can_wait`]). The driver's
    /// timer is set.
    Acks,
    /// Any packets: the turn reached its limit. The driver continues immediately.
    CutShort,
    /// The rest of a batch: the socket is full. The driver sleeps until there is room in it.
    Blocked,
    /// The rest of a batch: a process on this host must first make room. When it has, the backend
    /// makes a descriptor readable.
    Congested,
}

/// The engine, its backend and all other state that the shard's lock protects.
pub(crate) struct Core {
    /// The engine with the queue pairs.
    pub(crate) engine: Engine,
    pub(super) backend: Box<dyn Backend>,
    pub(super) environment: Environment,
    /// A capture by another process of all frames that pass the backend.
    tap: Option<Box<Tap>>,
    batch: TxBatch,
    pub(super) backlog: Backlog,
    pub(super) events: Events,
    pub(super) watchers: Watchers,
    pub(super) wakeup_state: WakeupState,
    /// The steps and the time that this turn has used.
    pub(super) limit: TurnLimit,
    timers: TimerGate,
    pub(super) ping_pong: PingPong,
    pub(super) batching: DoorbellBatching,
    /// The record of what is not sent yet, which other threads read without the lock.
    unsent: &'static Unsent,
    /// When the last packets arrived.
    pub(super) received: Time,
    /// The connection manager, if a program uses it.
    pub(super) cm: Option<Box<dyn ConnectionManager>>,
    /// What to do about the connection manager's timers at its next turn.
    cm_timers: Timers,
    /// The driver polls again immediately and does not sleep on its descriptors.
    pub(super) driver_polls: bool,
    /// The backend was last told that a thread sleeps on its descriptors.
    watched: bool,
    /// The multicast groups that the interface has joined.
    pub(super) joined: Vec<Gid>,
    /// No thread has panicked while it held the lock.
    pub(super) intact: bool,
}

impl Core {
    pub(super) fn new(
        engine: Engine,
        backend: Box<dyn Backend>,
        events: Events,
        acks: AckPolicy,
        unsent: &'static Unsent,
        environment: Environment,
    ) -> Self {
        let batch = TxBatch::new(backend.capabilities().tx);
        Self {
            engine,
            backend,
            environment,
            tap: None,
            batch,
            backlog: Backlog::Nothing,
            events,
            watchers: Watchers::default(),
            wakeup_state: WakeupState::default(),
            limit: TurnLimit::default(),
            timers: TimerGate::default(),
            ping_pong: PingPong::new(acks),
            batching: DoorbellBatching::default(),
            unsent,
            received: Time::ZERO,
            cm: None,
            cm_timers: Timers::None,
            driver_polls: false,
            watched: false,
            joined: Vec::new(),
            intact: true,
        }
    }

    /// Starts a live capture of all frames that pass the backend. It ends when the tap says so.
    pub(crate) fn set_tap(&mut self, tap: Tap) {
        self.events.set_live_capture(Some(tap.handle()));
        self.tap = Some(Box::new(tap));
    }

    #[cold]
    fn remove_tap(&mut self) {
        self.events.set_live_capture(None);
        self.tap = None;
    }

    /// Sets the socket events that wake the driver, also while it sleeps.
    pub(super) fn set_interest(&mut self, wakeups: &Wakeups, interest: Interest) {
        self.wakeup_state.set_interest(wakeups, interest);
        let sleeps = interest != Interest::None && !self.driver_polls;
        let watched = sleeps || self.watchers.has_leader();
        if std::mem::replace(&mut self.watched, watched) != watched {
            self.backend.watch(watched);
        }
    }

    /// Destroys a queue pair, and its asynchronous events that no program has taken yet.
    pub(super) fn destroy_qp(&mut self, qpn: Qpn) {
        // A panic may have left the engine inconsistent; it is not touched any more.
        if self.intact {
            // `QueuePair::drop` calls this once for each queue pair, so the queue pair exists.
            let _ = self.engine.destroy_qp(qpn);
            self.events.take_all(&mut self.engine);
        }
        self.events.forget(qpn);
    }

    /// Sets the device's own addresses, by index in its GID table.
    pub(crate) fn set_gids(&mut self, gids: &[Gid]) -> Result<(), NetError> {
        self.engine.set_gids(gids.to_vec());
        let addresses: Vec<_> = gids.iter().filter(|g| !g.is_zero()).map(Gid::to_ip).collect();
        self.backend.sharing().map_or(Ok(()), |sharing| sharing.set_addresses(&addresses))
    }

    /// Begins to receive for the QPN blocks that the device has leased since the last call.
    pub(crate) fn add_leased_blocks(&mut self) -> Result<(), NetError> {
        self.backend.sharing().map_or(Ok(()), |sharing| sharing.take_up())
    }

    /// Returns the backend's counters.
    pub(crate) fn net_counters(&self) -> rxe_net::Counters {
        self.backend.counters()
    }

    /// Returns when [`Core::transmit`] must be called, if nothing else happens.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let of_engine = self.engine.poll_timeout();
        let Some(cm) = &self.cm else { return of_engine };
        match (of_engine, cm.poll_timeout()) {
            (Some(engine), Some(cm)) => Some(engine.min(cm)),
            (engine, cm) => engine.or(cm),
        }
    }

    /// Receives about `budget` packets, and returns how many arrived. [`Core::transmit`] sends the
    /// responses. Timers that are due run afterwards, if `wakeups` shows no more input.
    pub(super) fn receive(&mut self, budget: usize, wakeups: &Wakeups) -> Result<usize, NetError> {
        let mut time = None;
        let (mut source, mut local) = (None, false);
        if self.tap.as_ref().is_some_and(|tap| tap.has_ended()) {
            self.remove_tap();
        }
        let Self { engine, backend, tap, events, unsent, environment, .. } = self;
        let mut sink = |frame: &Frame<'_>| {
            // Most frames of a batch come from one address, so the lookup is repeated only when it
            // changes.
            if source != Some(frame.net.src) {
                source = Some(frame.net.src);
                local = engine.config().gids.contains(&frame.net.src.into());
            }
            unsent.owed.note_packet(local);
            engine.handle_frame(*time.get_or_insert_with(|| environment.now()), frame);
            events.take_all(engine);
        };
        let packets = match tap {
            None => backend.receive(budget, &mut sink)?,
            Some(tap) => tap.receive(&mut **backend, budget, &mut sink)?,
        };
        if packets > 0 {
            self.batching.received();
        }
        self.received = time.unwrap_or(self.received);
        self.limit.note(time.filter(|_| packets <= FEW));
        let deadline = self.poll_timeout();
        if deadline.is_none_or(|deadline| self.environment.is_far(deadline)) {
            self.timers.none_due();
        } else {
            let time = time.unwrap_or_else(|| self.environment.now());
            let drained = || packets < budget && !wakeups.has_input();
            match self.timers.decide(deadline, time, drained) {
                Timers::None | Timers::Wait => {}
                due @ (Timers::Run | Timers::ExcuseAndRun) => {
                    // Requests that fail now are explained after this turn, so an explanation is
                    // owed: a process that ends waits for it.
                    self.unsent.owed.note();
                    if due == Timers::ExcuseAndRun {
                        self.engine.excuse_silence(time);
                    }
                    self.engine.handle_timeout(time);
                    // The connection manager takes its messages in `transmit`, so its timers run
                    // there.
                    if self.cm_timers != Timers::ExcuseAndRun {
                        self.cm_timers = due;
                    }
                }
            }
        }
        Ok(packets)
    }

    /// Records that the driver's timer has fired.
    pub(super) fn timer_fired(&mut self) {
        if self.wakeup_state.timer_fired(self.environment.now()) {
            self.batching.timed_out();
        }
    }

    /// Returns whether a post may wait for the next one. If so, the driver's timer is set, and
    /// `WaitingPosts::join` lets more posts wait.
    pub(super) fn try_defer_post(&mut self, post: &Post, wakeups: &Wakeups) -> bool {
        let time = self.environment.now();
        self.limit.note(Some(time));
        if self.unsent.waiting_posts.any() {
            self.batching.filled(time);
            return false;
        }
        let busy = self.backlog != Backlog::Nothing;
        if !self.batching.posted(&Post { must_leave: post.must_leave || busy, ..*post }, time) {
            return false;
        }
        self.wakeup_state.set_posts_timer(wakeups, time, self.batching.max_wait());
        self.unsent.waiting_posts.begin(post.packets);
        true
    }

    /// Sends until nothing is left, the socket is full, or the turn's limit is reached.
    /// [`Core::backlog`] says which of these ended it.
    pub(super) fn transmit(&mut self) -> Result<(), NetError> {
        let waited = std::mem::take(&mut self.backlog) == Backlog::Acks;
        if self.unsent.waiting_posts.end() {
            self.batching.left(self.environment.now());
        }
        if let Some(cm) = &mut self.cm {
            let timers = std::mem::take(&mut self.cm_timers);
            let mut exchange = |cm: &mut dyn ConnectionManager, engine: &mut Engine| {
                if matches!(timers, Timers::Run | Timers::ExcuseAndRun) {
                    let probes = self.backend.sharing().and_then(Sharing::peer_probes);
                    cm.exchange_probes(engine, probes);
                }
            };
            // Only timers create probes, and they run in `turn`; the second call sends these probes.
            // The first call reads which earlier probes found no process: the timers judge by that.
            exchange(&mut **cm, &mut self.engine);
            cm.turn(self.environment.now(), &mut self.engine, timers);
            exchange(&mut **cm, &mut self.engine);
        }
        while self.has_work() {
            // The engine is called even while the batch is full, because that call also takes the
            // doorbells; so the time is needed here.
            let time = self.limit.noted().unwrap_or_else(|| self.environment.now());
            self.limit.begin(time);
            if !self.engine.doorbells().is_empty() {
                self.ping_pong.posted(time);
            } else if waited {
                self.ping_pong.not_answered();
            }
            let Self { engine, backend, tap, batch, .. } = self;
            match tap {
                None => engine.poll_transmit_with(time, batch, backend.direct()),
                Some(tap) => tap.with_direct(&mut **backend, |direct| {
                    engine.poll_transmit_with(time, batch, direct);
                }),
            }
            self.events.take_all(&mut self.engine);
            // After direct packets the backend gets even an empty batch: it must wake their receiver.
            if self.batch.is_empty() && !self.batch.take_direct() {
                break;
            }
            let sent = match &mut self.tap {
                None => self.backend.send(&mut self.batch)?,
                Some(tap) => tap.send(&mut *self.backend, &mut self.batch)?,
            };
            match sent {
                SendStatus::Done => {}
                SendStatus::Blocked => {
                    self.backlog = Backlog::Blocked;
                    return Ok(());
                }
                // The backend makes a descriptor readable when sending should be tried again.
                SendStatus::Congested => {
                    self.backlog = Backlog::Congested;
                    break;
                }
            }
            // The backend may have found out that the device does not segment.
            let limits = self.backend.capabilities().tx;
            if limits != *self.batch.limits() && self.batch.is_empty() {
                self.batch = TxBatch::new(limits);
            }
            if self.has_work() && !self.limit.may_continue(self.environment.now()) {
                self.backlog = Backlog::CutShort;
                break;
            }
        }
        self.events.take_all(&mut self.engine);
        if self.backlog == Backlog::Nothing {
            self.unsent.owed.all_sent();
        }
        Ok(())
    }

    /// Completes all posted requests as flushed, because nothing can be sent any more. Does nothing
    /// if a thread has panicked in the engine.
    #[cold]
    pub(super) fn flush(&mut self) {
        if !self.intact {
            return;
        }
        // This must come first, as `WaitingPosts::join` requires: from now on every post rings
        // for itself.
        self.unsent.waiting_posts.end();
        self.engine.fail_all(self.environment.now());
        self.events.take_all(&mut self.engine);
        self.unsent.owed.all_sent();
    }

    /// Returns whether there is anything to send.
    fn has_work(&self) -> bool {
        !self.batch.is_empty() || self.engine.has_transmit_work()
    }
}
