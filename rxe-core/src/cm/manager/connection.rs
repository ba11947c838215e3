//! The state of a connection or SIDR query. IBTA 12.9.7, 12.11.

use std::time::Duration;

use super::{ConnId, ListenerId, Route};
use crate::cm::mad;
use crate::types::{Qpn, Time};

/// A connection or a SIDR query.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnId,
    /// The peer's communication ID; 0 until it is known.
    pub(super) remote_id: u32,
    /// The GUID of the peer's device; 0 until it is known.
    pub(super) remote_guid: u64,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) route: Route,
    /// The transaction ID of the messages that establish the connection.
    pub(super) tid: u64,
    pub(super) state: State,
    /// How often the peer permits messages to be retransmitted. IBTA 12.7, max CM retries.
    pub(super) retries: u8,
    /// How long the first transmission waits for an answer.
    pub(super) first_wait: Duration,
    /// How long packets of the connection may live in the network.
    pub(super) packet_life: Duration,
    /// Whether the consumer has destroyed the connection. The manager then completes the protocol
    /// without events.
    pub(super) orphan: bool,
    /// The deadline in the timer list, if the connection has an entry there.
    pub(super) armed: Option<Time>,
}

/// A snapshot of a connection or a SIDR query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The local communication ID.
    pub id: ConnId,
    /// The local QPN.
    pub local_qpn: Qpn,
    /// The QPN of the peer; 0 until it is known.
    pub remote_qpn: Qpn,
    /// The addresses.
    pub route: Route,
    /// The name of the state in the specification.
    pub state: &'static str,
}

impl Connection {
    pub(super) fn info(&self) -> ConnectionInfo {
        ConnectionInfo {
            id: self.id,
            local_qpn: self.local_qpn,
            remote_qpn: self.remote_qpn,
            route: self.route,
            state: self.state.name(),
        }
    }
}

/// The state of a connection or query.
#[derive(Debug)]
pub(super) enum State {
    /// REQ sent.
    ReqSent(Retry),
    /// REQ received; the consumer decides. `waiting` is whether it counts towards the listener's
    /// backlog.
    ReqRcvd { listener: ListenerId, waiting: bool },
    /// REP sent.
    RepSent(Retry),
    /// REP received; the consumer brings its queue pair to RTS.
    RepRcvd,
    /// Both ends may send. The active side keeps its RTU for retransmission.
    Established { rtu: Option<Box<[u8; mad::LEN]>> },
    /// DREQ sent.
    DreqSent(Retry),
    /// DREQ received; the consumer must disconnect.
    DreqRcvd { tid: u64 },
    /// Ended, but late packets may still arrive. Keeps the DREP for retransmission.
    TimeWait { until: Time, drep: Option<Box<[u8; mad::LEN]>> },
    /// SIDR_REQ sent.
    SidrReqSent(Retry),
    /// SIDR_REQ received; the consumer must answer.
    SidrReqRcvd { listener: ListenerId, waiting: bool, service_id: u64 },
    /// SIDR_REP sent, and kept for a while for retransmission.
    SidrRepSent { until: Time, rep: Box<[u8; mad::LEN]> },
}

impl State {
    /// Returns the name of the state in IBTA 12.9.7 and 12.11.
    fn name(&self) -> &'static str {
        match self {
            Self::ReqSent(_) => "REQ_SENT",
            Self::ReqRcvd { .. } => "REQ_RCVD",
            Self::RepSent(_) => "REP_SENT",
            Self::RepRcvd => "REP_RCVD",
            Self::Established { .. } => "ESTABLISHED",
            Self::DreqSent(_) => "DREQ_SENT",
            Self::DreqRcvd { .. } => "DREQ_RCVD",
            Self::TimeWait { .. } => "TIMEWAIT",
            Self::SidrReqSent(_) => "SIDR_REQ_SENT",
            Self::SidrReqRcvd { .. } => "SIDR_REQ_RCVD",
            Self::SidrRepSent { .. } => "SIDR_REP_SENT",
        }
    }

    /// Returns whether the state machine has this transition. A connection that ends without
    /// TIMEWAIT is removed instead.
    pub(super) fn may_become(&self, next: &Self) -> bool {
        matches!(
            (self, next),
            // `connect` and `resolve` begin in REP_RCVD, which has no timer.
            (Self::RepRcvd, Self::ReqSent(_) | Self::SidrReqSent(_) | Self::Established { .. })
                | (Self::ReqRcvd { .. }, Self::RepSent(_))
                | (Self::ReqSent(_), Self::RepRcvd)
                | (Self::RepSent(_), Self::Established { .. })
                | (
                    Self::RepSent(_) | Self::Established { .. },
                    Self::DreqSent(_) | Self::DreqRcvd { .. } | Self::TimeWait { .. }
                )
                | (Self::DreqSent(_) | Self::DreqRcvd { .. }, Self::TimeWait { .. })
                | (Self::TimeWait { drep: None, .. }, Self::TimeWait { drep: Some(_), .. })
                | (Self::SidrReqRcvd { .. }, Self::SidrRepSent { .. })
        )
    }

    /// Returns the retries of the message that waits for an answer, if there is one.
    pub(super) fn retry(&mut self) -> Option<&mut Retry> {
        match self {
            Self::ReqSent(retry)
            | Self::RepSent(retry)
            | Self::DreqSent(retry)
            | Self::SidrReqSent(retry) => Some(retry),
            _ => None,
        }
    }

    /// Returns the time at which the timer of this state expires.
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

    /// Returns the listener whose backlog counts the connection.
    pub(super) fn waits_for(&self) -> Option<ListenerId> {
        match *self {
            Self::ReqRcvd { listener, waiting: true }
            | Self::SidrReqRcvd { listener, waiting: true, .. } => Some(listener),
            _ => None,
        }
    }
}

/// A message that is retransmitted until it is answered.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) mad: Box<[u8; mad::LEN]>,
    /// The number of retries left.
    left: u8,
    /// How long to wait after the last transmission.
    current: Duration,
    /// How long to wait after the next transmission.
    wait: Duration,
    /// Whether the current try has already been granted its whole time once more.
    excused: bool,
    /// Whether the peer has already requested more time for the current try.
    postponed: bool,
    pub(super) deadline: Time,
}

impl Retry {
    /// The longest first wait, hence the delay after one lost message. A REP or DREQ waits for less
    /// if the peer promises to answer sooner, and a request waits for at least half of it.
    pub(super) const FIRST: Duration = Duration::from_millis(500);
    /// The shortest first wait, whatever the peer promises.
    const MIN_FIRST: Duration = Duration::from_millis(100);
    /// The longest wait: twice the response timeout in this crate's REQs.
    const MAX_WAIT: Duration = Duration::from_millis(8_590);
    /// The longest time that a peer may request with an MRA.
    const MRA_LIMIT: Duration = Duration::from_secs(300);

    /// Returns the first wait for a peer with this response timeout code. IBTA 12.7, local CM
    /// response timeout.
    pub(super) fn first_wait(response_timeout: u8) -> Duration {
        timeout(response_timeout).clamp(Self::MIN_FIRST, Self::FIRST)
    }

    /// Creates the retries of a message just sent, with `current` as the first wait.
    pub(super) fn waiting(
        now: Time,
        mad: Box<[u8; mad::LEN]>,
        retries: u8,
        current: Duration,
    ) -> Self {
        let wait = current * 2;
        debug_assert!(current > Duration::ZERO && wait <= Self::MAX_WAIT, "{current:?}");
        Self {
            mad,
            left: retries,
            current,
            wait,
            excused: false,
            postponed: false,
            deadline: now + current,
        }
    }

    /// Returns the message to retransmit, or `None` if no retries are left.
    pub(super) fn again(&mut self, now: Time) -> Option<&[u8; mad::LEN]> {
        self.left = self.left.checked_sub(1)?;
        self.excused = false;
        self.postponed = false;
        self.current = self.wait;
        self.deadline = now + self.current;
        self.wait = (self.wait * 2).min(Self::MAX_WAIT);
        debug_assert!(self.deadline > now && self.wait >= self.current, "waits only grow");
        Some(&self.mad)
    }

    /// Grants the current try its time once more. This host did not run for a while and could not
    /// receive an answer. Each try is granted this only once, so that retries also run out on a
    /// host that is always late.
    pub(super) fn excuse(&mut self, now: Time) {
        if !std::mem::replace(&mut self.excused, true) {
            self.deadline = self.deadline.max(now + self.current);
        }
    }

    /// Grants the time that a peer requests by an MRA, once for each try. Therefore retries run out
    /// whatever the peer requests. Returns `false` for a duplicate, which changes nothing. IBTA
    /// 12.9.8.
    pub(super) fn postpone(&mut self, now: Time, service_timeout: u8) -> bool {
        if std::mem::replace(&mut self.postponed, true) {
            return false;
        }
        let time = timeout(service_timeout).min(Self::MRA_LIMIT);
        self.deadline = self.deadline.max(now + time);
        debug_assert!(self.deadline >= now && time <= Self::MRA_LIMIT);
        true
    }
}

/// Returns the time of a 5-bit code: 4.096 µs × 2^code.
pub(super) fn timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}
