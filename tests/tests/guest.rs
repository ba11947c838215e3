//! Things that a program with a device in its process may do (`tests/c/guest.c`).

use xtask::c::Compiled;
use xtask::or_skip;

mod common;
use common::alone;

/// Runs `tests/c/guest.c` with this argument. Returns what it prints.
#[track_caller]
fn guest(what: &str) -> Option<String> {
    guest_linked(what, &["-libverbs", "-lpthread"], "")
}

/// As [`guest`], linked with these libraries, and after the commands `before`.
#[track_caller]
fn guest_linked(what: &str, libraries: &[&str], before: &str) -> Option<String> {
    let c = or_skip(Compiled::linked(&["tests/c/guest.c"], libraries))?;
    let program = c.path("tests/c/guest.c").display().to_string();
    let script = format!("{before}\n timeout 120 $RXE run -- {program} rxe_veth0 {what} 2>&1");
    let said = alone(what, "cc", &script)?;
    assert!(said.contains(&format!("{what}: done")), "{said}");
    Some(said)
}

#[test]
fn memory_that_is_taken_away_ends_the_queue_pair_that_uses_it_and_nothing_else() {
    let Some(said) = guest("memory") else { return };
    for part in ["is not mapped any more", "mprotect", "behind the end of the file", "byte 4096 of"]
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
