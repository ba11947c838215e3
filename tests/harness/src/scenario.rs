//! Conversations between two peers, one for each operation and fault. The script is equal for the
//! kernel's peer and ours, at either end, so that the behaviour of different pairs can be compared.
//!
//! `a` is the requester and `b` the responder. All data that differ between runs (addresses, keys,
//! QPNs) are in the answers, and every request and answer is logged (`Session::log`). A capture and
//! its log are sufficient to replay either end.

mod conversations;

use self::conversations::{
    Violation, cas, denied, fetch_add, peer_gone, reads, rnr_late, rnr_never, send_too_long, sends,
    together, writes,
};
use crate::peer::Peer;
use crate::vm::{Error, Result};
use serde_json::{Value, json};

/// The path MTU of the conversations: small, so that messages of many packets give small captures.
pub const PATH_MTU: u64 = 256;

/// The message sizes: 0, one byte, one packet, one byte more, and a message with middle packets.
pub const SIZES: [u64; 5] = [0, 1, 256, 257, 1030];

/// The size of each end's memory region in bytes.
pub const REGION: u64 = 8192;

/// `a`'s first PSN. It wraps within every conversation of a few packets.
pub const PSN_A: u64 = 0xff_fffc;

/// `b`'s first PSN.
pub const PSN_B: u64 = 0x12_3456;

/// The seeds of the patterns that fill `a`'s and `b`'s memory.
pub const SEEDS: [u64; 2] = [0xa, 0xb];

/// A conversation.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name of the conversation and of its capture.
    pub name: &'static str,
    /// A description in one line.
    pub what: &'static str,
    run: fn(&mut Session<'_>) -> Result<()>,
}

/// All conversations, operations first.
pub const ALL: &[Scenario] = &[
    SEND,
    Scenario {
        name: "send_imm",
        what: "SEND with immediate of each size",
        run: |s| sends(s, "send_imm"),
    },
    Scenario { name: "write", what: "WRITE of each size", run: |s| writes(s, "write") },
    WRITE_IMM,
    READ,
    Scenario { name: "cas", what: "COMPARE & SWAP that swaps, then one that does not", run: cas },
    FETCH_ADD,
    Scenario { name: "rnr_late", what: "SEND, the receive posted 60 ms late", run: rnr_late },
    Scenario { name: "rnr_never", what: "SEND, no receive posted, rnr_retry 2", run: rnr_never },
    Scenario {
        name: "write_wrong_rkey",
        what: "WRITE with a wrong rkey, and a request after it",
        run: |s| denied(s, "write", Violation::Key),
    },
    Scenario {
        name: "read_wrong_rkey",
        what: "READ with a wrong rkey, and a request after it",
        run: |s| denied(s, "read", Violation::Key),
    },
    Scenario {
        name: "write_out_of_bounds",
        what: "WRITE that ends a byte after the region",
        run: |s| denied(s, "write", Violation::Bounds),
    },
    Scenario {
        name: "read_out_of_bounds",
        what: "READ that ends a byte after the region",
        run: |s| denied(s, "read", Violation::Bounds),
    },
    Scenario {
        name: "write_no_permission",
        what: "WRITE to a region without remote write",
        run: |s| denied(s, "write", Violation::Access),
    },
    Scenario {
        name: "read_no_permission",
        what: "READ from a region without remote read",
        run: |s| denied(s, "read", Violation::Access),
    },
    Scenario {
        name: "atomic_no_permission",
        what: "FETCH & ADD in a region without remote atomics",
        run: |s| denied(s, "fetch_add", Violation::Access),
    },
    Scenario {
        name: "send_too_long",
        what: "SEND of 1030 bytes into a receive of 100",
        run: send_too_long,
    },
    Scenario {
        name: "peer_gone",
        what: "WRITE to a QP that has been destroyed, timeout 12, retry_cnt 3",
        run: peer_gone,
    },
];

/// The conversations that are also run over a link that loses packets. Each packet is answered.
pub const LOSSY: &[Scenario] = &[
    SEND,
    WRITE_IMM,
    READ,
    FETCH_ADD,
    Scenario { name: "together", what: "eight requests at once, of each kind", run: together },
];

const SEND: Scenario =
    Scenario { name: "send", what: "SEND of each size", run: |s| sends(s, "send") };

const WRITE_IMM: Scenario = Scenario {
    name: "write_imm",
    what: "WRITE with immediate of each size",
    run: |s| writes(s, "write_imm"),
};

const READ: Scenario = Scenario { name: "read", what: "READ of each size", run: reads };

const FETCH_ADD: Scenario = Scenario {
    name: "fetch_add",
    what: "FETCH & ADD, twice, the second past 2^64",
    run: fetch_add,
};

/// The GID that an end uses.
#[derive(Clone, Debug)]
pub struct Gid {
    /// The index in the device's GID table.
    pub index: u64,
    /// The textual form.
    pub gid: String,
}

impl Gid {
    /// Returns a device's GID for `address`, from the answer to `open`.
    ///
    /// # Errors
    /// The device has no GID for the address.
    pub fn pick(open: &Value, address: &str) -> Result<Self> {
        let none = || Error::Failed(format!("the device has no GID {address}"));
        let all = open["gids"].as_array().ok_or_else(none)?;
        let found = all.iter().find(|g| g["gid"] == address).ok_or_else(none)?;
        Ok(Self { index: number(&found["index"]), gid: address.to_owned() })
    }
}

/// A conversation of two ends, each with an open device.
#[derive(Debug)]
pub struct Session<'p> {
    ends: [End<'p>; 2],
    log: Vec<Value>,
    xrc: bool,
    /// The code of the local ACK timeout.
    timeout: u64,
}

/// 17 s: a slow machine does not retransmit in a capture of another subject.
const LONG: u64 = 22;
/// 268 ms: lost packets are soon retransmitted.
const SHORT: u64 = 16;

/// One end and its open device.
#[derive(Debug)]
pub struct End<'p> {
    /// The peer, which opened its device as `ctx`.
    pub peer: &'p mut Peer,
    /// The handle of the open device.
    pub ctx: u64,
    /// The GID that the end uses.
    pub gid: Gid,
    made: Made,
}

#[derive(Clone, Debug, Default)]
struct Made {
    pd: u64,
    cq: u64,
    mr: u64,
    qp: u64,
    qpn: u64,
    addr: u64,
    rkey: u64,
    /// For XRC, the handle of the responder's shared receive queue.
    srq: u64,
    xrcd: u64,
    /// The number of that queue, for the requester.
    srq_number: u64,
}

impl<'p> End<'p> {
    /// Creates an end whose device is open.
    pub fn new(peer: &'p mut Peer, ctx: u64, gid: Gid) -> Self {
        Self { peer, ctx, gid, made: Made::default() }
    }
}

impl Scenario {
    /// Runs the conversation and returns its log. All objects of the conversation are closed again.
    ///
    /// # Errors
    /// A peer is gone, or refuses a request unexpectedly. The fault of the scenario is not an
    /// error: it is in the log.
    pub fn run(&self, ends: [End<'_>; 2]) -> Result<Vec<Value>> {
        self.run_in(Session { ends, log: Vec::new(), xrc: false, timeout: LONG })
    }

    /// Like [`Scenario::run`], over a link that loses packets.
    ///
    /// # Errors
    /// As [`Scenario::run`].
    pub fn run_lossy(&self, ends: [End<'_>; 2]) -> Result<Vec<Value>> {
        self.run_in(Session { ends, log: Vec::new(), xrc: false, timeout: SHORT })
    }

    /// Like [`Scenario::run`], over XRC. Both peers must be ours.
    ///
    /// # Errors
    /// As [`Scenario::run`].
    pub fn run_xrc(&self, ends: [End<'_>; 2]) -> Result<Vec<Value>> {
        self.run_in(Session { ends, log: Vec::new(), xrc: true, timeout: LONG })
    }

    fn run_in(&self, mut session: Session<'_>) -> Result<Vec<Value>> {
        session.make()?;
        (self.run)(&mut session)?;
        session.close()?;
        Ok(session.log)
    }
}

const A: usize = 0;
const B: usize = 1;

impl Session<'_> {
    fn call(&mut self, who: usize, cmd: &str, fields: Value) -> Result<Value> {
        let mut request = fields.clone();
        request["cmd"] = cmd.into();
        let answer = self.ends[who].peer.call(cmd, fields)?;
        let name = if who == A { "a" } else { "b" };
        self.log.push(json!({"end": name, "request": request, "answer": answer}));
        Ok(answer)
    }

    fn make(&mut self) -> Result<()> {
        for who in [A, B] {
            let ctx = self.ends[who].ctx;
            let pd = number(&self.call(who, "pd", json!({"ctx": ctx}))?["pd"]);
            let cq = number(&self.call(who, "cq", json!({"ctx": ctx}))?["cq"]);
            let mr = self.call(who, "mr", json!({"pd": pd, "size": REGION}))?;
            let (handle, addr) = (number(&mr["mr"]), number(&mr["addr"]));
            self.call(who, "fill", json!({"mr": handle, "seed": SEEDS[who]}))?;
            let mut made = Made { pd, cq, mr: handle, addr, ..Made::default() };
            made.rkey = number(&mr["rkey"]);
            let mut fields = json!({"pd": pd, "send_cq": cq, "recv_cq": cq});
            if self.xrc && who == A {
                fields["type"] = "xrc_send".into();
            } else if self.xrc {
                made.xrcd = number(&self.call(who, "xrcd", json!({"ctx": ctx}))?["xrcd"]);
                let srq = json!({"pd": pd, "xrcd": made.xrcd, "cq": cq});
                let srq = self.call(who, "srq", srq)?;
                (made.srq, made.srq_number) = (number(&srq["srq"]), number(&srq["number"]));
                fields["type"] = "xrc_recv".into();
                fields["xrcd"] = made.xrcd.into();
            }
            let qp = self.call(who, "qp", fields)?;
            (made.qp, made.qpn) = (number(&qp["qp"]), number(&qp["qpn"]));
            self.ends[who].made = made;
        }
        Ok(())
    }

    /// Connects both ends; `extra` overrides attributes of both.
    fn connect(&mut self, extra: Value) -> Result<()> {
        for (who, peer) in [(B, A), (A, B)] {
            let (sq_psn, rq_psn) = if who == A { (PSN_A, PSN_B) } else { (PSN_B, PSN_A) };
            let mut fields = json!({
                "qp": self.ends[who].made.qp, "gid_index": self.ends[who].gid.index,
                "dgid": self.ends[peer].gid.gid, "dest_qpn": self.ends[peer].made.qpn,
                "sq_psn": sq_psn, "rq_psn": rq_psn, "path_mtu": PATH_MTU,
                "timeout": self.timeout, "min_rnr_timer": 16,
            });
            if let (Some(map), Value::Object(extra)) = (fields.as_object_mut(), extra.clone()) {
                map.extend(extra);
            }
            self.call(who, "connect", fields)?;
        }
        Ok(())
    }

    fn post_send(&mut self, mut fields: Value) -> Result<()> {
        fields["qp"] = self.ends[A].made.qp.into();
        if self.xrc {
            fields["xrc_srq"] = self.ends[B].made.srq_number.into();
        }
        self.call(A, "post_send", fields).map(drop)
    }

    fn post_recv(&mut self, wr_id: u64, offset: u64, len: u64) -> Result<()> {
        let Made { qp, mr, srq, .. } = self.ends[B].made;
        let sge = json!([{"mr": mr, "offset": offset, "len": len}]);
        let mut fields = json!({"wr_id": wr_id, "sge": sge});
        let (to, handle) = if self.xrc { ("srq", srq) } else { ("qp", qp) };
        fields[to] = handle.into();
        self.call(B, "post_recv", fields).map(drop)
    }

    /// Waits for `count` completions.
    fn poll(&mut self, who: usize, count: u64) -> Result<Vec<Value>> {
        let cq = self.ends[who].made.cq;
        let answer =
            self.call(who, "poll", json!({"cq": cq, "count": count, "timeout_ms": 30000}))?;
        let wcs = answer["wcs"].as_array().cloned().unwrap_or_default();
        if wcs.len() as u64 == count {
            return Ok(wcs);
        }
        let end = if who == A { "a" } else { "b" };
        Err(Error::Failed(format!("{end} has {} of {count} completions: {answer}", wcs.len())))
    }

    /// Waits for `count` successful completions.
    fn good(&mut self, who: usize, count: u64) -> Result<()> {
        let wcs = self.poll(who, count)?;
        match wcs.iter().find(|w| w["status"] != "SUCCESS") {
            None => Ok(()),
            Some(bad) => Err(Error::Failed(format!("a request failed: {bad}"))),
        }
    }

    /// Compares memory of an end with a pattern.
    fn check(&mut self, who: usize, seed: u64, offset: u64, len: u64, at: u64) -> Result<()> {
        let mr = self.ends[who].made.mr;
        let fields = json!({"mr": mr, "seed": seed, "offset": offset, "len": len, "at": at});
        let answer = self.call(who, "check", fields)?;
        if answer["equal"] == true {
            return Ok(());
        }
        let from = number(&answer["first_diff"]);
        Err(Error::Failed(format!(
            "memory differs from what it should be at byte {}",
            offset + from
        )))
    }

    fn sge(&self, offset: u64, len: u64) -> Value {
        json!([{"mr": self.ends[A].made.mr, "offset": offset, "len": len}])
    }

    /// Queries both queue pairs, so that their states are in the log.
    fn states(&mut self) -> Result<()> {
        for who in [A, B] {
            let qp = self.ends[who].made.qp;
            self.call(who, "query_qp", json!({"qp": qp}))?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        for who in [A, B] {
            let Made { pd, cq, mr, qp, srq, xrcd, .. } = self.ends[who].made;
            let mut all =
                vec![("qp", qp), ("srq", srq), ("xrcd", xrcd), ("mr", mr), ("cq", cq), ("pd", pd)];
            all.retain(|(_, handle)| *handle != 0);
            for (kind, handle) in all {
                self.call(who, "close", json!({kind: handle}))?;
            }
        }
        Ok(())
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
