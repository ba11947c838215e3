//! Unmodified programs under debugging tools.

mod common;

use std::fs;

use common::{Where, alone, both, with_libraries};
use rxe_harness::c::Compiled;
use rxe_harness::or_skip;

const VALGRIND: &str = "valgrind --quiet --error-exitcode=9 --leak-check=full \
                        --errors-for-leak-kinds=definite --show-leak-kinds=definite --num-callers=40";

#[test]
fn valgrind_finds_nothing_in_a_program_without_mistakes() {
    for place in [Where::TwoHosts, Where::OneAddress] {
        let run = format!("{VALGRIND} ibv_rc_pingpong -g 1 -n 100");
        let client = format!("{run} 10.9.0.1");
        let Some(out) = both("valgrind", 18515, "", &run, &client, place) else { return };
        assert!(!out.contains("=="), "{place:?}: {out}");
        assert_eq!(out.matches("100 iters").count(), 2, "{place:?}: {out}");
    }
}

/// Runs valgrind with the leak kinds that test suites use. They include blocks in use that are
/// reached by a pointer to their middle.
#[test]
fn valgrind_counts_no_block_of_the_library_as_lost() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/freed.c"], &["-libverbs"])) else { return };
    let bin = with_libraries();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../rxe-preload/valgrind.supp");
    fs::copy(source, bin.0.join("valgrind.supp")).unwrap();
    let script = format!(
        "VALGRIND_OPTS=--error-exitcode=9 timeout 120 {} run -- valgrind --quiet --leak-check=full {} \
            rxe_veth0 right 2>&1 || echo \"exit code $?\"",
        bin.0.join("rxe").display(),
        c.path("tests/c/freed.c").display()
    );
    let Some(out) = alone("leaks", "valgrind", &script) else { return };
    assert_eq!(out, "done\n");
}

#[test]
fn valgrind_finds_what_was_freed_and_is_still_used_by_the_device() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/freed.c"], &["-libverbs"])) else { return };
    let program = c.path("tests/c/freed.c").display().to_string();
    let run = |mistake: &str| {
        let script = format!(
            "timeout 60 $RXE run -- {VALGRIND} {program} rxe_veth0 {mistake} 2>&1 || echo \"exit code $?\""
        );
        alone(mistake, "valgrind", &script)
    };
    for (mistake, found) in [("send", "Invalid read of size"), ("write", "Invalid write of size")] {
        let Some(out) = run(mistake) else { return };
        let block = "inside a block of size 32,768 free'd";
        assert!(out.contains(found) && out.contains(block), "{mistake}: {out}");
        let place = out.split(found).nth(1).and_then(|error| error.split("Address 0x").next());
        // A thread of the device may handle a peer's WRITE.
        assert!(
            place.is_some_and(|place| mistake == "write" || place.contains(": main (")),
            "{out}"
        );
        assert!(out.ends_with("exit code 9\n"), "{mistake}: {out}");
    }
    let Some(out) = run("right") else { return };
    assert_eq!(out, "done\n");
}

#[test]
fn gdb_stops_a_program_at_a_verb() {
    let gdb = "gdb -batch -nx -ex 'set breakpoint pending on' -ex 'break ibv_modify_qp' -ex run \
               -ex backtrace -ex delete -ex continue --args";
    let run = "ibv_rc_pingpong -g 1 -n 100";
    let client = format!("{gdb} {run} 10.9.0.1");
    let Some(out) = both("gdb", 18515, "", run, &client, Where::TwoHosts) else { return };
    for said in ["hit Breakpoint 1", "ibv_modify_qp ()", "exited normally"] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert_eq!(out.matches("100 iters").count(), 2, "{out}");
}

#[test]
fn strace_shows_what_a_program_asks_of_the_system() {
    let run = "ibv_rc_pingpong -g 1 -n 100";
    let client = format!("strace -f -e trace=sendmsg,sendmmsg {run} 10.9.0.1");
    let Some(out) = both("strace", 18515, "", run, &client, Where::TwoHosts) else { return };
    assert_eq!(out.matches("100 iters").count(), 2, "{out}");
    assert!(out.contains("sin_port=htons(4791)"), "{out}");
}
