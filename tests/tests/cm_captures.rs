//! Captured CM messages of kernels: every message is parsed, its fields are plausible, and it is
//! emitted again as the same bytes.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use rxe_core::cm::mad::{Mad, Message, RejReason, SidrStatus};
use rxe_core::cm::service::{IpCmHeader, PortSpace};
use rxe_core::types::Qkey;
use rxe_core::wire::frame::parse_ethernet;
use rxe_core::wire::{NetHeader, Packet, icrc};
use rxe_tests::captures::pcap_frames;

#[test]
fn every_message_is_read_and_emitted_as_it_was() {
    let mut seen = Vec::new();
    for (_, bytes) in datagrams("rping").into_iter().chain(datagrams(OTHERS)) {
        let mad = Mad::new(&bytes).expect("256 bytes");
        let message = mad.message().expect("a message of communication management");
        assert_eq!(message.emit(mad.header().tid)[..], bytes[..], "{message:?}");
        seen.push(message.name());
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, ["DREP", "DREQ", "REJ", "REP", "REQ", "RTU", "SIDR_REP", "SIDR_REQ"]);
}

#[test]
fn a_connection_s_messages_say_what_the_programs_did() {
    let all = datagrams("rping");
    let messages: Vec<_> =
        all.iter().map(|(_, m)| Mad::new(m).unwrap().message().unwrap()).collect();
    let [
        Message::Req(req),
        Message::Rep(rep),
        Message::Rtu(rtu),
        Message::Dreq(dreq),
        Message::Drep(drep),
    ] = &messages[..]
    else {
        panic!("{messages:?}");
    };
    let (client, server): (IpAddr, IpAddr) =
        ("10.47.91.12".parse().unwrap(), "10.47.91.11".parse().unwrap());
    assert_eq!(PortSpace::of_service(req.service_id), Some((PortSpace::Tcp, 7174)));
    assert_eq!((req.primary.local_gid.to_ip(), req.primary.remote_gid.to_ip()), (client, server));
    assert_eq!((req.responder_resources, req.initiator_depth, req.retry_count), (1, 1, 7));
    assert_eq!((req.path_mtu, req.primary.hop_limit, req.partition_key), (3, 64, 0xffff));
    let addresses = IpCmHeader::parse(req.private_data.first_chunk().unwrap()).unwrap();
    assert_eq!((addresses.src.ip(), addresses.dst), (client, server));
    assert_eq!(rep.remote_comm_id, req.local_comm_id);
    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert_eq!((dreq.remote_comm_id, dreq.remote_qpn), (rep.local_comm_id, rep.local_qpn));
    assert_eq!(drep.remote_comm_id, req.local_comm_id);
}

#[test]
fn a_resolution_gives_the_queue_pair_and_a_refusal_its_reason() {
    let mut found = (0, 0);
    for (_, bytes) in datagrams(OTHERS) {
        match Mad::new(&bytes).unwrap().message().unwrap() {
            Message::SidrRep(rep) => {
                assert_eq!(
                    (SidrStatus(rep.status), rep.qkey),
                    (SidrStatus::SUCCESS, Qkey(0x0123_4567))
                );
                assert!(rep.qpn.value() > 1);
                found.0 += 1;
            }
            Message::Rej(rej) => {
                assert_eq!(RejReason(rej.reason), RejReason::INVALID_SERVICE_ID);
                found.1 += 1;
            }
            _ => {}
        }
    }
    assert_eq!(found, (2, 1));
}

const OTHERS: &str = "ucmatose_udaddy_refused";

/// Returns the management datagrams of a capture.
fn datagrams(name: &str) -> Vec<(NetHeader, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/cm-kernel-6.1");
    let file = fs::read(root.join(name).with_extension("pcap")).unwrap();
    let datagram = |bytes: &[u8]| {
        let (_, datagram) = parse_ethernet(bytes).unwrap();
        let frame = datagram.frame().unwrap();
        assert_eq!(icrc::check(&frame.net, frame.payload), Ok(()));
        let packet = Packet::parse(frame.payload).unwrap();
        let deth = packet.deth().unwrap();
        assert_eq!((packet.dest_qp().value(), deth.qkey, deth.src_qp.value()), (1, Qkey::GSI, 1));
        (frame.net, packet.payload().to_vec())
    };
    pcap_frames(&file).into_iter().map(datagram).collect()
}
