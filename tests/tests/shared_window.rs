//! Many queue pairs that send to one address simultaneously. The peer receives for all of them
//! through one buffer, and removes packets from it more slowly than they can be sent. The tests run
//! in virtual time, so their results are always equal.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use rxe_core::engine::{Config, Engine};
use rxe_core::mem::{Buffer, Memory};
use rxe_core::qp::{QpAttr, QpCap, QpHandle, QpInit, QpType};
use rxe_core::queue::{
    CompletionQueue, Payload, Remote, SendFlags, SendOp, SendRequest, Sge, Status,
};
use rxe_core::types::{Gid, Key, Mtu, Qpn, Time};
use rxe_core::wire::{TxBatch, TxLimits};
use rxe_tests::lone::Said;
use rxe_tests::sim::memory::{ALL, PD};
use rxe_tests::sim::world::bring_to_rts;

/// The rates in bytes per microsecond at which either end can send and empty its buffer.
const SENT_A_MICROSECOND: usize = 5000;
const TAKEN_A_MICROSECOND: usize = 1250;
/// The duration of each run in microseconds, and the part at its beginning that does not count.
const END: u64 = 60_000;
const WARM: u64 = 10_000;
/// The interval in microseconds between the starts of the queue pairs.
const APART: u64 = 100;
/// The bytes that the kernel needs for a packet in addition to its content.
const AROUND: usize = 700;

const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x10_0000;
const MESSAGE: u32 = 65_536;

/// One end with its receive buffer.
struct Side {
    engine: Engine,
    cq: Arc<CompletionQueue>,
    qps: Vec<Arc<QpHandle>>,
    batch: TxBatch,
    out: VecDeque<Said>,
    credit: usize,
    buffer: VecDeque<Said>,
    buffered: usize,
    taken: usize,
    lost: u64,
}

impl Side {
    fn new(last: u8, queue_pairs: u32, buffer: usize) -> Self {
        let address = |last| Gid::from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let memory = Arc::new(Memory::new());
        let size = Buffer::zeroed(MESSAGE as usize);
        assert_eq!(memory.register(PD, size, BASE, ALL, || KEY.value()), Ok(KEY));
        let third = u32::try_from(buffer / 3).expect("small");
        let config = Config {
            gids: vec![address(last)],
            window_bytes: third.min(1 << 20),
            shared_window_bytes: third,
            ..Config::default()
        };
        let mut engine = Engine::new(config, memory);
        let cq = Arc::new(CompletionQueue::new(4096, None));
        let qps = (0x100..0x100 + queue_pairs).map(|number| {
            let qpn = Qpn::from_wire(number);
            let init = QpInit {
                service: QpType::Rc,
                pd: PD,
                send_cq: Arc::clone(&cq),
                recv_cq: Arc::clone(&cq),
                cap: QpCap::default(),
                srq: None,
                xrcd: None,
                sq_sig_all: true,
            };
            let qp = engine.create_qp(qpn, init).expect("the number is free");
            let mut attr = QpAttr {
                path_mtu: Mtu::M4096,
                qp_access_flags: ALL,
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                dest_qp_num: qpn,
                ..QpAttr::default()
            };
            attr.ah_attr.dgid = address(3 - last);
            bring_to_rts(&mut engine, Time::ZERO, qpn, attr);
            qp
        });
        let qps = qps.collect();
        let batch = TxBatch::new(TxLimits { batch_bytes: 64 << 10, ..TxLimits::default() });
        let (out, buffer) = (VecDeque::new(), VecDeque::new());
        Self { engine, cq, qps, batch, out, credit: 0, buffer, buffered: 0, taken: 0, lost: 0 }
    }

    /// Removes packets from the buffer for a microsecond.
    fn receive(&mut self, now: Time) {
        self.taken += TAKEN_A_MICROSECOND;
        while let Some(said) = self.buffer.front().filter(|said| said.bytes.len() <= self.taken) {
            self.taken -= said.bytes.len();
            self.buffered -= said.bytes.len() + AROUND;
            let said = self.buffer.pop_front().expect("just seen");
            let frame = rxe_core::wire::Frame::single(said.net, &said.bytes);
            self.engine.handle_frame(now, &frame);
        }
        if self.buffer.is_empty() {
            self.taken = 0;
        }
        self.engine.handle_timeout(now);
    }

    /// Sends for a microsecond.
    fn send(&mut self, now: Time, to: &mut VecDeque<(Time, Said)>) {
        if self.out.is_empty() {
            self.engine.poll_transmit(now, &mut self.batch);
            for frame in self.batch.frames() {
                let packets = frame.packets();
                self.out.extend(packets.map(|(net, bytes)| Said { net, bytes: bytes.to_vec() }));
            }
            self.batch.clear();
        }
        self.credit += SENT_A_MICROSECOND;
        while let Some(said) = self.out.front().filter(|said| said.bytes.len() <= self.credit) {
            self.credit -= said.bytes.len();
            let said = self.out.pop_front().expect("just seen");
            to.push_back((now + Duration::from_micros(5), said));
        }
        if self.out.is_empty() {
            self.credit = 0;
        }
    }
}

/// The results of a run.
#[derive(Debug)]
struct Seen {
    /// The goodput in percent of the receiver's rate, without the beginning.
    goodput: u64,
    /// The numbers of packets lost at the full buffer, and of all packets sent.
    lost: u64,
    packets: u64,
    /// The number of packets that the peer sent.
    answers: u64,
}

/// Runs a transfer; `queue` is the maximum number of packets in the buffer, however small they are.
fn run(read: bool, queue_pairs: u32, buffer: usize, queue: usize) -> Seen {
    let mut sides = [1, 2].map(|last| Side::new(last, queue_pairs, buffer));
    let mut ways = [VecDeque::new(), VecDeque::new()];
    let mut outstanding = vec![0; queue_pairs as usize];
    let mut done = 0;
    for micros in 0..END {
        let now = Time::from_nanos(micros * 1000);
        if micros == WARM {
            done = 0;
        }
        while let Some(completion) = sides[0].cq.poll() {
            assert_eq!(completion.status, Status::Success);
            outstanding[usize::try_from(completion.id).expect("small")] -= 1;
            done += 1;
        }
        let started = usize::try_from(micros / APART + 1).expect("small");
        for (id, qp) in (0..).zip(sides[0].qps.iter().take(started)) {
            while outstanding[usize::try_from(id).expect("small")] < 4 {
                let remote = Remote { addr: BASE, rkey: KEY };
                let op = if read {
                    SendOp::Read { remote }
                } else {
                    SendOp::Write { remote, imm: None }
                };
                let sge = Sge { addr: BASE, length: MESSAGE, lkey: KEY };
                let payload = Payload::Sges([sge].into_iter().collect());
                let request =
                    SendRequest { flags: SendFlags::SIGNALED, ..SendRequest::new(id, op, payload) };
                qp.post_send(request).expect("there is room");
                outstanding[usize::try_from(id).expect("small")] += 1;
            }
        }
        for (side, way) in sides.iter_mut().zip(&mut ways) {
            side.receive(now);
            side.send(now, way);
        }
        for (from, way) in ways.iter_mut().enumerate() {
            let side = &mut sides[1 - from];
            while way.front().is_some_and(|(at, _)| *at <= now) {
                let (_, said) = way.pop_front().expect("just seen");
                let size = said.bytes.len() + AROUND;
                if side.buffered + size > buffer || side.buffer.len() == queue {
                    side.lost += 1;
                } else {
                    side.buffered += size;
                    side.buffer.push_back(said);
                }
            }
        }
    }
    let lost = sides.iter().map(|side| side.lost).sum();
    let [requests, answers] = sides.map(|side| side.engine.counters().sent_pkts);
    let bytes = done * u64::from(MESSAGE);
    let goodput = bytes * 100 / ((END - WARM) * TAKEN_A_MICROSECOND as u64);
    Seen { goodput, lost, packets: requests + answers, answers }
}

#[test]
fn many_queue_pairs_get_as_much_through_one_buffer_as_one() {
    // The buffer sizes of a device with sufficient privileges, and without.
    for buffer in [16 << 20, 416 << 10] {
        for read in [false, true] {
            let [one, many] = [1, 64].map(|queue_pairs| run(read, queue_pairs, buffer, usize::MAX));
            let what = if read { "READ" } else { "WRITE" };
            println!("{what}, {} KiB: {one:?}, {many:?}", buffer >> 10);
            assert!(many.goodput * 10 >= one.goodput * 9, "{what}: {one:?}, {many:?}");
            assert!(many.lost * 1000 < many.packets, "{what}: {many:?}");
        }
    }
}

#[test]
fn queue_pairs_that_start_together_do_not_overflow_a_queue_on_the_way() {
    // A little more than all queue pairs may have in flight: those that start first leave room for
    // the others.
    let all = run(false, 8, 16 << 20, 300);
    assert_eq!(all.lost, 0, "{all:?}");
}

#[test]
fn a_part_of_a_shared_window_is_acknowledged_as_a_whole() {
    // Each queue pair may have 4 packets in flight.
    let seen = run(false, 64, 16 << 20, usize::MAX);
    assert!(seen.answers * 4 < seen.packets, "{seen:?}");
}
