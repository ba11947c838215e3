use std::net::IpAddr;
use std::os::fd::AsFd;

use rxe_core::wire::frame::{UdpChecksum, emit_ethernet};
use rxe_core::wire::{Ethernet, Mac, NetHeader, VlanTag};

use super::*;
use crate::backends::xdp::load::tests::for_verdicts;
use crate::testing::skipped_without_bpf;
use rxe_sys::bpf;

const MAC: [u8; 6] = [2, 0, 0, 0x11, 0x22, 0x33];
const OURS: [&str; 3] = ["10.0.0.1", "2001:db8::1", "fe80::1"];
const BLOCK_OF_OURS: u8 = 7;

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// A frame with fields to change.
#[derive(Clone)]
struct Sample {
    ethernet: Ethernet,
    net: NetHeader,
    port: u16,
    checksum: UdpChecksum,
    payload: Vec<u8>,
}

impl Sample {
    fn to(dst: &str) -> Self {
        let ethernet = Ethernet { dst: Mac(MAC), src: Mac([2; 6]), ..Ethernet::default() };
        let mut payload = vec![0; 64];
        payload[5] = BLOCK_OF_OURS;
        Self {
            ethernet,
            net: NetHeader::outgoing(ip(dst), ip(dst), 0xc001),
            port: UDP_PORT,
            checksum: UdpChecksum::None,
            payload,
        }
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        let Self { ethernet, net, port, checksum, payload } = self;
        emit_ethernet(ethernet, net, *port, *checksum, payload, &mut frame);
        frame
    }
}

/// Returns whether each frame would go to a socket, with a program whose setup has this change.
fn taken(frames: &[Vec<u8>], change: impl Fn(&mut Setup)) -> Option<Vec<bool>> {
    let ours = OURS.map(ip);
    let (_maps, mut setup) = for_verdicts(MAC, &ours, BLOCK_OF_OURS)?;
    change(&mut setup);
    let flags = if setup.frags { 1 << 5 } else { 0 };
    let loaded = bpf::load_xdp(&program(&setup), flags).unwrap();
    let verdict = |frame: &Vec<u8>| match bpf::test_run(loaded.as_fd(), frame).unwrap() {
        1 => true,
        2 => false,
        other => panic!("verdict {other}"),
    };
    Some(frames.iter().map(verdict).collect())
}

fn expect(cases: &[(Vec<u8>, bool, String)], change: impl Fn(&mut Setup)) {
    let frames: Vec<_> = cases.iter().map(|(frame, _, _)| frame.clone()).collect();
    let got = taken(&frames, change).expect("BPF is permitted");
    for ((frame, expected, name), got) in cases.iter().zip(got) {
        assert_eq!(got, *expected, "{name}: {frame:02x?}");
    }
}

#[test]
fn only_our_packets_are_taken() {
    if skipped_without_bpf("backends::xdp::program::tests::only_our_packets_are_taken") {
        return;
    }
    let mut cases = Vec::new();
    for dst in OURS {
        let ours = Sample::to(dst);
        let mut case = |name: &str, expected, change: &dyn Fn(&mut Sample)| {
            let mut sample = ours.clone();
            change(&mut sample);
            cases.push((sample.frame(), expected, format!("{dst}: {name}")));
        };
        case("ours", true, &|_| {});
        case("with a checksum", true, &|s| s.checksum = UdpChecksum::Compute);
        case("another port", false, &|s| s.port = 4790);
        case("from port 4791 to another", false, &|s| (s.net.src_port, s.port) = (4791, 53));
        case("another block", false, &|s| s.payload[5] = BLOCK_OF_OURS + 1);
        case("QP1", false, &|s| s.payload[5] = 0);
        case("another Ethernet address", false, &|s| s.ethernet.dst = Mac([2; 6]));
        case("its last byte differs", false, &|s| s.ethernet.dst.0[5] ^= 1);
        case("broadcast", false, &|s| s.ethernet.dst = Mac([0xff; 6]));
        case("no payload", false, &|s| s.payload.clear());
        let tag = |tpid, tci| Some(VlanTag { tpid, tci });
        let (customer, service) = (VlanTag::CUSTOMER, VlanTag::SERVICE);
        case("a priority", true, &|s| s.ethernet.vlan = tag(customer, 0xe000));
        case("VLAN 5", false, &|s| s.ethernet.vlan = tag(customer, 5));
        case("VLAN 256", false, &|s| s.ethernet.vlan = tag(customer, 256));
        case("two priorities", true, &|s| {
            s.ethernet.vlan = tag(service, 0xe000);
            s.ethernet.inner_vlan = tag(customer, 0x2000);
        });
        case("VLAN 5 in a priority", false, &|s| {
            s.ethernet.vlan = tag(service, 0xe000);
            s.ethernet.inner_vlan = tag(customer, 5);
        });
    }
    for dst in ["10.0.0.2", "10.0.0.3", "2001:db8::2", "2001:db9::1", "::ffff:10.0.0.1"] {
        cases.push((Sample::to(dst).frame(), false, format!("to {dst}")));
    }
    expect(&cases, |_| {});
    expect(&cases, |setup| setup.frags = true);
}

#[test]
fn other_headers_pass() {
    if skipped_without_bpf("backends::xdp::program::tests::other_headers_pass") {
        return;
    }
    let v4 = Sample::to(OURS[0]).frame();
    let v6 = Sample::to(OURS[1]).frame();
    let changed = |frame: &[u8], at: usize, value: u8| {
        let mut frame = frame.to_vec();
        frame[at] = value;
        frame
    };
    let mut with_options = v4.clone();
    with_options[14] = 0x46;
    with_options.splice(34..34, [1, 1, 1, 0]);
    let case = |frame, name: &str| (frame, false, name.to_owned());
    let mut cases = vec![
        case(with_options, "IPv4 options"),
        case(changed(&v4, 20, 0x20), "more fragments"),
        case(changed(&v4, 21, 1), "a fragment's offset"),
        case(changed(&v4, 23, 6), "TCP"),
        case(changed(&v6, 20, 6), "TCP over IPv6"),
        case(changed(&v6, 20, 44), "a fragment header"),
        case(changed(&v6, 20, 0), "hop-by-hop options"),
        case(changed(&v4, 14, 0x65), "version 6 as IPv4"),
        case(changed(&v6, 14, 0x45), "version 4 as IPv6"),
        case(changed(&v4, 13, 6), "ARP"),
    ];
    // A truncated frame: the program must not read beyond its end.
    for (frame, least) in [(&v4, 14 + 20 + 8 + 6), (&v6, 14 + 40 + 8 + 6)] {
        for len in 14..frame.len() {
            cases.push((frame[..len].to_vec(), len >= least, format!("{len} bytes")));
        }
    }
    expect(&cases, |_| {});
    expect(&cases, |setup| setup.frags = true);
}

#[test]
fn long_frames_pass() {
    if skipped_without_bpf("backends::xdp::program::tests::long_frames_pass") {
        return;
    }
    let frame = Sample::to(OURS[0]).frame();
    for frags in [false, true] {
        for (longest, taken) in [(frame.len(), true), (frame.len() - 1, false)] {
            expect(&[(frame.clone(), taken, format!("{longest}, {frags}"))], |setup| {
                (setup.longest, setup.frags) = (i32::try_from(longest).unwrap(), frags);
            });
        }
    }
}

#[test]
fn in_generic_mode_what_may_be_merged_passes() {
    if skipped_without_bpf(
        "backends::xdp::program::tests::in_generic_mode_what_may_be_merged_passes",
    ) {
        return;
    }
    let cases = OURS.map(|dst| {
        let plain = Sample::to(dst);
        let with_checksum = Sample { checksum: UdpChecksum::Compute, ..plain.clone() };
        [(plain.frame(), true, dst.to_owned()), (with_checksum.frame(), false, dst.to_owned())]
    });
    expect(&cases.concat(), |setup| setup.generic = true);
}
