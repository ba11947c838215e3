//! Fuzzes two devices that share one address, with input from other processes and from the network.
//! The input is messages to inboxes, requests to a control socket, and the files that name the
//! process of a service.
//!
//! Invariants: any input costs a bounded amount of work; each packet from the network is delivered
//! once, unchanged, by one of the two devices; a device understands what the other one forwards.

use std::collections::VecDeque;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rxe_core::wire::{Frame, IpId, NetHeader, QPN_BLOCK};
use rxe_net::untrusted::address_sharing::{
    ControlMessage, Device, MAX_FDS, MAX_PACKETS, Stranger, emit, parse,
};

use super::input::Input;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BLOCKS: [u8; 2] = [3, 70];
/// The services of requests and files: one of each device, and two that neither has.
const SERVICES: [u64; 4] = [0x0106_0001, 0x0106_0002, 0x0106_0003, u64::MAX];
/// The number of messages in an inbox at a time, so small that none is lost.
const AT_ONCE: usize = 8;

struct World {
    devices: [Device; 2],
    stranger: Stranger,
    /// CM packets that the first device has delivered. If the second device may have the listener,
    /// it gets a copy later.
    kept: Vec<(NetHeader, Vec<u8>)>,
    _scratch: Scratch,
}

/// Sends what the bytes choose.
///
/// # Panics
/// If a device violates an invariant.
pub fn run(data: &[u8]) {
    const STEPS: usize = 32;
    let mut input = Input::new(data);
    let mut world = World::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0..2 => world.message(&mut input),
            2 => world.forwarded(&mut input),
            3..5 => world.wire_frame(&mut input),
            5 => world.question(&mut input),
            6 => world.service_file(&mut input),
            _ => answer(input.bytes(16)),
        }
    }
}

impl World {
    fn new() -> Self {
        let scratch = Scratch::new();
        let device = |block| Device::new(&scratch.0, ADDRESS, block).expect("a device");
        let mut devices = BLOCKS.map(device);
        devices[0].listen(SERVICES[0]).expect("nobody has it");
        devices[1].listen(SERVICES[1]).expect("nobody has it");
        let stranger = Stranger::new().expect("a socket");
        Self { devices, stranger, kept: Vec::new(), _scratch: scratch }
    }

    /// Sends messages to the first device: any bytes, or a good header with some bytes changed.
    fn message(&mut self, input: &mut Input<'_>) {
        let mut messages = VecDeque::new();
        for _ in 0..1 + input.index(AT_ONCE) {
            let mut bytes = Vec::new();
            if input.chance(200) {
                bytes.extend(emit(&Frame { segment: input.index(2000), ..frame(input, &[]) }));
                for _ in 0..input.index(4) {
                    let at = input.index(bytes.len());
                    bytes[at] = input.byte();
                }
            }
            if input.chance(8) {
                bytes.resize(70_000, input.byte());
            }
            let len = input.index(600);
            bytes.extend(input.bytes(len));
            messages.push_back(bytes);
        }
        let [device, _] = &mut self.devices;
        let inbox = device.inbox().expect("it has one");
        messages.retain(|message| self.stranger.send(&inbox, message).is_ok());
        let before = device.counters();
        let mut unusable = 0;
        let packets = device.collect(&mut |got| {
            // Frames come in the order of sending. Messages that cannot be read are skipped.
            let frame = loop {
                let sent = messages.pop_front().expect("nothing that was not sent");
                // A longer message does not fit into the receiver's buffer.
                let readable = sent.len() <= 60 + (64 << 10);
                match parse(&sent).filter(|_| readable) {
                    Some(frame) => break (frame.net, frame.payload.to_vec(), frame.segment),
                    None => unusable += 1,
                }
            };
            assert_eq!((got.net, got.payload.to_vec(), got.segment), frame);
            check(got);
        });
        unusable += messages.len() as u64;
        let after = device.counters();
        assert_eq!(after.rx_unusable - before.rx_unusable, unusable);
        assert_eq!(after.rx_packets - before.rx_packets, packets as u64);
        assert!(packets <= AT_ONCE * MAX_PACKETS);
    }

    /// Emits a message that a device could have sent, and parses it again.
    fn forwarded(&mut self, input: &mut Input<'_>) {
        let payload = payload(input);
        let frame = frame(input, &payload);
        let message = [&emit(&frame)[..], frame.payload].concat();
        let read = parse(&message);
        let good = !payload.is_empty() && frame.payloads().count() <= MAX_PACKETS;
        assert_eq!(read.is_some(), good);
        if let Some(read) = read {
            assert_eq!((read.net, read.payload), (frame.net, frame.payload));
            assert_eq!(read.segment, frame.segment.min(payload.len()));
        }
    }

    /// Delivers a frame from the network to the first device.
    fn wire_frame(&mut self, input: &mut Input<'_>) {
        let payload = payload(input);
        let mut frame = frame(input, &payload);
        if payload.is_empty() {
            return;
        }
        frame.segment = frame.segment.max(payload.len().div_ceil(AT_ONCE)).min(payload.len());
        if input.chance(230) {
            (frame.net.src, frame.net.dst) = (ADDRESS, ADDRESS);
        }
        let (mut own, mut others) = (Vec::new(), Vec::new());
        let [first, second] = &mut self.devices;
        let block = |packet: &[u8]| packet.get(QPN_BLOCK).copied().unwrap_or(0);
        first.deliver(&frame, &mut |part| own.extend(packets(part)));
        let kept = &mut self.kept;
        kept.extend(own.iter().filter(|(_, packet)| block(packet) == 0).cloned());
        let mut is_copy = |packet: &(NetHeader, Vec<u8>)| {
            kept.iter().position(|one| one == packet).map(|at| kept.swap_remove(at)).is_some()
        };
        // Requests to services may come later, and to the first device if no process listens: a
        // thread forwards them.
        let (all, since) = (frame.packets().count(), Instant::now());
        loop {
            second.collect(&mut |part| {
                others.extend(packets(part).into_iter().filter(|packet| !is_copy(packet)));
            });
            if own.len() + others.len() >= all {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "a packet is lost");
            first.collect(&mut |part| own.extend(packets(part)));
        }
        // Together the devices got all packets, and each got the packets to its queue pairs in order.
        let mut rest = [own, others];
        for (net, packet) in frame.packets() {
            let is = |(n, bytes): &(NetHeader, Vec<u8>)| (*n, &bytes[..]) == (net, packet);
            let same_block = |(_, bytes): &(NetHeader, Vec<u8>)| block(bytes) == block(packet);
            let next = rest.each_ref().map(|rest| match block(packet) {
                0 => rest.iter().position(is),
                _ => rest.iter().position(same_block).filter(|at| is(&rest[*at])),
            });
            match next {
                [Some(at), _] => drop(rest[0].remove(at)),
                [None, Some(at)] => drop(rest[1].remove(at)),
                [None, None] => panic!("a packet is lost, doubled or changed"),
            }
            if BLOCKS[0] == block(packet) {
                assert!(next[0].is_some(), "its own");
            }
        }
        assert!(rest.iter().all(Vec::is_empty), "packets that nobody sent");
    }

    /// Sends a request to a control socket.
    fn question(&self, input: &mut Input<'_>) {
        let device = &self.devices[input.index(2)];
        let mut question = input.bytes(28).to_vec();
        if input.chance(200) {
            let kind =
                ControlMessage::Ask { address: ADDRESS, from: input.byte(), to: input.byte() };
            let kind = kind.emit();
            let known = input.index(question.len().min(kind.len()) + 1);
            question.splice(..known, kind);
        }
        let Some((answer, sockets)) = device.answer(&question) else { return };
        match (ControlMessage::parse(&question), answer) {
            (Some(ControlMessage::Ask { from, to, .. }), ControlMessage::Give { count, last }) => {
                assert!(sockets <= MAX_FDS && usize::from(count) == sockets);
                assert!(BLOCKS.contains(&last));
                let after = usize::from(from) + sockets;
                assert!(sockets == 0 || after <= usize::from(to.min(last)) + 1);
            }
            (Some(ControlMessage::OtherVersion(_)), ControlMessage::OtherVersion(_)) => {
                assert_eq!(sockets, 0);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Overwrites the file of a service, as another process could.
    fn service_file(&self, input: &mut Input<'_>) {
        let service = SERVICES[input.index(SERVICES.len())];
        let file = self.devices[0].service(service).expect("it has a directory");
        let len = input.index(4);
        fs::write(file, input.bytes(len)).expect("the directory is the user's");
    }
}

fn packets(frame: &Frame<'_>) -> Vec<(NetHeader, Vec<u8>)> {
    check(frame);
    frame.packets().map(|(net, bytes)| (net, bytes.to_vec())).collect()
}

fn check(frame: &Frame<'_>) {
    assert!(!frame.payload.is_empty() && frame.segment > 0);
    assert!(frame.segment <= frame.payload.len());
    assert!(frame.payloads().count() <= MAX_PACKETS);
}

/// Parses an answer of a control socket, as a new process does.
fn answer(bytes: &[u8]) {
    if let Some(message) = ControlMessage::parse(bytes) {
        let again = ControlMessage::parse(&message.emit());
        match message {
            // Emitting writes this version's text, so only the kind is compared.
            ControlMessage::OtherVersion(_) => {
                assert!(matches!(again, Some(ControlMessage::OtherVersion(_))));
            }
            _ => assert_eq!(again, Some(message)),
        }
    }
}

fn frame<'a>(input: &mut Input<'_>, payload: &'a [u8]) -> Frame<'a> {
    let v4 = input.chance(200);
    let [src, dst] = [address(input, v4), address(input, v4)];
    let id = match input.byte() % 3 {
        0 => IpId::Absent,
        1 => IpId::Hidden,
        _ => IpId::Known { id: input.word() as u16, flags: input.word() as u16 },
    };
    let net = NetHeader {
        src,
        dst,
        src_port: input.word() as u16,
        tos: input.byte(),
        ttl: input.byte(),
        flow_label: input.word(),
        id,
    };
    let segment = if input.chance(60) { 1 + input.index(400) } else { payload.len().max(1) };
    Frame { segment, ..Frame::single(net, payload) }
}

fn address(input: &mut Input<'_>, v4: bool) -> IpAddr {
    match v4 {
        true if input.chance(200) => ADDRESS,
        true => Ipv4Addr::from(input.word()).into(),
        // Never an IPv4-mapped address, which is equal to an IPv4 address.
        false => Ipv6Addr::from((u128::from(input.bits()) | 1 << 64) << 60).into(),
    }
}

/// Draws CM messages, packets to queue pairs, or any bytes.
fn payload(input: &mut Input<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..=input.index(AT_ONCE) {
        match input.byte() % 4 {
            0 => {
                let mut packet = [0; 68];
                packet[21] = 7;
                packet[36..38]
                    .copy_from_slice(&(0x10 + u16::from(input.byte() % 16)).to_be_bytes());
                let [low, high] = [0, 1].map(|_| input.pick(&[0, 3, 70, 9]));
                packet[44] = low;
                packet[48] = high;
                let service = input.pick(&SERVICES);
                packet[52..60].copy_from_slice(&service.to_be_bytes());
                payload.extend(packet);
            }
            1 | 2 => {
                let mut packet = [input.byte(); 68];
                packet[QPN_BLOCK] = input.pick(&[0, 3, 70, 9]);
                payload.extend(packet);
            }
            _ => {
                let len = input.index(200);
                payload.extend(input.bytes(len));
            }
        }
    }
    payload
}

/// A temporary directory of this run.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("rxe-fuzz-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        Self(parent.join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
