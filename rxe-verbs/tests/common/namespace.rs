//! A network of a test's own.

use std::any::type_name_of_val;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::thread::UnshareFlags;

#[path = "../../../rxe-net/src/testing/skipped.rs"]
mod skipped;

use skipped::repeat_skipped;
pub(crate) use skipped::skipped;

/// Runs `body`, the closure of a test, in user and network namespaces made for it, with loopback up
/// and after the shell commands `setup`: by starting this test alone once more. Where that is not
/// allowed the test is skipped, and says so.
pub(crate) fn in_namespace<F: FnOnce()>(setup: &str, body: F) {
    in_namespaces("-Urn", setup, body);
}

/// The same in the user namespace that this process is in: where BPF is permitted to root. Elsewhere the test
/// is skipped too.
pub(crate) fn in_bpf_namespace<F: FnOnce()>(setup: &str, body: F) {
    in_namespaces("-n", setup, body);
}

fn in_namespaces<F: FnOnce()>(options: &str, setup: &str, body: F) {
    const INSIDE: &str = "RXE_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let name = type_name_of_val(&body);
    let name = name.split_once("::").map_or(name, |(_, path)| path);
    let name = name.strip_suffix("::{{closure}}").expect("called with a test's closure");
    let allowed = Command::new("unshare")
        .args([options, "ip", "link"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success());
    if !allowed {
        skipped(name, format_args!("`unshare {options}` or `ip` does not work here"));
        return;
    }
    let output = Command::new("unshare")
        .args([options, "sh", "-c"])
        .arg(format!("set -e\nip link set lo up\n{setup}\nexec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in the namespace:\n{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{name} did not run:\n{stdout}\n{stderr}");
    repeat_skipped(&stdout);
}

/// Runs `there` in a network namespace of its own, after the end of a cable here, `far`, was moved there. What it
/// opens stays there.
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

/// Runs a shell command, which must succeed.
pub(crate) fn sh(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}
