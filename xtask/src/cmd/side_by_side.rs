//! Runs test programs, two at a time.
//!
//! `cargo test` runs one program after the other, and most of them spend most of their time
//! waiting: for a VM, a timer, another process. Here one worker begins with the programs that boot
//! VMs and another with the rest; the one that finishes first takes over programs of the other. The
//! output of a program is printed as a whole when it ends.

use super::stages::Count;
use rustix::process::{Signal, set_parent_process_death_signal};
use rxe_harness::checkout::cargo;
use rxe_harness::vm::{Error, Result};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The programs that boot VMs, the longest first.
/// The flag says whether each of their tests boots one. On a machine with two processors such tests
/// run one after the other: emulated processors spin while they wait for each other, and four of
/// them would do so much of the time.
const WITH_VMS: [(&str, bool); 8] = [
    ("programs_kernel", true),
    ("interop", true),
    ("hosts", false),
    ("mpi", false),
    ("host_devices", false),
    ("devices_kernel", true),
    ("replay_peers", false),
    ("vm", false),
];

/// The interval at which the programs that still run are named.
const REMINDER: Duration = Duration::from_secs(60);

/// How long the output of a program may remain open after the program's end.
const OUTPUT_AFTER_END: Duration = Duration::from_secs(10);

/// A test program, or the examples in the documentation.
struct Program {
    /// The name as cargo shows it: `tests/interop.rs`.
    name: String,
    command: Command,
}

/// The result of a program that has ended.
struct Ended {
    name: String,
    output: String,
    status: io::Result<ExitStatus>,
}

/// Runs the workspace's test programs and documentation examples, and counts results.
/// They get these variables. Only tests whose name contains `filter` run, if that is given.
pub(super) fn run(count: &mut Count, filter: Option<&str>, variables: &[(&str, &str)]) {
    let mut programs = match built(&[]) {
        Ok(programs) => programs,
        Err(why) => return count.check("cargo test --no-run", Err(why)),
    };
    // The examples are last in the list, so the second worker begins with them: they compile, and
    // use both processors.
    let mut examples = cargo();
    examples.args(["test", "--workspace", "--no-fail-fast", "--doc"]);
    programs.push_back(Program { name: "examples in the documentation".into(), command: examples });
    for program in &mut programs {
        program.command.args(filter).envs(variables.iter().copied());
    }
    run_counted(count, programs);
}

/// Runs the test programs that these arguments of `cargo test` name, and counts results.
pub(super) fn run_some(count: &mut Count, targets: &[String]) {
    match built(targets) {
        Ok(programs) => run_counted(count, programs),
        Err(why) => count.check("cargo test --no-run", Err(why)),
    }
}

fn run_counted(count: &mut Count, programs: VecDeque<Program>) {
    run_all(programs, |ended| {
        println!("     Running {}\n{}", ended.name, ended.output);
        count.check_output(&ended.name, &ended.output, ended.status);
    });
}

/// Builds the test programs, or only those that `targets` name. Those that boot VMs come first.
fn built(targets: &[String]) -> Result<VecDeque<Program>> {
    let mut build = cargo();
    build.args(["test", "--workspace", "--no-run", "--quiet"]);
    build.args(["--message-format", "json-render-diagnostics"]).args(targets);
    build.stdin(Stdio::null()).stderr(Stdio::inherit());
    let out = build.output().map_err(|e| Error::Failed(format!("cargo: {e}")))?;
    if !out.status.success() {
        return Err(Error::Failed("the tests do not build".into()));
    }
    let said = String::from_utf8_lossy(&out.stdout);
    let messages = said.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut found: Vec<(usize, Program)> = messages.filter_map(|m: Value| program(&m)).collect();
    found.sort_by_key(|(place, _)| *place);
    Ok(found.into_iter().map(|(_, program)| program).collect())
}

/// Returns the program with tests that a message of cargo announces, and its place.
/// The place is its index in [`WITH_VMS`], or one after all of them.
fn program(message: &Value) -> Option<(usize, Program)> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (target, executable) = (&message["target"], text(&message["executable"])?);
    let directory = text(&message["manifest_path"])?;
    let directory = Path::new(&directory).parent()?;
    let source = text(&target["src_path"])?;
    let is_outer = target["kind"][0] == "test";
    let name = text(&target["name"])?;
    let place = WITH_VMS.iter().position(|(with, _)| is_outer && *with == name);
    let mut command = Command::new(&executable);
    let has_four = thread::available_parallelism().is_ok_and(|n| n.get() >= 4);
    if !has_four && place.is_some_and(|n| WITH_VMS[n].1) {
        command.env("RUST_TEST_THREADS", "1");
    }
    // cargo sets the same directory and variable.
    command.current_dir(directory).env("CARGO_MANIFEST_DIR", directory);
    let unit = if is_outer { "" } else { "unit tests of " };
    let name = match directory.parent().and_then(|root| Path::new(&source).strip_prefix(root).ok())
    {
        Some(source) => format!("{unit}{}", source.display()),
        None => format!("{unit}{source}"),
    };
    Some((place.unwrap_or(WITH_VMS.len()), Program { name, command }))
}

/// Runs all programs, two at a time: one worker takes from the front of the list and one from its
/// end.
fn run_all(programs: VecDeque<Program>, mut ended: impl FnMut(Ended)) {
    let left = Mutex::new(programs);
    let next = |from_front: bool| {
        let mut left = lock(&left);
        if from_front { left.pop_front() } else { left.pop_back() }
    };
    let running = [const { Mutex::new(None) }; 2];
    let (sender, inbox) = channel();
    thread::scope(|scope| {
        for (from_front, current) in [true, false].into_iter().zip(&running) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(Program { name, command }) = next(from_front) {
                    *lock(current) = Some((name.clone(), Instant::now()));
                    let (output, status) = run_one(command);
                    *lock(current) = None;
                    if sender.send(Ended { name, output, status }).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        loop {
            match inbox.recv_timeout(REMINDER) {
                Ok(one) => ended(one),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    for (name, start) in running.iter().filter_map(|current| lock(current).clone())
                    {
                        println!("     Running {name} for {} s", start.elapsed().as_secs());
                    }
                }
            }
        }
    });
}

/// Runs a program to its end.
/// Returns its output on both streams, in the order in which it was printed.
fn run_one(mut command: Command) -> (String, io::Result<ExitStatus>) {
    end_with_this_thread(&mut command);
    let mut output = Vec::new();
    let status = run_into(command, &mut output, OUTPUT_AFTER_END);
    (String::from_utf8_lossy(&output).into_owned(), status)
}

/// Runs a command and collects its output.
/// Fails if the output is still open `patience` after the program's end, because another process
/// holds it.
fn run_into(
    mut command: Command,
    output: &mut Vec<u8>,
    patience: Duration,
) -> io::Result<ExitStatus> {
    let (mut reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // The command also holds the write ends of the pipe.
    drop(command);
    let (sender, inbox) = channel();
    thread::spawn(move || {
        let mut part = [0; 1 << 16];
        loop {
            match reader.read(&mut part) {
                Ok(len @ 1..) if sender.send(part[..len].to_vec()).is_ok() => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    });
    let status = child.wait()?;
    let end = Instant::now() + patience;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        match inbox.recv_timeout(left) {
            Ok(part) => output.extend(part),
            Err(RecvTimeoutError::Disconnected) => return Ok(status),
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    let why =
        format!("it has ended ({status}), but has left processes behind that hold its output");
    Err(io::Error::other(why))
}

/// Makes a command end when this thread does, even if the thread is killed.
fn end_with_this_thread(command: &mut Command) {
    let set_up = || Ok(set_parent_process_death_signal(Some(Signal::TERM))?);
    // SAFETY: between fork and exec the closure makes one system call (prctl), and allocates nothing.
    unsafe { command.pre_exec(set_up) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::process::ExitStatusExt;

    fn shell(name: &str, script: &str) -> Program {
        let mut command = Command::new("timeout");
        command.args(["20", "sh", "-c", script]);
        Program { name: name.into(), command }
    }

    /// Returns the name, the output and the exit code of each program.
    fn results(programs: impl Into<VecDeque<Program>>) -> Vec<(String, String, Option<i32>)> {
        let mut all = Vec::new();
        run_all(programs.into(), |one| {
            all.push((one.name, one.output, one.status.unwrap().code()));
        });
        all.sort();
        all
    }

    #[test]
    fn each_output_is_whole_and_in_order() {
        let talk = |name: &str| {
            let line = format!("echo {name}; echo {name} >&2; sleep 0.01; ");
            shell(name, &format!("{} exit 3", line.repeat(3)))
        };
        let whole = |name: &str| (name.to_owned(), format!("{name}\n").repeat(6), Some(3));
        assert_eq!(results([talk("a"), talk("b"), talk("c")]), ["a", "b", "c"].map(whole));
    }

    #[test]
    fn two_programs_run_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo").display().to_string();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        // Each program waits until the other opens the FIFO.
        let both = [
            shell("reader", &format!("cat {path}")),
            shell("writer", &format!("echo hello > {path}")),
        ];
        let codes = [("reader", "hello\n"), ("writer", "")];
        assert_eq!(results(both), codes.map(|(name, said)| (name.into(), said.into(), Some(0))));
    }

    #[test]
    fn a_program_that_leaves_a_process_with_its_output_has_failed() {
        let mut output = Vec::new();
        let Program { command, .. } = shell("leaves", "echo hello; sleep 20 & exit 0");
        let ended = run_into(command, &mut output, Duration::from_secs(2));
        assert!(ended.unwrap_err().to_string().contains("left processes behind"));
        assert_eq!(output, b"hello\n");
    }

    #[test]
    fn a_program_does_not_outlive_the_worker() {
        let worker = thread::spawn(|| {
            let mut command = Command::new("sleep");
            end_with_this_thread(command.arg("20"));
            command.spawn().unwrap()
        });
        let mut child = worker.join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }

    fn artifact(name: &str, source: &str, kind: &str, is_test: bool) -> Value {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": "/x/tests/Cargo.toml",
            "target": { "name": name, "kind": [kind], "src_path": format!("/x/tests/{source}") },
            "profile": { "test": is_test },
            "executable": format!("/x/target/debug/deps/{name}-1"),
        })
    }

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let of = |message: Value| {
            let (place, program) = program(&message)?;
            Some((place, program.name, program.command.get_program().display().to_string()))
        };
        let found = |place: usize, name: &str, program: &str| {
            Some((place, name.to_owned(), program.to_owned()))
        };
        let others = WITH_VMS.len();
        let book = artifact("book", "tests/book.rs", "test", true);
        assert_eq!(of(book), found(others, "tests/tests/book.rs", "/x/target/debug/deps/book-1"));
        let interop = artifact("interop", "tests/interop.rs", "test", true);
        let program = "/x/target/debug/deps/interop-1";
        assert_eq!(of(interop), found(1, "tests/tests/interop.rs", program));
        let lib = artifact("vm", "src/lib.rs", "lib", true);
        let name = "unit tests of tests/src/lib.rs";
        assert_eq!(of(lib), found(others, name, "/x/target/debug/deps/vm-1"));
        assert_eq!(of(artifact("rxe", "src/main.rs", "bin", false)), None);
        assert_eq!(of(json!({ "reason": "build-finished", "success": true })), None);
    }
}
