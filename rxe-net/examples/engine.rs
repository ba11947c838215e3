//! Measures one engine over a backend, without threads, locks and sleeping.
//! Compared with these numbers, programs that use verbs show the cost of the layers above the
//! engine. Both ends poll.
//!
//! ```text
//! engine BACKEND NETDEV ADDRESS PEER serve
//! engine BACKEND NETDEV ADDRESS PEER write|read|send|lat BYTES [SECONDS [MTU]]
//! engine udp lo 127.0.0.1 127.0.0.2 pair-write|pair-read|pair-send BYTES [SECONDS [MTU]]
//! ```
//! The two ends know each other's QPNs and keys beforehand. Each run needs a new server with the
//! same MTU; the server exits when no packet has come for a second. A `pair` runs both ends in one
//! thread, in turn, so its CPU time does not depend on the other load of the machine.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rxe_core::engine::{Config, Engine, SourcePort};
use rxe_core::mem::{Access, Buffer, Memory, PdId};
use rxe_core::qp::{AttrMask, QpAttr, QpCap, QpHandle, QpInit, QpState, QpType};
use rxe_core::queue::{
    CompletionOp, CompletionQueue, Payload, RecvRequest, Remote, SendOp, SendRequest, Sge, Status,
};
use rxe_core::types::{AckTimeout, Gid, Key, Mtu, Qpn, Time};
use rxe_core::wire::TxBatch;
use rxe_net::{Backend, SendStatus, SrcPort};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PD: PdId = PdId(1);
const KEY: u32 = 0x1234;
const MEMORY: usize = 4 << 20;
const DEPTH: u32 = 128;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [backend, netdev, address, peer, what, rest @ ..] = &args[..] else {
        return Err("usage: engine BACKEND NETDEV ADDRESS PEER WHAT [BYTES [SECONDS [MTU]]]".into());
    };
    let bytes: u32 = rest.first().map_or(Ok(65536), |b| b.parse())?;
    let seconds: f64 = rest.get(1).map_or(Ok(1.0), |s| s.parse())?;
    let mtu: u16 = rest.get(2).map_or(Ok(1024), |s| s.parse())?;
    let address: IpAddr = address.parse()?;
    let backend = rxe_net::open(backend.parse()?, netdev, &[address])?;
    let peer: IpAddr = peer.parse()?;
    let mut end = End::new(backend, address, peer, mtu)?;
    let time = Duration::from_secs_f64(seconds);
    let remote = Remote { addr: 0, rkey: Key::new(KEY) };
    let (pair, what) = what.strip_prefix("pair-").map_or((false, &what[..]), |what| (true, what));
    let op = match what {
        "write" => SendOp::Write { remote, imm: None },
        "read" => SendOp::Read { remote },
        _ => SendOp::Send { imm: None },
    };
    let mut other = None;
    if pair {
        let backend = rxe_net::open(args[0].parse()?, netdev, &[peer])?;
        other = Some(End::new(backend, peer, address, mtu)?);
    }
    match what {
        "serve" => end.serve()?,
        "lat" => end.latency(bytes, time)?,
        "write" | "read" | "send" => end.stream(bytes, time, op, other.as_mut())?,
        other => return Err(format!("what is {other}?").into()),
    }
    let counters = end.engine.counters();
    println!("{counters:?}\n{:?}", end.backend.counters());
    Ok(())
}

/// One end of the connection.
struct End {
    engine: Engine,
    backend: Box<dyn Backend>,
    batch: TxBatch,
    qp: Arc<QpHandle>,
    cq: Arc<CompletionQueue>,
    start: Instant,
}

impl End {
    fn new(backend: Box<dyn Backend>, address: IpAddr, peer: IpAddr, mtu: u16) -> Result<Self> {
        let memory = Arc::new(Memory::new());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let random = || KEY;
        memory.register(PD, Buffer::zeroed(MEMORY), 0, access, random).map_err(|e| e.explain())?;
        let caps = backend.capabilities();
        let source_port = match caps.src_port {
            SrcPort::Fixed(port) => SourcePort::Fixed(port),
            SrcPort::Any => SourcePort::PerQp,
            SrcPort::Range { first, count } => SourcePort::InTurn { first, count },
        };
        let batch = TxBatch::new(caps.tx);
        let mut config =
            Config { gids: vec![Gid::from(address)], source_port, ..Config::default() };
        let from_env = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u32>().ok());
        if let Some(packets) = from_env("WINDOW_PACKETS") {
            config.window_packets = packets;
        }
        if let Some(bytes) = from_env("WINDOW_BYTES") {
            config.window_bytes = bytes;
        }
        let mut engine = Engine::new(config, memory);
        let cq = Arc::new(CompletionQueue::new(4 * DEPTH, None));
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        let cap = QpCap { max_send_wr: DEPTH, max_recv_wr: 2 * DEPTH, ..QpCap::default() };
        let init = QpInit {
            service: QpType::Rc,
            pd: PD,
            send_cq,
            recv_cq,
            cap,
            sq_sig_all: true,
            srq: None,
            xrcd: None,
        };
        // The QPN is in range 1, which only the first process on an address gets. Both ends assume
        // that they are the first.
        if caps.qpn_block.is_some_and(|block| block != 1) {
            return Err(format!("{address} is in use by another process").into());
        }
        let qpn = Qpn::new(0x1_0011).ok_or("QPN")?;
        let qp = engine.create_qp(qpn, init)?;
        connect(&mut engine, qpn, peer, mtu)?;
        let mut end = Self { engine, backend, batch, qp, cq, start: Instant::now() };
        for _ in 0..2 * DEPTH {
            end.receive()?;
        }
        Ok(end)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Runs one turn: receives, handles timeouts and sends. Returns the number of received packets.
    fn turn(&mut self) -> Result<usize> {
        let now = self.now();
        let engine = &mut self.engine;
        let came = self.backend.receive(64, &mut |frame| engine.handle_frame(now, frame))?;
        self.engine.handle_timeout(now);
        loop {
            self.engine.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            if self.backend.send(&mut self.batch)? != SendStatus::Done {
                break;
            }
        }
        while self.engine.poll_event().is_some() {}
        Ok(came)
    }

    fn receive(&mut self) -> Result<()> {
        Ok(self.qp.post_recv(RecvRequest { id: 0, sges: [sge(1 << 20)].into_iter().collect() })?)
    }

    fn post(&mut self, op: SendOp, bytes: u32) -> Result<()> {
        let payload = Payload::Sges([sge(bytes)].into_iter().collect());
        Ok(self.qp.post_send(SendRequest::new(0, op, payload))?)
    }

    /// Answers each small SEND with one of the same size, until no packet has come for a second.
    fn serve(&mut self) -> Result<()> {
        let mut last: Option<Instant> = None;
        let mut idle = 0;
        while last.is_none_or(|last| last.elapsed() < Duration::from_secs(1)) {
            for _ in 0..64 {
                if self.turn()? > 0 {
                    last = Some(Instant::now());
                    idle = 0;
                } else {
                    idle = self.idle(idle);
                }
                while let Some(done) = self.cq.poll() {
                    if done.op == CompletionOp::Recv {
                        self.receive()?;
                        if done.byte_len < 4096 {
                            self.post(SendOp::Send { imm: None }, done.byte_len)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts idle turns. After 100 it yields, because the other end may need this CPU.
    fn idle(&self, turns: u32) -> u32 {
        if turns > 100 {
            std::thread::yield_now();
        }
        turns + 1
    }

    fn stream(
        &mut self,
        bytes: u32,
        time: Duration,
        op: SendOp,
        mut other: Option<&mut Self>,
    ) -> Result<()> {
        let (start, cpu) = (Instant::now(), cpu_time());
        let (mut done, mut out, mut idle) = (0u64, 0, 0);
        while start.elapsed() < time || out > 0 {
            while out < DEPTH && start.elapsed() < time {
                self.post(op, bytes)?;
                out += 1;
            }
            idle = if self.turn()? > 0 || other.is_some() { 0 } else { self.idle(idle) };
            if let Some(other) = &mut other {
                other.turn()?;
                while let Some(done) = other.cq.poll() {
                    if done.op == CompletionOp::Recv {
                        other.receive()?;
                    }
                }
            }
            while let Some(c) = self.cq.poll() {
                if c.status != Status::Success {
                    return Err(c.status.verbs_str().into());
                }
                out -= 1;
                done += 1;
            }
        }
        let elapsed = start.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "for a person")]
        let (rate, each) = (done as f64 * f64::from(bytes) / elapsed / 1e9, elapsed / done as f64);
        #[expect(clippy::cast_precision_loss, reason = "for a person")]
        let cpu = (cpu_time() - cpu).as_secs_f64() / done as f64;
        println!(
            "{bytes} bytes: {rate:.3} GB/s, {:.2} us each, {:.2} us of CPU ({:.3} GB/s)",
            each * 1e6,
            cpu * 1e6,
            f64::from(bytes) / cpu / 1e9
        );
        Ok(())
    }

    fn latency(&mut self, bytes: u32, time: Duration) -> Result<()> {
        let start = Instant::now();
        let mut times = Vec::new();
        while start.elapsed() < time {
            let begin = Instant::now();
            self.post(SendOp::Send { imm: None }, bytes)?;
            let mut idle = 0;
            'answer: loop {
                idle = if self.turn()? > 0 { 0 } else { self.idle(idle) };
                while let Some(c) = self.cq.poll() {
                    if c.status != Status::Success {
                        return Err(c.status.verbs_str().into());
                    }
                    if c.op == CompletionOp::Recv {
                        self.receive()?;
                        break 'answer;
                    }
                }
            }
            times.push(begin.elapsed() / 2);
        }
        times.sort_unstable();
        let at = |p: usize| times[(times.len() - 1) * p / 1000];
        println!(
            "{bytes} bytes one way: min {:?}, median {:?}, 99 % {:?}, 99.9 % {:?}",
            at(0),
            at(500),
            at(990),
            at(999)
        );
        Ok(())
    }
}

/// Returns the CPU time that this thread has used.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    Duration::from_secs(number(t.tv_sec)) + Duration::from_nanos(number(t.tv_nsec))
}

fn sge(length: u32) -> Sge {
    Sge { addr: 0, length, lkey: Key::new(KEY) }
}

fn connect(engine: &mut Engine, qpn: Qpn, peer: IpAddr, mtu: u16) -> Result<()> {
    let path_mtu = match mtu {
        256 => Mtu::M256,
        512 => Mtu::M512,
        1024 => Mtu::M1024,
        2048 => Mtu::M2048,
        _ => Mtu::M4096,
    };
    let mut attr = QpAttr {
        qp_access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ,
        path_mtu,
        timeout: AckTimeout::new(14).ok_or("timeout")?,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        dest_qp_num: qpn,
        ..QpAttr::default()
    };
    attr.ah_attr.dgid = Gid::from(peer);
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let rtr = AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    let rts = AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_QP_RD_ATOMIC;
    for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
        attr.qp_state = state;
        engine.modify_qp(Time::ZERO, qpn, &attr, mask | AttrMask::STATE)?;
    }
    Ok(())
}
