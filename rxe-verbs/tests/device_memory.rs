//! Device memory: how much there is, what keeps it alive, and requests that use it.

mod common;

use common::*;
use rxe_verbs::*;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

#[test]
fn requests_name_it_by_the_offset_in_the_region() {
    let (a, b) = pair();
    let memory = b.device.alloc_dm(4096, 6).unwrap();
    let region = b.pd.register_dm(&memory, 1024, 2048, ALL).unwrap();
    assert_eq!((region.addr(), region.len(), region.is_device_memory()), (0, 2048, true));
    a.qp.write_bytes(1, b"device memory", region.remote(8)).post().unwrap();
    a.ok();
    let mut out = [0; 13];
    memory.read_at(1032, &mut out).unwrap();
    assert_eq!(&out, b"device memory");
    memory.write_at(1024, &41u64.to_ne_bytes()).unwrap();
    let into = a.region(8);
    a.qp.fetch_add(2, into.slice(..), region.remote(0), 1).post().unwrap();
    a.ok();
    assert_eq!((into.load_u64(0).unwrap(), region.load_u64(0).unwrap()), (41, 42));
    a.qp.write_bytes(3, b"beyond", region.remote(2045)).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteAccess);
}

#[test]
fn there_is_as_much_as_the_device_says() {
    let device = open(address());
    let most = usize::try_from(device.attr().max_dm_size).unwrap();
    let errno = |len, align| device.alloc_dm(len, align).map_err(|e| e.errno()).map(drop);
    for len in [most + 1, usize::MAX, 1 << 33] {
        assert_eq!(errno(len, 0), Err(libc::ENOMEM), "{len}");
    }
    assert_eq!((errno(0, 0), errno(64, 13)), (Err(libc::EINVAL), Err(libc::EINVAL)));
    let half = device.alloc_dm(most / 2, 12).unwrap();
    assert_eq!(errno(most / 2 + 1, 0), Err(libc::ENOMEM));
    let pd = device.create_pd().unwrap();
    let region = pd.register_dm(&half, 0, most / 2, Access::empty()).unwrap();
    assert_eq!(half.users(), 1);
    drop(half);
    assert_eq!(errno(most, 0), Err(libc::ENOMEM), "the region keeps it");
    drop(region);
    assert_eq!(errno(most, 0), Ok(()));
}

#[test]
fn a_region_gives_it_up_for_other_memory() {
    let device = open(address());
    let pd = device.create_pd().unwrap();
    let memory = device.alloc_dm(64, 0).unwrap();
    let mut region = pd.register_dm(&memory, 0, 64, ALL).unwrap();
    region.reregister(Reregistration::new().access(Access::LOCAL_WRITE)).unwrap();
    assert_eq!((region.addr(), memory.users()), (0, 1));
    region.reregister(Reregistration::new().memory(128)).unwrap();
    assert_eq!((region.is_device_memory(), memory.users()), (false, 0));
}

#[test]
fn what_is_not_there_is_refused() {
    let (a, b) = pair();
    let memory = a.device.alloc_dm(64, 0).unwrap();
    let errno = |pd: &ProtectionDomain, offset, len, access| {
        pd.register_dm(&memory, offset, len, access).map_err(|e| e.errno()).map(drop)
    };
    for (offset, len) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 2)] {
        assert_eq!(errno(&a.pd, offset, len, ALL), Err(libc::EINVAL), "{offset} {len}");
    }
    assert_eq!(errno(&a.pd, 64, 0, ALL), Ok(()), "an empty region");
    assert_eq!(errno(&a.pd, 0, 64, Access::ON_DEMAND), Err(libc::EINVAL));
    assert_eq!(errno(&a.pd, 0, 64, Access::REMOTE_WRITE), Err(libc::EINVAL));
    assert_eq!(errno(&b.pd, 0, 64, ALL), Err(libc::EINVAL));
    assert!(memory.write_at(60, b"12345").is_err() && memory.read_at(65, &mut []).is_err());
}
