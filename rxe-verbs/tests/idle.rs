//! An idle device uses no CPU time. This test runs alone in its process, whose CPU time it
//! measures.

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
    // Any spinning thread, the waiting one or a driver, would have used a second. CPU time does not
    // depend on other load on the machine.
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(100), "{used:?}");
}
