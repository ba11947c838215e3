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
    /// The transaction ID of the messages that set it up.
    pub(super) tid: u64,
    pub(super) state: State,
    /// How often the peer lets messages be sent again. IBTA 12.7, max CM retries.
    pub(super) retries: u8,
    /// How long the first of them waits for an answer.
    pub(super) first_wait: Duration,
    /// How long its packets may live in the network.
    pub(super) packet_life: Duration,
    /// The consumer has destroyed it. The manager finishes the protocol, without events.
    pub(super) orphan: bool,
    /// Its entry in the timer list.
    pub(super) armed: Option<Time>,
}

/// A connection or a SIDR query at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The local communication ID.
    pub id: ConnId,
    /// The own queue pair.
    pub local_qpn: Qpn,
    /// The peer's; 0 until it is known.
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
    /// REQ received; the consumer decides. `waiting` counts towards the listener's backlog.
    ReqRcvd { listener: ListenerId, waiting: bool },
    /// REP sent.
    RepSent(Retry),
    /// REP received; the consumer brings its queue pair to RTS.
    RepRcvd,
    /// Both ends may send. The active side keeps its RTU in case it must be sent again.
    Established { rtu: Option<Box<[u8; mad::LEN]>> },
    /// DREQ sent.
    DreqSent(Retry),
    /// DREQ received; the consumer ends its side.
    DreqRcvd { tid: u64 },
    /// Ended, but late packets may still come. Keeps the DREP in case it must be sent again.
    TimeWait { until: Time, drep: Option<Box<[u8; mad::LEN]>> },
    /// SIDR_REQ sent.
    SidrReqSent(Retry),
    /// SIDR_REQ received; the consumer answers.
    SidrReqRcvd { listener: ListenerId, waiting: bool, service_id: u64 },
    /// SIDR_REP sent, and kept for a while in case it must be sent again.
    SidrRepSent { until: Time, rep: Box<[u8; mad::LEN]> },
}

impl State {
    /// As IBTA 12.9.7 and 12.11 call it.
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

    /// Whether the state machine has this transition. A state that the peer or the consumer ends
    /// without TIMEWAIT is forgotten instead.
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

    /// The retries of the message that waits for an answer, if any does.
    pub(super) fn retry(&mut self) -> Option<&mut Retry> {
        match self {
            Self::ReqSent(retry)
            | Self::RepSent(retry)
            | Self::DreqSent(retry)
            | Self::SidrReqSent(retry) => Some(retry),
            _ => None,
        }
    }

    /// When its timer expires.
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

    /// The listener whose backlog counts it.
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
    /// Retries left.
    left: u8,
    /// How long to wait after the last transmission.
    current: Duration,
    /// How long to wait after the next transmission.
    wait: Duration,
    /// The present try has got its whole time a second time.
    excused: bool,
    /// The peer has asked for more time for the present try.
    postponed: bool,
    pub(super) deadline: Time,
}

impl Retry {
    /// The longest first wait: the delay after one lost message. A REP or DREQ waits for less if the
    /// peer says that it answers sooner, and a request for at least half of it.
    pub(super) const FIRST: Duration = Duration::from_millis(500);
    /// The shortest first wait, whatever the peer says.
    const MIN_FIRST: Duration = Duration::from_millis(100);
    /// The longest wait: twice the response timeout in this crate's REQs.
    const MAX_WAIT: Duration = Duration::from_millis(8_590);
    /// The longest time that a peer may ask for with an MRA.
    const MRA_LIMIT: Duration = Duration::from_secs(300);

    /// The first wait for a peer that answers within this time, as a code. IBTA 12.7, local CM response timeout.
    pub(super) fn first_wait(response_timeout: u8) -> Duration {
        timeout(response_timeout).clamp(Self::MIN_FIRST, Self::FIRST)
    }

    /// With this first wait.
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

    /// Returns the message to be sent again; `None` if no retries are left.
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

    /// This host did not run for a while, so it could not receive an answer. The present try gets its
    /// time again, but only once, so that retries also run out on a host that is always late.
    pub(super) fn excuse(&mut self, now: Time) {
        if !std::mem::replace(&mut self.excused, true) {
            self.deadline = self.deadline.max(now + self.current);
        }
    }

    /// The peer asks for more time, with an MRA. It gets that once for each try, so that retries run
    /// out whatever it asks. Returns `false` for a duplicate, which changes nothing. IBTA 12.9.8.
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

/// The time that a 5-bit code stands for: 4.096 µs × 2^code.
pub(super) fn timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}
