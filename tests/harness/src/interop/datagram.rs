//! Datagrams: UD and multicast groups. The content of each datagram is compared, like that of a
//! message on a connection; so are the 40 bytes before it (the GRH), which contain the addresses.

use super::Requester;
use super::end::{End, GUARD, Make, Pair, Qp, TIMEOUT_MS, all_equal, completions, failed, number};
use super::exchange::{LOCAL, Op, REMOTE};
use super::feature::{Feature, feature};
use super::world::{Setting, World};
use crate::vm::Result;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(super) const ALL: &[Feature] = &[
    feature("ud/ipv6", "datagrams over IPv6: 0, 1, 1024 and 4096 bytes", ipv6),
    feature("ud/answer", "answered along a handle made of the completion and the GRH", |w, s| {
        answer(w, s)
    }),
    feature("ud/answer-ipv6", "the same over IPv6", |w, s| answer(w, Setting { v6: true, ..s })),
    feature(
        "ud/qkey",
        "two datagrams with a wrong Q_Key, which are dropped, then one with the right Q_Key",
        qkey,
    ),
    feature(
        "ud/qkey-own",
        "a Q_Key with the high bit set stands for that of the sender's queue pair",
        own_qkey,
    ),
    feature("ud/no-receive", "a datagram without a receive is lost, the next one not", no_receive),
    feature("ud/srq", "two QPs of UD with one shared receive queue", srq),
    feature(
        "mcast/ipv4",
        "to a group that two queue pairs of the peer joined, then left",
        |w, s| group(w, s, V4_GROUP),
    ),
    feature("mcast/ipv6", "the same over IPv6", |w, s| {
        group(w, Setting { v6: true, ..s }, V6_GROUP)
    }),
];

/// The groups: organization-local over IPv4, link-local over IPv6.
const V4_GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 91, 4, 7));
const V6_GROUP: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x4791, 7));

const QKEY: u64 = 0x1234_5678;

/// The length of the GRH before a datagram.
const GRH: u64 = 40;

/// The offset of a datagram's receive buffer.
const AT: u64 = REMOTE - GRH;

/// Two queue pairs for datagrams, and the path from the first to the second.
#[derive(Clone, Copy, Debug)]
struct Path {
    req: Qp,
    resp: Qp,
    ah: u64,
    /// The destination QPN.
    qpn: u64,
    /// The source and destination addresses.
    ips: [IpAddr; 2],
}

/// Runs a cell of the table of UD operations.
pub(super) fn cell(
    world: &mut World<'_>,
    setting: Setting,
    op: Op,
    size: u64,
    n: u64,
) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let path = Path::make(&mut pair)?;
    path.exchange(&mut pair, op, size, n)?;
    path.close(&mut pair)
}

fn ipv6(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(Setting { v6: true, ..setting })?;
    let path = Path::make(&mut pair)?;
    for (n, size) in (1..).step_by(8).zip([0, 1, 1024, 4096]) {
        path.exchange(&mut pair, Op::Send, size, n)?;
        path.exchange(&mut pair, Op::SendImm, size, n + 4)?;
    }
    path.close(&mut pair)
}

fn answer(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let path = Path::make(&mut pair)?;
    path.exchange(&mut pair, Op::Send, 100, 1)?;
    // The receive buffer of `exchange` is in its usual place.
    let resp = &mut pair.resp;
    let from = json!({"pd": resp.pd, "cq": resp.recv_cq, "mr": resp.mr.mr, "offset": AT});
    let ah = number(&resp.call("ah_from_recv", from)?["ah"]);
    let back = Path {
        req: path.resp,
        resp: path.req,
        ah,
        qpn: path.req.qpn,
        ips: [path.ips[1], path.ips[0]],
    };
    let mut turned = Pair {
        req: &mut *pair.resp,
        resp: &mut *pair.req,
        ips: back.ips,
        atomics: pair.atomics,
        connections: &mut *pair.connections,
    };
    back.exchange(&mut turned, Op::SendImm, 200, 9)?;
    pair.resp.close("ah", ah)?;
    path.close(&mut pair)
}

fn qkey(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let path = Path::make(&mut pair)?;
    for n in [1, 2] {
        path.send(&mut pair, n, QKEY ^ n)?;
    }
    path.exchange(&mut pair, Op::Send, 100, 3)?;
    path.close(&mut pair)
}

fn own_qkey(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let kernel_asks = setting.requester == Requester::Kernel;
    let mut pair = world.pair(setting)?;
    let path = Path::make(&mut pair)?;
    // The receive of the next datagram; its number shows which receive the first datagram used.
    let sge = json!([pair.resp.mr.sge(AT, GRH + 8)]);
    pair.resp.post_recv(path.resp, 70, sge)?;
    path.send(&mut pair, 1, 0x8000_0000)?;
    path.send(&mut pair, 2, QKEY)?;
    let wc = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
    wc.expect(pair.resp.who, path.resp, 70, "RECV", Some(GRH + 8), wc.imm)?;
    let first = match wc.imm {
        Some(1) => true,
        Some(2) => false,
        other => return Err(failed(format!("a datagram with immediate data {other:?}"))),
    };
    path.close(&mut pair)?;
    match (first, kernel_asks) {
        (true, _) => Ok(()),
        (false, true) => {
            world.remark = Some(
                "this kernel puts the number itself into the packet, so the datagram is dropped; \
                 the specification has it send its queue pair's Q_Key"
                    .into(),
            );
            Ok(())
        }
        (false, false) => Err(failed("the datagram did not carry the queue pair's Q_Key")),
    }
}

fn no_receive(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let path = Path::make(&mut pair)?;
    path.send(&mut pair, 1, QKEY)?;
    // Datagrams are not reordered, so datagrams to another queue pair cannot overtake the first
    // one.
    let other = Path::make(&mut pair)?;
    other.exchange(&mut pair, Op::Send, 10, 2)?;
    path.exchange(&mut pair, Op::Send, 100, 3)?;
    other.close(&mut pair)?;
    path.close(&mut pair)
}

fn srq(world: &mut World<'_>, setting: Setting) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let fields = json!({"pd": pair.resp.pd, "max_wr": 16, "max_sge": 1});
    let srq = number(&pair.resp.call("srq", fields)?["srq"]);
    let paths = [Path::with(&mut pair, Some(srq))?, Path::with(&mut pair, Some(srq))?];
    for n in 0..6 {
        let sge = json!([pair.resp.mr.sge(n * 0x100, GRH + 8)]);
        pair.resp.call("post_recv", json!({"srq": srq, "wr_id": n, "sge": sge}))?;
    }
    for (n, path) in (0..6).zip(paths.iter().cycle()) {
        path.send(&mut pair, n, QKEY)?;
        let wc = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
        wc.expect(pair.resp.who, path.resp, n, "RECV", Some(GRH + 8), Some(n))?;
    }
    for path in paths {
        path.close(&mut pair)?;
    }
    pair.resp.close("srq", srq)
}

fn group(world: &mut World<'_>, setting: Setting, group: IpAddr) -> Result<()> {
    let mut pair = world.pair(setting)?;
    let path = Path::make(&mut pair)?;
    let second = Path::make(&mut pair)?;
    let gid = gid(group);
    for qp in [path.resp, second.resp] {
        pair.resp.call("attach", json!({"qp": qp.qp, "gid": gid}))?;
    }
    let ah = handle(pair.req, pair.ips[0], group)?;
    let to_group = Path { ah, qpn: 0xff_ffff, ips: [path.ips[0], group], ..path };
    for (n, op, size) in [(1, Op::Send, 10), (9, Op::SendImm, 1024), (17, Op::Send, 4096)] {
        // The receive of the other member of the group.
        let sge = json!([pair.resp.mr.sge(0x8000, GRH + size)]);
        pair.resp.post_recv(second.resp, 90 + n, sge)?;
        to_group.send_bytes(&mut pair, op, size, n)?;
        let mut wcs = pair.resp.wait(pair.resp.recv_cq, 2)?;
        wcs.sort_by_key(|wc| wc.wr_id);
        let imm = op.has_imm().then_some(n);
        wcs[0].expect(pair.resp.who, path.resp, n + 1, "RECV", Some(GRH + size), imm)?;
        wcs[1].expect(pair.resp.who, second.resp, 90 + n, "RECV", Some(GRH + size), imm)?;
        to_group.compare(&mut pair, size, n)?;
        let copy = pair.resp.mr.check(2 * n + 1, 0x8000 + GRH, size, 0);
        all_equal(pair.resp.who, "the other member's copy", &pair.resp.batch(vec![copy])?)?;
    }
    for qp in [path.resp, second.resp] {
        pair.resp.call("detach", json!({"qp": qp.qp, "gid": gid}))?;
    }
    // No queue pair receives this datagram, so the next completion belongs to a later one.
    to_group.send(&mut pair, 30, QKEY)?;
    path.exchange(&mut pair, Op::Send, 100, 33)?;
    pair.req.close("ah", ah)?;
    second.close(&mut pair)?;
    path.close(&mut pair)
}

impl Path {
    /// Creates two queue pairs that can communicate.
    fn make(pair: &mut Pair<'_>) -> Result<Self> {
        Self::with(pair, None)
    }

    /// Like [`Path::make`], but the second queue pair takes its receives from the shared queue
    /// `srq`.
    fn with(pair: &mut Pair<'_>, srq: Option<u64>) -> Result<Self> {
        *pair.connections += 1;
        let psn = 0x100_0000 - 2 - *pair.connections % 3;
        let (req, resp) = (ready(pair.req, None, psn)?, ready(pair.resp, srq, psn)?);
        let ah = handle(pair.req, pair.ips[0], pair.ips[1])?;
        Ok(Self { req, resp, ah, qpn: resp.qpn, ips: pair.ips })
    }

    /// Sends a datagram and compares its content, its GRH and its completions.
    fn exchange(&self, pair: &mut Pair<'_>, op: Op, size: u64, n: u64) -> Result<()> {
        self.send_bytes(pair, op, size, n)?;
        let wc = pair.resp.wait(pair.resp.recv_cq, 1)?.remove(0);
        let imm = op.has_imm().then_some(n);
        wc.expect(pair.resp.who, self.resp, n + 1, "RECV", Some(GRH + size), imm)?;
        if wc.src_qp != self.req.qpn || !wc.grh {
            let want = self.req.qpn;
            return Err(failed(format!("{}: {wc:?}: not from {want} with a GRH", pair.resp.who)));
        }
        self.compare(pair, size, n)
    }

    /// Posts a receive for a datagram and sends the datagram.
    fn send_bytes(&self, pair: &mut Pair<'_>, op: Op, size: u64, n: u64) -> Result<()> {
        let (local, remote) = (pair.req.mr, pair.resp.mr);
        pair.req.batch(vec![local.fill(2 * n + 1, LOCAL, size)])?;
        let sge = json!([remote.sge(AT, GRH + size)]);
        pair.resp.batch(vec![
            remote.fill(2 * n + 2, AT - GUARD, GRH + size + 2 * GUARD),
            ("post_recv", json!({"qp": self.resp.qp, "wr_id": n + 1, "sge": sge})),
        ])?;
        let sge = if size > 0 { json!([local.sge(LOCAL, size)]) } else { json!([]) };
        let mut wr = json!({
            "qp": self.req.qp, "op": op.verb(), "wr_id": n, "sge": sge, "ah": self.ah,
            "remote_qpn": self.qpn, "remote_qkey": QKEY,
        });
        if op.has_imm() {
            wr["imm"] = n.into();
        }
        self.complete(pair, n, wr)
    }

    /// Compares the content of a datagram, the GRH before it and the surrounding bytes.
    fn compare(&self, pair: &mut Pair<'_>, size: u64, n: u64) -> Result<()> {
        let remote = pair.resp.mr;
        let checks = vec![
            remote.check(2 * n + 1, REMOTE, size, 0),
            remote.check(2 * n + 2, AT - GUARD, GUARD, 0),
            remote.check(2 * n + 2, REMOTE + size, GUARD, GUARD + GRH + size),
        ];
        all_equal(pair.resp.who, "receiver's memory", &pair.resp.batch(checks)?)?;
        let read = json!({"mr": remote.mr, "len": GRH, "offset": AT});
        let grh = pair.resp.call("read", read)?;
        let grh = bytes(grh["hex"].as_str().unwrap_or(""));
        self.grh(&grh, size).map_err(|why| {
            failed(format!("{}: the GRH {grh:02x?} has another {why}", pair.resp.who))
        })
    }

    /// Checks the GRH of a datagram of `size` bytes. Returns the first error in it.
    fn grh(&self, grh: &[u8], size: u64) -> std::result::Result<(), &'static str> {
        // UDP, BTH, DETH, the padded data and the ICRC. Immediate data adds 4 bytes, which are
        // accepted in any case.
        let least = 8 + 12 + 8 + size.next_multiple_of(4) + 4;
        let length = |bytes: &[u8], head: u64| {
            let said = u64::from(u16::from_be_bytes([bytes[0], bytes[1]]));
            [least + head, least + head + 4].contains(&said)
        };
        let same = |what, good: bool| if good { Ok(()) } else { Err(what) };
        match self.ips {
            [IpAddr::V4(src), IpAddr::V4(dst)] => {
                let ip = &grh[20..];
                same("version", ip[0] == 0x45)?;
                same("length", length(&ip[2..4], 20))?;
                same("protocol", ip[9] == 17)?;
                same("source", ip[12..16] == src.octets())?;
                same("destination", ip[16..] == dst.octets())
            }
            [IpAddr::V6(src), IpAddr::V6(dst)] => {
                same("version", grh[0] >> 4 == 6)?;
                same("length", length(&grh[4..6], 0))?;
                same("source", grh[8..24] == src.octets())?;
                same("destination", grh[24..] == dst.octets())
            }
            _ => Err("family"),
        }
    }

    /// Sends 8 bytes with `n` as immediate data. The check accepts them at any receiver.
    fn send(&self, pair: &mut Pair<'_>, n: u64, qkey: u64) -> Result<()> {
        let wr = json!({
            "qp": self.req.qp, "op": "send_imm", "wr_id": n, "imm": n, "ah": self.ah,
            "sge": [pair.req.mr.sge(0, 8)], "remote_qpn": self.qpn, "remote_qkey": qkey,
        });
        self.complete(pair, n, wr)
    }

    fn complete(&self, pair: &mut Pair<'_>, n: u64, wr: Value) -> Result<()> {
        let cq = pair.req.send_cq;
        let poll = json!({"cq": cq, "count": 1, "timeout_ms": TIMEOUT_MS});
        let answers = pair.req.batch(vec![("post_send", wr), ("poll", poll)])?;
        let wcs = completions(&answers[1]);
        let Some(wc) = wcs.first() else {
            return Err(failed(format!("{}: a datagram is not complete", pair.req.who)));
        };
        wc.expect(pair.req.who, self.req, n, "SEND", None, None)
    }

    fn close(&self, pair: &mut Pair<'_>) -> Result<()> {
        pair.idle()?;
        pair.req.close("qp", self.req.qp)?;
        pair.resp.close("qp", self.resp.qp)?;
        pair.req.close("ah", self.ah)
    }
}

/// Creates a queue pair that is ready to send and receive datagrams.
fn ready(end: &mut End, srq: Option<u64>, psn: u64) -> Result<Qp> {
    let qp = end.qp(Make { srq, ..Make::of("ud") })?;
    end.call("ready", json!({"qp": qp.qp, "qkey": QKEY, "sq_psn": psn}))?;
    Ok(qp)
}

/// Creates an address handle for packets from one of this end's addresses to another address.
fn handle(end: &mut End, from: IpAddr, to: IpAddr) -> Result<u64> {
    let (index, _) = end.gid(from)?;
    let fields = json!({"pd": end.pd, "gid_index": index, "dgid": gid(to)});
    Ok(number(&end.call("ah", fields)?["ah"]))
}

fn gid(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_string(),
        IpAddr::V6(v6) => v6.to_string(),
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| hex.get(at..at + 2).and_then(|h| u8::from_str_radix(h, 16).ok());
    (0..hex.len()).step_by(2).filter_map(byte).collect()
}
