//! One end of a conversation: a peer with its device open. The objects that every conversation
//! needs are created once, so a connection costs only a queue pair.

use crate::peer::Peer;
use crate::vm::{Error, Result};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr};

/// The size of each end's memory in bytes: the longest message and room around it.
pub(super) const MEMORY: u64 = (1 << 20) + (64 << 10);

/// The time limit for an expected completion in milliseconds. Emulated processors are slow.
pub(super) const TIMEOUT_MS: u64 = 60_000;

/// All access rights of a region or a queue pair.
pub(super) const ALL_ACCESS: [&str; 4] =
    ["local_write", "remote_write", "remote_read", "remote_atomic"];

/// Returns an error of a conversation, in one line.
pub(super) fn failed(why: impl Into<String>) -> Error {
    Error::Failed(why.into())
}

/// A peer and its open device.
#[derive(Debug)]
pub(super) struct End {
    peer: Peer,
    /// "ours" or "kernel".
    pub(super) who: &'static str,
    pub(super) ctx: u64,
    pub(super) pd: u64,
    pub(super) send_cq: u64,
    pub(super) recv_cq: u64,
    pub(super) mr: Mr,
    gids: Vec<(u64, Ipv6Addr)>,
}

/// A memory region of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mr {
    pub(super) mr: u64,
    pub(super) addr: u64,
    pub(super) lkey: u64,
    pub(super) rkey: u64,
    pub(super) size: u64,
}

/// A queue pair of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Qp {
    pub(super) qp: u64,
    pub(super) qpn: u64,
}

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: String,
    pub(super) qpn: u64,
    pub(super) opcode: String,
    pub(super) byte_len: u64,
    pub(super) imm: Option<u64>,
    pub(super) src_qp: u64,
    /// Whether a GRH precedes the data.
    pub(super) grh: bool,
    /// The key that a SEND with invalidate invalidated.
    pub(super) invalidated: Option<u64>,
    /// Whether the completion has the flag `IBV_WC_WITH_INV`.
    pub(super) with_inv: bool,
}

/// The properties of a queue pair to create.
#[derive(Clone, Copy, Debug)]
pub(super) struct Make {
    /// The transport service, by its name in the protocol.
    pub(super) service: &'static str,
    pub(super) sq_sig_all: bool,
    /// The shared receive queue, if the queue pair uses one.
    pub(super) srq: Option<u64>,
    /// Whether to create an extended queue pair, for the operations that only extended ones have.
    pub(super) extended: bool,
}

impl Make {
    pub(super) const fn of(service: &'static str) -> Self {
        Self { service, sq_sig_all: false, srq: None, extended: false }
    }
}

impl End {
    /// Opens the peer's device.
    pub(super) fn open(mut peer: Peer, who: &'static str) -> Result<Self> {
        let hello = peer.call("hello", Value::Null)?;
        if hello["proto"] != 1 {
            return Err(failed(format!("{who}: not protocol 1: {hello}")));
        }
        let open = peer.call("open", Value::Null)?;
        let ctx = number(&open["ctx"]);
        let gids = open["gids"].as_array().into_iter().flatten();
        let gids = gids.filter(|g| g["type"] == "RoCE v2").filter_map(|g| {
            Some((number(&g["index"]), g["gid"].as_str()?.parse::<Ipv6Addr>().ok()?))
        });
        let gids = gids.collect();
        let pd = number(&peer.call("pd", json!({"ctx": ctx}))?["pd"]);
        let mut cq = || Ok(number(&peer.call("cq", json!({"ctx": ctx, "cqe": 2048}))?["cq"]));
        let (send_cq, recv_cq) = (cq()?, cq()?);
        let none = Mr { mr: 0, addr: 0, lkey: 0, rkey: 0, size: 0 };
        let mut end = Self { peer, who, ctx, pd, send_cq, recv_cq, mr: none, gids };
        end.mr = end.register(MEMORY, &ALL_ACCESS)?;
        Ok(end)
    }

    pub(super) fn call(&mut self, cmd: &str, fields: Value) -> Result<Value> {
        self.peer.call(cmd, fields)
    }

    /// Sends several requests and then reads their answers, which costs one round trip for all.
    pub(super) fn batch(&mut self, requests: Vec<(&str, Value)>) -> Result<Vec<Value>> {
        let count = requests.len();
        for (cmd, fields) in requests {
            self.begin(cmd, fields)?;
        }
        self.finish(count)
    }

    /// Sends a request without waiting for its answer, which [`End::finish`] reads. Both ends can
    /// then work simultaneously.
    pub(super) fn begin(&mut self, cmd: &str, fields: Value) -> Result<()> {
        self.peer.send(cmd, fields)
    }

    /// Reads the answers to `count` requests, which must be successful.
    pub(super) fn finish(&mut self, count: usize) -> Result<Vec<Value>> {
        let answers: Vec<Value> = (0..count).map(|_| self.peer.receive()).collect::<Result<_>>()?;
        match answers.iter().find(|a| a["ok"] != true) {
            None => Ok(answers),
            Some(bad) => {
                let why = bad["message"].as_str().unwrap_or("?");
                Err(failed(format!("{}: {}: {why}", self.who, bad["error"])))
            }
        }
    }

    /// Kills the peer's process, as a crash would end it.
    pub(super) fn kill(&mut self) {
        self.peer.kill();
    }

    pub(super) fn gid(&self, ip: IpAddr) -> Result<(u64, String)> {
        let want = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let found = self.gids.iter().find(|(_, gid)| *gid == want);
        let found = found.ok_or_else(|| failed(format!("{} has no GID for {ip}", self.who)))?;
        Ok((found.0, want.to_string()))
    }

    pub(super) fn register(&mut self, size: u64, access: &[&str]) -> Result<Mr> {
        let fields = json!({"pd": self.pd, "size": size, "access": access});
        let answer = self.call("mr", fields)?;
        let [mr, addr, lkey, rkey] = ["mr", "addr", "lkey", "rkey"].map(|k| number(&answer[k]));
        Ok(Mr { mr, addr, lkey, rkey, size })
    }

    pub(super) fn qp(&mut self, make: Make) -> Result<Qp> {
        let mut fields = json!({
            "pd": self.pd, "type": make.service, "send_cq": self.send_cq,
            "recv_cq": self.recv_cq, "sq_sig_all": make.sq_sig_all, "extended": make.extended,
        });
        if let Some(srq) = make.srq {
            fields["srq"] = srq.into();
        }
        let answer = self.call("qp", fields)?;
        Ok(Qp { qp: number(&answer["qp"]), qpn: number(&answer["qpn"]) })
    }

    pub(super) fn close(&mut self, kind: &str, handle: u64) -> Result<()> {
        self.call("close", json!({kind: handle})).map(drop)
    }

    pub(super) fn state(&mut self, qp: Qp) -> Result<String> {
        let answer = self.call("query_qp", json!({"qp": qp.qp}))?;
        Ok(answer["state"].as_str().unwrap_or("?").to_owned())
    }

    pub(super) fn post_send(&mut self, qp: Qp, mut wr: Value) -> Result<()> {
        wr["qp"] = qp.qp.into();
        self.call("post_send", wr).map(drop)
    }

    pub(super) fn post_recv(&mut self, qp: Qp, wr_id: u64, sge: Value) -> Result<()> {
        self.call("post_recv", json!({"qp": qp.qp, "wr_id": wr_id, "sge": sge})).map(drop)
    }

    /// Returns the completions that arrive within `timeout_ms`, at most `count`.
    pub(super) fn poll(&mut self, cq: u64, count: usize, timeout_ms: u64) -> Result<Vec<Wc>> {
        let answer =
            self.call("poll", json!({"cq": cq, "count": count, "timeout_ms": timeout_ms}))?;
        Ok(completions(&answer))
    }

    /// Returns the next `count` completions, or fails if there are fewer.
    pub(super) fn wait(&mut self, cq: u64, count: usize) -> Result<Vec<Wc>> {
        let wcs = self.poll(cq, count, TIMEOUT_MS)?;
        if wcs.len() == count {
            return Ok(wcs);
        }
        let queue = if cq == self.send_cq { "send" } else { "receive" };
        let s = TIMEOUT_MS / 1000;
        let have = wcs.len();
        Err(failed(format!("{}: {have} of {count} {queue} completions in {s} s", self.who)))
    }

    /// Fails if there is an unexpected completion.
    pub(super) fn idle(&mut self) -> Result<()> {
        for cq in [self.send_cq, self.recv_cq] {
            if let Some(wc) = self.poll(cq, 1, 0)?.first() {
                return Err(failed(format!("{}: a completion too many: {wc:?}", self.who)));
            }
        }
        Ok(())
    }

    pub(super) fn word(&mut self, offset: u64) -> Result<u64> {
        let answer = self.call("read", json!({"mr": self.mr.mr, "len": 8, "offset": offset}))?;
        let hex = answer["hex"].as_str().and_then(|h| u64::from_str_radix(h, 16).ok());
        // The bytes are in memory order; both ends are little endian.
        hex.map(u64::swap_bytes).ok_or_else(|| failed(format!("no number in {answer}")))
    }

    pub(super) fn set_word(&mut self, offset: u64, value: u64) -> Result<()> {
        let hex = format!("{:016x}", value.swap_bytes());
        self.call("write", json!({"mr": self.mr.mr, "hex": hex, "offset": offset})).map(drop)
    }
}

impl Mr {
    /// Returns a scatter/gather element of the region.
    pub(super) fn sge(&self, offset: u64, len: u64) -> Value {
        json!({"mr": self.mr, "offset": offset, "len": len})
    }

    /// Returns the request that fills a range with the pattern of `seed`.
    pub(super) fn fill(&self, seed: u64, offset: u64, len: u64) -> (&'static str, Value) {
        self.fill_at(seed, offset, len, 0)
    }

    pub(super) fn fill_at(
        &self,
        seed: u64,
        offset: u64,
        len: u64,
        at: u64,
    ) -> (&'static str, Value) {
        let (mr, len) = (self.mr, len);
        ("fill", json!({"mr": mr, "seed": seed, "offset": offset, "len": len, "at": at}))
    }

    /// Returns the request that compares bytes with the pattern of `seed` from `at` on.
    pub(super) fn check(&self, seed: u64, offset: u64, len: u64, at: u64) -> (&'static str, Value) {
        let mr = self.mr;
        ("check", json!({"mr": mr, "seed": seed, "offset": offset, "len": len, "at": at}))
    }
}

/// Fails unless every answer to a [`Mr::check`] reports equal bytes.
pub(super) fn all_equal(who: &str, what: &str, answers: &[Value]) -> Result<()> {
    match answers.iter().find(|a| a["equal"] == false) {
        None => Ok(()),
        Some(bad) => {
            Err(failed(format!("{who}: {what}: bytes differ from {} on", bad["first_diff"])))
        }
    }
}

impl Wc {
    fn of(w: &Value) -> Self {
        let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
        let flag = |name: &str| w["flags"].as_array().into_iter().flatten().any(|f| f == name);
        Self {
            wr_id: number(&w["wr_id"]),
            status: text(&w["status"]),
            qpn: number(&w["qpn"]),
            opcode: text(&w["opcode"]),
            byte_len: number(&w["byte_len"]),
            imm: w["imm"].as_u64(),
            src_qp: number(&w["src_qp"]),
            grh: flag("grh"),
            invalidated: w["invalidated"].as_u64(),
            with_inv: flag("with_inv"),
        }
    }

    /// Fails unless this is the successful completion of request `wr_id` of `qp`. `byte_len` is
    /// compared if given.
    pub(super) fn expect(
        &self,
        who: &str,
        qp: Qp,
        wr_id: u64,
        opcode: &str,
        byte_len: Option<u64>,
        imm: Option<u64>,
    ) -> Result<()> {
        let want = Self {
            wr_id,
            status: "SUCCESS".into(),
            qpn: qp.qpn,
            opcode: opcode.into(),
            byte_len: byte_len.unwrap_or(self.byte_len),
            imm,
            // The values differ between devices, except for datagrams.
            src_qp: self.src_qp,
            grh: self.grh,
            invalidated: self.invalidated,
            with_inv: self.with_inv,
        };
        if *self == want {
            return Ok(());
        }
        Err(failed(format!("{who}: completed with {self:?}, not {want:?}")))
    }
}

/// Returns the completions in the answer to a poll.
pub(super) fn completions(answer: &Value) -> Vec<Wc> {
    answer["wcs"].as_array().into_iter().flatten().map(Wc::of).collect()
}

/// The properties of a connection that differ from the defaults of every conversation.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// "rc" or "uc".
    pub(super) service: &'static str,
    /// The shared receive queue of the responder's queue pair.
    pub(super) srq: Option<u64>,
    /// Whether the requester's queue pair is an extended one.
    pub(super) extended: bool,
    pub(super) path_mtu: u64,
    pub(super) timeout: u64,
    pub(super) retry_cnt: u64,
    pub(super) rnr_retry: u64,
    pub(super) min_rnr_timer: u64,
    pub(super) rd_atomic: u64,
    /// The access rights that each queue pair gives to its peer.
    pub(super) access: Vec<&'static str>,
    pub(super) sq_sig_all: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            service: "rc",
            srq: None,
            extended: false,
            path_mtu: 1024,
            // 1 s. No packet is lost here, and a slow machine must not look like a lossy one.
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            rd_atomic: 16,
            access: ALL_ACCESS.to_vec(),
            sq_sig_all: false,
        }
    }
}

/// A pair of connected queue pairs, the requester's first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conn {
    pub(super) req: Qp,
    pub(super) resp: Qp,
    /// Whether a completed request has arrived at the responder.
    pub(super) reliable: bool,
}

/// The two ends of a conversation, and their addresses.
pub(super) struct Pair<'e> {
    pub(super) req: &'e mut End,
    pub(super) resp: &'e mut End,
    /// The addresses of the two ends.
    pub(super) ips: [IpAddr; 2],
    /// Whether the responder answers atomics.
    pub(super) atomics: bool,
    /// The number of connections so far, from which the starting PSNs are derived.
    pub(super) connections: &'e mut u64,
}

impl Pair<'_> {
    /// Creates a queue pair on each end and connects them.
    pub(super) fn connect(&mut self, link: &Link) -> Result<Conn> {
        *self.connections += 1;
        // The requester's PSNs wrap within the first packets.
        let psn = 0x100_0000 - 2 - *self.connections % 7;
        let other = 0x12_3456 + *self.connections;
        let make = Make { sq_sig_all: link.sq_sig_all, ..Make::of(link.service) };
        let req = self.req.qp(Make { extended: link.extended, ..make })?;
        let resp = self.resp.qp(Make { srq: link.srq, ..make })?;
        let (req_gid, resp_gid) = (self.req.gid(self.ips[0])?, self.resp.gid(self.ips[1])?);
        let ends = [
            (&mut *self.resp, resp, &resp_gid, req, &req_gid, [other, psn]),
            (&mut *self.req, req, &req_gid, resp, &resp_gid, [psn, other]),
        ];
        for (end, own, own_gid, peer, peer_gid, [sq_psn, rq_psn]) in ends {
            end.call(
                "connect",
                json!({
                    "qp": own.qp, "gid_index": own_gid.0, "dgid": peer_gid.1,
                    "dest_qpn": peer.qpn, "sq_psn": sq_psn, "rq_psn": rq_psn,
                    "path_mtu": link.path_mtu, "timeout": link.timeout,
                    "retry_cnt": link.retry_cnt, "rnr_retry": link.rnr_retry,
                    "min_rnr_timer": link.min_rnr_timer, "access": link.access,
                    "max_rd_atomic": link.rd_atomic, "max_dest_rd_atomic": link.rd_atomic,
                }),
            )?;
        }
        Ok(Conn { req, resp, reliable: link.service == "rc" })
    }

    /// Destroys both queue pairs.
    pub(super) fn disconnect(&mut self, conn: Conn) -> Result<()> {
        self.req.close("qp", conn.req.qp)?;
        self.resp.close("qp", conn.resp.qp)
    }

    /// Fails if an end has an unexpected completion.
    pub(super) fn idle(&mut self) -> Result<()> {
        self.req.idle()?;
        self.resp.idle()
    }
}

/// The number of guard bytes around a message, which must not change.
pub(super) const GUARD: u64 = 64;

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
