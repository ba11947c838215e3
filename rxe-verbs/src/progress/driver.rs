//! The thread that turns a shard when no other thread does.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::Shard;
use super::policy::AdaptivePolling;
use super::shard::RX_BUDGET;
use super::turn::{Backlog, Core};
use super::wakeup::WokenBy;
use crate::error::{Error, Result};
use crate::os::now;

/// Watches a device's port, on the driver's thread.
pub(crate) trait Monitor: Send {
    /// Returns a descriptor that is readable when there may be work. [`Monitor::update`] is also
    /// called whenever the driver is woken ([`Shard::wakeup`]).
    fn fd(&self) -> BorrowedFd<'_>;

    /// Checks whether the port has changed, and applies the change to the device.
    ///
    /// # Errors
    /// The device has failed, or the kernel cannot be asked any more.
    fn update(&mut self, shard: &Shard) -> Result<()>;
}

/// The running driver thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    shard: Arc<Shard>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// Starts the driver. `port_monitor` is called when the interface may have changed.
    pub(crate) fn start(shard: Arc<Shard>, port_monitor: Option<Box<dyn Monitor>>) -> Result<Self> {
        if let Some(port_monitor) = &port_monitor {
            shard.wakeups.add_interface(port_monitor.fd())?;
        }
        let theirs = Arc::clone(&shard);
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| run(&theirs, port_monitor)));
            if !theirs.stop.load(Ordering::Acquire) {
                theirs.fail(match ended {
                    Ok(Err(e)) => e.to_string(),
                    _ => "its driver thread panicked: please report this as a bug".into(),
                });
            }
        };
        let thread = rxe_sys::spawn_and_await("rxe-driver", run)
            .map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { shard, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.shard.is_own() {
            // A forked child has no driver thread, and nothing else that could be ended.
            std::mem::forget((thread, Arc::clone(&self.shard)));
            return;
        }
        self.shard.stop.store(true, Ordering::Release);
        self.shard.wakeups.wake();
        // If the program has closed the wakeup descriptor, the thread sleeps for some more seconds,
        // so it is not joined. It keeps the shard, so the descriptors that it sleeps on stay open.
        if self.shard.wakeups.can_wake() {
            rxe_sys::may_block("ending a thread");
            // `catch_unwind` has caught its panics.
            let _ = thread.join();
        }
    }
}

fn run(shard: &Shard, mut port_monitor: Option<Box<dyn Monitor>>) -> Result<()> {
    let mut polling = AdaptivePolling::new();
    // A policy that the program has chosen for its threads is kept.
    let mut realtime = shard.realtime && rxe_sys::is_ordinary();
    let mut woken = WokenBy::default();
    let mut alone = false;
    let mut turns = 0u32;
    while !shard.stop.load(Ordering::Acquire) {
        if woken.interface
            && let Some(port_monitor) = &mut port_monitor
        {
            port_monitor.update(shard)?;
        }
        turns = turns.wrapping_add(1);
        // A driver that polls must sleep now and then: only a sleep notices changes of the
        // interface.
        let may_poll = !turns.is_multiple_of(1024);
        let polls = turn(shard, woken.timer, |core, packets, watches| {
            let now = now();
            alone = core.watchers.driver_is_alone(now);
            polling.may_continue(packets, watches, now) && may_poll
        })?;
        woken = WokenBy::default();
        if !polls {
            woken = sleep(shard, alone, &mut realtime)?;
            polling.slept();
        } else if shard.single_cpu {
            let before = now();
            thread::yield_now();
            polling.yielded(now().since(before));
        }
    }
    Ok(())
}

/// Sleeps, at a real-time priority if no other thread calls this library (`alone`), if `realtime`,
/// and if the process may have one. The thread then gets a CPU as soon as it is woken.
///
/// It takes no turn at that priority, because the queues of the engine make a thread wait for one that
/// it has preempted ([`rxe_core::queue::Doorbells`]), and because programs' callbacks run in a turn.
/// A program that posts waits for the reply itself ([`Shard::await_reply`]): it must not be preempted
/// in between by the driver that its request wakes at the peer.
fn sleep(shard: &Shard, alone: bool, realtime: &mut bool) -> Result<WokenBy> {
    let raised = alone && *realtime;
    if raised {
        *realtime = rxe_sys::set_realtime().is_ok();
    }
    let woken = shard.wakeups.sleep();
    if raised && *realtime {
        *realtime = rxe_sys::set_ordinary().is_ok();
    }
    woken
}

impl Shard {
    /// Takes the driver's turn, for a simulation, which drives its shards itself. `timer`: the time
    /// for which [`crate::os::Simulation::wake_at`] was called has come.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn drive(&self, timer: bool) -> Result<()> {
        turn(self, timer, |_, _, _| false).map(drop)
    }
}

/// Receives and sends until nothing is left or the turn is long enough. Calls `polls` with the core,
/// the number of packets received and whether the driver watches the sockets. Returns what `polls`
/// returned: whether the driver polls again immediately, without a sleep.
pub(super) fn turn(
    shard: &Shard,
    timer: bool,
    polls: impl FnOnce(&Core, usize, bool) -> bool,
) -> Result<bool> {
    let gone = |core: &mut Core| {
        if timer {
            core.timer_fired();
        }
    };
    let turned = shard.turn_after(gone, |core| {
        let mut packets = 0;
        loop {
            match core.receive(RX_BUDGET, &shard.wakeups)? {
                0 => break,
                n => packets += n,
            }
            core.transmit()?;
            if core.backlog == Backlog::CutShort || !core.limit.may_continue(core.environment.now())
            {
                break;
            }
        }
        core.refuse_mads();
        let plan = core.watchers.look(core.backlog == Backlog::Blocked, core.environment.now());
        core.driver_polls = polls(core, packets, plan.watches());
        shard.apply(core, plan);
        Ok(core.driver_polls)
    })?;
    shard.fail_on(turned)
}
