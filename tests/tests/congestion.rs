//! Two senders at one bottleneck: the queue of a switch that marks, with notifications, compared
//! with the queue of a switch that only drops. The test runs in virtual time, so its results are
//! always equal; docs/en/project/performance.md contains them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use rxe_core::queue::{Remote, SendOp, Sge};
use rxe_core::types::{Key, Mtu, Psn, Time};
use rxe_core::wire::{NetHeader, TxBatch, TxLimits};
use rxe_tests::lone::{End, Place, Said};

/// The capacity of every link: 10 Gbit/s.
const BYTES_A_MICROSECOND: usize = 1250;
/// The delay in microseconds from a sender to the switch. It is also the delay from the switch to a
/// receiver, and half of the delay of the reverse path.
const DELAY: u64 = 2;
/// The bytes that the switch can queue, and the threshold above which it marks.
const CAPACITY: usize = 150_000;
const THRESHOLD: usize = 40_000;
/// The bytes around a packet: Ethernet, IP and UDP headers and the gap after it.
const AROUND: usize = 66;

const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x10_0000;
const MESSAGE: u32 = 65_536;

/// A packet and its arrival time.
type Sent = (u64, Said);

/// One sender and its receiver.
struct Flow {
    sender: End,
    receiver: End,
    batch: TxBatch,
    /// Packets that wait for the sender's link.
    link: VecDeque<Said>,
    credit: usize,
    to_switch: VecDeque<Sent>,
    to_receiver: VecDeque<Sent>,
    back: VecDeque<Sent>,
    outstanding: usize,
    done: u64,
}

impl Flow {
    fn new(number: u8) -> Self {
        let place = |last| -> Place { (IpAddr::V4(Ipv4Addr::new(10, 0, number, last)), 0x11) };
        let psns = (Psn::ZERO, Psn::ZERO);
        let sender = End::new(place(1), place(2), Mtu::M1024, psns);
        let receiver = End::new(place(2), place(1), Mtu::M1024, psns);
        for end in [&sender, &receiver] {
            end.register(KEY, BASE, MESSAGE as usize);
        }
        let limits = TxLimits { batch_bytes: 8 << 10, ..TxLimits::default() };
        let batch = TxBatch::new(limits);
        let [to_switch, to_receiver, back] = [(); 3].map(|()| VecDeque::new());
        let (link, credit, outstanding, done) = (VecDeque::new(), 0, 0, 0);
        Self {
            sender,
            receiver,
            batch,
            link,
            credit,
            to_switch,
            to_receiver,
            back,
            outstanding,
            done,
        }
    }

    /// Runs the sender for a microsecond. It always has messages to send, and sends as fast as its
    /// link permits.
    fn send(&mut self, now: u64) {
        self.sender.now = Time::from_nanos(now * 1000);
        while self.back.front().is_some_and(|(at, _)| *at <= now) {
            let (_, said) = self.back.pop_front().expect("just seen");
            self.sender.take(&said);
        }
        self.sender.engine.handle_timeout(self.sender.now);
        let completed = self.sender.completions().len();
        self.outstanding -= completed;
        self.done += completed as u64;
        while self.outstanding < 8 {
            let remote = Remote { addr: BASE, rkey: KEY };
            let sge = Sge { addr: BASE, length: MESSAGE, lkey: KEY };
            self.sender.send(SendOp::Write { remote, imm: None }, sge);
            self.outstanding += 1;
        }
        if self.link.is_empty() {
            self.sender.engine.poll_transmit(self.sender.now, &mut self.batch);
            for frame in self.batch.frames() {
                let packets = frame.packets();
                self.link.extend(packets.map(|(net, bytes)| Said { net, bytes: bytes.to_vec() }));
            }
            self.batch.clear();
        }
        carry(&mut self.link, &mut self.credit, |said| {
            self.to_switch.push_back((now + DELAY, said))
        });
    }

    fn receive(&mut self, now: u64) {
        self.receiver.now = Time::from_nanos(now * 1000);
        while self.to_receiver.front().is_some_and(|(at, _)| *at <= now) {
            let (_, said) = self.to_receiver.pop_front().expect("just seen");
            self.receiver.take(&said);
        }
        let answers = self.receiver.sent();
        self.back.extend(answers.into_iter().map(|said| (now + 2 * DELAY, said)));
    }
}

/// Carries packets over a link for a microsecond. Time that is insufficient for a packet is kept as
/// credit.
fn carry(queue: &mut VecDeque<Said>, credit: &mut usize, mut sink: impl FnMut(Said)) {
    *credit += BYTES_A_MICROSECOND;
    while let Some(said) = queue.front() {
        let size = said.bytes.len() + AROUND;
        if size > *credit {
            return;
        }
        *credit -= size;
        sink(queue.pop_front().expect("just seen"));
    }
    // An idle link collects no credit.
    *credit = 0;
}

/// The statistics of the switch.
#[derive(Debug, Default)]
struct Seen {
    mean_queue: usize,
    max_queue: usize,
    dropped: u64,
    marked: u64,
    /// The number of messages of each flow.
    done: [u64; 2],
    retries: u64,
}

impl Seen {
    /// Returns the goodput in percent of the link rate.
    fn goodput(&self, micros: u64) -> u64 {
        let bytes = self.done.iter().sum::<u64>() * u64::from(MESSAGE);
        bytes * 100 / (micros * BYTES_A_MICROSECOND as u64)
    }
}

/// Runs for 100 ms; the first 10 ms are not counted.
fn run(marks: bool) -> (Seen, u64) {
    const WARM: u64 = 10_000;
    const END: u64 = 100_000;
    let mut flows = [Flow::new(0), Flow::new(1)];
    let (mut queue, mut credit, mut queued) = (VecDeque::<Said>::new(), 0, 0);
    let (mut seen, mut sum, mut before) = (Seen::default(), 0, [0; 2]);
    let retried = |flows: &[Flow; 2]| {
        let of = |flow: &Flow| {
            let counters = flow.sender.engine.counters();
            counters.retry_sequence_nak + counters.ack_timeout + counters.retry_implied_nak
        };
        flows.iter().map(of).sum::<u64>()
    };
    for now in 0..END {
        if now == WARM {
            before = [flows[0].done, flows[1].done];
            seen = Seen { retries: retried(&flows), ..Seen::default() };
        }
        for flow in &mut flows {
            flow.send(now);
            while flow.to_switch.front().is_some_and(|(at, _)| *at <= now) {
                let (_, mut said) = flow.to_switch.pop_front().expect("just seen");
                let size = said.bytes.len() + AROUND;
                if queued + size > CAPACITY {
                    seen.dropped += 1;
                    continue;
                }
                if marks && queued > THRESHOLD && said.net.tos & 0b11 != 0 {
                    seen.marked += 1;
                    said.net = NetHeader { tos: said.net.tos | 0b11, ..said.net };
                } else if !marks {
                    // Without marks, packets are not ECN-capable: the network does not mark them.
                    said.net = NetHeader { tos: said.net.tos & !0b11, ..said.net };
                }
                queued += size;
                queue.push_back(said);
            }
        }
        carry(&mut queue, &mut credit, |said| {
            queued -= said.bytes.len() + AROUND;
            let IpAddr::V4(to) = said.net.dst else { return };
            flows[usize::from(to.octets()[2])].to_receiver.push_back((now + DELAY, said));
        });
        if now >= WARM {
            sum += queued;
            seen.max_queue = seen.max_queue.max(queued);
        }
        flows.iter_mut().for_each(|flow| flow.receive(now));
    }
    seen.mean_queue = sum / usize::try_from(END - WARM).expect("small");
    seen.done = [flows[0].done - before[0], flows[1].done - before[1]];
    seen.retries = retried(&flows) - seen.retries;
    let goodput = seen.goodput(END - WARM);
    (seen, goodput)
}

#[test]
fn where_the_network_marks_senders_slow_down_before_it_drops() {
    let (drops, dropping) = run(false);
    println!("drops: {drops:?}, {dropping} % of the link");
    let (marks, marking) = run(true);
    println!("marks: {marks:?}, {marking} % of the link");
    assert!(drops.dropped > 0 && drops.retries > 0, "the bottleneck is one");
    assert!(marks.marked > 0);
    assert_eq!((marks.dropped, marks.retries), (0, 0));
    assert!(marks.max_queue < CAPACITY);
    assert!(marking >= 80, "{marking} % of the link are used");
    let [a, b] = marks.done;
    assert!(a.min(b) * 3 >= a.max(b), "neither starves: {a} and {b} messages");
}
