//! Tests of interfaces and modes that the backend refuses, and of the messages.

use std::os::fd::AsRawFd;

use super::left::shown;
use super::{open, open_generic};
use crate::backend::Backend;
use crate::backends::xdp::socket::Options;
use crate::backends::xdp::{XdpBackend, XdpConfig, XdpMode};
use crate::error::{NetError, XdpRefusal};
use crate::interface::net_device;
use crate::testing::link::{add_addresses, ips, shell};
use crate::testing::{in_bpf_namespace, in_namespaces};
use rxe_sys::bpf::{self, Instruction};
use rxe_sys::netlink;

fn refused(netdev: &str, address: &str) -> XdpRefusal {
    refused_in(XdpMode::Any, netdev, address)
}

fn refused_in(mode: XdpMode, netdev: &str, address: &str) -> XdpRefusal {
    let config = XdpConfig { mode, ..XdpConfig::new(netdev, ips(&[address])) };
    match XdpBackend::open(&config).err() {
        Some(NetError::Xdp { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_program_on_the_interface_is_refused() {
    in_bpf_namespace("ip link add near0 type veth peer name far0", || {
        add_addresses("near0", &["10.9.0.1", "10.9.0.3"]);
        let first = open("near0", &["10.9.0.1"]);
        for address in ["10.9.0.1", "10.9.0.3"] {
            let reason = refused("near0", address);
            assert!(matches!(reason, XdpRefusal::Occupied { place: "xdpdrv", .. }), "{reason:?}");
        }
        drop(first);
        drop(open_generic("near0", &["10.9.0.3"]));
        drop(open("near0", &["10.9.0.3"]));
    });
}

/// Attaches a program that passes everything, as ip-link(8) does. Without a BPF link, it stays
/// until it is detached.
fn attach_for_good(netdev: &str, place: &str) {
    const RTM_SETLINK: u16 = 19;
    const IFLA_XDP: u16 = 43;
    const IFLA_XDP_FD: u16 = 1;
    const IFLA_XDP_FLAGS: u16 = 3;
    let flags: u32 = if place == "xdpgeneric" { 1 << 1 } else { 1 << 2 };
    // r0 = XDP_PASS; exit
    let pass = Instruction { code: 0xb7, immediate: 2, ..Instruction::default() };
    let exit = Instruction { code: 0x95, ..Instruction::default() };
    let program = bpf::load_xdp(&[pass, exit], 0).unwrap();
    let attribute = |kind: u16, value: &[u8]| {
        let len = u16::try_from(4 + value.len()).unwrap();
        [&len.to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    };
    let xdp = [
        attribute(IFLA_XDP_FD, &program.as_raw_fd().to_ne_bytes()),
        attribute(IFLA_XDP_FLAGS, &flags.to_ne_bytes()),
    ];
    // `struct ifinfomsg`
    let mut request = vec![0; 16];
    request[4..8].copy_from_slice(&net_device(netdev).unwrap().index.to_ne_bytes());
    request.extend(attribute(IFLA_XDP | 1 << 15, &xdp.concat()));
    netlink::set(RTM_SETLINK, &request).unwrap();
}

#[test]
fn a_foreign_program_stays_and_how_to_take_it_off_is_said() {
    in_bpf_namespace("ip link add near0 type veth peer name far0", || {
        add_addresses("near0", &["10.9.0.1"]);
        for place in ["xdpdrv", "xdpgeneric"] {
            attach_for_good("near0", place);
            let before = shown("near0");
            for mode in [XdpMode::Any, XdpMode::Driver, XdpMode::ZeroCopy, XdpMode::Generic] {
                let reason = refused_in(mode, "near0", "10.9.0.1");
                let XdpRefusal::Occupied { place: at, id } = reason else { panic!("{reason:?}") };
                assert_eq!(at, place);
                assert!(before.contains(&format!("prog/xdp id {id} ")), "{id}: {before}");
                assert_eq!(shown("near0"), before);
            }
            // The remedy in the message is enough.
            shell(&format!("ip link set near0 {place} off"));
            drop(open("near0", &["10.9.0.1"]));
        }
    });
}

#[test]
fn a_queue_that_other_sockets_have_is_refused() {
    in_bpf_namespace("ip link add near0 type veth peer name far0", || {
        add_addresses("near0", &["10.9.0.1"]);
        let interface = net_device("near0").unwrap().index;
        let (queue, rx, tx) = (0, 64, vec![64]);
        let options = Options { interface, queue, rx, tx, copy: Some(true), frags: false };
        let other = options.open_first(true).unwrap();
        assert_eq!(refused("near0", "10.9.0.1"), XdpRefusal::InUse);
        drop(other);
        drop(open("near0", &["10.9.0.1"]));
    });
}

#[test]
fn interfaces_that_cannot_be_used_are_refused() {
    in_bpf_namespace("ip link add near0 type veth peer name far0", || {
        assert_eq!(refused("lo", "127.0.0.1"), XdpRefusal::NotEthernet);
        shell("ip addr add 10.9.0.1/24 dev near0");
        assert_eq!(refused("near0", "10.9.0.1"), XdpRefusal::Down);
        shell("ip link set near0 up; ip link set near0 mtu 300");
        assert_eq!(refused("near0", "10.9.0.1"), XdpRefusal::SmallMtu { mtu: 300 });
        shell(
            "ip link set near0 mtu 1500; ip link add br0 type bridge; ip link set near0 master br0",
        );
        assert_eq!(refused("near0", "10.9.0.1"), XdpRefusal::Port { owner: "br0".into() });
        shell("ip link set near0 nomaster");
        drop(open("near0", &["10.9.0.1"]));
    });
}

#[test]
fn a_mode_is_used_and_named_or_refused() {
    let setup = "
        ip link add near0 type veth peer name far0
        ip link add br0 type bridge
        ip link set br0 up";
    in_bpf_namespace(setup, || {
        add_addresses("near0", &["10.9.0.1"]);
        shell("ip addr add 10.9.1.1/24 dev br0");
        let opened = |mode, netdev: &str, address| {
            let config = XdpConfig { mode, ..XdpConfig::new(netdev, ips(&[address])) };
            XdpBackend::open(&config).unwrap().capabilities().name
        };
        for (mode, name) in [
            (XdpMode::Any, "xdp:driver"),
            (XdpMode::Driver, "xdp:driver"),
            (XdpMode::Generic, "xdp:generic"),
        ] {
            assert_eq!(opened(mode, "near0", "10.9.0.1"), name);
        }
        assert_eq!(refused_in(XdpMode::ZeroCopy, "near0", "10.9.0.1"), XdpRefusal::NoZeroCopy);
        for mode in [XdpMode::Any, XdpMode::Generic] {
            assert_eq!(opened(mode, "br0", "10.9.1.1"), "xdp:generic");
        }
        for mode in [XdpMode::Driver, XdpMode::ZeroCopy] {
            assert_eq!(refused_in(mode, "br0", "10.9.1.1"), XdpRefusal::NotInDriver);
        }
    });
}

#[test]
fn without_the_capability_it_says_what_to_do() {
    // A user namespace gives no right to load BPF programs.
    in_namespaces(
        "-Urn",
        "ip link add near0 type veth peer name far0; ip link set near0 up",
        || {
            shell("ip addr add 10.9.0.1/24 dev near0");
            assert_eq!(refused("near0", "10.9.0.1"), XdpRefusal::NotPermitted);
        },
    );
}
