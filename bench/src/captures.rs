//! `cargo xtask bench --captures`: measures how fast `rxe decode` and `rxe check` read large
//! captures on one CPU, and how much memory they take.
//!
//! `rxe gen` creates the captures, piece by piece, in target/captures, where they stay. They are in
//! the page cache when a command reads them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rxe_harness::checkout;
use rxe_harness::pages;
use rxe_harness::vm::{Error, Result};

use super::link::cpu_of_children;
use super::report::Spread;

/// The bytes before the first packet of a pcap file.
const FILE_HEADER: u64 = 24;
/// The most requests of a queue pair in a piece.
/// The PSNs of the next piece are so far away that they count as a new connection.
const REQUESTS: u32 = 250_000;
/// The distance of the first PSNs of consecutive pieces.
const PSNS: u32 = 1 << 19;

/// The description of a capture.
struct Traffic {
    name: &'static str,
    file: &'static str,
    /// The number of queue pairs of the requester.
    qps: u32,
    /// The size of a message in bytes. Messages are WRITEs with path MTU 4096.
    bytes: u32,
    /// The messages that each queue pair has outstanding.
    depth: u32,
}

/// The minimum length of a capture in bytes.
const LENGTH: u64 = 1_000_000_000;

const CAPTURES: [Traffic; 3] = [
    Traffic { name: "packets of 4 KiB", file: "4k.pcap", qps: 1, bytes: 65536, depth: 4 },
    Traffic { name: "packets of 64 B", file: "64.pcap", qps: 1, bytes: 64, depth: 16 },
    Traffic {
        name: "packets of 64 B, 1,000 queue pairs",
        file: "64-1000.pcap",
        qps: 1000,
        bytes: 64,
        depth: 1,
    },
];

/// The commands that are measured: name, arguments before the capture, and the goal in MB/s, if
/// any.
const COMMANDS: [(&str, &[&str], Option<u32>); 3] = [
    ("decode, only the summary", &["decode", "--summary"], Some(300)),
    ("decode, a line for each packet", &["decode"], None),
    ("check", &["check", "--strict"], Some(150)),
];

struct Measured {
    /// The rate in MB/s.
    rate: f64,
    /// The peak of memory in MiB.
    memory: u64,
}

struct Row {
    capture: &'static str,
    command: &'static str,
    rate: String,
    /// The goal in MB/s.
    goal: Option<u32>,
    /// The peak of memory in MiB.
    memory: u64,
}

/// Measures each command with each capture and prints a table.
/// With `write`, puts the table into docs/en/project/performance.md.
pub(super) fn run(rounds: u32, write: bool) -> Result<()> {
    let root = checkout::root()?;
    let rxe = checkout::build(&root, &["-p", "rxe-cli", "-p", "rxe-preload"])?;
    let directory = root.join("target/captures");
    fs::create_dir_all(&directory).map_err(|e| Error::io(&directory, &e))?;
    let mut rows = Vec::new();
    for traffic in &CAPTURES {
        let file = directory.join(traffic.file);
        traffic.make(&rxe, &file)?;
        let length = read(&file).map_err(|e| Error::io(&file, &e))?;
        for (command, args, goal) in COMMANDS {
            eprintln!("{}: {command}", traffic.name);
            let runs = (0..rounds).map(|_| measure(&rxe, args, &file, length));
            let (rate, memory) = cells(&runs.collect::<Result<Vec<_>>>()?);
            rows.push(Row { capture: traffic.name, command, rate, goal, memory });
        }
    }
    let text = table(&rows, rounds);
    println!("{text}");
    if write {
        pages::write(&root, super::PAGE, "bench --captures --write", &text)?;
    }
    Ok(())
}

fn table(rows: &[Row], rounds: u32) -> String {
    let mut text = format!(
        "The median of {rounds} rounds, in brackets the least and the greatest:\n\n\
         | capture | command | MB/s | goal | peak memory, goal 256 MiB |\n\
         | --- | --- | --- | --- | --- |\n"
    );
    for Row { capture, command, rate, goal, memory } in rows {
        let goal = goal.map_or(String::new(), |goal| format!(" {goal}"));
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {capture} | {command} | {rate} |{goal} | {memory} MiB |");
    }
    text
}

/// Returns the rates of all rounds as text, and their greatest memory.
fn cells(runs: &[Measured]) -> (String, u64) {
    let memory = runs.iter().map(|run| run.memory).max().unwrap_or(0);
    let rates = runs.iter().map(|run| run.rate).collect();
    let Spread { median, min, max } = Spread::of(rates).unwrap_or_default();
    (format!("{median:.0} ({min:.0}–{max:.0})"), memory)
}

impl Traffic {
    /// Creates the capture, if it does not exist.
    fn make(&self, rxe: &Path, to: &Path) -> Result<()> {
        if to.exists() {
            return Ok(());
        }
        eprintln!("making {}", to.display());
        let new = to.with_extension("new");
        let piece = to.with_extension("piece");
        let mut file = File::create(&new).map_err(|e| Error::io(&new, &e))?;
        let mut length = 0;
        for number in 0.. {
            if length >= LENGTH {
                break;
            }
            self.make_piece(rxe, number, &piece)?;
            length = append(&piece, &mut file, number > 0).map_err(|e| Error::io(&new, &e))?;
        }
        fs::remove_file(&piece).map_err(|e| Error::io(&piece, &e))?;
        fs::rename(&new, to).map_err(|e| Error::io(to, &e))
    }

    fn make_piece(&self, rxe: &Path, number: u32, to: &Path) -> Result<()> {
        let mut generate = Command::new(rxe);
        generate.args(["gen", "-", "-w"]).arg(to).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = generate.spawn().map_err(|e| Error::io(rxe, &e))?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(self.scenario(number).as_bytes()).map_err(|e| Error::io(rxe, &e))?;
        }
        let out = child.wait_with_output().map_err(|e| Error::io(rxe, &e))?;
        match out.status.success() {
            true => Ok(()),
            false => Err(Error::Failed(String::from_utf8_lossy(&out.stderr).into_owned())),
        }
    }

    /// Returns the scenario of a piece, for `rxe gen`.
    fn scenario(&self, number: u32) -> String {
        let Self { qps, bytes, depth, .. } = *self;
        let packets = bytes.div_ceil(4096) * depth;
        // A piece has at most 1,000,000 frames.
        let times = REQUESTS.min(450_000 / qps) / packets;
        let start = 1_700_000_000 + 60 * number;
        let psn = 1000 + PSNS * number;
        let mut text =
            format!("start = {start}\nsteps = [{{ repeat = {{ times = {times}, steps = [\n");
        for qp in 0..qps {
            let _ = writeln!(
                text,
                "{{ write = {{ qp = \"a{qp}\", bytes = {bytes}, count = {depth} }} }},"
            );
        }
        text += "{ wait = \"\" } ] } }]\n";
        for (host, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
            let _ = write!(
                text,
                "[hosts.{host}]\naddress = \"{address}\"\nmemory = 1048576\n\
                 access = [\"local_write\", \"remote_write\"]\n"
            );
        }
        for qp in 0..qps {
            for (own, peer) in [("a", "b"), ("b", "a")] {
                let _ = write!(
                    text,
                    "[qps.{own}{qp}]\nhost = \"{own}\"\npeer = \"{peer}{qp}\"\nmtu = 4096\npsn = {psn}\n"
                );
            }
        }
        text
    }
}

/// Appends a piece to a capture. Returns the new length of the capture.
fn append(piece: &Path, to: &mut File, without_header: bool) -> io::Result<u64> {
    let mut from = File::open(piece)?;
    if without_header {
        from.seek(SeekFrom::Start(FILE_HEADER))?;
    }
    io::copy(&mut from, to)?;
    to.stream_position()
}

/// Reads a capture into the page cache, so that no disk access is measured.
/// Returns its length in bytes.
fn read(file: &Path) -> io::Result<u64> {
    io::copy(&mut File::open(file)?, &mut io::sink())
}

/// Runs `rxe` on a capture of `length` bytes, bound to one CPU.
fn measure(rxe: &Path, args: &[&str], file: &Path, length: u64) -> Result<Measured> {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(rxe).args(args).arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let before = cpu_of_children();
    let mut child = command.spawn().map_err(|e| Error::Missing(format!("taskset: {e}")))?;
    let mut memory = 0;
    let status = loop {
        memory = peak(&child).unwrap_or(memory);
        if let Some(status) = child.try_wait().map_err(|e| Error::io(rxe, &e))? {
            break status;
        }
        thread::sleep(Duration::from_millis(2));
    };
    // The CPU time is measured, because others may use this CPU too.
    let time = cpu_of_children().saturating_sub(before);
    if !status.success() {
        return Err(Error::Failed(format!("{command:?}: {status}")));
    }
    #[expect(clippy::cast_precision_loss, reason = "shown without digits after the point")]
    let rate = length as f64 / 1e6 / time.as_secs_f64();
    Ok(Measured { rate, memory })
}

/// Returns the peak memory of a process so far, in MiB. `None` if it has ended.
fn peak(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.div_ceil(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_median_and_the_greatest_memory() {
        let run = |rate, memory| Measured { rate, memory };
        let runs = vec![run(300.0, 5), run(100.4, 9), run(200.0, 7)];
        assert_eq!(cells(&runs), ("200 (100–300)".to_owned(), 9));
    }

    #[test]
    fn a_run_is_a_row_of_the_table() {
        let row = Row { capture: "a", command: "c", rate: "9".into(), goal: Some(8), memory: 7 };
        assert!(table(&[row], 5).ends_with("--- |\n| a | c | 9 | 8 | 7 MiB |\n"));
    }

    #[test]
    fn psns_of_a_piece_are_far_from_those_of_the_next() {
        for traffic in &CAPTURES {
            let scenario = traffic.scenario(3);
            assert!(scenario.contains(&format!("psn = {}\n", 1000 + 3 * PSNS)));
        }
        const { assert!(PSNS - REQUESTS > 1 << 18) };
    }
}
