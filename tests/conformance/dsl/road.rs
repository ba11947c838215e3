//! The transports between the peer and the engine under test. A case must end equally over each of them.

use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::UnshareFlags;
use rxe_core::engine::Engine;
use rxe_core::types::{Qpn, Time};
use rxe_core::wire::{Frame, IpId, NetHeader, QPN_BLOCK, TxBatch, TxLimits, icrc};
use rxe_net::{
    Backend, L2Backend, L2Config, NetError, PacketBackend, PacketConfig, SendStatus, Sharing,
    UdpBackend, UdpConfig, XdpBackend, XdpConfig, XdpMode,
};
use rxe_tests::shared_memory::{Record, SharedMemory};

use super::packet::Pkt;

/// A transport of packets in both directions.
pub(crate) trait Road {
    /// Returns whether the transport can carry this packet.
    fn takes(&self, packet: &Pkt) -> bool {
        let _ = packet;
        true
    }

    /// Delivers packets to the engine in order, and calls `take` with each frame that arrives.
    fn bring(
        &mut self,
        packets: &mut dyn Iterator<Item = (NetHeader, Vec<u8>)>,
        take: &mut dyn FnMut(&Frame<'_>),
    );

    /// Lets the engine send everything that it may, and calls `look` with each packet as its
    /// receiver gets it.
    fn transmit(&mut self, now: Time, engine: &mut Engine, look: &mut dyn FnMut(&NetHeader, &[u8]));
}

/// No transport: packets are handed to the engine directly.
/// The IPv4 identification is visible, as with a packet socket, or `hidden`, as with a UDP socket.
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

/// Shared memory between two processes of one host, with one ring for each direction.
pub(crate) struct Rings {
    record: Record,
    here: SharedMemory,
    back: SharedMemory,
}

impl Rings {
    /// Creates rings into which the peer puts packets as `record` says. The engine puts in headers
    /// and payload apart.
    pub(crate) fn new(record: Record) -> Self {
        let [here, back] = [(); 2].map(|()| SharedMemory::default());
        Self { record, here, back }
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

/// The sockets of two backends: the peer's and the engine's.
pub(crate) struct Sockets<B> {
    peer: B,
    own: B,
    carries: Carries,
}

/// The source addresses and groups that a pair of sockets carries.
struct Carries {
    from: &'static [&'static str],
    groups: &'static [&'static str],
    /// Whether packets arrive that go to the multicast QPN at a unicast address ([`Pkt::is_stray`]).
    strays: bool,
}

/// The addresses of the peer and of other hosts, and the addresses of the engine's host.
const PEERS: [&str; 5] = ["10.0.0.1", "10.0.0.9", "192.0.2.7", "fd00::1", "fd00::9"];
const OWN: [&str; 3] = ["10.0.0.2", "10.0.0.8", "fd00::2"];
/// The most packets in flight.
const UNDER_WAY: usize = 64;

impl<B: Backend + Sharing> Sockets<B> {
    fn new(peer: B, mut own: B, carries: Carries) -> Self {
        // Packets to other QPN ranges arrive too, because this process has QP1.
        own.set_gsi(true).expect("the sockets of QP1");
        carries.groups.iter().for_each(|group| own.join(address(group)).expect("joined"));
        Self { peer, own, carries }
    }
}

impl Sockets<UdpBackend> {
    /// The shell commands that create the addresses.
    pub(crate) const SETUP: &str = "
        for a in 10.0.0.1 10.0.0.2 10.0.0.8 10.0.0.9 192.0.2.7; do
            ip address add $a/32 dev lo
        done
        for a in fd00::1 fd00::2 fd00::9; do
            ip address add $a/128 dev lo nodad
        done";

    /// Opens the UDP sockets of two processes on one host.
    /// Segmentation by the kernel (GSO) is off: the packets of a burst leave one by one, each with
    /// its own ICRC.
    pub(crate) fn over_udp() -> Self {
        let open = |all: &[&str]| {
            let config = UdpConfig { segment: false, ..UdpConfig::new("lo", addresses(all)) };
            UdpBackend::open(&config).expect("sockets")
        };
        // Loopback does not carry IPv6 multicast.
        let groups = &["239.1.2.3", "239.1.2.4"];
        let carries = Carries { from: &PEERS, groups, strays: true };
        Self::new(open(&PEERS), open(&OWN), carries)
    }
}

/// The shell commands that create a cable and the engine's host at its near end. Each end has
/// permanent neighbour entries of the other, so no packet waits for address resolution while others
/// overtake it.
pub(crate) const CABLE: &str = "
    ip link add near0 address 02:00:00:00:00:02 mtu 9000 type veth \
        peer name far0 address 02:00:00:00:00:01 mtu 9000
    ip link set near0 up
    for a in 10.0.0.2/24 10.0.0.8/24 fd00::2/64; do
        ip address add $a dev near0 nodad
    done
    ip route add 192.0.2.7 dev near0
    for a in 10.0.0.1 10.0.0.9 192.0.2.7 fd00::1 fd00::9; do
        ip neighbour add $a lladdr 02:00:00:00:00:01 dev near0
    done";

/// The shell commands that set up the peer's host at the far end.
const FAR: &str = "
    ip link set lo up
    ip link set far0 up
    for a in 10.0.0.1/24 10.0.0.9/24 192.0.2.7/32 fd00::1/64 fd00::9/64; do
        ip address add $a dev far0 nodad
    done
    for a in 10.0.0.2 10.0.0.8 fd00::2; do
        ip neighbour add $a lladdr 02:00:00:00:00:02 dev far0
    done
    until ip link show far0 | grep -q 'state UP'; do sleep 0.01; done";

impl Sockets<PacketBackend> {
    /// Opens packet sockets at the two ends of a [`CABLE`].
    pub(crate) fn over_packet() -> Self {
        let open = |netdev: &str, all: &[&str]| {
            PacketBackend::open(&PacketConfig::new(netdev, addresses(all)))
        };
        let mut road = Self::over_cable(open).expect("sockets");
        // The kernel gives stray packets to any UDP socket of the address, and this backend reads
        // only one.
        road.carries.strays = false;
        road
    }
}

impl Sockets<XdpBackend> {
    /// Opens AF_XDP sockets at the two ends of a [`CABLE`].
    ///
    /// # Errors
    /// The kernel does not permit this process to open them.
    pub(crate) fn over_xdp(mode: XdpMode) -> Result<Self, NetError> {
        let open = |netdev: &str, all: &[&str]| {
            XdpBackend::open(&XdpConfig { mode, ..XdpConfig::new(netdev, addresses(all)) })
        };
        let road = Self::over_cable(open)?;
        assert_eq!(road.own.capabilities().name, mode.backend_name());
        Ok(road)
    }
}

impl Sockets<L2Backend> {
    /// Creates layer-2 endpoints at the two ends of a unix socket, as QEMU uses one.
    pub(crate) fn over_l2() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let open = |mac: u8, addresses: &str| {
            let link = dir.path().join("link");
            let words = format!(
                "qemu:{} mac 02:00:00:00:00:0{mac} mtu 9000 nodad {addresses}",
                link.display()
            );
            let config = L2Config::from_words(words.split_whitespace()).expect("its words");
            L2Backend::open(&config).expect("an endpoint")
        };
        let own =
            open(2, "address 10.0.0.2/24 address 10.0.0.8/24 address fd00::2/64 gateway 10.0.0.1");
        let peer = open(
            1,
            "address 10.0.0.1/24 address 10.0.0.9/24 address 192.0.2.7/32 address fd00::1/64 \
             address fd00::9/64",
        );
        let groups = &["239.1.2.3", "239.1.2.4", "ff0e::1:2"];
        let mut road = Self::new(peer, own, Carries { from: &PEERS, groups, strays: true });
        road.greet();
        road
    }

    /// Sends a packet from each address to each address of the other end.
    /// An endpoint resolves its neighbours' Ethernet addresses, and is answered only while the
    /// other end receives. Packets that wait for an answer would not arrive while the test polls
    /// only one end.
    fn greet(&mut self) {
        let Self { peer, own, .. } = self;
        let mut left = [0; 2];
        for (at, (end, from, to)) in
            [(&mut *peer, &PEERS[..], &OWN[..]), (&mut *own, &OWN, &PEERS)].into_iter().enumerate()
        {
            let mut batch = TxBatch::new(TxLimits::default());
            for (src, dst) in from.iter().flat_map(|src| to.iter().map(move |dst| (src, dst))) {
                let (src, dst) = (address(src), address(dst));
                if src.is_ipv4() == dst.is_ipv4() {
                    push(&mut batch, &NetHeader::outgoing(src, dst, 0xc000), &[0; 16]);
                    left[1 - at] += 1;
                }
            }
            send(end, &mut batch, 0);
        }
        while left != [0; 2] {
            wait(&[&*peer, &*own], PollFlags::IN);
            for (end, left) in [&mut *peer, &mut *own].into_iter().zip(&mut left) {
                end.receive(UNDER_WAY, &mut |frame| *left -= frame.count()).expect("received");
            }
        }
    }
}

impl<B: Backend + Sharing + Send> Sockets<B> {
    /// Opens a backend on an interface with addresses, at each of the two ends of a [`CABLE`].
    fn over_cable(
        open: impl Fn(&str, &[&str]) -> Result<B, NetError> + Sync,
    ) -> Result<Self, NetError> {
        let mut own = open("near0", &OWN)?;
        let peer = at_the_far_end(|| {
            sh(FAR);
            let mut peer = open("far0", &PEERS)?;
            // The thread that asks for routes starts with the first packet, and stays in the
            // network namespace in which it starts.
            let net = NetHeader::outgoing(address(PEERS[0]), address(OWN[0]), 0xc000);
            let mut greeting = [0; 16];
            greeting[QPN_BLOCK] = 1;
            let mut batch = TxBatch::new(TxLimits::default());
            push(&mut batch, &net, &greeting);
            send(&mut peer, &mut batch, 0);
            Ok::<_, NetError>(peer)
        })?;
        receive(&mut own, 1, &mut |frame| {
            let seen = matches!(frame.net.id, IpId::Known { .. });
            assert!(seen, "it came through a UDP socket, which does not see the ID");
        });
        // The BPF program of the sockets does not check source addresses.
        const FROM: [&str; 6] =
            ["10.0.0.1", "10.0.0.2", "10.0.0.9", "192.0.2.7", "fd00::1", "fd00::9"];
        let groups = &["239.1.2.3", "239.1.2.4", "ff0e::1:2"];
        Ok(Self::new(peer, own, Carries { from: &FROM, groups, strays: true }))
    }
}

/// Runs `there` in a new network namespace that has the far end of the cable. Sockets that it opens
/// stay there.
fn at_the_far_end<R: Send>(there: impl FnOnce() -> R + Send) -> R {
    let (to_us, from_them) = mpsc::channel();
    let (to_them, from_us) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let there = scope.spawn(move || {
            // SAFETY: only this thread changes its network namespace, which it shares with no other.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET).expect("a namespace") };
            to_us.send(rustix::thread::gettid()).expect("it waits");
            from_us.recv().expect("it sends");
            there()
        });
        let thread = from_them.recv().expect("it sends");
        sh(&format!("ip link set far0 netns {}", thread.as_raw_nonzero()));
        to_them.send(()).expect("it waits");
        there.join().expect("it ends well")
    })
}

/// Runs shell commands, which must succeed.
fn sh(commands: &str) {
    let status = Command::new("sh").args(["-ec", commands]).status().expect("a shell");
    assert!(status.success(), "{commands}");
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn addresses(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|text| address(text)).collect()
}

impl<B: Backend + Sharing> Road for Sockets<B> {
    fn takes(&self, packet: &Pkt) -> bool {
        let (src, dst) = packet.said_addresses();
        let is_in =
            |set: &[&str], ip: Option<IpAddr>| ip.is_none_or(|ip| addresses(set).contains(&ip));
        let Carries { from, groups, strays } = self.carries;
        is_in(from, src)
            && (is_in(&OWN, dst) || is_in(groups, dst))
            && (strays || !packet.is_stray())
            && !packet.is_empty()
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
            let before = self.peer.counters().tx_packets;
            let sent = send(&mut self.peer, &mut batch, before);
            receive(&mut self.own, sent, take);
        }
    }

    fn transmit(
        &mut self,
        now: Time,
        engine: &mut Engine,
        look: &mut dyn FnMut(&NetHeader, &[u8]),
    ) {
        let mut batch = TxBatch::new(TxLimits::default());
        loop {
            let before = self.own.counters().tx_packets;
            engine.poll_transmit_with(now, &mut batch, self.own.direct());
            if !batch.take_direct() && batch.is_empty() {
                break;
            }
            let sent = send(&mut self.own, &mut batch, before);
            receive(&mut self.peer, sent, &mut |frame| {
                frame.packets().for_each(|(net, bytes)| look(&net, bytes));
            });
            batch.clear();
        }
    }
}

/// Appends a packet. Its ICRC covers IPv4 identification 0 and is adapted to the one that is sent;
/// a wrong ICRC stays wrong. The packet may join others in a burst.
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

/// Calls `f` with each batch that the engine sends, until there is no more to send.
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

/// Sends a batch. Returns the number of packets sent since the counter was `before`.
fn send(backend: &mut impl Backend, batch: &mut TxBatch, before: u64) -> usize {
    while backend.send(batch).expect("sent") != SendStatus::Done {
        wait(&[backend], PollFlags::IN | PollFlags::OUT);
    }
    usize::try_from(backend.counters().tx_packets - before).expect("a batch")
}

/// Receives `count` packets.
fn receive(backend: &mut impl Backend, count: usize, take: &mut dyn FnMut(&Frame<'_>)) {
    let mut got = 0;
    while got < count {
        // The return value of `receive` also counts frames that are not for the engine.
        let take = &mut |frame: &Frame<'_>| {
            got += frame.count();
            take(frame);
        };
        // Only after a return value of 0 is it certain that a descriptor becomes readable when
        // packets are left.
        if backend.receive(UNDER_WAY, take).expect("received") == 0 {
            wait(&[backend], PollFlags::IN);
        }
    }
    assert_eq!(got, count, "packets came that nobody has sent");
}

/// Waits until a descriptor of one of these backends becomes ready.
fn wait<B: Backend>(backends: &[&B], what: PollFlags) {
    let mut fds = Vec::new();
    backends.iter().for_each(|backend| backend.for_each_fd(&mut |fd| fds.push(fd.clone())));
    let mut polls: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, what)).collect();
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert!(poll(&mut polls, Some(&limit)).expect("polled") > 0, "nothing happened in 10 s");
}
