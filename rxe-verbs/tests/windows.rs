//! Memory windows: the ranges that they open, to whom, for how long, and how they are revoked.

mod common;

use common::*;
use rxe_verbs::*;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::MW_BIND);

/// An owner with a region for windows, and a peer.
struct Lending {
    owner: Side,
    peer: Side,
    region: MemoryRegion,
    scratch: MemoryRegion,
}

impl Lending {
    fn new() -> Self {
        let (owner, peer) = pair();
        let region = owner.pd.register(4096, ALL).unwrap();
        region.write_at(0, &pattern(4096, 3)).unwrap();
        let scratch = peer.region(4096);
        Self { owner, peer, region, scratch }
    }

    /// Binds a window and waits for the completion. Returns the new key.
    fn lend(&self, window: &MemoryWindow, range: std::ops::Range<usize>, access: Access) -> Key {
        let bind = self.owner.qp.bind(1, window, &self.region, range, access);
        let key = bind.new_rkey().unwrap();
        bind.post().unwrap();
        let done = self.owner.ok();
        assert_eq!((done.id, done.op), (1, CompletionOp::BindWindow));
        assert_eq!(window.rkey(), key);
        key
    }

    /// Returns the status of the peer's READ of `len` bytes.
    fn read(&self, addr: u64, rkey: Key, len: usize) -> Status {
        let remote = Remote { addr, rkey };
        self.peer.qp.read(9, &[self.scratch.slice(..len)], remote).post().unwrap();
        self.peer.done().status
    }
}

#[test]
fn a_window_of_type_1_opens_its_range_and_moves_at_once() {
    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type1).unwrap();
    let base = l.region.addr();
    let first = l.lend(&window, 100..200, Access::REMOTE_READ);
    assert_eq!(l.read(base + 100, first, 100), Status::Success);
    assert_eq!(l.scratch.to_vec(..100).unwrap(), pattern(4096, 3)[100..200]);
    let second = l.lend(&window, 300..400, Access::REMOTE_READ);
    assert_ne!(first, second);
    assert_eq!(l.region.windows(), 1);
    assert_eq!(l.read(base + 300, second, 100), Status::Success);
    l.owner.qp.unbind(1, &window).post().unwrap();
    l.owner.ok();
    assert_eq!(l.region.windows(), 0);
    assert_eq!(l.read(base + 300, window.rkey(), 1), Status::RemoteAccess);
}

/// The window covers the whole address space, so no memory of that size is needed.
#[test]
fn a_window_may_be_larger_than_4_gib() {
    let l = Lending::new();
    // SAFETY: the peer reads from `l.region` only.
    #[expect(unsafe_code, reason = "a region of many GiB")]
    let all = unsafe { l.owner.pd.register_address_space(ALL) }.unwrap();
    assert!(l.region.addr() - all.addr() > u64::from(u32::MAX));
    let window = l.owner.pd.create_window(WindowType::Type1).unwrap();
    let bind = l.owner.qp.bind(1, &window, &all, .., Access::REMOTE_READ);
    let key = bind.new_rkey().unwrap();
    bind.post().unwrap();
    l.owner.ok();
    assert_eq!(l.read(l.region.addr() + 10, key, 100), Status::Success);
    assert_eq!(l.scratch.to_vec(..100).unwrap(), pattern(4096, 3)[10..110]);
}

#[test]
fn each_of_these_is_outside_the_window() {
    for (offset, len, key_of) in
        [(99, 1, "new"), (150, 51, "new"), (200, 1, "new"), (120, 1, "old")]
    {
        let l = Lending::new();
        let window = l.owner.pd.create_window(WindowType::Type1).unwrap();
        let old = l.lend(&window, 100..200, Access::REMOTE_READ);
        let new = l.lend(&window, 100..200, Access::REMOTE_READ);
        let key = if key_of == "new" { new } else { old };
        let status = l.read(l.region.addr() + offset, key, len);
        assert_eq!(status, Status::RemoteAccess, "{len} bytes at {offset} by the {key_of} key");
    }
}

#[test]
fn a_window_has_its_own_rights_and_may_count_from_zero() {
    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type2).unwrap();
    let key = l.lend(&window, 64..128, Access::REMOTE_READ | Access::ZERO_BASED);
    assert_eq!(l.read(0, key, 64), Status::Success);
    assert_eq!(l.scratch.to_vec(..64).unwrap(), pattern(4096, 3)[64..128]);
    l.peer.qp.write_bytes(1, b"no", Remote { addr: 0, rkey: key }).post().unwrap();
    assert_eq!(l.peer.done().status, Status::RemoteAccess);
    assert_eq!(l.region.to_vec(..).unwrap(), pattern(4096, 3));
}

#[test]
fn a_bind_and_what_relies_on_it_are_posted_together() {
    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type2).unwrap();
    for round in 0..300 {
        l.peer.qp.recv(1, &[l.scratch.slice(..4)]).unwrap();
        let bind = l.owner.qp.bind(1, &window, &l.region, 0..8, Access::REMOTE_READ).unsignaled();
        let key = bind.new_rkey().unwrap();
        let tell = l.owner.qp.send_bytes(2, &key.value().to_ne_bytes());
        let requests = [bind.build().unwrap(), tell.build().unwrap()];
        l.owner.qp.post_send(requests).unwrap();
        l.peer.ok();
        let told = l.scratch.to_vec(..4).unwrap().try_into().unwrap();
        let rkey = Key::new(u32::from_ne_bytes(told));
        assert_eq!(l.read(l.region.addr(), rkey, 8), Status::Success, "round {round}");
        assert_eq!(l.owner.ok().id, 2);
        l.owner.qp.local_invalidate(3, rkey).post().unwrap();
        let done = l.owner.ok();
        assert_eq!((done.id, done.op), (3, CompletionOp::LocalInvalidate));
    }
}

#[test]
fn a_send_gives_the_window_back() {
    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type2).unwrap();
    let key = l.lend(&window, 0..8, Access::REMOTE_READ);
    l.owner.qp.recv(5, &[l.region.slice(..)]).unwrap();
    l.peer.qp.send_bytes(1, b"thanks").invalidate(key).post().unwrap();
    l.peer.ok();
    let done = l.owner.ok();
    assert_eq!((done.id, done.imm), (5, Some(Immediate::Invalidated(key))));
    assert_eq!(l.region.windows(), 0);
    assert_eq!(l.read(l.region.addr(), key, 8), Status::RemoteAccess);
}

#[test]
fn what_is_not_bound_here_can_not_be_invalidated() {
    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type2).unwrap();
    l.owner.qp.local_invalidate(1, window.rkey()).post().unwrap();
    assert_eq!(l.owner.done().status, Status::LocalQpOperation);

    let l = Lending::new();
    let other = l.owner.pd.qp(&l.owner.cq).build().unwrap();
    let window = l.owner.pd.create_window(WindowType::Type2).unwrap();
    let key = l.lend(&window, 0..8, Access::REMOTE_READ);
    connect(&other, &l.peer.pd.qp(&l.peer.cq).build().unwrap());
    other.local_invalidate(1, key).post().unwrap();
    assert_eq!(l.owner.done().status, Status::LocalQpOperation);
    assert_eq!(l.read(l.region.addr(), key, 8), Status::Success, "it is as it was");
}

#[test]
fn a_bound_window_of_type_2_is_not_bound_again() {
    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type2).unwrap();
    let key = l.lend(&window, 0..8, Access::REMOTE_READ);
    l.owner.qp.bind(2, &window, &l.region, 8..16, Access::REMOTE_READ).post().unwrap();
    assert_eq!(l.owner.done().status, Status::MemoryWindowBind);
    assert_eq!(window.rkey(), key);
}

#[test]
fn a_region_or_window_that_is_gone_opens_nothing() {
    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type1).unwrap();
    let base = l.region.addr();
    let key = l.lend(&window, 0..8, Access::REMOTE_READ);
    assert_eq!(l.read(base, key, 8), Status::Success);
    let Lending { owner, peer, region, scratch } = l;
    let busy = region.close().unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY, "{busy}");
    peer.qp.read(1, &[scratch.slice(..8)], Remote { addr: base, rkey: key }).post().unwrap();
    assert_eq!(peer.done().status, Status::RemoteAccess);
    drop(window);
    assert_eq!(owner.pd.users(), 1, "the queue pair");

    let l = Lending::new();
    let window = l.owner.pd.create_window(WindowType::Type1).unwrap();
    let key = l.lend(&window, 0..8, Access::REMOTE_READ);
    drop(window);
    assert_eq!(l.region.windows(), 0);
    assert_eq!(l.read(l.region.addr(), key, 8), Status::RemoteAccess);
}

#[test]
fn a_window_keeps_its_domain() {
    let device = open(address());
    let pd = device.create_pd().unwrap();
    let window = pd.create_window(WindowType::Type1).unwrap();
    assert_eq!(pd.close().unwrap_err().errno(), libc::EBUSY);
    drop(window);
    device.close().unwrap();
}

#[test]
fn what_can_not_be_bound_is_refused_when_posted() {
    let l = Lending::new();
    let pd = &l.owner.pd;
    let one = pd.create_window(WindowType::Type1).unwrap();
    let two = pd.create_window(WindowType::Type2).unwrap();
    let stranger = l.owner.device.create_pd().unwrap();
    let strangers = stranger.create_window(WindowType::Type1).unwrap();
    let elsewhere = l.peer.pd.create_window(WindowType::Type1).unwrap();
    let not_ours = stranger.register(8, ALL).unwrap();
    let plain = pd.register(8, Access::LOCAL_WRITE).unwrap();
    let read_only = pd.register(8, Access::MW_BIND).unwrap();
    let zero_based = pd.register(8, Access::MW_BIND | Access::ZERO_BASED).unwrap();
    let read = Access::REMOTE_READ;
    let qp = &l.owner.qp;
    let refused = [
        qp.bind(1, &one, &l.region, 0..0, read),
        qp.bind(1, &one, &l.region, 4090..4097, read),
        qp.bind(1, &one, &l.region, 5000..5001, read),
        qp.bind(1, &one, &l.region, 0..8, read | Access::ZERO_BASED),
        qp.bind(1, &one, &l.region, 0..8, Access::LOCAL_WRITE),
        qp.bind(1, &one, &l.region, 0..8, Access::FLUSH_GLOBAL),
        qp.bind(1, &one, &not_ours, 0..8, read),
        qp.bind(1, &one, &plain, 0..8, read),
        qp.bind(1, &one, &read_only, 0..8, Access::REMOTE_WRITE),
        qp.bind(1, &one, &zero_based, 0..8, read),
        qp.bind(1, &strangers, &l.region, 0..8, read),
        qp.bind(1, &elsewhere, &l.region, 0..8, read),
        qp.unbind(1, &two),
        qp.send_bytes(1, b"").imm(1).invalidate(Key::new(1)),
        qp.send_bytes(1, b"").invalidate(Key::new(1)).imm(1),
        qp.write_bytes(1, b"", l.region.remote(0)).invalidate(Key::new(1)),
    ];
    for request in refused {
        let error = request.post().unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
    }
    assert_eq!(qp.sends_outstanding(), 0);
    l.lend(&one, 0..8, read);
}
