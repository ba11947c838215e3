//! Runs Google's rdma-unit-test: tests of verbs on one device, in C++ with googletest.
//!
//! The suite is written for Bazel. Here its sources are compiled directly, with Debian's
//! googletest, Abseil and glog, and a main program of this project (`tests/suite`). Each test runs
//! in its own process, because some tests end theirs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::vm::{Error, Result};

use super::table::{Outcome, Outcomes};

/// The sources that this project's main program replaces.
const REPLACED: [&str; 3] = ["introspection_registrar.cc", "introspection.cc", "gunit_main.cc"];

const DIRECTORIES: [&str; 3] = ["internal", "public", "unit"];

const HARNESS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../suite");

/// The libraries that are linked by name. Those of Abseil are found with pkg-config.
const LIBRARIES: [&str; 5] = ["-lgmock", "-lgtest", "-lglog", "-libverbs", "-lpthread"];
const ABSEIL: [&str; 7] = [
    "absl_statusor",
    "absl_flags",
    "absl_flags_parse",
    "absl_str_format",
    "absl_synchronization",
    "absl_flat_hash_map",
    "absl_failure_signal_handler",
];

/// A script that runs the tests on `$device`, four at a time, since most of them wait.
/// Those of `DeviceLimitTest` exhaust the device, so they run last, one at a time. An emulated
/// machine is slow, so the timeouts for completions are longer. xargs would stop at a test that
/// ends by a signal, so each test runs in a shell that succeeds.
const RUN: &str = r#"
    ulimit -l $(ulimit -H -l)
    mkdir /run/said
    cat > /run/one <<END
name=\$(echo \$1 | tr / _)
timeout 100 $run --gtest_filter=\$1 --device_name=$device --ipv4_only --gid_index=1 --port_num=1 \
    --completion_wait_multiplier=4 < /dev/null > /run/said/\$name 2>&1
true
END
    $run --gtest_list_tests 2> /dev/null | while read -r word rest; do
        case $word in
        *.) suite=$word ;;
        ?*) echo $suite$word ;;
        esac
    done > /run/tests
    grep -v ^DeviceLimitTest /run/tests | xargs -n 1 -P 4 sh /run/one
    grep ^DeviceLimitTest /run/tests | xargs -n 1 sh /run/one
    cat /run/said/*"#;

/// Compiles changed sources, and returns the script that runs the tests on `$device`.
///
/// # Errors
/// The checkout does not exist, or its tests cannot be compiled.
pub fn command(source: &Path) -> Result<String> {
    let source = source.canonicalize().map_err(|e| Error::io(source, &e))?;
    let program = compile(&source)?;
    Ok(format!("run={}{RUN}", program.display()))
}

fn compile(source: &Path) -> Result<PathBuf> {
    let mut sources = vec![Path::new(HARNESS).join("rdma_unit_test.cc")];
    for directory in DIRECTORIES {
        let directory = source.join(directory);
        let files = directory.read_dir();
        let files = files.map_err(|e| Error::io(&directory, &e))?;
        let paths = files.flatten().map(|file| file.path());
        let wanted = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".cc") && !REPLACED.contains(&&*name)
        };
        sources.extend(paths.filter(wanted));
    }
    let built = source.join("rxe-build");
    std::fs::create_dir_all(&built).map_err(|e| Error::io(&built, &e))?;
    let objects: Vec<PathBuf> = sources
        .iter()
        .map(|file| built.join(file.file_stem().unwrap_or_default()).with_extension("o"))
        .collect();
    for (file, object) in sources.iter().zip(&objects) {
        if !is_newer(object, file) {
            println!("compiling {}", file.display());
            let mut compiler = Command::new("c++");
            // The suite's sources give warnings.
            compiler.args(["-std=c++17", "-w", "-c", "-I"]).arg(source).args(["-I", HARNESS]);
            run(compiler.arg("-o").arg(object).arg(file))?;
        }
    }
    let flags = run(Command::new("pkg-config").arg("--libs").args(ABSEIL))?;
    let program = built.join("rdma-unit-test");
    let mut linker = Command::new("c++");
    linker.arg("-o").arg(&program).args(&objects).args(flags.split_whitespace()).args(LIBRARIES);
    run(&mut linker)?;
    Ok(program)
}

/// Returns whether a file exists and is newer than another.
fn is_newer(file: &Path, than: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
    time(file) > time(than)
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| Error::Missing(format!("{name}: {e}")))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&out.stderr);
    Err(Error::Failed(format!(
        "{name}: {why} (of Debian it needs libgtest-dev, libgmock-dev, libabsl-dev, libgoogle-glog-dev)"
    )))
}

/// Parses the output of googletest: a line when a test begins, and one when it ends, unless the
/// test ends its process. A skipped test gives the reason in the line before. The module is the
/// suite, without its parameters.
pub fn parse(said: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut reason = String::new();
    for line in said.lines() {
        let Some((mark, rest)) = line.strip_prefix('[').and_then(|line| line.split_once("] "))
        else {
            if !line.trim().is_empty() {
                line.trim().clone_into(&mut reason);
            }
            continue;
        };
        let outcome = match mark.trim() {
            "OK" => Outcome::Passed,
            // A test counts as failed from its begin on, in case it ends its process.
            "RUN" | "FAILED" => Outcome::Failed,
            "SKIPPED" => Outcome::Skipped(reason.clone()),
            _ => continue,
        };
        // The summary at the end repeats the failed and skipped tests, and their numbers.
        if let Some((module, name)) = place(rest)
            && (mark.trim() == "RUN" || outcomes.contains_key(&(module.clone(), name.clone())))
        {
            let known = outcomes.insert((module.clone(), name.clone()), outcome);
            if let Some(known @ Outcome::Skipped(_)) = known {
                outcomes.insert((module, name), known);
            }
        }
    }
    outcomes
}

/// Parses `A/Suite.Name/B (1 ms)`: returns the suite, and the name with its parameters.
fn place(text: &str) -> Option<(String, String)> {
    let text = text.split([' ', ',']).next()?;
    let (suite, name) = text.split_once('.')?;
    let module = suite.rsplit('/').next()?;
    Some((module.to_owned(), format!("{module}.{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "[==========] Running 1 test from 1 test suite.
[ RUN      ] AhTest.Create
[       OK ] AhTest.Create (3 ms)
[ RUN      ] Rdma/AccessTest.All/Read
unit/access_test.cc:1: Failure
[  FAILED  ] Rdma/AccessTest.All/Read, where GetParam() = 4 (1 ms)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Rdma/AccessTest.All/Read, where GetParam() = 4
[ RUN      ] HugePageTest.Send
unit/hugepage_test.cc:56: Skipped
no huge pages

[  SKIPPED ] HugePageTest.Send (0 ms)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] HugePageTest.Send
[ RUN      ] CqTest.Overflow
*** SIGSEGV received ***
";

    #[test]
    fn each_test_has_its_end_and_one_that_crashes_fails() {
        let outcomes = parse(SAID);
        let of = |module: &str, name: &str| outcomes[&(module.into(), name.into())].clone();
        assert_eq!(outcomes.len(), 4);
        assert_eq!(of("AhTest", "AhTest.Create"), Outcome::Passed);
        assert_eq!(of("AccessTest", "AccessTest.All/Read"), Outcome::Failed);
        assert_eq!(
            of("HugePageTest", "HugePageTest.Send"),
            Outcome::Skipped("no huge pages".into())
        );
        assert_eq!(of("CqTest", "CqTest.Overflow"), Outcome::Failed);
    }
}
