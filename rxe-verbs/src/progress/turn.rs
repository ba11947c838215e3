//! One turn, by the thread that has the lock of the [`super::Shard`]: [`Core::receive`] gives the engine what has
//! arrived and does what is due, [`Core::transmit`] sends. How long it may be is said by [`super::policy`].

use rxe_core::engine::Engine;
use rxe_core::types::{Gid, Qpn, Time};
use rxe_core::wire::{Frame, TxBatch};
use rxe_net::{Backend, NetError, SendStatus, Sharing, Tap};

use super::at_exit::Unsent;
use super::manager::ConnectionManager;
use super::policy::{
    AckPolicy, Acks, DoorbellBatching, Interest, Post, TimerGate, Timers, TurnLimit, Watchers,
};
use super::wakeup::{WakeupState, Wakeups};
use crate::event::Events;
use crate::os::Environment;

/// Handling so many packets takes next to no time.
const FEW: usize = 2;

/// What the last turn has left to send, and why. The next turn sends it, whoever takes that turn; what else
/// is done about it is said here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Backlog {
    /// All has left.
    #[default]
    Nothing,
    /// Acknowledgements, which wait for company ([`Engine::can_wait`]): the driver's timer is set.
    Acks,
    /// Anything: the turn was long enough. The driver goes on immediately.
    CutShort,
    /// The rest of a batch: the socket is full. The driver sleeps until there is room in it.
    Blocked,
    /// The rest of a batch: a process of this host must make room. The backend makes a descriptor readable
    /// when it has.
    Congested,
}

/// What the shard's lock protects.
pub(crate) struct Core {
    /// The queue pairs.
    pub(crate) engine: Engine,
    pub(super) backend: Box<dyn Backend>,
    pub(super) environment: Environment,
    /// Another process captures what passes the backend.
    tap: Option<Box<Tap>>,
    batch: TxBatch,
    pub(super) backlog: Backlog,
    pub(super) events: Events,
    pub(super) watchers: Watchers,
    pub(super) wakeup_state: WakeupState,
    /// What this turn has used up.
    pub(super) limit: TurnLimit,
    timers: TimerGate,
    pub(super) acks: Acks,
    pub(super) batching: DoorbellBatching,
    /// What other threads see of what has not left.
    unsent: &'static Unsent,
    /// When the last packets came.
    pub(super) received: Time,
    /// The connection manager, if a program uses it.
    pub(super) cm: Option<Box<dyn ConnectionManager>>,
    /// What to do about its timers when it is turned.
    cm_timers: Timers,
    /// The driver looks again at once: it does not sleep on the descriptors that it watches.
    pub(super) polled: bool,
    /// The backend was told that somebody sleeps on its descriptors.
    watched: bool,
    /// The groups that the interface is in.
    pub(super) joined: Vec<Gid>,
    /// No thread panicked while it had the engine.
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
            acks: Acks::new(acks),
            batching: DoorbellBatching::default(),
            unsent,
            received: Time::ZERO,
            cm: None,
            cm_timers: Timers::None,
            polled: false,
            watched: false,
            joined: Vec::new(),
            intact: true,
        }
    }

    /// From now on, this captures what passes the backend, until it has ended.
    pub(crate) fn set_tap(&mut self, tap: Tap) {
        self.events.set_live_capture(Some(tap.handle()));
        self.tap = Some(Box::new(tap));
    }

    #[cold]
    fn remove_tap(&mut self) {
        self.events.set_live_capture(None);
        self.tap = None;
    }

    /// Makes the driver sleep on the sockets for this from now on, also if it sleeps already.
    pub(super) fn set_interest(&mut self, wakeups: &Wakeups, interest: Interest) {
        self.wakeup_state.set_interest(wakeups, interest);
        let sleeps = interest != Interest::None && !self.polled;
        let watched = sleeps || self.watchers.has_leader();
        if std::mem::replace(&mut self.watched, watched) != watched {
            self.backend.watch(watched);
        }
    }

    /// Destroys a queue pair, with those of its asynchronous events that no program has taken.
    pub(super) fn destroy_qp(&mut self, qpn: Qpn) {
        // An engine in which a thread has panicked is left alone.
        if self.intact {
            // `QueuePair::drop` is called once for each.
            let _ = self.engine.destroy_qp(qpn);
            self.events.take_all(&mut self.engine);
        }
        self.events.forget(qpn);
    }

    /// These are the own addresses now, by index.
    pub(crate) fn set_gids(&mut self, gids: &[Gid]) -> Result<(), NetError> {
        self.engine.set_gids(gids.to_vec());
        let addresses: Vec<_> = gids.iter().filter(|g| !g.is_zero()).map(Gid::to_ip).collect();
        self.backend.sharing().map_or(Ok(()), |sharing| sharing.set_addresses(&addresses))
    }

    /// Receives for what the device has leased since.
    pub(crate) fn take_up(&mut self) -> Result<(), NetError> {
        self.backend.sharing().map_or(Ok(()), |sharing| sharing.take_up())
    }

    /// What the backend has counted.
    pub(crate) fn net_counters(&self) -> rxe_net::Counters {
        self.backend.counters()
    }

    /// When [`Core::transmit`] must be called, if nothing else happens.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let of_engine = self.engine.poll_timeout();
        let Some(cm) = &self.cm else { return of_engine };
        match (of_engine, cm.poll_timeout()) {
            (Some(engine), Some(cm)) => Some(engine.min(cm)),
            (engine, cm) => engine.or(cm),
        }
    }

    /// The receiving half of a turn, with about `budget` packets. Returns how many arrived. What
    /// comes of them is sent by [`Core::transmit`]. Timers that are due run after it, if `wakeups`
    /// shows no more input.
    pub(super) fn receive(&mut self, budget: usize, wakeups: &Wakeups) -> Result<usize, NetError> {
        let mut time = None;
        let (mut source, mut local) = (None, false);
        if self.tap.as_ref().is_some_and(|tap| tap.has_ended()) {
            self.remove_tap();
        }
        let Self { engine, backend, tap, events, unsent, environment, .. } = self;
        let mut sink = |frame: &Frame<'_>| {
            // The frames of a batch mostly come from one address.
            if source != Some(frame.net.src) {
                source = Some(frame.net.src);
                local = engine.config().gids.contains(&frame.net.src.into());
            }
            unsent.acks.note_packet(local);
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
                    // What fails now is explained when this turn has ended.
                    self.unsent.acks.note();
                    if due == Timers::ExcuseAndRun {
                        self.engine.excuse_silence(time);
                    }
                    self.engine.handle_timeout(time);
                    // What has arrived for the connection manager it takes in `transmit`.
                    if self.cm_timers != Timers::ExcuseAndRun {
                        self.cm_timers = due;
                    }
                }
            }
        }
        Ok(packets)
    }

    /// The driver's timer has gone off.
    pub(super) fn timer_gone(&mut self) {
        if self.wakeup_state.timer_gone(self.environment.now()) {
            self.batching.timed_out();
        }
    }

    /// Whether a post may wait for the next one. If so the driver wakes in time, and
    /// `PendingDoorbells::join` lets more wait.
    pub(super) fn posts_wait(&mut self, post: &Post, wakeups: &Wakeups) -> bool {
        let time = self.environment.now();
        self.limit.note(Some(time));
        if self.unsent.doorbells.any() {
            self.batching.filled(time);
            return false;
        }
        let busy = self.backlog != Backlog::Nothing;
        if !self.batching.posted(&Post { urgent: post.urgent || busy, ..*post }, time) {
            return false;
        }
        self.wakeup_state.set_posts_timer(wakeups, time, self.batching.max_wait());
        self.unsent.doorbells.begin(post.packets);
        true
    }

    /// The sending half of a turn. It ends when nothing is left, when the socket is full, or when
    /// the turn is long enough ([`TurnLimit`]). [`Core::backlog`] says which.
    pub(super) fn transmit(&mut self) -> Result<(), NetError> {
        let waited = std::mem::take(&mut self.backlog) == Backlog::Acks;
        if self.unsent.doorbells.end() {
            self.batching.left(self.environment.now());
        }
        if let Some(cm) = &mut self.cm {
            let timers = std::mem::take(&mut self.cm_timers);
            let mut exchange = |cm: &mut dyn ConnectionManager, engine: &mut Engine| {
                if matches!(timers, Timers::Run | Timers::ExcuseAndRun) {
                    let questions = self.backend.sharing().and_then(Sharing::peer_probes);
                    cm.exchange_questions(engine, questions);
                }
            };
            exchange(&mut **cm, &mut self.engine);
            cm.turn(self.environment.now(), &mut self.engine, timers);
            exchange(&mut **cm, &mut self.engine);
        }
        while self.has_work() {
            // Also when the batch is full: this is where doorbells are taken.
            let time = self.limit.noted().unwrap_or_else(|| self.environment.now());
            self.limit.begin(time);
            if !self.engine.doorbells().is_empty() {
                self.acks.posted(time);
            } else if waited {
                self.acks.not_answered();
            }
            let Self { engine, backend, tap, batch, .. } = self;
            match tap {
                None => engine.poll_transmit_with(time, batch, backend.direct()),
                Some(tap) => tap.with_direct(&mut **backend, |direct| {
                    engine.poll_transmit_with(time, batch, direct);
                }),
            }
            self.events.take_all(&mut self.engine);
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
                // The backend makes a descriptor readable when to try again.
                SendStatus::Congested => {
                    self.backlog = Backlog::Congested;
                    break;
                }
            }
            let limits = self.backend.capabilities().tx;
            if limits != *self.batch.limits() && self.batch.is_empty() {
                self.batch = TxBatch::new(limits);
            }
            if self.has_work() && !self.limit.goes_on(self.environment.now()) {
                self.backlog = Backlog::CutShort;
                break;
            }
        }
        self.events.take_all(&mut self.engine);
        if self.backlog == Backlog::Nothing {
            self.unsent.acks.all_sent();
        }
        Ok(())
    }

    /// Nothing can leave any more: what was posted completes as flushed, if the engine can be trusted.
    #[cold]
    pub(super) fn flush(&mut self) {
        if !self.intact {
            return;
        }
        // First, as `PendingDoorbells::join` wants it: from now on every post rings for itself.
        self.unsent.doorbells.end();
        self.engine.fail_all(self.environment.now());
        self.events.take_all(&mut self.engine);
        self.unsent.acks.all_sent();
    }

    /// Whether there is anything to send.
    fn has_work(&self) -> bool {
        !self.batch.is_empty() || self.engine.has_transmit_work()
    }
}
