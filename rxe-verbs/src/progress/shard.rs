//! One engine and its backend behind one lock: which thread gets the lock, what ends a turn, and
//! why each posted request is sent.
//!
//! The ways in:
//!
//! | entry | takes the lock | waits for it | turns the engine |
//! | --- | --- | --- | --- |
//! | [`Shard::with`] | yes | yes | sends; one step, if the turn before was cut short |
//! | [`Shard::turn`], [`Shard::turn_after`] | yes | yes | receives, runs timers, sends |
//! | [`Shard::turn_if_free`] | if it is free | no | receives, runs timers, sends; acks may wait |
//! | [`Shard::posted`] | if it is free | no | sends; small posts may wait |
//! | [`Shard::answer_doorbells`] | if a doorbell was rung, and it is free | no | sends |
//! | [`Shard::with_lock`] | yes | yes | no |
//! | [`Shard::with_lock_within`] | yes | for a given time | no |
//!
//! [`Shard::send_owed_acks`] and [`Shard::serve_sleeper`] call [`Shard::with`].
//!
//! After the lock is released, each of these sends the requests that other threads posted meanwhile
//! ([`Shard::answer_doorbells`]). The one exception is [`Shard::posted`] if its own post waits: then
//! those requests wait too, as long as
//! [`DoorbellBatching`](super::policy::DoorbellBatching) decides, and the driver sends them.

mod locked;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rxe_core::engine::{Counters, Engine};
use rxe_core::queue::Doorbells;
use rxe_core::types::Qpn;
use rxe_net::{Backend, Membership, NetError};
use rxe_sys::fork_generation;

use self::locked::Locked;
use super::at_exit::UnsentRecord;
use super::policy::{AckPolicy, Interest, Plan, Post, TICK, TurnLimit};
use super::turn::{Backlog, Core};
use super::wakeup::{Wakeup, Wakeups};
use crate::error::{Error, Result};
use crate::event::{AsyncEvents, AsyncKind, Events, Log, Observers};
use crate::os::Environment;

/// Packets received in one step, before the responses to them are sent. Few enough for a caller to
/// see its completions soon, and for a peer to see acknowledgements before its window is used up.
pub(super) const RX_BUDGET: usize = 64;

/// The most packets whose acknowledgements may wait. With more, the peer may need the
/// acknowledgements to continue.
const MAX_WAITING_ACKS: usize = 2;

/// Turns for requests of other threads, after which a poster wakes the driver.
const TURNS_FOR_OTHERS: u32 = 16;

/// An engine and its backend behind one lock. The head of the module lists the ways in.
pub(crate) struct Shard {
    device: String,
    core: Mutex<Core>,
    doorbells: Arc<Doorbells>,
    pub(super) wakeups: Wakeups,
    pub(super) stop: AtomicBool,
    /// A request that must leave immediately was left to the thread that had the lock. Without this,
    /// a holder whose own post waits would let that request wait too.
    left_to_holder: AtomicBool,
    asyncs: Arc<AsyncEvents>,
    /// The policy is [`AckPolicy::Prompt`]: acknowledgements leave before completions are seen.
    prompt: bool,
    unsent: UnsentRecord,
    /// All threads of this process share one CPU.
    pub(super) single_cpu: bool,
    /// The driver may have a real-time priority.
    pub(super) realtime: bool,
    environment: Environment,
    /// The observers that are told of events after the lock is released.
    observers: Option<Arc<Observers>>,
    /// Why the shard has failed, if it has.
    failed: OnceLock<String>,
    /// The process that owns the shard, as a fork generation.
    generation: u64,
    /// The completion queues to wake on failure, by number.
    queues: Mutex<HashMap<u64, Weak<dyn WakeAll>>>,
}

/// The parts from which a shard is created.
pub(crate) struct ShardParts {
    /// The device's name.
    pub(crate) device: String,
    /// The engine, without queue pairs.
    pub(crate) engine: Engine,
    /// The open backend.
    pub(crate) backend: Box<dyn Backend>,
    /// The sink of the engine's events.
    pub(crate) events: Events,
    /// The queue from which programs take asynchronous events.
    pub(crate) asyncs: Arc<AsyncEvents>,
    /// When acknowledgements leave.
    pub(crate) acks: AckPolicy,
    /// Whether the driver may have a real-time priority.
    pub(crate) realtime: bool,
    /// The source of time and randomness.
    pub(crate) environment: Environment,
}

/// A completion queue that is told when a shard fails.
pub(crate) trait WakeAll: std::fmt::Debug + Send + Sync {
    /// Wakes every thread that sleeps on the queue.
    fn wake_all(&self);
}

impl Shard {
    pub(crate) fn new(parts: ShardParts) -> Result<Self> {
        let ShardParts { device, engine, backend, events, asyncs, acks, realtime, environment } =
            parts;
        let unsent = UnsentRecord::take();
        let wakeups = Wakeups::new(&*backend, &environment)?;
        let doorbells = Arc::clone(engine.doorbells());
        let observers = events.observers();
        let mut core = Core::new(engine, backend, events, acks, *unsent, environment.clone());
        core.set_interest(&wakeups, Interest::Receive);
        Ok(Self {
            device,
            core: Mutex::new(core),
            doorbells,
            wakeups,
            stop: AtomicBool::new(false),
            left_to_holder: AtomicBool::new(false),
            asyncs,
            prompt: acks == AckPolicy::Prompt,
            unsent,
            single_cpu: thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1),
            realtime,
            environment,
            observers,
            failed: OnceLock::new(),
            generation: fork_generation(),
            queues: Mutex::default(),
        })
    }

    /// Returns the source of the shard's time and randomness.
    #[inline]
    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Takes the lock, after waiting for it.
    fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.core.lock())
    }

    /// Takes the lock, if it is free.
    fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked::new(self, self.core.try_lock()?))
    }

    /// Calls `f`, sends, and serves the doorbells that were rung meanwhile.
    ///
    /// # Errors
    /// The device has failed, before or during the call.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> Result<R> {
        let prepare = |core: &mut Core| {
            if core.backlog == Backlog::CutShort {
                // The driver continues the long transfer; this caller takes one step only.
                core.limit = TurnLimit::one_step();
            }
        };
        self.turn_after(prepare, f)
    }

    /// Like [`Shard::with`], but takes a whole turn. `prepare` runs before waiting requests leave.
    pub(super) fn turn_after<R>(
        &self,
        prepare: impl FnOnce(&mut Core),
        f: impl FnOnce(&mut Core) -> R,
    ) -> Result<R> {
        self.check_own()?;
        let mut core = self.lock();
        let result = self.turn_locked(&mut core, prepare, f);
        drop(core);
        // A thread that posted after this turn had taken the doorbells found the lock taken.
        self.answer_doorbells();
        result
    }

    fn turn_locked<R>(
        &self,
        core: &mut Core,
        prepare: impl FnOnce(&mut Core),
        f: impl FnOnce(&mut Core) -> R,
    ) -> Result<R> {
        // The shard may have failed while this thread waited for the lock.
        self.check()?;
        prepare(core);
        if core.backlog == Backlog::Acks || self.unsent.waiting_posts.any() {
            // `f` may destroy the queue pair whose acknowledgements or posts wait.
            self.end_turn(core, false)?;
        }
        let result = f(core);
        self.end_turn(core, false).map(|()| result)
    }

    /// Receives, runs timers and sends, if the lock is free; then calls `look`. Returns `None` if another
    /// thread has the lock.
    ///
    /// In a ping-pong, acknowledgements wait for the caller's next post or the next such turn. If
    /// neither comes, the driver sends them ([`super::policy::PingPong`]).
    pub(crate) fn turn_if_free<R>(&self, look: impl FnOnce(&mut Core) -> R) -> Result<Option<R>> {
        self.check_own()?;
        let Some(mut core) = self.try_lock() else { return Ok(None) };
        if let Err(failed) = self.check() {
            drop(core);
            self.answer_doorbells();
            return Err(failed);
        }
        core.watchers.turned_inline();
        core.batching.polled();
        let received = core.receive(RX_BUDGET, &self.wakeups);
        let later = self.may_defer_acks(&mut core, &received);
        let ended = self.end_turn(&mut core, later);
        let congested = core.backlog == Backlog::Congested;
        let seen = look(&mut core);
        drop(core);
        self.answer_doorbells();
        ended?;
        if congested {
            // The process that must make room may need this CPU.
            thread::yield_now();
        }
        self.fail_on(received)?;
        Ok(Some(seen))
    }

    /// Returns whether acknowledgements of received packets wait for the next post. Those of packets
    /// with an address of this host never wait: with shared memory, writing them into a ring costs no
    /// system call. In a simulation none wait.
    fn may_defer_acks(&self, core: &mut Core, received: &Result<usize, NetError>) -> bool {
        if self.environment.runs_to_completion() {
            return false;
        }
        match received {
            Ok(0) => core.ping_pong.polled_in_vain() && core.backlog == Backlog::Acks,
            Ok(1..=MAX_WAITING_ACKS) => {
                core.backlog == Backlog::Nothing
                    && !self.unsent.owed.any_local()
                    && core.engine.can_wait()
                    && core.engine.has_transmit_work()
                    && core.ping_pong.defers_acks(self.environment.now())
            }
            _ => false,
        }
    }

    /// Sends the acknowledgements of polled messages, if they must not wait. That is so if the last
    /// packet came from an address of this host (with shared memory, writing them into a ring costs
    /// no system call), or if the device was opened with [`AckPolicy::Prompt`].
    #[inline]
    pub(crate) fn send_owed_acks(&self) {
        let owed = &self.unsent.owed;
        if owed.any_local() || self.prompt && owed.any() {
            self.drain_owed_acks();
        }
    }

    #[cold]
    fn drain_owed_acks(&self) {
        // One call may not do: another thread may be in the middle of a turn, or a turn was cut
        // short.
        for _ in 0..TURNS_FOR_OTHERS {
            if !self.unsent.owed.any() || self.with(|_| ()).is_err() {
                return;
            }
        }
    }

    /// Takes the lock, receives about `budget` packets, runs timers and sends. Returns how many
    /// packets arrived.
    pub(super) fn turn(&self, budget: usize) -> Result<usize> {
        let receive = |core: &mut Core| {
            core.watchers.turned_inline();
            core.receive(budget, &self.wakeups)
        };
        let received = self.turn_after(|_| (), receive)?;
        self.fail_on(received)
    }

    /// Ensures that this thread or the lock's holder sends everything posted so far.
    ///
    /// Every thread that posts calls this after it has rung the doorbell, and every thread that
    /// held the lock calls this after it has unlocked. [`Doorbells::drain`] explains why then no
    /// request is stranded. A thread that has served others for [`TURNS_FOR_OTHERS`] turns wakes
    /// the driver to continue.
    pub(crate) fn answer_doorbells(&self) {
        self.answer_doorbells_by(|| self.try_lock());
    }

    /// Like [`Shard::answer_doorbells`], for a request that must leave immediately. If another
    /// thread has the lock, that thread sends it, even if its own requests wait.
    fn send_now(&self) {
        self.answer_doorbells_by(|| {
            self.try_lock().or_else(|| {
                // As with the doorbells: either the holder sees this flag after it has unlocked
                // (`Shard::was_left_a_request`), or this thread finds the lock free, or taken by a
                // later holder, which sends.
                self.left_to_holder.store(true, Ordering::Release);
                fence(Ordering::SeqCst);
                self.try_lock()
            })
        });
    }

    /// Returns whether another thread has left a request that must leave immediately to this thread.
    /// Called after this thread has released the lock.
    fn was_left_a_request(&self) -> bool {
        fence(Ordering::SeqCst);
        self.left_to_holder.load(Ordering::Acquire)
    }

    fn answer_doorbells_by<'a>(&'a self, lock: impl Fn() -> Option<Locked<'a>>) {
        let mut turns = 0;
        self.doorbells.drain(|| {
            if turns == TURNS_FOR_OTHERS {
                self.wakeups.wake();
                return false;
            }
            turns += 1;
            let Some(mut core) = lock() else { return false };
            if self.failed.get().is_some() {
                // These requests were posted while the shard failed.
                core.flush();
                return core.intact;
            }
            core.watchers.posted();
            // Every later call reports an error that occurs here.
            let _ = self.end_turn(&mut core, false);
            true
        });
    }

    /// Sends a post whose doorbell is rung, or lets it wait for the next one. Returns `false` if the
    /// post waits for the next one; with `true`, this thread has sent it or the lock's holder will.
    ///
    /// A post that waits ([`super::policy::DoorbellBatching`]) leaves with the next post, with the
    /// next turn of any thread, or with a turn of the driver.
    #[inline]
    pub(crate) fn posted(&self, post: &Post) -> bool {
        let may_wait = !post.leaves_immediately() && !self.environment.runs_to_completion();
        if may_wait && self.unsent.waiting_posts.join(post.packets) {
            return false;
        }
        if may_wait
            && let Some(mut core) = self.try_lock()
            && self.failed.get().is_none()
        {
            if core.try_defer_post(post, &self.wakeups) {
                drop(core);
                if self.was_left_a_request() {
                    self.answer_doorbells();
                }
                return false;
            }
            core.watchers.posted();
            let _ = self.end_turn(&mut core, false);
        }
        // Even if this thread has just sent: others may have posted before it released the lock.
        if may_wait {
            self.answer_doorbells();
        } else {
            self.send_now();
        }
        true
    }

    /// Ends a turn: sends, unless acknowledgements wait (`later`), and sets the driver's timer.
    fn end_turn(&self, core: &mut Core, later: bool) -> Result<()> {
        let mut sent = Ok(());
        if later {
            core.backlog = Backlog::Acks;
            core.events.take_all(&mut core.engine);
            core.wakeup_state.set_timer(&self.wakeups, self.environment.now() + TICK);
        } else {
            // Cleared before the doorbells are taken, so that the request that was left is among
            // them: the swap acquires what its poster released. The load keeps turns without such a
            // request from writing to a cache line that other threads read.
            if self.left_to_holder.load(Ordering::Relaxed) {
                self.left_to_holder.swap(false, Ordering::AcqRel);
            }
            sent = core.transmit();
        }
        if core.backlog == Backlog::Blocked {
            core.set_interest(&self.wakeups, Interest::ReceiveAndSend);
        }
        if core.backlog == Backlog::CutShort {
            // The driver continues immediately, unless another thread does.
            core.wakeup_state.set_timer(&self.wakeups, self.environment.now());
        } else if let Some(deadline) = core.poll_timeout() {
            core.wakeup_state.set_timer(&self.wakeups, deadline);
        }
        sent.or_else(|e| self.failed_by(core, e))
    }

    /// Applies a decision of [`super::policy`]. Does nothing in a simulation, where no thread
    /// sleeps on sockets.
    pub(super) fn apply(&self, core: &mut Core, plan: Plan) {
        if self.environment.runs_to_completion() {
            return;
        }
        core.set_interest(&self.wakeups, plan.interest);
        if let Some(tick) = plan.tick {
            core.wakeup_state.set_timer(&self.wakeups, tick);
        }
    }

    /// Prepares for a program that will sleep where this crate does not see it: the driver takes
    /// the sockets.
    pub(crate) fn serve_sleeper(&self) -> Result<()> {
        self.with(|core| {
            if let Some(plan) = core.watchers.about_to_sleep() {
                self.apply(core, plan);
            }
        })
    }

    /// Takes the lock and calls `f` without a turn. Works after a failure too, for cleaning up.
    pub(super) fn with_lock<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let value = f(&mut self.lock());
        self.answer_doorbells();
        value
    }

    /// Like [`Shard::with_lock`], if the lock becomes free within `timeout`; otherwise returns `None`.
    /// The lock never becomes free in a signal handler that interrupts its holder. Returns `None`
    /// in a forked child too.
    pub(crate) fn with_lock_within<R>(
        &self,
        timeout: Duration,
        f: impl FnOnce(&mut Core) -> R,
    ) -> Option<R> {
        if !self.is_own() {
            return None;
        }
        // With a timeout of zero, a thread that finds the lock taken must not spin.
        let core =
            if timeout.is_zero() { self.core.try_lock() } else { self.core.try_lock_for(timeout) };
        let value = f(&mut Locked::new(self, core?));
        self.answer_doorbells();
        Some(value)
    }

    /// Waits until observers have been told of all events so far, for one second at most.
    ///
    /// For a program that is about to learn of a failed request: the explanation must come first.
    /// The caller must not hold a shard's lock.
    #[cold]
    pub(crate) fn tell_observers(&self) {
        /// Limited, because an observer may write to a terminal that is stopped.
        const TIMEOUT: Duration = Duration::from_millis(500);
        if let Some(observers) = &self.observers {
            // The turn in which the request failed may not have ended yet.
            self.with_lock_within(TIMEOUT, |_| ());
            observers.wait(TIMEOUT);
        }
    }

    /// Returns a handle that wakes the driver, which then checks the interface too.
    pub(crate) fn wakeup(&self) -> Arc<Wakeup> {
        self.wakeups.wakeup()
    }

    /// Makes the driver turn the engine soon. Takes no lock.
    pub(crate) fn wake_driver(&self) {
        self.wakeups.wake();
    }

    /// Returns the counters of the engine and of the backend; zeros in a forked child.
    pub(crate) fn counters(&self) -> (Counters, rxe_net::Counters) {
        if !self.is_own() {
            return Default::default();
        }
        self.with_lock(|core| (core.engine.counters().clone(), core.backend.counters()))
    }

    /// Takes the log of events for a person; empty in a forked child.
    pub(crate) fn take_log(&self) -> Log {
        if !self.is_own() {
            return Log::default();
        }
        self.with_lock(|core| core.events.take_log())
    }

    /// Destroys a queue pair, even after a failure. Not for a forked child. Returns memberships of
    /// groups that no queue pair needs any more, which the caller drops without the lock.
    pub(crate) fn destroy_qp(&self, qpn: Qpn) -> Vec<Membership> {
        let destroyed = self.with(|core| {
            core.destroy_qp(qpn);
            core.leave_groups()
        });
        destroyed.unwrap_or_else(|_| {
            self.with_lock(|core| core.destroy_qp(qpn));
            Vec::new()
        })
    }

    /// Registers a completion queue to wake when the shard fails, until [`Shard::forget`].
    pub(crate) fn enroll(&self, cq: u64, queue: &Arc<dyn WakeAll>) {
        self.queues.lock().insert(cq, Arc::downgrade(queue));
    }

    /// Removes the completion queue with this number.
    pub(crate) fn forget(&self, cq: u64) {
        if self.is_own() {
            self.queues.lock().remove(&cq);
        }
    }

    /// Returns how many completion queues are registered.
    #[cfg(test)]
    pub(crate) fn enrolled(&self) -> usize {
        self.queues.lock().len()
    }

    /// Returns whether the shard belongs to this process, and not to its parent. In a forked child
    /// no lock of the shard may be taken: it may have been held at the moment of the fork.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }

    /// Fails with [`Error::Forked`] if the shard belongs to a parent process.
    #[inline]
    pub(crate) fn check_own(&self) -> Result<()> {
        if self.is_own() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::Forked { device: self.device.clone() }
    }

    /// Fails if the shard has failed, or belongs to a parent process.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_own()?;
        match self.failed.get() {
            None => Ok(()),
            Some(why) => Err(Error::DeviceFailed { device: self.device.clone(), why: why.clone() }),
        }
    }

    pub(super) fn fail_on<T>(&self, result: Result<T, NetError>) -> Result<T> {
        result.or_else(|e| {
            let failed = self.failed_by(&mut self.lock(), e);
            self.answer_doorbells();
            failed
        })
    }

    fn failed_by<T>(&self, core: &mut Core, error: NetError) -> Result<T> {
        self.fail_with(core, error.to_string());
        self.check()?;
        Err(error.into())
    }

    /// Like [`Shard::fail_with`], for a thread without the lock.
    pub(super) fn fail(&self, why: String) {
        self.fail_with(&mut self.lock(), why);
        self.answer_doorbells();
    }

    /// Completes the requests that threads posted while the shard failed. Does nothing if it has
    /// not failed.
    #[cold]
    pub(crate) fn end_failure(&self) {
        if self.is_own() && self.failed.get().is_some() {
            // Even if no doorbell waits: the thread that took it may not have had the lock before
            // this one.
            self.lock().flush();
            self.answer_doorbells();
        }
    }

    /// Marks the shard as failed: posted requests complete as flushed, then waiting threads are
    /// woken. A thread that learns of the failure finds these completions in its queues.
    fn fail_with(&self, core: &mut Core, why: String) {
        if self.failed.get().is_none() {
            core.flush();
            self.tell_failure(why);
        }
    }

    /// Like [`Shard::fail`], if all shards of the device fail. The caller reports one event for
    /// all. Returns whether the shard had worked until now.
    pub(crate) fn fail_with_device(&self, why: String) -> bool {
        let mut core = self.lock();
        let worked = self.failed.get().is_none();
        if worked {
            core.flush();
            self.mark_failed(why);
        }
        drop(core);
        self.answer_doorbells();
        worked
    }

    /// Marks the shard as failed and reports a device-fatal event. Takes no lock that a turn holds.
    fn tell_failure(&self, why: String) {
        if self.failed.get().is_none() {
            self.mark_failed(why.clone());
            self.asyncs.of_device(AsyncKind::DeviceFatal, why);
        }
    }

    /// Records why the shard has failed, and wakes all waiting threads.
    fn mark_failed(&self, why: String) {
        if self.failed.set(why).is_err() {
            return;
        }
        let queues: Vec<_> = self.queues.lock().values().filter_map(Weak::upgrade).collect();
        for queue in queues {
            queue.wake_all();
        }
        self.wakeups.wake();
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("device", &self.device).finish_non_exhaustive()
    }
}
