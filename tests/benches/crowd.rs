//! The cost of an 8-byte message with one queue pair and with ten thousand.
//! Two engines run in one thread, without sockets (`cargo bench -p rxe-tests --bench crowd`). The
//! connections take turns in random order, so that no cache can predict the next one. No connection
//! has more than one outstanding message, so the work per message is constant. Either up to 64
//! connections send simultaneously, or one.
//!
//! The crowds are measured in turn, and the minimum of each is reported, because other load of the
//! machine only adds time.

use std::time::{Duration, Instant};

use rxe_core::qp::QpCap;
use rxe_tests::crowd::Crowd;
use rxe_tests::sim::rng::Rng;

/// The measurements: the number of simultaneous messages, and WRITE (true) or SEND.
const CASES: [(usize, bool); 3] = [(64, true), (64, false), (1, true)];

fn main() {
    let full = std::env::args().any(|arg| arg == "--bench");
    let (numbers, rounds): (&[u32], _) = if full {
        (&[1, 64, 1000, 10_000], 30)
    } else {
        // `cargo test --all-targets` also runs benches, only to see that they work.
        (&[1, 100], 1)
    };
    let mut all: Vec<Turns> = numbers.iter().map(|&number| Turns::new(number)).collect();
    let mut least = vec![[Duration::MAX; CASES.len()]; all.len()];
    for _ in 0..rounds {
        for (turns, least) in all.iter_mut().zip(&mut least) {
            for ((at_once, write), least) in CASES.into_iter().zip(least) {
                *least = turns.measure(at_once, write, full).min(*least);
            }
        }
    }
    println!("nanoseconds a message, in brackets times as many as with one connection");
    println!("{:<12} {:>20} {:>20} {:>20}", "", "64 at once", "", "one at a time");
    println!("{:<12} {:>20} {:>20} {:>20}", "connections", "WRITE", "SEND", "WRITE");
    for (number, times) in numbers.iter().zip(&least) {
        let cells = times.iter().zip(&least[0]).map(|(time, one)| {
            let ratio = time.as_secs_f64() / one.as_secs_f64();
            format!("{:>20}", format!("{} ({ratio:.2})", time.as_nanos()))
        });
        println!("{number:<12} {}", cells.collect::<Vec<_>>().join(" "));
    }
}

/// A crowd, and the order in which its connections send.
struct Turns {
    crowd: Crowd,
    order: Vec<usize>,
    next: usize,
}

impl Turns {
    fn new(number: u32) -> Self {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
        let mut rng = Rng::new(1);
        let mut order: Vec<usize> = (0..number as usize).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, rng.index(at + 1));
        }
        Self { crowd: Crowd::new(number, cap), order, next: 0 }
    }

    /// Returns the time of a message: the minimum of several samples of 640 messages or slightly more.
    fn measure(&mut self, at_once: usize, write: bool, full: bool) -> Duration {
        const SAMPLE: usize = 640;
        let number = self.order.len();
        let at_once = at_once.min(number);
        // Each connection sends once in all samples, so that none was used just before.
        let samples = if full { number.div_ceil(SAMPLE).max(8) } else { 1 };
        let sample = |turns: &mut Self| {
            let start = Instant::now();
            let mut messages = 0;
            while messages < SAMPLE {
                let turn = turns.next..turns.next + at_once;
                turns.crowd.exchange(turn.map(|at| turns.order[at % number]), write);
                turns.next += at_once;
                messages += at_once;
            }
            start.elapsed() / u32::try_from(messages).unwrap_or(u32::MAX)
        };
        (0..samples).map(|_| sample(self)).min().unwrap_or(Duration::MAX)
    }
}
