//! Libraries of collective operations, whose transports use verbs: gloo, of Debian's packages. All ranks are ours,
//! on two hosts and on one address.

use std::process::Command;

use xtask::debs::Unpacked;
use xtask::{or_skip, place};

mod common;
use common::{Dir, Where, alone, installed};

/// gloo, and a library of its that is not on every machine.
const GLOO: [&str; 3] = ["libgloo-dev", "libgloo0", "libhiredis0.14"];

#[test]
fn gloo_between_two_hosts() {
    gloo(Where::TwoHosts);
}

#[test]
fn gloo_on_one_address() {
    gloo(Where::OneAddress);
}

/// Four ranks of `c/gloo.cc`, two of them on each host or all on one.
#[track_caller]
fn gloo(place: Where) {
    let test = format!("gloo ({place:?})");
    if !installed(&test, "g++") {
        return;
    }
    let Some(unpacked) = or_skip(Unpacked::fetch("gloo", &GLOO)) else { return };
    let dir = Dir::new();
    let program = dir.0.join("gloo");
    let libraries = unpacked.path("usr/lib/x86_64-linux-gnu");
    let mut compile = Command::new("g++");
    compile.args(["-O1", "-o"]).arg(&program).arg("-isystem").arg(unpacked.path("usr/include"));
    compile
        .arg(place::checkout().join("tests/c/gloo.cc"))
        .arg(unpacked.path("usr/lib/libgloo.so.0"));
    compile
        .arg(format!("-Wl,-rpath-link,{}", libraries.display()))
        .args(["-libverbs", "-lpthread"]);
    assert!(compile.status().unwrap().success());
    let far = match place {
        Where::TwoHosts => "ip netns exec far",
        Where::OneAddress => "",
    };
    let script = format!(
        r#"
        export LD_LIBRARY_PATH={lib}:{libraries}
        $RXE link add rxe0 type rxe netdev veth0
        ip netns exec far $RXE link add rxe0 type rxe netdev veth1
        mkdir store
        start() {{ timeout -k 1 60 $2 $RXE run -- {program} rxe0 $PWD/store $1 4 > out.$1 2>&1; }}
        start 0 & start 1 & start 2 '{far}' & start 3 '{far}' & wait
        cat out.*"#,
        lib = unpacked.path("usr/lib").display(),
        libraries = libraries.display(),
        program = program.display(),
    );
    let Some(said) = alone(&test, "sh", &script) else { return };
    let ranks = (0..4).map(|rank| format!("{rank} of 4: all numbers are right\n"));
    assert_eq!(said, ranks.collect::<String>());
}
