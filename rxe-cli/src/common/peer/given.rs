//! The queue pair and the memory region that the peer program is asked to create.

use std::fmt;

use rxe_core::wire;

/// The transport service of the peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    /// XRC target: the end that has shared receive queues, and responds.
    XrcTarget,
    /// XRC initiator: the end that sends requests.
    XrcInitiator,
    /// RC that the communication manager connects. There is no queue pair before.
    Cm,
}

impl Service {
    /// Returns the transport service of the queue pair's packets.
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

/// Optional operations that few devices support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    AtomicWrite,
    /// FLUSH with global visibility.
    Flush,
}

impl Feature {
    /// Returns the feature's device capability bit: `IB_DEVICE_ATOMIC_WRITE` or
    /// `IB_DEVICE_FLUSH_GLOBAL`.
    pub(super) fn capability(self) -> u64 {
        match self {
            Self::AtomicWrite => 1 << 40,
            Self::Flush => 1 << 38,
        }
    }

    /// Returns the feature's name in requests to the peer program.
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

/// Access flags, as in `IBV_ACCESS_*`.
pub(crate) mod access {
    pub(crate) const LOCAL_WRITE: u32 = 1;
    pub(crate) const REMOTE_WRITE: u32 = 2;
    pub(crate) const REMOTE_READ: u32 = 4;
    pub(crate) const REMOTE_ATOMIC: u32 = 8;
    pub(crate) const MW_BIND: u32 = 0x10;
    pub(crate) const FLUSH_GLOBAL: u32 = 0x100;
    /// The access flags that every device supports.
    pub(crate) const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
}

/// The peer's queue pair and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) service: Service,
    /// Whether the queue pair takes its receives from a shared receive queue.
    pub(crate) srq: bool,
    /// The feature that the device must support.
    pub(crate) needs: Option<Feature>,
    /// Whether the peer program posts operations of the needed feature.
    pub(crate) posts: bool,
    /// Access flags of the queue pair.
    pub(crate) qp_access: u32,
    /// Access flags of the memory region.
    pub(crate) mr_access: u32,
    /// The encoded Local ACK Timeout.
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// The encoded minimal RNR NAK timer.
    pub(crate) min_rnr_timer: u8,
    /// The READs and atomics that the peer may have outstanding as requester.
    pub(crate) max_rd_atomic: u8,
    /// The READs and atomics that the peer accepts outstanding as responder.
    pub(crate) max_dest_rd_atomic: u8,
    /// The path MTU in bytes.
    pub(crate) path_mtu: usize,
    /// The first PSN that the peer expects.
    pub(crate) rq_psn: u32,
    /// The first PSN that the peer sends.
    pub(crate) sq_psn: u32,
    /// The Q_Key of a UD queue pair.
    pub(crate) qkey: u32,
}

/// RC with all access flags of [`access::ALL`]. The Local ACK Timeout is 4.3 s, longer than a case
/// takes.
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

/// [`RC`] with a shared receive queue.
pub(crate) const RC_SRQ: Given = Given { srq: true, ..RC };

/// [`RC`] with a region to which memory windows can be bound.
pub(crate) const RC_WINDOWS: Given = Given { mr_access: access::ALL | access::MW_BIND, ..RC };

/// [`RC`] on a device that supports ATOMIC WRITE.
pub(crate) const ATOMIC_WRITE: Given = Given { needs: Some(Feature::AtomicWrite), ..RC };

/// [`RC`] on a device that supports FLUSH, with the access flags for it.
pub(crate) const FLUSH: Given = Given {
    needs: Some(Feature::Flush),
    qp_access: access::ALL | access::FLUSH_GLOBAL,
    mr_access: access::ALL | access::FLUSH_GLOBAL,
    ..RC
};

/// UC with the attributes of [`RC`].
pub(crate) const UC: Given = Given { service: Service::Uc, ..RC };

/// UD with the attributes of [`RC`].
pub(crate) const UD: Given = Given { service: Service::Ud, ..RC };

/// UD with a shared receive queue.
pub(crate) const UD_SRQ: Given = Given { srq: true, ..UD };

/// An XRC target with a shared receive queue of its domain.
pub(crate) const XRC_TARGET: Given = Given { service: Service::XrcTarget, ..RC };

/// An XRC initiator with the attributes of [`RC`].
pub(crate) const XRC_INITIATOR: Given = Given { service: Service::XrcInitiator, ..RC };

/// A memory region for queue pairs that the communication manager connects.
pub(crate) const CM: Given = Given { service: Service::Cm, ..RC };
