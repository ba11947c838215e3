//! The requests with few and simple fields. [`crate::fields`] has the others.

use std::net::Ipv6Addr;

use serde::Deserialize;

use rxe_verbs::WindowType;

use crate::fields::{Av, Flag, Piece, Right, SendWr, Service, signaled, window};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Open {
    pub(crate) device: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfCtx {
    pub(crate) ctx: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfQp {
    pub(crate) qp: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cq {
    pub(crate) ctx: u64,
    #[serde(default = "cqe")]
    pub(crate) cqe: u32,
}

fn cqe() -> u32 {
    256
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mr {
    pub(crate) pd: u64,
    pub(crate) size: usize,
    pub(crate) access: Option<Vec<Right>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Qp {
    pub(crate) pd: u64,
    #[serde(default)]
    pub(crate) r#type: Service,
    pub(crate) send_cq: u64,
    pub(crate) recv_cq: u64,
    #[serde(default = "requests")]
    pub(crate) max_send_wr: u32,
    #[serde(default = "requests")]
    pub(crate) max_recv_wr: u32,
    #[serde(default = "elements")]
    pub(crate) max_send_sge: u32,
    #[serde(default = "elements")]
    pub(crate) max_recv_sge: u32,
    #[serde(default = "inline")]
    pub(crate) max_inline: u32,
    #[serde(default)]
    pub(crate) sq_sig_all: bool,
    pub(crate) srq: Option<u64>,
    pub(crate) xrcd: Option<u64>,
    /// The peer on kernel devices must be told which extended operations will be used; this peer
    /// ignores it.
    #[serde(default, rename = "extended")]
    pub(crate) _extended: bool,
}

fn requests() -> u32 {
    128
}

fn elements() -> u32 {
    4
}

fn inline() -> u32 {
    64
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Srq {
    pub(crate) pd: u64,
    #[serde(default = "requests")]
    pub(crate) max_wr: u32,
    #[serde(default = "elements")]
    pub(crate) max_sge: u32,
    /// With both `xrcd` and `cq`, the queue is an XRC shared receive queue.
    pub(crate) xrcd: Option<u64>,
    pub(crate) cq: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SrqLimit {
    pub(crate) srq: u64,
    pub(crate) limit: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ready {
    pub(crate) qp: u64,
    pub(crate) qkey: u32,
    #[serde(default)]
    pub(crate) sq_psn: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) qp: u64,
    pub(crate) gid: Ipv6Addr,
}

#[derive(Deserialize)]
pub(crate) struct Ah {
    pub(crate) pd: u64,
    #[serde(flatten)]
    pub(crate) av: Av,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AhFromRecv {
    pub(crate) pd: u64,
    pub(crate) cq: u64,
    pub(crate) mr: u64,
    #[serde(default)]
    pub(crate) offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mw {
    pub(crate) pd: u64,
    #[serde(default = "type2", deserialize_with = "window")]
    pub(crate) r#type: WindowType,
}

fn type2() -> WindowType {
    WindowType::Type2
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bind {
    pub(crate) qp: u64,
    pub(crate) mw: u64,
    pub(crate) mr: u64,
    pub(crate) len: usize,
    #[serde(default)]
    pub(crate) offset: usize,
    pub(crate) access: Option<Vec<Right>>,
    #[serde(default)]
    pub(crate) wr_id: u64,
    #[serde(default = "signaled")]
    pub(crate) flags: Vec<Flag>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Events {
    pub(crate) ctx: u64,
    #[serde(default = "one")]
    pub(crate) count: usize,
    #[serde(default = "default_timeout_ms")]
    pub(crate) timeout_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PostRecv {
    pub(crate) qp: Option<u64>,
    pub(crate) srq: Option<u64>,
    #[serde(default)]
    pub(crate) wr_id: u64,
    #[serde(default)]
    pub(crate) sge: Vec<Piece>,
    #[serde(default = "once")]
    pub(crate) count: u64,
}

fn once() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PostList {
    pub(crate) qp: u64,
    pub(crate) wrs: Vec<SendWr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Poll {
    pub(crate) cq: u64,
    #[serde(default = "one")]
    pub(crate) count: usize,
    #[serde(default = "default_timeout_ms")]
    pub(crate) timeout_ms: u64,
}

fn one() -> usize {
    1
}

fn default_timeout_ms() -> u64 {
    10_000
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pattern {
    pub(crate) mr: u64,
    pub(crate) seed: u32,
    #[serde(default)]
    pub(crate) offset: usize,
    pub(crate) len: Option<usize>,
    #[serde(default)]
    pub(crate) at: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    pub(crate) mr: u64,
    pub(crate) hex: String,
    #[serde(default)]
    pub(crate) offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Range {
    pub(crate) mr: u64,
    #[serde(default)]
    pub(crate) offset: usize,
    pub(crate) len: Option<usize>,
}
