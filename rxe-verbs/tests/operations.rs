//! Every operation between two devices over UDP on loopback.

mod common;

use common::*;
use rxe_verbs::*;

const SIZES: [usize; 9] = [0, 1, 3, 1023, 4096, 4097, 65_536, 1 << 20, (1 << 20) + 3];
const MAX_SIZE: usize = (1 << 20) + 3;

#[test]
fn send_brings_the_bytes_and_the_immediate() {
    let (a, b) = pair();
    let (from, to) = (a.region(MAX_SIZE), b.region(MAX_SIZE));
    for (n, len) in (0u8..).zip(SIZES) {
        let id = u64::from(n);
        let bytes = pattern(len, n);
        from.write_at(0, &bytes).unwrap();
        b.qp.recv(id, &[to.slice(..)]).unwrap();
        let request = a.qp.send(100 + id, &[from.slice(..len)]);
        let imm = (n % 2 == 1).then_some(0x1234_5678 + u32::from(n));
        match imm {
            Some(data) => request.imm(data).post().unwrap(),
            None => request.post().unwrap(),
        }
        let got = b.ok();
        assert_eq!((got.id, got.op, got.byte_len as usize), (id, CompletionOp::Recv, len));
        assert_eq!(got.imm, imm.map(Immediate::Data));
        assert_eq!(to.to_vec(..len).unwrap(), bytes);
        let sent = a.ok();
        assert_eq!((sent.id, sent.op), (100 + id, CompletionOp::Send));
    }
}

#[test]
fn write_puts_and_read_gets_the_bytes() {
    let (a, b) = pair();
    let (mine, theirs) = (a.region(2 * MAX_SIZE), b.region(MAX_SIZE + 8));
    for (n, len) in (77..).zip(SIZES) {
        let bytes = pattern(len, n);
        mine.write_at(0, &bytes).unwrap();
        a.qp.write(1, &[mine.slice(..len)], theirs.remote(5)).post().unwrap();
        assert_eq!(a.ok().op, CompletionOp::RdmaWrite);
        assert_eq!(theirs.to_vec(5..5 + len).unwrap(), bytes);
        a.qp.read(2, &[mine.slice(MAX_SIZE..MAX_SIZE + len)], theirs.remote(5)).post().unwrap();
        let read = a.ok();
        assert_eq!((read.op, read.byte_len as usize), (CompletionOp::RdmaRead, len));
        assert_eq!(mine.to_vec(MAX_SIZE..MAX_SIZE + len).unwrap(), bytes);
    }
    assert_eq!(b.cq.poll_one().unwrap(), None, "the passive side sees nothing of it");
}

#[test]
fn write_with_immediate_takes_a_receive() {
    let (a, b) = pair();
    let theirs = b.region(100);
    b.qp.recv(9, &[]).unwrap();
    a.qp.write_bytes(1, b"inline", theirs.remote(10)).imm(42).post().unwrap();
    a.ok();
    let got = b.ok();
    assert_eq!((got.id, got.op), (9, CompletionOp::RecvRdmaWithImm));
    assert_eq!((got.imm, got.byte_len), (Some(Immediate::Data(42)), 6));
    assert_eq!(theirs.to_vec(10..16).unwrap(), b"inline");
}

#[test]
fn atomics_change_the_word_and_bring_what_it_was() {
    let (a, b) = pair();
    let (result, word) = (a.region(8), b.region(64));
    word.store_u64(8, 100).unwrap();
    a.qp.fetch_add(1, result.slice(..), word.remote(8), 5).post().unwrap();
    assert_eq!(a.ok().op, CompletionOp::FetchAdd);
    assert_eq!(result.load_u64(0).unwrap(), 100);
    a.qp.compare_swap(2, result.slice(..), word.remote(8), 105, 7).post().unwrap();
    assert_eq!(a.ok().op, CompletionOp::CompareSwap);
    assert_eq!(result.load_u64(0).unwrap(), 105);
    a.qp.compare_swap(3, result.slice(..), word.remote(8), 105, 8).post().unwrap();
    a.ok();
    assert_eq!((result.load_u64(0).unwrap(), word.load_u64(8).unwrap()), (7, 7));
}

#[test]
fn an_atomic_fills_the_first_bytes_of_a_longer_list() {
    let (a, b) = pair();
    // The list is longer than a packet, but the response is still one packet, and the next request
    // follows it.
    let (result, word) = (a.region(10_000), b.region(8));
    word.store_u64(0, 100).unwrap();
    result.write_at(0, &[0xee; 10_000]).unwrap();
    a.qp.fetch_add(1, result.slice(..), word.remote(0), 5).post().unwrap();
    assert_eq!(a.ok().byte_len, 8);
    assert_eq!(result.load_u64(0).unwrap(), 100);
    assert_eq!(result.to_vec(8..).unwrap(), [0xee; 9_992]);
    a.qp.fetch_add(2, result.slice(..9), word.remote(0), 5).post().unwrap();
    a.ok();
    assert_eq!((result.load_u64(0).unwrap(), word.load_u64(0).unwrap()), (105, 110));
}

#[test]
fn lists_are_gathered_and_scattered() {
    let (a, b) = pair();
    let (from, to) = (a.region(30_000), b.region(30_000));
    from.write_at(0, &pattern(30_000, 3)).unwrap();
    b.qp.recv(1, &[to.slice(20_000..), to.slice(..10_000)]).unwrap();
    let parts = [from.slice(1..7_001), from.slice(9_000..9_000), from.slice(15_000..20_000)];
    a.qp.send(2, &parts).post().unwrap();
    assert_eq!(b.ok().byte_len, 12_000);
    let mut want = from.to_vec(1..7_001).unwrap();
    want.extend(from.to_vec(15_000..20_000).unwrap());
    let mut got = to.to_vec(20_000..).unwrap();
    got.extend(to.to_vec(..2_000).unwrap());
    assert_eq!(got, want);
}

#[test]
fn inline_bytes_are_taken_when_posted() {
    let (a, b) = pair();
    let (from, to) = (a.region(100), b.region(100));
    from.write_at(0, b"before").unwrap();
    // No receive is posted yet, so the message cannot arrive before the memory changes.
    a.qp.send(1, &[from.slice(..6)]).inline().post().unwrap();
    from.write_at(0, b"after!").unwrap();
    b.qp.recv(1, &[to.slice(..)]).unwrap();
    b.ok();
    assert_eq!(to.to_vec(..6).unwrap(), b"before");
    let wrong = a.qp.read(1, &[from.slice(..6)], to.remote(0)).inline().post();
    assert!(wrong.unwrap_err().to_string().contains("cannot be inline"));
    let wrong = a.qp.read(1, &[from.slice(..6)], to.remote(0)).imm(1).post();
    assert!(wrong.unwrap_err().to_string().contains("immediate"));
}

#[test]
fn two_queue_pairs_of_one_device_talk_with_each_other() {
    let side = Side::new(open(address()));
    let other = side.pd.qp(&side.cq).build().unwrap();
    connect(&side.qp, &other);
    let (from, to) = (side.region(100_000), side.region(100_000));
    from.write_at(0, &pattern(100_000, 1)).unwrap();
    side.qp.write(1, &[from.slice(..)], to.remote(0)).post().unwrap();
    side.ok();
    assert_eq!(to.to_vec(..).unwrap(), pattern(100_000, 1));
}

#[test]
fn ipv6_works_too() {
    // All tests share the single address ::1.
    let device = match Device::options("lo").address("::1".parse().unwrap()).open() {
        Err(Error::Net(e @ NetError::NoSuchAddress { .. })) => {
            skipped("ipv6_works_too", e);
            return;
        }
        device => device.unwrap(),
    };
    let side = Side::new(device);
    let other = side.pd.qp(&side.cq).build().unwrap();
    connect(&side.qp, &other);
    let (from, to) = (side.region(10_000), side.region(10_000));
    from.write_at(0, &pattern(10_000, 6)).unwrap();
    side.qp.write(1, &[from.slice(..)], to.remote(0)).post().unwrap();
    side.ok();
    assert_eq!(to.to_vec(..).unwrap(), pattern(10_000, 6));
}

#[test]
fn a_write_outside_the_region_fails_on_both_sides_and_is_explained() {
    let (a, b) = pair();
    let (from, to) = (a.region(100), b.region(100));
    a.qp.write(1, &[from.slice(..)], to.remote(1)).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteAccess);
    assert_eq!(to.to_vec(..).unwrap(), [0; 100], "nothing was written");
    assert_eq!(a.qp.state(), QpState::Err);
    // Requests posted from now on are flushed.
    a.qp.send_bytes(2, b"late").post().unwrap();
    let late = a.done();
    assert_eq!((late.id, late.status), (2, Status::WorkRequestFlushed));
    let event = async_event(&b.device, AsyncKind::QpAccessErr);
    assert_eq!(event.qpn, Some(b.qp.qpn()));
    let log = b.device.explain().join("\n");
    assert!(log.contains("reaches outside the memory region"), "{log}");
}

#[test]
fn unsignaled_requests_complete_silently() {
    let (a, b) = pair();
    let to = b.region(64);
    for i in 0..50u8 {
        a.qp.write_bytes(i.into(), &[i], to.remote(i.into())).unsignaled().post().unwrap();
    }
    a.qp.write_bytes(99, &[99], to.remote(50)).post().unwrap();
    assert_eq!(a.ok().id, 99);
    assert_eq!(a.qp.sends_outstanding(), 0);
    assert_eq!(to.to_vec(..50).unwrap(), (0..50).collect::<Vec<u8>>());
}

#[test]
fn a_list_of_requests_is_carried_out_in_order() {
    let (a, b) = pair();
    let to = b.region(8);
    let many = (0..100u8).map(|i| {
        let request = a.qp.write_bytes(i.into(), &[i; 8], to.remote(0));
        (if i == 99 { request } else { request.unsignaled() }).build().unwrap()
    });
    a.qp.post_send(many).unwrap();
    assert_eq!(a.ok().id, 99);
    assert_eq!(to.to_vec(..).unwrap(), [99; 8]);
    let depth = a.qp.cap().max_send_wr as usize;
    a.qp.to_error().unwrap();
    let forever = std::iter::repeat_with(|| a.qp.send_bytes(0, b"").build().unwrap());
    let why = a.qp.post_send(forever.take(depth + 1)).unwrap_err();
    assert_eq!(why.posted, depth);
    assert!(why.to_string().contains("the send queue is full"), "{why}");
}
