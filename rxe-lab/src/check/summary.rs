//! What a connection did in one direction, in numbers.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::frame::Address;

/// Requests of one direction of a connection, and their responses.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets with a right structure and ICRC: requests.
    pub requests: u64,
    /// The same: responses.
    pub responses: u64,
    /// Messages whose last packet was captured.
    pub messages: u64,
    /// Bytes of their payloads, each counted once; those of READs too.
    pub bytes: u64,
    /// Request packets that were sent again.
    pub retransmitted: u64,
    /// Bytes of their payloads.
    pub retransmitted_bytes: u64,
    /// Packets that the network marked "congestion experienced".
    pub marked: u64,
    /// Congestion notifications that its sender got.
    pub cnps: u64,
    /// From a request of one packet that asks for an acknowledgement to it.
    pub round_trips: Times,
    /// From the first packet of a message to its acknowledgement.
    pub latencies: Times,
    /// The time of the first packet and of the last.
    pub(super) span: Option<(Duration, Duration)>,
}

impl Stats {
    /// The time from its first packet to its last.
    pub fn duration(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last.saturating_sub(first))
    }

    /// Bytes a second, each counted once; `None` if no time has passed.
    pub fn goodput(&self) -> Option<f64> {
        let seconds = self.duration().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let bytes = self.bytes as f64;
        (seconds > 0.0 && self.bytes > 0).then(|| bytes / seconds)
    }
}

/// Times, with two digits.
#[derive(Debug, Default)]
pub struct Times(Option<Box<Histogram<u32>>>);

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if self.0.is_none() {
            self.0 = Histogram::new_with_max(1 << 40, 2).ok().map(Box::new);
        }
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(nanos);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, |h| h.len())
    }

    /// A percentile, from 0 to 100; `None` if there is no time.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let histogram = self.0.as_ref()?;
        Some(Duration::from_nanos(histogram.value_at_percentile(percent)))
    }
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Direction {
    /// The requester.
    pub from: Address,
    /// The responder.
    pub to: Address,
    /// The requester's queue pair, if a message of the communication manager or a response told it.
    pub source_qp: Option<u32>,
    /// The responder's queue pair.
    pub dest_qp: u32,
    /// The transport service, as in opcodes.
    pub service: &'static str,
    /// The path MTU, if it is known.
    pub mtu: Option<u32>,
    /// Its numbers.
    pub stats: Stats,
}
