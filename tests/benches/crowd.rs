//! What an 8-byte message costs among one queue pair and among ten thousand: two engines in one
//! thread, no socket (`cargo bench -p rxe-tests --bench crowd`). Up to 64 messages are on their way
//! at once, each on another connection, so that the work per message is the same.

use std::time::{Duration, Instant};

use rxe_core::qp::QpCap;
use rxe_tests::crowd::Crowd;
use rxe_tests::sim::rng::Rng;

fn main() {
    let full = std::env::args().any(|arg| arg == "--bench");
    let (numbers, time): (&[u32], _) = if full {
        (&[1, 64, 1000, 10_000], Duration::from_millis(1500))
    } else {
        // `cargo test --all-targets` runs benches too, to see that they run.
        (&[1, 100], Duration::ZERO)
    };
    println!("{:<12} {:>14} {:>14} {:>8}", "connections", "WRITE, ns", "SEND, ns", "ratio");
    let mut first = None;
    for &number in numbers {
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
        let mut crowd = Crowd::new(number, cap);
        let [write, send] = [true, false].map(|write| measure(&mut crowd, number, write, time));
        let first = *first.get_or_insert(write + send);
        println!("{number:<12} {write:>14.0} {send:>14.0} {:>8.2}", (write + send) / first);
    }
}

/// Nanoseconds a message. The connections take turns in no order that a cache could foresee.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn measure(crowd: &mut Crowd, number: u32, write: bool, time: Duration) -> f64 {
    let mut rng = Rng::new(1);
    let number = number as usize;
    let mut order: Vec<usize> = (0..number).collect();
    for at in (1..number).rev() {
        order.swap(at, rng.index(at + 1));
    }
    let at_once = number.min(64);
    let (mut messages, mut next) = (0_u64, 0);
    let start = Instant::now();
    loop {
        for _ in 0..100 {
            let turn = (next..next + at_once).map(|at| order[at % number]);
            crowd.exchange(turn, write);
            next += at_once;
            messages += at_once as u64;
        }
        let elapsed = start.elapsed();
        if elapsed >= time {
            return elapsed.as_secs_f64() * 1e9 / messages as f64;
        }
    }
}
