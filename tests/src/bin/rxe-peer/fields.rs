//! The fields of requests that have many fields or rich types.

use std::net::Ipv6Addr;

use rxe_verbs::{
    Access, AckTimeout, AddressVector, AttrMask, Gid, Mtu, Placement, Psn, Qkey, QpAttr, QpState,
    QpType, Qpn, RnrTimer, WindowType,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::Problem;

/// Reads the fields of a request. A field that the command does not define is an error.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(fields: Map<String, Value>) -> Result<T, Problem> {
    serde_json::from_value(Value::Object(fields)).map_err(|e| Problem::Wrong(e.to_string()))
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Right {
    LocalWrite,
    RemoteWrite,
    RemoteRead,
    RemoteAtomic,
    MwBind,
    FlushGlobal,
    FlushPersistent,
}

impl Right {
    const ALL: [(Self, &'static str, Access); 7] = [
        (Self::LocalWrite, "local_write", Access::LOCAL_WRITE),
        (Self::RemoteWrite, "remote_write", Access::REMOTE_WRITE),
        (Self::RemoteRead, "remote_read", Access::REMOTE_READ),
        (Self::RemoteAtomic, "remote_atomic", Access::REMOTE_ATOMIC),
        (Self::MwBind, "mw_bind", Access::MW_BIND),
        (Self::FlushGlobal, "flush_global", Access::FLUSH_GLOBAL),
        (Self::FlushPersistent, "flush_persistent", Access::FLUSH_PERSISTENT),
    ];

    /// The rights if the request names none.
    const USUAL: Access = Access::LOCAL_WRITE
        .union(Access::REMOTE_WRITE)
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC);

    fn access(self) -> Access {
        match self {
            Self::LocalWrite => Access::LOCAL_WRITE,
            Self::RemoteWrite => Access::REMOTE_WRITE,
            Self::RemoteRead => Access::REMOTE_READ,
            Self::RemoteAtomic => Access::REMOTE_ATOMIC,
            Self::MwBind => Access::MW_BIND,
            Self::FlushGlobal => Access::FLUSH_GLOBAL,
            Self::FlushPersistent => Access::FLUSH_PERSISTENT,
        }
    }
}

/// Returns the access flags of a list of rights; the usual rights if there is no list.
pub(crate) fn access(rights: Option<&[Right]>) -> Access {
    match rights {
        Some(list) => list.iter().fold(Access::empty(), |all, r| all | r.access()),
        None => Right::USUAL,
    }
}

/// Returns the names of rights.
pub(crate) fn access_names(access: Access) -> Vec<&'static str> {
    Right::ALL.iter().filter(|(_, _, a)| access.contains(*a)).map(|(_, name, _)| *name).collect()
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Service {
    #[default]
    Rc,
    Uc,
    Ud,
    XrcSend,
    XrcRecv,
}

impl Service {
    /// Returns whether requests of this service are acknowledged, so that they can be retried.
    fn awaits(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend)
    }

    /// Returns whether this service acknowledges requests of the peer.
    fn answers(self) -> bool {
        matches!(self, Self::Rc | Self::XrcRecv)
    }
}

impl From<Service> for QpType {
    fn from(service: Service) -> Self {
        match service {
            Service::Rc => Self::Rc,
            Service::Uc => Self::Uc,
            Service::Ud => Self::Ud,
            Service::XrcSend => Self::XrcSend,
            Service::XrcRecv => Self::XrcRecv,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum State {
    Reset,
    Init,
    Rtr,
    Rts,
    Sqd,
    Sqe,
    Err,
}

impl From<State> for QpState {
    fn from(state: State) -> Self {
        match state {
            State::Reset => Self::Reset,
            State::Init => Self::Init,
            State::Rtr => Self::Rtr,
            State::Rts => Self::Rts,
            State::Sqd => Self::Sqd,
            State::Sqe => Self::Sqe,
            State::Err => Self::Err,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Av {
    gid_index: u16,
    dgid: Ipv6Addr,
    #[serde(default = "one")]
    port: u8,
    #[serde(default = "hops")]
    hop_limit: u8,
    #[serde(default)]
    traffic_class: u8,
    #[serde(default)]
    flow_label: u32,
    #[serde(default)]
    #[expect(dead_code, reason = "RoCE has no service levels on the wire")]
    sl: u8,
}

fn one() -> u8 {
    1
}

fn hops() -> u8 {
    64
}

impl Av {
    /// Converts to the address vector of verbs.
    pub(crate) fn address(&self) -> Result<AddressVector, Problem> {
        if self.port != 1 {
            return Err(wrong("port", self.port));
        }
        Ok(AddressVector {
            sgid_index: self.gid_index,
            dgid: Gid::from_bytes(self.dgid.octets()),
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Modify {
    pub(crate) qp: u64,
    state: Option<State>,
    cur_state: Option<State>,
    pkey_index: Option<u16>,
    port: Option<u8>,
    access: Option<Vec<Right>>,
    qkey: Option<u32>,
    path_mtu: Option<usize>,
    dest_qpn: Option<u32>,
    rq_psn: Option<u32>,
    sq_psn: Option<u32>,
    max_rd_atomic: Option<u8>,
    max_dest_rd_atomic: Option<u8>,
    min_rnr_timer: Option<u8>,
    timeout: Option<u8>,
    retry_cnt: Option<u8>,
    rnr_retry: Option<u8>,
    av: Option<Av>,
}

/// Sets a field that the request has, in the attributes and in the mask.
macro_rules! given {
    ($mask:ident, $bit:ident, $field:expr, $from:expr => |$value:ident| $convert:expr) => {
        if let Some($value) = $from {
            $mask |= AttrMask::$bit;
            $field = $convert;
        }
    };
}

impl Modify {
    /// Returns the modifications that make a queue pair ready for datagrams.
    pub(crate) fn datagrams(qp: u64, qkey: u32, sq_psn: u32) -> [Self; 3] {
        let to = |state| Self { qp, state: Some(state), ..Self::default() };
        let init = Self { pkey_index: Some(0), port: Some(1), qkey: Some(qkey), ..to(State::Init) };
        [init, to(State::Rtr), Self { sq_psn: Some(sq_psn), ..to(State::Rts) }]
    }

    /// Returns the attributes and their mask.
    pub(crate) fn attr(&self) -> Result<(QpAttr, AttrMask), Problem> {
        let mut a = QpAttr::default();
        let mut mask = AttrMask::empty();
        given!(mask, STATE, a.qp_state, self.state => |v| v.into());
        given!(mask, CUR_STATE, a.cur_qp_state, self.cur_state => |v| v.into());
        given!(mask, PKEY_INDEX, a.pkey_index, self.pkey_index => |v| v);
        given!(mask, PORT, a.port_num, self.port => |v| v);
        given!(mask, ACCESS_FLAGS, a.qp_access_flags, &self.access => |v| access(Some(v)));
        given!(mask, QKEY, a.qkey, self.qkey => |v| Qkey::new(v));
        given!(mask, PATH_MTU, a.path_mtu, self.path_mtu => |v| mtu(v)?);
        given!(mask, DEST_QPN, a.dest_qp_num, self.dest_qpn => |v| qpn(v)?);
        given!(mask, RQ_PSN, a.rq_psn, self.rq_psn => |v| Psn::new(v));
        given!(mask, SQ_PSN, a.sq_psn, self.sq_psn => |v| Psn::new(v));
        given!(mask, MAX_QP_RD_ATOMIC, a.max_rd_atomic, self.max_rd_atomic => |v| v);
        given!(mask, MAX_DEST_RD_ATOMIC, a.max_dest_rd_atomic, self.max_dest_rd_atomic => |v| v);
        given!(mask, MIN_RNR_TIMER, a.min_rnr_timer, self.min_rnr_timer => |v| {
            RnrTimer::new(v).ok_or_else(|| wrong("min_rnr_timer", v))?
        });
        given!(mask, TIMEOUT, a.timeout, self.timeout => |v| {
            AckTimeout::new(v).ok_or_else(|| wrong("timeout", v))?
        });
        given!(mask, RETRY_CNT, a.retry_cnt, self.retry_cnt => |v| v);
        given!(mask, RNR_RETRY, a.rnr_retry, self.rnr_retry => |v| v);
        given!(mask, AV, a.ah_attr, self.av => |v| v.address()?);
        Ok((a, mask))
    }
}

fn wrong(field: &str, value: impl std::fmt::Display) -> Problem {
    Problem::Wrong(format!("{field}: there is no {value}"))
}

fn mtu(bytes: usize) -> Result<Mtu, Problem> {
    Mtu::from_bytes(bytes).ok_or_else(|| wrong("path_mtu", bytes))
}

pub(crate) fn qpn(number: u32) -> Result<Qpn, Problem> {
    Qpn::new(number).ok_or_else(|| wrong("qpn", number))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Connect {
    qp: u64,
    gid_index: u16,
    dgid: Ipv6Addr,
    dest_qpn: u32,
    sq_psn: u32,
    rq_psn: u32,
    access: Option<Vec<Right>>,
    path_mtu: Option<usize>,
    max_rd_atomic: Option<u8>,
    max_dest_rd_atomic: Option<u8>,
    min_rnr_timer: Option<u8>,
    timeout: Option<u8>,
    retry_cnt: Option<u8>,
    rnr_retry: Option<u8>,
    port: Option<u8>,
    hop_limit: Option<u8>,
    traffic_class: Option<u8>,
    flow_label: Option<u32>,
    sl: Option<u8>,
    until: Option<State>,
}

impl Connect {
    /// Returns the modifications that connect a queue pair of this service type.
    pub(crate) fn steps(self, service: Service) -> Result<Vec<Modify>, Problem> {
        let until = self.until.unwrap_or(State::Rts);
        let number = match until {
            State::Init => 1,
            State::Rtr => 2,
            State::Rts => 3,
            _ => return Err(wrong("until", format!("{until:?}"))),
        };
        let port = self.port.unwrap_or(1);
        let all =
            || vec![Right::LocalWrite, Right::RemoteWrite, Right::RemoteRead, Right::RemoteAtomic];
        let to = |state| Modify { qp: self.qp, state: Some(state), ..Modify::default() };
        let init = Modify {
            pkey_index: Some(0),
            port: Some(port),
            access: Some(self.access.unwrap_or_else(all)),
            ..to(State::Init)
        };
        let rtr = Modify {
            av: Some(Av {
                gid_index: self.gid_index,
                dgid: self.dgid,
                port,
                hop_limit: self.hop_limit.unwrap_or(64),
                traffic_class: self.traffic_class.unwrap_or(0),
                flow_label: self.flow_label.unwrap_or(0),
                sl: self.sl.unwrap_or(0),
            }),
            path_mtu: Some(self.path_mtu.unwrap_or(1024)),
            dest_qpn: Some(self.dest_qpn),
            rq_psn: Some(self.rq_psn),
            max_dest_rd_atomic: service.answers().then(|| self.max_dest_rd_atomic.unwrap_or(16)),
            min_rnr_timer: service.answers().then(|| self.min_rnr_timer.unwrap_or(12)),
            ..to(State::Rtr)
        };
        let rts = Modify {
            sq_psn: Some(self.sq_psn),
            timeout: (service.awaits() || service.answers()).then(|| self.timeout.unwrap_or(14)),
            retry_cnt: service.awaits().then(|| self.retry_cnt.unwrap_or(7)),
            rnr_retry: service.awaits().then(|| self.rnr_retry.unwrap_or(7)),
            max_rd_atomic: service.awaits().then(|| self.max_rd_atomic.unwrap_or(16)),
            ..to(State::Rts)
        };
        let mut steps = vec![init, rtr, rts];
        steps.truncate(number);
        Ok(steps)
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    Cas,
    FetchAdd,
    SendInv,
    LocalInv,
    AtomicWrite,
    Flush,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Flag {
    Signaled,
    Solicited,
    Fence,
    Inline,
}

/// A send work request without its queue pair.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendWr {
    pub(crate) op: Op,
    #[serde(default)]
    pub(crate) wr_id: u64,
    #[serde(default)]
    pub(crate) sge: Vec<Piece>,
    #[serde(default = "signaled")]
    pub(crate) flags: Vec<Flag>,
    #[serde(default)]
    pub(crate) imm: u32,
    #[serde(default)]
    pub(crate) remote_addr: u64,
    #[serde(default)]
    pub(crate) rkey: u32,
    #[serde(default)]
    pub(crate) compare: u64,
    #[serde(default)]
    pub(crate) swap: u64,
    #[serde(default)]
    pub(crate) add: u64,
    pub(crate) ah: Option<u64>,
    pub(crate) xrc_srq: Option<u32>,
    #[serde(default)]
    pub(crate) remote_qpn: u32,
    #[serde(default)]
    remote_qkey: u32,
    #[serde(default)]
    pub(crate) invalidate: u32,
    #[serde(default)]
    pub(crate) length: u32,
    #[serde(default)]
    placement: Vec<Far>,
    #[serde(default)]
    level: Level,
}

/// The placement type of a FLUSH.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Far {
    Global,
    Persistent,
}

/// The selectivity level of a FLUSH.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Level {
    #[default]
    Range,
    Mr,
}

impl SendWr {
    /// Returns the Q_Key of a datagram.
    pub(crate) fn remote_qkey(&self) -> Qkey {
        Qkey::new(self.remote_qkey)
    }

    /// Returns the placement type of a FLUSH.
    pub(crate) fn placement(&self) -> Placement {
        let bit = |far: &Far| match far {
            Far::Global => Placement::GLOBAL,
            Far::Persistent => Placement::PERSISTENT,
        };
        self.placement.iter().map(bit).fold(Placement::empty(), |all, bit| all | bit)
    }

    /// Returns whether a FLUSH covers a whole region.
    pub(crate) fn whole_region(&self) -> bool {
        self.level == Level::Mr
    }
}

/// Reads the type of a memory window from its number.
pub(crate) fn window<'de, D: Deserializer<'de>>(number: D) -> Result<WindowType, D::Error> {
    match u8::deserialize(number)? {
        1 => Ok(WindowType::Type1),
        2 => Ok(WindowType::Type2),
        other => Err(D::Error::custom(format!("there is no memory window of type {other}"))),
    }
}

pub(crate) fn signaled() -> Vec<Flag> {
    vec![Flag::Signaled]
}

/// A scatter/gather element: a range of a region by its handle, or raw numbers, which may be wrong.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Piece {
    Of(Of),
    Raw(Raw),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Of {
    pub(crate) mr: u64,
    #[serde(default)]
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Raw {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}
