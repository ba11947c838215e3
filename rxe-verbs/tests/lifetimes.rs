//! Objects are destroyed in any order, also during traffic.

mod common;

use std::any::Any;
use std::fs;
use std::thread;
use std::time::Duration;

use common::*;
use rxe_verbs::cm::{EventChannel, PortSpace};
use rxe_verbs::*;

#[test]
fn handles_may_be_dropped_in_any_order() {
    let (a, b) = pair();
    let to = b.region(100);
    let remote = to.remote(0);
    let Side { device, pd, cq, qp } = a;
    drop((device, pd));
    qp.write_bytes(1, b"still here", remote).post().unwrap();
    assert_eq!(cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    drop(cq);
    qp.write_bytes(2, b"and here", remote).post().unwrap();
    assert_eq!(qp.send_cq().wait_one(TIMEOUT).unwrap().id, 2);
    drop(b);
    drop(qp);
    drop(to);
}

#[test]
fn a_queue_pair_that_is_destroyed_takes_its_events_with_it() {
    let (a, b) = pair();
    let to = b.region(100);
    a.qp.write_bytes(1, b"outside", to.remote(99)).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteAccess);
    let is_waiting = || readable(&b.device.async_fd(), Duration::ZERO);
    assert!(is_waiting(), "the failure is an event");
    drop(b.qp);
    assert!(!is_waiting());
    assert_eq!(b.device.poll_async_event(), None);
}

/// Otherwise a thread that waits on the channel's descriptor would wake up and find no event.
#[test]
fn a_completion_queue_that_is_destroyed_takes_its_event_on_the_channel_with_it() {
    let (peer, device) = (Side::new(open(address())), open(address()));
    let (pd, channel) = (device.create_pd().unwrap(), device.create_channel().unwrap());
    let [gone, stays] = [(); 2].map(|()| {
        let cq = device.create_cq_on(4, &channel).unwrap();
        let qp = pd.qp(&cq).build().unwrap();
        connect(&qp, &peer.pd.qp(&peer.cq).build().unwrap());
        cq.arm(false).unwrap();
        qp.recv(1, &[]).unwrap();
        qp.to_error().unwrap();
        (qp, cq)
    });
    let is_waiting = || readable(&channel, Duration::ZERO);
    assert!(is_waiting());
    drop(gone);
    assert!(is_waiting(), "the other queue has an event too");
    let event = channel.get_event(Some(Duration::ZERO)).unwrap().unwrap();
    assert_eq!(event.id(), stays.1.id());
    stays.1.arm(false).unwrap();
    stays.0.recv(2, &[]).unwrap();
    assert!(is_waiting());
    drop((event, stays));
    assert!(!is_waiting());
    assert!(channel.get_event(Some(Duration::ZERO)).unwrap().is_none());
}

#[test]
fn queues_that_are_destroyed_take_their_asynchronous_events_with_them() {
    let (peer, device) = (Side::new(open(address())), open(address()));
    let pd = device.create_pd().unwrap();
    let is_waiting = || readable(&device.async_fd(), Duration::ZERO);
    let cq = device.create_cq(1).unwrap();
    let qp = pd.qp(&cq).build().unwrap();
    connect(&qp, &peer.qp);
    (0..2).for_each(|id| qp.recv(id, &[]).unwrap());
    qp.to_error().unwrap();
    assert_eq!(cq.poll_one().unwrap().unwrap().id, 0);
    drop(qp);
    assert!(is_waiting(), "the queue has overflowed");
    drop(cq);
    assert!(!is_waiting());

    let (cq, srq) = (device.create_cq(4).unwrap(), pd.create_srq(4, 1).unwrap());
    let qp = pd.qp(&cq).srq(&srq).build().unwrap();
    let theirs = peer.pd.qp(&peer.cq).build().unwrap();
    connect(&qp, &theirs);
    srq.recv(1, &[]).unwrap();
    srq.set_limit(1).unwrap();
    theirs.send_bytes(1, b"").post().unwrap();
    assert_eq!(cq.wait_one(TIMEOUT).unwrap().status, Status::Success);
    drop(qp);
    assert!(is_waiting(), "the limit is reached");
    drop(srq);
    assert!(!is_waiting());
    assert_eq!(device.poll_async_event(), None);
}

#[test]
fn closing_what_is_in_use_says_so() {
    let side = Side::new(open(address()));
    let Side { device, pd, cq, qp } = side;
    for (error, what) in [
        (pd.clone().close(), "the protection domain"),
        (cq.clone().close(), "the completion queue"),
        (device.clone().close(), "the device"),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.errno(), 16, "EBUSY");
        assert!(error.to_string().starts_with(&format!("{what} is in use by")), "{error}");
    }
    drop(qp);
    cq.close().unwrap();
    pd.close().unwrap();
    device.close().unwrap();
}

#[test]
fn an_address_is_free_again_when_its_device_is_gone() {
    let ip = address();
    for _ in 0..3 {
        let side = Side::new(open(ip));
        let other = std::net::UdpSocket::bind((ip, 4791)).unwrap_err();
        assert_eq!(other.kind(), std::io::ErrorKind::AddrInUse);
        drop(side);
        let other = std::net::UdpSocket::bind((ip, 4791)).unwrap();
        let error = Device::options("lo").address(ip).open().unwrap_err();
        assert!(matches!(error, Error::Net(NetError::PortInUse { .. })), "{error}");
        assert!(
            error.to_string().starts_with(&format!("UDP port 4791 on {ip} is in use")),
            "{error}"
        );
        drop(other);
    }
}

#[test]
fn everything_may_end_while_traffic_flows() {
    for round in 0..12 {
        let (a, b) = pair();
        let (from, to) = (a.region(1 << 20), b.region(1 << 20));
        let remote = to.remote(0);
        for i in 0..32 {
            a.qp.write(i, &[from.slice(..)], remote).post().unwrap();
            a.qp.read(i, &[from.slice(..)], remote).post().unwrap();
        }
        let (a_cq, b_cq) = (a.cq.clone(), b.cq.clone());
        thread::scope(|scope| {
            // Another thread keeps the engines busy.
            scope.spawn(move || {
                for _ in 0..200 {
                    let _ = (a_cq.poll_one(), b_cq.poll_one());
                }
            });
            match round % 4 {
                0 => drop(to),
                1 => drop(from),
                2 => drop(b.qp),
                _ => drop((a.qp, from, to, b.qp)),
            }
        });
    }
}

#[test]
fn a_deregistered_region_is_no_longer_reached() {
    let (a, b) = pair();
    let from = a.region(8);
    let to = b.region(8);
    let remote = to.remote(0);
    drop(to);
    a.qp.write(1, &[from.slice(..)], remote).post().unwrap();
    assert_eq!(a.done().status, Status::RemoteAccess);
}

#[test]
fn raw_memory_is_the_program_s_own_again_after_the_region() {
    let (a, b) = pair();
    let mut own = vec![0u64; 512];
    let ptr = std::ptr::NonNull::new(own.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: the vector outlives the region and is not touched meanwhile.
    let region =
        unsafe { b.pd.register_raw(ptr, 4096, 0x1000, Access::LOCAL_WRITE | Access::REMOTE_WRITE) }
            .unwrap();
    assert_eq!(region.addr(), 0x1000);
    a.qp.write_bytes(1, &7u64.to_ne_bytes(), region.remote(16)).post().unwrap();
    a.ok();
    region.close().unwrap();
    assert_eq!(own[..4], [0, 0, 7, 0]);
}

#[test]
fn read_only_memory_is_not_written() {
    let side = Side::new(open(address()));
    // This memory is mapped read-only: an access that might write would end the process.
    static WORDS: [u64; 2] = [7, 8];
    let ptr = std::ptr::NonNull::from(&WORDS).cast::<u8>();
    // SAFETY: a static is never freed; registered without a right to write, it is only read.
    let mut region = unsafe { side.pd.register_raw(ptr, 16, 0x1000, Access::empty()) }.unwrap();
    // Re-registration cannot make it writable: that would need a new unsafe promise.
    let writes = Access::LOCAL_WRITE;
    for access in [writes, writes | Access::ZERO_BASED] {
        let change = Reregistration::new().access(access);
        assert!(region.reregister(change).unwrap_err().to_string().contains("register it anew"));
    }
    region.reregister(Reregistration::new().access(Access::REMOTE_READ)).unwrap();
    assert!(region.reregister(Reregistration::new().access(writes)).is_err());
    assert_eq!(region.to_vec(8..).unwrap(), 8u64.to_ne_bytes());
    assert_eq!((region.load_u64(0).unwrap(), region.load_u64(8).unwrap()), (7, 8));
    assert!(region.load_u64(4).is_err() && region.load_u64(16).is_err());
    assert!(region.to_vec(8..17).is_err() && region.read_at(usize::MAX, &mut [0]).is_err());
    for refused in [region.write_at(0, b"x"), region.store_u64(0, 1)] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("LOCAL_WRITE"), "{error}");
    }
}

#[test]
fn bytes_outside_a_region_are_refused() {
    let side = Side::new(open(address()));
    let region = side.region(16);
    assert!(region.write_at(10, &[0; 7]).is_err());
    assert!(region.read_at(usize::MAX, &mut [0; 2]).is_err());
    assert!(region.to_vec(8..usize::MAX).is_err());
    assert!(region.load_u64(4).is_err() && region.load_u64(16).is_err());
    assert_eq!(region.to_vec(16..).unwrap(), []);
}

#[test]
fn the_peer_s_end_is_noticed() {
    let (a, b) = (Side::new(open(address())), Side::new(open(address())));
    let options = ConnectOptions {
        timeout: AckTimeout::new(8).unwrap(),
        retry_cnt: 2,
        ..ConnectOptions::default()
    };
    a.qp.connect(&b.qp.endpoint(), &options).unwrap();
    drop(b);
    a.qp.send_bytes(1, b"anybody?").post().unwrap();
    assert_eq!(a.cq.wait_one(Duration::from_secs(30)).unwrap().status, Status::RetryExceeded);
    assert!(a.device.explain().iter().any(|line| line.contains("sending again")));
}

#[test]
fn a_protection_domain_says_what_is_left_in_it() {
    let Side { device, pd, cq, qp } = Side::new(open(address()));
    assert_eq!(pd.used_by().to_string(), "1 queue pair");
    let mut regions = [10, 20].map(|len| pd.register(len, Access::empty()).unwrap());
    let way = pd.create_ah_to(device.gids()[0]).unwrap();
    // A second handle to the same address handle does not count.
    let way = [way.clone(), way];
    let queue = pd.create_srq(1, 1).unwrap();
    let window = pd.create_window(WindowType::Type1).unwrap();
    let all = "2 memory regions, 1 memory window, 1 queue pair, 1 shared receive queue and 1 address \
               handle";
    assert_eq!(pd.used_by().to_string(), all);
    // A region may move to another domain.
    let other = device.create_pd().unwrap();
    regions[0].reregister(Reregistration::new().pd(&other)).unwrap();
    assert_eq!(other.used_by().to_string(), "1 memory region");
    let error = pd.clone().close().unwrap_err();
    assert!(error.to_string().contains("in use by 1 memory region, 1 memory window"), "{error}");
    drop((qp, cq, regions, way, queue, window));
    assert!(pd.used_by().is_empty() && other.used_by().is_empty());
    pd.close().unwrap();
}

#[test]
fn queues_and_domains_say_what_uses_them() {
    let Side { device, pd, cq, qp } = Side::new(open(address()));
    let (other, channel) = (device.create_cq(4).unwrap(), device.create_channel().unwrap());
    let domain = device.create_xrc_domain().unwrap();
    let shared = pd.create_srq(1, 1).unwrap();
    assert_eq!(cq.used_by().to_string(), "1 queue pair", "for sends and receives");
    let pair = pd.qp_with(&cq, &other).srq(&shared).build().unwrap();
    let (target, queue) =
        (domain.qp().build().unwrap(), pd.create_xrc_srq(&domain, &cq, 1, 1).unwrap());
    let told = device.create_cq_on(4, &channel).unwrap();
    for (error, by) in [
        (
            cq.clone().close(),
            "the completion queue is in use by 2 queue pairs and 1 shared receive",
        ),
        (other.clone().close(), "the completion queue is in use by 1 queue pair: "),
        (shared.clone().close(), "the shared receive queue is in use by 1 queue pair: "),
        (domain.clone().close(), "the XRC domain is in use by 1 queue pair and 1 shared receive"),
        (channel.clone().close(), "the completion channel is in use by 1 completion queue: "),
        (told.clone().close(), "the completion queue is in use by 1 others: "),
    ] {
        let error = error.unwrap_err();
        assert_eq!(error.errno(), 16, "EBUSY");
        assert!(error.to_string().starts_with(by), "{error}");
    }
    drop((qp, pair, target, queue));
    for result in [cq.close(), other.close(), told.close()] {
        result.unwrap();
    }
    for result in [shared.close(), domain.close(), channel.close(), pd.close()] {
        result.unwrap();
    }
}

/// Returns one object of every kind, with handles of the objects that it needs.
fn every_object(device: &Device) -> Vec<Box<dyn Any>> {
    let (pd, channel) = (device.create_pd().unwrap(), device.create_channel().unwrap());
    let cq = device.create_cq_on(4, &channel).unwrap();
    let (srq, domain) = (pd.create_srq(4, 1).unwrap(), device.create_xrc_domain().unwrap());
    let (events, lone) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
    let id = events.create_id(PortSpace::Tcp).unwrap();
    id.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    vec![
        Box::new(pd.register(8192, Access::LOCAL_WRITE).unwrap()),
        Box::new(pd.create_window(WindowType::Type2).unwrap()),
        Box::new(pd.create_ah_to(device.gids()[0]).unwrap()),
        Box::new(pd.qp(&cq).build().unwrap()),
        Box::new(pd.qp(&cq).srq(&srq).build().unwrap()),
        Box::new(pd.qp(&cq).service(QpType::Ud).build().unwrap()),
        Box::new(pd.create_xrc_srq(&domain, &cq, 4, 1).unwrap()),
        Box::new(device.alloc_dm(4096, 0).unwrap()),
        Box::new(lone.create_id(PortSpace::Udp).unwrap()),
        Box::new((pd, 0)),
        Box::new((channel, 0)),
        Box::new((cq, 0)),
        Box::new((srq, 0)),
        Box::new((domain, 0)),
        Box::new((events, 0)),
        Box::new((lone, 0)),
        Box::new((id, 0)),
    ]
}

/// Returns the numbers of descriptors, threads and mappings of this process, and the KiB allocated.
fn holdings() -> [usize; 4] {
    let entries = |path| fs::read_dir(path).unwrap().count();
    // SAFETY: it only counts.
    #[expect(unsafe_code, reason = "only the C library knows")]
    let bytes = unsafe { libc::mallinfo() }.uordblks;
    let kib = usize::try_from(bytes).unwrap() >> 10;
    let maps = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), maps, kib]
}

/// Runs in a process of its own, because the other tests of this file open and close objects
/// meanwhile.
#[test]
fn objects_of_every_kind_that_are_dropped_in_any_order_leave_nothing() {
    const ALONE: &str = "RXE_TEST_ALONE";
    const NAME: &str = "objects_of_every_kind_that_are_dropped_in_any_order_leave_nothing";
    if std::env::var_os(ALONE).is_none() {
        let own = std::env::current_exe().unwrap();
        let run = std::process::Command::new(own).args([NAME, "--exact"]).env(ALONE, "1").output();
        let run = run.unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    /// The number of rounds after which the heap and tables have reached their size.
    const WARM: usize = 500;
    const ROUNDS: usize = 2000;
    const DEVICE_EVERY: usize = 20;
    let (mut seed, mut before, ip) = (7usize, [0; 4], address());
    let (mut device, spare) = (open(ip), open(address()));
    for round in 0..WARM + ROUNDS {
        if round == WARM {
            before = holdings();
        }
        let mut objects = every_object(&device);
        // Every few rounds the device is among the dropped objects.
        let last = round % DEVICE_EVERY == DEVICE_EVERY - 1;
        objects.push(Box::new((device.clone(), 0)));
        if last {
            objects.push(Box::new(std::mem::replace(&mut device, spare.clone())));
        }
        while !objects.is_empty() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            drop(objects.swap_remove((seed >> 33) % objects.len()));
        }
        if last {
            device = open(ip);
        }
    }
    let after = holdings();
    // A leak of one descriptor, thread or mapping per round would be 2,000, and of 64 bytes 125
    // KiB.
    let (more_mappings, more_kib) = (8, 100);
    assert!(after[0] <= before[0] && after[1] <= before[1], "{before:?} {after:?}");
    assert!(after[2] <= before[2] + more_mappings, "{before:?} {after:?}");
    assert!(after[3] <= before[3] + more_kib, "{before:?} {after:?}");
}
