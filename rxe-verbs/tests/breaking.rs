//! Programs that put a device under stress: many queue pairs, state changes during posts, signals,
//! and devices that come and go.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::*;
use rxe_verbs::*;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

const SMALL: QpCap =
    QpCap { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };

#[test]
fn ten_thousand_queue_pairs_exist_at_once_and_all_work() {
    const COUNT: u64 = 5_000;
    let (a, b) = (open(address()), open(address()));
    let make = |device: &Device| {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(u32::try_from(2 * COUNT).unwrap()).unwrap();
        let qps: Vec<_> = (0..COUNT).map(|_| pd.qp(&cq).cap(SMALL).build().unwrap()).collect();
        let mr = pd.register(64, Access::LOCAL_WRITE).unwrap();
        (qps, cq, mr)
    };
    let ((ours, cq, _), (theirs, their_cq, mr)) = (make(&a), make(&b));
    for (id, (our, their)) in (0..).zip(ours.iter().zip(&theirs)) {
        connect(our, their);
        their.recv(id, &[mr.slice(..8)]).unwrap();
    }
    for (id, qp) in (0..).zip(&ours) {
        qp.send_bytes(id, b"shortone").post().unwrap();
    }
    for cq in [&cq, &their_cq] {
        let mut ids = HashSet::new();
        for _ in 0..COUNT {
            let done = cq.wait_one(TIMEOUT).unwrap();
            assert_eq!(done.status, Status::Success);
            assert!(ids.insert(done.id), "completed twice: {}", done.id);
        }
    }
}

#[test]
fn every_request_completes_once_however_its_queue_pair_ends() {
    for round in 0..50 {
        let (device, b) = (open(address()), Side::new(open(address())));
        let pd = device.create_pd().unwrap();
        // No thread polls this queue while the threads post.
        let cq = device.create_cq(8192).unwrap();
        let a = Side { qp: pd.qp(&cq).build().unwrap(), device, pd, cq };
        connect(&a.qp, &b.qp);
        let taken = AtomicU64::new(0);
        thread::scope(|scope| {
            let poster = || {
                for id in 0..2_000 {
                    let send = |imm| SendOp::Send { imm };
                    let request =
                        SendRequest::new(id, send(None), Payload::Inline([1; 8][..].into()));
                    let request = SendRequest { flags: SendFlags::SIGNALED, ..request };
                    if a.qp.post_send([request]).is_ok() {
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                }
            };
            let threads = [scope.spawn(poster), scope.spawn(poster)];
            thread::sleep(Duration::from_micros(20 * round));
            a.qp.to_error().unwrap();
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
        let mut done = 0;
        while done < taken.load(Ordering::SeqCst) {
            let completion = a.cq.wait_one(TIMEOUT).unwrap();
            assert!(
                matches!(completion.status, Status::Success | Status::WorkRequestFlushed),
                "{completion:?}"
            );
            done += 1;
        }
        assert_eq!(a.qp.sends_outstanding(), 0);
        assert!(a.cq.poll_one().unwrap().is_none());
        assert_eq!(a.qp.state(), QpState::Err);
    }
}

#[test]
fn devices_that_come_and_go_leave_no_descriptor_and_no_thread() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    in_own_process(|| {
        let cycle = || {
            let (a, b) = pair();
            let channel = a.device.create_channel().unwrap();
            let _cq = a.device.create_cq_on(4, &channel).unwrap();
            let mr = b.region(64);
            b.qp.recv(1, &[mr.slice(..)]).unwrap();
            a.qp.send_bytes(1, b"x").post().unwrap();
            a.ok();
            b.ok();
            // A thread keeps the descriptor that it has slept on once.
            assert!(a.cq.wait_one(Duration::from_millis(1)).is_err());
        };
        cycle();
        let before = (descriptors(), threads());
        (0..100).for_each(|_| cycle());
        assert_eq!((descriptors(), threads()), before);
    });
}

#[test]
fn sequence_numbers_wrap_in_the_middle_of_messages() {
    let faults = || "drop 2%; reorder 2% by 3".parse().unwrap();
    let open =
        |seed| Device::options("lo").address(address()).faults(seed, faults()).open().unwrap();
    let side = |device: Device, psn| {
        let pd = device.create_pd().unwrap();
        let cq = device.create_cq(64).unwrap();
        let qp = pd.qp(&cq).psn(Psn::new(psn)).build().unwrap();
        Side { device, pd, cq, qp }
    };
    let (a, b) = (side(open(1), 0xff_ffff), side(open(2), 0xff_fffe));
    connect_with(&a.qp, &b.qp, &ConnectOptions { mtu: Some(Mtu::M256), ..patient() });
    const LEN: usize = 100_001;
    let (from, to) = (a.region(LEN), b.region(LEN));
    for (seed, (x, y)) in [((&a, &from), (&b, &to)), ((&b, &to), (&a, &from))].iter().enumerate() {
        let seed = u8::try_from(seed).unwrap();
        x.1.write_at(0, &pattern(LEN, seed)).unwrap();
        x.0.qp.write(1, &[x.1.slice(..)], y.1.remote(0)).post().unwrap();
        x.0.ok();
        assert_eq!(y.1.to_vec(..).unwrap(), pattern(LEN, seed));
        y.1.write_at(0, &pattern(LEN, seed + 9)).unwrap();
        x.0.qp.read(2, &[x.1.slice(..)], y.1.remote(0)).post().unwrap();
        x.0.ok();
        assert_eq!(x.1.to_vec(..).unwrap(), pattern(LEN, seed + 9));
    }
}

#[test]
fn signals_interrupt_nothing() {
    in_own_process(|| {
        // A handler without SA_RESTART: every system call that sleeps ends with EINTR.
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: a sigaction of zeros is a valid one, and the handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                        let Ok(tid) = task.file_name().to_string_lossy().parse::<i32>() else {
                            continue;
                        };
                        // SAFETY: sends a signal that has a handler to a thread of this process.
                        unsafe {
                            libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1)
                        };
                    }
                    thread::sleep(Duration::from_micros(200));
                }
            });
            for _ in 0..20 {
                let (a, b) = pair();
                let mr = b.region(64);
                for id in 0..100 {
                    b.qp.recv(id, &[mr.slice(..)]).unwrap();
                    a.qp.send_bytes(id, b"x").post().unwrap();
                    assert_eq!((a.ok().id, b.ok().id), (id, id));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

/// Runs the calling test again in a process of its own, and `f` there.
fn in_own_process(f: impl FnOnce()) {
    const ALONE: &str = "RXE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return f();
    }
    let name = thread::current().name().unwrap().to_owned();
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--test-threads", "1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
}
