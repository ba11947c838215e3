//! Memory windows of the responder. Their owner invalidates them, or the peer does with SEND with
//! invalidate.

use super::Requester;
use super::end::{
    ALL_ACCESS, Conn, End, Link, Mr, Pair, TIMEOUT_MS, Wc, all_equal, failed, number,
};
use super::exchange::{LOCAL, Op};
use super::feature::{Feature, feature};
use super::world::{KernelFeature, Setting, World};
use crate::vm::Result;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const fn window(
    name: &'static str,
    what: &'static str,
    run: fn(&mut World<'_>, Setting) -> Result<()>,
) -> Feature {
    Feature { needs: KernelFeature::Windows, ..feature(name, what, run) }
}

pub(super) const ALL: &[Feature] = &[
    window(
        "mw/type1",
        "window of type 1: WRITE, READ and atomics in it; bound anew, its old key is worth nothing",
        type1,
    ),
    window("mw/type2", "of type 2: WRITE and READ in it; invalidated by its owner", |w, s| {
        type2(w, s, false)
    }),
    window("mw/send-inv", "the same, invalidated by SEND with invalidate", |w, s| {
        type2(w, s, true)
    }),
    window("mw/rights", "a window for READ takes no WRITE, whatever its region allows", rights),
    window("mw/bounds", "WRITE that ends a byte after the window, inside its region", bounds),
    window("mw/other-qp", "a window of type 2 through another QP than that which bound it", other),
];

/// The size of the region, and the range of the window in it, in bytes.
const REGION: u64 = 0x8000;
const START: u64 = 0x2000;
const LENGTH: u64 = 0x3000;

/// The access rights that a window can give.
const REMOTE: [&str; 3] = ["remote_write", "remote_read", "remote_atomic"];

/// A region of the responder, and a window that is bound to part of it.
struct Window {
    mr: Mr,
    mw: u64,
    rkey: u64,
}

fn type1(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link::default())?;
    let mut window = Window::make(pair.resp, 1)?;
    window.bind(&mut pair, conn, START, LENGTH, &REMOTE)?;
    window.works(&mut pair, conn, START)?;
    if pair.atomics {
        window.counts(&mut pair, conn)?;
    }
    let old = window.rkey;
    window.bind(&mut pair, conn, 0x6000, 0x1000, &REMOTE)?;
    if window.rkey == old {
        return Err(failed(format!("bound again, the key is still {old:#x}")));
    }
    window.works(&mut pair, conn, 0x6000)?;
    let denied = window.ask(&mut pair, conn, Op::Write, old, START, 16)?;
    refused(&mut pair, conn, &denied)?;
    window.end(&mut pair, conn)
}

fn type2(world: &mut World<'_>, setting: Setting, by_peer: bool) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link::default())?;
    let mut window = Window::make(pair.resp, 2)?;
    let mut remark = None;
    for round in 0..2 {
        window.bind(&mut pair, conn, START, LENGTH, &REMOTE)?;
        window.works(&mut pair, conn, START)?;
        let wr = |op: &str, qp: u64| json!({"qp": qp, "op": op, "wr_id": 40 + round, "invalidate": window.rkey});
        if !by_peer {
            pair.resp.call("post_send", wr("local_inv", conn.resp.qp))?;
            let done = pair.resp.wait(pair.resp.send_cq, 1)?.remove(0);
            done.expect(pair.resp.who, conn.resp, 40 + round, "LOCAL_INV", None, None)?;
            continue;
        }
        let (local, remote) = (pair.req.mr, pair.resp.mr);
        pair.resp.post_recv(conn.resp, 60 + round, json!([remote.sge(0, 3000)]))?;
        let mut send = wr("send_inv", conn.req.qp);
        send["sge"] = json!([local.sge(LOCAL, 3000)]);
        pair.req.batch(vec![local.fill(7 + round, LOCAL, 3000), ("post_send", send)])?;
        let sent = pair.req.wait(pair.req.send_cq, 1)?.remove(0);
        sent.expect(pair.req.who, conn.req, 40 + round, "SEND", None, None)?;
        let got = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
        got.expect(pair.resp.who, conn.resp, 60 + round, "RECV", Some(3000), None)?;
        if got.invalidated != Some(window.rkey) {
            let (who, key) = (pair.resp.who, window.rkey);
            return Err(failed(format!("{who}: {got:?}: not the key {key:#x}")));
        }
        if !got.with_inv {
            if pair.resp.who != "kernel" {
                return Err(failed(format!("{got:?}: not marked")));
            }
            remark = Some(UNMARKED.to_owned());
        }
        let whole = vec![remote.check(7 + round, 0, 3000, 0)];
        all_equal(pair.resp.who, "the message", &pair.resp.batch(whole)?)?;
    }
    let denied = window.ask(&mut pair, conn, Op::Write, window.rkey, START, 16)?;
    refused(&mut pair, conn, &denied)?;
    window.end(&mut pair, conn)?;
    world.remark = remark;
    Ok(())
}

const UNMARKED: &str = "this kernel marks the completion with the number that the flag has inside the \
                        kernel, which for programs means IP_CSUM_OK";

fn rights(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link::default())?;
    let mut window = Window::make(pair.resp, 2)?;
    window.bind(&mut pair, conn, START, LENGTH, &["remote_read"])?;
    let read = window.ask(&mut pair, conn, Op::Read, window.rkey, START, LENGTH)?;
    read.expect(pair.req.who, conn.req, 1, "RDMA_READ", Some(LENGTH), None)?;
    let denied = window.ask(&mut pair, conn, Op::Write, window.rkey, START, 16)?;
    refused(&mut pair, conn, &denied)?;
    window.end(&mut pair, conn)
}

fn bounds(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link::default())?;
    let mut window = Window::make(pair.resp, 2)?;
    window.bind(&mut pair, conn, START, LENGTH, &REMOTE)?;
    let to = START + LENGTH - 15;
    let done = window.ask(&mut pair, conn, Op::Write, window.rkey, to, 16)?;
    let kernel_lets = setting.requester == Requester::Ours && done.status == "SUCCESS";
    if !kernel_lets {
        refused(&mut pair, conn, &done)?;
    }
    window.end(&mut pair, conn)?;
    if kernel_lets {
        world.remark = Some(
            "this kernel compares an address with the bounds of the window's region, not with the \
             window's own"
                .into(),
        );
    }
    Ok(())
}

fn other(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let conn = pair.connect(&Link::default())?;
    let second = pair.connect(&Link::default())?;
    let mut window = Window::make(pair.resp, 2)?;
    window.bind(&mut pair, conn, START, LENGTH, &REMOTE)?;
    let denied = window.ask(&mut pair, second, Op::Write, window.rkey, START, 16)?;
    refused(&mut pair, second, &denied)?;
    window.works(&mut pair, conn, START)?;
    pair.disconnect(second)?;
    window.end(&mut pair, conn)
}

impl Window {
    fn make(end: &mut End, kind: u64) -> Result<Self> {
        let rights: Vec<&str> = ALL_ACCESS.into_iter().chain(["mw_bind"]).collect();
        let mr = end.register(REGION, &rights)?;
        let answer = end.call("mw", json!({"pd": end.pd, "type": kind}))?;
        Ok(Self { mr, mw: number(&answer["mw"]), rkey: number(&answer["rkey"]) })
    }

    /// Binds the window by the responder's queue pair.
    fn bind(
        &mut self,
        pair: &mut Pair<'_>,
        conn: Conn,
        offset: u64,
        len: u64,
        access: &[&str],
    ) -> Result<()> {
        let fields = json!({
            "qp": conn.resp.qp, "mw": self.mw, "mr": self.mr.mr, "offset": offset, "len": len,
            "access": access, "wr_id": 30,
        });
        self.rkey = number(&pair.resp.call("bind", fields)?["rkey"]);
        let done = pair.resp.wait(pair.resp.send_cq, 1)?.remove(0);
        done.expect(pair.resp.who, conn.resp, 30, "BIND_MW", None, None)
    }

    /// Posts a request with the window's key. A WRITE has the bytes that [`works`](Self::works)
    /// expects.
    fn ask(
        &self,
        pair: &mut Pair<'_>,
        conn: Conn,
        op: Op,
        rkey: u64,
        offset: u64,
        size: u64,
    ) -> Result<Wc> {
        let wr: Value = json!({
            "qp": conn.req.qp, "op": op.verb(), "wr_id": 1, "add": 5, "rkey": rkey,
            "sge": [pair.req.mr.sge(LOCAL, size)], "remote_addr": self.mr.addr + offset,
        });
        pair.req.call("post_send", wr)?;
        let wcs = pair.req.poll(pair.req.send_cq, 1, TIMEOUT_MS)?;
        wcs.into_iter().next().ok_or_else(|| failed(format!("{} does not complete", op.name())))
    }

    /// Writes into the window and reads the data back, and checks that the surrounding bytes do not
    /// change.
    fn works(&self, pair: &mut Pair<'_>, conn: Conn, start: u64) -> Result<()> {
        const SIZE: u64 = 3001;
        let (at, local) = (start + 17, pair.req.mr);
        pair.req.batch(vec![local.fill(3, LOCAL, SIZE)])?;
        pair.resp.batch(vec![self.mr.fill(4, 0, REGION)])?;
        let wrote = self.ask(pair, conn, Op::Write, self.rkey, at, SIZE)?;
        wrote.expect(pair.req.who, conn.req, 1, "RDMA_WRITE", None, None)?;
        pair.req.batch(vec![local.fill(5, LOCAL, SIZE)])?;
        let read = self.ask(pair, conn, Op::Read, self.rkey, at, SIZE)?;
        read.expect(pair.req.who, conn.req, 1, "RDMA_READ", Some(SIZE), None)?;
        all_equal(pair.req.who, "READ", &pair.req.batch(vec![local.check(3, LOCAL, SIZE, 0)])?)?;
        let region = vec![
            self.mr.check(4, 0, at, 0),
            self.mr.check(3, at, SIZE, 0),
            self.mr.check(4, at + SIZE, REGION - at - SIZE, at + SIZE),
        ];
        all_equal(pair.resp.who, "the region", &pair.resp.batch(region)?)
    }

    /// Adds to a word in the window.
    fn counts(&self, pair: &mut Pair<'_>, conn: Conn) -> Result<()> {
        let zero = json!({"mr": self.mr.mr, "hex": "0000000000000000", "offset": START + 8});
        pair.resp.call("write", zero)?;
        for _ in 0..2 {
            let done = self.ask(pair, conn, Op::FetchAdd, self.rkey, START + 8, 8)?;
            done.expect(pair.req.who, conn.req, 1, "FETCH_ADD", Some(8), None)?;
        }
        let word = json!({"mr": self.mr.mr, "len": 8, "offset": START + 8});
        match pair.resp.call("read", word)?["hex"].as_str() {
            Some("0a00000000000000") => Ok(()),
            other => Err(failed(format!("5 and 5 are {other:?}"))),
        }
    }

    /// Destroys all objects, queue pairs first: a window may be bound to one.
    fn end(&self, pair: &mut Pair<'_>, conn: Conn) -> Result<()> {
        pair.idle()?;
        pair.resp.close("mw", self.mw)?;
        pair.disconnect(conn)?;
        pair.resp.close("mr", self.mr.mr)
    }
}

/// Fails unless the access was refused in the expected way.
fn refused(pair: &mut Pair<'_>, conn: Conn, wc: &Wc) -> Result<()> {
    let deadline = Instant::now() + Duration::from_millis(TIMEOUT_MS);
    let states = loop {
        let states = [pair.req.state(conn.req)?, pair.resp.state(conn.resp)?];
        // A responder may send its NAK before it enters the error state.
        if states[1] == "ERR" || wc.status != "REM_ACCESS_ERR" || Instant::now() > deadline {
            break states;
        }
    };
    if wc.status == "REM_ACCESS_ERR" && states == ["ERR", "ERR"] {
        return Ok(());
    }
    let status = &wc.status;
    Err(failed(format!("{status}, states {states:?}, where the access should be refused")))
}
