//! Measures how long an 8-byte WRITE takes to reach a thread that polls memory.
//! There are 1, 2 and 4 such threads, on one CPU and on two.
//!
//! The receiver of `tests/c/looks.c` has several such threads, which make no calls. Unmodified
//! `ib_write_lat` has one in each process, and several pairs run simultaneously.

use std::fmt;

use rxe_harness::c::Compiled;
use rxe_harness::checkout;
use rxe_harness::pages;
use rxe_harness::vm::{Error, Result};

use super::contender::{is_installed, perftest};
use super::link::{Link, Process, two_cpus};
use super::report::Spread;
use super::shared_cache::SharedCacheGate;
use super::tests::{Place, Test};

const LOOKS: &str = "tests/c/looks.c";
/// The microseconds from one WRITE of `looks.c` to the next.
const GAP: u32 = 50;
const WRITES: u32 = 20_000;
/// The WRITEs of a run of `looks.c` whose threads wait for a CPU.
/// Then each takes some milliseconds.
const WRITES_OF_MANY: u32 = 500;
/// The TCP port of the first pair of `ib_write_lat`.
const PORT: u16 = 18519;
/// The device and the GID index that `looks.c` uses.
/// The GID is that of the interface's IPv4 address. The GID before that is derived from the MAC
/// address.
const DEVICE: &str = "rxe_link0";
const GID: u32 = 1;

/// A file system in memory.
const MEMORY: &str = "/dev/shm";

const COLUMNS: [&str; 4] = ["typical", "average", "99 %", "99.9 %"];

/// The figures of [`COLUMNS`], in µs.
type Times = [f64; COLUMNS.len()];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Program {
    /// The receiver of `looks.c`, with a sender that polls its completion queue.
    Looks,
    /// Pairs of a client and a server of `ib_write_lat`.
    WriteLat,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    program: Program,
    place: Place,
    /// The number of threads that poll memory.
    threads: u32,
    /// The number of CPUs that all programs share.
    cpus: u32,
}

/// A row of the table: a case, with the result of each round.
struct Row(Case, Vec<std::result::Result<Times, String>>);

/// The results of all cases.
#[derive(Default)]
pub(super) struct PollLatency {
    rows: Vec<Row>,
    rounds: u32,
}

/// Measures only these cases and prints the table.
/// With `write`, puts it into docs/en/project/performance.md. Returns whether no run failed.
pub(super) fn run(
    rounds: u32,
    only: Option<&str>,
    write: bool,
    cache_gate: &SharedCacheGate,
) -> Result<bool> {
    let root = checkout::root()?;
    let rxe = checkout::build(&root, &["-p", "rxe-cli", "-p", "rxe-preload"])?;
    let poll_latency = measure(&rxe.display().to_string(), rounds, only, cache_gate)?;
    print!("{poll_latency}");
    if write {
        poll_latency.write()?;
    }
    Ok(!poll_latency.has_failures())
}

/// Measures the cases whose names contain `only`, if that is given.
/// Cases whose program is missing are left out.
pub(super) fn measure(
    rxe: &str,
    rounds: u32,
    only: Option<&str>,
    cache_gate: &SharedCacheGate,
) -> Result<PollLatency> {
    let mut cases = all();
    cases.retain(|case| only.is_none_or(|text| case.to_string().contains(text)));
    if cases.is_empty() {
        return Ok(PollLatency::default());
    }
    let left_out = |what: &str, lacks: &str| eprintln!("xtask: {what} left out: {lacks}");
    let Some((one, other)) = two_cpus() else {
        left_out("threads that look are", "this needs two CPUs, and taskset of util-linux");
        return Ok(PollLatency::default());
    };
    if cases.iter().any(|case| case.program == Program::WriteLat) && !is_installed("ib_write_lat") {
        left_out("threads that look of ib_write_lat are", "install perftest");
        cases.retain(|case| case.program != Program::WriteLat);
    }
    let mut compiled = None;
    if cases.iter().any(|case| case.program == Program::Looks) {
        match Compiled::linked(&[LOOKS], &["-libverbs", "-lpthread"]) {
            Ok(programs) => compiled = Some(programs),
            Err(Error::Missing(why)) => {
                left_out("threads that look of looks.c are", &why);
                cases.retain(|case| case.program != Program::Looks);
            }
            Err(e) => return Err(e),
        }
    }
    let looks = compiled.as_ref().map(|programs| programs.path(LOOKS)).unwrap_or_default();
    let setup = Setup { rxe, looks: &looks.display().to_string(), cpus: [one, other] };
    let mut rows = Vec::new();
    for place in [Place::Host, Place::Link] {
        let of_place: Vec<_> = cases.iter().copied().filter(|case| case.place == place).collect();
        if !of_place.is_empty() {
            rows.extend(setup.rows(&of_place, rounds, cache_gate)?);
        }
    }
    Ok(PollLatency { rows, rounds })
}

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for place in [Place::Host, Place::Link] {
        for (program, numbers) in [(Program::Looks, &[1, 2, 4][..]), (Program::WriteLat, &[2, 4])] {
            for &threads in numbers {
                cases.extend([1, 2].map(|cpus| Case { program, place, threads, cpus }));
            }
        }
    }
    cases
}

/// The parameters that all runs share.
struct Setup<'a> {
    rxe: &'a str,
    looks: &'a str,
    cpus: [usize; 2],
}

impl Setup<'_> {
    /// Runs all rounds of the cases of one place. Every second round is in reverse order.
    fn rows(&self, cases: &[Case], rounds: u32, cache_gate: &SharedCacheGate) -> Result<Vec<Row>> {
        let mut rows: Vec<_> = cases.iter().map(|case| Row(*case, Vec::new())).collect();
        let Some(link) = cases.first().map(|case| Link::new(case.test().link_mtu())) else {
            return Ok(rows);
        };
        let link = link?;
        for round in 1..=rounds {
            let mut turn = |Row(case, made): &mut Row| {
                eprint!("\r\x1b[K{case}: round {round} of {rounds}");
                let run = || self.run(&link, *case);
                // With a single CPU there is no distance to measure.
                made.push(if case.cpus == 1 { run() } else { cache_gate.run(run) });
            };
            match round % 2 {
                1 => rows.iter_mut().for_each(&mut turn),
                _ => rows.iter_mut().rev().for_each(&mut turn),
            }
        }
        eprint!("\r\x1b[K");
        Ok(rows)
    }

    fn run(&self, link: &Link, case: Case) -> std::result::Result<Times, String> {
        // The file is in memory, so no disk delays writes to it.
        let directory = tempfile::tempdir_in(MEMORY).map_err(|e| format!("{MEMORY}: {e}"))?;
        let meeting = directory.path().join("looks").display().to_string();
        let (servers, clients) = self.parts(case, &meeting, &link.host());
        let texts = link.run_all(&servers, &clients)?;
        let read = |text: &String| {
            let times = match case.program {
                Program::Looks => read(text),
                Program::WriteLat => perftest::sample(text, case.test()).and_then(|sample| {
                    let times = sample.times?;
                    Some([sample.value, times.average, times.p99, times.p999])
                }),
            };
            times.ok_or_else(|| format!("not understood: {text}"))
        };
        let each = texts.iter().map(read).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(together(&each))
    }

    /// Returns the servers and the clients of a case.
    fn parts(&self, case: Case, meeting: &str, host: &str) -> (Vec<Process>, Vec<Process>) {
        let Self { rxe, looks, .. } = self;
        let one_host = case.place == Place::Host;
        let [of_server, of_client] = self.cpus_of(case);
        let part = |text: &str, of_client_end: bool, cpus: &str, port| Process {
            program: text.split(' ').map(String::from).collect(),
            at_client: of_client_end && !one_host,
            cpus: cpus.to_owned(),
            port,
        };
        let run = format!("{rxe} run --backend udp --");
        if case.program == Program::Looks {
            let (writes, threads) = (case.writes(), case.threads);
            let program =
                format!("{run} {looks} {DEVICE} {GID} {GAP} {writes} - - {threads} {meeting}");
            let receiver = part(&format!("{program} receiver"), false, &of_server, None);
            let sender = part(&format!("{program} sender"), true, &of_client, None);
            return (vec![receiver], vec![sender]);
        }
        let pair = |port: u16| {
            let program = format!("{run} {}", perftest::command(case.test(), WRITES, port));
            let server = part(&program, false, &of_server, Some(port));
            (server, part(&format!("{program} {host}"), true, &of_client, None))
        };
        (PORT..).take(case.threads as usize / 2).map(pair).unzip()
    }

    /// Returns the CPUs of the server's end and of the client's, as arguments of taskset.
    fn cpus_of(&self, case: Case) -> [String; 2] {
        let [one, other] = self.cpus;
        match case.cpus {
            1 => [one, one].map(|cpu| cpu.to_string()),
            _ if case.is_crowded() => [(); 2].map(|()| format!("{one},{other}")),
            _ => [one, other].map(|cpu| cpu.to_string()),
        }
    }
}

impl Case {
    /// Returns whether there are more threads than CPUs.
    /// The sender of `looks.c` is a thread that does not poll memory.
    fn is_crowded(self) -> bool {
        let senders = if self.program == Program::Looks { 1 } else { 0 };
        self.threads + senders > self.cpus
    }

    fn writes(self) -> u32 {
        if self.is_crowded() { WRITES_OF_MANY } else { WRITES }
    }

    /// Returns the similar test of the benchmark.
    fn test(self) -> Test {
        let test = Test::latency("WRITE", 8);
        if self.place == Place::Host { test.on_one_host() } else { test }
    }

    fn program_and_place(self) -> [&'static str; 2] {
        let program = match self.program {
            Program::Looks => "looks.c",
            Program::WriteLat => "ib_write_lat",
        };
        [program, if self.place == Place::Host { "one host" } else { "link" }]
    }
}

/// Writes the name of a case, such as `threads that look: 2 of looks.c, one host, 1 CPU`.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [program, place] = self.program_and_place();
        let Self { threads, cpus, .. } = self;
        let plural = if *cpus == 1 { "" } else { "s" };
        write!(f, "threads that look: {threads} of {program}, {place}, {cpus} CPU{plural}")
    }
}

/// Reads the output of `looks.c`: `50 us apart: median 1.20, average 1.30, 99 % 2.00, 99.9 % 9.00
/// us`.
fn read(text: &str) -> Option<Times> {
    let (_, times) = text.trim_end().strip_suffix(" us")?.rsplit_once(" us apart: ")?;
    let mut parts = times.split(", ");
    let mut next = |name: &str| parts.next()?.strip_prefix(name)?.trim_start().parse().ok();
    Some([next("median")?, next("average")?, next("99 %")?, next("99.9 %")?])
}

/// Combines the times of programs that ran simultaneously: the median of their typical times, and
/// the worst of the others.
fn together(each: &[Times]) -> Times {
    let of = |column: usize| Spread::of(each.iter().map(|times| times[column]).collect());
    std::array::from_fn(|column| {
        let spread = of(column).unwrap_or_default();
        if column == 0 { spread.median } else { spread.max }
    })
}

impl Row {
    /// Returns the spread of a column over all rounds that did not fail.
    fn spread(&self, column: usize) -> Option<Spread> {
        Spread::of(self.1.iter().flatten().map(|times| times[column]).collect())
    }
}

impl PollLatency {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn has_failures(&self) -> bool {
        self.failures().next().is_some()
    }

    fn failures(&self) -> impl Iterator<Item = String> {
        self.rows.iter().flat_map(|Row(case, rounds)| {
            let why = rounds.iter().filter_map(|round| round.as_ref().err());
            why.map(move |why| format!("{case} failed: {}", why.trim()))
        })
    }

    /// Puts the table into docs/en/project/performance.md, if anything was measured.
    pub(super) fn write(&self) -> Result<()> {
        if self.is_empty() {
            eprintln!("no thread that looks was measured, and the table is left as it was");
            return Ok(());
        }
        pages::write(&checkout::root()?, super::PAGE, "bench --looks --write", &self.markdown())
    }

    fn markdown(&self) -> String {
        let mut text = format!(
            "The median of {} rounds, in brackets the least and the greatest:\n\n\
             | program | place | threads that look | CPUs | {} |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n",
            self.rounds,
            COLUMNS.join(" | ")
        );
        for row in &self.rows {
            let Case { threads, cpus, .. } = row.0;
            let [program, place] = row.0.program_and_place();
            let cells = (0..COLUMNS.len()).map(|column| {
                row.spread(column).map_or("failed".into(), |spread| spread.cell(digits))
            });
            let cells: Vec<String> = cells.collect();
            let cells = cells.join(" | ");
            text += &format!("| `{program}` | {place} | {threads} | {cpus} | {cells} |\n");
        }
        text
    }

    /// Returns the name of each case with the spread of each column, and the failures.
    pub(super) fn json(&self) -> serde_json::Value {
        let rows = self.rows.iter().map(|row| {
            let mut all = serde_json::json!({ "name": row.0.to_string(), "unit": "us" });
            let names = ["typical", "average", "percentile_99", "percentile_99_9"];
            for (column, name) in names.into_iter().enumerate() {
                all[name] = row.spread(column).map_or(serde_json::Value::Null, Spread::json);
            }
            all
        });
        let failures: Vec<_> = self.failures().collect();
        serde_json::json!({ "cases": rows.collect::<Vec<_>>(), "failures": failures })
    }
}

/// Writes the table and the failures for a terminal.
impl fmt::Display for PollLatency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        writeln!(f, "8 B WRITE to threads that look at their memory, one way, in us")?;
        writeln!(f, "{}", self.markdown())?;
        self.failures().try_for_each(|why| writeln!(f, "  {why}"))
    }
}

fn digits(time: f64) -> String {
    match time {
        t if t < 10.0 => format!("{t:.2}"),
        t if t < 100.0 => format!("{t:.1}"),
        t => format!("{t:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case { program: Program::WriteLat, place: Place::Link, threads: 4, cpus: 2 };

    fn setup() -> Setup<'static> {
        Setup { rxe: "rxe", looks: "looks", cpus: [0, 3] }
    }

    #[test]
    fn what_looks_prints_is_understood() {
        let text = "50 us apart: median 1.20, average 21.00, 99 % 300.50, 99.9 % 4000.00 us\n";
        assert_eq!(read(text), Some([1.2, 21.0, 300.5, 4000.0]));
        assert_eq!(read("meet:71: shared (errno 0)\n"), None);
        assert_eq!(read("50 us apart: median 1.20, 99 % 300.50, 99.9 % 4000.00 us\n"), None);
    }

    #[test]
    fn of_programs_at_the_same_time_the_typical_one_and_the_worst_tail_count() {
        let each = [[1.0, 9.0, 20.0, 30.0], [3.0, 8.0, 21.0, 29.0]];
        assert_eq!(together(&each), [2.0, 9.0, 21.0, 30.0]);
        assert_eq!(together(&each[..1]), each[0]);
    }

    #[test]
    fn each_case_has_a_name_of_its_own() {
        let names: Vec<_> = all().iter().map(Case::to_string).collect();
        assert_eq!(names[0], "threads that look: 1 of looks.c, one host, 1 CPU");
        assert_eq!(names.last().unwrap(), &CASE.to_string());
        let mut different = names.clone();
        different.sort();
        different.dedup();
        assert_eq!((names.len(), different.len()), (20, 20));
    }

    #[test]
    fn programs_have_a_cpu_each_only_where_there_are_as_many() {
        let cpus = |program, threads, cpus| {
            setup().cpus_of(Case { program, threads, cpus, ..CASE }).join(" ")
        };
        assert_eq!(cpus(Program::WriteLat, 2, 1), "0 0");
        assert_eq!(cpus(Program::WriteLat, 2, 2), "0 3");
        assert_eq!(cpus(Program::WriteLat, 4, 2), "0,3 0,3");
        assert_eq!(cpus(Program::Looks, 1, 2), "0 3");
        assert_eq!(cpus(Program::Looks, 2, 2), "0,3 0,3");
    }

    #[test]
    fn pairs_have_a_port_each_and_both_ends_of_looks_meet_in_a_file() {
        let (servers, clients) = setup().parts(CASE, "file", "10.0.0.1");
        let command = |port: u16| {
            format!("rxe run --backend udp -- ib_write_lat -F -s 8 -n 20000 -m 1024 -p {port}")
        };
        for (at, port) in [PORT, PORT + 1].into_iter().enumerate() {
            assert_eq!(servers[at].program.join(" "), command(port));
            assert_eq!(clients[at].program.join(" "), command(port) + " 10.0.0.1");
            assert_eq!((servers[at].port, clients[at].port), (Some(port), None));
            assert!(clients[at].at_client && !servers[at].at_client);
        }
        assert_eq!((servers.len(), clients.len()), (2, 2));
        let case = Case { program: Program::Looks, place: Place::Host, ..CASE };
        let (receiver, sender) = setup().parts(case, "file", "10.0.0.1");
        let command = "rxe run --backend udp -- looks rxe_link0 1 50 500 - - 4 file";
        assert_eq!(receiver[0].program.join(" "), format!("{command} receiver"));
        assert_eq!(sender[0].program.join(" "), format!("{command} sender"));
        assert!(!sender[0].at_client);
    }

    #[test]
    fn a_row_has_the_median_of_its_rounds_and_names_what_failed() {
        let times = |factor: f64| Ok([1.0, 12.0, 340.0, 5000.0].map(|time| time * factor));
        let rounds = vec![times(1.0), times(3.0), times(2.0), Err("gone\n".into())];
        let poll_latency = PollLatency {
            rows: vec![Row(CASE, rounds), Row(Case { cpus: 1, ..CASE }, vec![Err("x".into())])],
            rounds: 4,
        };
        let text = poll_latency.markdown();
        let cells = "2.00 (1.00 to 3.00) | 24.0 (12.0 to 36.0) | 680 (340 to 1020) | \
                     10000 (5000 to 15000) |\n";
        assert!(text.contains(&format!("| `ib_write_lat` | link | 4 | 2 | {cells}")), "{text}");
        let failed = "| 4 | 1 | failed | failed | failed | failed |\n";
        assert!(text.ends_with(failed), "{text}");
        assert!(poll_latency.has_failures());
        let said = poll_latency.to_string();
        assert!(said.contains("ib_write_lat, link, 2 CPUs failed: gone\n"), "{said}");
        assert_eq!(poll_latency.json()["cases"][0]["typical"]["median"], 2.0);
        assert_eq!(poll_latency.json()["cases"][1]["typical"], serde_json::Value::Null);
    }

    #[test]
    fn nothing_is_printed_of_nothing() {
        assert_eq!(PollLatency::default().to_string(), "");
    }
}
