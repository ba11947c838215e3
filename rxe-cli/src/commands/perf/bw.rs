//! Bandwidth: each sending side keeps as many messages outstanding as the plan allows.
//! Each side tells the other when it has sent all its messages, and serves until it has received
//! all of the other's.

use std::time::Instant;

use rxe_core::queue::{Completion, SendFlags, SendRequest};

use super::control::{ControlChannel, Message, unexpected};
use super::plan::{Op, Plan};
use super::progress::Progress;
use super::side::{BATCH, NAP, Side, Watchdog};
use super::stats::{Bandwidth, Packets, Rate, Row};
use crate::common::Error;

/// Measures one size. For both directions, the result is their sum.
pub(super) fn run(
    side: &Side,
    plan: &Plan,
    size: u32,
    sends: bool,
    control: &mut ControlChannel,
    progress: &mut Progress,
) -> Result<Row, Error> {
    let mut sends = if sends { Some(Sends::new(side, plan, size)?) } else { None };
    let mut reported = false;
    let mut peer = None;
    let mut received = 0;
    let mut batch = Vec::with_capacity(BATCH);
    let mut watchdog = Watchdog::default();
    loop {
        let mut sending = false;
        if let Some(sends) = &mut sends {
            sends.post()?;
            sending = !sends.is_finished();
            if !sending && !reported {
                sends.count_packets();
            }
        }
        let own = sends.as_ref().map(Sends::result);
        if !sending && !reported {
            let messages = sends.as_ref().map_or(0, Sends::posted);
            control.send(&Message::Sent { messages, row: own.map(Row::Bw) })?;
            reported = true;
        }
        if let (true, Some((expected, row))) = (reported, peer)
            && (plan.op != Op::Send || received >= expected)
        {
            return total(own, row);
        }

        // Whether this side receives any completions.
        let expects = sending || plan.op == Op::Send;
        batch.clear();
        let n = if side.events && !expects { 0 } else { side.poll(&mut batch)? };
        received += take(side, &batch, &mut sends)?;
        if n > 0 {
            watchdog = Watchdog::default();
            if let Some(sends) = &mut sends {
                sends.sample(progress);
            }
            continue;
        }

        // A side that only serves has no time limit, because the peer ends the measurement.
        let waiting = sending || peer.is_some();
        let look = if side.events {
            watchdog.slept(side, waiting)?
        } else {
            watchdog.polled(side, waiting)?
        };
        if !look {
            continue;
        }
        if peer.is_some() {
            // The peer's next message belongs to the next size, so it stays in the inbox.
            control.check()?;
            continue;
        }
        let news = if side.events && !expects {
            control.receive_within(NAP)?
        } else {
            control.try_receive()?
        };
        match news {
            None => {}
            Some(Message::Sent { messages, row }) => peer = Some((messages, row)),
            Some(other) => return Err(unexpected(&other)),
        }
    }
}

/// Processes completions: reposts receives, and counts sent messages. Returns the number of
/// received messages.
pub(super) fn take(
    side: &Side,
    batch: &[Completion],
    sends: &mut Option<Sends<'_>>,
) -> Result<u64, Error> {
    let mut received = 0;
    for done in batch {
        side.check(done)?;
        match (side.receive_of(done), &mut *sends) {
            (Some(qp), _) => {
                received += 1;
                side.post_receive(qp)?;
            }
            (None, Some(sends)) => sends.completed(done),
            (None, None) => {}
        }
    }
    Ok(received)
}

fn total(own: Option<Bandwidth>, peer: Option<Row>) -> Result<Row, Error> {
    match (own, peer) {
        (Some(own), Some(Row::Bw(peer))) => Ok(Row::Bw(own.plus(peer))),
        (Some(own), _) => Ok(Row::Bw(own)),
        (None, Some(row)) => Ok(row),
        (None, None) => Err(Error::new("neither side sent anything", "what runs on the other?")),
    }
}

/// The messages that this side sends in one measurement.
pub(super) struct Sends<'a> {
    side: &'a Side,
    plan: &'a Plan,
    size: u32,
    lanes: Vec<Lane>,
    /// The number of messages to send on each queue pair; `u64::MAX` if time is the limit.
    limit: u64,
    /// The time to stop, if time is the limit.
    deadline: Option<Instant>,
    rate: Rate,
    last: Instant,
    /// The device's packet counts before the measurement.
    before: Packets,
    /// The packets of this measurement, once they are counted.
    packets: Option<Packets>,
}

/// The messages on one queue pair.
struct Lane {
    request: SendRequest,
    posted: u64,
    /// The sequence number of the last signaled message.
    signaled: u64,
    done: u64,
}

/// The low bits of a request's ID, which hold the queue pair. The bits above are the sequence
/// number of the request on that queue pair.
const QP_BITS: u32 = Plan::MOST_QPS.ilog2();

impl<'a> Sends<'a> {
    pub(super) fn new(side: &'a Side, plan: &'a Plan, size: u32) -> Result<Self, Error> {
        let lane = |qp| {
            let request = side.request(plan, size, qp)?;
            Ok(Lane { request, posted: 0, signaled: 0, done: 0 })
        };
        let lanes = (0..side.qps.len()).map(lane).collect::<Result<Vec<_>, Error>>()?;
        let start = Instant::now();
        let deadline = plan.time().map(|time| start + time);
        // The window is so long that completions that had only been waiting to be polled do not
        // raise the peak.
        let window = 4 * u64::from(plan.tx_depth) * lanes.len() as u64;
        Ok(Self {
            side,
            plan,
            size,
            lanes,
            limit: plan.messages(size).unwrap_or(u64::MAX),
            deadline,
            rate: Rate::new(start, window),
            last: start,
            before: side.packets(),
            packets: None,
        })
    }

    /// Posts as many messages as the queues have room for.
    pub(super) fn post(&mut self) -> Result<(), Error> {
        let (depth, every) = (u64::from(self.plan.tx_depth), u64::from(self.plan.cq_mod));
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            self.deadline = None;
            self.limit = 0;
        }
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let room = depth - (lane.posted - lane.done);
            let mut n = room.min(self.limit.saturating_sub(lane.posted));
            let mut last = self.limit;
            if lane.posted >= self.limit && lane.signaled < lane.posted {
                // The time is over. Send one more message, whose completion shows that all before
                // it are complete.
                n = room.min(1);
                last = lane.posted + 1;
            }
            if n == 0 {
                continue;
            }
            let (from, request) = (lane.posted, &lane.request);
            let is_signaled = |seq: u64| seq.is_multiple_of(every) || seq == last;
            let requests = (from + 1..=from + n).map(|seq| {
                let mut request = request.clone();
                request.id = seq << QP_BITS | at as u64;
                request.flags.set(SendFlags::SIGNALED, is_signaled(seq));
                request
            });
            self.side.qps[at].post_send(requests).map_err(|e| e.error)?;
            lane.posted += n;
            if let Some(seq) = (from + 1..=lane.posted).rev().find(|&seq| is_signaled(seq)) {
                lane.signaled = seq;
            }
        }
        Ok(())
    }

    /// Records a completion, which also completes all earlier messages on its queue pair.
    pub(super) fn completed(&mut self, done: &Completion) {
        let at = usize::try_from(done.id & ((1 << QP_BITS) - 1)).unwrap_or(usize::MAX);
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.done = lane.done.max(done.id >> QP_BITS);
        }
    }

    pub(super) fn sample(&mut self, progress: &mut Progress) {
        let done = self.lanes.iter().map(|lane| lane.done).sum();
        self.last = Instant::now();
        self.rate.sample(self.last, done);
        progress.at(done, self.last);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.deadline.is_none()
            && self.lanes.iter().all(|lane| lane.posted >= self.limit && lane.done == lane.posted)
    }

    pub(super) fn posted(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.posted).sum()
    }

    /// Counts the packets. The device's counters are behind a lock.
    fn count_packets(&mut self) {
        self.packets = Some(self.side.packets().since(self.before));
    }

    pub(super) fn result(&self) -> Bandwidth {
        let result = self.rate.result(self.size, self.posted(), self.last);
        Bandwidth { packets: self.packets, ..result }
    }
}
