use std::net::Ipv4Addr;

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr, IpAddress, UdpRepr};

use super::super::discovery::address_info;
use super::*;

/// Returns the answer of a DHCP server to a frame, if the frame is a request to one.
fn dhcp_answer(frame: &[u8]) -> Option<Vec<u8>> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    if frame.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
    let udp = UdpPacket::new_checked(packet.payload()).ok()?;
    let packet = DhcpPacket::new_checked(udp.payload()).ok()?;
    let asked = DhcpRepr::parse(&packet).ok()?;
    let answer = DhcpRepr {
        message_type: match asked.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            DhcpMessageType::Request => DhcpMessageType::Ack,
            _ => return None,
        },
        your_ip: [10, 9, 0, 77].into(),
        server_ip: [10, 9, 0, 2].into(),
        server_identifier: Some([10, 9, 0, 2].into()),
        router: Some([10, 9, 0, 2].into()),
        subnet_mask: Some([255, 255, 255, 0].into()),
        lease_duration: Some(3600),
        requested_ip: None,
        client_identifier: None,
        parameter_request_list: None,
        ..asked
    };
    let (header, sums) = (UdpRepr { src_port: 67, dst_port: 68 }, ChecksumCapabilities::default());
    let len = answer.buffer_len();
    Some(ipv4(IpProtocol::Udp, true, 8 + len, |payload| {
        let mut udp = UdpPacket::new_unchecked(payload);
        let (src, dst) = ([10, 9, 0, 2].into(), [255; 4].into());
        let write = |bytes: &mut [u8]| {
            answer.emit(&mut DhcpPacket::new_unchecked(bytes)).unwrap();
        };
        header.emit(&mut udp, &IpAddress::Ipv4(src), &IpAddress::Ipv4(dst), len, write, &sums);
    }))
}

/// Starts a DHCP server at the other end of a socket, which calls `then` when it has assigned an
/// address.
fn dhcp_server<T: Send + 'static>(
    dir: &tempfile::TempDir,
    then: impl FnOnce(UnixStream) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let _ = std::fs::remove_file(socket(dir));
    let listener = UnixListener::bind(socket(dir)).unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut answers = 0;
        while answers < 2 {
            if let Some(answer) = dhcp_answer(&read_frame(&mut client)) {
                write_frame(&mut client, &answer);
                answers += 1;
            }
        }
        then(client)
    })
}

/// Returns the address that a frame declines, and the server that it is for.
fn declined(frame: &[u8]) -> Option<(Option<Ipv4Addr>, Option<Ipv4Addr>)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let packet = Ipv4Packet::new_checked(frame.payload()).ok()?;
    if frame.ethertype() != EthernetProtocol::Ipv4 || packet.next_header() != IpProtocol::Udp {
        return None;
    }
    let udp = UdpPacket::new_checked(packet.payload()).ok()?;
    let sums = packet.verify_checksum()
        && udp.verify_checksum(&packet.src_addr().into(), &packet.dst_addr().into());
    let ports = (udp.src_port(), udp.dst_port());
    let message = DhcpPacket::new_checked(udp.payload()).ok()?;
    let message = DhcpRepr::parse(&message).ok()?;
    let is_decline = message.message_type == DhcpMessageType::Decline && ports == (68, 67);
    (is_decline && sums).then_some((message.requested_ip, message.server_identifier))
}

#[test]
fn a_leased_address_that_another_host_has_is_declined() {
    let dir = tempfile::tempdir().unwrap();
    let leased = ip("10.9.0.77");
    let asks = move |client: &mut UnixStream| {
        let probes = |frame: &[u8]| matches!(address_info(frame), Some(AddressInfo::Probes(ip, _)) if ip == leased);
        while !probes(&read_frame(client)) {}
    };
    let server = dhcp_server(&dir, move |mut client| {
        asks(&mut client);
        write_frame(&mut client, &announcement([2, 0, 0, 0, 0, 2], leased));
        loop {
            if let Some(declined) = declined(&read_frame(&mut client)) {
                break declined;
            }
        }
    });
    let config = config(&socket(&dir), &format!("dhcp mac {NEAR_MAC}"));
    let error = L2Backend::open(&config).err().unwrap().to_string();
    let expected =
        format!("has the address 10.9.0.77 (its Ethernet address is {FAR_MAC}), which a");
    assert!(error.contains(&expected), "{error}");
    let told = server.join().unwrap();
    assert_eq!(told, (Some([10, 9, 0, 77].into()), Some([10, 9, 0, 2].into())));
    // Now no other host has the address.
    let server = dhcp_server(&dir, move |mut client| {
        asks(&mut client);
        client
    });
    let near = L2Backend::open(&config).unwrap();
    assert_eq!(near.addresses()[0].ip, leased);
    drop(server.join().unwrap());
}

#[test]
fn an_address_and_a_gateway_come_by_dhcp() {
    let dir = tempfile::tempdir().unwrap();
    let server = dhcp_server(&dir, |client| client);
    let words = format!("dhcp mac {NEAR_MAC} nodad");
    let near = L2Backend::open(&config(&socket(&dir), &words)).unwrap();
    let leased = near.addresses()[0];
    assert_eq!((leased.ip, leased.prefix_len), (ip("10.9.0.77"), 24));
    assert_eq!(near.endpoint.next_hop(ip("8.8.8.8")), Some(ip("10.9.0.2")));
    let gids = near.interface("vm0", 7).gids();
    assert_eq!(gids.preferred(), gids.position(&ip("10.9.0.77").into()));
    drop(server.join().unwrap());
}
