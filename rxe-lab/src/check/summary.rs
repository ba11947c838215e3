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
    /// Requests that the network marked "congestion experienced".
    pub marked: u64,
    /// The same of their responses.
    pub marked_responses: u64,
    /// Congestion notifications that the requester got.
    pub cnps: u64,
    /// Those that the responder got, if it sends no requests.
    pub cnps_to_responder: u64,
    /// What the one of the two that got notifications sent before and after them.
    pub slowdown: Slowdown,
    /// What acknowledges its requests.
    pub acks: Acks,
    /// The credits in acknowledgements.
    pub credits: Credit,
    /// From a request of one packet that asks for an acknowledgement, and was sent once, to it.
    pub round_trips: Times,
    /// From the first packet of a message to the first packet that acknowledges all of it: of all messages
    /// that are whole in the capture, also if they were sent again or acknowledged together.
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

/// What a queue pair sends in the 100 µs before and after congestion notifications. Those that come in
/// the time after another are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowdown {
    /// Notifications.
    pub count: u64,
    /// Bytes of payload before them.
    pub before: u64,
    /// Bytes of payload after them.
    pub after: u64,
}

impl Slowdown {
    /// The rate after notifications, in percent of the rate before; `None` if there are none.
    pub fn percent(&self) -> Option<u64> {
        (self.after * 100).checked_div(self.before)
    }
}

/// How many requests an acknowledgement stands for: coalescing. IBTA 9.7.5.1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acks {
    /// ACKs that are not NAKs.
    pub count: u64,
    /// Those of them that acknowledge something new.
    pub new: u64,
    /// Request packets that they acknowledge.
    pub requests: u64,
    /// Messages that end in them.
    pub messages: u64,
    /// The most request packets that one acknowledges.
    pub most: u64,
    /// Request packets that something else acknowledges: the response to a later READ or atomic, or a
    /// later NAK.
    pub implied: u64,
}

impl Acks {
    /// An ACK for so many requests, the first time.
    pub(super) fn add(&mut self, requests: u64, messages: u64) {
        if requests > 0 {
            self.new += 1;
            self.requests += requests;
            self.messages += messages;
            self.most = self.most.max(requests);
        }
    }
}

/// The credits that acknowledgements carry, in messages. IBTA 9.7.7.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// The fewest, the most and the last; `None` if none carries a number.
    pub range: Option<(u32, u32, u32)>,
    /// Acknowledgements that say that the responder does not count.
    pub unlimited: u64,
}

impl Credit {
    /// An acknowledgement with this code.
    pub(super) fn add(&mut self, code: u8) {
        let Some(now) = messages_of(code) else {
            self.unlimited += 1;
            return;
        };
        let (least, most, _) = self.range.unwrap_or((now, now, now));
        self.range = Some((least.min(now), most.max(now), now));
    }
}

/// The messages that a credit code permits; `None` for 31, which is no number. IBTA 9.7.7.2.
pub(super) fn messages_of(code: u8) -> Option<u32> {
    match code {
        0 | 1 => Some(code.into()),
        2..=30 if code.is_multiple_of(2) => Some(1 << (code / 2)),
        2..=30 => Some(3 << ((code - 3) / 2)),
        _ => None,
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

/// A queue pair that sends datagrams (UD).
#[derive(Debug)]
pub struct DatagramSender {
    /// Its address.
    pub from: Address,
    /// Its number, from the DETH.
    pub qp: u32,
    /// PSNs that are missing.
    pub missing: u64,
    /// Datagrams that came after datagrams with higher PSNs.
    pub late: u64,
    /// Datagrams that came twice. They are counted once.
    pub duplicated: u64,
    /// Congestion notifications that it got.
    pub cnps: u64,
    /// Where its datagrams go.
    pub destinations: Vec<DatagramsTo>,
}

/// Datagrams of one sender to one destination.
#[derive(Debug)]
pub struct DatagramsTo {
    /// The receiver, or a multicast group.
    pub to: Address,
    /// The receiver's queue pair.
    pub dest_qp: u32,
    /// Whether it is a multicast group.
    pub is_multicast: bool,
    /// The Q_Key of the last one.
    pub q_key: u32,
    /// How often the Q_Key has changed.
    pub key_changes: u64,
    /// Its numbers. A datagram is a request and a message.
    pub stats: Stats,
}

impl DatagramsTo {
    /// Whether the Q_Key is a controlled one, which only privileged programs may set. IBTA 3.5.3.
    pub fn is_controlled(&self) -> bool {
        self.q_key >> 31 == 1
    }
}
