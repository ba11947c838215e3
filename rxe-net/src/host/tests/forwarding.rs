//! Tests of what is forwarded, and on which thread, where accessing a file may sleep.

use std::path::Path;

use rxe_core::wire::Frame;

use super::*;
use crate::host::untrusted::Device;
use rxe_sys::NonBlocking;

/// Creates two devices that meet below this directory.
fn two(directory: &Path) -> [Device; 2] {
    [1, 2].map(|block| Device::new(&directory.join("rxe"), ip(ADDRESS), block).unwrap())
}

/// Returns a packet to this QPN. If the QPN is 1, it is a REQ for the service of port 7.
fn packet(qpn: u32) -> Vec<u8> {
    let mut packet = vec![0; 280];
    packet[4..8].copy_from_slice(&qpn.to_be_bytes());
    packet[20..24].copy_from_slice(&[1, 7, 2, 3]);
    packet[36..38].copy_from_slice(&[0, 0x10]);
    packet[52..60].copy_from_slice(&[0, 0, 0, 0, 1, 6, 0, 7]);
    packet
}

/// Gives a frame to a device, as under a shard's lock. Returns whether the device kept it.
fn deliver(to: &mut Device, packet: &[u8]) -> bool {
    let net = NetHeader::outgoing(ip("127.0.0.9"), ip(ADDRESS), UDP_PORT);
    let mut own = false;
    let _mark = NonBlocking::enter();
    to.deliver(&Frame::single(net, packet), &mut |_| own = true);
    own
}

fn collect(at: &mut Device) -> Vec<u8> {
    let [packet] = collect_all(at, 1).try_into().unwrap();
    packet
}

fn collect_all(at: &mut Device, count: usize) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while packets.len() < count {
        let _mark = NonBlocking::enter();
        at.collect(&mut |frame| packets.extend(frame.packets().map(|(_, p)| p.to_vec())));
    }
    packets
}

/// `/tmp` is usually on a disk; `/dev/shm` is not.
#[test]
fn no_file_is_looked_at_under_the_lock() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let scratch = tempfile::tempdir_in(parent).unwrap();
        let [mut a, mut b] = two(scratch.path());
        b.listen(0x0106_0007).unwrap();
        for qpn in [1, 0x02_1234] {
            assert!(!deliver(&mut a, &packet(qpn)));
            assert_eq!(collect(&mut b), packet(qpn));
            assert!(deliver(&mut b, &packet(qpn)), "its own");
        }
        drop(b);
        // No process listens: the device that has read the request refuses it.
        assert!(!deliver(&mut a, &packet(1)));
        assert_eq!(collect(&mut a), packet(1));
    }
}

/// The REJ of a client that gives up names no process. The process that reads it may be meant, and
/// so may every process that listens.
#[test]
fn a_client_that_gives_up_is_heard_by_all_who_listen() {
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let scratch = tempfile::tempdir_in(parent).unwrap();
        let [mut a, mut b] = two(scratch.path());
        let mut end = packet(1);
        end[36..38].copy_from_slice(&[0, 0x12]);
        // A request before it and one after it: they arrive in this order.
        let request = packet(1);
        b.listen(0x0106_0007).unwrap();
        for _ in 0..100 {
            assert!(!deliver(&mut a, &request) && deliver(&mut a, &end), "it may be its own");
            assert_eq!(collect_all(&mut b, 2), [request.clone(), end.clone()]);
        }
        assert!(deliver(&mut b, &end), "nobody else listens");
        assert!(!deliver(&mut a, &request));
        assert_eq!(collect(&mut b), request);
    }
}
