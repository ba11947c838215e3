//! Tests of an endpoint's multicast groups.

use smoltcp::wire::{Icmpv6Packet, IgmpPacket, IgmpRepr, Ipv6Packet};

use super::*;
use crate::backends::udp::{UdpBackend, UdpConfig};
use crate::host::sharing::Sharing as _;
use crate::testing::in_namespace;
use crate::testing::link::{FAR, add_addresses, ips, shell};

const GROUPS: [&str; 2] = ["239.91.4.7", "ff12::4791:7"];
const NEAR: [&str; 2] = ["10.9.0.1", "fd09::1"];

/// Returns a membership query to all hosts. RFC 2236, RFC 2710.
fn query(group: IpAddr, mac: [u8; 6], within: u8) -> Vec<u8> {
    match group {
        IpAddr::V4(group) => ipv4(IpProtocol::Igmp, true, 8, |bytes| {
            bytes.copy_from_slice(&[0x11, within, 0, 0, 0, 0, 0, 0]);
            let mut igmp = IgmpPacket::new_unchecked(bytes);
            igmp.set_group_address(group);
            igmp.fill_checksum();
        }),
        IpAddr::V6(group) => {
            let mut frame = announcement(mac, ip("fe80::2"));
            frame[18..22].copy_from_slice(&[0, 32, 0, 1]);
            frame.truncate(54);
            frame.extend([58, 0, 5, 2, 0, 0, 1, 0, 130, 0, 0, 0, 0, within, 0, 0]);
            frame.extend(group.octets());
            let mut packet = Ipv6Packet::new_unchecked(&mut frame[14..]);
            let (src, dst) = (packet.src_addr(), packet.dst_addr());
            Icmpv6Packet::new_unchecked(&mut packet.payload_mut()[8..]).fill_checksum(&src, &dst);
            frame
        }
    }
}

/// Returns what a frame reports about a group: `true` if it is received.
fn said(frame: &[u8]) -> Option<(bool, IpAddr)> {
    match frame[12..14] {
        [0x08, 0] => {
            let packet = Ipv4Packet::new_checked(&frame[14..]).ok()?;
            if packet.next_header() != IpProtocol::Igmp {
                return None;
            }
            assert!(packet.verify_checksum() && packet.hop_limit() == 1);
            assert_eq!(frame[34..38], [0x94, 4, 0, 0], "router alert");
            let igmp = IgmpPacket::new_checked(packet.payload()).unwrap();
            assert!(igmp.verify_checksum());
            match IgmpRepr::parse(&igmp).unwrap() {
                IgmpRepr::MembershipReport { group_addr, .. } => {
                    assert_eq!(packet.dst_addr(), group_addr);
                    Some((true, group_addr.into()))
                }
                IgmpRepr::LeaveGroup { group_addr } => Some((false, group_addr.into())),
                other => panic!("{other:?}"),
            }
        }
        [0x86, 0xdd] => {
            let packet = Ipv6Packet::new_checked(&frame[14..]).unwrap();
            let [58, 0, 5, 2, 0, 0, 1, 0, ref mld @ ..] = *packet.payload() else { return None };
            assert!(packet.src_addr().is_unicast_link_local() && packet.hop_limit() == 1);
            let icmp = Icmpv6Packet::new_unchecked(mld);
            assert!(icmp.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
            let group: [u8; 16] = mld[8..24].try_into().unwrap();
            match mld[0] {
                131 => assert_eq!(packet.dst_addr().octets(), group),
                132 => {
                    assert_eq!(packet.dst_addr(), "ff02::2".parse::<std::net::Ipv6Addr>().unwrap())
                }
                other => panic!("{other}"),
            }
            Some((mld[0] == 131, std::net::Ipv6Addr::from(group).into()))
        }
        _ => None,
    }
}

/// Returns the next frame from an endpoint, if it sends one within 10 ms.
fn next_frame(near: &mut L2Backend, far: &mut UnixStream) -> Option<Vec<u8>> {
    near.receive(2 * COUNT, &mut |_| {}).unwrap();
    let limit = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    let ready = poll(&mut [PollFd::new(&*far, PollFlags::IN)], Some(&limit)).unwrap();
    (ready > 0).then(|| read_frame(far))
}

/// Returns the next report about a group that an endpoint has joined or left.
fn next_said(near: &mut L2Backend, far: &mut UnixStream) -> (bool, IpAddr) {
    loop {
        if let Some((kind, group)) = next_frame(near, far).and_then(|frame| said(&frame))
            && !group.to_string().starts_with("ff02::1:ff")
        {
            return (kind, group);
        }
    }
}

#[test]
fn who_hears_a_group_gets_its_packets_and_no_one_else() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = pair(&dir);
    // The endpoint accepts the connection.
    near.receive(64, &mut |_| {}).unwrap();
    for (src, group) in NEAR.iter().zip(GROUPS) {
        far.join(ip(group)).unwrap();
        far.join(ip(group)).unwrap();
        let mut packets = batch(&near, src, group);
        send_all(&mut near, &mut packets);
        let [own, others] = until(&mut near, &mut far, COUNT);
        check(&others, src, group);
        assert!(own.is_empty(), "it has not joined");

        // A sender that is a member of the group receives its own packets, too.
        near.join(ip(group)).unwrap();
        far.leave(ip(group));
        let before = near.counters().tx_packets;
        let mut packets = batch(&near, src, group);
        send_all(&mut near, &mut packets);
        let [own, others] = until(&mut near, &mut far, COUNT);
        check(&own, src, group);
        assert!(others.is_empty(), "it has left");
        assert_eq!(near.counters().tx_packets - before, COUNT as u64);
        near.leave(ip(group));
    }
}

#[test]
fn a_group_of_another_family_is_refused_without_the_lock() {
    in_namespace("ip link add near0 type veth peer name far0; ip link set near0 up", || {
        let words = "if:near0 address fd09::1/64 nodad";
        let words = L2Config::from_words(words.split_whitespace()).unwrap();
        let mut v6 = L2Backend::open(&words).unwrap();
        let error = v6.joiner().join(ip(GROUPS[0])).unwrap_err().to_string();
        assert!(error.starts_with("cannot join group 239.91.4.7: "), "{error}");
        // If its last address of the family is removed meanwhile, the membership is still accepted,
        // because dropping it may block.
        let membership = v6.joiner().join(ip(GROUPS[1])).unwrap();
        v6.endpoint.set_addresses(Vec::new());
        let _mark = rxe_sys::NonBlocking::enter();
        assert!(v6.add_membership(membership).unwrap().is_none());
        let left = v6.remove_membership(ip(GROUPS[1]));
        drop(_mark);
        drop(left);
    });
}

#[test]
fn frames_that_a_switch_brings_back_are_not_heard_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = with_stranger(&dir);
    near.join(ip(GROUPS[0])).unwrap();
    let mut packets = batch(&near, NEAR[0], GROUPS[0]);
    send_all(&mut near, &mut packets);
    let (mut brought_back, mut quiet) = (0, 0);
    while quiet < 10 {
        match next_frame(&mut near, &mut far) {
            None => quiet += 1,
            Some(frame) => {
                brought_back += 1;
                write_frame(&mut far, &frame);
            }
        }
    }
    assert!(brought_back >= COUNT);
    assert_eq!(near.counters().rx_packets, COUNT as u64);
}

#[test]
fn the_groups_of_neighbours_stay_and_those_of_all_hosts_are_not_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = with_stranger(&dir);
    for group in ["ff02::1:ff00:1", "ff02::1", "ff01::7", "224.0.0.1"] {
        near.join(ip(group)).unwrap();
        near.leave(ip(group));
    }
    assert!(near.endpoint.hears(ip("ff02::1:ff00:1")), "it has fd09::1");
    near.join(ip(GROUPS[0])).unwrap();
    assert_eq!(next_said(&mut near, &mut far), (true, ip(GROUPS[0])));
}

#[test]
fn switches_and_routers_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (mut near, mut far) = with_stranger(&dir);
    for group in GROUPS.map(ip) {
        near.join(group).unwrap();
        // Twice, in case one is lost.
        for _ in 0..2 {
            assert_eq!(next_said(&mut near, &mut far), (true, group));
        }
        let any = if group.is_ipv4() { ip("0.0.0.0") } else { ip("::") };
        for asked in [any, group] {
            write_frame(&mut far, &query(asked, [2; 6], 1));
            assert_eq!(next_said(&mut near, &mut far), (true, group));
        }
        // A query about another group, and a damaged one.
        let other = if group.is_ipv4() { ip("239.1.1.1") } else { ip("ff12::1") };
        write_frame(&mut far, &query(other, [2; 6], 1));
        let mut damaged = query(any, [2; 6], 1);
        *damaged.last_mut().unwrap() ^= 1;
        write_frame(&mut far, &damaged);
        near.leave(group);
        assert_eq!(next_said(&mut near, &mut far), (false, group));
    }
}

/// The kernel's bridge is a switch that snoops membership reports.
#[test]
fn a_switch_of_the_kernel_notices_and_its_hosts_are_heard() {
    let setup = "
        ip link add near0 type veth peer name port0
        ip link add br0 type bridge mcast_snooping 1 mcast_last_member_interval 1
        ip link set port0 master br0
        for end in near0 port0 br0; do ip link set $end addrgenmode none up; done
        for end in near0 port0 br0; do
            until ip link show $end | grep -q 'state UP'; do sleep 0.01; done
        done";
    in_namespace(setup, || {
        add_addresses("br0", &FAR[..2]);
        let words = "if:near0 address 10.9.0.1/24 address 2001:db8::1/64 nodad";
        let words = L2Config::from_words(words.split_whitespace()).unwrap();
        let mut near = L2Backend::open(&words).unwrap();
        let mut far = UdpBackend::open(&UdpConfig::new("br0", ips(&FAR[..2]))).unwrap();
        let listed = |group: &str| format!("bridge mdb show | grep 'port port0 grp {group} '");
        for (src, dst, group) in
            [("10.9.0.1", FAR[0], GROUPS[0]), ("2001:db8::1", FAR[1], GROUPS[1])]
        {
            shell(&format!("! {}", listed(group)));
            near.join(ip(group)).unwrap();
            near.receive(64, &mut |_| {}).unwrap();
            shell(&format!("until {}; do sleep 0.01; done", listed(group)));
            shell(&format!("ip maddress show dev near0 | grep -qi {}", mac_of(group)));
            let mut packets = batch(&far, dst, group);
            send_all(&mut far, &mut packets);
            check(&until(&mut near, &mut far, COUNT)[0], dst, group);

            near.leave(ip(group));
            near.receive(64, &mut |_| {}).unwrap();
            shell(&format!("! ip maddress show dev near0 | grep -qi {}", mac_of(group)));
            far.join(ip(group)).unwrap();
            let mut packets = batch(&near, src, group);
            send_all(&mut near, &mut packets);
            check(&until(&mut near, &mut far, COUNT)[1], src, group);
        }
    });
}

fn mac_of(group: &str) -> String {
    MacAddr(crate::host::membership::group_mac(ip(group))).to_string()
}
