//! The catalogue of hostile packets: how a queue pair must react to any packet.
//! A faulty network, a broken peer or an attacker may send anything. Each area has a file. `dsl` is
//! the language of the cases, and `docs/en/project/conformance.md` is the catalogue in words.
//!
//! `CONFORMANCE=text` runs only the cases whose name contains the text.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small numbers, chosen by hand"
)]

mod acks;
mod atomics;
mod calls;
mod demux;
mod dsl;
mod extensions;
mod floods;
mod lengths;
mod memory;
mod order;
mod psn;
mod receives;
mod responses;
mod scatter;
mod states;
mod structure;
mod uc;
mod ud;
mod xrc;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use dsl::case::Case;
use dsl::road::{Bare, CABLE, Rings, Road, Sockets};
use rxe_net::{NetError, UdpBackend, XdpMode, XdpRefusal};
use rxe_test_support::{in_bpf_namespace, in_namespace, skipped};
use rxe_tests::shared_memory::Record;

fn catalogue() -> Vec<(&'static str, Vec<Case>)> {
    vec![
        ("Structure of a packet", structure::cases()),
        ("Which queue pair", demux::cases()),
        ("States", states::cases()),
        ("Packet sequence numbers and duplicates", psn::cases()),
        ("Order of opcodes", order::cases()),
        ("Lengths", lengths::cases()),
        ("Memory: keys, rights, bounds", memory::cases()),
        ("Atomics and limits", atomics::cases()),
        ("Memory windows, invalidation, ATOMIC WRITE, FLUSH", extensions::cases()),
        ("Receives: none, too small, shared", receives::cases()),
        ("Messages and lists of several pieces", scatter::cases()),
        ("Acknowledgements and NAKs to a requester", acks::cases()),
        ("READ and atomic responses to a requester", responses::cases()),
        ("Unreliable connection", uc::cases()),
        ("Unreliable datagram and multicast", ud::cases()),
        ("Extended reliable connection", xrc::cases()),
        ("Floods and storms", floods::cases()),
    ]
}

#[test]
fn every_case_ends_as_the_specification_demands() {
    for hidden in [false, true] {
        all_end_well(&mut Bare { hidden });
    }
}

#[test]
fn every_case_ends_in_the_same_way_over_shared_memory() {
    for record in [Record::Whole, Record::Coalesced] {
        all_end_well(&mut Rings::new(record));
    }
}

#[test]
fn every_case_ends_in_the_same_way_over_sockets_that_send_packets_apart() {
    in_namespace(Sockets::<UdpBackend>::SETUP, || {
        let left_out = all_end_well(&mut Sockets::over_udp());
        assert_eq!(left_out, NOT_OVER_SOCKETS);
    });
}

#[test]
fn every_case_ends_in_the_same_way_over_packet_sockets() {
    in_namespace(CABLE, || {
        let left_out = all_end_well(&mut Sockets::over_packet());
        assert_eq!(left_out, NOT_OVER_PACKET_SOCKETS);
    });
}

#[test]
fn every_case_ends_in_the_same_way_over_af_xdp_in_driver_mode() {
    in_bpf_namespace(CABLE, || over_xdp(XdpMode::Driver));
}

#[test]
fn every_case_ends_in_the_same_way_over_af_xdp_in_generic_mode() {
    in_bpf_namespace(CABLE, || over_xdp(XdpMode::Generic));
}

#[test]
fn every_case_ends_in_the_same_way_between_endpoints_of_layer_2() {
    let left_out = all_end_well(&mut Sockets::over_l2());
    assert_eq!(left_out, NOT_BETWEEN_ENDPOINTS);
}

fn over_xdp(mode: XdpMode) {
    use XdpRefusal::{NotInKernel, NotPermitted};
    let skip = |why: &str| skipped(mode.backend_name(), why);
    if kernel() < [6, 6] {
        return skip("frames longer than a page need Linux 6.6");
    }
    match Sockets::over_xdp(mode) {
        Ok(mut road) => assert_eq!(all_end_well(&mut road), NOT_OVER_A_CABLE),
        Err(e @ NetError::Xdp { reason: NotPermitted | NotInKernel, .. }) => skip(&e.to_string()),
        Err(e) => panic!("{e}"),
    }
}

/// Returns the major and minor version of the running kernel.
fn kernel() -> [u32; 2] {
    let system = rustix::system::uname();
    let mut numbers = system.release().to_str().unwrap_or_default().split('.');
    [(); 2].map(|()| numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0))
}

/// The cases that sockets on loopback do not carry: a packet without bytes, which a backend does
/// not deliver; packets from the receiver's address or of another address family; and an IPv6 group.
const NOT_OVER_SOCKETS: [&str; 5] = [
    "nothing but the UDP header",
    "a request with source and destination exchanged",
    "a request from the own address",
    "a request over IPv6 from the IPv4-mapped address of the peer",
    "a datagram to a group over IPv6",
];

/// The cases that a cable does not carry: a packet without bytes, and packets to an address that
/// does not exist, which never reach the engine's host.
const NOT_OVER_A_CABLE: [&str; 3] = [
    "nothing but the UDP header",
    "a request with source and destination exchanged",
    "a request over IPv6 from the IPv4-mapped address of the peer",
];

/// The cases that layer-2 endpoints do not carry: a packet without bytes; a packet from an address
/// that is not the sender's, which the sending endpoint does not send; and packets to an address
/// that does not exist.
const NOT_BETWEEN_ENDPOINTS: [&str; 4] = [
    "nothing but the UDP header",
    "a request with source and destination exchanged",
    "a request from the own address",
    "a request over IPv6 from the IPv4-mapped address of the peer",
];

/// The cases that packet sockets at the ends of a cable do not carry: those of
/// [`NOT_OVER_A_CABLE`], and packets of which the backend reads only some, all of which must be dropped.
const NOT_OVER_PACKET_SOCKETS: [&str; 5] = [
    "nothing but the UDP header",
    "an RC request to the multicast QP number",
    "a request with source and destination exchanged",
    "a request over IPv6 from the IPv4-mapped address of the peer",
    "a datagram to the multicast QP number at a unicast address",
];

/// Runs all cases over this transport. Returns the cases that it cannot carry.
fn all_end_well(road: &mut dyn Road) -> Vec<&'static str> {
    let only = std::env::var("CONFORMANCE").unwrap_or_default();
    let mut wrong = Vec::new();
    let mut left_out = Vec::new();
    let mut run = 0;
    for (area, cases) in catalogue() {
        for case in cases.iter().filter(|case| case.name.contains(&only)) {
            if !case.all_packets().all(|packet| road.takes(packet)) {
                left_out.push(case.name);
                continue;
            }
            run += 1;
            let judged = catch_unwind(AssertUnwindSafe(|| dsl::world::judge(case, road)));
            let complaints = judged.unwrap_or_else(|_| vec!["panics (see above)".into()]);
            if !complaints.is_empty() {
                let complaints = complaints.join("\n    ");
                wrong.push(format!("{area}: {}\n    {complaints}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {run} cases fail:\n{}", wrong.len(), wrong.join("\n"));
    left_out
}

#[test]
fn the_catalogue_is_complete_and_every_case_is_named_once() {
    let mut names = HashSet::new();
    for (_, cases) in catalogue() {
        for case in cases {
            assert!(names.insert(case.name), "two cases: {}", case.name);
            assert!(!case.rule.is_empty() && !case.script.is_empty(), "{}", case.name);
        }
    }
    assert!(names.len() >= 200, "only {} cases", names.len());
}

#[test]
fn the_document_says_what_the_cases_do() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/en/project/conformance.md");
    let made = dsl::doc::markdown(&catalogue(), calls::CALLS);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&docs, &made).expect("docs/ can be written");
    }
    let there = std::fs::read_to_string(&docs).unwrap_or_default();
    assert!(
        made == there,
        "conformance.md is not up to date: run UPDATE_DOCS=1 cargo test -p rxe-tests --test conformance"
    );
}
