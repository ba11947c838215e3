//! The thread that turns a shard when nobody else does.

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::Shard;
use super::policy::AdaptivePolling;
use super::shard::BUDGET;
use super::turn::{Backlog, Core};
use super::wakeup::WokenBy;
use crate::error::{Error, Result};
use crate::os::now;

/// What looks after a device's port, on the driver's thread.
pub(crate) trait Monitor: Send {
    /// Readable when there may be something to do. [`Monitor::update`] is also called whenever the
    /// driver is woken ([`Shard::wakeup`]).
    fn fd(&self) -> BorrowedFd<'_>;

    /// Looks whether the port has changed, and does what follows from it.
    ///
    /// # Errors
    /// The device has failed, or the system cannot be asked any more.
    fn update(&mut self, shard: &Shard) -> Result<()>;
}

/// The running thread; ends when dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    shard: Arc<Shard>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// `port_monitor` is told when the interface may have changed.
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
            // A forked child has neither the thread nor anything else that could be ended.
            std::mem::forget((thread, Arc::clone(&self.shard)));
            return;
        }
        self.shard.stop.store(true, Ordering::Release);
        self.shard.wakeups.wake();
        // A program may have closed our descriptors. The thread then sleeps for some seconds more, and
        // is left alone: it keeps the shard, so what it sleeps on is not closed under it.
        if self.shard.wakeups.can_wake() {
            rxe_sys::may_block("ending a thread");
            // Its panics have been caught.
            let _ = thread.join();
        }
    }
}

fn run(shard: &Shard, mut port_monitor: Option<Box<dyn Monitor>>) -> Result<()> {
    let mut polling = AdaptivePolling::new();
    let mut woken = WokenBy::default();
    let mut turns = 0u32;
    while !shard.stop.load(Ordering::Acquire) {
        if woken.interface
            && let Some(port_monitor) = &mut port_monitor
        {
            port_monitor.update(shard)?;
        }
        turns = turns.wrapping_add(1);
        // A driver that polls sleeps now and then too: packets do not tell of the interface.
        let may_poll = !turns.is_multiple_of(1024);
        let polls = turn(shard, woken.timer, |packets, alone| {
            polling.goes_on(packets, alone, now()) && may_poll
        })?;
        woken = WokenBy::default();
        if !polls {
            woken = shard.wakeups.sleep()?;
            polling.slept();
        } else if shard.single_cpu {
            let before = now();
            thread::yield_now();
            polling.yielded(now().since(before));
        }
    }
    Ok(())
}

impl Shard {
    /// Does what its driver does when it wakes, for a simulation, which is the driver of its shards. `timer`:
    /// the time that [`crate::os::Simulation::wake_at`] was asked for has come.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn drive(&self, timer: bool) -> Result<()> {
        turn(self, timer, |_, _| false).map(drop)
    }
}

/// Does all there is to do. `polls` is told how many packets came, and whether it is the driver who watches. It
/// says whether the driver looks again at once, without a sleep, and so does this.
pub(super) fn turn(
    shard: &Shard,
    timer: bool,
    polls: impl FnOnce(usize, bool) -> bool,
) -> Result<bool> {
    let gone = |core: &mut Core| {
        if timer {
            core.timer_gone();
        }
    };
    let turned = shard.turn_after(gone, |core| {
        let mut packets = 0;
        loop {
            match core.receive(BUDGET, &shard.wakeups)? {
                0 => break,
                n => packets += n,
            }
            core.transmit()?;
            if core.backlog == Backlog::CutShort || !core.limit.goes_on(core.environment.now()) {
                break;
            }
        }
        core.refuse_mads();
        let plan = core.watchers.look(core.backlog == Backlog::Blocked, core.environment.now());
        core.polled = polls(packets, plan.watches());
        shard.apply(core, plan);
        Ok(core.polled)
    })?;
    shard.fail_on(turned)
}
