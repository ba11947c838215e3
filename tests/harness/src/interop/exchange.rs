//! Executes one operation and compares all its effects: every byte at both ends and around the
//! message, and every field of the completions that verbs define.

use super::end::{Conn, End, GUARD, Pair, TIMEOUT_MS, all_equal, completions, failed};
use crate::vm::Result;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The operations of a requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    Cas,
    FetchAdd,
    AtomicWrite,
    Flush,
}

impl Op {
    /// The operations in the table of RC.
    pub(super) const ALL: [Self; 7] = [
        Self::Send,
        Self::SendImm,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::Cas,
        Self::FetchAdd,
    ];

    /// The operations of UC.
    pub(super) const UC: [Self; 4] = [Self::Send, Self::SendImm, Self::Write, Self::WriteImm];

    /// The operations of UD.
    pub(super) const UD: [Self; 2] = [Self::Send, Self::SendImm];

    /// Returns the name in the table and in filters.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND_IMM",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Read => "READ",
            Self::Cas => "CAS",
            Self::FetchAdd => "FETCH_ADD",
            Self::AtomicWrite => "ATOMIC_WRITE",
            Self::Flush => "FLUSH",
        }
    }

    /// Returns the name in the peers' protocol.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Read => "read",
            Self::Cas => "cas",
            Self::FetchAdd => "fetch_add",
            Self::AtomicWrite => "atomic_write",
            Self::Flush => "flush",
        }
    }

    /// Returns the opcode of the requester's completion.
    pub(super) fn completes_as(self) -> &'static str {
        match self {
            Self::Send | Self::SendImm => "SEND",
            Self::Write | Self::WriteImm => "RDMA_WRITE",
            Self::Read => "RDMA_READ",
            Self::Cas => "COMP_SWAP",
            Self::FetchAdd => "FETCH_ADD",
            Self::AtomicWrite => "ATOMIC_WRITE",
            Self::Flush => "FLUSH",
        }
    }

    /// Returns whether this is ATOMIC WRITE or FLUSH.
    pub(super) fn is_placed(self) -> bool {
        matches!(self, Self::AtomicWrite | Self::Flush)
    }

    /// Returns whether the operation accesses one 8-byte word.
    pub(super) fn is_word(self) -> bool {
        self.is_atomic() || self == Self::AtomicWrite
    }

    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::Cas | Self::FetchAdd)
    }

    pub(super) fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }

    /// Returns whether the operation names memory of the responder.
    pub(super) fn is_remote(self) -> bool {
        !matches!(self, Self::Send | Self::SendImm)
    }

    /// Returns the opcode of the responder's completion, if there is one.
    pub(super) fn received_as(self) -> Option<&'static str> {
        match self {
            Self::Send | Self::SendImm => Some("RECV"),
            Self::WriteImm => Some("RECV_RDMA_WITH_IMM"),
            _ => None,
        }
    }

    /// Returns the access right that the operation needs at the responder.
    pub(super) fn right(self) -> &'static str {
        match self {
            Self::Send | Self::SendImm => "",
            Self::Write | Self::WriteImm | Self::AtomicWrite => "remote_write",
            Self::Flush => "flush_global",
            Self::Read => "remote_read",
            Self::Cas | Self::FetchAdd => "remote_atomic",
        }
    }
}

/// The offsets of messages in the memory of requester and responder. They are unaligned, and
/// differently so.
pub(super) const LOCAL: u64 = 0x1003;
pub(super) const REMOTE: u64 = 0x2005;

/// The offset of the word for atomics, and of the requester's buffer for the old value.
const WORD: u64 = 0x2008;
const OLD: u64 = 0x1008;

/// Executes `op` with a message of `size` bytes. `n` is a number chosen by the caller, from which
/// patterns, work request IDs and immediate data are derived.
pub(super) fn exchange(pair: &mut Pair<'_>, conn: Conn, op: Op, size: u64, n: u64) -> Result<()> {
    if op.is_atomic() {
        return atomic(pair, conn, op, n);
    }
    let (seed, background) = (2 * n + 1, 2 * n + 2);
    let imm = op.has_imm().then_some(0xa1b2_0000 + n % 0x1_0000);
    let (local, remote) = (pair.req.mr, pair.resp.mr);
    let around = |end: &End, offset: u64| end.mr.fill(background, offset - GUARD, size + 2 * GUARD);
    let mut at_resp = Vec::new();
    if op == Op::Read {
        pair.req.batch(vec![around(pair.req, LOCAL)])?;
        at_resp.push(remote.fill(seed, REMOTE, size));
    } else {
        pair.req.batch(vec![local.fill(seed, LOCAL, size)])?;
        at_resp.push(around(pair.resp, REMOTE));
    }
    if let Some(opcode) = op.received_as() {
        let takes = opcode == "RECV" && size > 0;
        let sge = if takes { json!([remote.sge(REMOTE, size)]) } else { json!([]) };
        at_resp.push(("post_recv", json!({"qp": conn.resp.qp, "wr_id": n + 1, "sge": sge})));
    }
    pair.resp.batch(at_resp)?;

    let wr = request(pair, conn, op, size, n, imm);
    complete(pair, conn, op, Some(size), n, wr)?;
    if let Some(opcode) = op.received_as() {
        let wc = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
        wc.expect(pair.resp.who, conn.resp, n + 1, opcode, Some(size), imm)?;
    }

    let whole = |end: &End, offset: u64| {
        vec![
            end.mr.check(seed, offset, size, 0),
            end.mr.check(background, offset - GUARD, GUARD, 0),
            end.mr.check(background, offset + size, GUARD, GUARD + size),
        ]
    };
    let source = |end: &End, offset: u64| vec![end.mr.check(seed, offset, size, 0)];
    if op == Op::Write && !conn.reliable {
        // No completion tells the responder when the message has arrived.
        arrived(pair.resp, &source(pair.resp, REMOTE))?;
    }
    let (at_req, at_resp) = if op == Op::Read {
        (whole(pair.req, LOCAL), source(pair.resp, REMOTE))
    } else {
        (source(pair.req, LOCAL), whole(pair.resp, REMOTE))
    };
    all_equal(pair.req.who, "requester's memory", &pair.req.batch(at_req)?)?;
    all_equal(pair.resp.who, "responder's memory", &pair.resp.batch(at_resp)?)
}

/// Repeats a check until it succeeds.
fn arrived(end: &mut End, check: &[(&'static str, Value)]) -> Result<()> {
    let deadline = Instant::now() + Duration::from_millis(TIMEOUT_MS);
    while end.batch(check.to_vec())?.iter().any(|a| a["equal"] == false) {
        if Instant::now() > deadline {
            return Err(failed(format!("{}: nothing came in {} s", end.who, TIMEOUT_MS / 1000)));
        }
    }
    Ok(())
}

/// Returns the work request of a message with the memory layout of [`exchange`].
pub(super) fn request(
    pair: &Pair<'_>,
    conn: Conn,
    op: Op,
    size: u64,
    n: u64,
    imm: Option<u64>,
) -> Value {
    let sge = if size > 0 { json!([pair.req.mr.sge(LOCAL, size)]) } else { json!([]) };
    let mut wr = json!({"qp": conn.req.qp, "op": op.verb(), "wr_id": n, "sge": sge});
    if let Some(imm) = imm {
        wr["imm"] = imm.into();
    }
    if op == Op::Flush {
        wr["sge"] = json!([]);
        wr["length"] = size.into();
        wr["placement"] = json!(["global"]);
    }
    if op.is_remote() {
        wr["remote_addr"] = (pair.resp.mr.addr + REMOTE).into();
        wr["rkey"] = pair.resp.mr.rkey.into();
    }
    wr
}

/// Posts a request and waits until it completes successfully.
fn complete(
    pair: &mut Pair<'_>,
    conn: Conn,
    op: Op,
    size: Option<u64>,
    n: u64,
    wr: Value,
) -> Result<()> {
    let cq = pair.req.send_cq;
    let poll = json!({"cq": cq, "count": 1, "timeout_ms": TIMEOUT_MS});
    let answers = pair.req.batch(vec![("post_send", wr), ("poll", poll)])?;
    let wcs = completions(&answers[1]);
    let Some(wc) = wcs.first() else {
        return Err(failed(format!("{}: no completion in {} s", pair.req.who, TIMEOUT_MS / 1000)));
    };
    // Verbs do not define byte_len for SEND and WRITE.
    let byte_len = if matches!(op, Op::Read) || op.is_atomic() { size } else { None };
    wc.expect(pair.req.who, conn.req, n, op.completes_as(), byte_len, None)
}

/// Executes two atomics on one word: a COMPARE AND SWAP that swaps and one that does not, or a
/// FETCH AND ADD and one that wraps.
fn atomic(pair: &mut Pair<'_>, conn: Conn, op: Op, n: u64) -> Result<()> {
    let start = 0x0123_4567_89ab_cdef ^ n;
    let operands = [[start, 0xfedc_ba98_0000_0000 | n], [start, u64::MAX]];
    let mut now = start;
    let (local, remote) = (pair.req.mr, pair.resp.mr);
    let background = 2 * n + 2;
    pair.req.batch(vec![local.fill(background, OLD - GUARD, 8 + 2 * GUARD)])?;
    pair.resp.batch(vec![remote.fill(background, WORD - GUARD, 8 + 2 * GUARD)])?;
    pair.resp.set_word(WORD, start)?;
    for (n, [a, b]) in (n..).zip(operands) {
        let mut wr = json!({
            "qp": conn.req.qp, "op": op.verb(), "wr_id": n, "sge": [local.sge(OLD, 8)],
            "remote_addr": remote.addr + WORD, "rkey": remote.rkey,
        });
        let next = if op == Op::Cas {
            (wr["compare"], wr["swap"]) = (a.into(), b.into());
            if now == a { b } else { now }
        } else {
            wr["add"] = b.into();
            now.wrapping_add(b)
        };
        complete(pair, conn, op, Some(8), n, wr)?;
        same("what the requester got back", pair.req.word(OLD)?, now)?;
        same("the responder's word", pair.resp.word(WORD)?, next)?;
        now = next;
    }
    let guards = |mr: super::end::Mr, word: u64| {
        vec![
            mr.check(background, word - GUARD, GUARD, 0),
            mr.check(background, word + 8, GUARD, GUARD + 8),
        ]
    };
    all_equal(pair.req.who, "around the old value", &pair.req.batch(guards(local, OLD))?)?;
    all_equal(pair.resp.who, "around the word", &pair.resp.batch(guards(remote, WORD))?)
}

fn same(what: &str, have: u64, want: u64) -> Result<()> {
    if have == want {
        return Ok(());
    }
    Err(failed(format!("{what} is {have:#018x}, not {want:#018x}")))
}
