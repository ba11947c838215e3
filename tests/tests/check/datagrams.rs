//! Datagrams of two queue pairs to three destinations, with a known fault.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rxe_core::types::{Psn, Qkey, Qpn};
use rxe_core::wire::{Bth, Deth, Ext, NetHeader, Opcode, UDP_PORT, emit};
use rxe_lab::check::{Kind, Report};
use rxe_tests::lone::Said;
use rxe_tests::sim::rng::Rng;

use crate::check;
use crate::conversation::capture;

/// The fault of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Drop,
    Duplicate,
    Corrupt,
    Delay,
    /// One of the senders uses another Q_Key.
    OtherKey,
}

const FAULTS: [Fault; 6] =
    [Fault::None, Fault::Drop, Fault::Duplicate, Fault::Corrupt, Fault::Delay, Fault::OtherKey];

/// The destinations: two hosts and a multicast group.
const DESTINATIONS: [([u8; 4], u32); 3] =
    [([10, 0, 0, 2], 0x12), ([10, 0, 0, 3], 0x12), ([239, 0, 0, 1], 0xff_ffff)];

/// A datagram.
struct Datagram {
    sender: usize,
    to: usize,
    psn: Psn,
    key: u32,
    len: usize,
}

impl Datagram {
    fn said(&self) -> Said {
        let (ip, qp) = DESTINATIONS[self.to];
        let net = NetHeader::outgoing(IpAddr::from([10, 0, 0, 1]), IpAddr::from(ip), UDP_PORT);
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::from_wire(qp), self.psn);
        let source = Qpn::from_wire(0x11 + u32::try_from(self.sender).unwrap());
        let deth = Some(Deth::new(Qkey::new(self.key), source));
        let ext = Ext { deth, ..Ext::default() };
        let mut bytes = Vec::new();
        emit::packet_from(&net, &mut bytes, &bth, &ext, &vec![7; self.len]);
        Said { net, bytes }
    }
}

/// Returns the report of a capture and the findings that it must have. The findings are kinds, and
/// the numbers of datagrams in total, missing and late.
fn converse(seed: u64, fault: Fault) -> (Report, BTreeSet<Kind>, [u64; 3]) {
    let mut rng = Rng::new(seed);
    let mut psns = [Psn::new(rng.word()), Psn::new(rng.word())];
    let mut all = Vec::new();
    for _ in 0..rng.within(20..=60) {
        let (sender, to) = (rng.index(2), rng.index(3));
        let key = if fault == Fault::OtherKey && sender == 1 { 2 } else { 1 };
        let len = rng.pick(&[0, 1, 100, 1024, 4096]);
        all.push(Datagram { sender, to, psn: psns[sender], key, len });
        psns[sender] = psns[sender].next();
    }
    // The victim is neither the first nor the last datagram of its sender, because those leave no
    // trace.
    let of =
        |sender| -> Vec<usize> { (0..all.len()).filter(|at| all[*at].sender == sender).collect() };
    let inner = [of(0), of(1)].into_iter().flat_map(|of| of[1..of.len() - 1].to_vec());
    let victim = rng.pick(&inner.collect::<Vec<_>>());
    let is_group = all[victim].to == 2;
    let next = of(all[victim].sender).into_iter().find(|at| *at > victim).unwrap();
    let (mut kinds, mut numbers) = (BTreeSet::new(), [all.len() as u64, 0, 0]);
    let mut order: Vec<_> = (0..all.len()).collect();
    match fault {
        Fault::None => {}
        Fault::Drop => {
            order.remove(victim);
            (kinds, numbers) = ([Kind::DatagramsMissing].into(), [numbers[0] - 1, 1, 0]);
        }
        Fault::Duplicate => {
            order.insert(victim + 1, victim);
            kinds.extend((!is_group).then_some(Kind::Duplicate));
        }
        Fault::Corrupt => {
            (kinds, numbers) = ([Kind::Icrc].into(), [numbers[0] - 1, 0, 0]);
        }
        Fault::Delay => {
            order.insert(next + 1, victim);
            order.remove(victim);
            numbers[2] = 1;
        }
        Fault::OtherKey => {
            // The Q_Keys at one queue pair, with consecutive equal keys merged.
            let by_turns = (0..2).any(|to| {
                let keys = all.iter().filter(|d| d.to == to).map(|d| d.key);
                let mut keys: Vec<_> = keys.collect();
                keys.dedup();
                keys.len() > 2
            });
            kinds.extend(by_turns.then_some(Kind::QKey));
        }
    }
    let mut file = Vec::new();
    for (nth, at) in order.into_iter().enumerate() {
        let mut said = all[at].said();
        if fault == Fault::Corrupt && at == victim {
            *said.bytes.last_mut().unwrap() ^= 0x10;
        }
        capture(&mut file, 1000 + 5000 * nth as u64, &said);
    }
    (check(&file), kinds, numbers)
}

#[test]
fn the_faults_of_datagrams_are_found_and_none_is_invented() {
    println!("{:<10} runs  with trace", "datagrams");
    for (nth, fault) in FAULTS.into_iter().enumerate() {
        let (mut runs, mut traces) = (0, 0);
        for seed in (0..2000).filter(|seed| seed % FAULTS.len() == nth) {
            let (report, expected, numbers) = converse(seed as u64, fault);
            let found: BTreeSet<_> = report.findings.iter().map(|f| f.kind).collect();
            assert_eq!(found, expected, "{fault:?}, seed {seed}");
            let senders = report.datagrams.iter();
            let got = senders.fold([0; 3], |[count, missing, late], sender| {
                let counts = sender.destinations.iter().map(|to| to.stats.requests);
                [count + counts.sum::<u64>(), missing + sender.missing, late + sender.late]
            });
            assert_eq!(got, numbers, "{fault:?}, seed {seed}");
            runs += 1;
            traces += u32::from(!expected.is_empty());
        }
        println!("{:<10} {runs:>4}  {traces:>10}", format!("{fault:?}"));
    }
}
