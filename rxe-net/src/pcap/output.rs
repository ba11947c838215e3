//! The thread that writes a capture's file, so that traffic never waits for a disk.
//!
//! Invariants: the queue is bounded, and its users ask for room before they queue bytes; bytes reach
//! the file in the order in which they were queued.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use crate::blocking::may_block;
use crate::sys::thread::spawn_thread;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// How many bytes may wait to be written.
pub(super) const CAPACITY: usize = 32 << 20;

/// A handle of the thread. When it is closed or dropped, the thread writes what is queued and ends.
pub(super) struct Output(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Something was queued, or the thread must end.
    queued: Condvar,
    /// Everything is written.
    idle: Condvar,
    /// How many bytes may wait.
    capacity: usize,
    /// The process that the thread is in: a forked child has none.
    process: u32,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Piece>,
    /// Bytes in the queue and bytes being written.
    bytes: usize,
    /// The thread is writing.
    writing: bool,
    /// The capture has ended; the thread ends when everything is written.
    closed: bool,
    /// The thread has ended.
    ended: bool,
    failed: Option<String>,
}

enum Piece {
    Bytes(Vec<u8>),
    /// A line for the program's user.
    Say(String),
}

impl Output {
    /// Starts the thread. `name` is the capture, for messages; `capacity` is how many bytes may
    /// wait.
    pub(super) fn start(
        out: Box<dyn Write + Send>,
        name: String,
        capacity: usize,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            queued: Condvar::new(),
            idle: Condvar::new(),
            capacity,
            process: std::process::id(),
        });
        let theirs = Arc::clone(&shared);
        // Nobody joins the thread; `flush` waits until it has written everything.
        let _ = spawn_thread("rxe-pcap", move || theirs.run(out, &name))?;
        Ok(Self(shared))
    }

    /// Whether `bytes` more bytes fit into the queue.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.0.lock().bytes + bytes <= self.0.capacity
    }

    /// Queues bytes.
    pub(super) fn push(&self, bytes: Vec<u8>) {
        let mut state = self.0.lock();
        state.bytes += bytes.len();
        state.queue.push_back(Piece::Bytes(bytes));
        drop(state);
        self.0.queued.notify_one();
    }

    /// Writes a line to stderr when everything queued before it is in the file.
    pub(super) fn say(&self, line: String) {
        self.0.lock().queue.push_back(Piece::Say(line));
        self.0.queued.notify_one();
    }

    /// The error if the file could not be written.
    pub(super) fn failed(&self) -> Option<String> {
        self.0.lock().failed.clone()
    }

    /// Waits until everything queued is in the file.
    pub(super) fn flush(&self) {
        if std::process::id() != self.0.process {
            return;
        }
        may_block("writing a capture");
        let busy = |state: &mut State| !state.ended && (state.writing || !state.queue.is_empty());
        self.0.idle.wait_while(&mut self.0.lock(), busy);
    }

    /// Ends the thread when everything queued is in the file.
    pub(super) fn close(&self) {
        // In a forked child the lock may be held by a thread that does not exist there.
        if std::process::id() == self.0.process {
            self.0.lock().closed = true;
            self.0.queued.notify_one();
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.close();
    }
}

/// Marks the end of the thread, also if it panics.
struct End<'s>(&'s Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        if !state.closed {
            state.failed.get_or_insert_with(|| "the thread that writes it has ended".into());
        }
        self.0.idle.notify_all();
    }
}

impl Shared {
    fn run(&self, mut out: Box<dyn Write + Send>, name: &str) {
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
                    Piece::Say(line) => {
                        // If stderr is closed, the line is lost; the status says the same.
                        let _ = io::stderr().write_all(line.as_bytes());
                        (0, Ok(()))
                    }
                };
                state = self.lock();
                state.bytes -= bytes;
                if let Err(e) = result {
                    let line = format!("rxe: the capture {name} ends: {e}\n");
                    state.failed = Some(e.to_string());
                    state.queue.push_back(Piece::Say(line));
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
