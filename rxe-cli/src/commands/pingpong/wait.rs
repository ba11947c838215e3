//! Waits for the next completion, by polling or sleeping, and gives up when none can come.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use rxe_core::queue::{Completion, Status};
use rxe_verbs::{CompletionChannel, CompletionQueue, Device};

use super::peer::{PeerConnection, PeerState};
use crate::common::Error;

/// The time limit for a peer that sends nothing.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time limit for a peer that has finished. Only messages in flight can still arrive.
const AFTER_THE_END: Duration = Duration::from_secs(2);

/// The number of polls between two checks of the clock. Each check also yields the CPU.
const POLLS: u32 = 16;

/// The time between two checks of the peers.
const LOOK: Duration = Duration::from_millis(20);

/// A completion queue, with the channel to wait on.
pub(super) struct Waiter {
    pub(super) cq: CompletionQueue,
    /// The channel to sleep on; `None` to poll.
    channel: Option<CompletionChannel>,
}

impl Waiter {
    /// Creates a queue for `depth` completions. If `events`, arms it on a channel to sleep on.
    pub(super) fn new(device: &Device, depth: u32, events: bool) -> Result<Self, Error> {
        let channel = events.then(|| device.create_channel()).transpose()?;
        let cq = match &channel {
            Some(channel) => device.create_cq_on(depth, channel)?,
            None => device.create_cq(depth)?,
        };
        if channel.is_some() {
            cq.arm(false)?;
        }
        Ok(Self { cq, channel })
    }

    /// Returns the next completion. If none can come, the error says why and how far the exchange
    /// got.
    pub(super) fn next(
        &self,
        peers: &mut [PeerConnection],
        progress: &dyn fmt::Display,
    ) -> Result<Completion, Error> {
        if let Some(done) = self.cq.poll_one()? {
            return Ok(done);
        }
        let begin = Instant::now();
        let mut looked = begin;
        loop {
            if let Some(done) = self.a_while()? {
                return Ok(done);
            }
            let now = Instant::now();
            if now - looked < LOOK {
                continue;
            }
            looked = now;
            if let Err(why) = self.check(peers, now - begin, progress) {
                // Every message that the peer sent before it ended has arrived by now.
                return self.cq.poll_one()?.ok_or(why);
            }
        }
    }

    /// Polls [`POLLS`] times, or sleeps up to [`LOOK`].
    fn a_while(&self) -> Result<Option<Completion>, Error> {
        if let Some(channel) = &self.channel {
            if channel.get_event(Some(LOOK))?.is_some() {
                // The next poll finds a completion that arrives before this call.
                self.cq.arm(false)?;
            }
            return Ok(self.cq.poll_one()?);
        }
        // Checking the clock for each poll would cost as much as polling.
        for _ in 0..POLLS {
            if let Some(done) = self.cq.poll_one()? {
                return Ok(Some(done));
            }
        }
        // The peer may need this CPU to answer.
        thread::yield_now();
        Ok(None)
    }

    /// Fails if no completion can come after `silence` without one.
    fn check(
        &self,
        peers: &mut [PeerConnection],
        silence: Duration,
        progress: &dyn fmt::Display,
    ) -> Result<(), Error> {
        let mut all_finished = !peers.is_empty();
        for peer in peers {
            match peer.look() {
                PeerState::Running => all_finished = false,
                PeerState::Finished => {}
                PeerState::Failed(why) => return Err(gave_up(why)),
                PeerState::Gone => {
                    let what = format!("the peer has gone, {progress}");
                    return Err(Error::new(what, "was it ended, or has it said why?"));
                }
            }
        }
        if all_finished && silence > AFTER_THE_END {
            let what = format!("the peer has finished, {progress}");
            return Err(Error::new(what, "give the same -n on both ends"));
        }
        if silence > PEER_TIMEOUT {
            let what =
                format!("nothing came from the peer for {} s, {progress}", PEER_TIMEOUT.as_secs());
            let todo = "was it started with the same --transport, -n, -s and -m, and is it still \
                        running?";
            let error = Error::new(what, todo);
            // On an unreliable service, a message may have arrived and been dropped. The first
            // event says why.
            let mut seen = self.cq.device().explain().into_iter();
            let first = seen.find(|line| line.starts_with("dropped"));
            return Err(match first {
                Some(first) => Error::new(error, format!("first seen here: {first}")),
                None => error,
            });
        }
        Ok(())
    }
}

/// Returns the error for a peer that gave up, with its reason.
pub(super) fn gave_up(why: &str) -> Error {
    Error::new("the peer gave up", format!("it says \"{why}\""))
}

/// Fails if a completion is an error, with the words of ibv_rc_pingpong.
pub(super) fn check(done: &Completion, device: &Device) -> Result<(), Error> {
    if done.status == Status::Success {
        return Ok(());
    }
    let Completion { id, status, .. } = done;
    let what = format!("Failed status {status} ({}) for wr_id {id}", status.code());
    let alike = match status {
        Status::LocalLength | Status::RemoteInvalidRequest | Status::WorkRequestFlushed => {
            "; give the same -s and -m on both ends"
        }
        _ => "",
    };
    let error = Error::new(what, format!("{}{alike}", status.meaning()));
    // Dropped packets do not explain a failure, because they arrived after it.
    let news = device.explain().into_iter().rfind(|line| !line.starts_with("dropped"));
    Err(match news {
        Some(last) => Error::new(error, format!("last seen here: {last}")),
        None => error,
    })
}
