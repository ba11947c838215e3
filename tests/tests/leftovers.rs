//! Objects of programs can be destroyed in any order, and sleeping threads ended in any way.

mod common;

use common::alone;
use rxe_harness::c::Compiled;
use rxe_harness::or_skip;

/// Runs a program of `tests/c` that needs no peer, over sockets and over shared memory.
fn says(name: &str, before: &str, arguments: &str, said: &str) {
    let source = format!("tests/c/{name}.c");
    let Some(c) = or_skip(Compiled::new(&[&source])) else { return };
    let program = c.path(&source).display().to_string();
    for options in ["", "--no-shm"] {
        let script = format!(
            "timeout 300 $RXE run {options} -- {before} {program} rxe_veth0 {arguments} 2>&1 || echo $?"
        );
        let Some(out) = alone(name, "cc", &script) else { return };
        assert!(out.ends_with(said), "{options}: {out}");
    }
}

#[test]
fn objects_of_every_kind_that_are_destroyed_in_any_order_leave_nothing() {
    says("objects", "", "2000", "all is given back\n");
}

#[test]
fn valgrind_finds_nothing_lost_of_objects_of_every_kind() {
    let valgrind = "valgrind --quiet --error-exitcode=9 --leak-check=full \
                    --errors-for-leak-kinds=definite --show-leak-kinds=definite";
    says("objects", valgrind, "40 slowly", "all is given back\n");
}

#[test]
fn a_thread_is_cancelled_only_where_a_read_would_be_and_holds_nothing_there() {
    says("cancelled", "", "1000", "cancelled only where a read would be\n");
}

#[test]
fn threads_that_sleep_wake_for_nothing_but_their_events() {
    says("asleep", "", "", "nobody woke for nothing\n");
}

#[test]
fn every_event_wakes_a_program_that_sleeps_in_an_edge_triggered_epoll() {
    says("edges", "", "20000", "each event was told\n");
}
