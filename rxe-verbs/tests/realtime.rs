//! The scheduling policy of drivers. These tests run alone in their process, whose threads they
//! look for.

mod common;

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use parking_lot::Mutex;
use rxe_verbs::device::Device;

/// Held by each test: all drivers of the process are counted.
static ALONE: Mutex<()> = Mutex::new(());

const ORDINARY: &str = "0";
const ROUND_ROBIN: &str = "2";
const BATCH: &str = "3";

/// Returns the policies of all driver threads. proc_pid_stat(5).
fn policies() -> Vec<String> {
    let mut all = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        // A thread may end meanwhile.
        let Ok(stat) = fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let (name, rest) = stat.rsplit_once(") ").unwrap();
        if name.ends_with("(rxe-driver") {
            // The state is the third field and the first of `rest`.
            all.push(rest.split(' ').nth(41 - 3).unwrap().to_owned());
        }
    }
    all
}

#[track_caller]
fn wait_for(policy: &str) {
    let until = Instant::now() + TIMEOUT;
    while !policies().iter().all(|it| it == policy) {
        assert!(Instant::now() < until, "{:?}", policies());
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_permitted() -> bool {
    thread::spawn(|| rxe_sys::set_realtime().is_ok()).join().unwrap()
}

#[test]
fn a_sleeping_driver_has_a_real_time_priority_where_that_is_permitted() {
    let _alone = ALONE.lock();
    let (_a, _b) = pair();
    assert_eq!(policies().len(), 2);
    wait_for(if is_permitted() { ROUND_ROBIN } else { ORDINARY });
}

#[test]
fn a_driver_keeps_the_ordinary_priority_if_the_program_asks_for_that() {
    let _alone = ALONE.lock();
    let ip = address();
    let device = Device::options("lo").address(ip).realtime(false).open().unwrap();
    assert_eq!(policies(), [ORDINARY]);
    drop(device);
}

#[test]
fn a_driver_keeps_the_policy_that_the_program_has_chosen() {
    let _alone = ALONE.lock();
    let chosen = || {
        let param = libc::sched_param { sched_priority: 0 };
        #[expect(unsafe_code, reason = "a policy that the library does not set")]
        // SAFETY: `param` is valid for reads; only this thread's policy changes.
        let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) };
        assert_eq!(set, 0);
        let _device = Device::options("lo").address(address()).open().unwrap();
        policies()
    };
    assert_eq!(thread::spawn(chosen).join().unwrap(), [BATCH]);
}
