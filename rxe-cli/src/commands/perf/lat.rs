//! Latency: one message at a time.
//! For SEND and WRITE the peer's program answers, and half of the round trip is shown. For READ and
//! atomics the peer's device answers, and the whole round trip is shown.

use std::time::{Duration, Instant};

use rxe_core::queue::{Completion, SendFlags};

use super::control::{ControlChannel, Message, unexpected};
use super::plan::{Op, Plan};
use super::progress::Progress;
use super::side::{NAP, Side, Watchdog};
use super::stats::{Latencies, Row};
use crate::common::Error;

/// The rounds before the measurement.
pub(super) const WARM_UP: u64 = 64;

/// Every how many requests one is signaled, if completions are not waited for.
pub(super) const SIGNAL_EVERY: u64 = 32;

/// Prepares the memory for the first round of a size.
pub(super) fn prepare(side: &Side, plan: &Plan, size: u32) -> Result<(), Error> {
    if Side::is_latency_by_memory(plan) { side.clear_landing(size) } else { Ok(()) }
}

/// Runs the measuring side. Returns the result.
pub(super) fn client(
    side: &Side,
    plan: &Plan,
    size: u32,
    control: &mut ControlChannel,
    progress: &mut Progress,
) -> Result<Row, Error> {
    let mut lane = Lane { side, plan, size, control, posted: 0 };
    for _ in 0..WARM_UP {
        lane.round()?;
    }
    let mut latencies = Latencies::new();
    let start = Instant::now();
    let limit = plan.messages(size).unwrap_or(u64::MAX);
    let time = plan.time().unwrap_or(Duration::MAX);
    let shared = if matches!(plan.op, Op::Send | Op::Write) { 2 } else { 1 };
    let (mut n, mut before) = (0, start);
    while n < limit && before - start < time {
        before = Instant::now();
        lane.round()?;
        let now = Instant::now();
        latencies.record((now - before) / shared);
        n += 1;
        progress.at(n, now);
    }
    let row = Row::Lat(latencies.result(size));
    control.send(&Message::Sent { messages: n, row: Some(row) })?;
    Ok(row)
}

/// Runs the answering side until the client has finished. Returns the client's result.
pub(super) fn server(
    side: &Side,
    plan: &Plan,
    size: u32,
    control: &mut ControlChannel,
) -> Result<Row, Error> {
    let mut lane = Lane { side, plan, size, control, posted: 0 };
    let mut watchdog = Watchdog::default();
    loop {
        let news = match plan.op {
            Op::Write => match lane.written(false)? {
                Some(news) => news,
                None => {
                    lane.post()?;
                    continue;
                }
            },
            _ => match lane.next(&mut watchdog, false)? {
                Next::Message(news) => news,
                Next::Done(done) => {
                    if let Some(qp) = side.receive_of(&done) {
                        side.post_receive(qp)?;
                        lane.post()?;
                    }
                    continue;
                }
            },
        };
        return match news {
            Message::Sent { row: Some(row), .. } => Ok(row),
            other => Err(unexpected(&other)),
        };
    }
}

struct Lane<'a> {
    side: &'a Side,
    plan: &'a Plan,
    size: u32,
    control: &'a mut ControlChannel,
    posted: u64,
}

enum Next {
    Done(Completion),
    Message(Message),
}

impl Lane<'_> {
    /// Executes one round trip.
    fn round(&mut self) -> Result<(), Error> {
        self.post()?;
        if self.plan.op == Op::Write {
            return match self.written(true)? {
                None => Ok(()),
                Some(message) => Err(unexpected(&message)),
            };
        }
        let mut watchdog = Watchdog::default();
        loop {
            let done = match self.next(&mut watchdog, true)? {
                Next::Done(done) => done,
                Next::Message(message) => return Err(unexpected(&message)),
            };
            match self.side.receive_of(&done) {
                Some(qp) => return self.side.post_receive(qp),
                None if self.plan.op != Op::Send => return Ok(()),
                // The completion of the local SEND is not the answer.
                None => {}
            }
        }
    }

    /// Posts the next message. The last byte of a WRITE is its sequence number.
    fn post(&mut self) -> Result<(), Error> {
        let Self { side, plan, size, .. } = *self;
        self.posted += 1;
        if plan.op == Op::Write {
            side.mr.write_at(size as usize - 1, &[self.mark()])?;
        }
        let mut request = side.request(plan, size, 0)?;
        let awaited = matches!(plan.op, Op::Read | Op::Atomic);
        request.flags.set(SendFlags::SIGNALED, awaited || self.posted.is_multiple_of(SIGNAL_EVERY));
        Ok(side.qps[0].post_send([request]).map_err(|e| e.error)?)
    }

    /// Returns the last byte of the message that was posted last.
    fn mark(&self) -> u8 {
        self.posted.to_le_bytes()[0]
    }

    /// Polls memory for the peer's message, and TCP for one that comes instead.
    /// If `answer`, waits for the answer to the last message, with a time limit; otherwise for the
    /// peer's next message.
    fn written(&mut self, answer: bool) -> Result<Option<Message>, Error> {
        let last = self.size as usize - 1;
        let awaited = if answer { self.mark() } else { self.mark().wrapping_add(1) };
        let mut watchdog = Watchdog::default();
        loop {
            // Polling also runs the engine.
            if let Some(done) = self.side.cq.poll_one()? {
                self.side.check(&done)?;
            }
            if self.side.landed(last)? == awaited {
                return Ok(None);
            }
            if watchdog.polled(self.side, answer)?
                && let Some(message) = self.control.try_receive()?
            {
                return Ok(Some(message));
            }
        }
    }

    /// Returns the next completion, or the peer's next message over TCP. If `waiting`, fails if
    /// neither comes within the time limit.
    fn next(&mut self, watchdog: &mut Watchdog, waiting: bool) -> Result<Next, Error> {
        let Self { side, .. } = *self;
        loop {
            if let Some(done) = side.poll_one(NAP)? {
                return Ok(Next::Done(done));
            }
            let look = if side.events {
                watchdog.slept(side, waiting)?
            } else {
                watchdog.polled(side, waiting)?
            };
            if look && let Some(message) = self.control.try_receive()? {
                return Ok(Next::Message(message));
            }
        }
    }
}
