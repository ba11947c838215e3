//! Network namespaces for tests.

use std::any::type_name_of_val;
use std::process::{Command, Stdio};

use crate::{repeat_skipped, skipped};

/// Runs the test `body` in new user and network namespaces, in which root may configure the network.
/// Loopback is up, and the shell commands `setup` were run. The test runs in a new process of this
/// test binary. If namespaces are not permitted, the test is skipped and says so.
///
/// # Panics
/// If the test fails there, or `body` is not the closure of a test.
pub fn in_namespace<F: FnOnce()>(setup: &str, body: F) {
    in_namespaces("-Urn", &format!("ip link set lo up\n{setup}"), body);
}

/// Like [`in_namespace`], but in the user namespace of this process, in which root may use BPF.
///
/// # Panics
/// As [`in_namespace`].
pub fn in_bpf_namespace<F: FnOnce()>(setup: &str, body: F) {
    in_namespaces("-n", &format!("ip link set lo up\n{setup}"), body);
}

/// Like [`in_namespace`], with these options of unshare(1), and with no commands but `setup`.
///
/// # Panics
/// As [`in_namespace`].
pub fn in_namespaces<F: FnOnce()>(options: &str, setup: &str, body: F) {
    const INSIDE: &str = "RXE_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let name = test_name(&body);
    let allowed = Command::new("unshare")
        .args([options, "ip", "link"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !allowed {
        return skipped(name, format_args!("`unshare {options}` or `ip` does not work here"));
    }
    let output = Command::new("unshare")
        .args([options, "sh", "-c"])
        .arg(format!("set -e\n{setup}\nexec \"$0\" \"$@\""))
        .arg(std::env::current_exe().expect("the test's own program"))
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in the namespace:\n{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{name} did not run:\n{stdout}\n{stderr}");
    repeat_skipped(&stdout);
}

/// Returns the name of the test that this closure belongs to.
///
/// # Panics
/// If the closure belongs to no test.
pub fn test_name<F>(body: &F) -> &'static str {
    let name = type_name_of_val(body);
    let name = name.split_once("::").map_or(name, |(_, path)| path);
    name.strip_suffix("::{{closure}}").expect("called with a test's closure")
}
