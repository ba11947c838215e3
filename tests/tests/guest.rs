//! What a program may do that has a device in its process (`tests/c/guest.c`).

use xtask::c::Compiled;
use xtask::or_skip;

mod common;
use common::alone;

/// What `tests/c/guest.c` says when it does this.
#[track_caller]
fn guest(what: &str) -> Option<String> {
    let c = or_skip(Compiled::new(&["tests/c/guest.c"]))?;
    let program = c.path("tests/c/guest.c").display().to_string();
    let script = format!("timeout 120 $RXE run -- {program} rxe_veth0 {what} 2>&1");
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
