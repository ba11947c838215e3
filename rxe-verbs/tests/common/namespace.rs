//! Network namespaces for tests.

use std::process::Command;
use std::sync::mpsc;
use std::thread;

use rustix::thread::UnshareFlags;

pub(crate) use rxe_test_support::{in_bpf_namespace, in_namespace, skipped};

/// Moves the interface `far`, one end of a cable, into a new network namespace and runs `there` in
/// it. Sockets that `there` opens stay in that namespace.
pub(crate) fn at_the_other_end<R: Send>(far: &str, there: impl FnOnce() -> R + Send) -> R {
    let (to_us, from_them) = mpsc::channel();
    let (to_them, from_us) = mpsc::channel();
    thread::scope(|scope| {
        let there = scope.spawn(move || {
            // SAFETY: only this thread changes its network namespace, which it shares with no other.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET).unwrap() };
            to_us.send(rustix::thread::gettid()).unwrap();
            from_us.recv().unwrap();
            there()
        });
        let thread = from_them.recv().unwrap();
        sh(&format!("ip link set {far} netns {}", thread.as_raw_nonzero()));
        to_them.send(()).unwrap();
        there.join().unwrap()
    })
}

/// Runs a shell command and checks that it succeeds.
pub(crate) fn sh(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}
