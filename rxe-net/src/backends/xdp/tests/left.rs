//! Tests of what is left on an interface when the process ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use super::open;
use crate::testing::in_bpf_namespace;
use crate::testing::link::add_addresses;

/// Returns everything that ip(8) shows of the interface.
pub(super) fn shown(netdev: &str) -> String {
    let shown = Command::new("ip").args(["-d", "link", "show", netdev]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

/// Returns whether the interface has an XDP program.
fn has_program(netdev: &str) -> bool {
    shown(netdev).contains("xdp")
}

const HOLDER: &str = "RXE_TEST_XDP_HOLDER";

/// Runs as the process that holds the backend. It ends when it is killed or, in the requested way,
/// when its input ends.
fn hold(how: &str) {
    let backend = open("near0", &["10.9.0.1"]);
    println!("OPEN");
    io::stdin().lock().lines().for_each(drop);
    match how {
        "panic" => panic!("on purpose"),
        "exit" => std::process::exit(0),
        _ => drop(backend),
    }
}

/// Runs the test with this name again, as the program of the holding process.
fn an_interface_is_as_it_was(name: &str, end: impl FnOnce(&mut std::process::Child, ChildStdin)) {
    add_addresses("near0", &["10.9.0.1"]);
    let before = shown("near0");
    assert!(!has_program("near0"));
    let mut holder = Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("backends::xdp::tests::left::{name}"), "--nocapture"])
        .env(HOLDER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(holder.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("OPEN") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended");
    }
    assert!(has_program("near0"));
    let input = holder.stdin.take().unwrap();
    end(&mut holder, input);
    // The kernel closes a link a moment after its last descriptor.
    let limit = Instant::now() + Duration::from_secs(10);
    while has_program("near0") {
        assert!(Instant::now() < limit, "the program is still there");
        thread::yield_now();
    }
    assert_eq!(shown("near0"), before);
    drop(open("near0", &["10.9.0.1"]));
    assert_eq!(shown("near0"), before);
}

const LINK: &str = "ip link add near0 type veth peer name far0";

#[test]
fn nothing_by_a_process_that_is_killed() {
    if env::var_os(HOLDER).is_some() {
        return hold("");
    }
    in_bpf_namespace(LINK, || {
        an_interface_is_as_it_was("nothing_by_a_process_that_is_killed", |holder, _input| {
            // SIGKILL.
            holder.kill().unwrap();
            assert_eq!(holder.wait().unwrap().signal(), Some(libc::SIGKILL));
        });
    });
}

#[test]
fn nothing_by_a_process_that_panics() {
    if env::var_os(HOLDER).is_some() {
        return hold("panic");
    }
    in_bpf_namespace(LINK, || {
        an_interface_is_as_it_was("nothing_by_a_process_that_panics", |holder, input| {
            drop(input);
            assert_eq!(holder.wait().unwrap().code(), Some(101));
        });
    });
}

#[test]
fn nothing_by_a_process_that_exits() {
    if env::var_os(HOLDER).is_some() {
        return hold("exit");
    }
    in_bpf_namespace(LINK, || {
        an_interface_is_as_it_was("nothing_by_a_process_that_exits", |holder, input| {
            drop(input);
            assert_eq!(holder.wait().unwrap().code(), Some(0));
        });
    });
}
