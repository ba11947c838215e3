//! Tests of what another process may write into a ring.

use rxe_core::wire::{Frame, NetHeader, UDP_PORT};

use super::super::link::FRAME;
use super::super::ring::LAYOUT;
use super::{Offered, ip, offer, open};
use crate::backend::Backend;
use crate::host::message;
use crate::testing::in_namespace;
use crate::wrappers::pcap::{Pcap, PcapOptions};

/// Once a sender is gone its ring ends, even if the sender has left one that never would.
#[test]
fn what_a_sender_leaves_behind_ends() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let Offered { line, mut ring, memory, wake: _wake } = offer();
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let frame = message::emit(&Frame::single(net, &[0]));
        let mut count = 0;
        while ring.push(FRAME, [&frame, &[0]]).unwrap() {
            count += 1;
        }
        // One more record at the place after the last one, where none is yet.
        let [.., records] = LAYOUT;
        let mut record = [0; 128];
        rustix::io::pread(&memory, &mut record, records as u64).unwrap();
        rustix::io::pwrite(&memory, &record, (records + count * record.len()) as u64).unwrap();
        to.poll_control();
        drop(line);
        let mut taken = 0;
        while !to.incoming.is_empty() {
            taken += to.receive(64, &mut |_| {}).unwrap();
            assert!(taken < 3 * count, "it goes on for ever");
        }
        assert!(taken > count, "all that it held was taken");
    });
}

/// Records that another process may write instead of a packet: each is refused, and its ring
/// dropped.
#[test]
fn records_that_lie_about_their_packets_are_refused() {
    in_namespace("", || {
        let mut to = open("127.0.0.2");
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let header = message::emit_header(&net, 1);
        let whole = [&header[..], &[0; 12 + 8]].concat();
        // The kind, flags (a header, aligned), the length of the packet's headers; above, the
        // number of further packets.
        let tag = |kind: u32, flags: u32, head: u32| kind | flags << 8 | head << 16;
        let lies: [(u32, &[u8]); 8] = [
            (tag(2, 0, 12), &whole[60..]), // no header came before
            (tag(2, 1, 12), &whole[..59]), // a part of a header
            (tag(2, 1, 12), &whole[1..]),  // no header
            (tag(2, 1, 12), &whole[..71]), // a part of a BTH
            (tag(2, 3, 12), &whole),       // the payload would begin behind the end
            (tag(2, 1, 45), &[0; 200]),    // longer than any headers
            (tag(2, 4, 12), &whole),       // an unknown flag
            (tag(3, 1, 12), &whole),
        ];
        for (tag, bytes) in lies {
            let mut offered = offer();
            to.poll_control();
            assert_eq!(to.incoming.len(), 1);
            offered.ring.push(tag, [bytes, &[]]).unwrap();
            let mut frames = 0;
            to.receive(64, &mut |_| frames += 1).unwrap();
            assert_eq!((frames, to.incoming.len()), (0, 0), "{tag:#x}");
        }
    });
}

/// A record can be longer than any datagram, which a capture cannot represent.
#[test]
fn a_packet_that_no_wire_carries_is_missing_in_a_capture() {
    in_namespace("", || {
        let name = format!("rxe-net-long-{}.pcapng", std::process::id());
        let options = PcapOptions::new(std::env::temp_dir().join(name));
        let mut to = Pcap::new(open("127.0.0.2"), &options).unwrap();
        let mut offered = offer();
        let net = NetHeader::outgoing(ip("127.0.0.1"), ip("127.0.0.2"), UDP_PORT);
        let heads = [&message::emit_header(&net, 1)[..], &[0; 12]].concat();
        offered.ring.push(2 | 1 << 8 | 12 << 16, [&heads, &[0; 65_500]]).unwrap();
        let mut packets = 0;
        while packets == 0 {
            packets += to.receive(64, &mut |_| {}).unwrap();
        }
        assert_eq!((packets, to.handle().status().dropped), (1, 1));
        std::fs::remove_file(&options.path).unwrap();
    });
}
