//! Interfaces and modes that the backend refuses, and in what words.

use super::{open, open_generic};
use crate::testing::link::{add_addresses, ips, shell};
use crate::testing::{in_bpf_namespace, in_namespaces};
use crate::{Backend, NetError, XdpBackend, XdpConfig, XdpMode, XdpRefusal};

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
        assert_eq!(refused("near0", "10.9.0.1"), XdpRefusal::Occupied);
        assert_eq!(refused("near0", "10.9.0.3"), XdpRefusal::Occupied);
        drop(first);
        drop(open_generic("near0", &["10.9.0.3"]));
        drop(open("near0", &["10.9.0.3"]));
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
