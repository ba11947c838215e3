//! The live capture of a device's packets, if there is one. It covers all shards, including those
//! opened while it runs.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rxe_net::{CaptureStream, LiveCapture};

use super::TAKEN;
use crate::progress::Shard;

/// How long a capture may wait for a shard's lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The live capture of a device's packets, if there is one.
#[derive(Default)]
pub(crate) struct LiveCaptureSlot(Mutex<Option<LiveCapture>>);

impl LiveCaptureSlot {
    /// Starts a capture, unless one is running. Returns whether it has started.
    pub(crate) fn start(
        &self,
        mut to: CaptureStream,
        first: &[u8],
        last: fn(u64) -> Vec<u8>,
        shards: impl FnOnce() -> Vec<Arc<Shard>>,
    ) -> bool {
        let mut now = self.0.lock();
        if now.as_ref().is_some_and(|capture| !capture.has_ended()) {
            to.give_up();
            let _ = to.write(&to.text(format!("{TAKEN}\n").as_bytes()));
            return false;
        }
        let capture = LiveCapture::new(to, first, last);
        let shards = shards();
        let attached = shards.iter().all(|shard| attach(shard, &capture));
        // The start message promises that the capture misses no packet from now on, so all shards
        // are attached before. A device that was just closed has no shard.
        if shards.is_empty() || !attached || capture.start().is_err() {
            capture.end();
            return false;
        }
        *now = Some(capture);
        true
    }

    /// Calls `add`, which adds a shard to the device, and captures the shard's packets too.
    pub(crate) fn add(&self, shard: &Shard, add: impl FnOnce()) {
        let now = self.0.lock();
        add();
        if let Some(capture) = now.as_ref().filter(|capture| !capture.has_ended()) {
            attach(shard, capture);
        }
    }

    /// Ends the capture, if one is running.
    pub(crate) fn end(&self) {
        if let Some(capture) = self.0.lock().take() {
            capture.end();
        }
    }
}

/// Captures the shard's packets from now on. Returns whether its lock became free in time.
fn attach(shard: &Shard, capture: &LiveCapture) -> bool {
    shard.with_lock_within(LOCK_TIMEOUT, |core| core.set_tap(capture.tap())).is_some()
}

impl fmt::Debug for LiveCaptureSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveCaptureSlot")
    }
}
