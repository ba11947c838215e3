//! Tests of which end receives what, and of what happens when an end goes away.

use rxe_core::wire::{IpId, NetHeader, UDP_PORT};

use super::super::Route;
use super::{block, ip, open, over_the_wire, readable, receive, send};
use crate::backend::Backend;
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::testing::{in_namespace, move_to};

#[test]
fn frames_stay_on_the_host_and_are_whole() {
    in_namespace("", || {
        for (a, b) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
            let (mut from, mut to) = (open(a), open(b));
            for round in 0..3u16 {
                send(&mut from, a, b, block(&to), 100);
                let got = receive(&mut to, 100);
                let net = NetHeader::outgoing(ip(a), ip(b), UDP_PORT);
                let ids = got.iter().all(|n| match n.id {
                    IpId::Known { flags, .. } => flags == 0x4000,
                    IpId::Absent => a == "::1",
                    IpId::Hidden => false,
                });
                assert!(ids, "{round}");
                let same = |n: &NetHeader| (n.src, n.dst, n.tos) == (net.src, net.dst, 0x68);
                assert!(got.iter().all(same));
            }
            assert_eq!((over_the_wire(&to), to.counters().rx_packets), (0, 300));
            assert_eq!(from.counters().tx_packets, 300);
            // And in the other direction, over another ring.
            send(&mut to, b, a, block(&from), 10);
            receive(&mut from, 10);
            assert_eq!(over_the_wire(&from), 0);
        }
    });
}

#[test]
fn a_device_reaches_itself() {
    in_namespace("", || {
        let mut own = open("127.0.0.1");
        let block = block(&own);
        send(&mut own, "127.0.0.1", "127.0.0.1", block, 70);
        receive(&mut own, 70);
        own.watch(true);
        send(&mut own, "127.0.0.1", "127.0.0.1", block, 5);
        assert!(readable(&own, 0), "also who sleeps learns of it");
        receive(&mut own, 5);
        assert!(!readable(&own, 0));
    });
}

#[test]
fn who_is_gone_is_forgotten_and_whoever_comes_instead_is_found() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        for _ in 0..3 {
            let mut to = open("127.0.0.2");
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
            receive(&mut to, 20);
            send(&mut to, "127.0.0.2", "127.0.0.1", 1, 20);
            receive(&mut from, 20);
            drop(to);
            // Packets on the way are lost; nothing worse happens.
            send(&mut from, "127.0.0.1", "127.0.0.2", 1, 20);
            while from.routes.values().any(|r| matches!(r, Route::Ring(_))) {
                from.receive(1, &mut |_| panic!("from nobody")).unwrap();
            }
            assert!(from.incoming.is_empty());
            assert!(!readable(&from, 0));
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains("rxe-ring"), "no memory is left: {maps}");
        }
    });
}

#[test]
fn without_shared_memory_there_it_goes_over_the_wire() {
    in_namespace("", || {
        let mut from = open("127.0.0.1");
        let mut to = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.2")])).unwrap();
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 10);
        receive(&mut to, 10);
        // An address that does not belong to the device is refused here too.
        send(&mut from, "127.0.0.9", "127.0.0.2", 1, 10);
        assert_eq!(from.counters().tx_bad_address, 10);
    });
}

#[test]
fn no_rings_are_taken_for_what_is_another_s() {
    in_namespace("", || {
        let mut a = open("127.0.0.1");
        // The other process has the same block on the new address, and no shared memory.
        let mut holder = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.2")])).unwrap();
        assert_eq!((block(&a), block(&holder)), (1, 1));
        move_to(&mut a, &[ip("127.0.0.1"), ip("127.0.0.2")]).unwrap_err();
        let mut from = open("127.0.0.9");
        send(&mut from, "127.0.0.9", "127.0.0.2", 1, 3);
        receive(&mut holder, 3);
        send(&mut a, "127.0.0.1", "127.0.0.2", 1, 3);
        receive(&mut holder, 3);
    });
}

/// A ring that always has something must not delay the wire.
#[test]
fn a_busy_ring_does_not_starve_the_wire() {
    in_namespace("", || {
        let (mut from, mut to) = (open("127.0.0.1"), open("127.0.0.2"));
        let mut elsewhere = UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.3")])).unwrap();
        send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
        receive(&mut to, 1);
        for _ in 0..10 {
            // Long enough for the interval to grow.
            for _ in 0..200 {
                send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
                to.receive(64, &mut |_| {}).unwrap();
            }
            let before = over_the_wire(&to);
            send(&mut elsewhere, "127.0.0.3", "127.0.0.2", 1, 1);
            let mut calls = 0;
            while over_the_wire(&to) == before {
                send(&mut from, "127.0.0.1", "127.0.0.2", 1, 1);
                to.receive(64, &mut |_| {}).unwrap();
                calls += 1;
                assert!(calls <= 256, "it waits");
            }
        }
    });
}
