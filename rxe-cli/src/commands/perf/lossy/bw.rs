//! Bandwidth over UC and UD: each sending side sends as fast as it can.
//! The other side counts arrivals. The rates count messages that arrived.

use std::time::{Duration, Instant};

use super::super::bw::{Sends, take};
use super::super::control::{ControlChannel, Message, unexpected};
use super::super::plan::{Op, Plan};
use super::super::progress::Progress;
use super::super::side::{BATCH, NAP, Side, Watchdog};
use super::super::stats::{Bandwidth, Loss, Rate, Row};
use crate::common::Error;

/// The time and the number of checks without an arrival before the rest counts as lost.
/// They count once the peer has sent all its messages.
const QUIET: Duration = Duration::from_millis(300);
const LOOKS: u32 = 6;

/// Measures one size. For both directions, the result is their sum.
pub(in super::super) fn run(
    side: &Side,
    plan: &Plan,
    size: u32,
    sends: bool,
    control: &mut ControlChannel,
    progress: &mut Progress,
) -> Result<Row, Error> {
    let mut arrivals = Arrivals::new(side, plan);
    let mut sends = if sends { Some(Sends::new(side, plan, size)?) } else { None };
    let mut reports = Reports::default();
    let mut batch = Vec::with_capacity(BATCH);
    let mut watchdog = Watchdog::default();
    loop {
        let mut sending = false;
        if let Some(sends) = &mut sends {
            sends.post()?;
            sending = !sends.is_finished();
        }
        if !sending && !reports.sent_reported {
            let messages = sends.as_ref().map_or(0, Sends::posted);
            let row = sends.as_ref().map(|sends| Row::Bw(sends.result()));
            control.send(&Message::Sent { messages, row })?;
            reports.sent_reported = true;
        }
        batch.clear();
        let n = side.poll(&mut batch)?;
        arrivals.received += take(side, &batch, &mut sends)?;
        if n > 0 {
            watchdog = Watchdog::default();
            arrivals.sample();
            if let Some(sends) = &mut sends {
                sends.sample(progress);
            }
            // Check TCP regularly, even while packets arrive.
            if !arrivals.time_to_look() {
                continue;
            }
        }
        let look = n > 0
            || if side.events {
                watchdog.slept(side, sending)?
            } else {
                watchdog.polled(side, sending)?
            };
        if !look {
            continue;
        }
        arrivals.sample();
        // The peer sends two messages per size. A third would belong to the next size.
        while !(reports.sent.is_some() && reports.arrived.is_some())
            && let Some(message) = control.try_receive()?
        {
            match message {
                Message::Sent { messages, row } => {
                    reports.sent = Some((messages, row));
                    arrivals.awaited(messages);
                }
                Message::Arrived { row: Row::Bw(row) } => reports.arrived = Some(row),
                other => return Err(unexpected(&other)),
            }
        }
        if let (Some((messages, row)), None) = (reports.sent, reports.counted)
            && arrivals.are_all(messages, n == 0)
        {
            let counted = arrivals.result(size, messages, row);
            control.send(&Message::Arrived { row: Row::Bw(counted) })?;
            reports.counted = Some(counted);
        }
        if let (true, Some(theirs), Some(own)) =
            (reports.sent_reported, reports.counted, reports.arrived)
        {
            return Ok(Row::Bw(total(own, theirs)));
        }
    }
}

/// Returns the sum of both directions, of which one may be empty.
fn total(own: Bandwidth, theirs: Bandwidth) -> Bandwidth {
    match (own.iterations, theirs.iterations) {
        (_, 0) => own,
        (0, _) => theirs,
        _ => own.plus(theirs),
    }
}

/// The reports over TCP about one size, in both directions.
#[derive(Default)]
struct Reports {
    sent_reported: bool,
    /// The number of messages that the peer sent, and its result.
    sent: Option<(u64, Option<Row>)>,
    /// The peer's messages that arrived here, once this side has reported them.
    counted: Option<Bandwidth>,
    /// The local messages that arrived at the peer.
    arrived: Option<Bandwidth>,
}

/// The messages that arrive from the peer.
struct Arrivals<'a> {
    side: &'a Side,
    /// The number of completed receives.
    received: u64,
    /// The device's message count before the first WRITE. WRITEs complete no receives, so the
    /// device's counter is used.
    writes_before: Option<u64>,
    /// The least number of messages in a window.
    window: u64,
    /// The number of messages at the first arrival, and the rate since then.
    rate: Option<(u64, Rate)>,
    /// The time of the last arrival.
    last: Instant,
    total: u64,
    looked: Instant,
    empty_looks: u32,
}

impl<'a> Arrivals<'a> {
    fn new(side: &'a Side, plan: &Plan) -> Self {
        let now = Instant::now();
        Self {
            side,
            received: 0,
            writes_before: (plan.op == Op::Write).then(|| side.came_whole()),
            // The window is much longer than the number of messages that can be waiting to be
            // polled.
            window: 4 * u64::from(plan.cq_depth()),
            rate: None,
            last: now,
            total: 0,
            looked: now,
            empty_looks: 0,
        }
    }

    /// Samples the current number of messages.
    fn sample(&mut self) {
        let total = match self.writes_before {
            Some(before) => self.side.came_whole().saturating_sub(before),
            None => self.received,
        };
        if total == self.total {
            return;
        }
        self.last = Instant::now();
        self.total = total;
        self.empty_looks = 0;
        match &mut self.rate {
            Some((first, rate)) => rate.sample(self.last, total - *first),
            None => self.rate = Some((total, Rate::new(self.last, self.window))),
        }
    }

    fn time_to_look(&mut self) -> bool {
        let now = Instant::now();
        let due = now - self.looked >= NAP;
        if due {
            self.looked = now;
        }
        due
    }

    /// Restarts the quiet period when the peer has sent all its messages.
    fn awaited(&mut self, messages: u64) {
        if self.total < messages {
            self.last = Instant::now();
        }
        self.empty_looks = 0;
    }

    /// Returns whether no more messages will arrive. `empty` says that the last check found
    /// nothing.
    fn are_all(&mut self, sent: u64, empty: bool) -> bool {
        if empty {
            self.empty_looks += 1;
        }
        self.total >= sent || self.empty_looks >= LOOKS && self.last.elapsed() >= QUIET
    }

    /// Returns the result for `sent` messages of the peer. `row` has the peer's sending time.
    fn result(&self, bytes: u32, sent: u64, row: Option<Row>) -> Bandwidth {
        let arrived = self.total.min(sent);
        let sender = match row {
            Some(Row::Bw(bw)) => bw.seconds,
            _ => 0.0,
        };
        let (here, best) = match &self.rate {
            Some((_, rate)) => (rate.result(bytes, 0, self.last).seconds, rate.best()),
            None => (0.0, 0.0),
        };
        // The longer time counts, because the last messages may arrive long after they were sent,
        // or many at the same time.
        let seconds = sender.max(here);
        #[expect(clippy::cast_precision_loss, reason = "a rate is no exact number")]
        let average = if arrived == 0 { 0.0 } else { arrived as f64 / seconds.max(1e-9) };
        Bandwidth {
            bytes,
            iterations: sent,
            seconds,
            average,
            peak: best.max(average),
            loss: Some(Loss { lost: sent - arrived, sent }),
            packets: None,
        }
    }
}
