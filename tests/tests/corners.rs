//! Tests of verbs in unusual places: on threads with little stack, in destructors of thread-local
//! data, and while descriptor 2 is a file with data (`tests/c/corners.c`); and of devices that are
//! closed while some of their objects still exist (`tests/c/closed.c`).

mod common;

use common::alone;
use rxe_harness::c::Compiled;
use rxe_harness::or_skip;

/// Runs the program with these arguments, over shared memory and over sockets. Every mistake must
/// be explained.
fn is_fine(test: &str, what: &str) {
    let Some(c) = or_skip(Compiled::new(&["tests/c/corners.c"])) else { return };
    let program = c.path("tests/c/corners.c").display().to_string();
    for run in ["", "--no-shm"] {
        let script = format!("$RXE run --explain all {run} -- {program} rxe_veth0 {what}");
        let Some(said) = alone(test, "cc", &script) else { return };
        assert_eq!(said, "fine\n", "{run}");
    }
}

/// The stack size is PTHREAD_STACK_MIN: 16 KiB on x86-64, 128 KiB on aarch64.
#[test]
fn the_smallest_stack_suffices() {
    let least = if cfg!(target_arch = "x86_64") { 16 } else { 128 };
    is_fine("the_smallest_stack_suffices", &format!("stack {least}"));
}

#[test]
fn verbs_work_in_a_destructor_of_a_key() {
    is_fine("verbs_work_in_a_destructor_of_a_key", "key");
}

#[test]
fn verbs_work_in_a_destructor_of_a_thread_local_variable() {
    is_fine("verbs_work_in_a_destructor_of_a_thread_local_variable", "local");
}

#[test]
fn data_in_descriptor_2_is_not_mixed_with_explanations() {
    is_fine("data_in_descriptor_2_is_not_mixed_with_explanations", "data \"$PWD/data\"");
}

/// Runs `tests/c/closed.c` over shared memory and over sockets.
fn closes(test: &str, what: &str) {
    let Some(c) = or_skip(Compiled::new(&["tests/c/closed.c"])) else { return };
    let program = c.path("tests/c/closed.c").display().to_string();
    for run in ["", "--no-shm"] {
        let script =
            format!("timeout 120 $RXE run --explain off {run} -- {program} rxe_veth0 {what} 2>&1");
        let Some(said) = alone(test, "cc", &script) else { return };
        assert_eq!(said, "fine\n", "{run}");
    }
}

#[test]
fn queue_pairs_and_regions_end_when_their_device_is_closed() {
    closes("queue_pairs_and_regions_end_when_their_device_is_closed", "peer");
}

#[test]
fn a_device_that_is_closed_leaves_no_threads_descriptors_and_numbers() {
    closes("a_device_that_is_closed_leaves_no_threads_descriptors_and_numbers", "again");
}
