//! Statistics of each direction of a connection.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::frame::Address;
use crate::words::messages_of;

/// Statistics of the requests of one direction, and of their responses.
#[derive(Debug, Default)]
pub struct Stats {
    /// The number of request packets with a valid structure and ICRC.
    pub requests: u64,
    /// The number of response packets with a valid structure and ICRC.
    pub responses: u64,
    /// The number of messages whose last packet was captured.
    pub messages: u64,
    /// The payload of all messages in bytes, counted once, including READ data.
    pub bytes: u64,
    /// The number of request packets that were retransmitted.
    pub retransmitted: u64,
    /// The payload of the retransmitted packets in bytes.
    pub retransmitted_bytes: u64,
    /// The number of requests with the ECN mark "congestion experienced".
    pub marked: u64,
    /// The number of responses with the ECN mark "congestion experienced".
    pub marked_responses: u64,
    /// The number of congestion notifications to the requester.
    pub cnps: u64,
    /// The number of congestion notifications to the responder, if it sends no requests.
    pub cnps_to_responder: u64,
    /// The rate of the notified side before and after congestion notifications.
    pub slowdown: Slowdown,
    /// The acknowledgements of the requests.
    pub acks: Acks,
    /// The credits in the acknowledgements.
    pub credits: Credit,
    /// Times from a request to its acknowledgement.
    /// Measured for single-packet requests with AckReq that were sent once.
    pub round_trips: Times,
    /// Times from the first packet of a message to the acknowledgement of all of it.
    /// Measured for all messages that were captured whole, also if they were retransmitted or
    /// acknowledged together.
    pub latencies: Times,
    /// The requester's timer, as far as timeouts show it.
    pub timer: Timer,
    /// The times of the first and the last packet.
    pub(super) span: Option<(Duration, Duration)>,
}

impl Stats {
    /// Returns the time from the first packet to the last.
    pub fn duration(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last.saturating_sub(first))
    }

    /// Returns the payload rate in bytes per second, without retransmissions.
    /// `None` if no time passed or no payload was sent.
    pub fn goodput(&self) -> Option<f64> {
        let seconds = self.duration().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let bytes = self.bytes as f64;
        (seconds > 0.0 && self.bytes > 0).then(|| bytes / seconds)
    }
}

/// How long a requester waited before it sent again, where only a timer explains that it did.
/// A timer expires after one to four times the time of its code. IBTA 9.7.6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timer {
    /// The number of timeouts.
    pub count: u64,
    least: Duration,
    most: Duration,
    /// The Local ACK Timeout that the requester named in its REQ.
    pub of_req: Option<u8>,
}

impl Timer {
    pub(super) fn add(&mut self, waited: Duration) {
        self.least = if self.count == 0 { waited } else { self.least.min(waited) };
        self.most = self.most.max(waited);
        self.count += 1;
    }

    /// Returns the time after which the timer expires.
    /// `None` without timeouts, or if their times differ: cards adapt their timers.
    pub fn time(&self) -> Option<Duration> {
        (self.count > 0 && self.most * 4 <= self.least * 5).then_some(self.least)
    }

    /// Returns the least and the greatest Local ACK Timeout that may have this time.
    pub fn codes(&self) -> Option<(u8, u8)> {
        let units = u64::try_from(self.time()?.as_nanos() / 4096).ok()?;
        let most =
            u8::try_from(units.checked_ilog2()?).ok().filter(|code| (1..32).contains(code))?;
        Some((most.saturating_sub(2).max(1), most))
    }
}

/// The bytes sent in the 100 µs before and in the 100 µs after congestion notifications.
/// A notification within 100 µs after another is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowdown {
    /// The number of notifications counted.
    pub count: u64,
    /// The payload before the notifications, in bytes.
    pub before: u64,
    /// The payload after the notifications, in bytes.
    pub after: u64,
}

impl Slowdown {
    /// Returns the later rate in percent of the earlier; `None` without notifications.
    pub fn percent(&self) -> Option<u64> {
        (self.after * 100).checked_div(self.before)
    }
}

/// How many requests the acknowledgements cover (coalescing). IBTA 9.7.5.1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acks {
    /// The number of positive acknowledgements.
    pub count: u64,
    /// The number of acknowledgements that cover something new.
    pub new: u64,
    /// The number of request packets that they cover.
    pub requests: u64,
    /// The number of messages that end in these packets.
    pub messages: u64,
    /// The most request packets that one acknowledgement covers.
    pub most: u64,
    /// The number of request packets acknowledged implicitly.
    /// A later NAK, or the response to a later READ or atomic, acknowledges them.
    pub implied: u64,
}

impl Acks {
    /// Counts an acknowledgement that newly covers this many request packets and messages.
    pub(super) fn add(&mut self, requests: u64, messages: u64) {
        if requests > 0 {
            self.new += 1;
            self.requests += requests;
            self.messages += messages;
            self.most = self.most.max(requests);
        }
    }
}

/// The credits in acknowledgements, in messages. IBTA 9.7.7.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// The fewest, the most and the last credits; `None` if no acknowledgement had a number.
    pub range: Option<(u32, u32, u32)>,
    /// The number of acknowledgements that say that the responder does not count.
    pub unlimited: u64,
}

impl Credit {
    /// Counts an acknowledgement with this credit code.
    pub(super) fn add(&mut self, code: u8) {
        let Some(now) = messages_of(code) else {
            self.unlimited += 1;
            return;
        };
        let (least, most, _) = self.range.unwrap_or((now, now, now));
        self.range = Some((least.min(now), most.max(now), now));
    }
}

/// A histogram of times up to 2^40 ns (18 minutes), with a precision of two digits.
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

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, |h| h.len())
    }

    /// Returns a percentile, from 0 to 100; `None` if there are no times.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let histogram = self.0.as_ref()?;
        Some(Duration::from_nanos(histogram.value_at_percentile(percent)))
    }
}

/// The statistics of one direction of a connection.
#[derive(Debug)]
pub struct Direction {
    /// The requester.
    pub from: Address,
    /// The responder.
    pub to: Address,
    /// The requester's queue pair, if a CM message or a response revealed it.
    pub source_qp: Option<u32>,
    /// The responder's queue pair.
    pub dest_qp: u32,
    /// The transport service: RC, XRC or UC.
    pub service: &'static str,
    /// The path MTU in bytes, if it is known.
    pub mtu: Option<u32>,
    /// The statistics.
    pub stats: Stats,
}

/// A queue pair that sends datagrams (UD).
#[derive(Debug)]
pub struct DatagramSender {
    /// The address of the sender.
    pub from: Address,
    /// The number of the sending queue pair, from the DETH.
    pub qp: u32,
    /// The number of missing PSNs.
    pub missing: u64,
    /// The number of datagrams that came after datagrams with higher PSNs.
    pub late: u64,
    /// The number of datagrams that came twice. Each is counted once elsewhere.
    pub duplicated: u64,
    /// The number of congestion notifications to the sender.
    pub cnps: u64,
    /// The destinations of the datagrams.
    pub destinations: Vec<DatagramsTo>,
}

/// The datagrams of one sender to one destination.
#[derive(Debug)]
pub struct DatagramsTo {
    /// The address of the receiver, or of a multicast group.
    pub to: Address,
    /// The receiver's queue pair.
    pub dest_qp: u32,
    /// Whether the destination is a multicast group.
    pub is_multicast: bool,
    /// The Q_Key of the last datagram.
    pub q_key: u32,
    /// The number of times that the Q_Key changed.
    pub key_changes: u64,
    /// The statistics, in which each datagram is a request and a message.
    pub stats: Stats,
}

impl DatagramsTo {
    /// Returns whether only privileged programs may set the Q_Key. IBTA 3.5.3.
    pub fn is_controlled(&self) -> bool {
        self.q_key >> 31 == 1
    }
}
