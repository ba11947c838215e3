//! Tests of regions and windows: which access a key gives, to which QP, and until when.

use super::*;

const PD: PdId = PdId(1);

fn memory(access: Access) -> (Memory, Key) {
    let memory = Memory::new();
    let key = memory.register(PD, Buffer::zeroed(100), 0x1000, access, || 0x700).unwrap();
    (memory, key)
}

#[test]
fn a_span_must_lie_inside_the_region() {
    let (memory, key) = memory(Access::empty());
    let guard = memory.guard();
    let span = |addr, len| guard.span(PD, key, addr, len, Access::empty()).map(|s| s.len());
    assert_eq!(span(0x1000, 100), Ok(100));
    assert_eq!(span(0x1064, 0), Ok(0));
    for (addr, len) in [(0xfff, 1), (0x1000, 101), (0x1063, 2), (u64::MAX, 2), (0x1001, u64::MAX)] {
        assert_eq!(span(addr, len), Err(AccessError::OutOfBounds), "{addr:#x} {len}");
    }
}

#[test]
fn domain_right_and_key_are_checked() {
    let (memory, key) = memory(Access::REMOTE_READ);
    let guard = memory.guard();
    let err = |pd, key, need| guard.span(pd, key, 0x1000, 1, need).unwrap_err();
    assert_eq!(err(PdId(2), key, Access::REMOTE_READ), AccessError::OtherPd);
    assert_eq!(err(PD, key, Access::LOCAL_WRITE), AccessError::NotPermitted);
    assert_eq!(err(PD, Key::new(0x800), Access::empty()), AccessError::UnknownKey);
}

/// No safe function writes memory that is registered without a right to write. The requested right
/// does not matter.
#[test]
fn memory_of_others_is_written_only_where_it_is_registered_to_be() {
    let mut bytes = [1; 64];
    let at = std::ptr::NonNull::from(&mut bytes).cast();
    // SAFETY: the array outlives the table, and nobody holds a reference to it meanwhile.
    let buffer = unsafe { Buffer::from_raw(at, 64) };
    assert!(buffer.span(0, 64).is_none(), "not known to be registered");
    let memory = Memory::new();
    let read_only = memory.register(PD, buffer.clone(), 0, Access::MW_BIND, || 0x500).unwrap();
    let window = memory.create_window(PD, WindowType::Type1, || 0x900);
    let guard = memory.guard();
    let binding = Binding { region: read_only, addr: 0, length: 64, access: Access::REMOTE_READ };
    guard.bind(PD, QPN, window, 1, binding).unwrap();
    let window = memory.window_key(window).unwrap();
    for need in [Access::empty(), Access::REMOTE_READ, Access::LOCAL_WRITE] {
        let local = guard.writable(PD, read_only, 0, 8, need).unwrap_err();
        assert_eq!(local, AccessError::NotPermitted, "{need:?}");
        for key in [read_only, window] {
            let remote = guard.remote_writable(PD, QPN, key, 0, 8, need).unwrap_err();
            assert_eq!(remote, AccessError::NotPermitted, "{need:?}");
        }
    }
    let word = guard.span(PD, read_only, 0, 8, Access::empty()).unwrap();
    assert_eq!(word.len(), 8);
    drop(guard);
    memory.destroy_window(window);
    let access = Some(Access::LOCAL_WRITE);
    let more = RegionChange { access, ..RegionChange::default() };
    assert_eq!(memory.reregister(read_only, more).unwrap_err().errno(), 22);
    let anew = RegionChange { access, memory: Some((buffer.clone(), 0)), ..Default::default() };
    memory.reregister(read_only, anew).unwrap();
    let less = RegionChange { access: Some(Access::empty()), ..RegionChange::default() };
    memory.reregister(read_only, less).unwrap();
    assert!(memory.guard().writable(PD, read_only, 0, 8, Access::empty()).is_err());
    assert!(memory.deregister(read_only));
    assert!(memory.guard().span(PD, read_only, 0, 8, Access::empty()).is_err());
}

#[test]
fn after_deregistration_the_key_is_unknown() {
    let (memory, key) = memory(Access::empty());
    assert_eq!(memory.regions_of(PD), 1);
    assert!(memory.deregister(key));
    assert!(!memory.deregister(key));
    let err = memory.guard().span(PD, key, 0x1000, 1, Access::empty()).unwrap_err();
    assert_eq!(err, AccessError::UnknownKey);
}

#[test]
fn remote_write_without_local_write_is_refused() {
    let memory = Memory::new();
    let err = memory.register(PD, Buffer::zeroed(1), 0, Access::REMOTE_WRITE, || 0x100);
    assert_eq!(err, Err(AccessError::NotPermitted));
}

#[test]
fn keys_are_never_zero_and_never_twice() {
    let memory = Memory::new();
    let mut numbers = [0, 0xff, 0x500, 0x5ff, 0x600].into_iter();
    let mut register = || {
        let access = Access::empty();
        memory.register(PD, Buffer::zeroed(1), 0, access, || numbers.next().unwrap()).unwrap()
    };
    assert_eq!(register(), Key::new(0x500));
    assert_eq!(register(), Key::new(0x600), "the upper 24 bits tell keys apart");
}

#[test]
fn a_region_is_changed_wholly_or_not_at_all() {
    let (memory, key) = memory(Access::REMOTE_READ);
    let check = |pd, addr, need| memory.guard().span(pd, key, addr, 1, need).map(|_| ());
    let refused = [
        RegionChange { access: Some(Access::REMOTE_WRITE), ..Default::default() },
        RegionChange {
            pd: Some(PdId(2)),
            access: Some(Access::LOCAL_WRITE),
            memory: Some((Buffer::zeroed(2), u64::MAX)),
        },
    ];
    for change in refused {
        assert_eq!(memory.reregister(key, change).unwrap_err().errno(), 22);
        assert_eq!(check(PD, 0x1000, Access::REMOTE_READ), Ok(()));
    }
    let change = RegionChange {
        pd: Some(PdId(2)),
        access: Some(Access::LOCAL_WRITE),
        memory: Some((Buffer::zeroed(2), 0)),
    };
    memory.reregister(key, change).unwrap();
    assert_eq!(check(PdId(2), 1, Access::LOCAL_WRITE), Ok(()));
    assert_eq!(check(PD, 1, Access::LOCAL_WRITE), Err(AccessError::OtherPd));
    assert_eq!(check(PdId(2), 0x1000, Access::empty()), Err(AccessError::OutOfBounds));
    assert_eq!(check(PdId(2), 1, Access::REMOTE_READ), Err(AccessError::NotPermitted));
    memory.deregister(key);
    assert!(memory.reregister(key, RegionChange::default()).is_err());
}

const QPN: Qpn = Qpn::GSI;

fn window(kind: WindowType) -> (Memory, Key, Key) {
    let memory = Memory::new();
    let access = Access::MW_BIND | Access::LOCAL_WRITE;
    let region = memory.register(PD, Buffer::zeroed(100), 0x1000, access, || 0x700).unwrap();
    let window = memory.create_window(PD, kind, || 0x900);
    (memory, region, window)
}

fn binding(region: Key, access: Access) -> Binding {
    Binding { region, addr: 0x1010, length: 20, access }
}

#[test]
fn a_window_opens_its_range_for_its_rights_under_its_newest_key() {
    let (memory, region, window) = window(WindowType::Type1);
    let guard = memory.guard();
    let need = Access::REMOTE_READ;
    let get = |key, addr, len| guard.remote(PD, QPN, key, addr, len, need).map(|s| s.len());
    assert_eq!(get(window, 0x1010, 1), Err(AccessError::UnknownKey), "not bound");
    guard.bind(PD, QPN, window, 5, binding(region, need)).unwrap();
    assert_eq!(get(window, 0x1010, 1), Err(AccessError::UnknownKey), "the old key");
    let key = memory.window_key(window).unwrap();
    assert_eq!(key, Key::new(0x905));
    assert_eq!(get(key, 0x1010, 20), Ok(20));
    for (addr, len) in [(0x100f, 2), (0x1010, 21), (0x1024, 1), (u64::MAX, 2)] {
        assert_eq!(get(key, addr, len), Err(AccessError::OutOfBounds), "{addr:#x} {len}");
    }
    let write = guard.remote(PD, QPN, key, 0x1010, 1, Access::REMOTE_WRITE);
    assert_eq!(write.unwrap_err(), AccessError::NotPermitted);
    assert_eq!(memory.windows_of(region), 1);
    drop(guard);
    assert_eq!(memory.reregister(region, RegionChange::default()).unwrap_err().errno(), 16);
    let guard = memory.guard();
    assert_eq!(guard.invalidate(QPN, key), Err(WindowError::WrongType));
    let nothing = Binding { length: 0, ..binding(region, need) };
    guard.bind(PD, QPN, window, 6, nothing).unwrap();
    assert_eq!(memory.windows_of(region), 0);
}

#[test]
fn a_type_2_window_belongs_to_its_queue_pair_until_it_is_invalidated() {
    let (memory, region, window) = window(WindowType::Type2);
    let guard = memory.guard();
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    guard.bind(PD, QPN, window, 1, binding(region, access)).unwrap();
    let key = memory.window_key(window).unwrap();
    let get = |qpn| guard.remote(PD, qpn, key, 0, 20, Access::REMOTE_READ).map(|s| s.len());
    let other = Qpn::new(77).unwrap();
    assert_eq!((get(QPN), get(other)), (Ok(20), Err(AccessError::OtherPd)));
    let again = guard.bind(PD, QPN, key, 2, binding(region, access));
    assert_eq!(again, Err(WindowError::Bound));
    assert_eq!(guard.invalidate(other, key), Err(WindowError::OtherQp));
    guard.invalidate(QPN, key).unwrap();
    assert_eq!(get(QPN), Err(AccessError::UnknownKey));
    assert_eq!(guard.invalidate(QPN, key), Err(WindowError::NotBound));
}

/// After a QP is destroyed, the program may free the region of its windows. The next QP with the
/// number has other peers.
#[test]
fn type_2_windows_end_with_their_queue_pair() {
    let (memory, region, window) = window(WindowType::Type2);
    let [second, of_other, type_1] = [(0xa00, 2), (0xb00, 2), (0xc00, 1)].map(|(key, kind)| {
        let kind = if kind == 1 { WindowType::Type1 } else { WindowType::Type2 };
        memory.create_window(PD, kind, || key)
    });
    let other = Qpn::new(77).unwrap();
    let guard = memory.guard();
    let need = Access::REMOTE_READ;
    let bind = |qpn, window| guard.bind(PD, qpn, window, 1, binding(region, need)).unwrap();
    let reaches = |qpn, window| {
        let key = memory.window_key(window).unwrap();
        guard.remote(PD, qpn, key, 0x1010, 20, need).is_ok()
    };
    for (qpn, window) in [(QPN, window), (QPN, second), (other, of_other), (QPN, type_1)] {
        bind(qpn, window);
        assert!(reaches(qpn, window));
    }
    guard.unbind_all(QPN);
    assert!(!reaches(QPN, window) && !reaches(QPN, second));
    assert!(reaches(other, of_other) && reaches(QPN, type_1), "not the queue pair's");
    assert_eq!(memory.windows_of(region), 2);
    // The window can be bound again and then belongs to the QP that bound it last.
    bind(other, window);
    guard.unbind_all(QPN);
    assert!(reaches(other, window));
    guard.invalidate(other, memory.window_key(window).unwrap()).unwrap();
    drop(guard);
    assert_eq!([window, second, of_other, type_1].map(|w| memory.destroy_window(w)), [true; 4]);
    assert_eq!(memory.windows_of(region), 0);
    assert!(memory.bound.lock().is_empty(), "what is kept grows with bound windows alone");
}

#[test]
fn bound_windows_are_counted_until_they_are_bound_elsewhere_or_gone() {
    let (memory, region, moving) = window(WindowType::Type1);
    let access = Access::MW_BIND | Access::LOCAL_WRITE;
    let other = memory.register(PD, Buffer::zeroed(100), 0x1000, access, || 0xa00).unwrap();
    let second = memory.create_window(PD, WindowType::Type2, || 0xc00);
    let bind = |window, to, length| {
        let binding = Binding { length, ..binding(to, Access::REMOTE_READ) };
        memory.guard().bind(PD, QPN, window, 1, binding).is_ok()
    };
    let count = || (memory.windows_of(region), memory.windows_of(other));
    assert!(bind(moving, region, 20) && bind(second, region, 20));
    assert_eq!(count(), (2, 0));
    assert!(bind(moving, region, 10), "again, to the same");
    assert!(!bind(second, other, 20), "type 2 is bound already");
    assert_eq!(count(), (2, 0));
    assert!(bind(moving, other, 20));
    assert_eq!(count(), (1, 1));
    memory.guard().invalidate(QPN, memory.window_key(second).unwrap()).unwrap();
    assert_eq!(count(), (0, 1));
    assert!(bind(second, other, 20));
    assert!(memory.destroy_window(moving));
    assert_eq!(count(), (0, 1));
    assert!(memory.destroy_window(second));
    assert_eq!(count(), (0, 0));
}

#[test]
fn a_region_decides_whether_windows_may_be_bound_to_it() {
    let (memory, region, window) = window(WindowType::Type1);
    let plain =
        memory.register(PD, Buffer::zeroed(100), 0x1000, Access::LOCAL_WRITE, || 0xa00).unwrap();
    let read_only =
        memory.register(PD, Buffer::zeroed(100), 0x1000, Access::MW_BIND, || 0xb00).unwrap();
    let guard = memory.guard();
    let bind = |binding| guard.bind(PD, QPN, window, 1, binding);
    let refused = Err(WindowError::Region);
    assert_eq!(bind(binding(plain, Access::REMOTE_READ)), refused);
    assert_eq!(bind(binding(read_only, Access::REMOTE_WRITE)), refused);
    assert_eq!(bind(binding(region, Access::FLUSH_PERSISTENT)), refused);
    let beyond = Binding { length: 85, ..binding(region, Access::REMOTE_READ) };
    assert_eq!(bind(beyond), refused);
    assert_eq!(guard.bind(PdId(9), QPN, window, 1, binding(region, Access::REMOTE_READ)), refused);
    bind(binding(region, Access::REMOTE_READ)).unwrap();
    drop(guard);
    let key = memory.window_key(window).unwrap();
    assert!(memory.deregister(region));
    let gone = memory.guard().remote(PD, QPN, key, 0x1010, 1, Access::REMOTE_READ).unwrap_err();
    assert_eq!(gone, AccessError::UnknownKey);
}
