//! The attributes of a queue pair. IBTA 11.2.5.

use bitflags::bitflags;

use super::{Access, AckTimeout, Gid, Mtu, Psn, Qkey, Qpn, RnrTimer};

/// The state of a queue pair. The numbers are those of `ibv_qp_state`. IBTA 10.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum QpState {
    /// New or reset: no state is kept.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive: the responder works.
    Rtr = 2,
    /// Ready to send: requester and responder work.
    Rts = 3,
    /// Send queue draining or drained: finishes the requests in progress and begins no others.
    Sqd = 4,
    /// Send queue error (never with RC).
    Sqe = 5,
    /// Error: all posted requests are flushed.
    Err = 6,
}

impl QpState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Returns the state with this number.
    pub fn from_verbs(n: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(n).ok()?).copied()
    }

    /// Returns the name that verbs programs use, without `IBV_QPS_`.
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
    /// Extended reliable connection, the sending end.
    XrcSend = 9,
    /// Extended reliable connection, the receiving end. It receives only into shared queues.
    XrcRecv = 10,
}

impl QpType {
    /// Returns whether the peer acknowledges requests. IBTA 9.7.
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }
}

/// The path to a peer. IBTA 11.2.2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The index of the local address in the device's GID table.
    pub sgid_index: u16,
    /// The peer's address.
    pub dgid: Gid,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// Time to live. 0 means 64.
    pub hop_limit: u8,
}

bitflags! {
    /// The attributes that a modify call sets. The bits are those of `ibv_qp_attr_mask`.
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
    /// Returns the names of the bits as verbs programs write them: `IBV_QP_STATE | IBV_QP_AV`.
    pub fn verbs_names(self) -> String {
        let names: Vec<_> = self.iter_names().map(|(name, _)| format!("IBV_QP_{name}")).collect();
        names.join(" | ")
    }
}

/// The attributes that a modify call sets and a query returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// The current state; in a modify call, the state to enter.
    pub qp_state: QpState,
    /// The state that the program expects the QP to be in.
    pub cur_qp_state: QpState,
    /// Whether an event is raised when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// Whether a QP in SQD still has requests in progress. A modify call ignores this field.
    pub sq_draining: bool,
    /// The access rights of the peer through this QP.
    pub qp_access_flags: Access,
    /// Index into the partition key table, which has one entry.
    pub pkey_index: u16,
    /// The device's port: always 1.
    pub port_num: u8,
    /// The Q_Key of a UD queue pair.
    pub qkey: Qkey,
    /// The path to the peer.
    pub ah_attr: AddressVector,
    /// The largest payload of a packet in either direction.
    pub path_mtu: Mtu,
    /// How long the requester waits for an acknowledgement.
    pub timeout: AckTimeout,
    /// The number of retries without a response, 0 to 7.
    pub retry_cnt: u8,
    /// The number of retries after RNR NAKs, 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// The PSN of the first expected request; in a query, the PSN of the next one.
    pub rq_psn: Psn,
    /// The maximum number of outstanding READs and atomics as a requester.
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding READs and atomics as a responder.
    pub max_dest_rd_atomic: u8,
    /// The delay in RNR NAKs to a peer that finds no receive posted.
    pub min_rnr_timer: RnrTimer,
    /// The PSN of the first request to send; in a query, the PSN of the next one.
    pub sq_psn: Psn,
    /// The QPN of the peer.
    pub dest_qp_num: Qpn,
}

/// 67 ms, the timeout of `ibv_rc_pingpong` and most programs.
const DEFAULT_TIMEOUT: AckTimeout = match AckTimeout::new(14) {
    Some(timeout) => timeout,
    None => AckTimeout::INFINITE,
};

/// 0.64 ms, the RNR timer of `ibv_rc_pingpong` and most programs.
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

/// The capacities of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// The maximum number of outstanding send requests.
    pub max_send_wr: u32,
    /// The maximum number of posted receives.
    pub max_recv_wr: u32,
    /// The maximum number of elements of a send request's gather list.
    pub max_send_sge: u32,
    /// The maximum number of elements of a receive's scatter list.
    pub max_recv_sge: u32,
    /// The maximum bytes of inline data.
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
