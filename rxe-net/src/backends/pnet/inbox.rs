//! The queue of received frames.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};

/// The received frames in their order. Their total size is bounded.
pub(crate) struct Inbox {
    queue: Mutex<Queue>,
    /// Notified when a frame is put into the empty queue, and at the end.
    filled: Condvar,
    stopped: AtomicBool,
    /// The maximum of [`Queue::bytes`].
    limit: usize,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<(Duration, Vec<u8>)>,
    /// The size of the frames, with [`OVERHEAD`] for each.
    bytes: usize,
    /// The number of dropped frames, and how many of them [`Inbox::take`] has reported.
    dropped: u64,
    reported: u64,
    /// Why no more frames will arrive.
    end: Option<io::Error>,
}

/// A frame from the queue.
pub(crate) struct Arrived {
    /// The time since 1970 at which the frame was received, for captures.
    #[cfg_attr(target_os = "linux", allow(dead_code))]
    pub(crate) at: Duration,
    /// The frame.
    pub(crate) bytes: Vec<u8>,
    /// The number of frames dropped before this one, since the frame that was taken last.
    pub(crate) lost: u64,
}

/// The size of an empty frame in the queue, in bytes: short frames must not take unlimited memory.
const OVERHEAD: usize = 64;

impl Inbox {
    /// Creates an empty queue for this number of bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let (queue, filled) = (Mutex::default(), Condvar::new());
        Self { queue, filled, stopped: AtomicBool::new(false), limit }
    }

    /// Puts a frame into the queue, or drops it if there is no room. Returns whether the queue was
    /// empty before and is not any more.
    pub(crate) fn push(&self, frame: &[u8]) -> bool {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut queue = self.queue.lock();
        let size = frame.len() + OVERHEAD;
        if queue.bytes + size > self.limit {
            queue.dropped += 1;
            return false;
        }
        let was_empty = queue.frames.is_empty();
        queue.bytes += size;
        queue.frames.push_back((at, frame.to_vec()));
        if was_empty {
            self.filled.notify_all();
        }
        was_empty
    }

    /// Takes a frame. If there is none, calls `empty` before another frame can arrive.
    ///
    /// # Errors
    /// There is no frame, and none will arrive any more.
    pub(crate) fn take(&self, empty: impl FnOnce()) -> io::Result<Option<Arrived>> {
        let mut queue = self.queue.lock();
        let Some((at, bytes)) = queue.frames.pop_front() else {
            if let Some(end) = &queue.end {
                return Err(io::Error::new(end.kind(), end.to_string()));
            }
            empty();
            return Ok(None);
        };
        queue.bytes -= bytes.len() + OVERHEAD;
        let lost = queue.dropped - queue.reported;
        queue.reported = queue.dropped;
        Ok(Some(Arrived { at, bytes, lost }))
    }

    /// Waits until there is a frame or none will arrive any more, at most for `time`.
    #[cfg(any(test, not(target_os = "linux")))]
    pub(crate) fn wait(&self, time: Duration) {
        let is_empty = |queue: &mut Queue| queue.frames.is_empty() && queue.end.is_none();
        self.filled.wait_while_for(&mut self.queue.lock(), is_empty, time);
    }

    /// Returns the number of frames that were dropped because there was no room.
    #[cfg(any(test, not(target_os = "linux")))]
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }

    /// Notes that no more frames will arrive.
    pub(crate) fn end(&self, why: io::Error) {
        self.queue.lock().end = Some(why);
        self.filled.notify_all();
    }

    /// Tells the thread that receives to end.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Inbox::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(inbox: &Inbox) -> Option<(Vec<u8>, u64)> {
        inbox.take(|| {}).unwrap().map(|frame| (frame.bytes, frame.lost))
    }

    #[test]
    fn frames_beyond_the_limit_are_dropped_and_counted() {
        let inbox = Inbox::new(2 * (OVERHEAD + 100));
        assert_eq!(
            [[1; 100], [2; 100], [3; 100]].map(|frame| inbox.push(&frame)),
            [true, false, false]
        );
        assert_eq!(inbox.dropped(), 1);
        assert_eq!(take(&inbox), Some((vec![1; 100], 1)));
        assert!(!inbox.push(&[4; 100]));
        assert_eq!(take(&inbox), Some((vec![2; 100], 0)));
        assert_eq!(take(&inbox), Some((vec![4; 100], 0)));
        assert_eq!(take(&inbox), None);
        // A flood of empty frames is bounded too.
        let taken = (0..1000).filter(|_| inbox.push(&[])).count();
        assert_eq!(taken, 1, "only the first one finds the queue empty");
        assert_eq!(std::iter::from_fn(|| take(&inbox)).count(), 2 * (OVERHEAD + 100) / OVERHEAD);
    }

    #[test]
    fn the_end_comes_after_the_frames_and_wakes_who_waits() {
        let inbox = Inbox::new(1 << 20);
        assert!(inbox.push(&[1]));
        inbox.end(io::ErrorKind::NetworkDown.into());
        inbox.wait(Duration::MAX);
        assert_eq!(take(&inbox), Some((vec![1], 0)));
        inbox.wait(Duration::MAX);
        for _ in 0..2 {
            let end = inbox.take(|| panic!("the queue is not only empty")).err().unwrap();
            assert_eq!(end.kind(), io::ErrorKind::NetworkDown);
        }
    }
}
