//! ATOMIC WRITE and FLUSH, which kernel `rdma_rxe` supports since Linux 6.2. Their failures are
//! tested in [`super::faults`].

use super::end::{ALL_ACCESS, Link, all_equal, failed};
use super::exchange::LOCAL;
use super::feature::{Feature, feature};
use super::world::{KernelFeature, Setting, World};
use crate::vm::Result;
use serde_json::json;

const fn placed(
    name: &'static str,
    what: &'static str,
    run: fn(&mut World<'_>, Setting) -> Result<()>,
) -> Feature {
    Feature { needs: KernelFeature::Placed, ..feature(name, what, run) }
}

pub(super) const ALL: &[Feature] = &[
    placed("atomic-write", "ATOMIC WRITE of eight words, sixteen at once", atomic_write),
    placed("flush/range", "WRITE and FLUSH of what was written, to global visibility", |w, s| {
        flush(w, s, "range")
    }),
    placed("flush/region", "the same, FLUSH of all of the region", |w, s| flush(w, s, "mr")),
];

fn atomic_write(world: &mut World<'_>, setting: Setting) -> Result<()> {
    const WORDS: u64 = 8;
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link { extended: true, ..Link::default() })?;
    let (local, remote) = (pair.req.mr, pair.resp.mr);
    pair.resp.batch(vec![remote.fill(2, 0, 0x1000)])?;
    for round in 0..2 {
        pair.req.batch(vec![local.fill(5 + round, LOCAL, 8 * WORDS)])?;
        let wr = |n: u64| {
            json!({
                "op": "atomic_write", "wr_id": n, "sge": [local.sge(LOCAL + 8 * n, 8)],
                "remote_addr": remote.addr + 0x100 + 16 * n, "rkey": remote.rkey,
            })
        };
        // Each word is written twice; the second request finds the value already present.
        let wrs: Vec<_> = (0..WORDS).chain(0..WORDS).map(wr).collect();
        pair.req.call("post_list", json!({"qp": conn.req.qp, "wrs": wrs}))?;
        let done = pair.req.wait(pair.req.send_cq, 2 * usize::try_from(WORDS).unwrap_or(0))?;
        for (n, wc) in (0..WORDS).chain(0..WORDS).zip(&done) {
            wc.expect(pair.req.who, conn.req, n, "ATOMIC_WRITE", None, None)?;
        }
        let mut checks = vec![remote.check(2, 0, 0x100, 0)];
        for n in 0..WORDS {
            let at = 0x100 + 16 * n;
            checks.push(remote.check(5 + round, at, 8, 8 * n));
            checks.push(remote.check(2, at + 8, 8, at + 8));
        }
        all_equal(pair.resp.who, "the words", &pair.resp.batch(checks)?)?;
    }
    pair.idle()?;
    pair.disconnect(conn)
}

fn flush(world: &mut World<'_>, setting: Setting, level: &str) -> Result<()> {
    const SIZE: u64 = 5000;
    let access: Vec<&str> = ALL_ACCESS.into_iter().chain(["flush_global"]).collect();
    let mut pair = world.pair(setting)?;
    let link = Link { extended: true, access: access.clone(), ..Link::default() };
    let conn = pair.connect(&link)?;
    let mr = pair.resp.register(0x4000, &access)?;
    let local = pair.req.mr;
    for n in 0..4 {
        let to = mr.addr + 0x1000 * (n % 2);
        pair.req.batch(vec![local.fill(n + 1, LOCAL, SIZE)])?;
        let wrs = json!([
            {"op": "write", "wr_id": 10 + n, "sge": [local.sge(LOCAL, SIZE)], "flags": [],
             "remote_addr": to, "rkey": mr.rkey},
            {"op": "flush", "wr_id": 20 + n, "remote_addr": to, "length": SIZE, "rkey": mr.rkey,
             "placement": ["global"], "level": level},
        ]);
        pair.req.call("post_list", json!({"qp": conn.req.qp, "wrs": wrs}))?;
        let done = pair.req.wait(pair.req.send_cq, 1)?.remove(0);
        done.expect(pair.req.who, conn.req, 20 + n, "FLUSH", None, None)
            .map_err(|e| failed(format!("FLUSH {n}: {e}")))?;
        let there = vec![mr.check(n + 1, 0x1000 * (n % 2), SIZE, 0)];
        all_equal(pair.resp.who, "what was written", &pair.resp.batch(there)?)?;
    }
    pair.idle()?;
    pair.disconnect(conn)?;
    pair.resp.close("mr", mr.mr)
}
