//! Replays third-party captures of adapters, with this engine in place of one end. It must send the
//! packets that the hardware sent. The captures are not part of the project; scenarios with their
//! headers are (`pcaps/scenarios`), and are replayed in the same way.
//!
//! The fields that the specification determines are compared: opcode, PSN, destination QP, MSN,
//! kind of syndrome, the value of an atomic, READ data, immediate data, payload and pad. Fields
//! that it leaves to the sender are not compared: credits (ConnectX sends 0, Huawei's adapter
//! counts them), MigReq and the reserved bits, IP identification, type of service and time to live,
//! the UDP source port, and when a requester requests an acknowledgement.

use std::net::{IpAddr, Ipv4Addr};

use rxe_core::qp::QpState;
use rxe_core::queue::{Immediate, Remote, SendOp, Sge, Status};
use rxe_core::types::{Key, Mtu, Psn};
use rxe_core::wire::frame::parse_ethernet;
use rxe_core::wire::{NakCode, OpKind, Opcode, Syndrome};
use rxe_tests::captures::{pcap_frames, read, read_bytes, rows_of, unhex};
use rxe_tests::lone::{End, Place, Said, told};

/// The two ends of ConnectX: the responder and the requester.
const CX_RESPONDER: Place = (IpAddr::V4(Ipv4Addr::new(192, 168, 1, 12)), 0x1f0);
const CX_REQUESTER: Place = (IpAddr::V4(Ipv4Addr::new(192, 168, 1, 13)), 0x366);
/// The keys of the words in the responder's device memory that masked atomics access, and of the
/// region for READ.
const CX_LOCKS: Key = Key::new(0x2521);
const CX_TABLE: Key = Key::new(0x2a583);

/// The two ends of Huawei: the receiver and the sender.
const HW_RECEIVER: Place = (IpAddr::V4(Ipv4Addr::new(192, 168, 70, 4)), 0x45);
const HW_SENDER: Place = (IpAddr::V4(Ipv4Addr::new(192, 168, 70, 6)), 0x48);

#[test]
fn our_responder_answers_connectx_as_connectx_does() {
    for talk in connectx("our_responder_answers_connectx_as_connectx_does") {
        answers_connectx(&talk);
    }
}

fn answers_connectx(talk: &[Said]) {
    let start = talk[0].packet().psn();
    let mut end = End::new(CX_RESPONDER, CX_REQUESTER, Mtu::M1024, (Psn::ZERO, start));
    let locks = end.register(CX_LOCKS, 0, 64);
    let reads: Vec<_> = talk.iter().filter_map(|t| t.packet().reth()).collect();
    let size = usize::try_from(reads[1].va - reads[0].va).unwrap() + 64;
    let table = end.register(CX_TABLE, reads[0].va, size);
    // Fill memory with the data that the READ returned.
    let found = talk.iter().find(|t| t.packet().info().kind == OpKind::ReadResponse).unwrap();
    table.span(0, 64).unwrap().write(found.packet().payload()).unwrap();

    let mut answers = Vec::new();
    for request in talk.iter().filter(|t| t.net.dst == CX_RESPONDER.0) {
        end.take(&as_plain(request));
        answers.extend(end.sent());
    }
    let theirs: Vec<_> = talk.iter().filter(|t| t.net.dst == CX_REQUESTER.0).collect();
    let ours: Vec<_> = answers.iter().map(told).collect();
    let theirs: Vec<_> = theirs.into_iter().map(told).collect();
    assert_eq!(ours, theirs);
    assert_eq!(ours.len(), 5);
    // The last requests, after the NAK, got no answer.
    assert_eq!(end.qp.state(), QpState::Err);
    assert_eq!(locks.span(0, 8).unwrap().load(), Ok(0), "locked and unlocked again");
    assert_eq!(table.span(0, 8).unwrap().load(), Ok(1), "0 was swapped for 1");
}

/// Returns the request. A masked COMPARE AND SWAP (opcode 0x18, an extension of ConnectX that is
/// not in the specification) is replaced by a plain one with the same effect: all bits outside the
/// mask are 0 in this capture.
fn as_plain(request: &Said) -> Said {
    let packet = request.packet();
    if packet.info().kind != OpKind::MaskedCompareSwap {
        return request.clone();
    }
    let mut repr = packet.to_repr();
    repr.bth.opcode = Opcode::RC_COMPARE_SWAP;
    repr.payload = &[];
    Said::new(request.net, &repr)
}

#[test]
fn a_masked_atomic_itself_is_refused_as_a_request_that_does_not_exist() {
    for talk in connectx("a_masked_atomic_itself_is_refused_as_a_request_that_does_not_exist") {
        refuses_masked_atomic(&talk);
    }
}

fn refuses_masked_atomic(talk: &[Said]) {
    let mut end =
        End::new(CX_RESPONDER, CX_REQUESTER, Mtu::M1024, (Psn::ZERO, talk[0].packet().psn()));
    let locks = end.register(CX_LOCKS, 0, 64);
    assert_eq!(talk[0].packet().info().kind, OpKind::MaskedCompareSwap);
    end.take(&talk[0]);
    let answers = end.sent();
    let aeth = answers[0].packet().aeth().unwrap();
    assert_eq!(aeth.syndrome, Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!((answers[0].packet().psn(), answers.len()), (talk[0].packet().psn(), 1));
    assert_eq!(locks.span(0, 8).unwrap().load(), Ok(0));
}

#[test]
fn our_requester_asks_and_understands_as_connectx_does() {
    for talk in connectx("our_requester_asks_and_understands_as_connectx_does") {
        asks_connectx(&talk);
    }
}

fn asks_connectx(talk: &[Said]) {
    let first = talk.iter().find(|t| t.packet().info().kind == OpKind::ReadRequest).unwrap();
    let mut end =
        End::new(CX_REQUESTER, CX_RESPONDER, Mtu::M1024, (first.packet().psn(), Psn::ZERO));
    let memory = end.register(Key::new(0x4_5678), 0x1000, 256);
    let mut played = 0;
    for theirs in talk.iter().skip_while(|t| t.packet().psn() != first.packet().psn()) {
        let packet = theirs.packet();
        let op = match packet.info().kind {
            OpKind::ReadRequest => {
                let reth = packet.reth().unwrap();
                SendOp::Read { remote: Remote { addr: reth.va, rkey: reth.rkey } }
            }
            OpKind::CompareSwap => {
                let atomic = packet.atomic().unwrap();
                let remote = Remote { addr: atomic.va, rkey: atomic.rkey };
                SendOp::CompareSwap { remote, compare: atomic.compare, swap: atomic.swap_add }
            }
            // The rest of the capture consists of masked atomics.
            OpKind::MaskedCompareSwap => break,
            _ => {
                end.take(theirs);
                played += 1;
                continue;
            }
        };
        let length = if op.is_atomic() { 8 } else { 64 };
        end.send(op, Sge { addr: 0x1000 + 64 * played, length, lkey: Key::new(0x4_5678) });
        let ours: Vec<_> = end.sent().iter().map(told).collect();
        assert_eq!(ours, [told(theirs)]);
    }
    let ended: Vec<_> = end.completions().iter().map(|c| (c.status, c.byte_len)).collect();
    assert_eq!(ended, [(Status::Success, 64), (Status::Success, 8)]);
    let data = talk.iter().find(|t| t.packet().info().kind == OpKind::ReadResponse).unwrap();
    let mut there = [0; 64];
    memory.span(0, 64).unwrap().read(&mut there).unwrap();
    assert_eq!(there, data.packet().payload());
    assert_eq!(memory.span(64, 8).unwrap().load(), Ok(0), "what the atomic found");
}

#[test]
fn our_responder_acknowledges_huawei_as_huawei_does() {
    for talk in huawei("our_responder_acknowledges_huawei_as_huawei_does") {
        acknowledges_huawei(&talk);
    }
}

fn acknowledges_huawei(talk: &[Said]) {
    let mut end = End::new(HW_RECEIVER, HW_SENDER, Mtu::M1024, (Psn::new(1), Psn::ZERO));
    let key = Key::new(0x7700);
    let memory = end.register(key, 0, 32 * 2048);
    for id in 0..32 {
        let sge = Sge { addr: id * 2048, length: 2048, lkey: key };
        end.receive(id, sge);
    }
    let is_request = |t: &&Said| t.net.dst == HW_RECEIVER.0 && t.packet().info().is_request;
    let mut answers = Vec::new();
    let mut sent = Vec::new();
    for request in talk.iter().filter(is_request) {
        end.take(request);
        sent.extend_from_slice(request.packet().payload());
        answers.extend(end.sent().iter().map(told));
    }
    let theirs = talk.iter().filter(|t| t.net.dst == HW_SENDER.0);
    let theirs: Vec<_> = theirs.filter(|t| t.packet().info().is_response()).map(told).collect();
    // The capture ends before the last two acknowledgements.
    assert_eq!(answers.len(), theirs.len() + 2);
    assert_eq!(answers[..theirs.len()], theirs);
    let received = end.completions();
    assert_eq!(received.len(), 13);
    assert!(received.iter().all(|c| (c.byte_len, c.imm) == (2048, Some(Immediate::Data(1)))));
    let mut there = vec![0; sent.len()];
    memory.span(0, sent.len() as u64).unwrap().read(&mut there).unwrap();
    assert_eq!(there, sent);
}

#[test]
fn our_requester_sends_what_huawei_sends_and_understands_its_acknowledgements() {
    for talk in huawei("our_requester_sends_what_huawei_sends_and_understands_its_acknowledgements")
    {
        sends_as_huawei(&talk);
    }
}

fn sends_as_huawei(talk: &[Said]) {
    let mut end = End::new(HW_SENDER, HW_RECEIVER, Mtu::M1024, (Psn::ZERO, Psn::new(1)));
    let key = Key::new(0x7700);
    let memory = end.register(key, 0, 32 * 2048);
    let is_request = |t: &&Said| t.net.dst == HW_RECEIVER.0 && t.packet().info().is_request;
    let requests: Vec<_> = talk.iter().filter(is_request).collect();
    for (id, pair) in (0..).zip(requests.chunks(2)) {
        let data = [pair[0].packet().payload(), pair[1].packet().payload()].concat();
        memory.span(id * 2048, 2048).unwrap().write(&data).unwrap();
        let sge = Sge { addr: id * 2048, length: 2048, lkey: key };
        end.send(SendOp::Send { imm: pair[1].packet().imm() }, sge);
    }
    let ours: Vec<_> = end.sent().iter().map(told).collect();
    let theirs: Vec<_> = requests.iter().map(|t| told(t)).collect();
    assert_eq!(ours, theirs);
    for answer in talk.iter().filter(|t| t.net.dst == HW_SENDER.0) {
        if answer.packet().info().is_response() {
            end.take(answer);
        }
    }
    let ended = end.completions();
    assert_eq!(ended.len(), 11, "the last two acknowledgements were not captured");
    assert!(ended.iter().all(|c| c.status == Status::Success));
}

/// Returns the packets of two ConnectX adapters over RC: the captured ones, and those of the
/// scenario with their headers.
fn connectx(test: &str) -> Vec<Vec<Said>> {
    let captured = read_bytes(test, "mlx5-read-cas.pcap")
        .map(|file| said(pcap_frames(&file).into_iter().map(<[u8]>::to_vec), is_connection));
    let talks: Vec<_> = captured.into_iter().chain([scenario("connectx_read_cas")]).collect();
    assert!(talks.iter().all(|talk| talk.len() == 11));
    talks
}

/// Returns the packets of two Huawei adapters over RC: the captured ones, and those of the
/// scenario.
fn huawei(test: &str) -> Vec<Vec<Said>> {
    let captured = read(test, "vectors.tsv").map(|text| {
        let rows = rows_of(&text).filter(|row| row[0].starts_with("oferby"));
        said(rows.map(|row| unhex(row[5])), |_| true)
    });
    let talks: Vec<_> = captured.into_iter().chain([scenario("huawei_send_imm")]).collect();
    assert!(talks.iter().all(|talk| talk.len() == 40));
    talks
}

/// Returns whether this is not queue pair 1, which receives the messages of the communication
/// manager.
fn is_connection(qpn: u32) -> bool {
    qpn > 1
}

/// Returns the packets of a scenario. Its headers are those of a capture, its payloads are zeros.
fn scenario(name: &str) -> Vec<Said> {
    said(rxe_tests::scenario::frames(name).into_iter(), is_connection)
}

fn said(frames: impl Iterator<Item = Vec<u8>>, of: impl Fn(u32) -> bool) -> Vec<Said> {
    let mut talk = Vec::new();
    for frame in frames {
        let Ok(Ok(roce)) = parse_ethernet(&frame).map(|(_, datagram)| datagram.frame()) else {
            continue;
        };
        let said = Said { net: roce.net, bytes: roce.payload.to_vec() };
        if of(said.packet().dest_qp().value()) {
            talk.push(said);
        }
    }
    talk
}
