//! Shared receive queues of the responder.

use super::end::{Conn, End, Link, Pair, TIMEOUT_MS, all_equal, failed, number};
use super::exchange::LOCAL;
use super::feature::{Feature, feature};
use super::world::{Setting, World};
use crate::vm::Result;
use serde_json::json;
use std::thread;
use std::time::Duration;

pub(super) const ALL: &[Feature] = &[
    feature("srq/rc", "four QPs of RC with one shared receive queue, in turn", |w, s| {
        turns(w, s, "rc")
    }),
    feature("srq/uc", "the same with UC", |w, s| turns(w, s, "uc")),
    feature("srq/limit", "the limit event comes once, when fewer receives are left", limit),
    feature("srq/rnr", "a shared queue that is empty for 100 ms: RNR", rnr),
];

/// The size of the messages in bytes: three packets.
const SIZE: u64 = 3000;

/// Creates a shared receive queue of the responder.
fn srq(end: &mut End) -> Result<u64> {
    let answer = end.call("srq", json!({"pd": end.pd, "max_wr": 64, "max_sge": 2}))?;
    Ok(number(&answer["srq"]))
}

fn post(end: &mut End, srq: u64, n: u64) -> Result<()> {
    let sge = json!([end.mr.sge(n * SIZE, SIZE)]);
    end.call("post_recv", json!({"srq": srq, "wr_id": n, "sge": sge})).map(drop)
}

fn send(pair: &mut Pair<'_>, conn: Conn, n: u64) -> Result<()> {
    let local = pair.req.mr;
    pair.req.batch(vec![local.fill(n + 1, LOCAL, SIZE)])?;
    let wr = json!({
        "qp": conn.req.qp, "op": "send_imm", "wr_id": n, "imm": n, "sge": [local.sge(LOCAL, SIZE)],
    });
    pair.req.call("post_send", wr).map(drop)
}

/// Takes both completions of message `n`, which used receive number `at`.
fn take(pair: &mut Pair<'_>, conn: Conn, n: u64, at: u64) -> Result<()> {
    let sent = pair.req.wait(pair.req.send_cq, 1)?.remove(0);
    sent.expect(pair.req.who, conn.req, n, "SEND", None, None)?;
    let got = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
    got.expect(pair.resp.who, conn.resp, at, "RECV", Some(SIZE), Some(n))?;
    let check = pair.resp.mr.check(n + 1, at * SIZE, SIZE, 0);
    all_equal(pair.resp.who, "a message", &pair.resp.batch(vec![check])?)
}

fn turns(world: &mut World<'_>, setting: Setting, service: &'static str) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let srq = srq(pair.resp)?;
    let link = Link { service, srq: Some(srq), ..Link::default() };
    let conns = (0..4).map(|_| pair.connect(&link)).collect::<Result<Vec<_>>>()?;
    for n in 0..12 {
        post(pair.resp, srq, n)?;
    }
    for (n, conn) in (0..12).zip(conns.iter().cycle()) {
        send(&mut pair, *conn, n)?;
        take(&mut pair, *conn, n, n)?;
    }
    pair.idle()?;
    for conn in conns {
        pair.disconnect(conn)?;
    }
    pair.resp.close("srq", srq)
}

fn limit(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let ctx = pair.resp.ctx;
    let events = |pair: &mut Pair<'_>, timeout_ms: u64| -> Result<Vec<String>> {
        let answer = pair.resp.call("events", json!({"ctx": ctx, "timeout_ms": timeout_ms}))?;
        let names = answer["events"].as_array().into_iter().flatten();
        Ok(names.map(|e| e.as_str().unwrap_or("?").to_owned()).collect())
    };
    let srq = srq(pair.resp)?;
    let conn = pair.connect(&Link { srq: Some(srq), ..Link::default() })?;
    // Events of other cells.
    while !events(&mut pair, 0)?.is_empty() {}
    for n in 0..8 {
        post(pair.resp, srq, n)?;
    }
    pair.resp.call("srq_limit", json!({"srq": srq, "limit": 4}))?;
    for n in 0..8 {
        send(&mut pair, conn, n)?;
        take(&mut pair, conn, n, n)?;
        let mut seen = events(&mut pair, 0)?;
        seen.retain(|e| e != "COMM_EST");
        // After the fifth message, three receives are left.
        if n == 4 && seen.is_empty() {
            seen = events(&mut pair, TIMEOUT_MS)?;
        }
        let want: &[&str] = if n == 4 { &["SRQ_LIMIT_REACHED"] } else { &[] };
        if seen != want {
            return Err(failed(format!("{seen:?} with {} of 8 receives left", 7 - n)));
        }
    }
    pair.idle()?;
    pair.disconnect(conn)?;
    pair.resp.close("srq", srq)
}

fn rnr(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let srq = srq(pair.resp)?;
    // 20: 10 ms.
    let link = Link { srq: Some(srq), min_rnr_timer: 20, ..Link::default() };
    let conn = pair.connect(&link)?;
    send(&mut pair, conn, 1)?;
    thread::sleep(Duration::from_millis(100));
    if let Some(early) = pair.req.poll(pair.req.send_cq, 1, 0)?.first() {
        return Err(failed(format!("without a receive: {early:?}")));
    }
    post(pair.resp, srq, 3)?;
    take(&mut pair, conn, 1, 3)?;
    pair.idle()?;
    pair.disconnect(conn)?;
    pair.resp.close("srq", srq)
}
