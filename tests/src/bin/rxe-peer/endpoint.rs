//! What has been made, and the commands.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rxe_verbs::{
    Completion, CompletionOp, CompletionQueue, Device, Error, Faults, Immediate, Key, MemoryRegion,
    ProtectionDomain, QpCap, QueuePair, Remote, Sge, Status,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::fields::{self, Connect, Flag, Modify, Op, Piece, Right, SendWr, Service, read};
use crate::pattern::pattern;
use crate::{Args, Problem};

type Fields = Map<String, Value>;
type Result<T> = std::result::Result<T, Problem>;

/// One end of a conversation.
pub(crate) struct Endpoint {
    args: Args,
    // Queue pairs first: what they use outlives them.
    qps: Made<Queues>,
    mrs: Made<MemoryRegion>,
    cqs: Made<CompletionQueue>,
    pds: Made<ProtectionDomain>,
    ctxs: Made<Device>,
}

impl Endpoint {
    pub(crate) fn new(args: Args) -> Self {
        let (qps, mrs) = (Made::new("qp"), Made::new("mr"));
        let (cqs, pds, ctxs) = (Made::new("cq"), Made::new("pd"), Made::new("ctx"));
        Self { args, qps, mrs, cqs, pds, ctxs }
    }

    /// Runs a command. The answer is an object.
    pub(crate) fn run(&mut self, cmd: &str, f: Fields) -> Result<Fields> {
        let answer = match cmd {
            "hello" => {
                json!({"proto": 1, "impl": "rxe", "version": env!("CARGO_PKG_VERSION")})
            }
            "devices" => {
                let names =
                    rxe_verbs::devices()?.iter().map(|d| d.name().to_owned()).collect::<Vec<_>>();
                json!({"devices": names})
            }
            "open" => self.open(&read(f)?)?,
            "pd" => {
                let OfCtx { ctx } = read(f)?;
                json!({"pd": self.pds.keep(self.ctxs.get(ctx)?.create_pd()?)})
            }
            "cq" => {
                let Cq { ctx, cqe } = read(f)?;
                json!({"cq": self.cqs.keep(self.ctxs.get(ctx)?.create_cq(cqe)?)})
            }
            "mr" => self.mr(&read(f)?)?,
            "qp" => self.qp(&read(f)?)?,
            "modify" => {
                self.modify(&read(f)?)?;
                json!({})
            }
            "connect" => self.connect(f)?,
            "query_qp" => self.query(&read(f)?)?,
            "ah" => {
                let what = "datagrams";
                return Err(Error::Verbs(rxe_verbs::VerbsError::Unsupported { what }).into());
            }
            "post_recv" => self.post_recv(&read(f)?)?,
            "post_send" => self.post_one(f)?,
            "post_list" => self.post_list(read(f)?)?,
            "poll" => self.poll(&read(f)?)?,
            "fill" => self.fill(&read(f)?)?,
            "check" => self.check(&read(f)?)?,
            "write" => self.write(&read(f)?)?,
            "read" => self.read(&read(f)?)?,
            "crc" => self.crc(&read(f)?)?,
            "close" => self.close(&f)?,
            "exit" => json!({}),
            _ => return Err(Problem::Wrong(format!("unknown command {cmd:?}"))),
        };
        match answer {
            Value::Object(answer) => Ok(answer),
            _ => Ok(Fields::new()),
        }
    }

    fn open(&mut self, f: &Open) -> Result<Value> {
        let name = match f.device.as_ref().or(self.args.device.as_ref()) {
            Some(name) => name.clone(),
            None => {
                let first = rxe_verbs::devices()?.first().map(|d| d.name().to_owned());
                first.ok_or_else(|| Problem::Wrong("no RDMA device".into()))?
            }
        };
        let mut options = Device::options(&name).backend(self.args.backend);
        for address in &self.args.address {
            options = options.address(*address);
        }
        if let Some(file) = &self.args.pcap {
            options = options.pcap(file);
        }
        let Args { loss, reorder, duplicate, seed, .. } = self.args;
        if loss + reorder + duplicate > 0.0 {
            let faults = Faults { loss, reorder, duplicate, ..Faults::default() };
            options = options.faults(seed, faults);
        }
        let device = options.open()?;
        let gids: Vec<Value> = (0..)
            .zip(device.gids().iter())
            .filter(|(_, gid)| !gid.is_zero())
            .map(|(index, gid): (u16, _)| {
                let text = std::net::Ipv6Addr::from(*gid.as_bytes()).to_string();
                let netdev = &device.info().interface().name;
                json!({"index": index, "gid": text, "type": "RoCE v2", "netdev": netdev})
            })
            .collect();
        let port = device.port_attr();
        let mut answer = json!({
            "device": device.name(), "node_guid": device.attr().node_guid.to_string(),
            "state": port.state.to_string().trim_start_matches("PORT_"), "max_mtu": port.max_mtu.bytes(),
            "active_mtu": port.active_mtu.bytes(), "gids": gids,
        });
        answer["ctx"] = self.ctxs.keep(device).into();
        Ok(answer)
    }

    fn mr(&mut self, f: &Mr) -> Result<Value> {
        let pd = self.pds.get(f.pd)?;
        let mr = pd.register(f.size, fields::access(f.access.as_deref()))?;
        let (addr, lkey, rkey) = (mr.addr(), mr.lkey().value(), mr.rkey().value());
        let handle = self.mrs.keep(mr);
        Ok(json!({"mr": handle, "addr": addr, "lkey": lkey, "rkey": rkey, "size": f.size}))
    }

    fn qp(&mut self, f: &Qp) -> Result<Value> {
        let cap = QpCap {
            max_send_wr: f.max_send_wr,
            max_recv_wr: f.max_recv_wr,
            max_send_sge: f.max_send_sge,
            max_recv_sge: f.max_recv_sge,
            max_inline_data: f.max_inline,
        };
        let (send_cq, recv_cq) = (self.cqs.get(f.send_cq)?, self.cqs.get(f.recv_cq)?);
        let qp = self
            .pds
            .get(f.pd)?
            .qp_with(send_cq, recv_cq)
            .service(f.r#type.into())
            .cap(cap)
            .sq_sig_all(f.sq_sig_all)
            .build()?;
        let qpn = qp.qpn().value();
        let rc = matches!(f.r#type, Service::Rc);
        Ok(json!({"qp": self.qps.keep(Queues { qp, rc }), "qpn": qpn}))
    }

    fn modify(&self, f: &Modify) -> Result<()> {
        let (attr, mask) = f.attr()?;
        Ok(self.qps.get(f.qp)?.qp.modify(&attr, mask)?)
    }

    fn connect(&self, f: Fields) -> Result<Value> {
        let rc = match f.get("qp").and_then(Value::as_u64) {
            Some(qp) => self.qps.get(qp)?.rc,
            None => false,
        };
        for step in read::<Connect>(f)?.steps(rc)? {
            self.modify(&step)?;
        }
        Ok(json!({}))
    }

    fn query(&self, f: &OfQp) -> Result<Value> {
        let a = self.qps.get(f.qp)?.qp.query()?;
        Ok(json!({
            "state": a.qp_state.name(), "path_mtu": a.path_mtu.bytes(),
            "sq_psn": a.sq_psn.value(), "rq_psn": a.rq_psn.value(),
            "dest_qpn": a.dest_qp_num.value(), "timeout": a.timeout.code(),
            "retry_cnt": a.retry_cnt, "rnr_retry": a.rnr_retry,
            "min_rnr_timer": a.min_rnr_timer.code(), "max_rd_atomic": a.max_rd_atomic,
            "max_dest_rd_atomic": a.max_dest_rd_atomic,
            "access": fields::access_names(a.qp_access_flags),
        }))
    }

    fn sges(&self, pieces: &[Piece]) -> Result<Vec<Sge>> {
        let sge = |piece: &Piece| match piece {
            Piece::Raw(raw) => {
                Ok(Sge { addr: raw.addr, length: raw.len, lkey: Key::new(raw.lkey) })
            }
            Piece::Of(of) => {
                let mr = self.mrs.get(of.mr)?;
                let addr = mr.addr().wrapping_add(of.offset);
                Ok(Sge { addr, length: of.len, lkey: mr.lkey() })
            }
        };
        pieces.iter().map(sge).collect()
    }

    fn post_recv(&self, f: &PostRecv) -> Result<Value> {
        let (qp, sges) = (&self.qps.get(f.qp)?.qp, self.sges(&f.sge)?);
        for wr_id in f.wr_id..f.wr_id.saturating_add(f.count) {
            qp.recv(wr_id, &sges)?;
        }
        Ok(json!({}))
    }

    fn post_one(&self, mut f: Fields) -> Result<Value> {
        let qp = f.remove("qp").and_then(|v| v.as_u64());
        let qp = qp.ok_or_else(|| Problem::Wrong("post_send: no qp".into()))?;
        self.post(&self.qps.get(qp)?.qp, &read(f)?)?;
        Ok(json!({}))
    }

    fn post_list(&self, f: PostList) -> Result<Value> {
        let qp = &self.qps.get(f.qp)?.qp;
        for (i, wr) in f.wrs.iter().enumerate() {
            self.post(qp, wr).map_err(|e| Problem::InList(i, Box::new(e)))?;
        }
        Ok(json!({}))
    }

    fn post(&self, qp: &QueuePair, wr: &SendWr) -> Result<()> {
        let sges = self.sges(&wr.sge)?;
        let remote = Remote { addr: wr.remote_addr, rkey: Key::new(wr.rkey) };
        let result = || match sges.as_slice() {
            [one] => Ok(*one),
            _ => Err(Problem::Wrong("an atomic takes one sge".into())),
        };
        let id = wr.wr_id;
        let mut request = match wr.op {
            Op::Send => qp.send(id, &sges),
            Op::SendImm => qp.send(id, &sges).imm(wr.imm),
            Op::Write => qp.write(id, &sges, remote),
            Op::WriteImm => qp.write(id, &sges, remote).imm(wr.imm),
            Op::Read => qp.read(id, &sges, remote),
            Op::Cas => qp.compare_swap(id, result()?, remote, wr.compare, wr.swap),
            Op::FetchAdd => qp.fetch_add(id, result()?, remote, wr.add),
        };
        if !wr.flags.contains(&Flag::Signaled) {
            request = request.unsignaled();
        }
        if wr.flags.contains(&Flag::Solicited) {
            request = request.solicited();
        }
        if wr.flags.contains(&Flag::Fence) {
            request = request.fence();
        }
        if wr.flags.contains(&Flag::Inline) {
            request = request.inline();
        }
        Ok(request.post()?)
    }

    fn poll(&self, f: &Poll) -> Result<Value> {
        let cq = self.cqs.get(f.cq)?;
        let end = Instant::now() + Duration::from_millis(f.timeout_ms);
        let mut out: Vec<Completion> = Vec::new();
        loop {
            let left = f.count - out.len();
            let wait = end.saturating_duration_since(Instant::now());
            if left == 0 || (cq.wait(left, &mut out, Some(wait))? == 0 && wait.is_zero()) {
                break;
            }
        }
        Ok(json!({"wcs": out.iter().map(completion).collect::<Vec<_>>()}))
    }

    fn fill(&self, f: &Pattern) -> Result<Value> {
        let (mr, offset, len) = self.range(f.mr, f.offset, f.len)?;
        mr.write_at(offset, &pattern(f.seed, f.at, len))?;
        Ok(json!({}))
    }

    fn check(&self, f: &Pattern) -> Result<Value> {
        let (mr, offset, len) = self.range(f.mr, f.offset, f.len)?;
        let have = mr.to_vec(offset..offset + len)?;
        let want = pattern(f.seed, f.at, len);
        let first_diff = have.iter().zip(&want).position(|(a, b)| a != b);
        Ok(json!({"equal": first_diff.is_none(), "first_diff": first_diff}))
    }

    fn write(&self, f: &Write) -> Result<Value> {
        let bad = || Problem::Wrong("hex: not pairs of hex digits".into());
        let digits = f.hex.as_bytes().chunks(2);
        let byte = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).ok().filter(|t| t.len() == 2)?;
            u8::from_str_radix(text, 16).ok()
        };
        let data: Vec<u8> = digits.map(byte).collect::<Option<_>>().ok_or_else(bad)?;
        let (mr, offset, _) = self.range(f.mr, f.offset, Some(data.len()))?;
        mr.write_at(offset, &data)?;
        Ok(json!({}))
    }

    fn read(&self, f: &Range) -> Result<Value> {
        let len = f.len.ok_or_else(|| Problem::Wrong("read: no len".into()))?;
        let (mr, offset, len) = self.range(f.mr, f.offset, Some(len))?;
        let bytes = mr.to_vec(offset..offset + len)?;
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        Ok(json!({"hex": hex}))
    }

    fn crc(&self, f: &Range) -> Result<Value> {
        let (mr, offset, len) = self.range(f.mr, f.offset, f.len)?;
        Ok(json!({"crc32": crc32fast::hash(&mr.to_vec(offset..offset + len)?)}))
    }

    fn range(
        &self,
        mr: u64,
        offset: usize,
        len: Option<usize>,
    ) -> Result<(&MemoryRegion, usize, usize)> {
        let mr = self.mrs.get(mr)?;
        let len = len.unwrap_or_else(|| mr.len().saturating_sub(offset));
        match offset.checked_add(len) {
            Some(end) if end <= mr.len() => Ok((mr, offset, len)),
            _ => Err(Problem::Wrong(format!("{len} bytes at {offset} are outside the memory"))),
        }
    }

    fn close(&mut self, f: &Fields) -> Result<Value> {
        for (kind, handle) in f {
            let handle = handle.as_u64().unwrap_or(0);
            match kind.as_str() {
                "qp" => self.qps.take(handle)?.qp.close()?,
                "mr" => self.mrs.take(handle)?.close()?,
                "cq" => self.cqs.take(handle)?.close()?,
                "pd" => self.pds.take(handle)?.close()?,
                "ctx" => self.ctxs.take(handle)?.close()?,
                _ => return Err(Problem::Wrong(format!("unknown kind {kind:?}"))),
            }
        }
        Ok(json!({}))
    }
}

/// A queue pair, and whether it is one of RC.
struct Queues {
    qp: QueuePair,
    rc: bool,
}

/// Things of one kind by their handles, which are counted from 1.
struct Made<T> {
    kind: &'static str,
    things: HashMap<u64, T>,
    next: u64,
}

impl<T> Made<T> {
    fn new(kind: &'static str) -> Self {
        Self { kind, things: HashMap::new(), next: 1 }
    }

    fn keep(&mut self, thing: T) -> u64 {
        let handle = self.next;
        self.next += 1;
        self.things.insert(handle, thing);
        handle
    }

    fn get(&self, handle: u64) -> Result<&T> {
        self.things.get(&handle).ok_or_else(|| self.unknown(handle))
    }

    fn take(&mut self, handle: u64) -> Result<T> {
        self.things.remove(&handle).ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: u64) -> Problem {
        Problem::Wrong(format!("unknown {} {handle}", self.kind))
    }
}

/// A completion as the protocol writes it.
fn completion(c: &Completion) -> Value {
    let mut out = json!({
        "wr_id": c.id, "status": status(c.status), "qpn": c.qpn.value(), "vendor_err": 0,
    });
    if c.status != Status::Success {
        return out;
    }
    let opcode = match c.op {
        CompletionOp::Send => "SEND",
        CompletionOp::RdmaWrite => "RDMA_WRITE",
        CompletionOp::RdmaRead => "RDMA_READ",
        CompletionOp::CompareSwap => "COMP_SWAP",
        CompletionOp::FetchAdd => "FETCH_ADD",
        CompletionOp::Recv => "RECV",
        CompletionOp::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
        // The protocol has no requests that complete like this.
        other => &format!("UNKNOWN_{}", other as u8),
    };
    out["opcode"] = opcode.into();
    out["byte_len"] = c.byte_len.into();
    if matches!(c.op, CompletionOp::Recv | CompletionOp::RecvRdmaWithImm) {
        out["src_qp"] = c.src_qp.value().into();
        out["flags"] = json!([]);
        if let Some(Immediate::Data(imm)) = c.imm {
            out["flags"] = json!(["with_imm"]);
            out["imm"] = imm.into();
        }
    }
    out
}

/// The name in enum ibv_wc_status, without IBV_WC_.
fn status(status: Status) -> &'static str {
    match status {
        Status::Success => "SUCCESS",
        Status::LocalLength => "LOC_LEN_ERR",
        Status::LocalQpOperation => "LOC_QP_OP_ERR",
        Status::LocalProtection => "LOC_PROT_ERR",
        Status::WorkRequestFlushed => "WR_FLUSH_ERR",
        Status::MemoryWindowBind => "MW_BIND_ERR",
        Status::BadResponse => "BAD_RESP_ERR",
        Status::LocalAccess => "LOC_ACCESS_ERR",
        Status::RemoteInvalidRequest => "REM_INV_REQ_ERR",
        Status::RemoteAccess => "REM_ACCESS_ERR",
        Status::RemoteOperation => "REM_OP_ERR",
        Status::RetryExceeded => "RETRY_EXC_ERR",
        Status::RnrRetryExceeded => "RNR_RETRY_EXC_ERR",
        Status::RemoteAborted => "REM_ABORT_ERR",
        Status::Fatal => "FATAL_ERR",
        Status::General => "GENERAL_ERR",
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    device: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfCtx {
    ctx: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfQp {
    qp: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cq {
    ctx: u64,
    #[serde(default = "cqe")]
    cqe: u32,
}

fn cqe() -> u32 {
    256
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mr {
    pd: u64,
    size: usize,
    access: Option<Vec<Right>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Qp {
    pd: u64,
    #[serde(default)]
    r#type: Service,
    send_cq: u64,
    recv_cq: u64,
    #[serde(default = "requests")]
    max_send_wr: u32,
    #[serde(default = "requests")]
    max_recv_wr: u32,
    #[serde(default = "elements")]
    max_send_sge: u32,
    #[serde(default = "elements")]
    max_recv_sge: u32,
    #[serde(default = "inline")]
    max_inline: u32,
    #[serde(default)]
    sq_sig_all: bool,
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
struct PostRecv {
    qp: u64,
    #[serde(default)]
    wr_id: u64,
    #[serde(default)]
    sge: Vec<Piece>,
    #[serde(default = "once")]
    count: u64,
}

fn once() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PostList {
    qp: u64,
    wrs: Vec<SendWr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Poll {
    cq: u64,
    #[serde(default = "one")]
    count: usize,
    #[serde(default = "patience")]
    timeout_ms: u64,
}

fn one() -> usize {
    1
}

fn patience() -> u64 {
    10_000
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pattern {
    mr: u64,
    seed: u32,
    #[serde(default)]
    offset: usize,
    len: Option<usize>,
    #[serde(default)]
    at: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Write {
    mr: u64,
    hex: String,
    #[serde(default)]
    offset: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    mr: u64,
    #[serde(default)]
    offset: usize,
    len: Option<usize>,
}
