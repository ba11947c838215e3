//! One engine and its backend behind one lock: who gets the lock, what belongs to the end of a turn,
//! and the rule by which no posted request is stranded.
//!
//! The ways in:
//!
//! | entry | takes the lock | waits for it | turns the engine | serves others' doorbells |
//! | --- | --- | --- | --- | --- |
//! | [`Shard::with`] | yes | yes | sends; one step, if the turn before was cut short | yes |
//! | [`Shard::turn`], [`Shard::turn_after`] | yes | yes | receives, runs timers, sends | yes |
//! | [`Shard::turn_if_free`] | if it is free | no | receives, runs timers, sends; a few acknowledgements may wait | yes |
//! | [`Shard::posted`] | if it is free | no | sends; small posts may wait | yes, unless its post waits |
//! | [`Shard::answer_doorbells`] | if a doorbell was rung, and it is free | no | sends | yes |
//! | [`Shard::bare`] | yes | yes | no | yes |
//! | [`Shard::bare_within`] | yes | for a given time | no | yes |
//!
//! [`Shard::acknowledge`] and [`Shard::serve_sleeper`] call [`Shard::with`]. To serve others' doorbells is to
//! send what other threads have posted while this thread had the lock. After a post that waits, those wait too,
//! as long as [`DoorbellBatching`](super::policy::DoorbellBatching) says: then the driver turns the engine.

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

/// Packets that are received before what follows from them is sent. Few enough for a caller to look at its
/// completions soon, and for a peer to learn of its first packets before its window is used up.
pub(super) const BUDGET: usize = 64;

/// Packets whose acknowledgements may wait: more than these, and the peer may need them to go on.
const MAX_WAITING_ACKS: usize = 2;

/// Turns that a poster takes for others who post meanwhile, before it leaves them to the driver.
const TURNS_FOR_OTHERS: u32 = 16;

/// See the module's opening.
pub(crate) struct Shard {
    device: String,
    core: Mutex<Core>,
    doorbells: Arc<Doorbells>,
    pub(super) wakeups: Wakeups,
    pub(super) stop: AtomicBool,
    /// A request that must leave at once was left to the thread that had the lock.
    urgent: AtomicBool,
    asyncs: Arc<AsyncEvents>,
    /// A message is acknowledged before the program sees its completion.
    prompt: bool,
    unsent: UnsentRecord,
    /// All threads of this process share a CPU.
    pub(super) single_cpu: bool,
    environment: Environment,
    /// Told of events after the lock is released.
    observers: Option<Arc<Observers>>,
    /// Why nothing works any more.
    failed: OnceLock<String>,
    /// The process that owns the shard.
    generation: u64,
    /// Who must be told of a failure, by the number of the completion queue.
    queues: Mutex<HashMap<u64, Weak<dyn WakeAll>>>,
}

/// What a shard is made of.
pub(crate) struct ShardParts {
    /// The device's name.
    pub(crate) device: String,
    /// Without queue pairs.
    pub(crate) engine: Engine,
    /// Open.
    pub(crate) backend: Box<dyn Backend>,
    /// Where events go.
    pub(crate) events: Events,
    /// The queue from which programs take asynchronous events.
    pub(crate) asyncs: Arc<AsyncEvents>,
    /// When acknowledgements leave.
    pub(crate) acks: AckPolicy,
    /// Where its time comes from.
    pub(crate) environment: Environment,
}

/// Who is told when a shard fails.
pub(crate) trait WakeAll: std::fmt::Debug + Send + Sync {
    /// Every thread that sleeps must look.
    fn wake_all(&self);
}

impl Shard {
    pub(crate) fn new(parts: ShardParts) -> Result<Self> {
        let ShardParts { device, engine, backend, events, asyncs, acks, environment } = parts;
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
            urgent: AtomicBool::new(false),
            asyncs,
            prompt: acks == AckPolicy::Prompt,
            unsent,
            single_cpu: thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1),
            environment,
            observers,
            failed: OnceLock::new(),
            generation: fork_generation(),
            queues: Mutex::default(),
        })
    }

    /// Where its time and randomness come from.
    #[inline]
    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Waits for the lock.
    fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.core.lock())
    }

    /// The lock, if it is free.
    fn try_lock(&self) -> Option<Locked<'_>> {
        Some(Locked::new(self, self.core.try_lock()?))
    }

    /// Does `f` with the engine, sends what comes of it, and takes the doorbells that were rung
    /// meanwhile.
    ///
    /// # Errors
    /// The device has failed, before or in this.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> Result<R> {
        let prepare = |core: &mut Core| {
            if core.backlog == Backlog::CutShort {
                // The driver goes on with the long transfer; this caller need not.
                core.limit = TurnLimit::one_step();
            }
        };
        self.turn_after(prepare, f)
    }

    /// Like [`Shard::with`], but the turn is a whole one, and `prepare` runs before requests leave that wait.
    pub(super) fn turn_after<R>(
        &self,
        prepare: impl FnOnce(&mut Core),
        f: impl FnOnce(&mut Core) -> R,
    ) -> Result<R> {
        self.check_own()?;
        let mut core = self.lock();
        let result = self.turn_locked(&mut core, prepare, f);
        drop(core);
        self.answer_doorbells();
        result
    }

    fn turn_locked<R>(
        &self,
        core: &mut Core,
        prepare: impl FnOnce(&mut Core),
        f: impl FnOnce(&mut Core) -> R,
    ) -> Result<R> {
        // It may have failed while this thread waited for the lock.
        self.check()?;
        prepare(core);
        if core.backlog == Backlog::Acks || self.unsent.doorbells.any() {
            // `f` may end the queue pair that they belong to.
            self.end_turn(core, false)?;
        }
        let result = f(core);
        self.end_turn(core, false).map(|()| result)
    }

    /// Receives, runs timers and sends, if the lock is free; then calls `look`. Returns `None` if another
    /// thread has the lock.
    ///
    /// In a ping-pong, acknowledgements wait for what the caller now posts, for the next such turn, or,
    /// if neither comes, for the driver ([`super::policy::Acks`]).
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
        let received = core.receive(BUDGET, &self.wakeups);
        let later = self.acks_wait(&mut core, &received);
        let ended = self.end_turn(&mut core, later);
        let congested = core.backlog == Backlog::Congested;
        let seen = look(&mut core);
        drop(core);
        self.answer_doorbells();
        ended?;
        if congested {
            // The process that is to make room may need this CPU.
            thread::yield_now();
        }
        self.fail_on(received)?;
        Ok(Some(seen))
    }

    /// Whether the acknowledgements of what this poll has received wait for company. On one host they
    /// never do: putting them into a ring costs no call. Nor do they in a simulation.
    fn acks_wait(&self, core: &mut Core, received: &Result<usize, NetError>) -> bool {
        if self.environment.is_turn_based() {
            return false;
        }
        match received {
            Ok(0) => core.acks.polled_in_vain() && core.backlog == Backlog::Acks,
            Ok(1..=MAX_WAITING_ACKS) => {
                core.backlog == Backlog::Nothing
                    && !self.unsent.acks.any_local()
                    && core.engine.can_wait()
                    && core.engine.has_transmit_work()
                    && core.acks.wait(self.environment.now())
            }
            _ => false,
        }
    }

    /// Sends the acknowledgements of polled messages before it returns, if the peer is on this host (which
    /// costs no system call) or the device was opened with [`AckPolicy::Prompt`].
    #[inline]
    pub(crate) fn acknowledge(&self) {
        let acks = &self.unsent.acks;
        if acks.any_local() || self.prompt && acks.any() {
            self.send_acks();
        }
    }

    #[cold]
    fn send_acks(&self) {
        // Another thread is in the middle of a turn, or a turn was cut short.
        for _ in 0..TURNS_FOR_OTHERS {
            if !self.unsent.acks.any() || self.with(|_| ()).is_err() {
                return;
            }
        }
    }

    /// Receives about `budget` packets, runs timers and sends, after waiting for the lock. Returns how many
    /// packets came.
    pub(super) fn turn(&self, budget: usize) -> Result<usize> {
        let receive = |core: &mut Core| {
            core.watchers.turned_inline();
            core.receive(budget, &self.wakeups)
        };
        let received = self.turn_after(|_| (), receive)?;
        self.fail_on(received)
    }

    /// Ensures that everything posted until now is begun: by this thread, or by the one that holds the
    /// lock.
    ///
    /// Every thread that posts calls this after it has rung, and every thread that held the lock
    /// calls this after it has unlocked: [`Doorbells::drain`] says why nothing is stranded then. A
    /// thread that has served others for long enough wakes the driver to go on.
    pub(crate) fn answer_doorbells(&self) {
        self.answer_doorbells_by(|| self.try_lock());
    }

    /// As [`Shard::answer_doorbells`], of a thread whose request must leave at once: if another thread has
    /// the lock, that one sends it, also if its own requests wait from now on.
    fn send_now(&self) {
        self.answer_doorbells_by(|| {
            self.try_lock().or_else(|| {
                // As with the doorbells: either the holder sees this after it has unlocked
                // (`Shard::was_urged`), or this thread finds the lock free, or taken by a later holder.
                self.urgent.store(true, Ordering::Release);
                fence(Ordering::SeqCst);
                self.try_lock()
            })
        });
    }

    /// Whether another thread has left a request that must leave at once to this one, which had the lock
    /// and has released it.
    fn was_urged(&self) -> bool {
        fence(Ordering::SeqCst);
        self.urgent.load(Ordering::Acquire)
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
                // Posted while it failed.
                core.flush();
                return core.intact;
            }
            // What fails here every later call reports.
            let _ = self.end_turn(&mut core, false);
            true
        });
    }

    /// A thread has posted, and rung the doorbell. The post leaves at once, or waits for the next one
    /// ([`super::policy::DoorbellBatching`]): then it leaves with that, with the next turn of any thread, or with one
    /// of the driver's. Returns whether it leaves at once.
    #[inline]
    pub(crate) fn posted(&self, post: &Post) -> bool {
        let may_wait = !post.goes_at_once() && !self.environment.is_turn_based();
        if may_wait && self.unsent.doorbells.join(post.packets) {
            return false;
        }
        if may_wait
            && let Some(mut core) = self.try_lock()
            && self.failed.get().is_none()
        {
            if core.posts_wait(post, &self.wakeups) {
                drop(core);
                if self.was_urged() {
                    self.answer_doorbells();
                }
                return false;
            }
            let _ = self.end_turn(&mut core, false);
        }
        if may_wait {
            self.answer_doorbells();
        } else {
            self.send_now();
        }
        true
    }

    /// Sends what there is, or leaves that for later, and sets the timer that wakes the driver.
    fn end_turn(&self, core: &mut Core, later: bool) -> Result<()> {
        let mut sent = Ok(());
        if later {
            core.backlog = Backlog::Acks;
            core.events.take_all(&mut core.engine);
            core.wakeup_state.set_timer(&self.wakeups, self.environment.now() + TICK);
        } else {
            // Before the doorbells are taken, so that the urgent request is among them.
            if self.urgent.load(Ordering::Relaxed) {
                self.urgent.swap(false, Ordering::AcqRel);
            }
            sent = core.transmit();
        }
        if core.backlog == Backlog::Blocked {
            core.set_interest(&self.wakeups, Interest::ReceiveAndSend);
        }
        if core.backlog == Backlog::CutShort {
            // The driver goes on immediately, if nobody else does.
            core.wakeup_state.set_timer(&self.wakeups, self.environment.now());
        } else if let Some(deadline) = core.poll_timeout() {
            core.wakeup_state.set_timer(&self.wakeups, deadline);
        }
        sent.or_else(|e| self.failed_by(core, e))
    }

    /// Carries out what [`super::policy`] decided. In a simulation nobody sleeps on sockets.
    pub(super) fn apply(&self, core: &mut Core, plan: Plan) {
        if self.environment.is_turn_based() {
            return;
        }
        core.set_interest(&self.wakeups, plan.interest);
        if let Some(tick) = plan.tick {
            core.wakeup_state.set_timer(&self.wakeups, tick);
        }
    }

    /// A program will sleep where this crate does not see it.
    pub(crate) fn serve_sleeper(&self) -> Result<()> {
        self.with(|core| {
            if let Some(plan) = core.watchers.about_to_sleep() {
                self.apply(core, plan);
            }
        })
    }

    /// Takes the lock and calls `f`, also after a failure, for what must be put in order nevertheless.
    pub(super) fn bare<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let value = f(&mut self.lock());
        self.answer_doorbells();
        value
    }

    /// Like [`Shard::bare`], if the lock becomes free within `timeout`. It does not in a signal handler that
    /// interrupts a holder of the lock. Returns `None` also in a forked child.
    pub(crate) fn bare_within<R>(
        &self,
        timeout: Duration,
        f: impl FnOnce(&mut Core) -> R,
    ) -> Option<R> {
        if !self.is_own() {
            return None;
        }
        // Without a timeout, a thread that finds the lock taken must not spin.
        let core =
            if timeout.is_zero() { self.core.try_lock() } else { self.core.try_lock_for(timeout) };
        let value = f(&mut Locked::new(self, core?));
        self.answer_doorbells();
        Some(value)
    }

    /// Returns when observers have been told of what has happened until now, or have not for long. For a
    /// program that is about to learn of a failed request: what explains it is to come first. Not for a thread
    /// that has a shard's lock.
    #[cold]
    pub(crate) fn tell_observers(&self) {
        /// An observer may write to a terminal that is stopped.
        const TIMEOUT: Duration = Duration::from_millis(500);
        if let Some(observers) = &self.observers {
            // The turn in which it failed may not be over yet.
            self.bare_within(TIMEOUT, |_| ());
            observers.wait(TIMEOUT);
        }
    }

    /// Wakes the driver, which then looks also after the interface.
    pub(crate) fn wakeup(&self) -> Arc<Wakeup> {
        self.wakeups.wakeup()
    }

    /// Has the driver turn the engine soon. Takes no lock.
    pub(crate) fn wake_driver(&self) {
        self.wakeups.wake();
    }

    /// What has been counted, by the engine and by the backend; nothing in a forked child.
    pub(crate) fn counters(&self) -> (Counters, rxe_net::Counters) {
        if !self.is_own() {
            return Default::default();
        }
        self.bare(|core| (core.engine.counters().clone(), core.backend.counters()))
    }

    /// What has happened, for a person; nothing in a forked child.
    pub(crate) fn take_log(&self) -> Log {
        if !self.is_own() {
            return Log::default();
        }
        self.bare(|core| core.events.take_log())
    }

    /// Destroys a queue pair, also after a failure. Not for a forked child. Returns what is to be dropped
    /// now, without the lock: memberships of groups that nobody needs any more.
    pub(crate) fn destroy_qp(&self, qpn: Qpn) -> Vec<Membership> {
        let destroyed = self.with(|core| {
            core.destroy_qp(qpn);
            core.leave_groups()
        });
        destroyed.unwrap_or_else(|_| {
            self.bare(|core| core.destroy_qp(qpn));
            Vec::new()
        })
    }

    /// The completion queue of this number is told when the shard fails, until [`Shard::forget`].
    pub(crate) fn enroll(&self, cq: u64, queue: &Arc<dyn WakeAll>) {
        self.queues.lock().insert(cq, Arc::downgrade(queue));
    }

    /// Removes the completion queue with this number.
    pub(crate) fn forget(&self, cq: u64) {
        if self.is_own() {
            self.queues.lock().remove(&cq);
        }
    }

    /// How many completion queues are told when the shard fails.
    #[cfg(test)]
    pub(crate) fn enrolled(&self) -> usize {
        self.queues.lock().len()
    }

    /// Whether it is this process's, and not that of a parent. Without that no lock of it may be taken: it
    /// may have been held in the moment of the fork.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.generation == fork_generation()
    }

    /// Fails with [`Error::Forked`] if it is a parent's.
    #[inline]
    pub(crate) fn check_own(&self) -> Result<()> {
        if self.is_own() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::Forked { device: self.device.clone() }
    }

    /// Whether it still works.
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

    /// As [`Shard::fail_with`], for a thread without the lock.
    pub(super) fn fail(&self, why: String) {
        self.fail_with(&mut self.lock(), why);
        self.answer_doorbells();
    }

    /// If it has failed, completes what other threads' posts have left to the thread under which it failed.
    #[cold]
    pub(crate) fn end_failure(&self) {
        if self.is_own() && self.failed.get().is_some() {
            // Not only if a doorbell waits: who has taken it may not have had the lock before this.
            self.lock().flush();
            self.answer_doorbells();
        }
    }

    /// Nothing works any more: what was posted completes as flushed, and everybody who waits is told. A
    /// thread that learns of the failure finds these completions in their queues.
    fn fail_with(&self, core: &mut Core, why: String) {
        if self.failed.get().is_none() {
            core.flush();
            self.tell_failure(why);
        }
    }

    /// Like [`Shard::fail`], for a failure of all shards of the device: the caller gives one event for all.
    /// Returns whether the shard had worked until now.
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

    /// Tells everybody who waits why nothing works any more. Takes no lock that a turn holds.
    fn tell_failure(&self, why: String) {
        if self.failed.get().is_none() {
            self.mark_failed(why.clone());
            self.asyncs.of_device(AsyncKind::DeviceFatal, why);
        }
    }

    /// Says why nothing works any more, and wakes everybody who waits.
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
