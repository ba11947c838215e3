//! Devices with more than one block of queue pair numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Leases one more block and starts to use it.
fn lease(backend: &mut impl Sharing) -> u8 {
    let block = backend.port_groups().unwrap().lease().unwrap();
    backend.take_up().unwrap();
    block
}

/// Sends to these blocks and checks that the backend receives those in `own`.
fn gets(from: &mut impl Backend, to: &mut impl Backend, number: u32, blocks: &[u8], own: &[u8]) {
    send(from, "127.0.0.9", number, blocks);
    has(to, number, own);
}

/// Checks that packets with this number have arrived for these blocks.
fn has(backend: &mut impl Backend, number: u32, blocks: &[u8]) {
    let all = receive_packets(backend, blocks.len());
    let number_of = |p: &[u8]| u32::from_be_bytes(p[8..12].try_into().unwrap());
    let mut got: Vec<_> = all.iter().map(|(_, p)| (p[5], number_of(p))).collect();
    got.sort_unstable();
    assert!(got.iter().copied().eq(blocks.iter().map(|b| (*b, number))), "{got:?}");
}

fn sender() -> UdpBackend {
    UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.9")])).unwrap()
}

fn further_blocks_are_leased_one_by_one<B: Backend + Sharing>(open: impl Fn() -> B) {
    let mut from = sender();
    let (mut a, mut b) = (open(), open());
    assert_eq!((lease(&mut a), lease(&mut b), lease(&mut a)), (3, 4, 5));
    assert_eq!(a.port_groups().unwrap().blocks(), [1, 3, 5]);
    let mut c = open();
    assert_eq!(block(&c), 6);
    let all = [5, 4, 3, 2, 1, 6];
    gets(&mut from, &mut a, 7, &all, &[1, 3, 5]);
    has(&mut b, 7, &[2, 4]);
    has(&mut c, 7, &[6]);
    // When a process ends, its blocks become free, and the packets of others still reach them.
    drop(a);
    gets(&mut from, &mut b, 9, &all, &[2, 4]);
    has(&mut c, 9, &[6]);
    assert_eq!([lease(&mut c), lease(&mut b), lease(&mut c)], [1, 3, 5]);
    gets(&mut from, &mut b, 10, &all, &[2, 3, 4]);
    has(&mut c, 10, &[1, 5, 6]);
    drop(b);
    drop(c);
    assert_eq!(block(&open()), 1);
}

#[test]
fn further_blocks_are_leased_one_by_one_udp() {
    in_namespace("", || further_blocks_are_leased_one_by_one(open));
}

#[test]
fn further_blocks_are_leased_one_by_one_packet() {
    in_namespace("", || {
        let config = PacketConfig::new("lo", [ip(ADDRESS)]);
        further_blocks_are_leased_one_by_one(|| PacketBackend::open(&config).unwrap());
    });
}

#[test]
fn all_blocks_can_be_one_device_s() {
    in_namespace("", || {
        let mut from = sender();
        let mut all = open();
        for block in 2..=255 {
            assert_eq!(all.port_groups().unwrap().lease().unwrap(), block);
        }
        all.take_up().unwrap();
        gets(&mut from, &mut all, 1, &[255, 17, 1], &[1, 17, 255]);
        let error = all.port_groups().unwrap().lease().unwrap_err();
        assert!(matches!(error, NetError::NoBlock { .. }), "{error}");
        let error = UdpBackend::open(&UdpConfig::new("lo", [ip(ADDRESS)])).err().unwrap();
        assert!(matches!(error, NetError::NoBlock { .. }), "{error}");
        gets(&mut from, &mut all, 2, &[254], &[254]);
    });
}

#[test]
fn merged_packets_for_several_blocks_of_a_device_are_its_own() {
    in_namespace("", || {
        let mut a = open();
        lease(&mut a);
        let mut b = open();
        let mut from = sender();
        let net = NetHeader::outgoing(ip("127.0.0.9"), ip(ADDRESS), UDP_PORT);
        let mut batch = TxBatch::new(from.capabilities().tx);
        for number in [1, 2, 3, 2, 1u8] {
            batch.push(net, 20, |_, buf| buf.extend([[0; 5].as_slice(), &[number; 15]].concat()));
        }
        send_all(&mut from, &mut batch);
        let got = receive_packets(&mut a, 4);
        assert_eq!(got.iter().map(|(_, bytes)| bytes[5]).collect::<Vec<_>>(), [1, 2, 2, 1]);
        assert_eq!(receive_packets(&mut b, 1)[0].1[5], 3);
        // Merged packets for another process are forwarded to its inbox, for any of its blocks.
        for number in [3, 1, 2u8] {
            batch.push(net, 20, |_, buf| buf.extend([[0; 5].as_slice(), &[number; 15]].concat()));
        }
        send_all(&mut from, &mut batch);
        assert_eq!(receive_packets(&mut b, 1)[0].1[5], 3);
        let got = receive_packets(&mut a, 2);
        assert_eq!(got.iter().map(|(_, bytes)| bytes[5]).collect::<Vec<_>>(), [1, 2]);
    });
}

fn addresses_that_come_have_all_blocks<B: Backend + Sharing>(open: impl Fn(&[&str]) -> B) {
    const OTHER: &str = "127.0.0.2";
    let to = |from: &mut UdpBackend, dst: &str, number: u32, blocks: &[u8]| {
        let net = NetHeader::outgoing(ip("127.0.0.9"), ip(dst), UDP_PORT);
        let mut batch = TxBatch::new(from.capabilities().tx);
        for &block in blocks {
            let qpn = Qpn::from_wire(u32::from(block) << 16);
            batch.push_to(net, qpn, 20, |_, buf| {
                buf.extend([0, 0, 0, 0, 0, block, 0, 0]);
                buf.extend(number.to_be_bytes());
                buf.resize(buf.len() + 8, 0);
            });
        }
        send_all(from, &mut batch);
    };
    let both = |backend: &mut B, number: u32| has(backend, number, &[1, 2]);
    let mut from = sender();
    let mut a = open(&[ADDRESS]);
    assert_eq!(lease(&mut a), 2);
    // Another device has one of the blocks on the new address, which therefore cannot be shared.
    let taken = open(&[OTHER]);
    let error = move_to(&mut a, &[ip(ADDRESS), ip(OTHER)]).unwrap_err();
    assert!(matches!(error, NetError::BlockTaken { block: 1, .. }), "{error}");
    drop(taken);
    move_to(&mut a, &[ip(ADDRESS), ip(OTHER)]).unwrap();
    to(&mut from, OTHER, 3, &[1, 2]);
    both(&mut a, 3);
    // The address is removed and added again.
    move_to(&mut a, &[ip(ADDRESS)]).unwrap();
    assert_eq!(block(&open(&[OTHER])), 1);
    move_to(&mut a, &[ip(ADDRESS), ip(OTHER)]).unwrap();
    to(&mut from, OTHER, 4, &[1, 2]);
    both(&mut a, 4);
    // The same with the address that was there from the start.
    move_to(&mut a, &[ip(OTHER)]).unwrap();
    move_to(&mut a, &[ip(OTHER), ip(ADDRESS)]).unwrap();
    to(&mut from, ADDRESS, 5, &[1, 2]);
    both(&mut a, 5);
    assert_eq!(lease(&mut a), 3);
    to(&mut from, OTHER, 6, &[3]);
    has(&mut a, 6, &[3]);
}

#[test]
fn addresses_that_come_have_all_blocks_udp() {
    in_namespace("", || {
        addresses_that_come_have_all_blocks(|addresses| {
            let addresses: Vec<_> = addresses.iter().map(|a| ip(a)).collect();
            UdpBackend::open(&UdpConfig::new("lo", addresses)).unwrap()
        });
    });
}

#[test]
fn addresses_that_come_have_all_blocks_packet() {
    in_namespace("", || {
        addresses_that_come_have_all_blocks(|addresses| {
            let addresses: Vec<_> = addresses.iter().map(|a| ip(a)).collect();
            PacketBackend::open(&PacketConfig::new("lo", addresses)).unwrap()
        });
    });
}

#[test]
fn killing_a_process_frees_all_its_blocks() {
    in_namespace("", || {
        let mut from = sender();
        for more in [1, 3] {
            let mut first = Process::start(&["env", &format!("RXE_TEST_LEASES={more}")]);
            assert_eq!(first.says(), "1");
            let mut own = open();
            assert_eq!(block(&own), more + 2);
            assert_eq!(lease(&mut own), more + 3);
            first.kill();
            gets(&mut from, &mut own, 1, &[more + 3, more + 2], &[more + 2, more + 3]);
            let mut heir = open();
            assert_eq!((block(&heir), lease(&mut heir)), (1, 2));
            gets(&mut from, &mut heir, 2, &[1, 2, more + 3], &[1, 2]);
            has(&mut own, 2, &[more + 3]);
        }
    });
}

/// Returns whether a process is joining this address's group.
fn somebody_enters(address: &str) -> bool {
    Directory::open().lock(&ScopedAddr::new(ip(address), 0)).unwrap().is_none()
}

#[test]
fn who_waits_for_one_that_is_stopped_goes_on_working() {
    in_namespace("", || {
        // A process that never answers.
        let _holder = Stopped::with_block_9("127.0.0.2");
        let (mut from, mut a) = (sender(), open());
        let groups = a.port_groups().unwrap();
        let addresses = [ip(ADDRESS), ip("127.0.0.2")];
        thread::scope(|scope| {
            let entering = scope.spawn(|| groups.enter(&addresses));
            while !somebody_enters("127.0.0.2") {
                thread::yield_now();
            }
            gets(&mut from, &mut a, 1, &[1], &[1]);
            a.set_addresses(&addresses[..1]).unwrap();
            assert!(somebody_enters("127.0.0.2"), "it did not wait for that");
            entering.join().unwrap();
        });
        let error = a.set_addresses(&addresses).unwrap_err();
        assert!(matches!(error, NetError::NoAnswer { .. }), "{error}");
        gets(&mut from, &mut a, 2, &[1], &[1]);
    });
}

#[test]
fn a_closed_device_waits_for_nobody() {
    in_namespace("", || {
        // Another process holds the lock of the other address and never releases it.
        let _lock = lock("127.0.0.2");
        let a = open();
        let groups = a.port_groups().unwrap();
        let held = Arc::clone(&groups);
        let entering = thread::spawn(move || held.enter(&[ip("127.0.0.2")]));
        drop(a);
        assert_eq!(block(&open()), 1, "all is given back although somebody waits");
        entering.join().unwrap();
        assert!(groups.take_ready().is_empty());
        let error = groups.take_failed();
        assert!(matches!(error, Some(NetError::NoAnswer { .. })), "{error:?}");
    });
}

#[test]
fn what_is_wrong_with_an_address_does_not_keep_a_block_from_being_taken_up() {
    in_namespace("", || {
        let (mut from, mut a) = (sender(), open());
        let addresses = [ip(ADDRESS), ip("127.0.0.2")];
        let _taken = UdpBackend::open(&UdpConfig::new("lo", [addresses[1]])).unwrap();
        a.port_groups().unwrap().enter(&addresses);
        assert_eq!(lease(&mut a), 2);
        gets(&mut from, &mut a, 1, &[1, 2], &[1, 2]);
        // The error is returned again, without another attempt.
        let error = a.set_addresses(&addresses).unwrap_err();
        assert!(matches!(error, NetError::BlockTaken { block: 1, .. }), "{error}");
    });
}

#[test]
fn a_place_on_an_address_is_ready_when_all_are() {
    in_namespace("", || {
        let mut a = open();
        assert_eq!(lease(&mut a), 2);
        // Another process has the second block on the new address.
        let other = || UdpBackend::open(&UdpConfig::new("lo", [ip("127.0.0.2")])).unwrap();
        let (first, _second) = (other(), other());
        drop(first);
        let groups = a.port_groups().unwrap();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    groups.enter(&[ip(ADDRESS), ip("127.0.0.2")]);
                }
                ended.store(true, Ordering::Relaxed);
            });
            while !ended.load(Ordering::Relaxed) {
                assert!(groups.take_ready().is_empty());
            }
        });
        assert_eq!(groups.addresses(), [ip(ADDRESS)]);
    });
}
