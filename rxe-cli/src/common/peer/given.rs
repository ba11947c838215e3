//! What the peer is asked for: a queue pair and a region.

use std::fmt;

use rxe_core::wire;

/// The service of the peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    /// XRC: the end that has shared receive queues, and answers.
    XrcTarget,
    /// XRC: the end that sends requests.
    XrcInitiator,
    /// What the communication manager connects: there is no queue pair before.
    Cm,
}

impl Service {
    /// The service of its packets.
    pub(crate) fn of_packets(self) -> wire::Service {
        match self {
            Self::Rc | Self::Cm => wire::Service::Rc,
            Self::Uc => wire::Service::Uc,
            Self::Ud => wire::Service::Ud,
            Self::XrcTarget | Self::XrcInitiator => wire::Service::Xrc,
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::XrcTarget => "xrc_recv",
            Self::XrcInitiator => "xrc_send",
            Self::Cm => "cm",
        })
    }
}

/// Operations that few devices have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    AtomicWrite,
    /// With global visibility.
    Flush,
}

impl Feature {
    /// Its bit in a device's capabilities: `IB_DEVICE_ATOMIC_WRITE`, `IB_DEVICE_FLUSH_GLOBAL`.
    pub(super) fn capability(self) -> u64 {
        match self {
            Self::AtomicWrite => 1 << 40,
            Self::Flush => 1 << 38,
        }
    }

    /// Its name in requests to the peer.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::AtomicWrite => "atomic_write",
            Self::Flush => "flush",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::Flush => "FLUSH",
        })
    }
}

/// Rights, as in `IBV_ACCESS_*`.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 2;
    pub(crate) const REMOTE_READ: u32 = 4;
    pub(crate) const REMOTE_ATOMIC: u32 = 8;
    pub(crate) const MW_BIND: u32 = 0x10;
    pub(crate) const FLUSH_GLOBAL: u32 = 0x100;
    /// The rights that every device has.
    pub(crate) const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// The peer's queue pair and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) service: Service,
    /// Whether its receives are in a shared receive queue.
    pub(crate) srq: bool,
    /// What the device must have.
    pub(crate) needs: Option<Feature>,
    /// Whether its program posts that.
    pub(crate) posts: bool,
    /// Rights of the queue pair.
    pub(crate) qp_access: u32,
    /// Rights of the region.
    pub(crate) mr_access: u32,
    /// Local ACK timeout, as its code.
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// As its code.
    pub(crate) min_rnr_timer: u8,
    /// READs and atomics that the peer may have outstanding.
    pub(crate) max_rd_atomic: u8,
    /// READs and atomics of ours that it must take at a time.
    pub(crate) max_dest_rd_atomic: u8,
    /// In bytes.
    pub(crate) path_mtu: usize,
    /// The first PSN that the peer expects.
    pub(crate) rq_psn: u32,
    /// The first PSN that the peer sends.
    pub(crate) sq_psn: u32,
    /// The Q_Key of a queue pair of UD.
    pub(crate) qkey: u32,
}

/// RC that allows everything and repeats after 4.3 s, which is longer than a case takes.
pub(crate) const RC: Given = Given {
    service: Service::Rc,
    srq: false,
    needs: None,
    posts: false,
    qp_access: access::ALL,
    mr_access: access::ALL,
    timeout: 20,
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: 14,
    max_rd_atomic: 1,
    max_dest_rd_atomic: 4,
    path_mtu: 256,
    rq_psn: 0x1000,
    sq_psn: 0x2000,
    qkey: 0x1111_1111,
};

/// The same with a shared receive queue.
pub(crate) const RC_SRQ: Given = Given { srq: true, ..RC };

/// The same with a region that windows can be bound to.
pub(crate) const RC_WINDOWS: Given = Given { mr_access: access::ALL | access::MW_BIND, ..RC };

/// RC between devices that have ATOMIC WRITE.
pub(crate) const ATOMIC_WRITE: Given = Given { needs: Some(Feature::AtomicWrite), ..RC };

/// RC that allows FLUSH as well.
pub(crate) const FLUSH: Given = Given {
    needs: Some(Feature::Flush),
    qp_access: access::ALL | access::FLUSH_GLOBAL,
    mr_access: access::ALL | access::FLUSH_GLOBAL,
    ..RC
};

/// UC that allows everything.
pub(crate) const UC: Given = Given { service: Service::Uc, ..RC };

/// UD.
pub(crate) const UD: Given = Given { service: Service::Ud, ..RC };

/// UD with a shared receive queue.
pub(crate) const UD_SRQ: Given = Given { srq: true, ..UD };

/// XRC, with a queue of the domain.
pub(crate) const XRC_TARGET: Given = Given { service: Service::XrcTarget, ..RC };

/// XRC that allows everything and repeats as [`RC`].
pub(crate) const XRC_INITIATOR: Given = Given { service: Service::XrcInitiator, ..RC };

/// A region, for queue pairs that the communication manager connects.
pub(crate) const CM: Given = Given { service: Service::Cm, ..RC };
