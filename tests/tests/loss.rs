//! Goodput of one connection over a link that loses packets at random, in both directions. The test
//! runs in virtual time, so its results are always equal; docs/en/project/performance.md contains
//! them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use rxe_core::queue::{Remote, SendOp, Sge};
use rxe_core::types::{Key, Mtu, Psn, Time};
use rxe_core::wire::{TxBatch, TxLimits};
use rxe_tests::lone::{End, Place, Said};
use rxe_tests::sim::rng::Rng;

/// The capacity of either direction, 10 Gbit/s, and its delay in microseconds.
const BYTES_A_MICROSECOND: usize = 1250;
const DELAY: u64 = 20;
/// The bytes around a packet: Ethernet, IP and UDP headers and the gap after it.
const AROUND: usize = 66;
/// The duration of each run in microseconds.
const END: u64 = 300_000;
/// The time before which results do not count: the first loss may cost the timeout of the
/// attributes.
const WARM: u64 = 100_000;

const KEY: Key = Key::new(0x1234_5600);
const BASE: u64 = 0x10_0000;
const MESSAGE: u32 = 65_536;

/// One end and its outgoing link.
struct Side {
    end: End,
    batch: TxBatch,
    link: VecDeque<Said>,
    credit: usize,
    /// The packets in flight to the other end, with their arrival times.
    away: VecDeque<(u64, Said)>,
}

impl Side {
    fn new(own: u8, peer: u8) -> Self {
        let place = |last| -> Place { (IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), 0x11) };
        let end = End::new(place(own), place(peer), Mtu::M4096, (Psn::ZERO, Psn::ZERO));
        end.register(KEY, BASE, MESSAGE as usize);
        let batch = TxBatch::new(TxLimits { batch_bytes: 16 << 10, ..TxLimits::default() });
        Self { end, batch, link: VecDeque::new(), credit: 0, away: VecDeque::new() }
    }

    /// Runs the engine and its link for a microsecond.
    fn work(&mut self, now: u64, lost: impl Fn() -> bool) {
        self.end.engine.handle_timeout(self.end.now);
        if self.link.is_empty() {
            self.end.engine.poll_transmit(self.end.now, &mut self.batch);
            for frame in self.batch.frames() {
                let packets = frame.packets();
                self.link.extend(packets.map(|(net, bytes)| Said { net, bytes: bytes.to_vec() }));
            }
            self.batch.clear();
        }
        self.credit += BYTES_A_MICROSECOND;
        while let Some(said) = self.link.front() {
            let size = said.bytes.len() + AROUND;
            if size > self.credit {
                return;
            }
            self.credit -= size;
            let said = self.link.pop_front().expect("just seen");
            if !lost() {
                self.away.push_back((now + DELAY, said));
            }
        }
        self.credit = 0;
    }
}

/// The results of a run.
#[derive(Debug)]
struct Seen {
    /// The goodput in percent of the link rate.
    goodput: u64,
    /// The acknowledgement timeouts before [`WARM`], and after it.
    early_timeouts: u64,
    timeouts: u64,
    round_trip_timeouts: u64,
    naks: u64,
    /// The longest time without a completion after [`WARM`], in microseconds.
    longest: u64,
}

/// Runs a connection; `loss` is the number of lost packets per thousand.
fn run(read: bool, loss: usize) -> Seen {
    let rng = std::cell::RefCell::new(Rng::new(7));
    let mut sides = [Side::new(1, 2), Side::new(2, 1)];
    let (mut outstanding, mut done, mut last, mut longest) = (0, 0, 0, 0);
    let mut early_timeouts = 0;
    for now in 0..END {
        for from in 0..2 {
            sides[from].end.now = Time::from_nanos(now * 1000);
            while sides[1 - from].away.front().is_some_and(|(at, _)| *at <= now) {
                let (_, said) = sides[1 - from].away.pop_front().expect("just seen");
                sides[from].end.take(&said);
            }
        }
        let requester = &sides[0].end;
        let completed = requester.completions();
        assert!(completed.iter().all(|c| c.status == rxe_core::queue::Status::Success));
        if !completed.is_empty() {
            longest = longest.max(now - last);
            last = now;
        }
        outstanding -= completed.len();
        if now >= WARM {
            done += completed.len() as u64;
        }
        if now == WARM {
            (last, longest) = (now, 0);
            early_timeouts = requester.engine.counters().ack_timeout;
        }
        while outstanding < 16 {
            let remote = Remote { addr: BASE, rkey: KEY };
            let sge = Sge { addr: BASE, length: MESSAGE, lkey: KEY };
            let write = SendOp::Write { remote, imm: None };
            requester.send(if read { SendOp::Read { remote } } else { write }, sge);
            outstanding += 1;
        }
        for side in &mut sides {
            side.work(now, || rng.borrow_mut().index(1000) < loss);
        }
    }
    let counters = sides[0].end.engine.counters();
    let bytes = done * u64::from(MESSAGE);
    Seen {
        goodput: bytes * 100 / ((END - WARM) * BYTES_A_MICROSECOND as u64),
        early_timeouts,
        timeouts: counters.ack_timeout - early_timeouts,
        round_trip_timeouts: counters.round_trip_timeout,
        naks: counters.retry_sequence_nak + counters.retry_implied_nak,
        longest: longest.max(END - last),
    }
}

/// The minimum goodput of WRITE and READ, in percent of the link rate, for each loss in packets per
/// thousand.
const LEAST: [(usize, u64, u64); 4] = [(0, 90, 90), (1, 88, 85), (10, 60, 50), (50, 20, 14)];

#[test]
fn goodput_over_a_link_that_loses() {
    for (loss, write, least_read) in LEAST {
        for (read, least) in [(false, write), (true, least_read)] {
            let seen = run(read, loss);
            println!("{} {loss} in 1000 lost: {seen:?}", if read { "READ" } else { "WRITE" });
            assert!(seen.goodput >= least, "{} % of the link", seen.goodput);
            assert!(
                seen.early_timeouts <= 1,
                "{} before the first measurement",
                seen.early_timeouts
            );
            assert_eq!(seen.timeouts, 0, "round-trip timeouts come first");
            assert!(seen.longest < 67_000, "{} µs without a completion", seen.longest);
            assert_eq!(loss == 0, seen.naks + seen.round_trip_timeouts == 0);
        }
    }
}
