//! Two engines in one thread: one sends an endless stream of messages to the other.
//! There are no sockets and no clocks; packets are handed over in memory, or through the rings
//! between processes. A run measures the cost of the engine alone, or of the engine and the rings.

use std::net::{IpAddr, Ipv4Addr};

use rxe_core::queue::{Remote, SendOp, Sge};
use rxe_core::types::{Key, Mtu, Psn, Time};
use rxe_core::wire::{TxBatch, TxLimits};
use rxe_net::untrusted::lane::Lane;

use crate::lone::{End, Place};

const A: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 0x11);
const B: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 0x22);
const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x7000_0000_0000;
const MEMORY: usize = 4 << 20;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SEND into a receive that the peer posted.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
}

/// The messages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The operation.
    pub kind: Kind,
    /// The path MTU.
    pub mtu: Mtu,
    /// The length of a message in bytes.
    pub len: u32,
    /// The number of outstanding messages.
    pub depth: u64,
    /// Whether packets go through shared-memory rings, as between two processes.
    pub rings: bool,
}

/// The standard works by name. `xtask bench` counts their instructions; the `engine` bench times them.
pub const WORKS: [(&str, Work); 7] = [
    ("write-64k", of(Kind::Write, 65_536, 16, false)),
    ("read-64k", of(Kind::Read, 65_536, 16, false)),
    ("send-64k", of(Kind::Send, 65_536, 16, false)),
    ("send-8", of(Kind::Send, 8, 1, false)),
    ("write-8", of(Kind::Write, 8, 64, false)),
    ("write-64k-shm", of(Kind::Write, 65_536, 16, true)),
    ("send-8-shm", of(Kind::Send, 8, 1, true)),
];

const fn of(kind: Kind, len: u32, depth: u64, rings: bool) -> Work {
    Work { kind, mtu: Mtu::M1024, len, depth, rings }
}

/// Two connected engines, the first of which always has messages to send.
#[derive(Debug)]
pub struct Stream {
    work: Work,
    ends: [End; 2],
    batches: [TxBatch; 2],
    /// The ring that each engine sends into, if `Work::rings` is set.
    rings: Option<[Lane; 2]>,
    posted: u64,
    received: u64,
    done: u64,
    turns: u64,
}

impl Stream {
    /// Creates two connected engines that have not sent anything.
    ///
    /// # Panics
    /// If there is no memory for rings.
    pub fn new(work: Work) -> Self {
        let psns = (Psn::ZERO, Psn::ZERO);
        let ends = [End::new(A, B, work.mtu, psns), End::new(B, A, work.mtu, psns)];
        for end in &ends {
            end.register(KEY, BASE, MEMORY);
        }
        let batches = [(); 2].map(|()| TxBatch::new(TxLimits::default()));
        let ring = || Lane::new().expect("a ring");
        let rings = work.rings.then(|| [ring(), ring()]);
        Self { work, ends, batches, rings, posted: 0, received: 0, done: 0, turns: 0 }
    }

    /// Returns the number of completed messages.
    pub fn messages(&self) -> u64 {
        self.done
    }

    /// Returns the number of packets that both engines have sent.
    pub fn packets(&self) -> u64 {
        self.ends.iter().map(|end| end.engine.counters().sent_pkts).sum()
    }

    /// Posts up to the allowed number of messages, lets each engine send once, and polls completions.
    pub fn turn(&mut self) {
        self.post(u64::MAX);
        self.exchange();
    }

    /// Sends messages until `messages` in total have completed, and posts no more than those.
    ///
    /// # Panics
    /// If the messages do not complete.
    pub fn run_to(&mut self, messages: u64) {
        while self.done < messages {
            assert!(self.turns < 1_000 * messages, "nothing completes");
            self.post(messages);
            self.exchange();
        }
    }

    fn post(&mut self, most: u64) {
        let Work { kind, len, depth, .. } = self.work;
        let remote = Remote { addr: BASE + 1_000_000, rkey: KEY };
        let op = match kind {
            Kind::Send => SendOp::Send { imm: None },
            Kind::Write => SendOp::Write { remote, imm: None },
            Kind::Read => SendOp::Read { remote },
        };
        let sge = |at| Sge { addr: BASE + at, length: len, lkey: KEY };
        while self.posted < (self.done + depth).min(most) {
            if kind == Kind::Send && self.posted < self.received + depth {
                self.ends[1].receive(0, sge(2_000_000));
            }
            self.ends[0].send(op, sge(0));
            self.posted += 1;
        }
    }

    fn exchange(&mut self) {
        self.turns += 1;
        let now = Time::from_nanos(self.turns * 1000);
        for from in 0..2 {
            let batch = &mut self.batches[from];
            self.ends[from].engine.handle_timeout(now);
            let engine = &mut self.ends[from].engine;
            match &mut self.rings {
                None => engine.poll_transmit(now, batch),
                Some(rings) => {
                    let ring = &mut rings[from];
                    engine.poll_transmit_with(now, batch, Some(ring));
                    batch.take_direct();
                    let to = &mut self.ends[1 - from].engine;
                    while ring.receive(64, &mut |frame| to.handle_frame(now, frame)) != Ok(0) {}
                }
            }
            for frame in batch.frames() {
                self.ends[1 - from].engine.handle_frame(now, &frame);
            }
            batch.clear();
        }
        self.done += std::iter::from_fn(|| self.ends[0].cq.poll()).count() as u64;
        self.received += std::iter::from_fn(|| self.ends[1].cq.poll()).count() as u64;
    }
}
