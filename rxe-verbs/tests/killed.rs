//! A peer that is killed or stopped while its connection is idle.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use common::*;
use rustix::process::{Pid, Signal, kill_process};
use rxe_verbs::cm::*;
use rxe_verbs::*;

/// The environment variable that tells a started process what to do. It has the action, the
/// interface, the address, whether to use shared memory, and the server's address.
const PEER: &str = "RXE_TEST_KILLED";

#[derive(Clone, Copy)]
struct On<'a> {
    netdev: &'a str,
    ip: IpAddr,
    shm: bool,
    keepalive: bool,
}

impl On<'_> {
    fn open(self) -> Device {
        let Self { netdev, ip, shm, keepalive } = self;
        let options = Device::options(netdev).address(ip).shared_memory(shm);
        options.keepalive(keepalive).open().unwrap()
    }
}

/// A process that a test starts and kills.
struct Peer(Child);

impl Peer {
    /// Starts a process that does `what`, and returns when the process is ready.
    fn start(what: &str, on: On<'_>, server: SocketAddr) -> Self {
        let On { netdev, ip, shm, .. } = on;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_peer", "--nocapture"])
            .env(PEER, format!("{what} {netdev} {ip} {shm} {server}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("ready")));
        assert!(ready.is_some(), "{what} ended early");
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that tests start. Does nothing as a test of its own.
#[test]
fn the_peer() {
    let Ok(what) = std::env::var(PEER) else { return };
    let [what, netdev, ip, shm, server] = what.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{what}")
    };
    let on = On { netdev, ip: ip.parse().unwrap(), shm: shm == "true", keepalive: true };
    let device = on.open();
    let ready = || {
        println!("ready");
        std::io::stdout().flush().unwrap();
    };
    if what == "device" {
        ready();
        thread::sleep(Duration::from_secs(3600));
    }
    let channel = EventChannel::on(std::slice::from_ref(&device)).unwrap();
    let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(64).unwrap());
    let ids: Vec<_> = (0..3)
        .map(|_| {
            let id = channel.create_id(PortSpace::Tcp).unwrap();
            let event = |kind| assert_eq!(channel.wait_event(TIMEOUT).unwrap().kind, kind);
            let own = SocketAddr::new(on.ip, 0);
            id.resolve_addr(Some(own), server.parse().unwrap()).unwrap();
            event(CmEventKind::AddrResolved);
            id.resolve_route().unwrap();
            event(CmEventKind::RouteResolved);
            id.create_qp(pd.qp(&cq)).unwrap();
            id.connect(&ConnParam::default()).unwrap();
            event(CmEventKind::Established);
            id
        })
        .collect();
    ready();
    // After a stop, the process sends a message on each connection.
    thread::sleep(Duration::from_secs(5));
    for (n, id) in (0..).zip(&ids) {
        id.qp().unwrap().send_bytes(n, b"still there").post().unwrap();
        assert_eq!(cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    }
    thread::sleep(Duration::from_secs(3600));
}

/// A server with three idle connections to one peer.
struct Server {
    channel: EventChannel,
    cq: CompletionQueue,
    ids: Vec<CmId>,
    _inboxes: Vec<MemoryRegion>,
    peer: Peer,
    _listener: CmId,
}

impl Server {
    fn connected(
        own: On<'_>,
        peer: On<'_>,
        start: impl Fn(On<'_>, SocketAddr) -> Peer + Sync,
    ) -> Self {
        let device = own.open();
        let channel = EventChannel::on(std::slice::from_ref(&device)).unwrap();
        let (pd, cq) = (device.create_pd().unwrap(), device.create_cq(64).unwrap());
        let listener = channel.create_id(PortSpace::Tcp).unwrap();
        listener.bind_addr(SocketAddr::new(own.ip, 0)).unwrap();
        listener.listen(8).unwrap();
        let to = listener.local_addr().unwrap();
        let (mut ids, mut inboxes) = (Vec::new(), Vec::new());
        let peer = thread::scope(|scope| {
            let peer = scope.spawn(|| start(peer, to));
            // The next request may overtake the last connection's RTU: both are datagrams to QP1.
            let mut established = 0;
            while established < 3 {
                let event = channel.wait_event(TIMEOUT).unwrap();
                match event.kind {
                    CmEventKind::ConnectRequest => {
                        let qp = event.id.create_qp(pd.qp(&cq)).unwrap();
                        let inbox = pd.register(64, Access::LOCAL_WRITE).unwrap();
                        qp.recv(0, &[inbox.slice(..)]).unwrap();
                        inboxes.push(inbox);
                        event.id.accept(&ConnParam::default()).unwrap();
                        ids.push(event.id);
                    }
                    CmEventKind::Established => established += 1,
                    kind => panic!("{kind:?}"),
                }
            }
            peer.join().unwrap()
        });
        Self { channel, cq, ids, _inboxes: inboxes, peer, _listener: listener }
    }

    /// Kills the peer. Each connection reports this once, and ends as if the peer had disconnected.
    fn hears_of_its_death(&mut self) {
        self.peer.signal(Signal::KILL);
        self.peer.0.wait().unwrap();
        let mut left: Vec<_> = self.ids.iter().map(CmId::key).collect();
        while !left.is_empty() {
            let event = self.channel.wait_event(TIMEOUT).unwrap();
            assert_eq!((event.kind, event.status), (CmEventKind::Disconnected, 0));
            let at = left.iter().position(|key| *key == event.id.key());
            left.remove(at.expect("each connection, once"));
        }
        for id in &self.ids {
            id.disconnect().unwrap();
        }
        for _ in &self.ids {
            let done = self.cq.wait_one(TIMEOUT).unwrap();
            assert_eq!(done.status, Status::WorkRequestFlushed);
        }
    }

    /// Stops the peer for longer than it takes to detect a dead one, and continues it. No
    /// connection ends.
    fn outlasts_a_stop(&mut self) {
        self.peer.signal(Signal::STOP);
        let heard = self.channel.get_event(Some(Duration::from_secs(8))).unwrap();
        assert!(heard.is_none(), "{heard:?}");
        self.peer.signal(Signal::CONT);
        for _ in &self.ids {
            let done = self.cq.wait_one(TIMEOUT).unwrap();
            assert_eq!((done.status, done.byte_len), (Status::Success, 11));
        }
    }
}

/// Returns the settings of a device on loopback.
fn on(ip: IpAddr, shm: bool) -> On<'static> {
    On { netdev: "lo", ip, shm, keepalive: true }
}

fn client(peer: On<'_>, server: SocketAddr) -> Peer {
    Peer::start("client", peer, server)
}

#[test]
fn a_killed_peer_that_had_its_address_alone() {
    for shm in [true, false] {
        Server::connected(on(address(), shm), on(address(), shm), client).hears_of_its_death();
    }
}

#[test]
fn a_killed_peer_on_the_same_address() {
    for shm in [true, false] {
        let ip = address();
        Server::connected(on(ip, shm), on(ip, shm), client).hears_of_its_death();
    }
}

/// The other process uses no connection manager. If its QPN block is later, the dead process's
/// socket remains; if it is earlier, that socket is gone.
#[test]
fn a_killed_peer_whose_address_another_process_has() {
    for first in [false, true] {
        let (own, peer) = (on(address(), false), on(address(), false));
        let nowhere = SocketAddr::new(own.ip, 0);
        let before = first.then(|| Peer::start("device", peer, nowhere));
        let mut server = Server::connected(own, peer, client);
        let after = (!first).then(|| Peer::start("device", peer, nowhere));
        server.hears_of_its_death();
        drop((before, after));
    }
}

#[test]
fn a_peer_that_is_only_stopped() {
    let (alone, shared) = (address(), address());
    thread::scope(|scope| {
        scope.spawn(|| {
            Server::connected(on(address(), true), on(alone, true), client).outlasts_a_stop()
        });
        scope.spawn(|| {
            let (own, peer) = (on(address(), false), on(shared, false));
            let _other = Peer::start("device", peer, SocketAddr::new(own.ip, 0));
            Server::connected(own, peer, client).outlasts_a_stop();
        });
    });
}

#[test]
fn a_server_that_does_not_ask_hears_nothing() {
    let own = On { keepalive: false, ..on(address(), true) };
    let mut server = Server::connected(own, on(address(), true), client);
    server.peer.signal(Signal::KILL);
    server.peer.0.wait().unwrap();
    let heard = server.channel.get_event(Some(Duration::from_secs(8))).unwrap();
    assert!(heard.is_none(), "{heard:?}");
}

#[test]
fn a_killed_peer_on_another_host() {
    let setup = "
        ip link add veth0 type veth peer name peer0
        ip link set veth0 addrgenmode none up
        ip address add 10.9.0.1/24 dev veth0";
    in_namespace(setup, || {
        let far = On { netdev: "peer0", ip: "10.9.0.2".parse().unwrap(), ..on(address(), false) };
        let own = On { netdev: "veth0", ip: "10.9.0.1".parse().unwrap(), ..on(address(), false) };
        // A sleeping process keeps the namespace alive after the peer's death, as a host would.
        let host = Mutex::new(None);
        let start = |peer: On<'_>, server: SocketAddr| {
            at_the_other_end("peer0", || {
                sh("ip address add 10.9.0.2/24 dev peer0; ip link set peer0 up");
                let sleep = Command::new("sleep").arg("3600").spawn().unwrap();
                *host.lock().unwrap() = Some(Peer(sleep));
                client(peer, server)
            })
        };
        Server::connected(own, far, start).hears_of_its_death();
        drop(host);
    });
}
