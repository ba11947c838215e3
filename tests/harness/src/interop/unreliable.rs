//! UC features beyond its table of operations: path MTUs, IPv6, and messages that lose packets.

use super::end::{Link, Pair, all_equal, failed};
use super::exchange::{Op, exchange};
use super::feature::{Feature, feature};
use super::world::{Setting, World};
use crate::vm::Result;
use serde_json::{Value, json};

pub(super) const ALL: &[Feature] = &[
    feature("uc/mtu", "UC, all path MTUs: messages of one packet, a byte more, and three", mtu),
    feature("uc/ipv6", "UC over IPv6: 0, 1, 1025 and 65536 bytes", |w, s| {
        every_op(w, Setting { v6: true, ..s }, &[0, 1, 1025, 65536])
    }),
    feature(
        "uc/loss",
        "UC, 2 % of packets lost and 2 % reordered on our side: of 64 messages some arrive, whole \
         and in order, and no others",
        loss,
    ),
];

fn mtu(world: &mut World<'_>, setting: Setting) -> Result<()> {
    for path_mtu in [256, 512, 1024, 2048, 4096] {
        let mut pair = world.pair(setting)?;
        let conn = pair.connect(&Link { service: "uc", path_mtu, ..Link::default() })?;
        for (n, op) in (1..).step_by(64).zip(Op::UC) {
            for (n, size) in (n..).step_by(8).zip([path_mtu, path_mtu + 1, 3 * path_mtu]) {
                exchange(&mut pair, conn, op, size, n).map_err(|e| {
                    failed(format!("path MTU {path_mtu}, {} of {size}: {e}", op.name()))
                })?;
            }
        }
        pair.idle()?;
        pair.disconnect(conn)?;
    }
    Ok(())
}

fn every_op(world: &mut World<'_>, setting: Setting, sizes: &[u64]) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link { service: "uc", ..Link::default() })?;
    for (n, op) in (1..).step_by(64).zip(Op::UC) {
        for (n, size) in (n..).step_by(8).zip(sizes) {
            exchange(&mut pair, conn, op, *size, n)
                .map_err(|e| failed(format!("{} of {size} bytes: {e}", op.name())))?;
        }
    }
    pair.idle()?;
    pair.disconnect(conn)
}

/// The number of messages of [`loss`], and their size in bytes: eight packets.
const COUNT: u64 = 64;
const SIZE: u64 = 8000;

/// The offset of received messages.
const INTO: u64 = 0x10000;

fn loss(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(Setting { faulty: true, ..setting })?;
    let conn = pair.connect(&Link { service: "uc", ..Link::default() })?;
    let (local, remote) = (pair.req.mr, pair.resp.mr);
    pair.req.batch(vec![local.fill(1, 0, INTO)])?;
    pair.resp.batch(vec![remote.fill(2, 0, INTO + COUNT * SIZE)])?;
    for n in 0..COUNT {
        pair.resp.post_recv(conn.resp, n, json!([remote.sge(INTO + n * SIZE, SIZE)]))?;
    }
    // Message n begins at byte n of the pattern.
    let wr = |n: u64| -> Value {
        json!({
            "qp": conn.req.qp, "op": "send_imm", "wr_id": n, "imm": n,
            "sge": [local.sge(n, SIZE)],
        })
    };
    for n in 0..COUNT {
        pair.req.call("post_send", wr(n))?;
        pair.req.wait(pair.req.send_cq, 1)?[0].expect(
            pair.req.who,
            conn.req,
            n,
            "SEND",
            None,
            None,
        )?;
    }
    let got = arrived(&mut pair, conn, wr)?;
    let whole = got.iter().filter(|imm| **imm < COUNT).count();
    if whole == 0 || whole == usize::try_from(COUNT).unwrap_or(0) {
        return Err(failed(format!("{whole} of {COUNT} messages arrived")));
    }
    let checks = (0..)
        .zip(&got)
        .map(|(place, imm)| remote.check(1, INTO + place * SIZE, SIZE, imm % COUNT))
        .collect();
    all_equal(pair.resp.who, "messages that arrived", &pair.resp.batch(checks)?)?;
    pair.disconnect(conn)?;
    pair.idle()
}

/// Returns the immediate data of the messages that arrive, in order. Each complete message uses the
/// next receive. At the end a marker message is sent until it arrives; it is the last in the list.
fn arrived(
    pair: &mut Pair<'_>,
    conn: super::end::Conn,
    wr: impl Fn(u64) -> Value,
) -> Result<Vec<u64>> {
    let mut got: Vec<u64> = Vec::new();
    for _ in 0..COUNT {
        let mut last = wr(COUNT);
        last["sge"] = json!([pair.req.mr.sge(0, SIZE)]);
        pair.req.call("post_send", last)?;
        pair.req.wait(pair.req.send_cq, 1)?;
        while let Some(wc) = pair.resp.poll(pair.resp.recv_cq, 1, 200)?.into_iter().next() {
            let at = got.len() as u64;
            wc.expect(pair.resp.who, conn.resp, at, "RECV", Some(SIZE), wc.imm)?;
            let imm = wc.imm.unwrap_or(u64::MAX);
            if got.last().is_some_and(|before| *before >= imm) {
                return Err(failed(format!("message {imm} after {got:?}")));
            }
            got.push(imm);
            if imm == COUNT {
                return Ok(got);
            }
        }
    }
    Err(failed(format!("the last message never arrived; {got:?} did")))
}
