//! Memory regions that change: re-registration, which succeeds or changes nothing, and zero-based
//! regions.

mod common;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::*;
use rxe_verbs::*;

/// Returns the status of `a`'s READ of `len` bytes, on new queue pairs of `a` and `pd`.
fn read(a: &Side, pd: &ProtectionDomain, cq: &CompletionQueue, from: Remote, len: usize) -> Status {
    let (ours, theirs) = (a.pd.qp(&a.cq).build().unwrap(), pd.qp(cq).build().unwrap());
    connect(&ours, &theirs);
    let into = a.region(4096);
    ours.read(1, &[into.slice(..len)], from).post().unwrap();
    a.done().status
}

#[test]
fn rights_can_be_given_and_taken() {
    let (a, b) = pair();
    let mut region = b.pd.register(64, Access::LOCAL_WRITE).unwrap();
    let (key, remote) = (region.rkey(), region.remote(0));
    assert_eq!(read(&a, &b.pd, &b.cq, remote, 64), Status::RemoteAccess);
    let readable = Access::LOCAL_WRITE | Access::REMOTE_READ;
    region.reregister(Reregistration::new().access(readable)).unwrap();
    assert_eq!((region.rkey(), region.access()), (key, readable));
    assert_eq!(read(&a, &b.pd, &b.cq, remote, 64), Status::Success);
    region.reregister(Reregistration::new().access(Access::empty())).unwrap();
    assert_eq!(read(&a, &b.pd, &b.cq, remote, 64), Status::RemoteAccess);
}

#[test]
fn a_region_can_move_to_another_domain() {
    let (a, b) = pair();
    let second = b.device.create_pd().unwrap();
    let mut region = b.region(64);
    region.reregister(Reregistration::new().pd(&second)).unwrap();
    assert_eq!(read(&a, &b.pd, &b.cq, region.remote(0), 8), Status::RemoteAccess);
    assert_eq!(read(&a, &second, &b.cq, region.remote(0), 8), Status::Success);
    assert_eq!(second.clone().close().unwrap_err().errno(), libc::EBUSY, "the region keeps it");
    assert_eq!(b.pd.users(), 1, "the queue pair: the region has left");
}

#[test]
fn a_region_can_get_other_memory_under_the_same_key() {
    let (a, b) = pair();
    let mut region = b.region(64);
    let key = region.rkey();
    region.reregister(Reregistration::new().memory(4096)).unwrap();
    assert_eq!((region.len(), region.rkey()), (4096, key));
    region.write_at(4000, b"far out").unwrap();
    assert_eq!(read(&a, &b.pd, &b.cq, region.remote(0), 4096), Status::Success);

    let mut own = *b"the program's";
    let ptr = NonNull::from(&mut own).cast();
    // SAFETY: `own` outlives the registration of it, which ends before it is looked at again.
    let change = unsafe { Reregistration::new().raw_memory(ptr, own.len(), 0x1_0000) };
    region.reregister(change).unwrap();
    assert_eq!((region.addr(), region.len()), (0x1_0000, 13));
    a.qp.write_bytes(1, b"THE", Remote { addr: 0x1_0000, rkey: key }).post().unwrap();
    a.ok();
    region.reregister(Reregistration::new().memory(8)).unwrap();
    assert_eq!(&own, b"THE program's");
}

#[test]
fn what_is_refused_changes_nothing() {
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND;
    let mut region = b.pd.register(64, access).unwrap();
    region.write_at(0, b"as it was").unwrap();
    let before = (region.addr(), region.len(), region.access(), region.rkey());
    let writes = Access::REMOTE_WRITE;
    let mut nothing = [0u8; 2];
    let ptr = NonNull::from(&mut nothing).cast();
    // SAFETY: it is refused, so nothing is registered.
    let beyond = unsafe { Reregistration::new().raw_memory(ptr, 2, u64::MAX) };
    for (change, errno) in [
        (Reregistration::new().access(writes), libc::EINVAL),
        (Reregistration::new().memory(8).access(writes), libc::EINVAL),
        (Reregistration::new().access(access | Access::FLUSH_PERSISTENT), libc::EINVAL),
        (Reregistration::new().pd(&a.pd).access(access), libc::EINVAL),
        (Reregistration::new().memory(usize::MAX), libc::ENOMEM),
        (beyond, libc::EINVAL),
    ] {
        let error = region.reregister(change).unwrap_err();
        assert_eq!(error.errno(), errno, "{error}");
    }
    let window = b.pd.create_window(WindowType::Type1).unwrap();
    b.qp.bind(1, &window, &region, .., Access::REMOTE_READ).post().unwrap();
    b.ok();
    let bound = region.reregister(Reregistration::new().memory(8)).unwrap_err();
    assert_eq!(bound.errno(), libc::EBUSY, "{bound}");
    assert_eq!((region.addr(), region.len(), region.access(), region.rkey()), before);
    assert_eq!(region.to_vec(..9).unwrap(), b"as it was");
    assert_eq!(read(&a, &b.pd, &b.cq, region.remote(0), 64), Status::Success);
    b.qp.unbind(1, &window).post().unwrap();
    b.ok();
    region.reregister(Reregistration::new().memory(8)).unwrap();
}

#[test]
fn a_peer_that_reads_meanwhile_sees_old_or_new_memory() {
    let (a, b) = pair();
    let mut region = b.region(8192);
    let fill = |region: &MemoryRegion, byte| region.write_at(0, &[byte; 8192]).unwrap();
    fill(&region, 1);
    let remote = Remote { addr: 0, rkey: region.rkey() };
    let zero_based = region.access() | Access::ZERO_BASED;
    region.reregister(Reregistration::new().access(zero_based)).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let into = a.region(8192);
            let mut reads = 0;
            while !stop.load(Ordering::SeqCst) || reads == 0 {
                a.qp.read(1, &[into.slice(..)], remote).post().unwrap();
                a.ok();
                // A READ returns old memory, or new memory before or after it was filled; never
                // anything else.
                assert!(into.to_vec(..).unwrap().iter().all(|&byte| byte <= 1));
                reads += 1;
            }
        });
        for _ in 0..50 {
            region.reregister(Reregistration::new().memory(8192)).unwrap();
            fill(&region, 1);
            thread::yield_now();
        }
        stop.store(true, Ordering::SeqCst);
        reader.join().unwrap();
    });
}

#[test]
fn addresses_of_a_zero_based_region_count_from_zero() {
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::ZERO_BASED
        | Access::RELAXED_ORDERING;
    let region = b.pd.register(64, access).unwrap();
    let at = |addr| Remote { addr, rkey: region.rkey() };
    assert_eq!((region.addr(), region.remote(7)), (0, at(7)));
    a.qp.write_bytes(1, b"seven", at(7)).post().unwrap();
    a.ok();
    assert_eq!(region.to_vec(7..12).unwrap(), b"seven");
    // Local requests address the region in the same way.
    let inbox = a.region(64);
    a.qp.recv(2, &[inbox.slice(..)]).unwrap();
    let from = Sge { addr: 7, length: 5, lkey: region.lkey() };
    b.qp.send(3, &[from]).post().unwrap();
    b.ok();
    a.ok();
    assert_eq!(inbox.to_vec(..5).unwrap(), b"seven");
    assert_eq!(read(&a, &b.pd, &b.cq, at(60), 5), Status::RemoteAccess);
}
