//! The cost of the engine alone: two engines in one thread, packets handed over in memory, without
//! sockets and clocks. `cargo bench -p rxe-tests --bench engine` prints nanoseconds per packet (of both
//! engines together: build, ICRC twice, copy in and out, acknowledge) and the rate of 8-byte messages.
//!
//! `-- NAME` runs only the lines that contain NAME; `-- --seconds 5` runs each for 5 s, for a profiler.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rxe_core::queue::{Remote, SendOp, Sge};
use rxe_core::types::{Key, Mtu, Psn, Time};
use rxe_core::wire::{TxBatch, TxLimits};
use rxe_tests::lone::{End, Place};

const A: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 0x11);
const B: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 0x22);
const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x7000_0000_0000;
const MEMORY: usize = 4 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !args.iter().any(|arg| arg == "--bench") {
        // `cargo test --all-targets` runs benches too, to see that they run.
        return measure(Kind::Write, Mtu::M1024, 65_536, Duration::ZERO).print("write 1024");
    }
    let seconds = args.iter().position(|arg| arg == "--seconds").and_then(|i| args.get(i + 1));
    let time = seconds
        .and_then(|s| s.parse().ok())
        .map_or(Duration::from_millis(500), |s: f64| Duration::from_secs_f64(s));
    let filter = args.iter().find(|arg| !arg.starts_with('-') && arg.parse::<f64>().is_err());
    println!("{:<22} {:>10} {:>12} {:>14}", "", "ns/packet", "GB/s", "messages/s");
    for (kind, name) in [(Kind::Send, "send"), (Kind::Write, "write"), (Kind::Read, "read")] {
        for (mtu, len) in [(Mtu::M1024, 65_536), (Mtu::M4096, 65_536), (Mtu::M4096, 8)] {
            let name = format!("{name} mtu {mtu} len {len}");
            if filter.is_none_or(|filter| name.contains(filter.as_str())) {
                measure(kind, mtu, len, time).print(&name);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
}

struct Measured {
    time: Duration,
    packets: u64,
    messages: u64,
    bytes: u64,
}

impl Measured {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn print(&self, name: &str) {
        let seconds = self.time.as_secs_f64();
        println!(
            "{name:<22} {:>10.1} {:>12.2} {:>14.0}",
            seconds * 1e9 / self.packets as f64,
            self.bytes as f64 / seconds / 1e9,
            self.messages as f64 / seconds
        );
    }
}

fn measure(kind: Kind, mtu: Mtu, len: u32, time: Duration) -> Measured {
    let mut ends =
        [End::new(A, B, mtu, (Psn::ZERO, Psn::ZERO)), End::new(B, A, mtu, (Psn::ZERO, Psn::ZERO))];
    for end in &ends {
        end.register(KEY, BASE, MEMORY);
    }
    let remote = Remote { addr: BASE + 1_000_000, rkey: KEY };
    let op = match kind {
        Kind::Send => SendOp::Send { imm: None },
        Kind::Write => SendOp::Write { remote, imm: None },
        Kind::Read => SendOp::Read { remote },
    };
    let sge = |at| Sge { addr: BASE + at, length: len, lkey: KEY };
    let mut batches = [(); 2].map(|()| TxBatch::new(TxLimits::default()));
    let (mut posted, mut done, mut received) = (0, 0, 0);
    let (mut turns, start) = (0_u64, Instant::now());
    loop {
        while posted < done + 64 {
            if kind == Kind::Send && posted < received + 64 {
                ends[1].receive(0, sge(2_000_000));
            }
            ends[0].send(op, sge(0));
            posted += 1;
        }
        turns += 1;
        let now = Time::from_nanos(turns * 1000);
        for from in 0..2 {
            let batch = &mut batches[from];
            ends[from].engine.handle_timeout(now);
            ends[from].engine.poll_transmit(now, batch);
            for frame in batch.frames() {
                ends[1 - from].engine.handle_frame(now, &frame);
            }
            batch.clear();
        }
        done += std::iter::from_fn(|| ends[0].cq.poll()).count() as u64;
        received += std::iter::from_fn(|| ends[1].cq.poll()).count() as u64;
        let elapsed = start.elapsed();
        if elapsed >= time && done > 0 {
            let sent = ends.iter().map(|end| end.engine.counters().sent_pkts);
            return Measured {
                time: elapsed,
                packets: sent.sum(),
                messages: done,
                bytes: done * u64::from(len),
            };
        }
        assert!(turns < 1_000_000_000, "nothing completes");
    }
}
