//! The attributes of a queue pair. IBTA 11.2.5.

use bitflags::bitflags;

use super::{Access, AckTimeout, Gid, Mtu, Psn, Qkey, Qpn, RnrTimer};

/// The state of a queue pair. The numbers are those of `ibv_qp_state`. IBTA 10.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum QpState {
    /// New, or forgotten everything.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive: answers the peer.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue draining or drained: finishes what it began, begins nothing.
    Sqd = 4,
    /// Send queue error (never for RC).
    Sqe = 5,
    /// Error: everything posted is flushed.
    Err = 6,
}

impl QpState {
    /// All, in order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The state with this number.
    pub fn from_verbs(n: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(n).ok()?).copied()
    }

    /// As verbs programs write it, without `IBV_QPS_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }
}

/// The transport service of a queue pair. The numbers are those of `ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connection, the end that sends.
    XrcSend = 9,
    /// Extended reliable connection, the end that receives, into shared queues only.
    XrcRecv = 10,
}

impl QpType {
    /// Whether the peer acknowledges what is sent. IBTA 9.7.
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }
}

/// The way to a peer. IBTA 11.2.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Index of the own address in the device's GID table.
    pub sgid_index: u16,
    /// The peer's address.
    pub dgid: Gid,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// Time to live; 0 is taken as 64.
    pub hop_limit: u8,
}

bitflags! {
    /// Which attributes a modify call means. The bits are those of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttrMask: u32 {
        /// `qp_state`.
        const STATE = 1;
        /// `cur_qp_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

impl AttrMask {
    /// The names of the bits as verbs programs write them: `IBV_QP_STATE | IBV_QP_AV`.
    pub fn verbs_names(self) -> String {
        let names: Vec<_> = self.iter_names().map(|(name, _)| format!("IBV_QP_{name}")).collect();
        names.join(" | ")
    }
}

/// The attributes that modify sets and query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// The state, or the one to go to.
    pub qp_state: QpState,
    /// The state that the program believes the QP to be in.
    pub cur_qp_state: QpState,
    /// Whether to raise an event when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// Whether, in SQD, requests that were begun are still on the way. Modify does not read it.
    pub sq_draining: bool,
    /// What the peer may do through this QP.
    pub qp_access_flags: Access,
    /// Index into the partition key table, which has one entry.
    pub pkey_index: u16,
    /// The device's port: always 1.
    pub port_num: u8,
    /// Of datagrams.
    pub qkey: Qkey,
    /// The way to the peer.
    pub ah_attr: AddressVector,
    /// The largest payload of a packet in either direction.
    pub path_mtu: Mtu,
    /// How long to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// How often to try again without an answer, 0 to 7.
    pub retry_cnt: u8,
    /// How often to try again after "receiver not ready", 0 to 6; 7 is for ever.
    pub rnr_retry: u8,
    /// The PSN of the first request to expect; queried, that of the next.
    pub rq_psn: Psn,
    /// READs and atomics to have outstanding as a requester.
    pub max_rd_atomic: u8,
    /// READs and atomics to answer at once as a responder.
    pub max_dest_rd_atomic: u8,
    /// What to tell a peer that finds no receive posted.
    pub min_rnr_timer: RnrTimer,
    /// The PSN of the first request to send; queried, that of the next.
    pub sq_psn: Psn,
    /// The peer's QP.
    pub dest_qp_num: Qpn,
}

/// 67 ms: what `ibv_rc_pingpong` and most programs choose.
const DEFAULT_TIMEOUT: AckTimeout = match AckTimeout::new(14) {
    Some(timeout) => timeout,
    None => AckTimeout::INFINITE,
};

/// 0.64 ms, likewise.
const DEFAULT_RNR_TIMER: RnrTimer = RnrTimer::from_wire(12);

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            en_sqd_async_notify: false,
            sq_draining: false,
            qp_access_flags: Access::empty(),
            pkey_index: 0,
            port_num: 1,
            qkey: Qkey::default(),
            ah_attr: AddressVector {
                sgid_index: 0,
                dgid: Gid::ZERO,
                flow_label: 0,
                traffic_class: 0,
                hop_limit: 64,
            },
            path_mtu: Mtu::M1024,
            timeout: DEFAULT_TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            rq_psn: Psn::new(0),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: DEFAULT_RNR_TIMER,
            sq_psn: Psn::new(0),
            dest_qp_num: Qpn::from_wire(0),
        }
    }
}

/// Sizes of a queue pair's queues. `ibv_qp_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests outstanding at once.
    pub max_send_wr: u32,
    /// Receives posted at once.
    pub max_recv_wr: u32,
    /// Elements of a send request's gather list.
    pub max_send_sge: u32,
    /// Elements of a receive's scatter list.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    fn default() -> Self {
        Self {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 256,
        }
    }
}
