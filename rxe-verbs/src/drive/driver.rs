//! The thread that turns a shard when nobody else does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rxe_core::types::Time;

use super::Shard;
use super::watch::Woken;
use crate::device::Follow;
use crate::error::{Error, Result};
use crate::os::now;

/// Packets that the driver takes in a turn.
const BUDGET: usize = 256;
/// Turns before it lets others have the lock.
const TURNS: usize = 16;

/// The running thread; ends when dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    shard: Arc<Shard>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    /// `follow` is told when the interface may have changed.
    pub(crate) fn start(shard: Arc<Shard>, follow: Option<Follow>) -> Result<Self> {
        if let Some(follow) = &follow {
            for fd in follow.fds() {
                shard.watch.add_interface(fd)?;
            }
        }
        let theirs = Arc::clone(&shard);
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| run(&theirs, follow)));
            if !theirs.stop.load(Ordering::Acquire) {
                theirs.fail(match ended {
                    Ok(Err(e)) => e.to_string(),
                    _ => "its driver thread panicked: please report this as a bug".into(),
                });
            }
        };
        let thread =
            rxe_net::spawn_thread("rxe-driver", run).map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { shard, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shard.stop.store(true, Ordering::Release);
        self.shard.watch.wake();
        if let Some(thread) = self.thread.take() {
            // Its panics have been caught.
            let _ = thread.join();
        }
    }
}

fn run(shard: &Shard, mut follow: Option<Follow>) -> Result<()> {
    let mut spin = Spin::new();
    let mut woken = Woken::default();
    let mut turns = 0u32;
    while !shard.stop.load(Ordering::Acquire) {
        if woken.interface
            && let Some(follow) = &mut follow
        {
            follow.update(shard)?;
        }
        let (packets, alone) = turn(shard, woken.timer)?;
        woken = Woken::default();
        turns = turns.wrapping_add(1);
        // Also one who spins looks up now and then: packets alone do not tell of the interface.
        if !spin.goes_on(packets, alone, now()) || turns.is_multiple_of(1024) {
            let before = now();
            woken = shard.watch.sleep()?;
            spin.slept(now().since(before));
        }
    }
    Ok(())
}

/// Does all there is to do. How many packets came, and whether it is the driver who watches.
fn turn(shard: &Shard, timer: bool) -> Result<(usize, bool)> {
    let turned = shard.with(|core| {
        if timer {
            core.armed.timer_gone();
        }
        let mut packets = 0;
        for _ in 0..TURNS {
            match core.receive(BUDGET)? {
                0 => break,
                n => packets += n,
            }
            core.transmit(now())?;
        }
        let plan = core.duty.look(core.blocked, now());
        shard.apply(core, plan);
        Ok((packets, plan.watches()))
    })?;
    shard.fail_on(turned)
}

/// Whether to look again instead of sleeping: only if it has turned out again and again that the
/// next packet came sooner than a thread falls asleep and wakes.
#[derive(Debug)]
struct Spin {
    /// Short sleeps in a row.
    short: u32,
    /// Until then, unless a packet comes.
    until: Time,
    /// With one CPU there is nobody whom looking again could help.
    possible: bool,
}

impl Spin {
    /// What counts as a short sleep, and how long to look again.
    const SHORT: Duration = Duration::from_micros(30);
    /// So many of them are no accident.
    const ENOUGH: u32 = 16;

    fn new() -> Self {
        let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { short: 0, until: Time::ZERO, possible: cpus > 1 }
    }

    fn slept(&mut self, time: Duration) {
        self.short = if time < Self::SHORT { self.short.saturating_add(1) } else { 0 };
    }

    fn goes_on(&mut self, packets: usize, alone: bool, now: Time) -> bool {
        if !self.possible || !alone || self.short < Self::ENOUGH {
            return false;
        }
        if packets > 0 {
            self.until = now + Self::SHORT;
        }
        let on = now < self.until;
        if !on {
            // In vain: it must prove itself again.
            self.short = 0;
        }
        on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_must_have_proved_itself_and_ends_when_in_vain() {
        let mut spin = Spin { short: 0, until: Time::ZERO, possible: true };
        let at = |micros| Time::ZERO + Duration::from_micros(micros);
        assert!(!spin.goes_on(1, true, at(100)));
        (0..Spin::ENOUGH).for_each(|_| spin.slept(Duration::from_micros(5)));
        assert!(spin.goes_on(1, true, at(100)), "a packet came");
        assert!(spin.goes_on(0, true, at(129)), "the next may come soon");
        assert!(!spin.goes_on(1, false, at(129)), "somebody else watches");
        assert!(!spin.goes_on(0, true, at(130)), "it did not");
        assert!(!spin.goes_on(1, true, at(131)));
        (1..Spin::ENOUGH).for_each(|_| spin.slept(Duration::from_micros(5)));
        spin.slept(Duration::from_millis(1));
        assert!(!spin.goes_on(1, true, at(2000)), "one long sleep");
    }
}
