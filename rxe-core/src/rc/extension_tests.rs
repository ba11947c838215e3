//! Memory windows, invalidation, ATOMIC WRITE and FLUSH: a requester and a responder together.

use std::time::Duration;

use crate::mem::{Access, Binding, Buffer, WindowType};
use crate::qp::{AttrMask, QpAttr, QpCap, QpState};
use crate::queue::{
    CompletionOp, Immediate, Payload, Placement, SendFlags, SendOp, SendRequest, Status,
};
use crate::testing::{ALL, BASE, PD, Pair, attributes, causes};
use crate::types::Key;
use crate::wire::{OpKind, icrc};

fn local(pair: &Pair, id: u64, op: SendOp) {
    let request = SendRequest::new(id, op, Payload::Sges(Default::default()));
    pair.b.qp.post_send(request).unwrap();
}

/// A window of 100 bytes at `BASE + 1000` of the second side's memory.
fn bound(pair: &mut Pair, kind: WindowType, access: Access) -> Key {
    let bindable = ALL | Access::MW_BIND;
    let memory = pair.b.engine.memory().clone();
    let region = memory.register(PD, pair.b.buffer.clone(), BASE, bindable, || 0x77_00).unwrap();
    let window = memory.create_window(PD, kind, || 0x88_00);
    let binding = Binding { region, addr: BASE + 1000, length: 100, access };
    local(pair, 1, SendOp::BindWindow { window, new_key: 1, binding });
    pair.run_until_idle();
    let done = pair.b.completions();
    assert_eq!((done[0].op, done[0].status), (CompletionOp::BindWindow, Status::Success));
    memory.window_key(window).unwrap()
}

#[test]
fn a_peer_reaches_a_window_and_nothing_beside_it() {
    let mut pair = Pair::new();
    let rkey = bound(&mut pair, WindowType::Type1, Access::REMOTE_WRITE);
    let mut remote = pair.b.remote(1000);
    remote.rkey = rkey;
    pair.a.fill(0, &[7; 100]);
    pair.a.post(1, SendOp::Write { remote, imm: None }, 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success)]);
    assert_eq!(pair.b.bytes(1000, 100), [7; 100]);
    remote.addr -= 1;
    pair.a.post(2, SendOp::Write { remote, imm: None }, 0, 1);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(2, Status::RemoteAccess)]);
    assert_eq!(pair.b.bytes(999, 1), [0]);
}

#[test]
fn a_send_takes_a_window_back() {
    let mut pair = Pair::new();
    let rkey = bound(&mut pair, WindowType::Type2, Access::REMOTE_READ);
    pair.b.receive(5, 0, 10);
    pair.a.post(1, SendOp::SendInvalidate { rkey }, 0, 10);
    let mut remote = pair.b.remote(1000);
    remote.rkey = rkey;
    pair.a.post(2, SendOp::Read { remote }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::Success), (2, Status::RemoteAccess)]);
    let received = pair.b.completions();
    assert_eq!(received[0].imm, Some(Immediate::Invalidated(rkey)));
}

#[test]
fn a_window_ends_with_the_connection_of_its_queue_pair() {
    for reset in [false, true] {
        let mut pair = Pair::new();
        let key = bound(&mut pair, WindowType::Type2, Access::REMOTE_READ);
        let memory = pair.b.engine.memory().clone();
        let qpn = pair.b.qp.qpn();
        let reads = || {
            let need = Access::REMOTE_READ;
            memory.guard().remote(PD, qpn, key, BASE + 1000, 10, need).is_ok()
        };
        assert!(reads() && memory.windows_of(Key::new(0x77_00)) == 1);
        if reset {
            let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
            pair.b.engine.modify_qp(pair.now, qpn, &attr, AttrMask::STATE).unwrap();
        } else {
            pair.b.engine.destroy_qp(qpn).unwrap();
        }
        assert!(!reads(), "another queue pair that gets the number inherits it; reset: {reset}");
        assert_eq!(memory.windows_of(Key::new(0x77_00)), 0);
    }
}

#[test]
fn a_send_that_invalidates_what_is_not_there_fails_on_both_ends() {
    let mut pair = Pair::new();
    pair.b.receive(5, 0, 10);
    pair.a.post(1, SendOp::SendInvalidate { rkey: Key::new(0x1234) }, 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.a.outcomes(), [(1, Status::RemoteAccess)]);
    assert_eq!(pair.b.outcomes(), [(5, Status::RemoteInvalidRequest)]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
}

#[test]
fn the_owner_invalidates_in_order_and_a_bad_bind_fails_in_its_turn() {
    let mut pair = Pair::new();
    let key = bound(&mut pair, WindowType::Type2, Access::REMOTE_READ);
    let remote = pair.a.remote(0);
    let write = SendOp::Write { remote, imm: None };
    pair.b.post(1, write, 0, 5000);
    local(&pair, 2, SendOp::LocalInvalidate { key });
    pair.b.post(3, write, 0, 5000);
    local(&pair, 4, SendOp::LocalInvalidate { key });
    pair.b.post(5, write, 0, 10);
    pair.run_until_idle();
    let expected = [
        (1, Status::Success),
        (2, Status::Success),
        (3, Status::Success),
        (4, Status::LocalQpOperation),
        (5, Status::WorkRequestFlushed),
    ];
    assert_eq!(pair.b.outcomes(), expected);
}

#[test]
fn a_request_that_sends_nothing_does_not_fail_for_the_one_behind_it() {
    let mut pair = Pair::new();
    let key = bound(&mut pair, WindowType::Type2, Access::REMOTE_READ);
    let mut remote = pair.a.remote(0);
    pair.b.post(1, SendOp::Write { remote, imm: None }, 0, 10);
    local(&pair, 2, SendOp::LocalInvalidate { key });
    remote.rkey = Key::new(0x1234);
    pair.b.post(3, SendOp::Write { remote, imm: None }, 0, 10);
    pair.run_until_idle();
    let expected = [(1, Status::Success), (2, Status::Success), (3, Status::RemoteAccess)];
    assert_eq!(pair.b.outcomes(), expected);
}

#[test]
fn requests_that_send_nothing_survive_retries_around_them() {
    for lost in 0..12 {
        let mut pair = Pair::new();
        let key = bound(&mut pair, WindowType::Type2, Access::REMOTE_READ);
        let remote = pair.a.remote(0);
        let mut n = 0;
        pair.fate = Box::new(move |_| {
            n += 1;
            usize::from(n - 1 != lost)
        });
        pair.b.post(1, SendOp::Read { remote }, 0, 3000);
        local(&pair, 2, SendOp::LocalInvalidate { key });
        pair.b.post(3, SendOp::Write { remote, imm: None }, 0, 3000);
        pair.run(Duration::from_secs(10));
        let expected: Vec<_> = (1..4).map(|id| (id, Status::Success)).collect();
        assert_eq!(pair.b.outcomes(), expected, "packet {lost} lost");
    }
}

fn eight(pair: &Pair, id: u64, op: SendOp) {
    pair.a.post(id, op, 0, 8);
}

#[test]
fn an_atomic_write_is_done_once_and_answered_again() {
    let mut pair = Pair::new();
    let remote = pair.b.remote(64);
    pair.a.fill(0, b"12345678");
    let mut lost = false;
    pair.fate = Box::new(move |sent| {
        let answer = sent.packet().info().kind == OpKind::ReadResponse;
        let lose = answer && !lost;
        lost |= lose;
        usize::from(!lose)
    });
    eight(&pair, 1, SendOp::AtomicWrite { remote });
    pair.run_until_idle();
    assert_eq!(pair.b.bytes(64, 8), b"12345678");
    pair.b.fill(64, b"changed!");
    pair.run(Duration::from_secs(10));
    let done = pair.a.completions();
    assert_eq!((done[0].op, done[0].status), (CompletionOp::AtomicWrite, Status::Success));
    assert_eq!(pair.b.bytes(64, 8), b"changed!", "the duplicate wrote nothing");
}

#[test]
fn an_atomic_write_of_another_size_or_place_is_refused() {
    let pair = Pair::new();
    let remote = pair.b.remote(64);
    let post = |remote, len| {
        let sges = [pair.a.sge(0, len)].into_iter().collect();
        let op = SendOp::AtomicWrite { remote };
        pair.a.qp.post_send(SendRequest::new(1, op, Payload::Sges(sges)))
    };
    assert!(post(remote, 4).is_err());
    assert!(post(pair.b.remote(65), 8).is_err());
}

#[test]
fn a_flush_finds_out_which_icrc_its_peer_expects() {
    for peer_is_rxe in [false, true] {
        let attr = QpAttr { qp_access_flags: ALL | Access::FLUSH_GLOBAL, ..attributes() };
        let mut pair = Pair::with(&attr, QpCap::default());
        // The peer accepts only one kind of ICRC; packets with the other are lost.
        pair.fate = Box::new(move |sent| {
            let (body, icrc) = sent.bytes.split_last_chunk().unwrap();
            let right = icrc::compute(&sent.net, body).to_le_bytes() == *icrc;
            let flush = sent.packet().info().kind == OpKind::Flush;
            usize::from(!flush || right != peer_is_rxe)
        });
        let rights = ALL | Access::FLUSH_GLOBAL;
        let memory = pair.b.engine.memory().clone();
        let rkey = memory.register(PD, Buffer::zeroed(100), BASE, rights, || 0x55_00).unwrap();
        for id in 1..=3 {
            let remote = crate::queue::Remote { addr: BASE, rkey };
            let op = SendOp::Flush {
                remote,
                length: 100,
                placement: Placement::GLOBAL,
                whole_region: false,
            };
            let request = SendRequest::new(id, op, Payload::Sges(Default::default()));
            pair.a.qp.post_send(request).unwrap();
            pair.run(Duration::from_secs(1));
            assert_eq!(pair.a.outcomes(), [(id, Status::Success)]);
            let retries = causes(&pair.a.events()).len();
            assert_eq!(retries, usize::from(peer_is_rxe && id == 1), "peer is rxe: {peer_is_rxe}");
        }
    }
}

#[test]
fn a_flush_needs_its_right_in_the_queue_pair_and_the_region() {
    let flags = ALL | Access::FLUSH_GLOBAL;
    let flush = |rkey, whole_region| SendOp::Flush {
        remote: crate::queue::Remote { addr: BASE, rkey },
        length: 100,
        placement: Placement::GLOBAL,
        whole_region,
    };
    for (qp_flags, region_flags, expected) in [
        (flags, flags, Status::Success),
        (flags, ALL, Status::RemoteAccess),
        (ALL, flags, Status::RemoteInvalidRequest),
    ] {
        for whole_region in [false, true] {
            let attr = QpAttr { qp_access_flags: qp_flags, ..attributes() };
            let mut pair = Pair::with(&attr, QpCap::default());
            let memory = pair.b.engine.memory().clone();
            let key =
                memory.register(PD, Buffer::zeroed(100), BASE, region_flags, || 0x55_00).unwrap();
            let op = flush(key, whole_region);
            let request = SendRequest {
                flags: SendFlags::SIGNALED,
                ..SendRequest::new(1, op, Payload::Sges(Default::default()))
            };
            pair.a.qp.post_send(request).unwrap();
            pair.run_until_idle();
            let done = pair.a.completions();
            assert_eq!((done[0].op, done[0].status), (CompletionOp::Flush, expected));
        }
    }
}
