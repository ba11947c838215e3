//! The thread that writes a capture. Traffic never waits for a disk or for the reader of a live
//! capture.
//!
//! Invariants: the queue is bounded, because its users check for room before they queue bytes.
//! Bytes reach the file in the order in which they were queued.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rxe_sys::may_block;
use rxe_sys::{lower_priority, spawn_thread};

/// The maximum number of bytes that may wait to be written.
pub(super) const CAPACITY: usize = 32 << 20;

/// A handle of the writing thread. When the handle is closed or dropped, the thread writes the
/// queued bytes and ends.
pub(super) struct Output(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Signalled when something was queued, or when the thread must end.
    queued: Condvar,
    /// Signalled when everything is written.
    idle: Condvar,
    /// The maximum number of bytes that may wait.
    capacity: usize,
    /// The number of bytes in the queue and being written.
    bytes: AtomicUsize,
    /// The number of packets that were dropped because the queue was full.
    dropped: AtomicU64,
    /// Whether the output is closed or has failed.
    ended: AtomicBool,
    /// The process that the thread belongs to: a forked child has no such thread.
    process: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Piece>,
    /// Whether the thread is writing.
    writing: bool,
    /// Whether the capture has ended. If so, the thread ends when everything is written.
    closed: bool,
    /// Whether there is no thread, because it has ended or was not started yet.
    no_thread: bool,
    failed: Option<String>,
}

enum Piece {
    Bytes(Vec<u8>),
    /// A line for stderr.
    Log(String),
}

impl Output {
    /// Creates a queue without a thread. `capacity` is the number of bytes that may wait.
    pub(super) fn new(capacity: usize) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State { no_thread: true, ..State::default() }),
            queued: Condvar::new(),
            idle: Condvar::new(),
            capacity,
            bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            process: std::process::id(),
        }))
    }

    /// Starts the thread. `name` is the name of the capture in messages. A capture without a name
    /// ends silently, and its thread has a low priority.
    pub(super) fn start(&self, out: Box<dyn Write + Send>, name: Option<String>) -> io::Result<()> {
        let theirs = Arc::clone(&self.0);
        self.0.lock().no_thread = false;
        // The thread is not joined; `flush` waits until it has written everything.
        let run = move || {
            if name.is_none() {
                lower_priority();
            }
            theirs.run(out, name.as_deref());
        };
        let started = spawn_thread("rxe-pcap", run);
        if started.is_err() {
            self.0.lock().no_thread = true;
        }
        started.map(drop)
    }

    /// Returns whether `bytes` more bytes fit into the queue.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.0.bytes.load(Ordering::Relaxed) + bytes <= self.0.capacity
    }

    /// Queues bytes without a check for room.
    pub(super) fn push(&self, bytes: Vec<u8>) {
        self.0.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        self.0.lock().queue.push_back(Piece::Bytes(bytes));
        self.0.queued.notify_one();
    }

    /// Writes a line to stderr after everything queued before it is in the file.
    pub(super) fn log(&self, line: String) {
        self.0.lock().queue.push_back(Piece::Log(line));
        self.0.queued.notify_one();
    }

    /// Counts packets that were dropped because the queue was full.
    pub(super) fn add_dropped(&self, packets: usize) {
        self.0.dropped.fetch_add(packets as u64, Ordering::Relaxed);
    }

    /// Returns the number of dropped packets of all captures that write here.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Returns whether the output accepts no more than what is queued.
    pub(super) fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed)
    }

    /// Returns why the file could not be written, if it could not.
    pub(super) fn failed(&self) -> Option<String> {
        self.0.lock().failed.clone()
    }

    /// Waits until everything queued is in the file. Does nothing in a forked child, which has no
    /// writing thread.
    pub(super) fn flush(&self) {
        if std::process::id() != self.0.process {
            return;
        }
        may_block("writing a capture");
        self.0.idle.wait_while(&mut self.0.lock(), |state| state.is_busy());
    }

    /// Like [`Output::flush`], but waits for `timeout` at most.
    pub(super) fn flush_within(&self, timeout: Duration) {
        if std::process::id() != self.0.process {
            return;
        }
        may_block("writing a capture");
        let until = Instant::now() + timeout;
        let mut state = self.0.lock();
        while state.is_busy() && !self.0.idle.wait_until(&mut state, until).timed_out() {}
    }

    /// Ends the thread once everything queued is in the file.
    pub(super) fn close(&self) {
        // In a forked child the lock may be held by a thread that does not exist there.
        if std::process::id() == self.0.process {
            self.0.lock().closed = true;
            self.0.ended.store(true, Ordering::Relaxed);
            self.0.queued.notify_one();
        }
    }
}

impl State {
    fn is_busy(&self) -> bool {
        !self.no_thread && (self.writing || !self.queue.is_empty())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.close();
    }
}

/// Marks the end of the thread, even if the thread panics.
struct End<'s>(&'s Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.no_thread = true;
        if !state.closed {
            state.failed.get_or_insert_with(|| "the thread that writes it has ended".into());
        }
        self.0.ended.store(true, Ordering::Relaxed);
        self.0.idle.notify_all();
    }
}

impl Shared {
    fn run(&self, mut out: Box<dyn Write + Send>, name: Option<&str>) {
        let _end = End(self);
        let mut state = self.lock();
        loop {
            if let Some(piece) = state.queue.pop_front() {
                state.writing = true;
                let skip = state.failed.is_some();
                drop(state);
                let (bytes, result) = match &piece {
                    Piece::Bytes(bytes) if skip => (bytes.len(), Ok(())),
                    Piece::Bytes(bytes) => (bytes.len(), out.write_all(bytes)),
                    Piece::Log(line) => {
                        // If stderr is closed, the line is lost; the status still has the error.
                        let _ = io::stderr().write_all(line.as_bytes());
                        (0, Ok(()))
                    }
                };
                state = self.lock();
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
                if let Err(e) = result {
                    state.failed = Some(e.to_string());
                    self.ended.store(true, Ordering::Relaxed);
                    if let Some(name) = name {
                        let line = format!("rxe: the capture {name} ends: {e}\n");
                        state.queue.push_back(Piece::Log(line));
                    }
                }
                continue;
            }
            state.writing = false;
            self.idle.notify_all();
            if state.closed {
                return;
            }
            self.queued.wait(&mut state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
