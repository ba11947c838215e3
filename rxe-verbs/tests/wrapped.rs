//! Devices with a capture, with faults, over packet sockets, and on a simulated network.

mod common;

use common::*;
use rxe_lab::capture::{Capture, Direction};
use rxe_net::{FaultAction, FaultAmount, FaultRule, Hub};
use rxe_verbs::*;

#[test]
fn everything_arrives_in_spite_of_faults() {
    let faults = "drop 2%; dup 1%; reorder 2% by 3".parse().unwrap();
    let a = Device::options("lo").address(address()).faults(1, faults).open().unwrap();
    let (a, b) = (Side::new(a), Side::new(open(address())));
    connect(&a.qp, &b.qp);
    let (mine, theirs) = (a.region(200_000), b.region(200_000));
    for round in 0..4 {
        let bytes = pattern(100_000, round);
        mine.write_at(0, &bytes).unwrap();
        a.qp.write(1, &[mine.slice(..100_000)], theirs.remote(7)).post().unwrap();
        a.qp.read(2, &[mine.slice(100_000..)], theirs.remote(7)).post().unwrap();
        a.ok();
        a.ok();
        assert_eq!(mine.to_vec(100_000..).unwrap(), bytes);
    }
    assert!(a.device.net_counters().injected > 0);
}

#[test]
fn a_capture_shows_every_packet_and_why_one_was_refused() {
    let path = std::env::temp_dir().join(format!("rxe-verbs-{}.pcapng", std::process::id()));
    let b = Device::options("lo").address(address()).pcap(&path).open().unwrap();
    let (a, b) = (Side::new(open(address())), Side::new(b));
    connect(&a.qp, &b.qp);
    let to = b.region(100);
    a.qp.write_bytes(1, b"good", to.remote(0)).post().unwrap();
    a.ok();
    a.qp.write_bytes(2, b"bad", to.remote(98)).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteAccess);
    assert!(b.device.capture().unwrap().status().stopped.is_none());
    // The file is complete when the device is dropped.
    drop((to, b));
    let capture = Capture::open(&path).unwrap();
    let packets = &capture.frames;
    std::fs::remove_file(&path).unwrap();
    assert!(packets.len() >= 4, "two requests, two answers: {}", packets.len());
    let inbound = packets.iter().filter(|p| p.direction == Some(Direction::Inbound));
    assert!(inbound.count() >= 2);
    let remarks: Vec<_> = packets.iter().flat_map(|p| &p.comments).collect();
    assert!(remarks.iter().any(|r| r.contains("outside the memory region")), "{remarks:?}");
}

#[test]
fn a_network_in_memory_serves_as_well() {
    let hub = Hub::new(3, &[FaultRule::new(FaultAction::Drop, FaultAmount::percent(1))]);
    hub.like_udp();
    let side = |ip: &str| {
        let ip = ip.parse().unwrap();
        let port = hub.port(&[ip]).unwrap();
        Device::options("lo").address(ip).custom_backend(Box::new(port)).open().unwrap()
    };
    let (a, b) = (Side::new(side("10.0.0.1")), Side::new(side("10.0.0.2")));
    connect(&a.qp, &b.qp);
    let (mine, theirs) = (a.region(300_000), b.region(300_000));
    theirs.write_at(0, &pattern(300_000, 5)).unwrap();
    a.qp.read(1, &[mine.slice(..)], theirs.remote(0)).post().unwrap();
    a.ok();
    assert_eq!(mine.to_vec(..).unwrap(), pattern(300_000, 5));
}

#[test]
fn packet_sockets_serve_as_well() {
    let side = |ip| Device::options("lo").address(ip).backend(BackendKind::Packet).open();
    let (a, b) = match (side(address()), side(address())) {
        (Ok(a), Ok(b)) => (Side::new(a), Side::new(b)),
        (Err(Error::Net(e @ NetError::NoPrivilege { .. })), _) => {
            skipped("packet_sockets_serve_as_well", e);
            return;
        }
        (a, b) => panic!("{a:?} {b:?}"),
    };
    assert_eq!(a.device.backend_name(), "packet");
    connect(&a.qp, &b.qp);
    let (mine, theirs) = (a.region(1 << 20), b.region(1 << 20));
    mine.write_at(0, &pattern(300_000, 5)).unwrap();
    a.qp.write(1, &[mine.slice(..300_000)], theirs.remote(0)).post().unwrap();
    a.qp.read(2, &[mine.slice(500_000..800_000)], theirs.remote(0)).post().unwrap();
    a.ok();
    a.ok();
    assert_eq!(mine.to_vec(500_000..800_000).unwrap(), pattern(300_000, 5));
}
