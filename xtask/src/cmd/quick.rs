//! `cargo xtask test --quick`: runs the tests that take about three minutes on two processors with
//! a warm build.
//!
//! These are formatting, lints, unit and property tests, the simulation, the hostile packets,
//! captures and the fuzzers' corpora. Test programs that boot VMs, run other people's programs or
//! take minutes are left out; each is named with its reason.

use super::side_by_side;
use super::stages::{Lints, Run};
use rxe_harness::checkout::cargo;
use rxe_harness::vm::{Error, Result};
use serde_json::Value;

/// The test programs that are left out: package, name, and reason.
const LEFT_OUT: &[(&str, &str, &str)] = &[
    ("rxe-harness", "vm", KERNELS),
    ("rxe-cli", "devices_kernel", KERNELS),
    ("rxe-tests", "interop", KERNELS),
    ("rxe-tests", "programs_kernel", KERNELS),
    ("rxe-tests", "replay_peers", KERNELS),
    ("rxe-tests", "ceph", PROGRAMS),
    ("rxe-tests", "ci", PROGRAMS),
    ("rxe-tests", "collectives", PROGRAMS),
    ("rxe-tests", "conform_peers", HOSTS),
    ("rxe-tests", "containers", PROGRAMS),
    ("rxe-tests", "corners", PROGRAMS),
    ("rxe-tests", "debuggers", PROGRAMS),
    ("rxe-tests", "ends", PROGRAMS),
    ("rxe-tests", "fabric", PROGRAMS),
    ("rxe-tests", "guest", PROGRAMS),
    ("rxe-tests", "host_devices", PROGRAMS),
    ("rxe-tests", "leftovers", PROGRAMS),
    ("rxe-tests", "mistakes", PROGRAMS),
    ("rxe-tests", "mpi", PROGRAMS),
    ("rxe-tests", "on_demand", PROGRAMS),
    ("rxe-tests", "privileged", PROGRAMS),
    ("rxe-tests", "programs", PROGRAMS),
    ("rxe-tests", "python", PROGRAMS),
    ("rxe-tests", "rdmacm", PROGRAMS),
    ("rxe-tests", "hosts", KERNELS),
    ("rxe-tests", "run_options", PROGRAMS),
    ("rxe-tests", "storage", PROGRAMS),
    ("rxe-tests", "symbols", PROGRAMS),
    ("rxe-tests", "ucx", PROGRAMS),
    ("rxe-tests", "wheels", PROGRAMS),
    ("rxe-cli", "perf", HOSTS),
    ("rxe-cli", "pingpong", HOSTS),
    ("rxe-verbs", "crowded", HOSTS),
    ("rxe-verbs", "interface", HOSTS),
    ("rxe-verbs", "killed", HOSTS),
    ("rxe-verbs", "sharing", HOSTS),
];

const KERNELS: &str = "real kernels in VMs";
const PROGRAMS: &str = "unmodified programs";
const HOSTS: &str = "several processes and hosts, minutes";

/// Runs the stages of `cargo xtask test --quick`.
pub(super) fn stages(all: &mut Run) -> Result<()> {
    let tests = test_programs()?;
    all.format();
    // Lints run at the same time, because most tests spend much of their time waiting.
    let lints = Lints::start();
    all.stage("test", |count| {
        let mut targets = vec!["--lib".to_owned(), "--bins".to_owned()];
        for (package, name) in tests {
            if why_left_out(&package, &name).is_none() {
                targets.extend(["--test".to_owned(), name]);
            }
        }
        side_by_side::run_some(count, &targets);
        for why in [KERNELS, PROGRAMS, HOSTS] {
            let names = LEFT_OUT.iter().filter(|(_, _, w)| *w == why).map(|(_, name, _)| *name);
            count.skip(&format!("{why}: {}", names.collect::<Vec<_>>().join(", ")));
        }
        count.skip("examples in the documentation, benchmarks, instruction counts");
    });
    all.lints(lints);
    Ok(())
}

fn why_left_out(package: &str, name: &str) -> Option<&'static str> {
    let of =
        |(p, n, why): &(&str, &str, &'static str)| (*p == package && *n == name).then_some(*why);
    LEFT_OUT.iter().find_map(of)
}

/// Returns package and name of each test program of the workspace.
fn test_programs() -> Result<Vec<(String, String)>> {
    let out =
        cargo().args(["metadata", "--no-deps", "--format-version", "1", "--offline"]).output();
    let out = out.map_err(|e| Error::Failed(format!("cargo metadata: {e}")))?;
    let json: Value = serde_json::from_slice(&out.stdout)
        .map_err(|e| Error::Failed(format!("cargo metadata: {e}")))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for package in list(&json["packages"]) {
        let tests = list(&package["targets"]);
        let tests = tests.iter().filter(|t| list(&t["kind"]).contains(&"test".into()));
        found.extend(tests.map(|t| (text(&package["name"]), text(&t["name"]))));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_program_that_is_left_out_is_there() {
        let there = test_programs().unwrap();
        for &(package, name, _) in LEFT_OUT {
            let wanted = (package.to_owned(), name.to_owned());
            assert!(there.contains(&wanted), "{package} has no test program {name}");
        }
        assert!(why_left_out("rxe-tests", "simulation").is_none());
    }

    #[test]
    fn names_of_test_programs_are_unique() {
        // `cargo test --test NAME` runs the test programs of this name in all packages.
        let mut names: Vec<_> =
            test_programs().unwrap().into_iter().map(|(_, name)| name).collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "two test programs have the same name");
    }
}
