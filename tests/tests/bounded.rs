//! Tests of the memory that peers can make an engine use, in allocated bytes. Also tests the memory
//! of a queue pair.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rxe_core::bounds::{MAX_EVENT_BYTES, MAX_OUTBOX, max_peer_bytes};
use rxe_core::cm::mad::{LEN, Mad, Message, Req};
use rxe_core::cm::{CmConfig, Manager, Route};
use rxe_core::qp::QpCap;
use rxe_core::queue::{RecvRequest, Remote, SendOp, SendRequest, Sge};
use rxe_core::types::{Gid, Key, Mtu, Psn, Qpn, Time};
use rxe_core::wire::{
    Aeth, AtomicEth, Bth, Ext, Feth, NetHeader, OpInfo, OpKind, Opcode, PacketRepr, Reth, Syndrome,
    cnp,
};
use rxe_tests::crowd::Crowd;
use rxe_tests::lone::{End, Place, Said};
use rxe_tests::sim::rng::Rng;

/// The number of bytes allocated and not freed.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// The lock of the running test: one test runs at a time, so that it counts only its own bytes.
static TURN: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: every call is handed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the ones that the system's allocator wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above; `ptr` came from there.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the growth of the allocated bytes by a call of `f`, and its result.
fn growth<R>(f: impl FnOnce() -> R) -> (usize, R) {
    let before = LIVE.load(Ordering::Relaxed);
    let result = f();
    (LIVE.load(Ordering::Relaxed).saturating_sub(before), result)
}

#[test]
fn an_idle_queue_pair_costs_what_the_documents_say() {
    const MANY: usize = 500;
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    // The measurement includes both ends; each has half of the memory.
    let cost = |wr: u32| {
        let cap = QpCap { max_send_wr: wr, max_recv_wr: wr, ..QpCap::default() };
        let (one, _one) = growth(|| Crowd::new(1, cap));
        let (all, mut crowd) = growth(|| Crowd::new(1 + u32::try_from(MANY).unwrap(), cap));
        // The queue pairs are used, and then idle again.
        let (used, ()) = growth(|| (0..MANY).for_each(|at| crowd.exchange([at].into_iter(), true)));
        ((all - one) / (2 * MANY), (all - one + used) / (2 * MANY))
    };
    let (least, used) = cost(1);
    // The number of places of a ring is rounded up to a power of two.
    let (more, _) = cost(128);
    let place = (more - least) / 127;
    println!("{least} bytes, {used} once used, {place} for a place of both queues");
    assert!(used <= 3 << 9, "a queue pair costs {used} bytes");
    let sizes = size_of::<SendRequest>() + size_of::<RecvRequest>();
    assert!(place <= sizes, "a place of both queues costs {place} bytes");
    assert!(place <= 192, "docs/en/project/performance.md says less than {place}");
}

const OWN: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 0x11);
const PEER: Place = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 0x22);
const START: Psn = Psn::new(0x1000);
const ANSWERS: Psn = Psn::new(0x2000);
const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x7000_0000_0000;
/// The number of outstanding READs and atomics that `End` accepts.
const READS: u8 = 16;

fn ext(info: &OpInfo, len: u32) -> Ext {
    Ext {
        reth: info.has_reth.then_some(Reth { va: BASE, rkey: KEY, dma_len: len }),
        aeth: info.has_aeth.then_some(Aeth { syndrome: Syndrome::ACK, msn: 0 }),
        atomic: info.has_atomic.then_some(AtomicEth {
            va: BASE,
            rkey: KEY,
            swap_add: 1,
            compare: 0,
        }),
        atomic_ack: info.has_atomic_ack.then_some(0),
        imm: info.has_imm.then_some(0),
        ieth: info.has_ieth.then_some(0),
        feth: info.has_feth.then_some(Feth { placement: 1, ..Feth::default() }),
        ..Ext::default()
    }
}

fn packet(end: &End, opcode: Opcode, psn: Psn, len: u32, payload: &[u8]) -> Said {
    let info = opcode.info().expect("in the table");
    let bth = Bth { ack_req: true, ..Bth::new(opcode, Qpn::from_wire(OWN.1), psn) };
    end.said(&PacketRepr { bth, ext: ext(info, len), payload, pad_bytes: [0; 3] })
}

/// A function that returns the `i`-th packet of a flood.
type Flood = fn(&End, &mut Rng, u32) -> Said;

const FLOODS: [(&str, Flood); 13] = [
    ("READs", |end, _, i| packet(end, Opcode::RC_READ_REQUEST, START.add(i), 8, &[])),
    ("atomics", |end, _, i| packet(end, Opcode::RC_FETCH_ADD, START.add(i), 8, &[])),
    ("a few READs, again and again", |end, rng, i| {
        let psn = if i < 15 { i } else { rng.below32(15) };
        packet(end, Opcode::RC_READ_REQUEST, START.add(psn), 8, &[])
    }),
    ("READs, atomics and WRITEs, again and again", |end, rng, i| {
        let psn = if i < 40 { i } else { rng.below32(40) };
        match psn % 3 {
            0 => packet(end, Opcode::RC_READ_REQUEST, START.add(psn), 8, &[]),
            1 => packet(end, Opcode::RC_FETCH_ADD, START.add(psn), 8, &[]),
            _ => packet(end, Opcode::RC_WRITE_ONLY, START.add(psn), 8, &[7; 8]),
        }
    }),
    ("SENDs without a receive", |end, _, _| packet(end, Opcode::RC_SEND_ONLY, START, 0, &[7; 8])),
    ("packets out of order", |end, rng, _| {
        packet(end, Opcode::RC_WRITE_ONLY, START.add(1 + rng.below32(1000)), 8, &[7; 8])
    }),
    ("a WRITE that never ends", |end, _, i| {
        let opcode = if i == 0 { Opcode::RC_WRITE_FIRST } else { Opcode::RC_WRITE_MIDDLE };
        packet(end, opcode, START.add(i), 1 << 20, &[7; 256])
    }),
    ("WRITEs", |end, _, i| packet(end, Opcode::RC_WRITE_ONLY, START.add(i), 8, &[7; 8])),
    ("acknowledgements of what was never sent", |end, rng, _| {
        let psn = ANSWERS.add(rng.below32(1 << 24));
        packet(end, Opcode::RC_ACKNOWLEDGE, psn, 0, &[])
    }),
    ("congestion notifications", |end, _, _| {
        let bth = cnp::bth(Qpn::from_wire(OWN.1));
        end.said(&PacketRepr { bth, ext: Ext::default(), payload: &[], pad_bytes: [0; 3] })
    }),
    ("congestion marks", |end, _, i| {
        let said = packet(end, Opcode::RC_WRITE_ONLY, START.add(i), 8, &[7; 8]);
        Said { net: NetHeader { tos: 0b11, ..said.net }, ..said }
    }),
    ("packets for queue pairs that are not there, from everywhere", |end, rng, _| {
        let info = Opcode::RC_WRITE_ONLY.info().expect("in the table");
        let bth = Bth::new(info.opcode, Qpn::from_wire(rng.word()), Psn::new(rng.word()));
        let src = IpAddr::V4(Ipv4Addr::from_bits(rng.word()));
        let net = NetHeader { src, ..end.from_peer() };
        Said::new(net, &PacketRepr { bth, ext: ext(info, 8), payload: &[7; 8], pad_bytes: [0; 3] })
    }),
    ("anything of the service", |end, rng, _| {
        let all: Vec<_> = Opcode::all().filter(|info| info.opcode.0 < 0x20).collect();
        let info = rng.pick(&all);
        let payload: &[u8] = if info.has_payload { &[7; 16] } else { &[] };
        let from = if info.kind == OpKind::Acknowledge { ANSWERS } else { START };
        packet(end, info.opcode, from.add(rng.below32(30)), 16, payload)
    }),
];

#[test]
fn no_flood_makes_an_engine_keep_more_than_its_bound() {
    const PACKETS: u32 = 3000;
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let bound = max_peer_bytes(READS) + MAX_EVENT_BYTES;
    for (name, flood) in FLOODS {
        let mut rng = Rng::new(1);
        let mut end = End::new(OWN, PEER, Mtu::M256, (ANSWERS, START));
        let _memory = end.register(KEY, BASE, 4096);
        // One request of the program is outstanding.
        let remote = Remote { addr: 0, rkey: KEY };
        end.send(SendOp::Read { remote }, Sge { addr: BASE, length: 8, lkey: KEY });
        end.sent();
        let mut most = 0;
        let start = LIVE.load(Ordering::Relaxed);
        for i in 0..PACKETS {
            let said = flood(&end, &mut rng, i);
            end.take(&said);
            drop(said);
            most = most.max(LIVE.load(Ordering::Relaxed).saturating_sub(start));
        }
        let events = end.events();
        println!("{name}: {most} bytes, {} events", events.len());
        assert!(most <= bound, "{name}: {most} bytes are kept, more than {bound}");
    }
}

#[test]
fn strangers_fill_no_more_than_a_listeners_backlog_and_the_outbox() {
    const BACKLOG: usize = 64;
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let service_id = 0x0106_1c06;
    let mut manager = Manager::new(CmConfig { block: 1, guid: 1, seed: 1 });
    manager.listen(Time::ZERO, service_id, BACKLOG).expect("nobody listens yet");
    let local = Gid::from(OWN.0);
    let flood = |number: u32| {
        let remote = Gid::from(IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0000 | number)));
        let route = Route { local, remote, traffic_class: 0 };
        // Every other request is for a service without a listener, and is refused.
        let service_id = service_id + u64::from(number % 2);
        let req = Req { local_comm_id: number, service_id, path_mtu: 3, ..Req::default() };
        (route, Message::Req(req).emit(u64::from(number)))
    };
    let (grown, ()) = growth(|| {
        for number in 0..20_000 {
            let (route, bytes) = flood(number);
            let mad = Mad::new(&bytes).expect("256 bytes");
            manager.handle_mad(Time::from_nanos(u64::from(number)), route, &mad);
        }
    });
    println!("{grown} bytes, {} connections", manager.len());
    assert_eq!(manager.len(), BACKLOG);
    // A request uses its 256 bytes and some hundred more; an answer about the same. The outbox
    // grows by doubling.
    assert!(grown <= BACKLOG * 2048 + MAX_OUTBOX * 2 * (LEN + 64), "{grown} bytes are kept");
}
