//! `rxe stat` and `rxe resource`: their output about a running program equals what the program did.
//! Programs that are stopped or send wrong answers do no harm.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio, id};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rxe_verbs::{Access, CompletionQueue, ConnectOptions, Device, MemoryRegion, QueuePair};
use serde_json::Value;

mod util;
use util::{Dir, LOOPBACK, RXE, VETH, in_namespace};

/// Runs `rxe` with these words, restricted to this process.
fn rxe(words: &str) -> Output {
    let of = id().to_string();
    Command::new(RXE).args(words.split(' ')).args(["--of", &of]).output().unwrap()
}

fn text(words: &str) -> String {
    let out = rxe(words);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

/// Returns the JSON output about this process.
fn json(words: &str) -> Vec<Value> {
    serde_json::from_str(&text(words)).unwrap()
}

/// Two queue pairs of one device, connected with each other.
struct Program {
    device: Device,
    cq: CompletionQueue,
    memory: MemoryRegion,
    qps: [QueuePair; 2],
}

impl Program {
    fn start() -> Self {
        // A fixed address suffices, because tests find the device by its queue pairs.
        let device = Device::options("lo").address([127, 6, 6, 6].into()).open().unwrap();
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(64).unwrap();
        let qps = [(); 2].map(|()| pd.qp(&cq).build().unwrap());
        let [a, b] = &qps;
        a.connect(&b.endpoint(), &ConnectOptions::default()).unwrap();
        b.connect(&a.endpoint(), &ConnectOptions::default()).unwrap();
        let memory = pd.register(12_345, Access::LOCAL_WRITE).unwrap();
        Self { device, cq, memory, qps }
    }

    fn exchange(&self, messages: u64) {
        for n in 0..messages {
            self.qps[1].recv(n, &[self.memory.slice(..)]).unwrap();
            self.qps[0].send_bytes(n, b"hello").post().unwrap();
            for _ in 0..2 {
                self.cq.wait_one(Duration::from_secs(10)).unwrap();
            }
        }
    }
}

/// Serializes the tests: `rxe stat` asks every process of this user, including those that a test
/// has stopped or faked.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn what_is_said_of_a_program_is_what_it_did() {
    let _alone = ONE.lock();
    let program = Program::start();
    program.exchange(10);
    // The last acknowledgement may still be in flight when the completions are polled.
    let said = json("stat --json");
    let [said] = said.as_slice() else { panic!("{said:?}") };
    let counted = program.device.counters();
    let names = ["device", "netdev", "backend", "comm"].map(|name| said[name].as_str().unwrap());
    assert_eq!(names[..3], ["rxe_lo", "lo", "udp"]);
    assert_eq!(said["pid"], id());
    assert_eq!(said["hw_counters"]["rdma_sends"], 10);
    assert_eq!(said["hw_counters"]["rdma_recvs"], 10);
    assert_eq!(said["hw_counters"]["sent_pkts"], counted.sent_pkts);
    assert_eq!(said["hw_counters"]["rcvd_pkts"], counted.rcvd_pkts);
    assert_eq!(said["counters"]["sent_bytes"], counted.sent_bytes);
    assert_eq!(said["dropped"], serde_json::json!({}));
    for (name, value) in counted.hw_counters() {
        assert_eq!(said["hw_counters"][name], value, "{name}");
    }

    let shown = text("stat");
    assert!(shown.contains("rdma_sends") && shown.contains(&format!("pid {}", id())), "{shown}");
    assert!(text("stat --prometheus").contains(&format!(
        "rxe_rdma_sends_total{{device=\"rxe_lo\",netdev=\"lo\",pid=\"{}\",comm=\"{}\"}} 10\n",
        id(),
        names[3]
    )));

    let [all] = &json("resource show --json")[..] else { panic!() };
    for (kind, count) in [("pd", 1), ("cq", 1), ("qp", 2), ("mr", 1), ("srq", 0), ("ctx", 1)] {
        assert_eq!(all[kind], count, "{kind} {all}");
    }
    let [a, b] = &program.qps;
    let qps = json("resource show qp --json");
    assert_eq!(qps.len(), 2);
    let of = |qp: &QueuePair| qps.iter().find(|said| said["lqpn"] == qp.qpn().to_string()).unwrap();
    assert_eq!(of(a)["rqpn"], b.qpn().to_string());
    assert_eq!(of(a)["sq-psn"], of(b)["rq-psn"], "nothing is on its way");
    assert_eq!((&of(a)["type"], &of(a)["state"]), (&"RC".into(), &"RTS".into()));
    assert_eq!(of(a)["peer"], "127.6.6.6");
    let [cq] = &json("resource show cq --json")[..] else { panic!() };
    assert_eq!((&cq["cqn"], &cq["cqe"]), (&program.cq.id().into(), &64.into()));

    // A process that may ask for reports must not learn the keys of the memory.
    let [mr] = &json("resource show mr --json")[..] else { panic!() };
    assert_eq!(mr["mrlen"], 12_345);
    let key = format!("{:x}", program.memory.rkey().value());
    assert!(!mr.to_string().contains(&key) && !text("resource show mr --details").contains(&key));

    for kind in ["", " qp", " cq", " mr", " srq", " cm_id", " ctx", " pd", " qp --details"] {
        let table = text(&format!("resource show{kind}"));
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{kind}: {table}");
    }
    for words in ["stat", "stat --qp"] {
        let table = text(words);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    // The interface's name selects the device as well.
    assert_eq!(json("stat --json --device lo"), json("stat --json --device rxe_lo"));

    http();
    nonsense();
    drop(program);
    let gone = rxe("stat");
    assert_eq!(gone.status.code(), Some(1));
    let said = String::from_utf8_lossy(&gone.stderr);
    assert!(said.contains("does not have a device open: `rxe stat` without"), "{said}");
}

#[test]
fn a_device_that_does_not_exist_is_an_error_that_names_those_that_do() {
    let _alone = ONE.lock();
    // Only this process is asked: a process that another test has stopped may have any device.
    let _program = Program::start();
    for words in ["stat", "stat --json", "stat --qp", "stat --watch", "resource show qp"] {
        let out = rxe(&format!("{words} --device rxe_lo,nosuch"));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), &out.stdout[..]), (Some(1), &b""[..]), "{words}: {said}");
        assert!(said.starts_with("rxe: no device \"nosuch\": use "), "{words}: {said}");
        assert!(said.contains("rxe_lo"), "{words}: {said}");
    }
}

/// Without a process, the notice follows the sequence that clears the screen. Without a screen, it
/// is printed once.
#[test]
fn a_watcher_of_nothing_is_told_so() {
    // Other programs of this user are not visible.
    let setup = "
        mount -t tmpfs tmpfs /dev/shm
        ip link set lo up
        ip link add none0 type veth peer name none1
        ip address add 10.0.0.1/24 dev none0
    ";
    let script = r#"
        watch() {
            eval "exec $1" & watcher=$!
            until grep -qs open "$2"; do sleep 0.1; done
            sleep 2
            kill $watcher
        }
        watch '"$RXE" stat --watch --device none0 2> piped' piped
        watch 'script -qefc "\"$RXE\" --color never stat --watch --device none0" terminal > shown' terminal
    "#;
    let dir = Dir::new();
    let test = "a_watcher_of_nothing_is_told_so";
    let Some(out) = in_namespace(test, setup, script, &dir.file("")) else { return };
    assert!(out.status.success(), "{out:?}");
    let says = "rxe: no running process has none0 open";
    assert_eq!(fs::read_to_string(dir.file("piped")).unwrap().trim_end(), says);
    let terminal = fs::read_to_string(dir.file("terminal")).unwrap();
    assert!(terminal.contains(&format!("\x1b[H\x1b[J{says}\r\n")), "{terminal:?}");
}

/// Two network namespaces may have devices of one name.
#[test]
fn devices_of_other_networks_come_with_the_number_of_theirs() {
    let script = r#"
        far=$(ip netns exec far stat -Lc %i /proc/self/ns/net)
        "$RXE" pingpong -d rxe_lo -g 0 -p 18701 > near.log 2>&1 & near=$!
        ip netns exec far "$RXE" pingpong -d rxe_lo -g 0 -p 18702 > far.log 2>&1 & other=$!
        tries=0
        until [ "$("$RXE" resource show ctx 2> /dev/null | grep -c rxe_lo)" = 2 ]; do
            tries=$((tries + 1))
            [ $tries -lt 600 ]
            sleep 0.1
        done
        "$RXE" resource show ctx | awk '{ print $1, $2 }' | sort
        "$RXE" resource show ctx --of $near | head -n 1 | tr -s " "
        "$RXE" stat | grep namespace
        "$RXE" stat --json | grep -o '"netns"' | wc -l
        kill $near $other
        echo "rxe_lo $(stat -Lc %i /proc/self/ns/net)"
        echo "rxe_lo $far"
        echo "  network namespace $far"
    "#;
    let dir = Dir::new();
    let test = "devices_of_other_networks_come_with_the_number_of_theirs";
    let setup = format!("mount -t tmpfs none /dev/shm\n{VETH}");
    let Some(out) = in_namespace(test, &setup, script, &dir.file("")) else { return };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{out:?}");
    let [head, a, b, alone, namespace, count, near, far, other] =
        text.lines().collect::<Vec<_>>()[..]
    else {
        panic!("{text}")
    };
    assert_eq!((head, alone, count), ("dev netns", "dev pid comm", "2"), "{text}");
    let mut networks = [near, far];
    networks.sort_unstable();
    assert_eq!(([a, b], namespace), (networks, other), "{text}");
}

/// `rxe stat --watch | head -1` ends even if there is nothing to show.
#[test]
fn a_watcher_whose_output_nobody_reads_ends() {
    let mut watcher = Command::new(RXE)
        .args(["stat", "--watch"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(watcher.stdout.take());
    // The watcher first asks all processes of this user, some of which a test may have stopped.
    let ended = (0..600).find_map(|_| {
        thread::sleep(Duration::from_millis(50));
        watcher.try_wait().unwrap()
    });
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// Scrapes the server, after clients that send nothing useful.
fn http() {
    let of = id().to_string();
    let mut server = Command::new(RXE)
        .args(["stat", "--prometheus", "127.0.0.1:0", "--of", &of])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    drop(TcpStream::connect(address).unwrap());
    let get = |request: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("\u{0}\u{1}\r\n\r\n").starts_with("HTTP/1.0 405"));
    assert!(get("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 405"));
    let head = get("HEAD /metrics?x=y HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(get("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404"));
    let answer = get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.0 200 OK") && body.contains("rxe_rdma_recvs_total{"),
        "{answer}"
    );
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Asks sockets of this user that belong to no device or give wrong answers.
fn nonsense() {
    let good = b"rxe\x03\x06\0\0\0";
    let cases: [(Vec<u8>, &str); 5] = [
        ([&good[..], b"device name=\x1b[2Jx\n"].concat(), "gives an answer that is none"),
        ([&good[..], b"qp lqpn=1\n"].concat(), "gives an answer that is none"),
        ([&good[..], &[b'x'; 70_000]].concat(), "does not tell"),
        (b"something else".to_vec(), "gives an answer that is none"),
        (Vec::new(), "does not tell"),
    ];
    for (answer, what) in cases {
        let directory = user_directory().join("stat-test").join("192.0.2.1");
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("7");
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket(family, kind, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        // Other processes on this host may ask as well, and close before they read the answer.
        let ended = AtomicBool::new(false);
        let out = thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok(caller) = rustix::net::accept(&listener) {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let heard = rustix::net::recv(&caller, &mut [0; 64], RecvFlags::empty());
                    if heard.is_ok() && !answer.is_empty() {
                        let _ = rustix::net::send(&caller, &answer, SendFlags::NOSIGNAL);
                    }
                }
            });
            let out = rxe("stat");
            ended.store(true, Ordering::Relaxed);
            // The connection wakes the thread, unless the backlog is full of other callers.
            let last = rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None).unwrap();
            let _ = rustix::net::connect(&last, &SocketAddrUnix::new(&path).unwrap());
            out
        });
        fs::remove_dir_all(directory.parent().unwrap()).unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(said.contains(what) && !said.contains('\u{1b}'), "{said:?}");
        // Devices that answer correctly are shown nevertheless.
        assert!(String::from_utf8(out.stdout).unwrap().starts_with("rxe_lo  pid"));
    }
}

/// Returns the directory through which processes of this user find each other. It exists while a
/// device is open.
fn user_directory() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let found = ["/dev/shm", "/tmp"].map(|parent| PathBuf::from(parent).join(format!("rxe-{uid}")));
    found.into_iter().find(|path| path.is_dir()).expect("a device is open")
}

#[test]
fn a_stopped_program_is_named_and_not_waited_for() {
    let _alone = ONE.lock();
    let script = r#"
        "$RXE" pingpong -d lo > server.out 2>&1 & server=$!
        until "$RXE" stat --of $server > running 2> errors; do sleep 0.05; done
        timeout 60 "$RXE" stat --watch --of $server > watched & watch=$!
        until grep -q '/s$' watched; do sleep 0.05; done
        kill $watch
        kill -STOP $server
        timeout 20 "$RXE" stat --of $server > stopped.out 2> stopped.err
        sed "s/$server/PID/" stopped.err
        kill -CONT $server
        "$RXE" resource show --of $server
        grep '/s$' watched
        kill $server
    "#;
    let dir = Dir::new();
    let test = "a_stopped_program_is_named_and_not_waited_for";
    let Some(out) = in_namespace(test, LOOPBACK, script, &dir.file("")) else { return };
    let said = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert!(
        lines[0].starts_with("rxe: process PID (rxe) does not answer, because it is stopped"),
        "{out:?}"
    );
    assert!(lines[1].starts_with("dev") && lines[2].starts_with("rxe_lo"), "{said}");
    assert!(lines[3].contains("sent_pkts") && lines[3].ends_with(" 0/s"), "{said}");
    assert_eq!(fs::read(dir.file("stopped.out")).unwrap(), b"");
}
