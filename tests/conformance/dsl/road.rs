//! How packets come to the engine under test and go from it: a case must end in the same way on each road.

use std::net::IpAddr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rxe_core::engine::Engine;
use rxe_core::types::{Qpn, Time};
use rxe_core::wire::{Frame, IpId, NetHeader, QPN_BLOCK, TxBatch, TxLimits, icrc};
use rxe_net::{Backend, SendStatus, Sharing, UdpBackend, UdpConfig};
use rxe_tests::shared_memory::{Record, SharedMemory};

use super::packet::Pkt;

/// A way for packets, there and back.
pub(crate) trait Road {
    /// Whether such a packet can go this way.
    fn takes(&self, packet: &Pkt) -> bool {
        let _ = packet;
        true
    }

    /// Brings packets to the engine, in their order: each is what the peer, or somebody else, sends.
    fn bring(
        &mut self,
        packets: &mut dyn Iterator<Item = (NetHeader, Vec<u8>)>,
        take: &mut dyn FnMut(&Frame<'_>),
    );

    /// Lets the engine send everything that it may; calls `look` with each packet as its receiver sees it.
    fn transmit(&mut self, now: Time, engine: &mut Engine, look: &mut dyn FnMut(&NetHeader, &[u8]));
}

/// None: packets are handed to the engine as they are. The IPv4 identification is visible, as with a packet
/// socket, or `hidden`, as with a UDP socket.
pub(crate) struct Bare {
    pub(crate) hidden: bool,
}

impl Road for Bare {
    fn bring(
        &mut self,
        packets: &mut dyn Iterator<Item = (NetHeader, Vec<u8>)>,
        take: &mut dyn FnMut(&Frame<'_>),
    ) {
        for (mut net, bytes) in packets {
            if self.hidden && net.dst.is_ipv4() {
                net.id = IpId::Hidden;
            }
            take(&Frame::single(net, &bytes));
        }
    }

    fn transmit(
        &mut self,
        now: Time,
        engine: &mut Engine,
        look: &mut dyn FnMut(&NetHeader, &[u8]),
    ) {
        for_each_batch(now, engine, |batch| {
            for frame in batch.frames() {
                frame.packets().for_each(|(net, bytes)| look(&net, bytes));
            }
        });
    }
}

/// Shared memory between two processes of the host, a ring for each direction.
pub(crate) struct Rings {
    record: Record,
    here: SharedMemory,
    back: SharedMemory,
}

impl Rings {
    /// The peer puts its packets in like this. The engine puts them in apart.
    pub(crate) fn new(record: Record) -> Self {
        Self { record, here: SharedMemory::new(), back: SharedMemory::new() }
    }
}

impl Road for Rings {
    fn bring(
        &mut self,
        packets: &mut dyn Iterator<Item = (NetHeader, Vec<u8>)>,
        take: &mut dyn FnMut(&Frame<'_>),
    ) {
        let packets: Vec<_> = packets.collect();
        let packets = packets.iter().map(|(net, bytes)| (*net, &bytes[..]));
        self.here.carry(self.record, packets, take);
    }

    fn transmit(
        &mut self,
        now: Time,
        engine: &mut Engine,
        look: &mut dyn FnMut(&NetHeader, &[u8]),
    ) {
        let mut batch = TxBatch::new(TxLimits::default());
        loop {
            let direct = self.back.transmit(now, engine, &mut batch, |net, bytes| {
                look(net, bytes);
                Ok(())
            });
            if !direct.expect("nobody objects") && batch.is_empty() {
                break;
            }
            let packets: Vec<_> = batch.frames().flat_map(|frame| frame.packets()).collect();
            self.back.carry(Record::Whole, packets, &mut |frame| {
                frame.packets().for_each(|(net, bytes)| look(&net, bytes));
            });
            batch.clear();
        }
    }
}

/// UDP sockets of two processes on one host, none of which lets the system segment: the packets of a burst leave
/// one by one, each with an ICRC of its own.
pub(crate) struct Sockets {
    peer: UdpBackend,
    own: UdpBackend,
}

/// The addresses that packets come from, those that they go to, and the groups. All are on loopback, which carries
/// no groups of IPv6.
const FROM: [&str; 5] = ["10.0.0.1", "10.0.0.9", "192.0.2.7", "fd00::1", "fd00::9"];
const TO: [&str; 3] = ["10.0.0.2", "10.0.0.8", "fd00::2"];
const GROUPS: [&str; 2] = ["239.1.2.3", "239.1.2.4"];
/// Packets that are under way at a time.
const UNDER_WAY: usize = 64;

impl Sockets {
    /// Shell commands that make the addresses.
    pub(crate) const SETUP: &str = "
        for a in 10.0.0.1 10.0.0.2 10.0.0.8 10.0.0.9 192.0.2.7; do
            ip address add $a/32 dev lo
        done
        for a in fd00::1 fd00::2 fd00::9; do
            ip address add $a/128 dev lo nodad
        done";

    pub(crate) fn new() -> Self {
        let open = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|a| address(a)).collect();
            let config = UdpConfig { segment: false, ..UdpConfig::new("lo", addresses) };
            UdpBackend::open(&config).expect("sockets")
        };
        let (peer, mut own) = (open(&FROM), open(&TO));
        // What goes to no block of this process comes too, as to the process that has QP1.
        own.set_gsi(true).expect("the sockets of QP1");
        for group in GROUPS {
            let membership = own.joiner().join(address(group)).expect("joined");
            own.add_membership(membership).expect("a socket more");
        }
        Self { peer, own }
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl Road for Sockets {
    fn takes(&self, packet: &Pkt) -> bool {
        let (src, dst) = packet.said_addresses();
        let is_in = |set: &[&str], ip: Option<IpAddr>| {
            ip.is_none_or(|ip| set.iter().any(|a| address(a) == ip))
        };
        is_in(&FROM, src) && (is_in(&TO, dst) || is_in(&GROUPS, dst)) && !packet.is_empty()
    }

    fn bring(
        &mut self,
        packets: &mut dyn Iterator<Item = (NetHeader, Vec<u8>)>,
        take: &mut dyn FnMut(&Frame<'_>),
    ) {
        let mut packets = packets.peekable();
        while packets.peek().is_some() {
            let mut batch = TxBatch::new(TxLimits::default());
            for (net, bytes) in packets.by_ref().take(UNDER_WAY) {
                push(&mut batch, &net, &bytes);
            }
            let sent = send(&mut self.peer, &mut batch);
            receive(&mut self.own, sent, take);
        }
    }

    fn transmit(
        &mut self,
        now: Time,
        engine: &mut Engine,
        look: &mut dyn FnMut(&NetHeader, &[u8]),
    ) {
        for_each_batch(now, engine, |batch| {
            let sent = send(&mut self.own, batch);
            receive(&mut self.peer, sent, &mut |frame| {
                frame.packets().for_each(|(net, bytes)| look(&net, bytes));
            });
        });
    }
}

/// Appends a packet whose ICRC was made for ID 0; one that was wrong stays so. It may join others in a burst.
fn push(batch: &mut TxBatch, net: &NetHeader, bytes: &[u8]) {
    let Some((body, trailer)) = bytes.split_last_chunk::<4>() else {
        return batch.push(*net, bytes.len(), |_, buf| buf.extend_from_slice(bytes));
    };
    let block = body.get(QPN_BLOCK).map_or(0, |block| u32::from(*block) << 16);
    batch.push_to(*net, Qpn::from_wire(block), bytes.len(), |prefix, buf| {
        let change = icrc::compute(net, body) ^ prefix.compute(body);
        buf.extend_from_slice(body);
        buf.extend((u32::from_le_bytes(*trailer) ^ change).to_le_bytes());
    });
}

/// Calls `f` with each batch that the engine sends, until it has no more to send.
fn for_each_batch(now: Time, engine: &mut Engine, mut f: impl FnMut(&mut TxBatch)) {
    loop {
        let mut batch = TxBatch::new(TxLimits::default());
        engine.poll_transmit(now, &mut batch);
        if batch.is_empty() {
            break;
        }
        f(&mut batch);
    }
}

/// Sends a batch; how many packets left.
fn send(backend: &mut UdpBackend, batch: &mut TxBatch) -> usize {
    let before = backend.counters().tx_packets;
    while backend.send(batch).expect("sent") != SendStatus::Done {
        wait(backend, PollFlags::IN | PollFlags::OUT);
    }
    usize::try_from(backend.counters().tx_packets - before).expect("a batch")
}

/// Receives so many packets.
fn receive(backend: &mut UdpBackend, count: usize, take: &mut dyn FnMut(&Frame<'_>)) {
    let mut got = 0;
    while got < count {
        wait(backend, PollFlags::IN);
        got += backend.receive(UNDER_WAY, take).expect("received");
    }
    assert_eq!(got, count, "packets came that nobody has sent");
}

fn wait(backend: &UdpBackend, what: PollFlags) {
    let mut fds = Vec::new();
    backend.for_each_fd(&mut |fd| fds.push(fd.clone()));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, what)).collect();
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert!(poll(&mut polls, Some(&limit)).expect("polled") > 0, "nothing happened in 10 s");
}
