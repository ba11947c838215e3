//! Tests of shared memory in front of UDP sockets.

mod delivery;
mod direct;
mod full;
mod offers;
mod records;
mod wake_ups;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::types::Qpn;
use rxe_core::wire::{NetHeader, TxBatch, UDP_PORT};

use super::Shm;
use super::link::OFFER;
use super::ring::Producer;
use super::wake::WakeUp;
use crate::backend::Backend;
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::host::directory::{Directory, ScopedAddr};
use crate::testing::send_all;
use rxe_sys::unix::UnixSocket;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn open(address: &str) -> Shm<UdpBackend> {
    let udp = UdpBackend::open(&UdpConfig::new("lo", [ip(address)])).unwrap();
    Shm::new(udp, &[ip(address)]).unwrap()
}

fn block(backend: &impl Backend) -> u8 {
    backend.capabilities().qpn_block.unwrap()
}

/// Sends `count` packets with numbers from 0 on to a QP of this block.
fn send(from: &mut impl Backend, src: &str, dst: &str, block: u8, count: u32) {
    send_all(from, &mut packets(from, src, dst, block, count));
}

fn packets(from: &impl Backend, src: &str, dst: &str, block: u8, count: u32) -> TxBatch {
    let net = NetHeader { tos: 0x68, ..NetHeader::outgoing(ip(src), ip(dst), UDP_PORT) };
    let mut batch = TxBatch::new(from.capabilities().tx);
    let qpn = Qpn::from_wire(u32::from(block) << 16 | 0x1234);
    for number in 0..count {
        batch.push_to(net, qpn, 1040, |_, buf| {
            buf.extend([0; 4]);
            buf.extend(qpn.value().to_be_bytes());
            buf.extend(number.to_be_bytes());
            buf.resize(buf.len() + 1028, 7);
        });
    }
    batch
}

fn readable(backend: &impl Backend, seconds: i64) -> bool {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.clone()));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut polls, Some(&limit)).unwrap() > 0
}

/// Receives `count` packets and checks their headers and order, from number 0 on.
fn receive(backend: &mut impl Backend, count: u32) -> Vec<NetHeader> {
    backend.watch(true);
    let mut got = Vec::new();
    while got.len() < count as usize {
        assert!(readable(backend, 10), "{} packets came", got.len());
        backend
            .receive(64, &mut |f| {
                for (net, bytes) in f.packets() {
                    let number = u32::try_from(got.len()).unwrap();
                    assert_eq!(bytes[8..12], number.to_be_bytes());
                    got.push(net);
                }
            })
            .unwrap();
    }
    while backend.receive(64, &mut |_| panic!("one more")).unwrap() > 0 {}
    backend.watch(false);
    got
}

/// Returns the number of packets that have not arrived through rings.
fn over_the_wire(backend: &Shm<UdpBackend>) -> u64 {
    backend.inner.counters().rx_packets
}

/// Returns the path where the first process on an address accepts offers of shared memory.
fn memory(address: &str) -> PathBuf {
    Directory::open().memory(&ScopedAddr::new(ip(address), 0), 1).unwrap()
}

/// The sender's end of a ring that was offered by hand.
struct Offered<W> {
    line: UnixSocket,
    ring: Producer,
    memory: OwnedFd,
    wake: W,
}

/// Offers a ring to the first process on 127.0.0.2.
fn offer() -> Offered<WakeUp> {
    offer_with(&memory("127.0.0.2"), &OFFER, WakeUp::new().unwrap()).unwrap()
}

/// Like [`offer`], with this message and this wake-up, to the listener on this path, if there is
/// one.
fn offer_with<W: AsFd>(path: &Path, words: &[u8], wake: W) -> io::Result<Offered<W>> {
    let line = UnixSocket::connect(path)?;
    let (ring, memory) = Producer::create().unwrap();
    line.send(words, &[memory.as_fd(), wake.as_fd()]).unwrap();
    Ok(Offered { line, ring, memory, wake })
}
