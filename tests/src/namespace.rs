//! A network of a test's own.

use std::any::type_name_of_val;
use std::process::{Command, Stdio};

/// Runs the body of a test in network and user namespaces of its own, with loopback up and after the shell commands
/// `setup`. To do so it starts this test once more as a process. If namespaces are not allowed, the test is skipped
/// with a message.
///
/// # Panics
/// If the test fails there, or `body` is not the closure of a test.
pub fn inside<F: FnOnce()>(setup: &str, body: F) {
    inside_of("-Urn", setup, body);
}

/// The same in the user namespace that this process is in: where BPF is permitted to root.
///
/// # Panics
/// As [`inside`].
pub fn inside_with_bpf<F: FnOnce()>(setup: &str, body: F) {
    inside_of("-n", setup, body);
}

/// Options are those of unshare(1).
fn inside_of<F: FnOnce()>(options: &str, setup: &str, body: F) {
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
        .is_ok_and(|status| status.success());
    if !allowed {
        return crate::skip(name, &format!("`unshare {options}` or `ip` does not work here"));
    }
    let output = Command::new("unshare")
        .args([options, "sh", "-c"])
        .arg(format!("set -e\nip link set lo up\n{setup}\nexec \"$0\" \"$@\""))
        .arg(std::env::current_exe().expect("the test's own program"))
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in the namespace:\n{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{name} did not run:\n{stdout}\n{stderr}");
    let skipped = stdout.lines().filter_map(|line| line.strip_prefix("SKIPPED: "));
    for (_, why) in skipped.filter_map(|line| line.split_once(": ")) {
        crate::skip(name, why);
    }
}
