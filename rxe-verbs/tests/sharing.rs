//! Several devices on one address: in one process, and in processes that start and are killed.

mod common;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use rxe_net::BackendKind;
use rxe_verbs::*;

#[test]
fn two_devices_on_one_address_talk() {
    in_namespace("", || {
        for kind in [BackendKind::Udp, BackendKind::Packet] {
            for ip in ["127.0.0.1", "::1"] {
                let ip = ip.parse().unwrap();
                let open = || Device::options("lo").address(ip).backend(kind).open().unwrap();
                let (a, b, c) = (Side::new(open()), Side::new(open()), Side::new(open()));
                let blocks = [&a, &b, &c].map(|side| side.device.qpn_block());
                assert_eq!(blocks, [Some(1), Some(2), Some(3)]);
                assert_eq!(a.qp.qpn().value() >> 16, 1);
                connect(&a.qp, &b.qp);
                let (from, to) = (a.region(100_000), b.region(100_000));
                from.write_at(0, &pattern(100_000, 7)).unwrap();
                drop(c);
                a.qp.write(1, &[from.slice(..)], to.remote(0)).post().unwrap();
                a.ok();
                assert_eq!(to.to_vec(..).unwrap(), pattern(100_000, 7));
                assert_eq!(b.device.counters().drops().map(|(_, count)| count).sum::<u64>(), 0);
            }
        }
    });
}

/// One end of a connection, in a process of its own that runs this test program again.
struct Process {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    /// The address that the peer writes to, as text.
    place: String,
}

const BYTES: usize = 20_000;

/// The backend, and whether shared memory is used where possible.
type Setup = (BackendKind, bool);

impl Process {
    fn start((kind, shared_memory): Setup) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_of_its_own", "--nocapture", "--ignored"])
            .env("RXE_TEST_BACKEND", kind.name())
            .env("RXE_TEST_SHM", shared_memory.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, out, place: String::new() };
        process.place = process.says("PLACE ");
        process
    }

    /// Waits for a line that contains `word`, and returns the text after it.
    fn says(&mut self, word: &str) -> String {
        let mut lines = self.out.by_ref().map_while(std::result::Result::ok);
        let rest = lines.find_map(|line| Some(line.split_once(word)?.1.to_owned()));
        rest.unwrap_or_else(|| panic!("it ended without saying {word}"))
    }

    fn told(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Two processes, of which the first continually writes into the second and reads back.
struct Couple([Process; 2]);

impl Couple {
    fn start(setup: Setup) -> Self {
        let mut couple = [Process::start(setup), Process::start(setup)];
        let [a, b] = &mut couple;
        a.told(&b.place);
        b.told(&a.place);
        b.says("READY");
        a.told("go");
        a.says("GOES");
        Self(couple)
    }

    fn kill(self) {
        self.0.into_iter().for_each(Process::kill);
    }

    /// Ends the processes, and returns the number of rounds, all of which were good.
    fn stop(mut self) -> u64 {
        let [a, b] = &mut self.0;
        a.told("stop");
        let rounds = a.says("ROUNDS ").parse().unwrap();
        b.told("stop");
        rounds
    }
}

#[test]
#[ignore = "is not a test: others start it"]
fn a_process_of_its_own() {
    let Ok(kind) = std::env::var("RXE_TEST_BACKEND") else { return };
    let options = Device::options("lo").address("127.0.0.1".parse().unwrap());
    let shared_memory = std::env::var("RXE_TEST_SHM").unwrap().parse().unwrap();
    let options = options.backend(kind.parse().unwrap()).shared_memory(shared_memory);
    let side = Side::new(options.open().unwrap());
    let (own, buffer) = (side.region(BYTES), side.region(BYTES));
    println!("PLACE {};{};{}", side.qp.endpoint(), own.addr(), own.rkey().value());
    let line = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let peer = line();
    let [endpoint, addr, rkey] = peer.split(';').collect::<Vec<_>>().try_into().unwrap();
    side.qp.connect(&endpoint.parse().unwrap(), &patient()).unwrap();
    println!("READY");
    let remote = Remote { addr: addr.parse().unwrap(), rkey: Key::new(rkey.parse().unwrap()) };
    if line() != "go" {
        return;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    std::thread::spawn(move || {
        line();
        told.store(true, Ordering::Relaxed);
    });
    let mut rounds = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let bytes = pattern(BYTES, rounds.to_le_bytes()[0]);
        buffer.write_at(0, &bytes).unwrap();
        side.qp.write(1, &[buffer.slice(..)], remote).post().unwrap();
        side.ok();
        buffer.write_at(0, &[0; BYTES]).unwrap();
        side.qp.read(2, &[buffer.slice(..)], remote).post().unwrap();
        side.ok();
        assert_eq!(buffer.to_vec(..).unwrap(), bytes);
        rounds += 1;
        if rounds == 1 {
            println!("GOES");
        }
    }
    println!("ROUNDS {rounds}");
}

fn others_go_on_when_processes_are_killed(setup: Setup) {
    // These start before the couples that stay, and are killed first.
    let mut victims = VecDeque::from([Couple::start(setup), Couple::start(setup)]);
    let stay = [Couple::start(setup), Couple::start(setup)];
    for _ in 0..6 {
        victims.pop_front().unwrap().kill();
        victims.push_back(Couple::start(setup));
    }
    for couple in stay.into_iter().chain(victims) {
        assert!(couple.stop() > 0);
    }
}

#[test]
fn others_go_on_when_processes_are_killed_udp() {
    in_namespace("", || others_go_on_when_processes_are_killed((BackendKind::Udp, false)));
}

#[test]
fn others_go_on_when_processes_are_killed_packet() {
    in_namespace("", || others_go_on_when_processes_are_killed((BackendKind::Packet, false)));
}

#[test]
fn others_go_on_when_processes_are_killed_shared_memory() {
    in_namespace("", || others_go_on_when_processes_are_killed((BackendKind::Udp, true)));
}
