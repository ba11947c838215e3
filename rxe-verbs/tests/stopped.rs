//! A process that is stopped for longer than its timeouts, while responses wait in its sockets.

mod common;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::*;
use rustix::process::{Pid, Signal, kill_process};
use rxe_verbs::*;

/// The number of queue pairs, whose responses are too many to read in one call.
const QPS: usize = 200;
const READS: u64 = 16;
const SIDE: &str = "RXE_TEST_STOPPED";

/// Returns options with a timeout of 2.1 s and no retries. Even on a busy machine, the peer, which
/// is not stopped, can respond within that time.
fn options() -> ConnectOptions {
    let timeout = AckTimeout::new(19).unwrap();
    ConnectOptions { timeout, retry_cnt: 0, ..ConnectOptions::default() }
}

fn device(shared_memory: bool) -> Device {
    Device::options("lo").address(address()).shared_memory(shared_memory).open().unwrap()
}

fn queue_pairs(side: &Side, cq: &CompletionQueue) -> Vec<QueuePair> {
    (0..QPS).map(|_| side.pd.qp(cq).build().unwrap()).collect()
}

fn connect_all<R: BufRead>(qps: &[QueuePair], peers: &mut Lines<R>) {
    for qp in qps {
        let peer: Endpoint = peers.next().unwrap().unwrap().parse().unwrap();
        qp.connect(&peer, &options()).unwrap();
    }
}

/// The process that is stopped. Posts READs continually until its input ends.
fn stopped(shared_memory: bool) {
    let side = Side::new(device(shared_memory));
    let cq = side.device.create_cq(8192).unwrap();
    let qps = queue_pairs(&side, &cq);
    qps.iter().for_each(|qp| println!("endpoint {}", qp.endpoint()));
    let mut input = std::io::stdin().lock().lines();
    connect_all(&qps, &mut input);
    let mut number = || input.next().unwrap().unwrap().parse::<u64>().unwrap();
    let remote = Remote { addr: number(), rkey: Key::new(u32::try_from(number()).unwrap()) };
    thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        std::process::exit(0);
    });
    drop(input);
    let memory = side.region(8);
    let post = |qp: &QueuePair, id| qp.read(id, &[memory.slice(..)], remote).post().unwrap();
    for (id, qp) in (0..).zip(&qps) {
        (0..READS).for_each(|_| post(qp, id));
    }
    for done in 1.. {
        let completion = cq.spin_one(TIMEOUT).unwrap();
        let timeouts = side.device.counters().ack_timeout;
        assert_eq!(completion.status, Status::Success, "{timeouts} timeouts, {completion:?}");
        post(&qps[usize::try_from(completion.id).unwrap()], completion.id);
        if done % 10_000 == 0 {
            println!("goes on {timeouts}");
        }
    }
}

struct Stopped(Child, Lines<BufReader<ChildStdout>>);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(name: &str) -> Stopped {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(SIDE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    Stopped(child, lines)
}

/// Waits for a line that contains `beginning`, and returns the text after it.
fn line(child: &mut Stopped, beginning: &str) -> String {
    let found = child.1.by_ref().map(|l| l.unwrap());
    found
        .into_iter()
        .find_map(|l| l.split_once(beginning).map(|(_, rest)| rest.trim().to_owned()))
        .unwrap_or_else(|| panic!("it ended before it said {beginning:?}"))
}

fn stop_and_go_on(name: &str, shared_memory: bool) {
    if std::env::var_os(SIDE).is_some() {
        return stopped(shared_memory);
    }
    let side = Side::new(device(shared_memory));
    let memory = side.region(8);
    let qps = queue_pairs(&side, &side.cq);
    let mut child = spawn(name);
    let mut input = child.0.stdin.take().unwrap();
    for qp in &qps {
        let peer: Endpoint = line(&mut child, "endpoint ").parse().unwrap();
        qp.connect(&peer, &options()).unwrap();
        writeln!(input, "{}", qp.endpoint()).unwrap();
    }
    let Remote { addr, rkey } = memory.remote(0);
    writeln!(input, "{addr}\n{}", rkey.value()).unwrap();
    let pid = Pid::from_child(&child.0);
    for round in 0..2 {
        line(&mut child, "goes on");
        kill_process(pid, Signal::STOP).unwrap();
        thread::sleep(Duration::from_millis(2500));
        kill_process(pid, Signal::CONT).unwrap();
        let timeouts = line(&mut child, "goes on");
        println!("round {round}: {timeouts} timeouts until now");
    }
    drop(input);
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn over_sockets() {
    stop_and_go_on("over_sockets", false);
}

#[test]
fn over_shared_memory() {
    stop_and_go_on("over_shared_memory", true);
}
