//! The cost of the engine alone: two engines in one thread, without sockets and clocks.
//! `cargo bench -p rxe-tests --bench engine` prints nanoseconds per packet (of both engines
//! together: build, ICRC twice, copy in and out, acknowledge) and the rate of 8-byte messages, for
//! the standard works (`-shm`: through the rings between processes) and for others.
//!
//! `-- --two` prints the rate of two threads, each with its own two engines, as a multiple of the
//! rate of one thread: the median of five rounds, the minimum and the maximum.
//!
//! `-- NAME` runs only the works whose names contain NAME; `-- --seconds 5` runs each for 5 s, for
//! a profiler.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rxe_core::types::Mtu;
use rxe_tests::stream::{Kind, Stream, WORKS, Work};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !args.iter().any(|arg| arg == "--bench") {
        // `cargo test --all-targets` also runs benches, only to see that they work.
        return WORKS.iter().for_each(|(name, work)| measure(*work, Duration::ZERO).print(name));
    }
    let seconds = args.iter().position(|arg| arg == "--seconds").and_then(|i| args.get(i + 1));
    let time = seconds
        .and_then(|s| s.parse().ok())
        .map_or(Duration::from_millis(500), |s: f64| Duration::from_secs_f64(s));
    let filter = args.iter().find(|arg| !arg.starts_with('-') && arg.parse::<f64>().is_err());
    let two = args.iter().any(|arg| arg == "--two");
    if two {
        println!("{:<22} {:>10} {:>8} {:>8}", "", "two", "least", "most");
    } else {
        println!("{:<22} {:>10} {:>12} {:>14}", "", "ns/packet", "GB/s", "messages/s");
    }
    let mut works: Vec<_> = WORKS.iter().map(|(name, work)| ((*name).to_owned(), *work)).collect();
    for (kind, name) in [(Kind::Send, "send"), (Kind::Write, "write"), (Kind::Read, "read")] {
        for (mtu, len) in [(Mtu::M1024, 65_536), (Mtu::M4096, 65_536), (Mtu::M4096, 8)] {
            let work = Work { kind, mtu, len, depth: 64, rings: false };
            works.push((format!("{name} mtu {mtu} len {len}"), work));
        }
    }
    for (name, work) in works {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        if two {
            let [median, least, most] = ratios(work, time);
            println!("{name:<22} {median:>10.2} {least:>8.2} {most:>8.2}");
        } else {
            measure(work, time).print(&name);
        }
    }
}

/// Returns the rate of two threads divided by that of one: median of five rounds, minimum, maximum.
fn ratios(work: Work, time: Duration) -> [f64; 3] {
    let mut ratios: Vec<f64> = (0..5)
        .map(|_| {
            let one = rate(1, work, time);
            rate(2, work, time) / one
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    [ratios[2], ratios[0], ratios[4]]
}

/// Returns the messages per second of all threads together.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn rate(threads: usize, work: Work, time: Duration) -> f64 {
    let ready = Barrier::new(threads);
    let run = || {
        measure(work, time / 8);
        ready.wait();
        let Measured { time, messages, .. } = measure(work, time);
        messages as f64 / time.as_secs_f64()
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        all.into_iter().map(|thread| thread.join().expect("a thread that works")).sum()
    })
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

fn measure(work: Work, time: Duration) -> Measured {
    let mut stream = Stream::new(work);
    let start = Instant::now();
    loop {
        stream.turn();
        let elapsed = start.elapsed();
        let messages = stream.messages();
        if elapsed >= time && messages > 0 {
            let (packets, bytes) = (stream.packets(), messages * u64::from(work.len));
            return Measured { time: elapsed, packets, messages, bytes };
        }
    }
}
