//! Two hosts joined by a pair of interfaces, for tests. They test backends that see the frames of
//! an interface.

use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rxe_core::wire::{IpId, NetHeader, TxBatch, UDP_PORT};

use super::{receive_packets, send_all};
use crate::backend::Backend;

pub(crate) fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

pub(crate) fn ips(addresses: &[&str]) -> Vec<IpAddr> {
    addresses.iter().map(|a| ip(a)).collect()
}

pub(crate) fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

/// The block of QPNs that the first process on an address leases.
pub(crate) const FIRST: u8 = 1;

/// Returns packets for every kind of burst. Each holds its number and the IP ID that it was made
/// for.
pub(crate) fn batch(backend: &impl Backend, src: &str, dst: &str) -> TxBatch {
    batch_to(FIRST, backend, src, dst)
}

/// Like [`batch`], to QPNs of this block.
pub(crate) fn batch_to(block: u8, backend: &impl Backend, src: &str, dst: &str) -> TxBatch {
    let net = NetHeader { tos: 0x68, ..NetHeader::outgoing(ip(src), ip(dst), UDP_PORT) };
    let mut batch = TxBatch::new(backend.capabilities().tx);
    let lens = [[1040; 70].as_slice(), &[20], &[6 + 4 + 2], &[1044, 1040, 1040, 500], &[64; 40]];
    for (number, len) in lens.concat().into_iter().enumerate() {
        batch.push(net, len, |net, buf| {
            let id = net.id().unwrap_or(0);
            buf.extend([0, 0, 0, 0, 0, block]);
            buf.extend(u32::try_from(number).unwrap().to_be_bytes());
            buf.extend(id.to_be_bytes());
            buf.resize(buf.len() + len - 12, 0x5a);
        });
    }
    batch
}

pub(crate) const COUNT: usize = 70 + 1 + 1 + 4 + 40;

/// Sends a batch and checks that every packet arrives once and unchanged.
pub(crate) fn exchange(from: &mut impl Backend, src: &str, to: &mut impl Backend, dst: &str) {
    let mut batch = batch(from, src, dst);
    send_all(from, &mut batch);
    check(&receive_packets(to, COUNT), src, dst);
}

pub(crate) fn check(got: &[(NetHeader, Vec<u8>)], src: &str, dst: &str) {
    let mut numbers: Vec<_> = Vec::new();
    for (net, bytes) in got {
        assert_eq!((net.src, net.dst, net.tos, net.ttl), (ip(src), ip(dst), 0x68, 64));
        assert_eq!(net.src_port, UDP_PORT);
        numbers.push(u32::from_be_bytes(bytes[6..10].try_into().unwrap()));
        let made_for = u16::from_be_bytes(bytes[10..12].try_into().unwrap());
        if let IpId::Known { id, flags } = net.id {
            assert_eq!((id, flags), (made_for, 0x4000));
        }
        assert!(bytes[12..].iter().all(|b| *b == 0x5a));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..u32::try_from(COUNT).unwrap()).collect::<Vec<_>>());
}

/// Two ends of a test, one sending and one receiving, with at most one batch on the way. Without
/// that limit, a receiver could take packets of the next batch together with the last one, and the
/// queue of a virtual interface (256 packets) could overflow while no CPU is free to drain it.
pub(crate) fn in_step() -> (StepSender, StepReceiver) {
    let (announce, announced) = mpsc::channel();
    let (confirm, confirmed) = mpsc::channel();
    (StepSender { announce, confirmed }, StepReceiver { announced, confirm })
}

/// The sending end of [`in_step`].
pub(crate) struct StepSender {
    announce: Sender<()>,
    confirmed: Receiver<()>,
}

/// The receiving end of [`in_step`].
pub(crate) struct StepReceiver {
    announced: Receiver<()>,
    confirm: Sender<()>,
}

impl StepSender {
    /// Waits until the receiver is ready.
    pub(crate) fn wait(&self) {
        self.confirmed.recv().unwrap();
    }

    /// Calls `send` and waits until the receiver has received.
    pub(crate) fn step(&self, send: impl FnOnce()) {
        self.announce.send(()).unwrap();
        send();
        self.wait();
    }

    /// Sends a batch and waits until the receiver has it.
    pub(crate) fn batch(&self, backend: &mut impl Backend, src: &str, dst: &str) {
        self.step(|| send_all(backend, &mut batch(backend, src, dst)));
    }
}

impl StepReceiver {
    /// Tells the sender that the receiver is ready.
    pub(crate) fn ready(&self) {
        self.confirm.send(()).unwrap();
    }

    /// Receives one step.
    pub(crate) fn step(&self, receive: impl FnOnce()) {
        self.announced.recv().unwrap();
        receive();
        self.ready();
    }

    /// Receives steps until the sender has ended.
    pub(crate) fn steps(&self, mut receive: impl FnMut()) {
        for () in &self.announced {
            receive();
            // The sender may have ended after its last step.
            let _ = self.confirm.send(());
        }
    }
}

/// Returns the ICMP "destination unreachable" messages that this thread's namespace has sent.
pub(crate) fn unreachables_sent() -> u64 {
    snmp("Icmp:", "OutDestUnreachs")
}

/// Returns an IPv4 counter of this thread's network namespace.
pub(crate) fn snmp(protocol: &str, counter: &str) -> u64 {
    let snmp = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = snmp.lines().filter(|l| l.starts_with(protocol));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let (_, value) = names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(name, _)| *name == counter)
        .unwrap();
    value.parse().unwrap()
}

pub(crate) const NEAR: [&str; 3] = ["10.9.0.1", "2001:db8::1", "fe80::a1"];
pub(crate) const FAR: [&str; 3] = ["10.9.0.2", "2001:db8::2", "fe80::b1"];

pub(crate) fn add_addresses(netdev: &str, addresses: &[&str]) {
    shell(&format!("ip link set lo up; ip link set {netdev} up"));
    for address in addresses {
        let six = address.contains(':');
        let (family, len, nodad) = if six { ("-6", 64, "nodad") } else { ("-4", 24, "") };
        shell(&format!("ip addr add {address}/{len} dev {netdev} {nodad}"));
        // The kernel adds the local route of a new IPv6 address only a moment later.
        let route = format!("ip {family} route show table local {address} dev {netdev}");
        shell(&format!("until {route} | grep -q .; do sleep 0.01; done"));
    }
}

/// Runs `far` in a second namespace while `near` runs in this one. A pair of interfaces, `near0`
/// and `far0`, joins the two, with the addresses [`NEAR`] and [`FAR`].
pub(crate) fn with_peer<R: Send>(far: impl FnOnce() -> R + Send, near: impl FnOnce()) -> R {
    with_peer_over("", far, near)
}

/// Like [`with_peer`], with further options of ip-link(8) for each of the two interfaces.
pub(crate) fn with_peer_over<R: Send>(
    options: &str,
    far: impl FnOnce() -> R + Send,
    near: impl FnOnce(),
) -> R {
    let (tid_tx, tid_rx) = mpsc::channel();
    let (ready_tx, ready_rx) = mpsc::channel();
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            enter_new_namespace();
            tid_tx.send(rustix::thread::gettid()).unwrap();
            ready_rx.recv().unwrap();
            add_addresses("far0", &FAR);
            ready_rx.recv().unwrap();
            far()
        });
        let tid = tid_rx.recv().unwrap().as_raw_nonzero();
        shell(&format!("ip link add near0 {options} type veth peer name far0 {options}"));
        shell(&format!("ip link set far0 netns {tid}"));
        ready_tx.send(()).unwrap();
        add_addresses("near0", &NEAR);
        ready_tx.send(()).unwrap();
        near();
        peer.join().unwrap()
    })
}

/// Moves this thread into a new network namespace.
pub(crate) fn enter_new_namespace() {
    // SAFETY: this thread has no state that depends on its network namespace.
    let rc = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Sends in both directions, three rounds over each address. `near` and `far` open the ends.
pub(crate) fn exchange_over_a_link<N: Backend, F: Backend>(
    near: impl FnOnce() -> N,
    far: impl FnOnce() -> F + Send,
) {
    let (opened, peer_open) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    with_peer(
        move || {
            let mut backend = far();
            opened.send(()).unwrap();
            for (near, far) in NEAR.iter().zip(&FAR) {
                for _ in 0..3 {
                    check(&receive_packets(&mut backend, COUNT), near, far);
                    let mut batch = batch(&backend, far, near);
                    send_all(&mut backend, &mut batch);
                }
            }
            wait.recv().unwrap();
            assert_eq!(unreachables_sent(), 0);
        },
        move || {
            let mut backend = near();
            peer_open.recv().unwrap();
            for (near, far) in NEAR.iter().zip(&FAR) {
                // The first round resolves the neighbour; the others find it in the cache.
                for _ in 0..3 {
                    let mut batch = batch(&backend, near, far);
                    send_all(&mut backend, &mut batch);
                    check(&receive_packets(&mut backend, COUNT), far, near);
                }
            }
            assert_eq!(unreachables_sent(), 0);
            assert_eq!(backend.counters().tx_packets, 9 * COUNT as u64);
            go.send(()).unwrap();
        },
    );
}

/// Sends in both directions, where one end has an address behind a gateway. `open` opens an end
/// with these addresses on an interface.
pub(crate) fn exchange_beyond_a_gateway<B: Backend>(open: fn(&str, &[&str]) -> B) {
    exchange_beyond_the_link("ip route add 10.8.0.0/24 via 10.9.0.2", &BEYOND[..1], open);
}

/// Like [`exchange_beyond_a_gateway`], where only a rule for the source address leads over the
/// link; the route of the main table leads over another interface.
pub(crate) fn exchange_by_a_rule<B: Backend>(open: fn(&str, &[&str]) -> B) {
    let setup = "
        ip link add other0 type veth peer name other1
        ip link set other0 up
        ip link set other1 up
        ip addr add 10.7.0.1/24 dev other0
        ip addr add 2001:db8:7::1/64 dev other0 nodad
        ip route add default via 10.7.0.2 dev other0
        ip -6 route add default via 2001:db8:7::2 dev other0
        ip route add default via 10.9.0.2 dev near0 table 100
        ip -6 route add default via 2001:db8::2 dev near0 table 100
        ip rule add from 10.9.0.1 lookup 100
        ip -6 rule add from 2001:db8::1 lookup 100";
    exchange_beyond_the_link(setup, &BEYOND, open);
}

/// Addresses of the far end that are not on the link, with the families of the first two of
/// [`NEAR`].
const BEYOND: [&str; 2] = ["10.8.0.1", "2001:db8:8::1"];

/// Sends in both directions, where the far end has the addresses `beyond`. `setup` adds the routes.
fn exchange_beyond_the_link<B: Backend>(
    setup: &str,
    beyond: &[&str],
    open: fn(&str, &[&str]) -> B,
) {
    let (opened, peer_open) = mpsc::channel();
    with_peer(
        move || {
            add_addresses("lo", beyond);
            let mut backend = open("far0", beyond);
            opened.send(()).unwrap();
            for (near, far) in NEAR.iter().zip(beyond) {
                for _ in 0..3 {
                    check(&receive_packets(&mut backend, COUNT), near, far);
                    let mut batch = batch(&backend, far, near);
                    send_all(&mut backend, &mut batch);
                }
            }
        },
        move || {
            shell(setup);
            let mut backend = open("near0", &NEAR);
            peer_open.recv().unwrap();
            for (near, far) in NEAR.iter().zip(beyond) {
                for _ in 0..3 {
                    let mut batch = batch(&backend, near, far);
                    send_all(&mut backend, &mut batch);
                    check(&receive_packets(&mut backend, COUNT), far, near);
                }
            }
        },
    );
}
