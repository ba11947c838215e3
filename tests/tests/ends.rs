//! Tests of programs that end immediately after they have seen a message: the message must still be
//! acknowledged.

mod common;

use common::alone;
use rxe_harness::c::Compiled;
use rxe_harness::or_skip;

/// The place of the ending program relative to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    OneHost,
    /// Its address differs from the peer's, so its acknowledgements may be delayed to be combined.
    OtherHost,
}

/// Runs `tests/c/ends.c` for each way to end, with and without some ping-pong rounds before.
fn all_end_well(rxe_run: &str, place: Place, ways: &[&str]) {
    let Some(c) = or_skip(Compiled::new(&["tests/c/ends.c"])) else { return };
    let program = c.path("tests/c/ends.c").display().to_string();
    let ways = ways.join(" ");
    let other = if place == Place::OtherHost { "/run/netns/far rxe_veth1" } else { "" };
    let script = format!(
        "for way in {ways}; do
            for rounds in 0 50; do
                for again in 1 2; do
                    said=$(timeout 60 {rxe_run} -- {program} rxe_veth0 $way $rounds {other} 2>&1) || true
                    [ \"$(echo \"$said\" | tail -n 1)\" = acknowledged ] || echo $way $rounds: $said
                done
            done
        done"
    );
    let Some(said) = alone(rxe_run, "cc", &script) else { return };
    assert_eq!(said, "", "{rxe_run}, {place:?}");
}

/// Ways to end that the library notices, or that run exit handlers.
const SEEN: [&str; 12] = [
    "return",
    // These end while other threads poll.
    "polling-exit",
    "polling-_exit",
    "exit",
    "_exit",
    "quick_exit",
    "abort",
    "handler",
    "threads",
    "execve",
    "execl",
    "execlp",
];
/// Ways to end that no code of the process notices.
const UNSEEN: [&str; 2] = ["SIGKILL", "SIGTERM"];

#[test]
fn over_sockets() {
    all_end_well("$RXE run", Place::OtherHost, &SEEN);
}

#[test]
fn over_sockets_on_one_host() {
    all_end_well("$RXE run --no-shm", Place::OneHost, &SEEN);
}

#[test]
fn on_one_host() {
    all_end_well("$RXE run", Place::OneHost, &[&SEEN[..], &UNSEEN].concat());
}

#[test]
fn on_one_host_however_they_end_if_acknowledgements_are_prompt() {
    let run = "env RXE_ACK=prompt $RXE run";
    all_end_well(run, Place::OneHost, &[&SEEN[..], &UNSEEN].concat());
}

#[test]
fn over_sockets_however_they_end_if_acknowledgements_are_prompt() {
    all_end_well("$RXE run --ack prompt", Place::OtherHost, &[&SEEN[..], &UNSEEN].concat());
}
