//! Bandwidth over UC and UD: each sending side sends as fast as it can, and the other counts the
//! messages that arrive. Rates count messages that arrived.

use std::time::{Duration, Instant};

use super::super::bw::{Sends, take};
use super::super::control::{ControlChannel, Message, unexpected};
use super::super::plan::{Op, Plan};
use super::super::progress::Progress;
use super::super::side::{BATCH, NAP, Side, Watchdog};
use super::super::stats::{Bandwidth, Loss, Rate, Row};
use crate::common::Error;

/// After the peer has sent all its messages, and nothing has come for so long and so many checks, the
/// rest is lost.
const QUIET: Duration = Duration::from_millis(300);
const LOOKS: u32 = 6;

/// Measures one size. If both directions are measured, the result is for both together.
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
            // Messages of the peer over TCP are read now and then, also while packets arrive.
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
        // The peer sends two messages for each size; a third one is about the next size.
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

/// The sum of both directions; one of them may be empty.
fn total(own: Bandwidth, theirs: Bandwidth) -> Bandwidth {
    match (own.iterations, theirs.iterations) {
        (_, 0) => own,
        (0, _) => theirs,
        _ => own.plus(theirs),
    }
}

/// What was exchanged over TCP for a size, in both directions.
#[derive(Default)]
struct Reports {
    sent_reported: bool,
    /// How many messages the peer has sent, and how fast.
    sent: Option<(u64, Option<Row>)>,
    /// How many of those arrived, after we have told the peer.
    counted: Option<Bandwidth>,
    /// How many of our messages arrived.
    arrived: Option<Bandwidth>,
}

/// The messages that arrive from the peer.
struct Arrivals<'a> {
    side: &'a Side,
    /// How many receives completed.
    received: u64,
    /// WRITEs make no completions: the device's count before the first of them.
    writes_before: Option<u64>,
    /// The number of messages in a window.
    window: u64,
    /// From the first arrival on: the number at that time, and the rate since.
    rate: Option<(u64, Rate)>,
    /// When the number last changed.
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
            // Much more messages than can have waited to be polled.
            window: 4 * u64::from(plan.cq_depth()),
            rate: None,
            last: now,
            total: 0,
            looked: now,
            empty_looks: 0,
        }
    }

    /// Samples the present number.
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

    /// The peer has sent all.
    fn awaited(&mut self, messages: u64) {
        if self.total < messages {
            self.last = Instant::now();
        }
        self.empty_looks = 0;
    }

    /// Whether no more messages will come. `empty`: the last check found nothing.
    fn are_all(&mut self, sent: u64, empty: bool) -> bool {
        if empty {
            self.empty_looks += 1;
        }
        self.total >= sent || self.empty_looks >= LOOKS && self.last.elapsed() >= QUIET
    }

    /// The result, if the peer sent `sent` messages in the time that `row` says.
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
        // The longer time counts: the last messages may arrive long after they were sent, or all at
        // once.
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
