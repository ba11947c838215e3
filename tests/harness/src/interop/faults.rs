//! Faults. Each is first run between two kernels. With one of them replaced by this engine, both
//! ends must report equal completions and end in equal states.

use super::Requester;
use super::end::{ALL_ACCESS, Conn, Link, Pair, Wc, all_equal, failed};
use super::exchange::{LOCAL, Op, REMOTE, request};
use super::world::{KernelFeature, Setting, World};
use crate::vm::Result;
use serde_json::{Value, json};
use std::fmt;

/// A fault: its name in filters, and its description.
pub(super) struct Fault {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    op: Op,
    cause: Cause,
}

/// The cause of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Rkey,
    Bounds,
    Region,
    QpAccess,
    Unaligned,
    Invalidate,
    LongMessage,
    RecvLkey,
    SendLkey,
    NoReceive,
    Destroyed,
    Killed,
}

const fn fault(name: &'static str, what: &'static str, op: Op, cause: Cause) -> Fault {
    Fault { name, what, op, cause }
}

pub(super) const ALL: &[Fault] = &[
    fault("wrong-rkey/WRITE", "WRITE, wrong rkey", Op::Write, Cause::Rkey),
    fault("wrong-rkey/WRITE_IMM", "WRITE_IMM, wrong rkey", Op::WriteImm, Cause::Rkey),
    fault("wrong-rkey/READ", "READ, wrong rkey", Op::Read, Cause::Rkey),
    fault("wrong-rkey/CAS", "CAS, wrong rkey", Op::Cas, Cause::Rkey),
    fault("wrong-rkey/FETCH_ADD", "FETCH_ADD, wrong rkey", Op::FetchAdd, Cause::Rkey),
    fault("bounds/WRITE", "WRITE that ends a byte after the region", Op::Write, Cause::Bounds),
    fault(
        "bounds/WRITE_IMM",
        "WRITE_IMM that ends a byte after the region",
        Op::WriteImm,
        Cause::Bounds,
    ),
    fault("bounds/READ", "READ that ends a byte after the region", Op::Read, Cause::Bounds),
    fault("bounds/CAS", "CAS on a word after the region", Op::Cas, Cause::Bounds),
    fault("bounds/FETCH_ADD", "FETCH_ADD on a word after the region", Op::FetchAdd, Cause::Bounds),
    fault("region/WRITE", "WRITE to a region without remote write", Op::Write, Cause::Region),
    fault("region/READ", "READ from a region without remote read", Op::Read, Cause::Region),
    fault("region/CAS", "CAS in a region without remote atomics", Op::Cas, Cause::Region),
    fault(
        "region/FETCH_ADD",
        "FETCH_ADD in a region without remote atomics",
        Op::FetchAdd,
        Cause::Region,
    ),
    fault("qp/WRITE", "WRITE through a QP without remote write", Op::Write, Cause::QpAccess),
    fault("qp/READ", "READ through a QP without remote read", Op::Read, Cause::QpAccess),
    fault("qp/CAS", "CAS through a QP without remote atomics", Op::Cas, Cause::QpAccess),
    fault(
        "qp/FETCH_ADD",
        "FETCH_ADD through a QP without remote atomics",
        Op::FetchAdd,
        Cause::QpAccess,
    ),
    fault("wrong-rkey/ATOMIC_WRITE", "ATOMIC_WRITE, wrong rkey", Op::AtomicWrite, Cause::Rkey),
    fault(
        "bounds/ATOMIC_WRITE",
        "ATOMIC_WRITE of a word after the region",
        Op::AtomicWrite,
        Cause::Bounds,
    ),
    fault(
        "region/ATOMIC_WRITE",
        "ATOMIC_WRITE to a region without remote write",
        Op::AtomicWrite,
        Cause::Region,
    ),
    fault(
        "qp/ATOMIC_WRITE",
        "ATOMIC_WRITE through a QP without remote write",
        Op::AtomicWrite,
        Cause::QpAccess,
    ),
    fault(
        "unaligned/ATOMIC_WRITE",
        "ATOMIC_WRITE to an address that is no multiple of 8",
        Op::AtomicWrite,
        Cause::Unaligned,
    ),
    fault("wrong-rkey/FLUSH", "FLUSH, wrong rkey", Op::Flush, Cause::Rkey),
    fault("bounds/FLUSH", "FLUSH that ends a byte after the region", Op::Flush, Cause::Bounds),
    fault("region/FLUSH", "FLUSH of a region without flush to global", Op::Flush, Cause::Region),
    fault("qp/FLUSH", "FLUSH through a QP without flush to global", Op::Flush, Cause::QpAccess),
    fault(
        "invalidate/SEND",
        "SEND with invalidate of a key that no window has",
        Op::Send,
        Cause::Invalidate,
    ),
    fault("long/SEND", "SEND of 3000 bytes into a receive of 100", Op::Send, Cause::LongMessage),
    fault("recv-lkey/SEND", "SEND into a receive with a wrong lkey", Op::Send, Cause::RecvLkey),
    fault("lkey/SEND", "SEND of bytes with a wrong lkey", Op::Send, Cause::SendLkey),
    fault("rnr/SEND", "SEND, never a receive, rnr_retry 2", Op::Send, Cause::NoReceive),
    fault(
        "rnr/WRITE_IMM",
        "WRITE_IMM, never a receive, rnr_retry 2",
        Op::WriteImm,
        Cause::NoReceive,
    ),
    fault(
        "destroyed/WRITE",
        "WRITE to a QP that has been destroyed, retry_cnt 3",
        Op::Write,
        Cause::Destroyed,
    ),
    fault("destroyed/SEND", "SEND, likewise", Op::Send, Cause::Destroyed),
    fault("destroyed/READ", "READ, likewise", Op::Read, Cause::Destroyed),
    fault("destroyed/FETCH_ADD", "FETCH_ADD, likewise", Op::FetchAdd, Cause::Destroyed),
    fault(
        "vanished/WRITE",
        "WRITE to a process that has been killed, retry_cnt 3",
        Op::Write,
        Cause::Killed,
    ),
];

/// The observations of both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observations {
    /// The completions of the request and of the following request, then of a posted receive.
    req: Vec<String>,
    /// The completions of two posted receives.
    resp: Vec<String>,
    states: [String; 2],
}

impl fmt::Display for Observations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[String]| if all.is_empty() { "none".into() } else { all.join(", ") };
        let [req, resp] = &self.states;
        let here = format!("requester {req}: {}", list(&self.req));
        if resp.is_empty() {
            return f.write_str(&here);
        }
        write!(f, "{here}; responder {resp}: {}", list(&self.resp))
    }
}

/// The size of the messages in bytes: three packets.
const SIZE: u64 = 3000;

impl Fault {
    /// Runs the fault and returns the observations of both ends.
    pub(super) fn play(&self, world: &mut World<'_>, setting: Setting) -> Result<Observations> {
        let mut link = Link { min_rnr_timer: 14, rnr_retry: 2, ..Link::default() };
        let mute = setting.requester == Requester::Ours
            && world.quirks.mute_faults
            && self.is_mute(setting.requester);
        if mute || matches!(self.cause, Cause::Destroyed | Cause::Killed) {
            // 17 ms.
            (link.timeout, link.retry_cnt) = (12, 3);
        }
        link.extended = self.op.is_placed();
        if self.op == Op::Flush {
            link.access.push(self.op.right());
        }
        if self.cause == Cause::QpAccess {
            link.access.retain(|a| *a != self.op.right());
        }
        let mut pair = world.pair(setting)?;
        let conn = pair.connect(&link)?;
        let size = if self.op.is_word() { 8 } else { SIZE };
        let imm = self.op.has_imm().then_some(77);
        let mut wr = request(&pair, conn, self.op, size, 1, imm);
        let mut extra = None;
        self.cause(&mut pair, &mut wr, size, &mut extra)?;
        let (local, remote) = (pair.req.mr, pair.resp.mr);
        pair.req.batch(vec![local.fill(1, LOCAL, SIZE)])?;
        pair.resp.batch(vec![remote.fill(2, 0, 0x4000)])?;
        pair.req.post_recv(conn.req, 50, json!([local.sge(0x8000, SIZE)]))?;
        self.receives(&mut pair, conn)?;

        // Packets in flight when the peer ends must not be lost either.
        match self.cause {
            Cause::Destroyed => pair.resp.close("qp", conn.resp.qp)?,
            Cause::Killed => world.crash_responder(setting),
            _ => {}
        }
        let gone = matches!(self.cause, Cause::Destroyed | Cause::Killed);
        let req = world.requester(setting)?;
        let next = json!({"qp": conn.req.qp, "op": "send", "wr_id": 2, "sge": [local.sge(0, 8)]});
        req.batch(vec![("post_send", wr), ("post_send", next)])?;
        let mut at_req = named(&req.wait(req.send_cq, 1)?);
        at_req.extend(named(&req.poll(req.send_cq, 1, FLUSH)?));
        let received = req.poll(req.recv_cq, 1, GRACE)?;
        at_req.extend(named(&received));
        let mut states = [req.state(conn.req)?, String::new()];
        let mut at_resp = Vec::new();
        if gone {
            req.close("qp", conn.req.qp)?;
            return Ok(Observations { req: at_req, resp: at_resp, states });
        }

        let mut pair = world.pair(setting)?;
        at_resp.extend(named(&pair.resp.poll(pair.resp.recv_cq, 2, GRACE)?));
        states[1] = pair.resp.state(conn.resp)?;
        let partly = matches!(self.cause, Cause::LongMessage | Cause::NoReceive);
        if !partly {
            let untouched = pair.resp.batch(vec![remote.check(2, 0, 0x4000, 0)])?;
            all_equal(pair.resp.who, "memory that must not change", &untouched)?;
        }
        pair.disconnect(conn)?;
        if let Some(mr) = extra {
            pair.resp.close("mr", mr)?;
        }
        pair.idle()?;
        Ok(Observations { req: at_req, resp: at_resp, states })
    }

    /// Returns whether the requester can cause the fault: our end refuses an unaligned ATOMIC
    /// WRITE.
    pub(super) fn is_possible(&self, requester: Requester) -> bool {
        self.cause != Cause::Unaligned || requester != Requester::Ours
    }

    /// Returns the feature that the fault needs and that some kernels lack.
    pub(super) fn needs(&self) -> KernelFeature {
        match (self.op, self.cause) {
            (op, _) if op.is_placed() => KernelFeature::Placed,
            (_, Cause::Invalidate) => KernelFeature::Windows,
            _ => KernelFeature::Nothing,
        }
    }

    /// Returns whether two kernels with a quirk show nothing that could serve as a reference. The
    /// quirk is [`super::world::Quirks::mute_faults`].
    pub(super) fn is_mute(&self, requester: Requester) -> bool {
        match self.cause {
            Cause::Rkey | Cause::Bounds | Cause::Region | Cause::QpAccess => true,
            Cause::SendLkey => requester == Requester::Ours,
            _ => false,
        }
    }

    /// Compares the observations with the specification. A kernel with the quirk is not a
    /// reference. If the kernel should have answered, compares them with the effect of a missing
    /// answer. Returns a remark.
    pub(super) fn compare_with_spec(
        &self,
        requester: Requester,
        observed: &Observations,
    ) -> Result<String> {
        let list = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect();
        let (status, remark) = match (requester, self.cause) {
            (_, Cause::SendLkey) => ("#1 LOC_PROT_ERR", "this kernel's requester flushes nothing"),
            (Requester::Ours, _) => ("#1 RETRY_EXC_ERR", "this kernel sends no NAK, whoever asks"),
            (_, Cause::QpAccess) => ("#1 REM_INV_REQ_ERR", "this kernel would send no NAK"),
            _ => ("#1 REM_ACCESS_ERR", "this kernel would send no NAK"),
        };
        let (resp, state) = match self.cause {
            Cause::SendLkey => (list(&[]), "RTS"),
            // The responder enters the error state as required, although it sends nothing.
            _ => (list(&["#60 WR_FLUSH_ERR", "#61 WR_FLUSH_ERR"]), "ERR"),
        };
        let req = list(&[status, "#2 WR_FLUSH_ERR", "#50 WR_FLUSH_ERR"]);
        let want = Observations { req, resp, states: ["ERR".into(), state.into()] };
        if *observed == want {
            return Ok(format!("{remark}: {observed}"));
        }
        Err(failed(format!("{observed}; it should be {want}")))
    }

    /// Makes the request invalid.
    fn cause(
        &self,
        pair: &mut Pair<'_>,
        wr: &mut Value,
        size: u64,
        extra: &mut Option<u64>,
    ) -> Result<()> {
        let mut remote = pair.resp.mr;
        let word = if self.op.is_word() { 0x2008 } else { REMOTE };
        if self.op.is_remote() {
            wr["remote_addr"] = (remote.addr + word).into();
        }
        if self.op == Op::Flush && self.cause != Cause::Region {
            let rights: Vec<_> = ALL_ACCESS.into_iter().chain([self.op.right()]).collect();
            remote = pair.resp.register(remote.size, &rights)?;
            *extra = Some(remote.mr);
            wr["remote_addr"] = (remote.addr + word).into();
            wr["rkey"] = remote.rkey.into();
        }
        match self.cause {
            // The region is correct, the key byte is wrong.
            Cause::Rkey => wr["rkey"] = (remote.rkey ^ 0x55).into(),
            Cause::Bounds => {
                let over = if self.op.is_word() { 8 } else { 1 };
                wr["remote_addr"] = (remote.addr + remote.size - size + over).into();
            }
            Cause::Region => {
                let rights: Vec<_> =
                    ALL_ACCESS.into_iter().filter(|a| *a != self.op.right()).collect();
                let mr = pair.resp.register(0x4000, &rights)?;
                *extra = Some(mr.mr);
                wr["remote_addr"] = mr.addr.into();
                wr["rkey"] = mr.rkey.into();
            }
            Cause::Unaligned => wr["remote_addr"] = (remote.addr + word + 4).into(),
            Cause::Invalidate => {
                wr["op"] = "send_inv".into();
                wr["invalidate"] = 0x1234_5678.into();
            }
            Cause::SendLkey => {
                let local = pair.req.mr;
                wr["sge"] = json!([
                    {"addr": local.addr + LOCAL, "len": size, "lkey": local.lkey ^ 0x55}
                ]);
            }
            _ => {}
        }
        Ok(())
    }

    /// Posts the receives that the responder has despite the fault.
    fn receives(&self, pair: &mut Pair<'_>, conn: Conn) -> Result<()> {
        let remote = pair.resp.mr;
        let sge = match self.cause {
            Cause::NoReceive => return Ok(()),
            Cause::LongMessage => remote.sge(0x4000, 100),
            Cause::RecvLkey => {
                json!({"addr": remote.addr + 0x4000, "len": SIZE, "lkey": remote.lkey ^ 0x55})
            }
            _ => remote.sge(0x4000, SIZE),
        };
        for wr_id in [60, 61] {
            pair.resp.post_recv(conn.resp, wr_id, json!([sge]))?;
        }
        Ok(())
    }
}

/// The time limit for flushing after a failed request, in milliseconds.
const FLUSH: u64 = 5000;

/// How long to wait for a completion that may not come, in milliseconds.
const GRACE: u64 = 300;

fn named(wcs: &[Wc]) -> Vec<String> {
    wcs.iter().map(|w| format!("#{} {}", w.wr_id, w.status)).collect()
}

/// A behaviour in which the kernel deviates from the specification and this engine does not.
struct Deviation {
    fault: &'static str,
    /// The requester in the runs in which our end behaves differently.
    requester: Requester,
    /// Pairs of the status that the kernel reports and the one that we report.
    instead: &'static [(&'static str, &'static str)],
    /// Alternatively, all observations of the requester, and its state.
    observed: Option<(&'static [&'static str], &'static str)>,
    why: &'static str,
}

const DEVIATIONS: &[Deviation] = &[
    Deviation {
        fault: "invalidate/SEND",
        requester: Requester::Kernel,
        instead: &[],
        observed: Some((&["#1 REM_ACCESS_ERR", "#2 WR_FLUSH_ERR", "#50 WR_FLUSH_ERR"], "ERR")),
        why: "a key that cannot be invalidated is a remote access error; the kernel acknowledges the \
              SEND, and its queue pair goes into the error state without a word",
    },
    Deviation {
        fault: "long/SEND",
        requester: Requester::Kernel,
        instead: &[
            ("#1 REM_OP_ERR", "#1 REM_INV_REQ_ERR"),
            ("#60 LOC_QP_OP_ERR", "#60 LOC_LEN_ERR"),
        ],
        observed: None,
        why: "a message longer than its receive is a local length error, and an invalid request to \
              the peer (IBTA 9.9.3, 11.6.2)",
    },
    Deviation {
        fault: "recv-lkey/SEND",
        requester: Requester::Kernel,
        instead: &[("#60 LOC_QP_OP_ERR", "#60 LOC_PROT_ERR")],
        observed: None,
        why: "a receive with a wrong lkey is a local protection error (IBTA 11.6.2)",
    },
    Deviation {
        fault: "lkey/SEND",
        requester: Requester::Ours,
        instead: &[("#1 LOC_QP_OP_ERR", "#1 LOC_PROT_ERR"), ("#1 WR_FLUSH_ERR", "#1 LOC_PROT_ERR")],
        observed: None,
        why: "a request with a wrong lkey is a local protection error (IBTA 11.6.2)",
    },
    // No packet is sent, so our end is not involved.
    Deviation {
        fault: "lkey/SEND",
        requester: Requester::Kernel,
        instead: &[],
        observed: Some((&["#1 LOC_PROT_ERR", "#2 WR_FLUSH_ERR", "#50 WR_FLUSH_ERR"], "ERR")),
        why: FLUSHES_OR_NOT,
    },
    Deviation {
        fault: "lkey/SEND",
        requester: Requester::Kernel,
        instead: &[],
        observed: Some((&["#1 LOC_PROT_ERR", "#50 WR_FLUSH_ERR"], "ERR")),
        why: FLUSHES_OR_NOT,
    },
];

const FLUSHES_OR_NOT: &str =
    "the requester of kernel 5.10 does not always complete the request behind the failed one";

/// Compares the observations with those of two kernels.
///
/// # Errors
/// The difference. If the difference is expected, `Ok` contains a remark about it.
pub(super) fn compare(
    fault: &Fault,
    requester: Requester,
    baseline: &Observations,
    observed: &Observations,
) -> Result<Option<String>> {
    if baseline == observed {
        return Ok(None);
    }
    let mut known = DEVIATIONS.iter().filter(|d| d.fault == fault.name && d.requester == requester);
    match known.find(|d| baseline.with(d) == *observed) {
        Some(deviation) => Ok(Some(format!("{}: {observed}", deviation.why))),
        None => Err(failed(format!("{observed}; between two kernels: {baseline}"))),
    }
}

impl Observations {
    /// Returns the observations as this deviation changes them.
    fn with(&self, deviation: &Deviation) -> Self {
        let swap = |list: &[String]| {
            let swap = |s: &String| {
                let found = deviation.instead.iter().find(|(kernel, _)| kernel == s);
                found.map_or_else(|| s.clone(), |(_, ours)| (*ours).to_owned())
            };
            list.iter().map(swap).collect()
        };
        let (mut req, mut states) = (swap(&self.req), self.states.clone());
        if let Some((all, state)) = deviation.observed {
            req = all.iter().map(|s| (*s).to_owned()).collect();
            states[0] = state.to_owned();
        }
        Self { req, resp: swap(&self.resp), states }
    }
}
