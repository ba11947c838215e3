//! Features beyond the table of operations: path MTUs, IPv6, bad links, late receives, many queue
//! pairs, long queues, lists and flags.

use super::end::{Conn, End, Link, Pair, Qp, TIMEOUT_MS, all_equal, failed};
use super::exchange::{Op, exchange, request};
use super::feature::{Feature, feature};
use super::world::{Setting, World};
use super::{datagram, placed, shared, unreliable, windows};
use crate::vm::Result;
use serde_json::{Value, json};
use std::thread;
use std::time::Duration;

/// Returns all features, first those of RC, then those of other services.
pub(super) fn all() -> impl Iterator<Item = &'static Feature> {
    ALL.iter()
        .chain(unreliable::ALL)
        .chain(datagram::ALL)
        .chain(shared::ALL)
        .chain(windows::ALL)
        .chain(placed::ALL)
}

const ALL: &[Feature] = &[
    feature("mtu/256", "path MTU 256: all operations, 256, 257 and 65537 bytes", |w, s| {
        mtu(w, s, 256)
    }),
    feature("mtu/512", "path MTU 512, likewise", |w, s| mtu(w, s, 512)),
    feature("mtu/1024", "path MTU 1024, likewise", |w, s| mtu(w, s, 1024)),
    feature("mtu/2048", "path MTU 2048, likewise, on a link of MTU 4200", |w, s| mtu(w, s, 2048)),
    feature("mtu/4096", "path MTU 4096, likewise, on a link of MTU 4200", |w, s| mtu(w, s, 4096)),
    feature("ipv6", "all operations over IPv6: 0, 1, 1025 and 65536 bytes", ipv6),
    feature(
        "loss",
        "2 % of packets lost and 2 % reordered on our side, both ways: all operations, 65536 bytes",
        loss,
    ),
    feature("rnr/late", "SEND, SEND_IMM and WRITE_IMM, the receive posted 100 ms late", rnr_late),
    feature("reconnect", "20 times: a new pair of QPs, a message, and destroyed again", reconnect),
    feature("qps", "8 pairs of QPs at once, messages both ways on each before any is polled", many),
    feature("deep/1", "64 requests in the queue, one READ or atomic at a time", |w, s| {
        deep(w, s, 1)
    }),
    feature("deep/16", "64 requests in the queue, 16 READs and atomics at a time", |w, s| {
        deep(w, s, 16)
    }),
    feature("lists", "messages gathered from three pieces and scattered to two", lists),
    feature("flags", "inline data, unsignalled, solicited and fenced requests", flags),
];

/// Returns the operations that the responder answers.
fn ops(pair: &Pair<'_>) -> Vec<Op> {
    Op::ALL.into_iter().filter(|op| pair.atomics || !op.is_atomic()).collect()
}

fn every_op(pair: &mut Pair<'_>, conn: Conn, sizes: &[u64]) -> Result<()> {
    let mut n = 1;
    for op in ops(pair) {
        for size in sizes {
            exchange(pair, conn, op, *size, n)
                .map_err(|e| failed(format!("{} of {size} bytes: {e}", op.name())))?;
            n += 8;
            if op.is_atomic() {
                break;
            }
        }
    }
    pair.idle()
}

fn mtu(world: &mut World<'_>, setting: Setting, path_mtu: u64) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link { path_mtu, ..Link::default() })?;
    every_op(&mut pair, conn, &[path_mtu, path_mtu + 1, 65537])?;
    pair.disconnect(conn)
}

fn ipv6(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(Setting { v6: true, ..setting })?;
    let conn = pair.connect(&Link::default())?;
    every_op(&mut pair, conn, &[0, 1, 1025, 65536])?;
    pair.disconnect(conn)
}

fn loss(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(Setting { faulty: true, ..setting })?;
    let conn = pair.connect(&Link { timeout: 15, ..Link::default() })?;
    let mut n = 1;
    for round in 0..4 {
        for op in ops(&pair) {
            exchange(&mut pair, conn, op, 65536, n)
                .map_err(|e| failed(format!("{} in round {round}: {e}", op.name())))?;
            n += 8;
        }
    }
    pair.idle()?;
    pair.disconnect(conn)
}

fn rnr_late(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    // 20: 10 ms.
    let conn = pair.connect(&Link { min_rnr_timer: 20, ..Link::default() })?;
    for (n, op) in (1..).zip([Op::Send, Op::SendImm, Op::WriteImm]) {
        let size = 3000;
        let imm = op.has_imm().then_some(7 + n);
        let source = pair.req.mr.fill(n, super::exchange::LOCAL, size);
        pair.req.batch(vec![source])?;
        let wr = request(&pair, conn, op, size, n, imm);
        pair.req.call("post_send", wr)?;
        thread::sleep(Duration::from_millis(100));
        if let Some(early) = pair.req.poll(pair.req.send_cq, 1, 0)?.first() {
            return Err(failed(format!("{} without a receive: {early:?}", op.name())));
        }
        let remote = pair.resp.mr;
        let sge = match op {
            Op::WriteImm => json!([]),
            _ => json!([remote.sge(super::exchange::REMOTE, size)]),
        };
        pair.resp.post_recv(conn.resp, n, sge)?;
        let sent = pair.req.wait(pair.req.send_cq, 1)?.remove(0);
        sent.expect(pair.req.who, conn.req, n, op.completes_as(), None, None)?;
        let got = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
        let opcode = op.received_as().unwrap_or("?");
        got.expect(pair.resp.who, conn.resp, n, opcode, Some(size), imm)?;
        let check = remote.check(n, super::exchange::REMOTE, size, 0);
        all_equal(pair.resp.who, op.name(), &pair.resp.batch(vec![check])?)?;
    }
    pair.disconnect(conn)
}

fn reconnect(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let ops = ops(&pair);
    for round in 0..20 {
        let conn = pair.connect(&Link::default())?;
        exchange(&mut pair, conn, ops[round % ops.len()], 2000, 1)
            .map_err(|e| failed(format!("round {round}: {e}")))?;
        pair.disconnect(conn)?;
    }
    pair.idle()
}

/// The size of each message of [`many`] in bytes.
const PIECE: u64 = 5000;

fn many(world: &mut World<'_>, setting: Setting) -> Result<()> {
    const QPS: u64 = 8;
    const EACH: u64 = 3;
    let mut pair = world.pair(setting)?;
    let conns = (0..QPS).map(|_| pair.connect(&Link::default())).collect::<Result<Vec<Conn>>>()?;
    let all = || (0..QPS).flat_map(|q| (0..EACH).map(move |m| (q, m)));
    let slot = |q: u64, m: u64| (q * EACH + m) * PIECE;
    let half = QPS * EACH * PIECE;
    // Each end sends from the first half of its memory and receives into the second.
    for (end, seed, own) in ends(&mut pair) {
        let mut todo = vec![end.mr.fill(seed, 0, half), end.mr.fill(99, half, half)];
        for (q, m) in all() {
            let qp = own(conns[usize::try_from(q).unwrap_or(0)]).qp;
            let sge = json!([end.mr.sge(half + slot(q, m), PIECE)]);
            todo.push(("post_recv", json!({"qp": qp, "wr_id": q * EACH + m, "sge": sge})));
        }
        end.batch(todo)?;
    }
    // All queue pairs post message m before any posts m + 1.
    for (end, _, own) in ends(&mut pair) {
        for m in 0..EACH {
            for (q, conn) in (0..).zip(&conns) {
                let wr_id = q * EACH + m;
                let sge = json!([end.mr.sge(slot(q, m), PIECE)]);
                let wr = json!({"qp": own(*conn).qp, "op": "send", "wr_id": wr_id, "sge": sge});
                end.begin("post_send", wr)?;
            }
        }
    }
    for (end, _, _) in ends(&mut pair) {
        end.finish(usize::try_from(QPS * EACH).unwrap_or(0))?;
    }
    for (end, _, own) in ends(&mut pair) {
        for (cq, opcode, byte_len) in
            [(end.send_cq, "SEND", None), (end.recv_cq, "RECV", Some(PIECE))]
        {
            let wcs = end.wait(cq, usize::try_from(QPS * EACH).unwrap_or(0))?;
            for (q, conn) in (0..).zip(&conns) {
                let qp = own(*conn);
                let ours: Vec<_> = wcs.iter().filter(|w| w.qpn == qp.qpn).collect();
                for (m, wc) in (0..).zip(&ours) {
                    wc.expect(end.who, qp, q * EACH + m, opcode, byte_len, None)?;
                }
            }
        }
    }
    for (end, seed, _) in ends(&mut pair) {
        let check = end.mr.check(3 - seed, half, half, 0);
        all_equal(end.who, "messages of all queue pairs", &end.batch(vec![check])?)?;
    }
    for conn in conns {
        pair.disconnect(conn)?;
    }
    Ok(())
}

type Own = fn(Conn) -> Qp;

/// Returns each end, with its seed (1 or 2) and a function that returns its queue pair of a
/// connection.
fn ends<'p>(pair: &'p mut Pair<'_>) -> [(&'p mut End, u64, Own); 2] {
    [(&mut *pair.req, 1, |c| c.req), (&mut *pair.resp, 2, |c| c.resp)]
}

/// Posts sixteen rounds of WRITE, READ, FETCH AND ADD and SEND without waiting. Only every second
/// request is signalled.
fn deep(world: &mut World<'_>, setting: Setting, rd_atomic: u64) -> Result<()> {
    const ROUNDS: u64 = 16;
    const BLOCK: u64 = 3000;
    const WRITTEN: u64 = 0;
    const RECEIVED: u64 = 0x20000;
    const FETCHED: u64 = 0x40000;
    const WORD: u64 = 0x60000;
    // Some kernels answer atomics only over IPv6.
    let v6 = !world.pair(setting)?.atomics;
    let mut pair = world.pair(Setting { v6, ..setting })?;
    let conn = pair.connect(&Link { rd_atomic, ..Link::default() })?;
    let (local, remote) = (pair.req.mr, pair.resp.mr);
    pair.req.batch(vec![local.fill(1, 0, RECEIVED), local.fill(5, FETCHED, 0x30000)])?;
    pair.resp.batch(vec![remote.fill(2, 0, FETCHED)])?;
    pair.resp.set_word(WORD, 0)?;
    for round in 0..ROUNDS {
        let sge = json!([remote.sge(RECEIVED + round * BLOCK, BLOCK)]);
        pair.resp.post_recv(conn.resp, round, sge)?;
    }
    let mut wrs: Vec<Value> = Vec::new();
    for round in 0..ROUNDS {
        let at = round * BLOCK;
        let mut add = |op: &str, sge: Value, to: Option<u64>| {
            let wr_id = wrs.len();
            let flags = if wr_id % 2 == 1 { json!(["signaled"]) } else { json!([]) };
            let mut wr = json!({"op": op, "wr_id": wr_id, "sge": [sge], "flags": flags});
            if let Some(to) = to {
                wr["remote_addr"] = (remote.addr + to).into();
                wr["rkey"] = remote.rkey.into();
            }
            if op == "fetch_add" {
                wr["add"] = (round + 1).into();
            }
            wrs.push(wr);
        };
        add("write", local.sge(at, BLOCK), Some(WRITTEN + at));
        // The READ returns the data just written, because it is executed after the WRITE.
        add("read", local.sge(FETCHED + at, BLOCK), Some(WRITTEN + at));
        add("fetch_add", local.sge(WORD + round * 8, 8), Some(WORD));
        add("send", local.sge(at, BLOCK), None);
    }
    let count = wrs.len() / 2;
    pair.req.call("post_list", json!({"qp": conn.req.qp, "wrs": wrs}))?;
    let done = pair.req.wait(pair.req.send_cq, count)?;
    for (i, wc) in (0..).zip(&done) {
        let opcode = if i % 2 == 0 { "RDMA_READ" } else { "SEND" };
        let byte_len = (i % 2 == 0).then_some(BLOCK);
        wc.expect(pair.req.who, conn.req, 2 * i + 1, opcode, byte_len, None)?;
    }
    let rounds = usize::try_from(ROUNDS).unwrap_or(0);
    for (i, wc) in (0..).zip(&pair.resp.wait(pair.resp.recv_cq, rounds)?) {
        wc.expect(pair.resp.who, conn.resp, i, "RECV", Some(BLOCK), None)?;
    }
    let all = ROUNDS * BLOCK;
    let there = vec![remote.check(1, WRITTEN, all, 0), remote.check(1, RECEIVED, all, 0)];
    all_equal(pair.resp.who, "what was written and sent", &pair.resp.batch(there)?)?;
    let back = vec![local.check(1, FETCHED, all, 0)];
    all_equal(pair.req.who, "what was read back", &pair.req.batch(back)?)?;
    let mut sum = 0;
    for round in 0..ROUNDS {
        let old = pair.req.word(WORD + round * 8)?;
        if old != sum {
            return Err(failed(format!("FETCH_ADD {round} brought back {old}, not {sum}")));
        }
        sum += round + 1;
    }
    pair.idle()?;
    pair.disconnect(conn)
}

fn lists(world: &mut World<'_>, setting: Setting) -> Result<()> {
    // The message is gathered from three pieces and an empty one; the middle piece crosses the end
    // of a packet.
    let from = [(0x100_u64, 700_u64), (0x2001, 0), (0x3003, 1500), (0x5000, 1)];
    let to = [(0x100_u64, 1025_u64), (0x7007, 1176)];
    let total: u64 = from.iter().map(|(_, len)| len).sum();
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link::default())?;
    let (local, remote) = (pair.req.mr, pair.resp.mr);
    let pieces = |mr: super::end::Mr, list: &[(u64, u64)]| -> Value {
        list.iter().map(|(at, len)| mr.sge(*at, *len)).collect()
    };
    let walk = |list: &[(u64, u64)]| {
        let mut at = 0;
        let step = |(offset, len): &(u64, u64)| {
            at += len;
            (*offset, *len, at - len)
        };
        list.iter().map(step).collect::<Vec<_>>()
    };
    for (n, op) in (1..).zip([Op::Send, Op::Write, Op::Read]) {
        let fill = |mr: super::end::Mr, list: &[(u64, u64)]| {
            let fill = |(o, len, at): (u64, u64, u64)| mr.fill_at(n, o, len, at);
            walk(list).into_iter().map(fill).collect::<Vec<_>>()
        };
        let check = |mr: super::end::Mr, list: &[(u64, u64)]| {
            let check = |(o, len, at): (u64, u64, u64)| mr.check(n, o, len, at);
            walk(list).into_iter().map(check).collect::<Vec<_>>()
        };
        let flat = [(0x8000, total)];
        let mut wr = request(&pair, conn, op, 0, n, None);
        wr["remote_addr"] = (remote.addr + 0x8000).into();
        match op {
            Op::Send => {
                pair.resp.post_recv(conn.resp, n, pieces(remote, &to))?;
                pair.req.batch(fill(local, &from))?;
                wr["sge"] = pieces(local, &from);
            }
            Op::Write => {
                pair.req.batch(fill(local, &from))?;
                wr["sge"] = pieces(local, &from);
            }
            _ => {
                pair.resp.batch(fill(remote, &flat))?;
                wr["sge"] = pieces(local, &to);
            }
        }
        pair.req.call("post_send", wr)?;
        let wc = pair.req.wait(pair.req.send_cq, 1)?.remove(0);
        wc.expect(pair.req.who, conn.req, n, op.completes_as(), None, None)?;
        let answers = match op {
            Op::Send => {
                let wc = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
                wc.expect(pair.resp.who, conn.resp, n, "RECV", Some(total), None)?;
                pair.resp.batch(check(remote, &to))?
            }
            Op::Write => pair.resp.batch(check(remote, &flat))?,
            _ => pair.req.batch(check(local, &to))?,
        };
        all_equal("the end that gets it", op.name(), &answers)?;
    }
    pair.disconnect(conn)
}

fn flags(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link::default())?;
    let (local, remote) = (pair.req.mr, pair.resp.mr);
    pair.req.batch(vec![local.fill(1, 0, 4096)])?;
    pair.resp.batch(vec![remote.fill(2, 0, 8192)])?;
    for n in 0..2 {
        pair.resp.post_recv(conn.resp, n, json!([remote.sge(0x1000 * n, 64)]))?;
    }
    let to = |offset: u64| (remote.addr + offset, remote.rkey);
    let wr = |wr_id: u64, op: &str, sge: Value, flags: &[&str], (addr, rkey): (u64, u64)| {
        json!({
            "op": op, "wr_id": wr_id, "sge": [sge], "flags": flags, "remote_addr": addr,
            "rkey": rkey,
        })
    };
    let wrs = vec![
        wr(0, "send", local.sge(0, 33), &["inline"], (0, 0)),
        wr(1, "write", local.sge(64, 64), &["inline"], to(0x100)),
        wr(2, "read", local.sge(0x2000, 64), &[], to(0x100)),
        // With the fence, the SEND starts after the READ is complete and sends the data of the
        // READ.
        wr(3, "send", local.sge(0x2000, 64), &["fence", "solicited"], (0, 0)),
        wr(4, "write", local.sge(0, 3000), &["signaled", "solicited"], to(0x200)),
    ];
    pair.req.call("post_list", json!({"qp": conn.req.qp, "wrs": wrs}))?;
    let wc = pair.req.wait(pair.req.send_cq, 1)?.remove(0);
    wc.expect(pair.req.who, conn.req, 4, "RDMA_WRITE", None, None)?;
    let got = pair.resp.wait(pair.resp.recv_cq, 2)?;
    got[0].expect(pair.resp.who, conn.resp, 0, "RECV", Some(33), None)?;
    got[1].expect(pair.resp.who, conn.resp, 1, "RECV", Some(64), None)?;
    let checks = vec![
        remote.check(1, 0, 33, 0),
        remote.check(2, 33, 0x100 - 33, 33),
        remote.check(1, 0x100, 64, 64),
        remote.check(1, 0x200, 3000, 0),
        remote.check(1, 0x1000, 64, 64),
    ];
    all_equal(pair.resp.who, "what arrived", &pair.resp.batch(checks)?)?;
    // No other request completes: the others were not signalled.
    pair.idle()?;

    // With sq_sig_all these requests complete too.
    pair.disconnect(conn)?;
    let conn = pair.connect(&Link { sq_sig_all: true, ..Link::default() })?;
    let quiet = wr(9, "write", local.sge(0, 10), &[], to(0));
    pair.req.post_send(conn.req, quiet)?;
    let wc = pair.req.poll(pair.req.send_cq, 1, TIMEOUT_MS)?;
    let Some(wc) = wc.first() else { return Err(failed("sq_sig_all: no completion")) };
    wc.expect(pair.req.who, conn.req, 9, "RDMA_WRITE", None, None)?;
    pair.disconnect(conn)
}
