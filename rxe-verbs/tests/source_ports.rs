//! The UDP source ports of queue pairs, as they arrive at the peer.

mod common;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU16;
use std::path::Path;

use common::*;
use rxe_core::wire::Packet;
use rxe_core::wire::frame::parse_ethernet;
use rxe_lab::capture::Capture;
use rxe_verbs::*;

/// Returns the source ports of all packets in a capture, by destination QP. QP1 does not count.
fn ports(path: &Path) -> HashMap<u32, HashSet<u16>> {
    let mut found = HashMap::<_, HashSet<_>>::new();
    for packet in &Capture::open(path).unwrap().frames {
        let (_, datagram) = parse_ethernet(&packet.frame).unwrap();
        let frame = datagram.frame().unwrap();
        let to = Packet::parse(frame.payload).unwrap().bth().dest_qp.value();
        found.entry(to).or_default().insert(frame.net.src_port);
    }
    found
}

/// Sends messages over the network from six queue pairs, one of them UD, to a device at `peer`.
/// Returns the source ports of the packets, by destination queue pair.
fn talk(policy: SourcePortPolicy, kind: BackendKind, own: &str, peer: &str) -> Vec<HashSet<u16>> {
    let open = |ip: &str| {
        let ip = ip.parse().unwrap();
        Device::options("lo").address(ip).backend(kind).shared_memory(false).source_port(policy)
    };
    let path = std::env::temp_dir().join(format!("rxe-{}-ports.pcapng", std::process::id()));
    let a = Side::new(open(own).open().unwrap());
    let b = Side::new(open(peer).pcap(&path).open().unwrap());
    let inbox = b.region(64);
    let mut receivers = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..5 {
        let [from, to] = [&a, &b].map(|side| side.pd.qp(&side.cq).build().unwrap());
        connect(&from, &to);
        to.recv(1, &[inbox.slice(..)]).unwrap();
        from.send_bytes(2, b"hello").post().unwrap();
        assert_eq!((a.ok().id, b.ok().id), (2, 1));
        receivers.push(to.qpn().value());
        senders.push((from, to));
    }
    let qkey = Qkey::new(0x1111_1111);
    let [from, to] = [&a, &b].map(|side| {
        let qp = side.pd.qp(&side.cq).service(QpType::Ud).qkey(qkey).build().unwrap();
        qp.activate().unwrap();
        qp
    });
    to.recv(1, &[inbox.slice(..)]).unwrap();
    let ah = a.pd.create_ah_to(Gid::from(peer.parse::<std::net::IpAddr>().unwrap())).unwrap();
    from.send_bytes(2, b"hello").to(&ah, to.qpn(), qkey).post().unwrap();
    assert_eq!((a.ok().id, b.ok().id), (2, 1));
    receivers.push(to.qpn().value());
    drop((from, to, senders, inbox, a, b));
    let mut found = ports(&path);
    std::fs::remove_file(path).unwrap();
    receivers.iter().map(|qpn| found.remove(qpn).unwrap()).collect()
}

/// The addresses of the two ends, which may be the same.
const ENDS: [(&str, &str); 3] =
    [("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1")];

#[test]
fn queue_pairs_have_source_ports_of_their_own() {
    in_namespace("", || {
        for kind in [BackendKind::Udp, BackendKind::Packet] {
            for (own, peer) in ENDS {
                let found = talk(SourcePortPolicy::PerQp, kind, own, peer);
                assert!(found.iter().all(|ports| ports.len() == 1), "{kind} {own}: {found:?}");
                let all: HashSet<u16> = found.iter().flatten().copied().collect();
                assert!(all.iter().all(|port| *port >= 0xc000), "{kind} {own}: {found:?}");
                // Over packet sockets, ports follow from QPNs, so two queue pairs may have the same
                // port.
                assert!(all.len() >= 4, "{kind} {own}: {found:?}");
                if kind == BackendKind::Udp {
                    // Over UDP sockets, queue pairs use four ports in turn.
                    let first: HashSet<u16> = found[..4].iter().flatten().copied().collect();
                    assert_eq!((first.len(), all.len()), (4, 4), "{own}: {found:?}");
                }
            }
        }
    });
}

#[test]
fn all_queue_pairs_have_the_source_port_that_was_asked_for() {
    in_namespace("", || {
        for kind in [BackendKind::Udp, BackendKind::Packet] {
            for port in [4791, 50_000] {
                let policy = SourcePortPolicy::Fixed(NonZeroU16::new(port).unwrap());
                for (own, peer) in ENDS {
                    let found = talk(policy, kind, own, peer);
                    let one = HashSet::from([port]);
                    assert!(found.iter().all(|ports| *ports == one), "{kind} {own}: {found:?}");
                }
            }
        }
    });
}

#[test]
fn a_source_port_that_is_taken_is_refused() {
    in_namespace("", || {
        let _other = std::net::UdpSocket::bind("127.0.0.1:50000").unwrap();
        let policy = SourcePortPolicy::Fixed(NonZeroU16::new(50_000).unwrap());
        let ip = "127.0.0.1".parse().unwrap();
        let error = Device::options("lo").address(ip).source_port(policy).open().unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("cannot send from UDP port 50000 on 127.0.0.1: process"),
            "{said}"
        );
    });
}
