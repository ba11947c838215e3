//! A capture that another process reads while the traffic continues.
//!
//! Invariants: a slow reader never slows the traffic. When the reader is slow, packets of the
//! capture are dropped and counted. When the reader is gone, the capture has ended, and its taps
//! are released.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::capture::Capture;
use super::handle::PcapHandle;
use super::output::Output;
use super::tap::Tap;
use crate::host::CaptureStream;
use rxe_sys::{PerProcess, at_exit, may_block};

/// A live capture of the packets of some backends.
pub struct LiveCapture(Arc<Session>);

struct Session {
    output: Arc<Output>,
    stream: CaptureStream,
    taps: Mutex<Vec<Weak<Mutex<Capture>>>>,
    /// Creates the text of the last message from the number of dropped packets.
    last: fn(u64) -> Vec<u8>,
}

const CAPACITY: usize = 4 << 20;
/// How long the end of a capture may wait for a lock or for the reader.
const PATIENCE: Duration = Duration::from_millis(300);

impl LiveCapture {
    /// Creates a capture for the process behind `stream`. `first` is the text of the first message,
    /// and `last` creates the text of the last one from the number of dropped packets.
    pub fn new(stream: CaptureStream, first: &[u8], last: fn(u64) -> Vec<u8>) -> Self {
        let output = Arc::new(Output::new(CAPACITY));
        output.push(stream.text(first));
        Self(Arc::new(Session { output, stream, taps: Mutex::default(), last }))
    }

    /// Starts to send. Packets that the taps capture before this call wait in the queue.
    ///
    /// # Errors
    /// The kernel has no memory or no thread left.
    pub fn start(&self) -> io::Result<()> {
        self.0.output.start(Box::new(self.0.stream.clone()), None)?;
        end_at_exit(&self.0);
        Ok(())
    }

    /// Creates a tap for one more backend.
    pub fn tap(&self) -> Tap {
        let capture = Arc::new(Mutex::new(Capture::live(Arc::clone(&self.0.output))));
        let mut taps = self.0.taps.lock();
        taps.retain(|tap| tap.strong_count() > 0);
        taps.push(Arc::downgrade(&capture));
        Tap::new(PcapHandle(capture))
    }

    /// Returns whether the capture has ended: the reader is gone, or wanted no more packets.
    pub fn has_ended(&self) -> bool {
        self.0.output.has_ended() || self.0.stream.is_gone()
    }

    /// Ends the capture. Waits at most 300 ms for the reader to read the rest.
    pub fn end(&self) {
        self.0.end();
    }
}

impl Session {
    fn end(&self) {
        if self.output.has_ended() {
            return;
        }
        may_block("ending a capture");
        let taps = std::mem::take(&mut *self.taps.lock());
        for tap in taps.iter().filter_map(Weak::upgrade) {
            // The process may be ending in a signal handler that has interrupted the holder of the
            // lock.
            if let Some(mut capture) = tap.try_lock_for(PATIENCE) {
                capture.end();
            }
        }
        self.output.push(self.stream.text(&(self.last)(self.output.dropped())));
        self.output.close();
        self.output.flush_within(PATIENCE);
        self.stream.give_up();
    }
}

/// Registers the capture to end when the program exits without closing its devices.
fn end_at_exit(session: &Arc<Session>) {
    /// Per process, because a forked child has no part in the captures of its parent.
    static SESSIONS: PerProcess<Mutex<Vec<Weak<Session>>>> = PerProcess::new();
    extern "C" fn end() {
        let Some(sessions) = SESSIONS.get().try_lock() else { return };
        sessions.iter().filter_map(Weak::upgrade).for_each(|session| session.end());
    }
    let mut sessions = SESSIONS.get().lock();
    if sessions.capacity() == 0 {
        at_exit(end);
    }
    sessions.retain(|session| session.strong_count() > 0);
    sessions.push(Arc::downgrade(session));
}
