//! Tests with several backends on one address, in one process and in several.

mod attacks;
mod blocks;
mod crowd;
mod forwarding;

use std::fs::{self, File};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rxe_core::types::Qpn;
use rxe_core::wire::{NetHeader, TxBatch, UDP_PORT};

use super::directory::{Directory, ScopedAddr};
use super::lock::Lock;
use crate::backend::Backend;
use crate::backends::packet::{PacketBackend, PacketConfig};
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::error::NetError;
use crate::host::sharing::Sharing;
use crate::testing::{
    in_namespace, in_namespaces, move_to, receive_packets, send_all, skipped, wait_readable,
};
use rxe_sys::unix::{NamedSocket, Received, Rights, UnixSocket, exists};

const ADDRESS: &str = "127.0.0.1";

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn control(address: &str, block: u8) -> PathBuf {
    Directory::open().control(&ScopedAddr::new(ip(address), 0), block).unwrap()
}

/// Creates the control socket of a leased block, without a thread that answers.
fn impostor(address: &str, block: u8) -> NamedSocket {
    let _lock = lock(address);
    NamedSocket::listen(&control(address, block), Rights::Refused).unwrap()
}

/// Takes the lock of an address, which must be free.
fn lock(address: &str) -> Lock {
    Directory::open().lock(&ScopedAddr::new(ip(address), 0)).unwrap().unwrap()
}

fn open() -> UdpBackend {
    UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).unwrap()
}

fn block(backend: &impl Backend) -> u8 {
    backend.capabilities().qpn_block.unwrap()
}

/// Sends a packet with this number to each of the blocks.
fn send(from: &mut impl Backend, src: &str, number: u32, blocks: &[u8]) {
    let net = NetHeader::outgoing(ip(src), ip(ADDRESS), UDP_PORT);
    let mut batch = TxBatch::new(from.capabilities().tx);
    for &block in blocks {
        let qpn = Qpn::from_wire(u32::from(block) << 16 | 0x1234);
        batch.push_to(net, qpn, 64, |_, buf| {
            buf.extend([0; 4]);
            buf.extend(qpn.value().to_be_bytes());
            buf.extend(number.to_be_bytes());
            buf.resize(buf.len() + 52, 0);
        });
    }
    send_all(from, &mut batch);
}

fn next(backend: &mut impl Backend) -> (u8, u32) {
    let (_, bytes) = receive_packets(backend, 1).remove(0);
    (bytes[5], u32::from_be_bytes(bytes[8..12].try_into().unwrap()))
}

#[test]
fn each_gets_what_is_for_its_queue_pairs() {
    in_namespace("", || {
        let mut all: Vec<_> = (0..5).map(|_| open()).collect();
        let blocks: Vec<_> = all.iter().map(block).collect();
        assert_eq!(blocks, [1, 2, 3, 4, 5]);
        let (first, rest) = all.split_first_mut().unwrap();
        send(first, ADDRESS, 7, &blocks);
        assert_eq!(next(first), (1, 7));
        for backend in rest {
            let own = block(backend);
            assert_eq!(next(backend), (own, 7));
            assert_eq!(backend.receive(1, &mut |_| {}).unwrap(), 0, "and nothing else");
        }
    });
}

#[test]
fn whoever_goes_the_others_go_on_and_the_block_is_free() {
    in_namespace("", || {
        // Each of four processes leaves in turn, including the first, and another one comes.
        for goes in 0..4 {
            let mut all: Vec<_> = (0..4).map(|_| open()).collect();
            let gone = block(&all.remove(goes));
            for number in 0..3 {
                let blocks: Vec<_> = all.iter().map(block).collect();
                let last = all.last_mut().unwrap();
                send(last, ADDRESS, number, &blocks);
                for backend in &mut all {
                    assert_eq!(next(backend), (block(backend), number));
                }
                if number == 1 {
                    let new = open();
                    assert_eq!(block(&new), gone);
                    all.push(new);
                }
            }
        }
    });
}

#[test]
fn what_came_for_the_dead_is_not_for_their_heirs() {
    in_namespace("", || {
        let (first, mut second) = (open(), open());
        send(&mut second, ADDRESS, 1, &[1, 1, 1]);
        drop(first);
        // The second process keeps the first one's socket open, so that its own keeps its place.
        send(&mut second, ADDRESS, 2, &[1]);
        let mut heir = open();
        assert_eq!(block(&heir), 1);
        send(&mut second, ADDRESS, 3, &[1]);
        assert_eq!(next(&mut heir), (1, 3));
    });
}

#[test]
fn devices_that_share_some_addresses_have_blocks_that_are_free_on_all() {
    in_namespace("", || {
        let of = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|a| ip(a)).collect();
            UdpBackend::open(&UdpConfig::new("lo", addresses)).unwrap()
        };
        let (a, mut b) = (of(&[ADDRESS]), of(&["127.0.0.2"]));
        assert_eq!((block(&a), block(&b)), (1, 1));
        let mut wide = of(&["127.0.0.2", ADDRESS, "127.0.0.3"]);
        assert_eq!(block(&wide), 2);
        send(&mut b, "127.0.0.2", 5, &[2]);
        assert_eq!(next(&mut wide), (2, 5));
        // The first of two devices on a new address has its block there too.
        let mut c = of(&["127.0.0.3"]);
        assert_eq!(block(&c), 1);
        let both = [ip("127.0.0.3"), ip(ADDRESS)];
        let error = move_to(&mut c, &both).unwrap_err();
        assert!(matches!(error, NetError::BlockTaken { block: 1, .. }), "{error}");
        drop(a);
        move_to(&mut c, &both).unwrap();
        send(&mut b, "127.0.0.2", 6, &[1]);
        assert_eq!(next(&mut c), (1, 6));
    });
}

#[test]
fn many_can_come_at_once() {
    in_namespace("", || {
        let (count, barrier) = (12, Barrier::new(12));
        let mut all: Vec<UdpBackend> = thread::scope(|scope| {
            let comes = || {
                barrier.wait();
                open()
            };
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(comes)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let mut blocks: Vec<_> = all.iter().map(block).collect();
        send(&mut all[0], ADDRESS, 9, &blocks);
        for backend in &mut all {
            assert_eq!(next(backend), (block(backend), 9));
        }
        blocks.sort_unstable();
        assert_eq!(blocks, (1..=count).collect::<Vec<_>>());
    });
}

#[test]
fn packet_and_udp_backends_share_an_address() {
    in_namespace("", || {
        let config = PacketConfig::new("lo", [ip(ADDRESS)]);
        let mut a = PacketBackend::open(&config).unwrap();
        let mut b = open();
        let mut c = PacketBackend::open(&config).unwrap();
        let mut from = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap();
        for number in 0..3 {
            send(&mut from, "127.0.0.9", number, &[1, 2, 3]);
            assert_eq!(next(&mut a), (1, number));
            assert_eq!(next(&mut b), (2, number));
            assert_eq!(next(&mut c), (3, number));
        }
        // A block that a packet backend had is as good as any other.
        drop(a);
        let mut heir = open();
        assert_eq!(block(&heir), 1);
        send(&mut from, "127.0.0.9", 7, &[1]);
        assert_eq!(next(&mut heir), (1, 7));
    });
}

#[test]
fn packets_that_were_merged_on_the_way_reach_both() {
    in_namespace("", || {
        let (mut a, mut b) = (open(), open());
        let net = NetHeader::outgoing(ip("127.0.0.9"), ip(ADDRESS), UDP_PORT);
        let mut from = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap();
        let mut batch = TxBatch::new(from.capabilities().tx);
        for number in [1, 2, 2, 1, 1, 9, 2u8] {
            batch.push(net, 20, |_, buf| buf.extend([[0; 5].as_slice(), &[number; 15]].concat()));
        }
        assert_eq!(batch.pending().len(), 1, "one buffer, as an interface may make one");
        send_all(&mut from, &mut batch);
        let own = receive_packets(&mut a, 4);
        let own: Vec<_> = own.iter().map(|(_, bytes)| bytes[5]).collect();
        assert_eq!(own, [1, 1, 1, 9], "and what is for nobody");
        let theirs = receive_packets(&mut b, 3);
        assert!(theirs.iter().all(|(got, bytes)| {
            bytes[5..] == [2; 15] && (got.src, got.dst, got.ttl) == (net.src, net.dst, 64)
        }));
    });
}

/// Sends a message of the CM to QP1, from an address that no process has.
fn send_mad(from: &mut impl Backend, attribute: u16, body: [u8; 16]) {
    let net = NetHeader::outgoing(ip("127.0.0.9"), ip(ADDRESS), UDP_PORT);
    let mut batch = TxBatch::new(from.capabilities().tx);
    batch.push_to(net, Qpn::GSI, 280, |_, buf| {
        buf.extend([0x64, 0, 0, 0, 0, 0, 0, 1]);
        buf.resize(20, 0);
        buf.extend([1, 7, 2, 3]);
        buf.resize(36, 0);
        buf.extend(attribute.to_be_bytes());
        buf.resize(44, 0);
        buf.extend(body);
        buf.resize(280, 0);
    });
    send_all(from, &mut batch);
}

#[test]
fn messages_of_the_cm_reach_whom_they_are_for() {
    const REQ: u16 = 0x10;
    const RTU: u16 = 0x14;
    in_namespace("", || {
        let mut all = [open(), open(), open()];
        let mut from = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap();
        let got = |backend: &mut UdpBackend, attribute: u16| {
            let (_, bytes) = receive_packets(backend, 1).remove(0);
            assert_eq!((bytes.len(), &bytes[36..38]), (280, &attribute.to_be_bytes()[..]));
        };
        // The first process that reads gets the packet; only processes that asked for QP1 packets
        // read.
        all[1].set_gsi(true).unwrap();
        let [a, b, c] = &mut all;
        send_mad(&mut from, RTU, [9, 9, 9, 9, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        // The second process forwards it to the third and gets nothing itself.
        wait_readable(b);
        while b.receive(1, &mut |_| panic!("not its own")).unwrap() == 0 {}
        got(c, RTU);
        // A service with a listener, and one without.
        let service = |port: u8| [9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 6, 0, port];
        let groups = |backend: &UdpBackend| backend.port_groups().unwrap();
        groups(a).listen(0x0106_0007, None).unwrap();
        let taken = groups(c).listen(0x0106_0007, Some(ip(ADDRESS))).unwrap_err();
        assert!(matches!(taken, NetError::ServiceTaken { .. }), "{taken}");
        send_mad(&mut from, REQ, service(7));
        send_mad(&mut from, REQ, service(8));
        got(b, REQ);
        got(a, REQ);
        groups(a).unlisten(0x0106_0007, None);
        // Listeners for one family each.
        groups(a).listen(0x0106_0007, Some(ip("0.0.0.0"))).unwrap();
        groups(b).listen(0x0106_0007, Some(ip("::"))).unwrap();
        let taken = groups(c).listen(0x0106_0007, None).unwrap_err();
        assert!(matches!(taken, NetError::ServiceTaken { .. }), "{taken}");
        send_mad(&mut from, REQ, service(7));
        wait_readable(b);
        while b.receive(1, &mut |_| panic!("not its own")).unwrap() == 0 {}
        got(a, REQ);
        groups(a).unlisten(0x0106_0007, Some(ip("0.0.0.0")));
        groups(b).unlisten(0x0106_0007, Some(ip("::")));
        groups(c).listen(0x0106_0007, Some(ip(ADDRESS))).unwrap();
        send_mad(&mut from, REQ, service(7));
        wait_readable(b);
        while b.receive(1, &mut |_| panic!("not its own")).unwrap() == 0 {}
        got(c, REQ);
        groups(c).close_listener(0x0106_0007, Some(ip(ADDRESS)));
        // The process has ended that listener and will create the next one soon, in any port space.
        let of_datagrams = [9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x11, 0, 7];
        for wanted in [service(7), of_datagrams] {
            send_mad(&mut from, REQ, wanted);
            wait_readable(b);
            while b.receive(1, &mut |_| panic!("not its own")).unwrap() == 0 {}
            got(c, REQ);
        }
        // If the owner is gone, the process that reads the packet answers.
        drop(all);
        let mut only = open();
        only.set_gsi(true).unwrap();
        send_mad(&mut from, RTU, [9, 9, 9, 9, 3, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        got(&mut only, RTU);
    });
}

#[test]
fn a_burst_of_messages_of_the_cm_fits_into_the_receive_buffer() {
    const RTU: u16 = 0x14;
    const BURST: usize = 300;
    in_namespace("", || {
        let mut from = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap();
        let config = PacketConfig::new("lo", [ip(ADDRESS)]);
        let open: [&dyn Fn() -> Box<dyn Backend>; 2] =
            [&|| Box::new(open()), &|| Box::new(PacketBackend::open(&config).unwrap())];
        for open in open {
            let mut to = open();
            to.sharing().unwrap().set_gsi(true).unwrap();
            for _ in 0..BURST {
                send_mad(&mut from, RTU, [0; 16]);
            }
            // Over loopback every packet has arrived by now, or was lost.
            let mut got = 0;
            for _ in 0..16 * BURST {
                got += to.receive(BURST, &mut |_| {}).unwrap();
            }
            assert_eq!((got, to.counters().rx_overflow), (BURST, 0), "{}", to.capabilities().name);
        }
    });
}

/// A program that keeps an address open until it is killed.
struct Process(Child);

impl Process {
    /// Starts this test program again, at [`a_process_of_its_own`].
    fn start(wrap: &[&str]) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut command = match wrap {
            [] => Command::new(exe),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(exe);
                command
            }
        };
        let name = "host::tests::a_process_of_its_own";
        let child = command
            .args(["--exact", name, "--nocapture", "--ignored"])
            .env("RXE_TEST_HOLDS", ADDRESS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Returns what the process prints after it has opened.
    fn says(&mut self) -> String {
        self.says_after("OPENED ")
    }

    fn says_after(&mut self, word: &str) -> String {
        use std::io::{BufRead, BufReader};
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        lines.find_map(|line| Some(line.split_once(word)?.1.to_owned())).unwrap_or_default()
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

struct Stopped(Process);

impl Stopped {
    /// Starts a process that leases block 9 on an address.
    fn with_block_9(address: &str) -> Self {
        Self::start(&["env", "RXE_TEST_LISTENS=1", &format!("RXE_TEST_HOLDS={address}")])
    }

    /// Starts a process that locks [`ADDRESS`].
    fn with_lock() -> Self {
        Self::start(&["env", "RXE_TEST_LOCKS=1"])
    }

    fn start(wrap: &[&str]) -> Self {
        let mut process = Process::start(wrap);
        assert_eq!(process.says_after("HOLDS "), "it");
        let pid = Pid::from_child(&process.0);
        kill_process(pid, Signal::STOP).unwrap();
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        Self(process)
    }

    /// Checks that the error names this process.
    fn is_named(&self, error: &NetError) {
        assert!(matches!(error, NetError::NoAnswer { .. }), "{error}");
        let pid = format!("process {} ", self.0.0.id());
        assert!(error.to_string().starts_with(&pid), "{error}");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.0.kill().unwrap();
        self.0.0.wait().unwrap();
    }
}

#[test]
#[ignore = "is not a test: others start it"]
fn a_process_of_its_own() {
    let Ok(address) = std::env::var("RXE_TEST_HOLDS") else { return };
    let has = |what: &str| std::env::var_os(what).is_some();
    let _lock = has("RXE_TEST_LOCKS").then(|| lock(&address));
    let _listener = has("RXE_TEST_LISTENS").then(|| impostor(&address, 9));
    if has("RXE_TEST_LOCKS") || has("RXE_TEST_LISTENS") {
        println!("HOLDS it");
        let _ = rustix::io::read(std::io::stdin(), &mut [0; 1]);
        return;
    }
    if has("RXE_TEST_WAITS") {
        println!("WAITS for it");
        let _ = rustix::io::read(std::io::stdin(), &mut [0; 1]);
    }
    let backend = UdpBackend::open(&UdpConfig::new("lo", [ip(&address)]));
    let more = std::env::var("RXE_TEST_LEASES").map_or(0, |more| more.parse().unwrap());
    match &backend {
        Ok(backend) => {
            for _ in 0..more {
                backend.port_groups().unwrap().lease().unwrap();
            }
            println!("OPENED {}", block(backend));
        }
        Err(e) => println!("OPENED {e}"),
    }
    if std::env::var_os("RXE_TEST_FORKS").is_some() {
        // SAFETY: the child only waits and exits.
        #[expect(unsafe_code, reason = "a child without exec")]
        let child = unsafe { libc::fork() } == 0;
        if !child {
            println!("FORKED");
        }
    }
    let mut all = Vec::new();
    if std::env::var_os("RXE_TEST_FILLS").is_some() {
        all.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        println!("FILLED {}", all.len());
    }
    let _ = rustix::io::read(std::io::stdin(), &mut [0; 1]);
}

#[test]
fn the_forked_child_of_a_dead_process_holds_nothing() {
    in_namespace("", || {
        let mut process = Process::start(&["env", "RXE_TEST_FORKS=1"]);
        let held = process.0.stdin.take();
        assert_eq!(process.says_after("FORKED"), "");
        process.kill();
        // The child of the process still lives, but the block and its sockets are free.
        assert_eq!(block(&open()), 1);
        drop(held);
    });
}

#[test]
fn killing_processes_moves_nobody_s_packets() {
    in_namespace("", || {
        let mut processes: Vec<_> = (0..4).map(|_| Process::start(&[])).collect();
        let mut blocks: Vec<_> = processes.iter_mut().map(Process::says).collect();
        blocks.sort();
        assert_eq!(blocks, ["1", "2", "3", "4"]);
        let mut own = open();
        assert_eq!(block(&own), 5);
        let mut from = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap();
        for (number, process) in (0..).zip(processes) {
            process.kill();
            send(&mut from, "127.0.0.9", number, &[5]);
            assert_eq!(next(&mut own), (5, number));
            let mut other = open();
            assert!(block(&other) < 5);
            send(&mut from, "127.0.0.9", number, &[5, block(&other)]);
            assert_eq!(next(&mut other), (block(&other), number));
            assert_eq!(next(&mut own), (5, number));
        }
        // The process with the highest block ends and starts again immediately, while its sockets
        // may still be closing.
        drop(own);
        for _ in 0..20 {
            let mut process = Process::start(&[]);
            assert_eq!(process.says(), "1");
            let mut own = open();
            process.kill();
            let mut again = open();
            send(&mut from, "127.0.0.9", 1, &[1, 2]);
            assert_eq!((next(&mut again), next(&mut own)), ((1, 1), (2, 1)));
        }
    });
}

#[test]
fn processes_killed_while_they_open_leave_nothing() {
    in_namespace("", || {
        let mut own = open();
        let mut from = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap();
        for number in 0..60 {
            let mut processes = [Process::start(&[]), Process::start(&[])];
            // One process has begun to open the address; the other opens it at varying moments
            // after this.
            while !exists(&control(ADDRESS, 2)).unwrap() {
                thread::yield_now();
            }
            thread::sleep(std::time::Duration::from_micros(u64::from(number) * 20));
            for process in &mut processes {
                process.0.kill().unwrap();
            }
            // The sockets of the processes may still be closing.
            let mut other = open();
            processes.into_iter().for_each(Process::kill);
            send(&mut from, "127.0.0.9", number, &[1, block(&other)]);
            assert_eq!(next(&mut own), (1, number));
            assert_eq!(next(&mut other), (block(&other), number));
        }
        let mut others = [open(), open()];
        assert_eq!(others.each_ref().map(block), [2, 3]);
        send(&mut from, "127.0.0.9", 99, &[1, 2, 3]);
        let [a, b] = &mut others;
        assert_eq!([next(&mut own), next(a), next(b)], [(1, 99), (2, 99), (3, 99)]);
    });
}

#[test]
fn what_a_killed_process_has_left_is_removed_by_the_next_on_any_address() {
    let setup = "ip link set lo up && mount -t tmpfs -o mode=1777 none /dev/shm";
    in_namespaces("-Urnm", setup, || {
        let elsewhere = ["unshare", "-n", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];
        let mut killed = [Process::start(&[]), Process::start(&elsewhere)];
        assert!(killed.iter_mut().all(|process| process.says().starts_with('1')));
        killed.into_iter().for_each(Process::kill);
        let root = control(ADDRESS, 1).ancestors().nth(3).unwrap().to_owned();
        let networks = || fs::read_dir(&root).unwrap().count();
        assert_eq!(networks(), 2);
        assert!(control(ADDRESS, 1).exists(), "it was killed");
        let other = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap();
        assert!(!control(ADDRESS, 1).parent().unwrap().exists());
        assert!(control("127.0.0.9", 1).exists());
        assert_eq!(networks(), 1);
        drop(other);
        assert_eq!(networks(), 0);
    });
}

#[test]
fn who_does_not_answer_is_named() {
    in_namespace("", || {
        let holder = Stopped::with_block_9(ADDRESS);
        let error = UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).err().unwrap();
        holder.is_named(&error);
    });
}

#[test]
fn another_answers_for_one_who_is_stopped() {
    in_namespace("", || {
        let (first, _second) = (open(), open());
        drop(first);
        let _holder = Stopped::with_block_9(ADDRESS);
        assert_eq!(block(&open()), 1);
    });
}

#[test]
fn who_has_no_descriptors_left_lets_newcomers_in() {
    in_namespace("", || {
        let fill = "ulimit -n 64; RXE_TEST_FILLS=1 exec \"$0\" \"$@\"";
        let mut holder = Process::start(&["sh", "-c", fill]);
        assert!(!holder.says_after("FILLED ").is_empty());
        let [first, second] = [open(), open()];
        assert_eq!([block(&first), block(&second)], [2, 3]);
        drop((first, second));
        assert_eq!(block(&open()), 2);
        holder.kill();
    });
}

#[test]
fn other_versions_refuse_each_other() {
    in_namespace("", || {
        let holder = impostor(ADDRESS, 9);
        thread::scope(|scope| {
            scope.spawn(|| {
                let caller = loop {
                    match holder.accept() {
                        Ok(caller) => break caller,
                        Err(_) => thread::yield_now(),
                    }
                };
                let mut buf = [0; 64];
                while caller.receive(&mut buf).unwrap().is_none() {
                    thread::yield_now();
                }
                assert_eq!(&buf[..3], b"rxe");
                caller.send(b"rxe\x04\x04\0\0\0", &[]).unwrap();
            });
            let error = UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).err().unwrap();
            assert!(matches!(error, NetError::OtherVersion { newer: true, .. }), "{error}");
            let text = error.to_string();
            let who = format!("{ADDRESS} is in use by process {} (", std::process::id());
            assert!(text.starts_with(&who), "{text}");
            assert!(text.contains("a newer version of rxe") && text.contains("stop it"), "{text}");
        });
    });
}

#[test]
fn a_newcomer_of_another_version_is_told_so() {
    in_namespace("", || {
        let _first = open();
        // A process of another version may ask anything, in any form.
        for question in [&b"rxe\x02\x01\0\x09\0"[..], b"rxe\x07something else", b"rxe\0"] {
            let newcomer = UnixSocket::connect(&control(ADDRESS, 1)).unwrap();
            newcomer.send(question, &[]).unwrap();
            let mut buf = [0; 64];
            let received = wait_for_answer(&newcomer, &mut buf);
            // The part that all versions understand.
            assert_eq!(buf[..5], *b"rxe\x03\x04");
            assert!(received.len >= 8 && received.fds.is_empty());
        }
    });
}

fn wait_for_answer(line: &UnixSocket, buf: &mut [u8]) -> Received {
    let mut fds = [PollFd::new(line, PollFlags::IN)];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert!(poll(&mut fds, Some(&limit)).unwrap() > 0, "no answer");
    line.receive(buf).unwrap().unwrap()
}

#[test]
fn another_user_is_told_so() {
    // Only root can act as several users without further setup.
    in_namespaces("-n", "ip link set lo up", || {
        let _first = open();
        let mut other = Process::start(&["setpriv", "--reuid=1", "--clear-groups"]);
        let said = other.says();
        if said.is_empty() {
            skipped("another_user_is_told_so", "no other user can be had here");
            return;
        }
        assert!(said.contains("of another user (uid 0)"), "{said}");
        other.kill();
    });
}
