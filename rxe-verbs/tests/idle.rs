//! Nothing is done while nothing is to do. Alone in its process, whose CPU time it looks at.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::*;
use rustix::time::{ClockId, clock_gettime};

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap()
}

#[test]
fn waiting_and_idling_use_no_cpu() {
    let (a, b) = pair();
    let to = b.region(8);
    b.qp.recv(1, &[to.slice(..)]).unwrap();
    a.qp.send_bytes(1, b"warm").post().unwrap();
    a.ok();
    b.ok();
    let (before, begun) = (cpu_time(), Instant::now());
    let second = Duration::from_secs(1);
    assert!(matches!(a.cq.wait_one(second), Err(rxe_verbs::Error::TimedOut { .. })));
    assert!(begun.elapsed() >= second);
    thread::sleep(second);
    // Any thread that spun, the waiting one or a driver, would have used a second. What is compared
    // is CPU time, which does not depend on what else the machine does.
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(100), "{used:?}");
}
