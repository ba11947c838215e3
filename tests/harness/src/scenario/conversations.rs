//! The scripts of the conversations: the posted requests, and the expected results.

use serde_json::{Value, json};

use super::{A, B, Made, REGION, SEEDS, SIZES, Session, number};
use crate::vm::{Error, Result};

pub(super) fn sends(s: &mut Session<'_>, op: &str) -> Result<()> {
    s.connect(json!({}))?;
    for (n, len) in (1u64..).zip(SIZES) {
        s.post_recv(n, 4096, len)?;
        s.post_send(request(op, n, s.sge(64 * n, len)))?;
        s.good(A, 1)?;
        s.good(B, 1)?;
        s.check(B, SEEDS[A], 4096, len, 64 * n)?;
    }
    s.check(B, SEEDS[B], 0, 4096, 0)
}

pub(super) fn writes(s: &mut Session<'_>, op: &str) -> Result<()> {
    s.connect(json!({}))?;
    let Made { addr, rkey, .. } = s.ends[B].made;
    for (n, len) in (1u64..).zip(SIZES) {
        if op == "write_imm" {
            s.post_recv(n, 0, 0)?;
        }
        let mut wr = request(op, n, s.sge(64 * n, len));
        wr["remote_addr"] = (addr + 4096).into();
        wr["rkey"] = rkey.into();
        s.post_send(wr)?;
        s.good(A, 1)?;
        if op == "write_imm" {
            s.good(B, 1)?;
        }
        s.check(B, SEEDS[A], 4096, len, 64 * n)?;
    }
    s.check(B, SEEDS[B], 0, 4096, 0)
}

pub(super) fn reads(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({}))?;
    let Made { addr, rkey, .. } = s.ends[B].made;
    for (n, len) in (1u64..).zip(SIZES) {
        let mut wr = request("read", n, s.sge(4096, len));
        wr["remote_addr"] = (addr + 64 * n).into();
        wr["rkey"] = rkey.into();
        s.post_send(wr)?;
        s.good(A, 1)?;
        s.check(A, SEEDS[B], 4096, len, 64 * n)?;
    }
    s.check(A, SEEDS[A], 0, 4096, 0)
}

pub(super) fn cas(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({}))?;
    let old = value(s, B)?;
    for (n, compare, swap) in [(1, old, 0x1122_3344_5566_7788_u64), (2, old, 0)] {
        let mut wr = atomic(s, "cas", n);
        wr["compare"] = compare.into();
        wr["swap"] = swap.into();
        s.post_send(wr)?;
        s.good(A, 1)?;
        value(s, A)?;
        expect("memory after COMPARE & SWAP", value(s, B)?, 0x1122_3344_5566_7788)?;
    }
    expect("what COMPARE & SWAP brought back", value(s, A)?, 0x1122_3344_5566_7788)
}

pub(super) fn fetch_add(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({}))?;
    let mut now = value(s, B)?;
    for (n, add) in [(1, 1), (2, u64::MAX - 5)] {
        let mut wr = atomic(s, "fetch_add", n);
        wr["add"] = add.into();
        s.post_send(wr)?;
        s.good(A, 1)?;
        expect("what FETCH & ADD brought back", value(s, A)?, now)?;
        now = now.wrapping_add(add);
        expect("memory after FETCH & ADD", value(s, B)?, now)?;
    }
    Ok(())
}

/// Requests of each kind that are in flight together: packets after a lost one are lost with it.
pub(super) fn together(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({}))?;
    s.post_recv(1, 4096, 1030)?;
    s.post_recv(2, 6144, 257)?;
    let Made { addr, rkey, .. } = s.ends[B].made;
    for (n, (op, len)) in (1u64..).zip([
        ("send", 1030),
        ("write", 257),
        ("read", 1030),
        ("fetch_add", 8),
        ("read", 1),
        ("write", 600),
        ("fetch_add", 8),
        ("send", 257),
    ]) {
        let mut wr = match op {
            "fetch_add" => atomic(s, op, n),
            "read" => request(op, n, s.sge(4096, len)),
            _ => request(op, n, s.sge(64 * n, len)),
        };
        match op {
            "fetch_add" => wr["add"] = 1.into(),
            "send" => {}
            _ => {
                wr["remote_addr"] = (addr + 1024).into();
                wr["rkey"] = rkey.into();
            }
        }
        s.post_send(wr)?;
    }
    s.good(A, 8)?;
    s.good(B, 2)
}

pub(super) fn rnr_late(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({}))?;
    s.post_send(request("send", 1, s.sge(0, 257)))?;
    std::thread::sleep(std::time::Duration::from_millis(60));
    s.post_recv(1, 4096, 257)?;
    s.good(A, 1)?;
    s.good(B, 1)?;
    s.check(B, SEEDS[A], 4096, 257, 0)
}

pub(super) fn rnr_never(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({"rnr_retry": 2}))?;
    s.post_send(request("send", 1, s.sge(0, 257)))?;
    s.post_send(request("send", 2, s.sge(0, 1)))?;
    s.poll(A, 2)?;
    s.states()
}

/// The error in a request for remote memory.
#[derive(Clone, Copy)]
pub(super) enum Violation {
    Key,
    Bounds,
    Access,
}

pub(super) fn denied(s: &mut Session<'_>, op: &str, violation: Violation) -> Result<()> {
    s.connect(json!({}))?;
    let Made { pd, qp: _, mut addr, mut rkey, .. } = s.ends[B].made;
    let mut open = None;
    match violation {
        // The region is correct, the key byte is wrong.
        Violation::Key => rkey ^= 0x55,
        Violation::Bounds => addr += REGION - 256,
        Violation::Access => {
            let others = ["local_write", "remote_write", "remote_read", "remote_atomic"];
            let refused = match op {
                "write" => "remote_write",
                "read" => "remote_read",
                _ => "remote_atomic",
            };
            let access: Vec<_> = others.into_iter().filter(|a| *a != refused).collect();
            let mr = s.call(B, "mr", json!({"pd": pd, "size": REGION, "access": access}))?;
            (addr, rkey) = (number(&mr["addr"]), number(&mr["rkey"]));
            open = Some(number(&mr["mr"]));
        }
    }
    // The completion of a posted receive is part of the result.
    s.post_recv(9, 4096, 16)?;
    let mut wr = if op == "fetch_add" { atomic(s, op, 1) } else { request(op, 1, s.sge(0, 257)) };
    if op == "fetch_add" {
        wr["add"] = 1.into();
    }
    wr["remote_addr"] = addr.into();
    wr["rkey"] = rkey.into();
    s.post_send(wr)?;
    s.post_send(request("send", 2, s.sge(0, 1)))?;
    s.poll(A, 2)?;
    if !s.xrc {
        // A shared receive queue keeps its receives.
        s.poll(B, 1)?;
    }
    s.states()?;
    s.check(B, SEEDS[B], 0, REGION, 0)?;
    if let Some(mr) = open {
        s.call(B, "close", json!({"mr": mr}))?;
    }
    Ok(())
}

pub(super) fn send_too_long(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({}))?;
    s.post_recv(1, 4096, 100)?;
    s.post_send(request("send", 1, s.sge(0, 1030)))?;
    s.poll(A, 1)?;
    s.poll(B, 1)?;
    s.states()
}

pub(super) fn peer_gone(s: &mut Session<'_>) -> Result<()> {
    s.connect(json!({"timeout": 12, "retry_cnt": 3}))?;
    let Made { qp, addr, rkey, .. } = s.ends[B].made;
    s.call(B, "close", json!({"qp": qp}))?;
    s.ends[B].made.qp = 0;
    let mut wr = request("write", 1, s.sge(0, 257));
    wr["remote_addr"] = addr.into();
    wr["rkey"] = rkey.into();
    s.post_send(wr)?;
    s.post_send(request("send", 2, s.sge(0, 1)))?;
    s.poll(A, 2)?;
    let qp = s.ends[A].made.qp;
    s.call(A, "query_qp", json!({"qp": qp})).map(drop)
}

/// Returns a work request; its immediate data is its number.
fn request(op: &str, n: u64, sge: Value) -> Value {
    let mut wr = json!({"op": op, "wr_id": n, "sge": sge});
    if wr["sge"][0]["len"] == 0 {
        wr["sge"] = json!([]);
    }
    if op.ends_with("_imm") {
        wr["imm"] = (0x0102_0300 + n).into();
    }
    wr
}

fn atomic(s: &Session<'_>, op: &str, n: u64) -> Value {
    let Made { addr, rkey, .. } = s.ends[B].made;
    let mut wr = request(op, n, s.sge(0, 8));
    wr["remote_addr"] = addr.into();
    wr["rkey"] = rkey.into();
    wr
}

/// Returns the first eight bytes of an end's memory as the number that an atomic uses.
fn value(s: &mut Session<'_>, who: usize) -> Result<u64> {
    let mr = s.ends[who].made.mr;
    let answer = s.call(who, "read", json!({"mr": mr, "len": 8}))?;
    let hex = answer["hex"].as_str().and_then(|h| u64::from_str_radix(h, 16).ok());
    // The eight bytes are in memory order; both ends are little endian.
    hex.map(u64::swap_bytes).ok_or_else(|| Error::Failed(format!("no number in {answer}")))
}

fn expect(what: &str, have: u64, want: u64) -> Result<()> {
    if have == want {
        return Ok(());
    }
    Err(Error::Failed(format!("{what} is {have:#x}, not {want:#x}")))
}
