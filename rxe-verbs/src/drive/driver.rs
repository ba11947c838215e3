//! The thread that turns a shard when nobody else does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use super::Shard;
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
    pub(crate) fn start(shard: Arc<Shard>) -> Result<Self> {
        let theirs = Arc::clone(&shard);
        let run = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| run(&theirs)));
            if !theirs.stop.load(Ordering::Acquire) {
                theirs.fail(match ended {
                    Ok(Err(e)) => e.to_string(),
                    _ => "its driver thread panicked: please report this as a bug".into(),
                });
            }
        };
        let thread = thread::Builder::new()
            .name("rxe-driver".into())
            .spawn(run)
            .map_err(|e| Error::io("start a thread", e))?;
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

fn run(shard: &Shard) -> Result<()> {
    while !shard.stop.load(Ordering::Acquire) {
        let timer = shard.watch.sleep()?;
        let turned = shard.with(|core| {
            if timer {
                core.armed.timer_gone();
            }
            for _ in 0..TURNS {
                if core.receive(BUDGET)? == 0 {
                    break;
                }
                core.transmit(now())?;
            }
            let plan = core.duty.look(core.blocked, now());
            shard.apply(core, plan);
            Ok(())
        })?;
        shard.fail_on(turned)?;
    }
    Ok(())
}
