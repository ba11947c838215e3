//! The objects that a peer has created, and the commands that work on them.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use rxe_verbs::{
    AddressHandle, AsyncEvent, Completion, CompletionQueue, Device, Gid, Key, MemoryRegion,
    MemoryWindow, ProtectionDomain, QpCap, QueuePair, Remote, Request, Sge, SharedReceiveQueue,
    XrcDomain,
};
use serde_json::{Map, Value, json};

use crate::answers::{completion, event};
use crate::fields::{self, Connect, Flag, Modify, Op, Piece, SendWr, Service, read};
use crate::pattern::pattern;
use crate::requests::{
    Ah, AhFromRecv, Bind, Cq, Events, Group, Mr, Mw, OfCtx, OfQp, Open, Pattern, Poll, PostList,
    PostRecv, Qp, Range, Ready, Srq, SrqLimit, Write,
};
use crate::{Args, Problem};

type Fields = Map<String, Value>;
type Result<T> = std::result::Result<T, Problem>;

/// The objects of this peer.
pub(crate) struct Endpoint {
    args: Args,
    // Queue pairs come first, so that they are dropped before the objects that they use.
    qps: Made<Queues>,
    xrcds: Made<XrcDomain>,
    ahs: Made<AddressHandle>,
    srqs: Made<SharedReceiveQueue>,
    mws: Made<MemoryWindow>,
    mrs: Made<MemoryRegion>,
    cqs: Made<CompletionQueue>,
    pds: Made<ProtectionDomain>,
    ctxs: Made<Device>,
    /// The last receive completion that was polled from each completion queue.
    received: HashMap<u64, Completion>,
}

impl Endpoint {
    pub(crate) fn new(args: Args) -> Self {
        Self {
            args,
            qps: Made::new("qp"),
            xrcds: Made::new("xrcd"),
            ahs: Made::new("ah"),
            srqs: Made::new("srq"),
            mws: Made::new("mw"),
            mrs: Made::new("mr"),
            cqs: Made::new("cq"),
            pds: Made::new("pd"),
            ctxs: Made::new("ctx"),
            received: HashMap::new(),
        }
    }

    /// Runs a command. Returns the fields of the answer.
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
            "ready" => self.ready(&read(f)?)?,
            "attach" => {
                let Group { qp, gid } = read(f)?;
                self.qps.get(qp)?.qp.attach_multicast(group(gid))?;
                json!({})
            }
            "detach" => {
                let Group { qp, gid } = read(f)?;
                self.qps.get(qp)?.qp.detach_multicast(group(gid))?;
                json!({})
            }
            "xrcd" => {
                let OfCtx { ctx } = read(f)?;
                json!({"xrcd": self.xrcds.keep(self.ctxs.get(ctx)?.create_xrc_domain()?)})
            }
            "srq" => self.srq(&read(f)?)?,
            "srq_limit" => {
                let SrqLimit { srq, limit } = read(f)?;
                self.srqs.get(srq)?.set_limit(limit)?;
                json!({})
            }
            "ah" => {
                let Ah { pd, av } = read(f)?;
                json!({"ah": self.ahs.keep(self.pds.get(pd)?.create_ah(&av.address()?)?)})
            }
            "ah_from_recv" => self.ah_from_recv(&read(f)?)?,
            "mw" => {
                let Mw { pd, r#type } = read(f)?;
                let mw = self.pds.get(pd)?.create_window(r#type)?;
                let rkey = mw.rkey().value();
                json!({"mw": self.mws.keep(mw), "rkey": rkey})
            }
            "bind" => self.bind(&read(f)?)?,
            "events" => self.events(&read(f)?)?,
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
        if let Some(plan) = &self.args.fault {
            options = options.faults(self.args.seed, plan.clone());
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
        let mut builder = match f.xrcd {
            Some(xrcd) => self.xrcds.get(xrcd)?.qp(),
            None => self
                .pds
                .get(f.pd)?
                .qp_with(send_cq, recv_cq)
                .service(f.r#type.into())
                .cap(cap)
                .sq_sig_all(f.sq_sig_all),
        };
        if let Some(srq) = f.srq {
            builder = builder.srq(self.srqs.get(srq)?);
        }
        let qp = builder.build()?;
        let qpn = qp.qpn().value();
        let service = f.r#type;
        Ok(json!({"qp": self.qps.keep(Queues { qp, service }), "qpn": qpn}))
    }

    fn modify(&self, f: &Modify) -> Result<()> {
        let (attr, mask) = f.attr()?;
        Ok(self.qps.get(f.qp)?.qp.modify(&attr, mask)?)
    }

    fn ready(&self, f: &Ready) -> Result<Value> {
        for step in Modify::datagrams(f.qp, f.qkey, f.sq_psn) {
            self.modify(&step)?;
        }
        Ok(json!({}))
    }

    fn ah_from_recv(&mut self, f: &AhFromRecv) -> Result<Value> {
        let none = || Problem::Wrong(format!("no receive was polled from cq {}", f.cq));
        let completion = self.received.get(&f.cq).ok_or_else(none)?;
        let (mr, offset, len) = self.range(f.mr, f.offset, Some(40))?;
        let grh = mr.to_vec(offset..offset + len)?;
        let ah = self.pds.get(f.pd)?.ah_from_completion(completion, &grh)?;
        Ok(json!({"ah": self.ahs.keep(ah)}))
    }

    fn srq(&mut self, f: &Srq) -> Result<Value> {
        let pd = self.pds.get(f.pd)?;
        let srq = match (f.xrcd, f.cq) {
            (Some(xrcd), Some(cq)) => {
                let (xrcd, cq) = (self.xrcds.get(xrcd)?, self.cqs.get(cq)?);
                pd.create_xrc_srq(xrcd, cq, f.max_wr, f.max_sge)?
            }
            (None, None) => pd.create_srq(f.max_wr, f.max_sge)?,
            _ => return Err(Problem::Wrong("srq: xrcd and cq, or neither".into())),
        };
        let number = srq.number();
        Ok(json!({"srq": self.srqs.keep(srq), "number": number}))
    }

    fn bind(&self, f: &Bind) -> Result<Value> {
        let qp = &self.qps.get(f.qp)?.qp;
        let (mr, offset, len) = self.range(f.mr, f.offset, Some(f.len))?;
        let (mw, access) = (self.mws.get(f.mw)?, fields::access(f.access.as_deref()));
        let request = qp.bind(f.wr_id, mw, mr, offset..offset + len, access);
        let rkey = request.new_rkey().map(Key::value);
        flagged(request, &f.flags).post()?;
        Ok(json!({"rkey": rkey}))
    }

    fn events(&self, f: &Events) -> Result<Value> {
        let device = self.ctxs.get(f.ctx)?;
        let end = Instant::now() + Duration::from_millis(f.timeout_ms);
        let mut out: Vec<AsyncEvent> = Vec::new();
        while out.len() < f.count {
            match device.poll_async_event() {
                Some(event) => out.push(event),
                None if Instant::now() >= end => break,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(json!({"events": out.iter().map(event).collect::<Vec<_>>()}))
    }

    fn connect(&self, f: Fields) -> Result<Value> {
        let service = match f.get("qp").and_then(Value::as_u64) {
            Some(qp) => self.qps.get(qp)?.service,
            None => Service::default(),
        };
        for step in read::<Connect>(f)?.steps(service)? {
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
        let sges = self.sges(&f.sge)?;
        for wr_id in f.wr_id..f.wr_id.saturating_add(f.count) {
            match (f.qp, f.srq) {
                (Some(qp), None) => self.qps.get(qp)?.qp.recv(wr_id, &sges)?,
                (None, Some(srq)) => self.srqs.get(srq)?.recv(wr_id, &sges)?,
                _ => return Err(Problem::Wrong("post_recv: one of qp and srq".into())),
            }
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
            Op::SendInv => qp.send(id, &sges).invalidate(Key::new(wr.invalidate)),
            Op::LocalInv => qp.local_invalidate(id, Key::new(wr.invalidate)),
            Op::AtomicWrite => qp.atomic_write(id, self.word(&wr.sge)?, remote),
            Op::Flush if wr.whole_region() => qp.flush_region(id, remote.rkey, wr.placement()),
            Op::Flush => qp.flush(id, remote, wr.length, wr.placement()),
        };
        if let Some(number) = wr.xrc_srq {
            request = request.to_srq(number);
        }
        if let Some(ah) = wr.ah {
            request = request.to(self.ahs.get(ah)?, fields::qpn(wr.remote_qpn)?, wr.remote_qkey());
        }
        Ok(flagged(request, &wr.flags).post()?)
    }

    /// Returns the 8-byte word that a list of one element names.
    fn word(&self, pieces: &[Piece]) -> Result<u64> {
        let [Piece::Of(of)] = pieces else {
            return Err(Problem::Wrong("8 bytes of a region are asked for".into()));
        };
        let at = usize::try_from(of.offset).unwrap_or(usize::MAX);
        let (mr, at, _) = self.range(of.mr, at, Some(8))?;
        let bytes = mr.to_vec(at..at + 8)?;
        Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
    }

    fn poll(&mut self, f: &Poll) -> Result<Value> {
        let cq = self.cqs.get(f.cq)?;
        let end = Instant::now() + Duration::from_millis(f.timeout_ms);
        let mut out: Vec<Completion> = Vec::new();
        while out.len() < f.count {
            match cq.wait_one(end.saturating_duration_since(Instant::now())) {
                Ok(completion) => out.push(completion),
                Err(rxe_verbs::Error::TimedOut { .. }) => break,
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(last) = out.iter().rev().find(|c| c.grh) {
            self.received.insert(f.cq, *last);
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
                "qp" => drop(self.qps.take(handle)?),
                "ah" => drop(self.ahs.take(handle)?),
                "mw" => drop(self.mws.take(handle)?),
                "xrcd" => self.xrcds.take(handle)?.close()?,
                "srq" => self.srqs.take(handle)?.close()?,
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

/// Sets exactly these flags on a request.
fn flagged<'q>(mut request: Request<'q>, flags: &[Flag]) -> Request<'q> {
    if !flags.contains(&Flag::Signaled) {
        request = request.unsignaled();
    }
    if flags.contains(&Flag::Solicited) {
        request = request.solicited();
    }
    if flags.contains(&Flag::Fence) {
        request = request.fence();
    }
    if flags.contains(&Flag::Inline) {
        request = request.inline();
    }
    request
}

fn group(gid: Ipv6Addr) -> Gid {
    Gid::from_bytes(gid.octets())
}

/// A queue pair and its service type.
struct Queues {
    qp: QueuePair,
    service: Service,
}

/// The objects of one kind, by handle. The first handle is 1.
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
