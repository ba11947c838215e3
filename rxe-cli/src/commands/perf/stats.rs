//! The results of a measurement: rates, and the distribution of latencies.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rxe_core::engine::Counters;
use serde::{Deserialize, Serialize};

/// The result of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Row {
    Bw(Bandwidth),
    Lat(Latency),
}

/// A bandwidth result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Bandwidth {
    /// The length of a message in bytes.
    pub(super) bytes: u32,
    /// The messages sent on all queue pairs.
    pub(super) iterations: u64,
    pub(super) seconds: f64,
    /// Messages that arrived per second: over the whole time, and in the best window (`peak`).
    pub(super) average: f64,
    pub(super) peak: f64,
    /// The messages that did not arrive, for services that lose messages.
    pub(super) loss: Option<Loss>,
    /// The packets, for services that retransmit.
    #[serde(default)]
    pub(super) packets: Option<Packets>,
}

/// The packets that the sending sides sent in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Packets {
    pub(super) sent: u64,
    /// The retransmissions among these packets.
    pub(super) again: u64,
}

impl Packets {
    pub(super) fn of(counters: &Counters) -> Self {
        Self { sent: counters.sent_pkts, again: counters.retransmitted_pkts }
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self { sent: self.sent - before.sent, again: self.again - before.again }
    }

    fn plus(self, other: Self) -> Self {
        Self { sent: self.sent + other.sent, again: self.again + other.again }
    }
}

/// The sent messages and how many of them were lost, in all measured directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Loss {
    pub(super) lost: u64,
    pub(super) sent: u64,
}

impl Loss {
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits after the point")]
    pub(super) fn percent(self) -> f64 {
        self.lost as f64 * 100.0 / self.sent.max(1) as f64
    }

    fn plus(self, other: Self) -> Self {
        Self { lost: self.lost + other.lost, sent: self.sent + other.sent }
    }
}

impl Bandwidth {
    /// Returns the sum of both directions.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            seconds: self.seconds.max(other.seconds),
            average: self.average + other.average,
            peak: self.peak + other.peak,
            loss: self.loss.zip(other.loss).map(|(own, theirs)| own.plus(theirs)),
            packets: self.packets.zip(other.packets).map(|(own, theirs)| own.plus(theirs)),
            ..self
        }
    }
}

/// A latency result. Times are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Latency {
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    pub(super) t_min_usec: f64,
    pub(super) t_max_usec: f64,
    /// The median.
    pub(super) t_typical_usec: f64,
    pub(super) t_avg_usec: f64,
    pub(super) t_stdev_usec: f64,
    pub(super) percentile_99_usec: f64,
    pub(super) percentile_99_9_usec: f64,
    /// The rounds without an answer, not in `iterations`, for services that lose messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<u64>,
}

/// Counts messages as they complete, and finds the best window.
pub(super) struct Rate {
    start: Instant,
    /// The least number of messages in a window.
    window: u64,
    /// Times, with the number of complete messages at each, back to one window ago.
    recent: VecDeque<(Instant, u64)>,
    best: f64,
}

impl Rate {
    pub(super) fn new(start: Instant, window: u64) -> Self {
        Self { start, window, recent: VecDeque::from([(start, 0)]), best: 0.0 }
    }

    /// Records that `total` messages are complete.
    pub(super) fn sample(&mut self, now: Instant, total: u64) {
        while let Some(&(_, next)) = self.recent.get(1)
            && total - next >= self.window
        {
            self.recent.pop_front();
        }
        if let Some(&(then, before)) = self.recent.front()
            && total - before >= self.window
        {
            self.best = self.best.max(per_second(total - before, now - then));
        }
        self.recent.push_back((now, total));
    }

    /// Returns the messages per second in the best window; 0 if there were too few for one.
    pub(super) fn best(&self) -> f64 {
        self.best
    }

    pub(super) fn result(&self, bytes: u32, iterations: u64, now: Instant) -> Bandwidth {
        let time = now - self.start;
        let average = per_second(iterations, time);
        let seconds = time.as_secs_f64();
        let peak = self.best.max(average);
        Bandwidth { bytes, iterations, seconds, average, peak, loss: None, packets: None }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is no exact number")]
fn per_second(n: u64, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64().max(1e-9)
}

/// Collects latencies.
pub(super) struct Latencies {
    /// The distribution in nanoseconds.
    histogram: Histogram<u64>,
    /// Exact values, which the histogram would round.
    min: Duration,
    max: Duration,
    sum: Duration,
}

impl Latencies {
    /// Creates a collection for times from 1 ns to a minute, with a resolution of a thousandth.
    pub(super) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Self {
            histogram: histogram.expect("the bounds are right"),
            min: Duration::MAX,
            max: Duration::ZERO,
            sum: Duration::ZERO,
        }
    }

    pub(super) fn record(&mut self, time: Duration) {
        self.histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.min = self.min.min(time);
        self.max = self.max.max(time);
        self.sum += time;
    }

    #[expect(clippy::cast_precision_loss, reason = "times are shown to a hundredth of a µs")]
    pub(super) fn result(&self, bytes: u32) -> Latency {
        let n = self.histogram.len();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        // The histogram's steps are coarser than the clock's, so a quantile could exceed the
        // maximum.
        let quantile = |q| (self.histogram.value_at_quantile(q) as f64 / 1e3).min(micros(self.max));
        Latency {
            bytes,
            iterations: n,
            t_min_usec: micros(self.min.min(self.max)),
            t_max_usec: micros(self.max),
            t_typical_usec: quantile(0.5),
            t_avg_usec: micros(self.sum) / n.max(1) as f64,
            t_stdev_usec: self.histogram.stdev() / 1e3,
            percentile_99_usec: quantile(0.99),
            percentile_99_9_usec: quantile(0.999),
            lost: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_stretch_is_the_peak() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rate = Rate::new(start, 10);
        for (ms, total) in [(10, 5), (20, 10), (30, 15), (31, 20), (32, 25), (50, 30)] {
            rate.sample(at(ms), total);
        }
        let result = rate.result(64, 30, at(50));
        assert!((result.average - 600.0).abs() < 1.0, "{result:?}");
        assert!((result.peak - 5000.0).abs() < 1.0, "10 messages in 2 ms: {result:?}");
    }

    #[test]
    fn latencies_are_told_by_their_distribution() {
        let mut all = Latencies::new();
        (1..=1000).for_each(|us| all.record(Duration::from_micros(us)));
        let got = all.result(2);
        assert_eq!((got.iterations, got.t_min_usec, got.t_max_usec), (1000, 1.0, 1000.0));
        let near = |value: f64, want: f64| (value - want).abs() <= want / 500.0;
        assert!(near(got.t_typical_usec, 500.0) && near(got.t_avg_usec, 500.5), "{got:?}");
        assert!(near(got.percentile_99_usec, 990.0), "{got:?}");
        assert!(near(got.percentile_99_9_usec, 999.0) && near(got.t_stdev_usec, 288.7), "{got:?}");
    }

    #[test]
    fn losses_of_both_directions_are_added_up() {
        let (start, rate) = (Instant::now(), Rate::new(Instant::now(), 10));
        let of = |lost, sent| {
            let one = rate.result(64, sent, start + Duration::from_secs(1));
            Bandwidth { loss: Some(Loss { lost, sent }), ..one }
        };
        let loss = of(10, 100).plus(of(30, 300)).loss.unwrap();
        assert_eq!((loss.lost, loss.sent, loss.percent().round()), (40, 400, 10.0));
    }

    #[test]
    fn nothing_measured_is_no_division_by_zero() {
        let none = Latencies::new().result(2);
        assert_eq!((none.iterations, none.t_min_usec, none.t_avg_usec), (0, 0.0, 0.0));
    }
}
