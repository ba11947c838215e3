//! ATOMIC WRITE and FLUSH.

mod common;

use common::*;
use rxe_verbs::*;

const REMOTE: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);

/// Returns two connected devices whose queue pairs also accept FLUSH.
fn flushing() -> (Side, Side) {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    connect_with(&a.qp, &b.qp, &ConnectOptions { access: REMOTE, ..patient() });
    (a, b)
}

#[test]
fn a_word_is_written_at_once_and_last() {
    let (a, b) = pair();
    let memory = b.region(8192);
    let (data, flag) = (memory.remote(0), memory.remote(8000));
    let bytes = pattern(7000, 9);
    let from = a.region(7000);
    from.write_at(0, &bytes).unwrap();
    a.qp.write(1, &[from.slice(..)], data).unsignaled().post().unwrap();
    a.qp.atomic_write(2, 0x0123_4567_89ab_cdef, flag).post().unwrap();
    while memory.load_u64(8000).unwrap() != 0x0123_4567_89ab_cdef {
        std::thread::yield_now();
    }
    assert_eq!(memory.to_vec(..7000).unwrap(), bytes, "what was written before is there");
    let done = a.ok();
    assert_eq!((done.id, done.op), (2, CompletionOp::AtomicWrite));
}

#[test]
fn a_flush_completes_behind_what_it_flushes() {
    let (a, b) = flushing();
    let memory = b.pd.register(4096, Access::LOCAL_WRITE | REMOTE).unwrap();
    a.qp.write_bytes(1, b"flushed", memory.remote(0)).unsignaled().post().unwrap();
    a.qp.flush(2, memory.remote(0), 7, Placement::GLOBAL).post().unwrap();
    let done = a.ok();
    assert_eq!((done.id, done.op), (2, CompletionOp::Flush));
    assert_eq!(memory.to_vec(..7).unwrap(), b"flushed");
    a.qp.flush_region(3, memory.rkey(), Placement::GLOBAL).post().unwrap();
    assert_eq!(a.ok().id, 3);
}

#[test]
fn a_flush_needs_the_right_of_the_queue_pair_and_of_the_region() {
    let (a, b) = pair();
    let memory = b.pd.register(8, Access::FLUSH_GLOBAL).unwrap();
    a.qp.flush(1, memory.remote(0), 8, Placement::GLOBAL).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteInvalidRequest);

    let (a, b) = flushing();
    let memory = b.region(8);
    a.qp.flush(1, memory.remote(0), 8, Placement::GLOBAL).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteAccess);

    let (a, b) = flushing();
    let memory = b.pd.register(8, Access::FLUSH_GLOBAL).unwrap();
    a.qp.flush(1, memory.remote(0), 8, Placement::PERSISTENT).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteInvalidRequest);
}

#[test]
fn what_makes_no_sense_is_refused_when_posted() {
    let (a, b) = flushing();
    let memory = b.region(16);
    let not_aligned = a.qp.atomic_write(1, 1, memory.remote(4)).post().unwrap_err();
    let nothing = a.qp.flush(1, memory.remote(0), 8, Placement::empty()).post().unwrap_err();
    let persistent = b.pd.register(8, Access::FLUSH_PERSISTENT).unwrap_err();
    for error in [not_aligned, nothing, persistent] {
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
    }
    a.qp.atomic_write(1, 1, memory.remote(8)).post().unwrap();
    a.ok();
}
