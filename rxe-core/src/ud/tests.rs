//! Tests of datagrams between two engines.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::qp::{AddressVector, QpAttr, QpCap, QpState, QpType};
use crate::queue::{
    AddressHandle, Datagram, Immediate, Payload, RecvRequest, SendOp, SendRequest, Status,
};
use crate::testing::{PD, Pair, attributes};
use crate::types::{Gid, Qkey, Qpn};
use crate::wire::DropReason;

const QKEY: Qkey = Qkey::new(0x1111_1111);

fn pair() -> Pair {
    Pair::of(QpType::Ud, &QpAttr { qkey: QKEY, ..attributes() }, QpCap::default(), false)
}

fn ah(pair: &Pair, to: Ipv4Addr) -> Arc<AddressHandle> {
    let av = AddressVector { dgid: Gid::from(to), ..attributes().ah_attr };
    pair.a.engine.create_ah(PD, &av).unwrap()
}

fn datagram(pair: &Pair, qkey: Qkey, len: usize) -> SendRequest {
    let to = Some(Datagram {
        ah: ah(pair, Ipv4Addr::new(10, 0, 0, 2)),
        qpn: Qpn::new(0x12).unwrap(),
        qkey,
    });
    let sges = [pair.a.sge(0, len)].into_iter().collect();
    SendRequest { to, ..SendRequest::new(1, SendOp::Send { imm: Some(3) }, Payload::Sges(sges)) }
}

#[test]
fn a_datagram_arrives_behind_its_ip_header() {
    let mut pair = pair();
    pair.a.fill(0, b"hello");
    pair.b.receive(1, 0, 100);
    pair.a.qp.post_send(datagram(&pair, QKEY, 5)).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    let received = pair.b.completions()[0];
    assert_eq!((received.byte_len, received.grh), (45, true));
    assert_eq!((received.src_qp.value(), received.imm), (0x11, Some(Immediate::Data(3))));
    assert_eq!(pair.b.bytes(40, 5), b"hello");
    let grh = pair.b.bytes(20, 20);
    assert_eq!(grh[0], 0x45);
    assert_eq!((&grh[12..16], &grh[16..20]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
    let sum: u32 =
        grh.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "a right header checksum");
}

#[test]
fn a_wrong_q_key_is_dropped_and_a_controlled_one_stands_for_the_own() {
    let mut pair = pair();
    pair.b.receive(1, 0, 100);
    pair.a.qp.post_send(datagram(&pair, Qkey::new(0x2222), 5)).unwrap();
    pair.run_until_idle();
    assert!(pair.b.completions().is_empty());
    assert_eq!(pair.b.engine.counters().dropped(DropReason::WrongQkey), 1);
    pair.a.qp.post_send(datagram(&pair, Qkey::new(0x8000_0000), 5)).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.b.outcomes(), [(1, Status::Success)]);
}

#[test]
fn datagrams_without_a_receive_or_too_long_for_it_are_dropped() {
    let mut pair = pair();
    pair.a.qp.post_send(datagram(&pair, QKEY, 5)).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.b.engine.counters().dropped(DropReason::ReceiveQueueEmpty), 1);
    pair.b.receive(7, 0, 44);
    pair.a.qp.post_send(datagram(&pair, QKEY, 5)).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.b.outcomes(), [(7, Status::LocalLength)]);
    assert_eq!(pair.b.qp.state(), QpState::Rts);
}

#[test]
fn a_datagram_longer_than_the_link_carries_stops_sending() {
    let mut pair = pair();
    pair.a.qp.post_send(datagram(&pair, QKEY, 4097)).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::LocalLength)]);
    assert_eq!(pair.a.qp.state(), QpState::Sqe);
}

#[test]
fn connected_operations_and_missing_addresses_are_refused() {
    let pair = pair();
    let sges = [pair.a.sge(0, 8)].into_iter().collect();
    let send = SendRequest::new(1, SendOp::Send { imm: None }, Payload::Sges(sges));
    assert!(pair.a.qp.post_send(send.clone()).unwrap_err().to_string().contains("address handle"));
    let op = SendOp::Write { remote: pair.b.remote(0), imm: None };
    assert!(pair.a.qp.post_send(SendRequest { op, ..send }).is_err());
}

#[test]
fn a_group_reaches_who_is_attached() {
    let mut pair = pair();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let gid = Gid::from(IpAddr::V4(group));
    let send = |pair: &Pair| {
        let to = Datagram { ah: ah(pair, group), qpn: Qpn::MULTICAST, qkey: QKEY };
        SendRequest { to: Some(to), ..datagram(pair, QKEY, 5) }
    };
    let qpn = pair.b.qp.qpn();
    pair.b.receive(1, 0, 100);
    pair.b.receive(2, 0, 100);
    pair.a.qp.post_send(send(&pair)).unwrap();
    pair.run_until_idle();
    assert!(pair.b.completions().is_empty(), "nobody is attached");
    pair.b.engine.attach_multicast(qpn, gid).unwrap();
    pair.a.qp.post_send(send(&pair)).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.b.outcomes(), [(1, Status::Success)]);
    pair.b.engine.detach_multicast(qpn, gid).unwrap();
    pair.a.qp.post_send(send(&pair)).unwrap();
    pair.run_until_idle();
    assert!(pair.b.completions().is_empty());
    assert!(pair.b.engine.detach_multicast(qpn, gid).is_err());
    assert!(pair.b.engine.attach_multicast(qpn, Gid::from(Ipv4Addr::new(10, 0, 0, 2))).is_err());
}

#[test]
fn in_the_error_state_datagram_receives_are_flushed() {
    let mut pair = pair();
    pair.b.qp.post_recv(RecvRequest { id: 4, ..RecvRequest::default() }).unwrap();
    let now = pair.now;
    let attr = QpAttr { qp_state: QpState::Err, ..attributes() };
    pair.b.modify(now, &attr, crate::qp::AttrMask::STATE);
    assert_eq!(pair.b.outcomes(), [(4, Status::WorkRequestFlushed)]);
}
