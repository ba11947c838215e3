//! What the peer is given for a case: a queue pair and a region.

use std::fmt;

/// The service of the peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Rc,
    Uc,
    Ud,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
        })
    }
}

/// Rights, as in `IBV_ACCESS_*`.
pub(super) mod access {
    pub(in super::super) const LOCAL_WRITE: u8 = 1;
    pub(in super::super) const REMOTE_WRITE: u8 = 2;
    pub(in super::super) const REMOTE_READ: u8 = 4;
    pub(in super::super) const REMOTE_ATOMIC: u8 = 8;
    pub(in super::super) const ALL: u8 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// The peer's queue pair and memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) service: Service,
    /// Rights of the queue pair.
    pub(super) qp_access: u8,
    /// Rights of the region.
    pub(super) mr_access: u8,
    /// Local ACK timeout, as its code.
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    /// As its code.
    pub(super) min_rnr_timer: u8,
    /// READs and atomics that the peer may have outstanding.
    pub(super) max_rd_atomic: u8,
    /// The first PSN that the peer expects.
    pub(super) rq_psn: u32,
    /// The first PSN that the peer sends.
    pub(super) sq_psn: u32,
}

/// RC that allows everything and repeats after 4.3 s, which is longer than a case takes.
pub(super) const RC: Given = Given {
    service: Service::Rc,
    qp_access: access::ALL,
    mr_access: access::ALL,
    timeout: 20,
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: 14,
    max_rd_atomic: 1,
    rq_psn: 0x1000,
    sq_psn: 0x2000,
};

/// UC that allows everything.
pub(super) const UC: Given = Given { service: Service::Uc, ..RC };

/// UD.
pub(super) const UD: Given = Given { service: Service::Ud, ..RC };
