//! Fuzzes descriptions of faults. After a zero byte, the input has packets for a link with these faults.
//!
//! A description is rejected with an error that quotes the word at the reported column, or it has
//! the same meaning after it was printed and parsed again. The link accepts any packets, and
//! delivers no more copies than the rules allow.

use std::net::{IpAddr, Ipv4Addr};

use rxe_core::wire::{NetHeader, TxBatch, TxLimits};
use rxe_net::{Backend, Fault, Hub};
use rxe_verbs::FaultPlan;

const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
/// The length of a packet in bytes: enough for the headers of any packet.
const PACKET: usize = 40;

/// Parses the description and sends the packets.
///
/// # Panics
/// If an invariant is violated.
pub fn run(data: &[u8]) {
    let (text, packets) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[][..]),
    };
    let text = String::from_utf8_lossy(text);
    match text.parse::<FaultPlan>() {
        Ok(plan) => {
            assert_eq!(plan.to_string().parse().as_ref(), Ok(&plan), "{text:?}");
            link(&plan, packets);
        }
        Err(error) => {
            let place: String = text.chars().skip(error.column() - 1).collect();
            assert!(place.starts_with(error.word()), "{text:?}: {error}");
        }
    }
}

/// Sends the packets over a link with the faults of `plan`.
fn link(plan: &FaultPlan, packets: &[u8]) {
    let hub = Hub::new(1, &[]);
    let [port, mut peer] = ADDRESSES.map(|ip| hub.port(&[ip]).expect("a free address"));
    let mut port = Fault::new(port, 1, plan.rules()).expect("a timer descriptor");
    let limits = TxLimits { burst_segments: 1, ..TxLimits::default() };
    let mut batch = TxBatch::new(limits);
    let mut sent = 0;
    for (index, packet) in packets.chunks(PACKET).enumerate() {
        let [a, b] = ADDRESSES;
        let (from, to) = if index % 2 == 0 { (a, b) } else { (b, a) };
        let mut net = NetHeader::outgoing(from, to, 4791);
        net.tos = packet[0];
        batch.push(net, packet.len(), |_, buf| buf.extend_from_slice(packet));
        if from == a {
            port.send(&mut batch).expect("a network in memory");
        } else {
            peer.send(&mut batch).expect("a network in memory");
        }
        sent += 1;
    }
    let mut got = 0;
    for end in [&mut port as &mut dyn Backend, &mut peer] {
        end.receive(usize::MAX, &mut |frame| got += frame.packets().count())
            .expect("a network in memory");
    }
    assert!(got <= sent * (1 + plan.rules().len()), "{got} of {sent}");
}
