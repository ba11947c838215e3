//! A device whose backend fails: no waiter hangs, and every call reports the failure.

mod common;

use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use common::*;
use rustix::event::{EventfdFlags, eventfd};
use rxe_core::wire::{Frame, TxBatch, TxLimits};
use rxe_net::{Capabilities, Counters, L2Backend, L2Config, SendStatus, SrcPort};
use rxe_sys::SharedFd;
use rxe_verbs::*;

/// A backend that fails or panics once its fuse is readable.
struct Bomb {
    fuse: SharedFd,
    panics: bool,
    capabilities: Capabilities,
}

impl Backend for Bomb {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&Frame<'_>)) -> Result<usize, NetError> {
        match rustix::io::read(&self.fuse, &mut [0; 8]) {
            Err(_) => Ok(0),
            Ok(_) if self.panics => panic!("the test's bomb"),
            Ok(_) => {
                let source = std::io::Error::from_raw_os_error(5);
                Err(rxe_sys::Error::Os { what: "receive", source }.into())
            }
        }
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        batch.clear();
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        f(&self.fuse);
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

fn bomb(panics: bool) -> (Device, SharedFd) {
    let fuse = SharedFd::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let capabilities = Capabilities {
        name: "bomb",
        link_mtu: 1500,
        tx: TxLimits::default(),
        src_port: SrcPort::Any,
        recv_buffer: 0,
        qpn_block: None,
    };
    let backend = Bomb { fuse: fuse.clone(), panics, capabilities };
    let options = Device::options("lo").address(address()).custom_backend(Box::new(backend));
    (options.open().unwrap(), fuse)
}

fn light(fuse: &SharedFd) {
    rustix::io::write(fuse, &1u64.to_ne_bytes()).unwrap();
}

#[test]
fn a_panicking_driver_hangs_nobody() {
    let (device, fuse) = bomb(true);
    let side = Side::new(device.clone());
    // After a panic the engine's state is not reliable, so accepted requests do not complete.
    let lost = Side::new(device.clone());
    connect_to_nobody(&lost.qp);
    lost.qp.send_bytes(7, b"lost").post().unwrap();
    let channel = device.create_channel().unwrap();
    let on_channel = device.create_cq_on(1, &channel).unwrap();
    // No thread waits inside this crate, so the fuse wakes the driver.
    light(&fuse);
    assert!(readable(&channel, TIMEOUT));
    assert_eq!(channel.get_event(Some(Duration::ZERO)).unwrap().unwrap().id(), on_channel.id());
    let error = side.cq.wait_one(TIMEOUT).unwrap_err();
    assert!(matches!(error, Error::DeviceFailed { .. }), "{error}");
    assert!(matches!(side.cq.spin_one(TIMEOUT), Err(Error::DeviceFailed { .. })));
    assert!(matches!(lost.cq.wait_one(TIMEOUT), Err(Error::DeviceFailed { .. })));
    assert!(matches!(side.pd.qp(&side.cq).build(), Err(Error::DeviceFailed { .. })));
    assert!(side.qp.send_bytes(1, b"x").post().is_err());
    assert_eq!(device.poll_async_event().unwrap().kind, AsyncKind::DeviceFatal);
    // Dropping all of this must not hang either.
}

#[test]
fn a_broken_backend_wakes_all_who_wait() {
    let (device, fuse) = bomb(false);
    let sides: Vec<_> = (0..4).map(|_| Side::new(device.clone())).collect();
    thread::scope(|scope| {
        for side in &sides {
            scope.spawn(|| {
                let error = side.cq.wait_one(TIMEOUT).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, Error::DeviceFailed { .. }), "{text}");
                assert!(text.contains("cannot receive"), "{text}");
            });
        }
        thread::sleep(Duration::from_millis(20));
        light(&fuse);
    });
}

/// Moves a queue pair to RTS, with a peer that never answers and a very long timeout.
fn connect_to_nobody(qp: &QueuePair) {
    let gid = std::net::IpAddr::from([10, 9, 0, 2]).into();
    let (qpn, psn) = (Qpn::new(0x77).unwrap(), Psn::new(1));
    let nobody = Endpoint { qpn, psn, gid, ..qp.endpoint() };
    let patient =
        ConnectOptions { timeout: AckTimeout::new(31).unwrap(), ..ConnectOptions::default() };
    qp.connect(&nobody, &patient).unwrap();
}

/// Posts two receives, two SENDs and a READ on a connection whose peer never answers.
fn accepts_five(side: &Side) {
    connect_to_nobody(&side.qp);
    let memory = side.region(8);
    for id in [1, 2] {
        side.qp.recv(id, &[memory.slice(..)]).unwrap();
    }
    side.qp.send_bytes(3, b"signaled").post().unwrap();
    side.qp.send_bytes(4, b"unsignaled").unsignaled().post().unwrap();
    side.qp.read(5, &[memory.slice(..)], memory.remote(0)).post().unwrap();
}

/// Checks that five requests complete as flushed before the queue returns the failure.
fn five_are_flushed(side: &Side, mut take: impl FnMut() -> Result<Completion>) {
    let mut ids: Vec<_> = (0..5)
        .map(|_| {
            let done = take().unwrap();
            assert_eq!(done.status, Status::WorkRequestFlushed, "{done:?}");
            (done.qpn, done.id)
        })
        .collect();
    let error = take().unwrap_err();
    assert!(matches!(error, Error::DeviceFailed { .. }), "{error}");
    // Sends complete in order among themselves, and so do receives.
    ids.sort_by_key(|&(_, id)| id <= 2);
    assert_eq!(ids, [3, 4, 5, 1, 2].map(|id| (side.qp.qpn(), id)));
    assert_eq!(side.qp.state(), QpState::Err);
    assert!(matches!(side.qp.send_bytes(6, b"x").post(), Err(Error::DeviceFailed { .. })));
    assert!(matches!(side.qp.recv(6, &[]), Err(Error::DeviceFailed { .. })));
}

#[test]
fn what_was_accepted_completes_as_flushed_before_the_failure_is_told() {
    let (device, fuse) = bomb(false);
    let sides: Vec<_> = (0..4).map(|_| Side::new(device.clone())).collect();
    sides.iter().for_each(accepts_five);
    let unused = Side::new(device.clone());
    light(&fuse);
    thread::scope(|scope| {
        let [waits, polls, each, spins] = &sides[..] else { panic!() };
        scope.spawn(|| five_are_flushed(waits, || waits.cq.wait_one(TIMEOUT)));
        scope.spawn(|| {
            five_are_flushed(polls, || {
                loop {
                    if let Some(done) = polls.cq.poll_one()? {
                        return Ok(done);
                    }
                }
            });
        });
        scope.spawn(|| {
            five_are_flushed(each, || {
                let mut one = None;
                while each.cq.poll(1, |done| one = Some(done))? == 0 {}
                Ok(one.unwrap())
            });
        });
        scope.spawn(|| five_are_flushed(spins, || spins.cq.spin_one(TIMEOUT)));
    });
    assert!(matches!(unused.cq.poll_one(), Err(Error::DeviceFailed { .. })));
    assert_eq!(unused.qp.state(), QpState::Reset);
    async_event(&device, AsyncKind::DeviceFatal);
}

#[test]
fn a_queue_pair_that_is_destroyed_after_the_failure_takes_its_completions_and_events_with_it() {
    for panics in [false, true] {
        let (device, fuse) = bomb(panics);
        let side = Side::new(device.clone());
        accepts_five(&side);
        let srq = side.pd.create_srq(1, 1).unwrap();
        let shared = side.pd.qp(&side.cq).srq(&srq).build().unwrap();
        connect_to_nobody(&shared);
        if panics {
            // This queue pair fails before the device does, so its event is queued too.
            shared.to_error().unwrap();
        }
        light(&fuse);
        async_fatal(&device);
        drop((side.qp, shared));
        assert!(matches!(side.cq.poll_one(), Err(Error::DeviceFailed { .. })), "{panics}");
        let kinds = std::iter::from_fn(|| device.poll_async_event()).map(|event| event.kind);
        assert_eq!(kinds.collect::<Vec<_>>(), [AsyncKind::DeviceFatal], "{panics}");
    }
}

/// Waits until the device has failed, without taking an event.
fn async_fatal(device: &Device) {
    let deadline = std::time::Instant::now() + TIMEOUT;
    while device.create_pd().is_ok() {
        assert!(std::time::Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
}

/// Threads post while the device fails. Each accepted request must complete.
#[test]
fn a_request_that_is_accepted_while_the_device_fails_completes_too() {
    for _ in 0..20 {
        let (device, fuse) = bomb(false);
        let sides: Vec<_> = (0..4).map(|_| Side::new(device.clone())).collect();
        sides.iter().for_each(|side| connect_to_nobody(&side.qp));
        thread::scope(|scope| {
            for side in &sides {
                scope.spawn(|| {
                    let (mut accepted, mut completed) = (0, 0);
                    let refused = loop {
                        match side.qp.send_bytes(accepted, b"x").post() {
                            Ok(()) => accepted += 1,
                            Err(Error::Verbs(VerbsError::QueueFull { .. })) => {}
                            Err(error) => break error,
                        }
                    };
                    assert!(matches!(refused, Error::DeviceFailed { .. }), "{refused}");
                    let failed = loop {
                        match side.cq.wait_one(TIMEOUT) {
                            Ok(done) => assert_eq!(done.id, completed),
                            Err(error) => break error,
                        }
                        completed += 1;
                    };
                    assert!(matches!(failed, Error::DeviceFailed { .. }), "{failed}");
                    assert_eq!(completed, accepted);
                });
            }
            thread::sleep(Duration::from_micros(200));
            light(&fuse);
        });
    }
}

/// Like the test above, but the program polls, and many receives to flush make the failure slow.
#[test]
fn a_poll_finds_the_request_that_was_accepted_while_the_device_failed() {
    for _ in 0..20 {
        let (device, fuse) = bomb(false);
        let deep = |cap: QpCap| {
            let pd = device.create_pd().unwrap();
            let cq = device.create_cq(1 << 15).unwrap();
            let qp = pd.qp(&cq).cap(cap).build().unwrap();
            connect_to_nobody(&qp);
            Side { device: device.clone(), pd, cq, qp }
        };
        // This queue pair is flushed first.
        let side = deep(QpCap { max_send_wr: 1 << 14, ..QpCap::default() });
        let others: Vec<_> =
            (0..200).map(|_| deep(QpCap { max_recv_wr: 4000, ..QpCap::default() })).collect();
        for other in &others {
            (0..4000).for_each(|id| other.qp.recv(id, &[]).unwrap());
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut accepted = 0;
                while side.qp.send_bytes(accepted, b"x").post().is_ok() {
                    accepted += 1;
                    // Slow enough that the send queue never fills.
                    thread::sleep(Duration::from_micros(if accepted > 1000 { 200 } else { 0 }));
                }
                let mut completed = 0;
                let failed = loop {
                    match side.cq.poll_one() {
                        Ok(None) => {}
                        Ok(Some(done)) => {
                            assert_eq!(done.id, completed);
                            completed += 1;
                        }
                        Err(error) => break error,
                    }
                };
                assert!(matches!(failed, Error::DeviceFailed { .. }), "{failed}");
                assert_eq!(completed, accepted);
            });
            thread::sleep(Duration::from_micros(200));
            light(&fuse);
        });
    }
}

#[test]
fn a_qemu_that_goes_away_leaves_no_request_without_a_completion() {
    let path = std::env::temp_dir().join(format!("rxe-qemu-{}", std::process::id()));
    let qemu = UnixListener::bind(&path).unwrap();
    let words = format!("qemu:{} address 10.9.0.1/24 nodad", path.display());
    let config = L2Config::from_words(words.split(' ')).unwrap();
    let backend = L2Backend::open(&config).unwrap();
    let (connection, _) = qemu.accept().unwrap();
    std::fs::remove_file(&path).unwrap();
    let device = Device::options("lo").address([10, 9, 0, 1].into());
    let device = device.custom_backend(Box::new(backend)).open().unwrap();
    let side = Side::new(device.clone());
    accepts_five(&side);
    thread::scope(|scope| {
        scope.spawn(|| five_are_flushed(&side, || side.cq.wait_one(TIMEOUT)));
        thread::sleep(Duration::from_millis(20));
        drop((connection, qemu));
    });
    let why = async_event(&device, AsyncKind::DeviceFatal).text;
    assert!(why.contains("QEMU has ended"), "{why}");
}
