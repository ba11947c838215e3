//! Stages of tests, and their results.
//!
//! A stage is a command whose output is passed on and counted: cargo's own `test result:` lines,
//! lines `SKIPPED: name: why` (see [`rxe_harness::or_skip`]), and, from other programs, a line `N
//! passed, N failed, N skipped`.

use rxe_harness::checkout::cargo;
use rxe_harness::vm::{Error, Result};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The minor version of Rust whose clippy and rustdoc give no warnings for this code.
/// Later versions have more lints, which must not fail a newcomer's first test run.
const LINTS_OF: u32 = 95;

/// Returns the 95 of `rustc 1.95.0 (…)`.
fn minor_version(said: &str) -> Option<u32> {
    said.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

/// The results and the times of the stages of a test run.
#[derive(Default)]
pub(super) struct Run {
    count: Count,
    times: Vec<(String, Duration)>,
}

impl Run {
    /// Runs a stage and measures its time.
    pub(super) fn stage(&mut self, name: &str, f: impl FnOnce(&mut Count)) {
        println!("== {name}");
        let start = Instant::now();
        f(&mut self.count);
        self.times.push((name.to_owned(), start.elapsed()));
    }

    /// Checks the formatting.
    pub(super) fn format(&mut self) {
        self.stage("fmt", |count| match lacks("fmt") {
            None => {
                let done = count.watch(cargo().args(["fmt", "--all", "--check"]));
                count.check("fmt", done);
            }
            Some(why) => count.skip(&why),
        });
    }

    /// Waits for the lints, which were started earlier.
    pub(super) fn lints(&mut self, lints: Lints) {
        self.stage("lints", |count| match lints.0 {
            Ok(child) => {
                let ended = child.wait_with_output();
                let done = ended.map(|out| {
                    print!("{}", String::from_utf8_lossy(&out.stderr));
                    out.status.success()
                });
                count.check("clippy and rustdoc", done.map_err(|e| Error::Failed(e.to_string())));
            }
            Err(why) => count.skip(&why),
        });
    }

    /// Prints the times, failures and skipped tests, and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        println!();
        for (name, time) in &self.times {
            println!("{name:8} {:7.1} s", time.as_secs_f64());
        }
        let total: Duration = self.times.iter().map(|(_, t)| *t).sum();
        println!("{:8} {:7.1} s", "total", total.as_secs_f64());
        for line in &self.count.skipped {
            println!("SKIPPED: {line}");
        }
        for line in &self.count.restarted {
            println!("STARTED TWICE: {line}");
        }
        for line in &self.count.failed {
            println!("FAILED: {line}");
            for said in self.count.panics_of(line) {
                println!("    {said}");
            }
        }
        let Count { failed, skipped, restarted, .. } = &self.count;
        match restarted.len() {
            0 => {}
            1 => println!("1 VM was started twice"),
            n => println!("{n} VMs were started twice"),
        }
        let passed = self.count.passed();
        println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A process that runs clippy and then rustdoc, or why there is none.
/// It runs concurrently with other stages. It has its own target directory, so that no other cargo
/// waits for it, and the lowest priority.
pub(super) struct Lints(std::result::Result<Child, String>);

impl Lints {
    /// Starts the process, unless this Rust is too new or lacks clippy.
    pub(super) fn start() -> Self {
        let out = Command::new("rustc").arg("--version").output();
        let rust = out.ok().and_then(|out| minor_version(&String::from_utf8_lossy(&out.stdout)));
        let newer = rust.is_some_and(|minor| minor > LINTS_OF);
        let newer = newer
            .then(|| format!("clippy and rustdoc: this Rust has lints that 1.{LINTS_OF} has not"));
        if let Some(why) = newer.or_else(|| lacks("clippy")) {
            return Self(Err(why));
        }
        let mut cmd = Command::new("nice");
        cmd.args(["-n", "19", "sh", "-c", LINTS]).arg(cargo().get_program());
        cmd.env("RUSTDOCFLAGS", "-D warnings");
        cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(cmd.spawn().map_err(|e| format!("clippy and rustdoc: nice: {e}")))
    }
}

/// The script of the process.
/// Both use one target directory, because rustdoc needs what clippy has checked. `$0` is cargo.
const LINTS: &str = "
    \"$0\" clippy --workspace --all-targets --quiet --target-dir target/lints -- -D warnings &&
    exec \"$0\" doc --workspace --no-deps --quiet --target-dir target/lints";

/// Returns why this Rust cannot run `cargo COMMAND`, or `None` if it can.
fn lacks(command: &str) -> Option<String> {
    let mut cmd = cargo();
    cmd.args([command, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    let is_there = cmd.status().is_ok_and(|status| status.success());
    (!is_there).then(|| format!("{command}: this Rust has no cargo {command}"))
}

/// The results so far: the number of tests passed, and the names of the others.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Count {
    passed: u64,
    /// The number of lines that report a program's results.
    results: u64,
    failed: Vec<String>,
    /// The number of failed tests before the present program.
    failed_before: usize,
    /// The panics of named threads: the thread's name, which is that of its test, and the first
    /// lines.
    panics: Vec<(String, Vec<String>)>,
    /// Whether the lines that follow belong to the last of the panics.
    panicking: bool,
    skipped: Vec<String>,
    /// The number of tests that libtest counts as passed but that reported themselves skipped.
    returned: u64,
    /// VMs that did not boot in time and were started again.
    restarted: Vec<String>,
}

impl Count {
    fn passed(&self) -> u64 {
        self.passed.saturating_sub(self.returned)
    }

    /// Runs a command and counts its tests.
    pub(super) fn check_tests(&mut self, name: &str, cmd: &mut Command) {
        let before = (self.failed.len(), self.results);
        let done = self.watch(cmd);
        self.check_end(name, done, before);
    }

    /// Counts the tests in the output of a program that has ended.
    pub(super) fn check_output(
        &mut self,
        name: &str,
        output: &str,
        status: io::Result<ExitStatus>,
    ) {
        let before = (self.failed.len(), self.results);
        for line in output.lines() {
            self.line(line.trim());
        }
        let done = status.map(|status| status.success());
        self.check_end(name, done.map_err(|e| Error::Failed(e.to_string())), before);
    }

    /// Counts a program that failed without a failed test.
    /// One that crashes leaves no result, and neither does one in which a test calls `exit`,
    /// whatever its code.
    fn check_end(&mut self, name: &str, done: Result<bool>, (failed, results): (usize, u64)) {
        match done {
            Ok(true) if self.results == results => self.failed.push(format!(
                "{name}: it has ended with code 0, but without a line `test result:`"
            )),
            Ok(_) if self.failed.len() > failed => {}
            done => self.check_only_failure(name, done),
        }
        self.failed_before = self.failed.len();
        self.panicking = false;
    }

    /// Records a test that is not run, and why.
    pub(super) fn skip(&mut self, why: &str) {
        self.skipped.push(why.to_owned());
    }

    /// Counts a command as one test.
    pub(super) fn check(&mut self, name: &str, done: Result<bool>) {
        if matches!(done, Ok(true)) {
            self.passed += 1;
        }
        self.check_only_failure(name, done);
    }

    fn check_only_failure(&mut self, name: &str, done: Result<bool>) {
        match done {
            Ok(true) => {}
            Ok(false) => self.failed.push(name.to_owned()),
            Err(why) => self.failed.push(format!("{name}: {why}")),
        }
    }

    /// Runs a command, passes on its output and counts its results. Returns whether it succeeded.
    pub(super) fn watch(&mut self, cmd: &mut Command) -> Result<bool> {
        let program = cmd.get_program().display().to_string();
        let failed = |e: io::Error| Error::Failed(format!("{program}: {e}"));
        let mut child = cmd
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (lines, inbox) = channel();
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
            child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>),
        ];
        for stream in streams.into_iter().flatten() {
            let lines = lines.clone();
            thread::spawn(move || forward(stream, &lines));
        }
        drop(lines);
        for line in inbox {
            let _ = writeln!(io::stdout(), "{line}");
            self.line(line.trim());
        }
        let status = child.wait().map_err(|e| Error::Failed(e.to_string()))?;
        Ok(status.success())
    }

    /// Returns the messages of the panics of a failed test.
    fn panics_of(&self, test: &str) -> impl Iterator<Item = &str> {
        let own = self.panics.iter().filter(move |(thread, _)| thread == test);
        own.flat_map(|(_, lines)| lines.iter().map(String::as_str))
    }

    /// Records a line of a panic: `thread 'NAME' (1234) panicked at FILE:1:2:`, or one that
    /// follows.
    fn note_panic(&mut self, line: &str) {
        /// The most lines and characters of a panic that are repeated at the end.
        const LINES: usize = 12;
        const CHARS: usize = 1000;
        let begins = line.strip_prefix("thread '").and_then(|l| l.split_once('\''));
        if let Some((thread, _)) = begins.filter(|(_, rest)| rest.contains("panicked at ")) {
            self.panics.push((thread.to_owned(), Vec::new()));
            self.panicking = true;
        } else if line.is_empty() || line == "stack backtrace:" || line.starts_with("note: ") {
            self.panicking = false;
        }
        let last = self.panics.last_mut().filter(|(_, lines)| lines.len() < LINES);
        if let Some((_, lines)) = last.filter(|_| self.panicking) {
            lines.push(line.chars().take(CHARS).collect());
        }
    }

    fn line(&mut self, line: &str) {
        self.note_panic(line);
        if let Some(rest) = line.strip_prefix("test result: ") {
            // The line is "ok. 5 passed; 0 failed; 1 ignored; …". Failed and ignored tests have
            // their own lines.
            self.results += 1;
            self.passed += number_before(rest, " passed").unwrap_or(0);
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED"))
        {
            // A test that has run itself in a namespace repeats the result from there.
            if self.failed[self.failed_before..].iter().all(|failed| failed != name) {
                self.failed.push(name.to_owned());
            }
        } else if let Some((name, why)) =
            line.strip_prefix("test ").and_then(|l| l.split_once(" ... ignored"))
        {
            let why = why.trim_start_matches(", ");
            let why = if why.is_empty() { "marked #[ignore]" } else { why };
            self.skipped.push(format!("{name}: {why}"));
        } else if let Some(skipped) = find_said("SKIPPED: ", line) {
            // The test returned early, which libtest counts as passed.
            self.returned += 1;
            self.skipped.push(skipped.to_owned());
        } else if let Some(restarted) = find_said("STARTED TWICE: ", line) {
            self.restarted.push(restarted.to_owned());
        } else if let Some([passed, failed, skipped]) = totals(line) {
            self.results += 1;
            self.passed += passed;
            let times = |n: u64, what: &str| {
                (0..n).map(|_| format!("(see above: {line}) {what}")).collect::<Vec<_>>()
            };
            self.failed.extend(times(failed, "failed"));
            self.skipped.extend(times(skipped, "skipped"));
        }
    }
}

/// Returns the text after a marker. libtest may have begun the line with other text.
fn find_said<'a>(marker: &str, line: &'a str) -> Option<&'a str> {
    line.split_once(marker).map(|(_, rest)| rest)
}

/// Parses "3 passed, 0 failed, 1 skipped", alone on its line.
fn totals(line: &str) -> Option<[u64; 3]> {
    let mut parts = line.split(", ");
    let mut part = |what: &str| parts.next()?.strip_suffix(what)?.parse().ok();
    let all = [part(" passed")?, part(" failed")?, part(" skipped")?];
    parts.next().is_none().then_some(all)
}

fn number_before(text: &str, what: &str) -> Option<u64> {
    let (before, _) = text.split_once(what)?;
    before.rsplit(' ').next()?.parse().ok()
}

fn forward(stream: impl Read, lines: &Sender<String>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while let Ok(1..) = stream.read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
        if lines.send(text).is_err() {
            break;
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_version_of_rust_is_understood() {
        assert_eq!(minor_version("rustc 1.95.0 (59807616e 2026-04-14)\n"), Some(95));
        assert_eq!(minor_version("rustc 1.101.0-nightly (2026-12-24)\n"), Some(101));
        assert_eq!(minor_version("rustc 2.0.0\n"), None);
    }

    fn counted(lines: &[&str]) -> Count {
        let mut count = Count::default();
        for line in lines {
            count.line(line);
        }
        count
    }

    #[test]
    fn results_of_all_test_programs_add_up() {
        let count = counted(&[
            "test wire::bth ... ok",
            "test wire::reth ... FAILED",
            "test slow ... ignored, takes an hour",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out",
            "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!(count.passed, 8);
        assert_eq!(count.failed, ["wire::reth"]);
        assert_eq!(count.skipped, ["slow: takes an hour"]);
    }

    #[test]
    fn a_test_that_says_it_was_skipped_has_not_passed() {
        let count = counted(&[
            "test vm::boots ... SKIPPED: vm::boots: no QEMU",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ]);
        assert_eq!((count.passed(), count.skipped), (1, vec!["vm::boots: no QEMU".to_owned()]));
    }

    #[test]
    fn a_vm_that_was_started_twice_is_counted() {
        let count = counted(&["test vm::boots ... STARTED TWICE: vm1 did not boot in 180 s", "ok"]);
        assert_eq!(count.restarted, ["vm1 did not boot in 180 s"]);
    }

    #[test]
    fn a_failed_test_is_counted_once_and_its_panics_are_repeated() {
        let mut count = Count::default();
        let output = "running 2 tests
            test parts ... FAILED
            test other ... ok
            failures:
            ---- parts stdout ----

            thread 'parts' (27475) panicked at tests/common/namespace.rs:57:5:
            in the namespace:

            test parts ... FAILED
            test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 15 filtered out

            thread 'parts' (27479) panicked at tests/parts.rs:417:9:
            no completion within 1ms
            of 2
            stack backtrace:
            0: __rustc::rust_begin_unwind
            failures:
            parts
            test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        let failed = || Ok(ExitStatus::from_raw(101 << 8));
        count.check_output("tests/parts.rs", output, failed());
        assert_eq!((count.passed, &count.failed[..]), (1, &["parts".to_owned()][..]));
        let said: Vec<_> = count.panics_of("parts").collect();
        let expected = [
            "thread 'parts' (27475) panicked at tests/common/namespace.rs:57:5:",
            "in the namespace:",
            "thread 'parts' (27479) panicked at tests/parts.rs:417:9:",
            "no completion within 1ms",
            "of 2",
        ];
        assert_eq!(said, expected);
        // A test with the same name in another program has failed too.
        count.check_output("tests/other.rs", "test parts ... FAILED", failed());
        assert_eq!(count.failed, ["parts", "parts"]);
    }

    #[test]
    fn a_program_that_crashes_has_failed() {
        let mut count = Count::default();
        let status = |code: i32| Ok(ExitStatus::from_raw(code));
        count.check_output("tests/a.rs", "running 2 tests\ntest one ... ok", status(6));
        count.check_output("tests/b.rs", "test two ... FAILED", status(101 << 8));
        let skipped = "SKIPPED: three: no QEMU\ntest result: ok. 1 passed; 0 failed; 0 ignored";
        count.check_output("tests/c.rs", skipped, status(0));
        let left = Err(io::Error::other("it has left processes behind"));
        count.check_output("tests/d.rs", "test four ... FAILED", left);
        let left = "tests/d.rs: it has left processes behind";
        assert_eq!(count.failed, ["tests/a.rs", "two", "four", left]);
        assert_eq!(count.skipped, ["three: no QEMU"]);
    }

    #[test]
    fn a_program_that_ends_before_its_result_has_failed() {
        let mut count = Count::default();
        let good = || Ok(ExitStatus::from_raw(0));
        count.check_output("tests/a.rs", "test result: ok. 0 passed; 0 failed", good());
        count.check_output("tests/b.rs", "running 2 tests\ntest one ... ok", good());
        count.check_output("tests/c.rs", "2 passed, 0 failed, 0 skipped", good());
        let why = "tests/b.rs: it has ended with code 0, but without a line `test result:`";
        assert_eq!(count.failed, [why]);
    }

    #[test]
    fn a_program_that_counts_for_itself_is_believed() {
        let count = counted(&["12 passed, 1 failed, 2 skipped", "0 passed, maybe"]);
        assert_eq!((count.passed, count.failed.len(), count.skipped.len()), (12, 1, 2));
    }
}
