//! The results of a run, and how they are measured.

use serde::Serialize;

use super::Settings;
use super::host::{Connection, Host};
use super::topology::Topology;
use rxe_net::Egress;

/// The results of a run.
/// Unless stated otherwise, they cover the time from [`Settings::warm`] to [`Settings::end`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The number of connections.
    pub connections: u32,
    /// The payload of delivered messages as a fraction of the capacity of the receivers' links.
    pub goodput: f64,
    /// Request packets sent for the first time.
    pub requests: u64,
    /// Request packets that were retransmitted.
    pub again: u64,
    /// Packets that switches dropped.
    pub lost: u64,
    /// Packets that switches marked "congestion experienced".
    pub marked: u64,
    /// The mean length of the queue in front of a receiver, in bytes.
    pub mean_queue: u64,
    /// The longest queue of any switch, in bytes.
    pub longest_queue: u64,
    /// Jain's fairness index of the messages per connection: 1 if all connections sent equally
    /// many, 1/n if one connection sent all.
    pub fairness: f64,
    /// The fewest messages on one connection.
    pub fewest: u32,
    /// The most messages on one connection.
    pub most: u32,
    /// The time from posting a message to its completion: each percentile from 0 to 100, in microseconds.
    /// It covers messages posted between `warm` and `end`. Empty if there is none.
    pub completion_time: Vec<f64>,
    /// Retries because no answer came within the QP's timeout attribute.
    pub ack_timeouts: u64,
    /// Round-trip timeouts.
    pub round_trip_timeouts: u64,
    /// Retries because the peer reported a gap.
    pub gaps: u64,
    /// Congestion notifications sent.
    pub notifications: u64,
    /// Connections that failed in the whole run, most of them because the retries were used up.
    pub failed: u32,
    /// When the last message completed, in microseconds.
    pub finished: f64,
    /// The most packets that were in flight simultaneously in the whole run.
    pub packets: usize,
    /// Samples from the start of the run to [`Settings::end`].
    pub samples: Vec<Sample>,
}

impl Figures {
    /// Returns all figures but the samples and most percentiles, as text.
    pub fn summary(&self) -> String {
        let times = [50, 99, 100].map(|percent| self.completion_time.get(percent).copied());
        let short = Self { samples: Vec::new(), completion_time: Vec::new(), ..self.clone() };
        format!("{short:?}, median, 99 % and most µs of a message {times:?}")
    }
}

/// What was measured in one interval of [`Settings::sample`] microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// The longest queue in front of host 0, in bytes.
    pub queue: u64,
}

/// Measures a run.
#[derive(Debug)]
pub(super) struct Recorder {
    topology: Topology,
    gigabits: u64,
    sample: u64,
    warm: u64,
    end: u64,
    /// The index of the port to host 0.
    watched: usize,
    receivers: Vec<usize>,
    /// Messages that each connection had delivered when counting began.
    before: Vec<u32>,
    counted: Counted,
    times: Vec<u64>,
    finished: u64,
    is_counting: bool,
    figures: Figures,
}

/// Sums of the counters of all engines.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    ack_timeouts: u64,
    round_trip_timeouts: u64,
    gaps: u64,
    notifications: u64,
}

impl Counted {
    fn of(hosts: &[Host]) -> Self {
        hosts.iter().map(|host| host.engine.counters()).fold(Self::default(), |sum, counters| {
            Self {
                ack_timeouts: sum.ack_timeouts + counters.ack_timeout,
                round_trip_timeouts: sum.round_trip_timeouts + counters.round_trip_timeout,
                gaps: sum.gaps + counters.retry_sequence_nak,
                notifications: sum.notifications + counters.cnp_sent,
            }
        })
    }
}

impl Recorder {
    pub(super) fn new(settings: &Settings, connections: usize) -> Self {
        let topology = settings.topology;
        let samples = settings.end.div_ceil(settings.sample);
        let mut receivers: Vec<_> =
            settings.traffic.pairs.iter().map(|(_, to)| topology.to_host(*to)).collect();
        receivers.sort_unstable();
        receivers.dedup();
        Self {
            topology,
            gigabits: settings.gigabits,
            sample: settings.sample * 1000,
            warm: settings.warm * 1000,
            end: settings.end * 1000,
            watched: topology.to_host(0),
            receivers,
            before: vec![0; connections],
            counted: Counted::default(),
            times: Vec::new(),
            finished: 0,
            is_counting: false,
            figures: Figures {
                connections: u32::try_from(connections).unwrap_or(u32::MAX),
                samples: vec![Sample::default(); usize::try_from(samples).unwrap_or(0)],
                ..Figures::default()
            },
        }
    }

    /// Starts counting.
    pub(super) fn begin(
        &mut self,
        ports: &mut [Egress],
        hosts: &[Host],
        connections: &[Connection],
    ) {
        ports.iter_mut().for_each(Egress::reset_counters);
        self.before = connections.iter().map(|connection| connection.delivered).collect();
        self.counted = Counted::of(hosts);
        self.is_counting = true;
    }

    /// Stops counting, and computes the figures of the counted time.
    pub(super) fn end(&mut self, ports: &[Egress], hosts: &[Host], connections: &[Connection]) {
        let nanos = self.end - self.warm;
        self.is_counting = false;
        let figures = &mut self.figures;
        let messages: Vec<u32> =
            connections.iter().zip(&self.before).map(|(c, before)| c.delivered - before).collect();
        let bytes: u64 = connections
            .iter()
            .zip(&messages)
            .map(|(connection, n)| u64::from(connection.message) * u64::from(*n))
            .sum();
        let capacity = self.gigabits * self.receivers.len() as u64 * nanos / 8;
        figures.goodput = ratio(bytes, capacity);
        figures.fairness = jain(&messages);
        figures.fewest = messages.iter().copied().min().unwrap_or(0);
        figures.most = messages.iter().copied().max().unwrap_or(0);
        for port in &ports[self.topology.hosts() as usize..] {
            figures.lost += port.counters().lost;
            figures.marked += port.counters().marked;
            figures.longest_queue = figures.longest_queue.max(port.counters().longest);
        }
        let queues: u64 = self.receivers.iter().map(|&at| ports[at].counters().mean(nanos)).sum();
        figures.mean_queue = queues / self.receivers.len().max(1) as u64;
        let (now, before) = (Counted::of(hosts), self.counted);
        figures.ack_timeouts = now.ack_timeouts - before.ack_timeouts;
        figures.round_trip_timeouts = now.round_trip_timeouts - before.round_trip_timeouts;
        figures.gaps = now.gaps - before.gaps;
        figures.notifications = now.notifications - before.notifications;
    }

    /// Records a sent request packet. `again`: it is a retransmission.
    pub(super) fn sent(&mut self, again: bool) {
        if self.is_counting {
            self.figures.requests += u64::from(!again);
            self.figures.again += u64::from(again);
        }
    }

    /// Records the length of a port's queue when a packet enters it.
    pub(super) fn queue(&mut self, at: usize, now: u64, port: &Egress) {
        if at == self.watched
            && let Some(sample) = self
                .figures
                .samples
                .get_mut(usize::try_from(now / self.sample).unwrap_or(usize::MAX))
        {
            sample.queue = sample.queue.max(port.length(now));
        }
    }

    /// Records a completed message. Times are in nanoseconds.
    pub(super) fn completed(&mut self, posted: u64, now: u64) {
        self.finished = now;
        if (self.warm..self.end).contains(&posted) {
            self.times.push(now - posted);
        }
    }

    /// Returns all figures after the run. `packets`: the most packets that were in flight simultaneously.
    pub(super) fn figures(&mut self, packets: usize, connections: &[Connection]) -> Figures {
        self.times.sort_unstable();
        if let Some(last) = self.times.len().checked_sub(1) {
            let at = |percent: usize| micros(self.times[last * percent / 100]);
            self.figures.completion_time = (0..=100).map(at).collect();
        }
        self.figures.finished = micros(self.finished);
        self.figures.packets = packets;
        let failed = connections.iter().filter(|connection| connection.failure.is_some()).count();
        self.figures.failed = u32::try_from(failed).unwrap_or(u32::MAX);
        std::mem::take(&mut self.figures)
    }
}

/// Returns Jain's fairness index: the square of the sum, divided by n times the sum of the squares.
fn jain(values: &[u32]) -> f64 {
    let sum: u64 = values.iter().map(|&v| u64::from(v)).sum();
    let squares: u64 = values.iter().map(|&v| u64::from(v).pow(2)).sum();
    if squares == 0 { 0.0 } else { ratio(sum * sum, values.len() as u64 * squares) }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn micros(nanos: u64) -> f64 {
    ratio(nanos, 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_equals_and_small_if_one_has_everything() {
        assert!((jain(&[7, 7, 7]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-9);
        assert!(jain(&[0, 0]).abs() < 1e-9);
    }
}
