//! Tests of properties that hold for every message. `tests/tests/cm_captures.rs` parses messages of
//! a real kernel.

use super::*;
use crate::types::{Gid, Psn, Qkey, Qpn};
use proptest::prelude::*;

/// Creates a message of each kind from arbitrary bytes.
fn message(attr_id: u16, bytes: &[u8]) -> Message {
    Message::parse(attr_id, bytes).unwrap()
}

proptest! {
    #[test]
    fn every_field_of_every_message_survives(
        attr_id in Message::REQ..=Message::APR,
        bytes in prop::collection::vec(any::<u8>(), LEN - HEADER_LEN),
        tid: u64,
    ) {
        let message = message(attr_id, &bytes);
        let datagram = message.emit(tid);
        let mad = Mad::new(&datagram).unwrap();
        prop_assert_eq!(mad.header(), MadHeader::cm(attr_id, tid));
        prop_assert_eq!(mad.message(), Some(message));
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes: [u8; LEN], attr_id in 0u16..0x20, ours: bool) {
        let mut bytes = bytes;
        if ours {
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&attr_id.to_be_bytes());
        }
        let mad = Mad::new(&bytes).unwrap();
        let known = (Message::REQ..=Message::APR).contains(&attr_id);
        if ours {
            prop_assert_eq!(mad.message().is_some(), known);
            prop_assert_eq!(mad.recipient().is_some(), known);
        }
    }
}

#[test]
fn bytes_that_are_not_256_are_no_datagram() {
    assert!(Mad::new(&[0; 255]).is_none());
    assert!(Mad::new(&[0; 257]).is_none());
}

#[test]
fn another_version_class_or_method_is_not_read() {
    let good = Message::Rtu(Rtu::default()).emit(1);
    assert!(Mad::new(&good).unwrap().message().is_some());
    for at in 0..4 {
        let mut bad = good;
        bad[at] ^= 0x80;
        assert_eq!(Mad::new(&bad).unwrap().message(), None, "byte {at}");
    }
}

#[test]
fn the_recipient_stands_where_the_message_has_it() {
    let recipient = |message: Message| Mad::new(&message.emit(0)).unwrap().recipient();
    let req = Req { service_id: 0x0106_0001, local_comm_id: 9, ..Req::default() };
    assert_eq!(recipient(Message::Req(req)), Some(Recipient::Service(0x0106_0001)));
    let sidr = SidrReq { service_id: 0x0111_0001, request_id: 9, ..SidrReq::default() };
    assert_eq!(recipient(Message::SidrReq(sidr)), Some(Recipient::Service(0x0111_0001)));
    let rep = Rep { local_comm_id: 9, remote_comm_id: 7, ..Rep::default() };
    assert_eq!(recipient(Message::Rep(rep)), Some(Recipient::CommId(7)));
    let answer = SidrRep { request_id: 5, ..SidrRep::default() };
    assert_eq!(recipient(Message::SidrRep(answer)), Some(Recipient::CommId(5)));
}

#[test]
fn the_fields_of_a_request_stand_where_the_specification_puts_them() {
    let primary = Path {
        local_lid: 0xffff,
        flow_label: 0xa_bcde,
        packet_rate: 0x15,
        hop_limit: 64,
        sl: 3,
        subnet_local: true,
        local_ack_timeout: 19,
        remote_gid: Gid::from_bytes([7; 16]),
        ..Path::default()
    };
    let req = Req {
        local_qpn: Qpn::from_wire(0x11),
        local_qkey: Qkey(0x0102_0304),
        responder_resources: 4,
        remote_cm_response_timeout: 20,
        transport_service_type: 1,
        end_to_end_flow_control: true,
        starting_psn: Psn::new(0x12_3456),
        retry_count: 7,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        primary,
        ..Req::default()
    };
    let bytes = Message::Req(req).emit(0);
    let at = |at: usize, len: usize| &bytes[HEADER_LEN + at..HEADER_LEN + at + len];
    assert_eq!(at(28, 4), [1, 2, 3, 4]);
    assert_eq!(at(32, 4), [0, 0, 0x11, 4]);
    assert_eq!(at(43, 1), [20 << 3 | 1 << 1 | 1]);
    assert_eq!(at(44, 4), [0x12, 0x34, 0x56, 7]);
    assert_eq!(at(50, 2), [3 << 4 | 6, 15 << 4 | 8]);
    assert_eq!(at(52, 2), [0xff, 0xff]);
    assert_eq!(at(72, 16), [7; 16]);
    assert_eq!(at(88, 4), [0xab, 0xcd, 0xe0, 0x15]);
    assert_eq!(at(93, 3), [64, 3 << 4 | 8, 19 << 3]);
}
