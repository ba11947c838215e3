//! Latency over UC and UD: one message at a time, which the peer answers.
//! The last byte of a message is the low byte of its number. The peer returns that byte, so that a
//! late answer is not taken for the next one. If no answer arrives in time, the round is lost.

use std::time::{Duration, Instant};

use rxe_core::queue::SendFlags;

use super::super::control::{ControlChannel, Message, unexpected};
use super::super::lat::{SIGNAL_EVERY, WARM_UP};
use super::super::plan::{Op, Plan};
use super::super::progress::Progress;
use super::super::side::{Side, Watchdog};
use super::super::stats::{Latencies, Latency, Row};
use crate::common::Error;

/// The time to sleep between two checks for a message of the peer.
const NAP: Duration = Duration::from_millis(20);

/// The time after which an answer counts as lost.
const LOST: Duration = Duration::from_millis(250);

/// The number of successive lost rounds after which the measurement fails.
const HOPELESS: u32 = 20;

/// Runs the measuring side. Returns the result.
pub(in super::super) fn client(
    side: &Side,
    plan: &Plan,
    size: u32,
    control: &mut ControlChannel,
    progress: &mut Progress,
) -> Result<Row, Error> {
    let mut lane = Lane { side, plan, size, control, posted: 0, seen: 0 };
    let mut latencies = Latencies::new();
    let limit = plan.messages(size).unwrap_or(u64::MAX).saturating_add(WARM_UP);
    let time = plan.time().unwrap_or(Duration::MAX);
    let (mut rounds, mut lost, mut lost_in_a_row) = (0, 0, 0);
    let mut start = Instant::now();
    while rounds < limit && (rounds < WARM_UP || start.elapsed() < time) {
        if rounds == WARM_UP {
            start = Instant::now();
        }
        let counts = rounds >= WARM_UP;
        rounds += 1;
        let mark = rounds.to_le_bytes()[0];
        let before = Instant::now();
        lane.post(mark)?;
        let answered = lane.answer(mark, before)?;
        let now = Instant::now();
        lost_in_a_row = if answered { 0 } else { lost_in_a_row + 1 };
        match (counts, answered) {
            (true, true) => latencies.record((now - before) / 2),
            (true, false) => lost += 1,
            (false, _) => {}
        }
        if lost_in_a_row == HOPELESS {
            let what = format!("{HOPELESS} messages in a row were lost");
            return Err(Error::new(what, "does the network carry UDP port 4791?"));
        }
        progress.at(rounds.saturating_sub(WARM_UP), now);
    }
    let row = Row::Lat(Latency { lost: Some(lost), ..latencies.result(size) });
    control.send(&Message::Sent { messages: rounds, row: Some(row) })?;
    Ok(row)
}

/// Runs the answering side until the client has finished. Returns the client's result.
pub(in super::super) fn server(
    side: &Side,
    plan: &Plan,
    size: u32,
    control: &mut ControlChannel,
) -> Result<Row, Error> {
    let mut lane = Lane { side, plan, size, control, posted: 0, seen: 0 };
    let mut watchdog = Watchdog::default();
    loop {
        if let Some(mark) = lane.next()? {
            lane.post(mark)?;
            watchdog = Watchdog::default();
            continue;
        }
        let look = if side.events { true } else { watchdog.polled(side, false)? };
        if look && let Some(message) = lane.control.try_receive()? {
            return match message {
                Message::Sent { row: Some(row), .. } => Ok(row),
                other => Err(unexpected(&other)),
            };
        }
    }
}

struct Lane<'a> {
    side: &'a Side,
    plan: &'a Plan,
    size: u32,
    control: &'a mut ControlChannel,
    posted: u64,
    /// The mark of the last WRITE that was found in memory.
    seen: u8,
}

impl Lane<'_> {
    /// Sends a message that ends with `mark`.
    fn post(&mut self, mark: u8) -> Result<(), Error> {
        let Self { side, plan, size, .. } = *self;
        self.posted += 1;
        side.mr.write_at(size as usize - 1, &[mark])?;
        let mut request = side.request(plan, size, 0)?;
        request.flags.set(SendFlags::SIGNALED, self.posted.is_multiple_of(SIGNAL_EVERY));
        Ok(side.qps[0].post_send([request]).map_err(|e| e.error)?)
    }

    /// Waits for the peer's message with this mark. Returns whether it arrives in time.
    fn answer(&mut self, mark: u8, since: Instant) -> Result<bool, Error> {
        let mut watchdog = Watchdog::default();
        loop {
            match self.next()? {
                Some(came) if came == mark => return Ok(true),
                // A late answer.
                Some(_) => continue,
                None => {}
            }
            let look = if self.side.events { true } else { watchdog.polled(self.side, true)? };
            if !look {
                continue;
            }
            if let Some(message) = self.control.try_receive()? {
                return Err(unexpected(&message));
            }
            if since.elapsed() > LOST {
                return Ok(false);
            }
        }
    }

    /// Returns the mark of the next message that has arrived, if there is one.
    fn next(&mut self) -> Result<Option<u8>, Error> {
        let Self { side, size, .. } = *self;
        let last = size as usize - 1;
        // Polling also runs the engine.
        let done = side.poll_one(NAP)?;
        let mut came = None;
        if let Some(qp) = done.and_then(|done| side.receive_of(&done)) {
            came = Some(side.landed(last)?);
            side.post_receive(qp)?;
        }
        if self.plan.op == Op::Write {
            let mark = side.landed(last)?;
            came = (mark != self.seen).then_some(mark);
            self.seen = mark;
        }
        Ok(came)
    }
}
