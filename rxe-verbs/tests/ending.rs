//! Programs that end immediately after they receive a message: by a panic of the main thread, or
//! while other threads poll. Their peers must still get the acknowledgement.
//!
//! The test harness does not run tests on the main thread, so this program has its own `main`.

mod common;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;

use common::*;
use rxe_verbs::*;

/// The environment variable that tells the program how to end and how it is reached.
const ENDING: &str = "RXE_TEST_ENDING";
/// The ID of the request that must be acknowledged.
const LAST: u64 = 99;

fn main() {
    if let Ok(how) = std::env::var(ENDING) {
        return ending(&how);
    }
    let mut passed = 0;
    for how in ["panic", "polling"] {
        for way in ["ring", "socket"] {
            // After a ping-pong, a program sends acknowledgements together with its answers.
            for rounds in [0, 50] {
                peer_of(&format!("{how} {way} {rounds}"), how);
                println!("test {how} after {rounds} rounds over a {way} ... ok");
                passed += 1;
            }
        }
    }
    // `cargo xtask test` reads this line.
    println!("{passed} passed, 0 failed, 0 skipped");
}

/// Opens a device as `how` says. Returns it with how to end, and after how many rounds.
fn open_for(how: &str) -> (Side, &str, u32) {
    let [end, way, rounds] = how.split(' ').collect::<Vec<_>>()[..] else { panic!("{how}") };
    let device = Device::options("lo").address(address()).shared_memory(way == "ring").open();
    (Side::new(device.unwrap()), end, rounds.parse().unwrap())
}

/// Waits for a message and posts a receive for the next one.
fn message(side: &Side, memory: &MemoryRegion) {
    while side.cq.spin_one(TIMEOUT).map(|done| (done.status, done.op)).unwrap()
        != (Status::Success, CompletionOp::Recv)
    {}
    side.qp.recv(0, &[memory.slice(..)]).unwrap();
}

fn ending(how: &str) {
    let (side, end, rounds) = open_for(how);
    // No backtrace: printing it would give acknowledgements time to leave.
    std::panic::set_hook(Box::new(|_| eprintln!("on purpose")));
    // Leaked, because this test is not about orderly drops.
    let side: &'static Side = Box::leak(Box::new(side));
    let memory: &'static MemoryRegion = Box::leak(Box::new(side.region(64)));
    println!("{}", side.qp.endpoint());
    let mut peer = String::new();
    io::stdin().read_line(&mut peer).unwrap();
    side.qp.connect(&peer.trim().parse().unwrap(), &patient()).unwrap();
    (0..4).for_each(|_| side.qp.recv(0, &[memory.slice(..)]).unwrap());
    if end == "polling" {
        for _ in 0..2 {
            // The threads poll another queue, so they drive the engine without taking completions.
            let cq = side.device.create_cq(16).unwrap();
            thread::spawn(move || while cq.poll_one().unwrap().is_none() {});
        }
    }
    println!("ready");
    io::stdout().flush().unwrap();
    for _ in 0..rounds {
        message(side, memory);
        side.qp.send_bytes(0, b"answer").post().unwrap();
    }
    message(side, memory);
    assert!(end != "panic");
}

fn peer_of(how: &str, end: &str) {
    let (side, _, rounds) = open_for(how);
    let memory = side.region(64);
    let mut program: Child = Command::new(std::env::current_exe().unwrap())
        .env(ENDING, how)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut line = || said.next().expect("it runs").unwrap();
    side.qp.connect(&line().parse().unwrap(), &patient()).unwrap();
    (0..4).for_each(|_| side.qp.recv(0, &[memory.slice(..)]).unwrap());
    writeln!(program.stdin.as_ref().unwrap(), "{}", side.qp.endpoint()).unwrap();
    assert_eq!(line(), "ready");
    for _ in 0..rounds {
        side.qp.send_bytes(0, b"ping").post().unwrap();
        message(&side, &memory);
    }
    side.qp.send_bytes(LAST, b"the last").post().unwrap();
    // Completions of earlier sends may come first.
    while side.ok().id != LAST {}
    let mut errors = String::new();
    program.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = program.wait().unwrap();
    assert_eq!(status.code(), Some(if end == "panic" { 101 } else { 0 }), "{how}: {errors}");
    assert_eq!(errors.contains("on purpose"), end == "panic", "{how}: {errors}");
    assert!(!errors.contains("report"), "{how}: {errors}");
}
