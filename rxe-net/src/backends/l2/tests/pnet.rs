//! Tests of endpoints by pnet's channel, in separate namespaces.

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::interface::{OTHER, OWN, PAIR, both_ways, endpoint_on, open, parse, wait};
use super::*;
use crate::testing::link::shell;
use crate::testing::{in_namespace, skipped};

#[test]
fn endpoints_at_both_ends_of_a_wire_reach_each_other() {
    in_namespace(PAIR, || {
        let mut near = endpoint_on("pnet:near0", OWN, NEAR_MAC);
        let mut far = endpoint_on("pnet:far0", OTHER, FAR_MAC);
        both_ways((&mut near, &OWN), (&mut far, &OTHER));
        let [near, far] = [near, far].map(|end| end.counters());
        let count = 4 * COUNT as u64;
        assert_eq!((near.tx_packets, near.rx_packets, near.rx_overflow), (count, count, 0));
        assert_eq!((far.tx_packets, far.rx_packets, far.rx_overflow), (count, count, 0));
    });
}

#[test]
fn an_address_that_another_station_has_is_refused() {
    in_namespace(PAIR, || {
        let mut near = endpoint_on("pnet:near0", OWN, NEAR_MAC);
        for link in ["pnet:far0", "if:far0", "pnet:near0"] {
            let third = parse(&format!("{link} address {}/24", OWN[0]));
            let opened = thread::spawn(move || L2Backend::open(&third));
            while !opened.is_finished() {
                near.receive(64, &mut |_| {}).unwrap();
                thread::yield_now();
            }
            let error = opened.join().unwrap().err().unwrap().to_string();
            let expected =
                format!("has the address 10.9.0.11 (its Ethernet address is {NEAR_MAC})");
            assert!(error.contains(&expected), "{error}");
        }
    });
}

#[test]
fn what_the_link_cannot_use_is_refused_with_what_to_do() {
    let setup = "
        ip link add near0 type veth peer name far0
        ip link set far0 up
        ip link set near0 mtu 1400";
    in_namespace(setup, || {
        let refused = |words: &str| open(&format!("{words} nodad")).err().unwrap().to_string();
        let error = refused("pnet:none0");
        assert!(error.starts_with("there is no network interface none0: choose lo, "), "{error}");
        assert!(error.contains("near0") && error.contains("far0"), "{error}");
        for (words, expected) in [
            ("pnet:near0 mtu 1400", "interface near0 is down: `ip link set near0 up`"),
            ("pnet:near0", "add `mtu 1400` after pnet:near0, or `ip link set near0 mtu 1500`"),
            ("pnet:lo", "the interface of pnet:lo is loopback or a tunnel: an endpoint needs"),
        ] {
            let error = refused(words);
            assert!(error.contains(expected), "{error}");
        }
        shell("ip link set near0 up");

        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).unwrap();
        let error = refused("pnet:near0 mtu 1400");
        assert!(error.contains("of interface near0: Operation not permitted"), "{error}");
        assert!(error.contains("CAP_NET_RAW is needed: run it as root"), "{error}");
    });
}

#[test]
fn an_interface_that_is_down_loses_packets_and_one_that_is_gone_ends_the_link() {
    in_namespace(PAIR, || {
        let mut near = endpoint_on("pnet:near0", OWN, NEAR_MAC);
        let mut far = endpoint_on("pnet:far0", OTHER, FAR_MAC);
        both_ways((&mut near, &OWN), (&mut far, &OTHER));
        shell("ip link set near0 down");
        let mut packets = batch(&near, OWN[0], OTHER[0]);
        send_all(&mut near, &mut packets);
        assert_eq!(near.counters().tx_down, COUNT as u64);
        shell(
            "ip link set near0 up
            for end in near0 far0; do
                until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
            done",
        );
        both_ways((&mut near, &OWN), (&mut far, &OTHER));
        shell("ip link delete near0");
        let error = loop {
            wait(near.link.shared());
            let _mark = NonBlocking::enter();
            if let Err(error) = near.receive(64, &mut |_| {}) {
                break error.to_string();
            }
        };
        assert!(error.contains("the interface of pnet:near0 cannot be used any more"), "{error}");
    });
}

#[test]
fn frames_wait_for_room_and_the_descriptor_tells_when_they_have_left() {
    in_namespace(PAIR, || {
        let slow = "tc qdisc add dev near0 root tbf rate 100kbit burst 10k limit 64m";
        if !std::process::Command::new("sh").args(["-c", slow]).status().unwrap().success() {
            skipped("frames_wait_for_room", format_args!("`{slow}` does not work here"));
            return;
        }
        let mut near = link("near0", NEAR_MAC);
        let frame = [&[4; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[7; 1400]].concat();
        // A frame leaves now and then.
        while near.has_room() {
            near.push(&[&frame]).unwrap();
            near.flush().unwrap();
        }
        shell("tc qdisc change dev near0 root tbf rate 8gbit burst 1m limit 64m");
        while !near.has_room() {
            wait(near.shared());
            while near.next(&mut |_| {}).unwrap() {}
            near.flush().unwrap();
        }
        let mut polls = [PollFd::new(near.shared(), PollFlags::IN)];
        assert_eq!(poll(&mut polls, Some(&Timespec::default())).unwrap(), 0);
    });
}

fn link(netdev: &str, mac: &str) -> PnetLink {
    PnetLink::open(netdev, &parse(&format!("pnet:{netdev} mac {mac}"))).unwrap()
}

/// Opens a link at each end of [`PAIR`].
fn links() -> [PnetLink; 2] {
    [link("near0", NEAR_MAC), link("far0", FAR_MAC)]
}

/// A frame that a bridge returns, and one to another station, take no room in the queue.
#[test]
fn frames_of_other_stations_do_not_arrive() {
    in_namespace(PAIR, || {
        let [mut near, mut far] = links();
        let of_type = |ethertype: [u8; 2], to: [u8; 6], from| {
            [&to[..], &[2, 0, 0, 0, 0, from], &ethertype, &[7; 50]].concat()
        };
        let frame = |to, from| of_type([0x88, 0xb5], to, from);
        let to_near = [2, 0, 0, 0, 0, 1];
        let wanted = [frame(to_near, 2), of_type([8, 6], [0xff; 6], 2)];
        for sent in [&frame([2, 0, 0, 0, 0, 9], 2), &frame(to_near, 1), &wanted[0], &wanted[1]] {
            far.push(&[sent]).unwrap();
        }
        let mut got = Vec::new();
        while got.len() < wanted.len() {
            wait(near.shared());
            near.next(&mut |arrival| got.push(arrival.bytes.to_vec())).unwrap();
        }
        assert_eq!(got, wanted);
    });
}

#[test]
fn frames_of_other_vlans_are_not_the_link_s() {
    in_namespace(PAIR, || {
        let [mut near, mut far] = links();
        let asked = solicitation([2, 0, 0, 0, 0, 2], ip(OTHER[0]), ip(OWN[0]));
        // VLAN 5, priority 7 without a VLAN, no tag.
        for tag in [&[0x81, 0, 0, 5][..], &[0x81, 0, 0xe0, 0], &[]] {
            let (addresses, rest) = asked.split_at(12);
            far.push(&[addresses, tag, rest]).unwrap();
        }
        let mut got = Vec::new();
        while got.len() < 2 {
            wait(near.shared());
            near.next(&mut |arrival| got.push(arrival.bytes.to_vec())).unwrap();
        }
        while near.next(&mut |arrival| got.push(arrival.bytes.to_vec())).unwrap() {}
        assert_eq!(got, [asked.clone(), asked]);
    });
}

#[test]
fn the_interface_is_promiscuous_only_while_the_link_is_open() {
    in_namespace(PAIR, || {
        let is_promiscuous = || {
            let mut shown = std::process::Command::new("ip");
            let shown = shown.args(["-d", "link", "show", "near0"]).output().unwrap();
            String::from_utf8(shown.stdout).unwrap().contains("promiscuity 1")
        };
        let near = endpoint_on("pnet:near0", OWN, NEAR_MAC);
        assert!(is_promiscuous());
        drop(near);
        let begun = std::time::Instant::now();
        while is_promiscuous() {
            assert!(begun.elapsed() < Duration::from_secs(10), "it stays promiscuous");
            thread::sleep(Duration::from_millis(10));
        }
    });
}
