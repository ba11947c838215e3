//! A test of an endpoint on a TAP interface in a separate namespace, whose network stack is the
//! other end.

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::*;
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::testing::in_namespace;
use crate::testing::link::{ips, shell};

fn become_unprivileged() {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).unwrap();
}

fn open(words: &str) -> Result<L2Backend, NetError> {
    L2Backend::open(&L2Config::from_words(words.split_whitespace()).unwrap())
}

#[test]
fn an_endpoint_on_a_tap_of_ones_own_is_a_neighbour_of_this_host() {
    let setup = "
        ip tuntap add dev tap0 mode tap user 0
        ip address add 10.9.0.2/24 dev tap0
        ip -6 address add fd09::2/64 dev tap0 nodad
        ip link set tap0 up
    ";
    in_namespace(setup, || {
        become_unprivileged();
        let words = format!("tap:tap0 address 10.9.0.1/24 address fd09::1/64 mac {NEAR_MAC} nodad");
        let mut near = open(&words).unwrap();
        let error = open(&words).err().unwrap().to_string();
        assert!(error.contains("tap:tap0 is in use by another process"), "{error}");
        let far = UdpConfig::new("tap0", ips(&["10.9.0.2", "fd09::2"]));
        let mut far = UdpBackend::open(&far).unwrap();
        for (a, b) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
            for _ in 0..2 {
                let mut packets = batch(&far, b, a);
                send_all(&mut far, &mut packets);
                check(&until(&mut near, &mut far, COUNT)[0], b, a);
                let mut packets = batch(&near, a, b);
                send_all(&mut near, &mut packets);
                check(&until(&mut near, &mut far, COUNT)[1], a, b);
            }
        }
        shell("ip link set tap0 down");
        let before = near.counters();
        let mut packets = batch(&near, "10.9.0.1", "10.9.0.2");
        send_all(&mut near, &mut packets);
        assert_eq!(near.counters().tx_down - before.tx_down, COUNT as u64);
        shell("ip link delete tap0");
        let error = near.receive(64, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("interface of tap:tap0 cannot be used any more"), "{error}");
    });
}

#[test]
fn who_may_not_use_or_make_a_tap_is_told_how() {
    in_namespace("", || {
        become_unprivileged();
        let error = open("tap:tap7 address 10.9.0.1/24 nodad").err().unwrap().to_string();
        let command = "needs CAP_NET_ADMIN. Whoever has that makes it so: `ip tuntap add dev tap7 mode \
                       tap user $USER`";
        assert!(error.contains(command), "{error}");
    });
}
