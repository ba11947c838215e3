//! Things that a program may do while its process has an open device (`tests/c/guest.c`).

use rxe_harness::c::Compiled;
use rxe_harness::or_skip;

mod common;
use common::alone;

/// Runs `tests/c/guest.c` with this argument. Returns its output.
#[track_caller]
fn guest(what: &str) -> Option<String> {
    guest_linked(what, &["-libverbs", "-lpthread"], "")
}

/// Like [`guest`], with these options of `rxe run`.
#[track_caller]
fn guest_with(what: &str, options: &str) -> Option<String> {
    run_guest(what, &["-libverbs", "-lpthread"], "", options)
}

/// Like [`guest`], linked with these libraries, and after the commands `before`.
#[track_caller]
fn guest_linked(what: &str, libraries: &[&str], before: &str) -> Option<String> {
    run_guest(what, libraries, before, "")
}

#[track_caller]
fn run_guest(what: &str, libraries: &[&str], before: &str, options: &str) -> Option<String> {
    let c = or_skip(Compiled::linked(&["tests/c/guest.c"], libraries))?;
    let program = c.path("tests/c/guest.c").display().to_string();
    let script =
        format!("{before}\n timeout 120 $RXE run {options} -- {program} rxe_veth0 {what} 2>&1");
    let said = alone(what, "cc", &script)?;
    assert!(said.contains(&format!("{what}: done")), "{said}");
    Some(said)
}

#[test]
fn memory_that_is_taken_away_ends_the_queue_pair_that_uses_it_and_nothing_else() {
    let Some(said) = guest("memory") else { return };
    for part in ["is not mapped (munmap", "mprotect", "behind the end of the file", "byte 4096 of"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_program_s_own_faults_are_its_own() {
    guest("handlers");
}

#[test]
fn signals_are_handled_by_the_program_s_own_threads() {
    guest("signals");
}

/// The options for shared memory between the two ends, UDP, and packet sockets.
const WAYS: [&str; 4] = ["", "--no-shm", "--backend packet", "--backend packet --no-shm"];

#[test]
fn a_program_that_closes_all_descriptors_finds_its_files_untouched_and_is_told_why() {
    for way in WAYS {
        let Some(said) = guest_with("descriptors", way) else { return };
        let told = said.matches("the program has closed descriptors of the device").count();
        assert!(told >= 1, "{way}: {said}");
    }
}

#[test]
fn the_threads_of_a_device_end_when_the_program_has_closed_all_descriptors() {
    let Some(said) = guest_with("threads_end", "") else { return };
    assert!(said.contains("the program has closed descriptors of the device"), "{said}");
}

#[test]
fn a_program_that_closes_the_low_numbers_keeps_its_device() {
    for way in WAYS {
        let Some(said) = guest_with("low_descriptors", way) else { return };
        assert!(!said.contains("has closed descriptors"), "{way}: {said}");
    }
}

#[test]
fn a_daemon_opens_its_device_after_it_has_closed_all() {
    guest("daemon_then_open");
}

#[test]
fn what_was_opened_before_daemon_is_the_parent_s_and_the_child_opens_it_anew() {
    let Some(said) = guest("open_then_daemon") else { return };
    assert!(said.contains("opened before fork()"), "{said}");
}

/// The numbers of descriptors of one device with a queue pair, and of two. The interface has three
/// addresses (IPv4, IPv6, and link-local). The numbers must be low, because tables of programs may
/// be small, and `ulimit -n` too.
const LIMITS: [(&str, u32, u32); 3] =
    [("", 17, 31), ("--no-shm", 16, 29), ("--backend packet", 21, 39)];

#[test]
fn a_device_takes_few_descriptors() {
    // The kernel needs a second or two before the link-local address is usable.
    let ready = "until ip -6 address show dev veth0 scope link -tentative | grep -q inet6; do
            sleep 0.1
        done";
    for (way, one, two) in LIMITS {
        let Some(said) = run_guest("counted", &["-libverbs", "-lpthread"], ready, way) else {
            return;
        };
        let number = |name: &str| -> u32 {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("{said}"))
        };
        let found = (number("one"), number("two"));
        assert!(found.0 <= one && found.1 <= two, "{way}: {found:?}, not {one}, {two}");
        println!("{way}: {found:?}");
    }
}

#[test]
fn programs_with_address_sanitizer_run() {
    let libraries = ["-fsanitize=address", "-libverbs", "-lpthread"];
    // Leaks are not tested here.
    for what in ["plain", "memory"] {
        guest_linked(what, &libraries, "export ASAN_OPTIONS=detect_leaks=0");
    }
}

#[test]
fn programs_with_thread_sanitizer_run() {
    guest_linked("plain", &["-fsanitize=thread", "-libverbs", "-lpthread"], "");
}

#[test]
fn a_full_stderr_that_nobody_reads_stops_no_device() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/guest.c"])) else { return };
    let program = c.path("tests/c/guest.c").display().to_string();
    // The pipe is full before the program starts, and its reader sleeps.
    let script = format!(
        "mkfifo pipe
        sleep 100 < pipe & reader=$!
        exec 3> pipe
        timeout 2 dd if=/dev/zero of=/proc/self/fd/3 bs=4096 count=64 2> /dev/null || true
        timeout 60 $RXE run --explain all -- {program} rxe_veth0 memory 2>&3
        kill $reader"
    );
    let Some(said) = alone("a full stderr", "cc", &script) else { return };
    assert!(said.contains("memory: done"), "{said}");
}

#[test]
fn a_read_only_root_without_a_runtime_directory_is_enough() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/guest.c"])) else { return };
    let program = c.path("tests/c/guest.c").display().to_string();
    let script = format!(
        "unset XDG_RUNTIME_DIR TMPDIR
        mount --bind /tmp /tmp
        mount -o remount,bind,ro /tmp
        $RXE run -- {program} rxe_veth0 plain"
    );
    let Some(said) = alone("a read-only root", "cc", &script) else { return };
    assert!(said.contains("plain: done"), "{said}");
}

#[test]
fn a_program_runs_where_nothing_can_be_written() {
    let Some(c) = or_skip(Compiled::new(&["tests/c/mistakes.c"])) else { return };
    let program = c.path("tests/c/mistakes.c").display().to_string();
    let script = format!(
        "unset XDG_RUNTIME_DIR TMPDIR
        for directory in /tmp /dev/shm /run; do
            mount --bind $directory $directory
            mount -o remount,bind,ro $directory
        done
        $RXE run --explain off -- {program} rxe_veth0 rnr 2>&1"
    );
    let Some(said) = alone("nothing to write to", "cc", &script) else { return };
    assert!(said.ends_with("made\n"), "{said}");
    let why = "rxe: programs that read /sys/class/infiniband find no device there: /tmp/rxe-";
    assert!(said.contains(why) && said.contains("set XDG_RUNTIME_DIR to"), "{said}");
}
