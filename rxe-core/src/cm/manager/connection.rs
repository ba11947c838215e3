//! One connection or question: its state as data. IBTA 12.9.7, 12.11.

use std::time::Duration;

use super::{ConnId, ListenerId, Route};
use crate::cm::mad;
use crate::types::{Qpn, Time};

/// A connection, or a question for a datagram service.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnId,
    /// The peer's name for it; 0 until it is known.
    pub(super) remote_id: u32,
    /// The peer's device; 0 until it is known.
    pub(super) remote_guid: u64,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) route: Route,
    /// Of the messages that set it up.
    pub(super) tid: u64,
    pub(super) state: State,
    /// How long its packets may live in the network.
    pub(super) packet_life: Duration,
    /// The consumer has destroyed it: what is left to do is done without it.
    pub(super) orphan: bool,
    /// Its entry in the timer list.
    pub(super) armed: Option<Time>,
}

/// Where it stands.
#[derive(Debug)]
pub(super) enum State {
    /// REQ sent.
    ReqSent(Retry),
    /// REQ received; the consumer decides. `waiting` counts towards the listener's backlog.
    ReqRcvd { listener: ListenerId, waiting: bool },
    /// REP sent.
    RepSent(Retry),
    /// REP received; the consumer brings its queue pair up.
    RepRcvd,
    /// Both ends may send. The active side keeps its RTU, in case it is lost.
    Established { rtu: Option<Box<[u8; mad::LEN]>> },
    /// DREQ sent.
    DreqSent(Retry),
    /// DREQ received; the consumer ends its side.
    DreqRcvd { tid: u64 },
    /// Ended; late packets may still come. With the DREP, in case it is lost.
    TimeWait { until: Time, drep: Option<Box<[u8; mad::LEN]>> },
    /// SIDR_REQ sent.
    SidrReqSent(Retry),
    /// SIDR_REQ received; the consumer answers.
    SidrReqRcvd { listener: ListenerId, waiting: bool, service_id: u64 },
    /// SIDR_REP sent: kept for a while, in case it is lost.
    SidrRepSent { until: Time, rep: Box<[u8; mad::LEN]> },
}

impl State {
    /// What waits for an answer.
    pub(super) fn retry(&mut self) -> Option<&mut Retry> {
        match self {
            Self::ReqSent(retry)
            | Self::RepSent(retry)
            | Self::DreqSent(retry)
            | Self::SidrReqSent(retry) => Some(retry),
            _ => None,
        }
    }

    /// When it must be looked at next.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::ReqSent(retry)
            | Self::RepSent(retry)
            | Self::DreqSent(retry)
            | Self::SidrReqSent(retry) => Some(retry.deadline),
            Self::TimeWait { until, .. } | Self::SidrRepSent { until, .. } => Some(*until),
            Self::ReqRcvd { .. }
            | Self::RepRcvd
            | Self::Established { .. }
            | Self::DreqRcvd { .. }
            | Self::SidrReqRcvd { .. } => None,
        }
    }

    /// The listener in whose backlog it stands.
    pub(super) fn waits_for(&self) -> Option<ListenerId> {
        match *self {
            Self::ReqRcvd { listener, waiting: true }
            | Self::SidrReqRcvd { listener, waiting: true, .. } => Some(listener),
            _ => None,
        }
    }
}

/// A message that is sent again until it is answered.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) mad: Box<[u8; mad::LEN]>,
    /// How often it may still be sent.
    left: u8,
    /// How long to wait the next time.
    wait: Duration,
    pub(super) deadline: Time,
}

impl Retry {
    /// The first wait: what a lost message costs.
    pub(super) const FIRST: Duration = Duration::from_millis(500);
    /// The longest: twice what a REQ of this crate lets its peer take.
    const LONGEST: Duration = Duration::from_millis(8_590);
    /// The most that a peer may ask for by MRA.
    const MRA_LIMIT: Duration = Duration::from_secs(300);

    pub(super) fn new(now: Time, mad: Box<[u8; mad::LEN]>, retries: u8) -> Self {
        Self { mad, left: retries, wait: Self::FIRST * 2, deadline: now + Self::FIRST }
    }

    /// The message, if it is to be sent again.
    pub(super) fn again(&mut self, now: Time) -> Option<&[u8; mad::LEN]> {
        self.left = self.left.checked_sub(1)?;
        self.deadline = now + self.wait;
        self.wait = (self.wait * 2).min(Self::LONGEST);
        Some(&self.mad)
    }

    /// The peer says that it will take this long.
    pub(super) fn postpone(&mut self, now: Time, service_timeout: u8) {
        let time = timeout(service_timeout).min(Self::MRA_LIMIT);
        self.deadline = self.deadline.max(now + time);
    }
}

/// 4.096 µs times 2 to the power of a 5-bit code.
pub(super) fn timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}
