//! The captures in `pcaps/`: two kernels, a kernel and this engine, and XRC between two instances
//! of this engine. Each frame is decoded and its ICRC verified. Each conversation is replayed with
//! this engine at either end, which must send what that end sent in the capture, in every field
//! that the specification determines.
//!
//! The script of a capture states what each end had registered, posted and connected. Three things
//! are not compared, because the kernel deviates from the specification or does more:
//! - a sequence NAK after an RNR NAK: the specification drops packets that follow the RNR NAK;
//! - the NAK code of a message that is longer than its receive: the kernel sends "remote
//!   operational error", the specification requires "invalid request";
//! - for requesters, conversations with retransmissions: their times are not in the script.

use std::fs;
use std::path::{Path, PathBuf};

use rxe_core::mem::{Access, Buffer};
use rxe_core::qp::AttrMask;
use rxe_core::qp::QpAttr;
use rxe_core::queue::{Payload, Remote, SendFlags, SendOp, SendRequest, Sge, SgeList, Status};
use rxe_core::types::{Key, Mtu, Psn, RnrTimer};
use rxe_core::wire::frame::parse_ethernet;
use rxe_core::wire::{NakCode, OpKind, Packet, Service, Syndrome, icrc};
use rxe_tests::captures::pcap_frames;
use rxe_tests::lone::{End, PD, Said, Told, told};
use serde_json::Value;

#[test]
fn every_frame_decodes_and_has_the_right_icrc() {
    let (mut frames, mut xrc) = (0, 0);
    for capture in captures() {
        for said in &capture.frames {
            let name = &capture.name;
            let packet = Packet::parse(&said.bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(icrc::check(&said.net, &said.bytes), Ok(()), "{name}: {packet:?}");
            frames += 1;
            xrc += usize::from(packet.info().service == Service::Xrc);
        }
    }
    assert!(frames > 500 && xrc > 100, "{frames}, {xrc} of XRC");
}

#[test]
fn no_capture_is_large() {
    for capture in captures() {
        let size = fs::metadata(&capture.path).unwrap().len();
        assert!(size < 200_000, "{}: {size} bytes", capture.name);
    }
}

#[test]
fn our_responder_answers_as_the_one_in_the_capture() {
    let mut played = 0;
    for capture in captures() {
        let Some(mut b) = capture.end("b") else { continue };
        let a_ip = capture.ip("a");
        // A late receive was posted after the last RNR NAK.
        let is_rnr = |s: &Said| matches!(syndrome(s), Some(Syndrome::RnrNak { .. }));
        let last_rnr = capture.frames.iter().rposition(is_rnr);
        if last_rnr.is_none() {
            capture.post_receives(&b);
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (at, said) in capture.frames.iter().enumerate() {
            if said.net.src == a_ip {
                b.take(said);
                ours.extend(b.sent());
            } else {
                theirs.push(said.clone());
            }
            if last_rnr == Some(at) {
                capture.post_receives(&b);
            }
        }
        let fixed = |list: &[Said]| capture.fixed(list, last_rnr.is_some());
        assert_eq!(fixed(&ours), fixed(&theirs), "{}", capture.name);
        played += 1;
    }
    assert!(played >= 60, "{played}");
}

#[test]
fn our_requester_asks_as_the_one_in_the_capture() {
    let mut played = 0;
    for capture in captures() {
        let again = ["rnr_late", "rnr_never", "peer_gone"];
        if again.iter().any(|name| capture.name.ends_with(name)) {
            continue;
        }
        let Some(mut a) = capture.end("a") else { continue };
        let a_ip = capture.ip("a");
        let mut rest = capture.frames.iter().peekable();
        let mut ours: Vec<Said> = Vec::new();
        let mut ended = Vec::new();
        let mut should: Vec<(u64, String)> = Vec::new();
        for line in capture.script.iter().filter(|l| l["end"] == "a") {
            match line["request"]["cmd"].as_str() {
                Some("post_send") => {
                    capture.post_send(&a, &line["request"]);
                    ours.extend(a.sent());
                }
                Some("poll") => {
                    while let Some(said) = rest.peek() {
                        if said.net.src != a_ip {
                            a.take(said);
                            ours.extend(a.sent());
                        } else if ours.is_empty() {
                            // The packet belongs to the next posted request.
                            break;
                        } else {
                            let mine = ours.remove(0);
                            assert_eq!(told(&mine), told(said), "{}", capture.name);
                        }
                        rest.next();
                    }
                    ended.extend(a.completions().iter().map(|c| (c.id, status(c.status))));
                    let wcs = line["answer"]["wcs"].as_array().unwrap();
                    should.extend(
                        wcs.iter().map(|w| (number(&w["wr_id"]), text(&w["status"]).into())),
                    );
                }
                _ => {}
            }
        }
        assert!(rest.peek().is_none(), "{}: there is more in the capture", capture.name);
        // Packets that were sent before the NAK arrived may differ.
        let failed = should.iter().any(|(_, status)| status != "SUCCESS");
        assert!(ours.is_empty() || failed, "{}: we say more: {ours:?}", capture.name);
        assert_eq!(ended, should, "{}", capture.name);
        played += 1;
    }
    assert!(played >= 50, "{played}");
}

/// A capture and the script of its conversation.
struct Capture {
    /// `FOLDER/NAME`.
    name: String,
    path: PathBuf,
    frames: Vec<Said>,
    script: Vec<Value>,
}

fn captures() -> Vec<Capture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps");
    let mut all = Vec::new();
    for dir in fs::read_dir(root).unwrap().flatten().filter(|d| d.path().is_dir()) {
        for file in fs::read_dir(dir.path()).unwrap().flatten() {
            let path = file.path();
            if path.extension().is_some_and(|e| e == "pcap")
                && path.with_extension("jsonl").exists()
            {
                all.push(Capture::read(path));
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(all.len() >= 60, "{} captures", all.len());
    all
}

impl Capture {
    fn read(path: PathBuf) -> Self {
        let folder = path.parent().unwrap().file_name().unwrap().to_string_lossy();
        let name = format!("{folder}/{}", path.file_stem().unwrap().to_string_lossy());
        let file = fs::read(&path).unwrap();
        let frame = |bytes: &&[u8]| {
            let (_, datagram) = parse_ethernet(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
            let roce = datagram.frame().unwrap_or_else(|e| panic!("{name}: {e}"));
            Said { net: roce.net, bytes: roce.payload.to_vec() }
        };
        let frames: Vec<Said> = pcap_frames(&file).iter().map(frame).collect();
        assert!(!frames.is_empty(), "{name}: no frames");
        let script = fs::read_to_string(path.with_extension("jsonl")).unwrap();
        let script = script.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        Self { name, path, frames, script }
    }

    fn of<'c>(&'c self, end: &'c str, cmd: &'c str) -> impl Iterator<Item = &'c Value> {
        self.script.iter().filter(move |l| l["end"] == end && l["request"]["cmd"] == cmd)
    }

    fn ip(&self, end: &str) -> std::net::IpAddr {
        let other = if end == "a" { "b" } else { "a" };
        let connect = self.of(other, "connect").next().unwrap();
        let gid: std::net::Ipv6Addr = text(&connect["request"]["dgid"]).parse().unwrap();
        gid.to_canonical()
    }

    /// Creates one end alone, as the script does. Returns `None` if its queue pair was destroyed.
    fn end(&self, end: &str) -> Option<End> {
        let other = if end == "a" { "b" } else { "a" };
        if self.of(end, "close").any(|l| l["request"]["qp"].is_u64())
            && self.name.ends_with("peer_gone")
            && end == "b"
        {
            return None;
        }
        let qpn = |end| word(&self.of(end, "qp").next().unwrap()["answer"]["qpn"]);
        let connect = &self.of(end, "connect").next().unwrap()["request"];
        let psns = (Psn::new(word(&connect["sq_psn"])), Psn::new(word(&connect["rq_psn"])));
        let mtu = Mtu::from_bytes(usize::try_from(number(&connect["path_mtu"])).unwrap()).unwrap();
        let (own, peer) = ((self.ip(end), qpn(end)), (self.ip(other), qpn(other)));
        let srq = self.of("b", "srq").next().map(|l| word(&l["answer"]["number"]));
        let mut made = match (srq, end) {
            (None, _) => End::new(own, peer, mtu, psns),
            (Some(_), "a") => End::initiator(own, peer, mtu, psns),
            (Some(number), _) => End::target(own, peer, mtu, psns, number),
        };
        let timer = connect["min_rnr_timer"].as_u64().unwrap_or(12);
        let attr = QpAttr {
            min_rnr_timer: RnrTimer::new(u8::try_from(timer).unwrap()).unwrap(),
            ..QpAttr::default()
        };
        let number_of = made.qp.qpn();
        if srq.is_none() || end == "b" {
            made.engine.modify_qp(made.now, number_of, &attr, AttrMask::MIN_RNR_TIMER).unwrap();
        }
        for mr in self.of(end, "mr") {
            let (asked, got) = (&mr["request"], &mr["answer"]);
            let size = usize::try_from(number(&asked["size"])).unwrap();
            let memory = Buffer::zeroed(size);
            let seeds = self.of(end, "fill").filter(|f| f["request"]["mr"] == got["mr"]);
            for fill in seeds {
                let seed = word(&fill["request"]["seed"]);
                memory.span(0, size as u64).unwrap().write(&pattern(seed, size)).unwrap();
            }
            let key = Key::new(word(&got["rkey"]));
            let rights = access(&asked["access"]);
            let start = number(&got["addr"]);
            assert_eq!(made.memory.register(PD, memory, start, rights, || key.value()), Ok(key));
        }
        Some(made)
    }

    /// Returns the element that the script writes as `{mr, offset, len}`.
    fn sges(&self, end: &str, list: &Value) -> SgeList {
        let sge = |s: &Value| {
            let mr = self.of(end, "mr").find(|l| l["answer"]["mr"] == s["mr"]).unwrap();
            let answer = &mr["answer"];
            let addr = number(&answer["addr"]) + number(&s["offset"]);
            Sge { addr, length: word(&s["len"]), lkey: Key::new(word(&answer["rkey"])) }
        };
        list.as_array().into_iter().flatten().map(sge).collect()
    }

    /// Posts all receives that `b` posts in the script.
    fn post_receives(&self, b: &End) {
        for line in self.of("b", "post_recv") {
            let (id, sges) =
                (number(&line["request"]["wr_id"]), self.sges("b", &line["request"]["sge"]));
            b.post_recv(rxe_core::queue::RecvRequest { id, sges });
        }
    }

    fn post_send(&self, a: &End, wr: &Value) {
        let remote = Remote { addr: number(&wr["remote_addr"]), rkey: Key::new(word(&wr["rkey"])) };
        let imm = wr["imm"].as_u64().map(|imm| u32::try_from(imm).unwrap());
        let op = match text(&wr["op"]) {
            "send" | "send_imm" => SendOp::Send { imm },
            "write" | "write_imm" => SendOp::Write { remote, imm },
            "read" => SendOp::Read { remote },
            "cas" => SendOp::CompareSwap {
                remote,
                compare: number(&wr["compare"]),
                swap: number(&wr["swap"]),
            },
            "fetch_add" => SendOp::FetchAdd { remote, add: number(&wr["add"]) },
            other => panic!("{}: {other}", self.name),
        };
        let payload = Payload::Sges(self.sges("a", &wr["sge"]));
        let (id, flags) = (number(&wr["wr_id"]), SendFlags::SIGNALED);
        let xrc_srq = wr["xrc_srq"].as_u64().map(|number| u32::try_from(number).unwrap());
        a.qp.post_send(SendRequest { id, op, payload, flags, to: None, xrc_srq }).unwrap();
    }

    /// Returns the fields of a responder's packets that are compared.
    fn fixed(&self, said: &[Said], rnr: bool) -> Vec<Told> {
        let mut all: Vec<Told> = said.iter().map(told).collect();
        if rnr {
            let sequence = Syndrome::Nak(NakCode::PsnSequenceError);
            all.retain(|t| t.ext.aeth.is_none_or(|aeth| aeth.syndrome != sequence));
        }
        if self.name.ends_with("send_too_long") {
            for told in &mut all {
                if let Some(aeth) = &mut told.ext.aeth
                    && aeth.syndrome == Syndrome::Nak(NakCode::RemoteOperationalError)
                {
                    aeth.syndrome = Syndrome::Nak(NakCode::InvalidRequest);
                }
            }
        }
        all
    }
}

fn syndrome(said: &Said) -> Option<Syndrome> {
    let packet = said.packet();
    let acknowledges = packet.info().kind == OpKind::Acknowledge;
    packet.aeth().filter(|_| acknowledges).map(|aeth| aeth.syndrome)
}

fn access(rights: &Value) -> Access {
    let all = [
        ("local_write", Access::LOCAL_WRITE),
        ("remote_write", Access::REMOTE_WRITE),
        ("remote_read", Access::REMOTE_READ),
        ("remote_atomic", Access::REMOTE_ATOMIC),
    ];
    let given = |name: &str| match rights.as_array() {
        Some(list) => list.iter().any(|r| r == name),
        None => true,
    };
    let granted = all.into_iter().filter(|(name, _)| given(name));
    granted.fold(Access::empty(), |sum, (_, access)| sum | access)
}

/// Returns the peers' pattern, as `tests/peer/peer.py` defines it.
fn pattern(seed: u32, len: usize) -> Vec<u8> {
    let row = |r: u32| {
        let first = seed.wrapping_add(r).to_le_bytes()[0];
        let head = seed.to_le_bytes().into_iter().chain(r.to_le_bytes());
        head.chain((0..56).map(move |j| first.wrapping_add(j)))
    };
    (0..).flat_map(row).take(len).collect()
}

fn status(status: Status) -> String {
    let name = match status {
        Status::Success => "SUCCESS",
        Status::WorkRequestFlushed => "WR_FLUSH_ERR",
        Status::RemoteAccess => "REM_ACCESS_ERR",
        Status::RemoteInvalidRequest => "REM_INV_REQ_ERR",
        Status::RemoteOperation => "REM_OP_ERR",
        other => return format!("{other:?}"),
    };
    name.to_owned()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn word(value: &Value) -> u32 {
    u32::try_from(number(value)).unwrap()
}
