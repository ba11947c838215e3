//! `cargo xtask bench --instructions`: counts with valgrind how many instructions the engine needs
//! per message and per packet, and compares the counts with the table in the repository.
//!
//! Counts do not depend on how busy the machine is, so a test can compare them. The program
//! `tests/benches/instructions.rs` does one work with a small and with a large number of messages.
//! The difference is the cost of the additional messages, without start and set-up.
//!
//! Another compiler generates other code, so a table is valid for one version of rustc and one kind
//! of processor. With another one the comparison is skipped, and the difference is named: a
//! tolerance wide enough for all compilers would hide any regression.

use rxe_harness::checkout::{self, cargo};
use rxe_harness::vm::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The path of the table, relative to the root.
const TABLE: &str = "tests/benches/instructions.json";
/// The numbers of messages of the two runs. The first run fills every buffer and queue.
const MESSAGES: [u64; 2] = [128, 384];
/// How much a count may differ from the table, in percent.
/// Counts of one program differ by less than a tenth of that from run to run; the C library has
/// other copy routines on other processors.
const TOLERANCE: f64 = 1.0;

/// The cost of a work in instructions.
#[derive(Clone, Debug, PartialEq)]
struct Cost {
    work: String,
    message: f64,
    packet: f64,
}

/// Counts, and compares with the table or replaces it.
/// Returns a text for people, and whether all costs are within the tolerance.
///
/// # Errors
/// [`Error::Missing`] if valgrind is not there, or the table was made with another compiler.
pub fn run(write: bool) -> Result<(String, bool)> {
    let path = checkout::root()?.join(TABLE);
    let toolchain = toolchain()?;
    if !write {
        // The toolchain is checked first, because building takes longer.
        check_toolchain(&read(&path)?, &toolchain)?;
    }
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.map_err(|_| Error::Missing("valgrind is not installed".into()))?;
    let program = build("instructions")?;
    let works = output(&mut Command::new(&program))?.0;
    let costs: Vec<Cost> = works.lines().map(|work| cost(&program, work)).collect::<Result<_>>()?;
    if write {
        let text = format!("{:#}\n", table(&toolchain, &costs));
        fs::write(&path, text).map_err(|e| Error::Failed(format!("{TABLE}: {e}")))?;
    }
    Ok(compare(&read(&path)?, &costs))
}

/// Returns the compiler's version and the processor for which it generates code.
fn toolchain() -> Result<[(&'static str, String); 2]> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = output(Command::new(rustc).arg("-vV"))?.0;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    Ok([("rustc", field("release:")), ("host", field("host:"))])
}

fn check_toolchain(table: &Value, toolchain: &[(&str, String)]) -> Result<()> {
    for (name, here) in toolchain {
        let there = table[name].as_str().unwrap_or("none");
        if there != here {
            let why = format!("the table is for {name} {there}, this is {here}");
            return Err(Error::Missing(why));
        }
    }
    Ok(())
}

/// Builds a benchmark of `rxe-tests`.
pub(super) fn build(bench: &str) -> Result<PathBuf> {
    let mut cmd = cargo();
    cmd.args(["bench", "-p", "rxe-tests", "--bench", bench, "--no-run"]);
    cmd.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let out = cmd.output().map_err(|e| Error::Failed(format!("cargo bench: {e}")))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|message| message["target"]["name"] == bench)
        .and_then(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .ok_or_else(|| Error::Failed("cargo bench made no program".into()))
}

fn cost(program: &PathBuf, work: &str) -> Result<Cost> {
    let [small, large] = MESSAGES.map(|messages| count(program, work, messages));
    let (small, large) = (small?, large?);
    let per = |things: fn(&Counted) -> u64| {
        let things = things(&large).saturating_sub(things(&small)).max(1);
        ratio(large.instructions.saturating_sub(small.instructions), things)
    };
    let work = work.to_owned();
    Ok(Cost { work, message: per(|c| c.messages), packet: per(|c| c.packets) })
}

struct Counted {
    instructions: u64,
    messages: u64,
    packets: u64,
}

fn count(program: &PathBuf, work: &str, messages: u64) -> Result<Counted> {
    let mut cmd = Command::new("valgrind");
    cmd.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    cmd.arg(program).arg(work).arg(messages.to_string());
    let (out, err) = output(&mut cmd)?;
    let mut numbers = out.split_whitespace().filter_map(|word| word.parse().ok());
    let counted = numbers.next().zip(numbers.next()).zip(instructions(&err));
    let ((messages, packets), instructions) =
        counted.ok_or_else(|| Error::Failed(format!("{work}: no counts: {out}{err}")))?;
    Ok(Counted { instructions, messages, packets })
}

/// Returns the number in cachegrind's line `==1== I refs:  12,345`.
fn instructions(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("refs:"))?;
    line.rsplit(' ').next()?.replace(',', "").parse().ok()
}

fn table(toolchain: &[(&str, String)], costs: &[Cost]) -> Value {
    let mut table: Map<String, Value> =
        toolchain.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let works: Map<String, Value> = costs
        .iter()
        .map(|cost| {
            let whole = |number: f64| json!(format!("{number:.0}").parse::<u64>().unwrap_or(0));
            let each = json!({ "message": whole(cost.message), "packet": whole(cost.packet) });
            (cost.work.clone(), each)
        })
        .collect();
    table.insert("works".into(), works.into());
    table.into()
}

fn read(path: &PathBuf) -> Result<Value> {
    let text = fs::read_to_string(path).map_err(|e| Error::Failed(format!("{TABLE}: {e}")))?;
    serde_json::from_str(&text).map_err(|e| Error::Failed(format!("{TABLE}: {e}")))
}

/// Compares the costs with those of the table.
/// Returns the comparison, and whether all are within the tolerance.
/// A cost that is much lower is an error too, because the table would not notice if the gain were
/// lost again. Messages and packets are compared separately: a message of many packets, or one that
/// needs fewer acknowledgements than before, may cost the same while a packet costs more.
fn compare(table: &Value, costs: &[Cost]) -> (String, bool) {
    let mut text = format!(
        "{:<16} {:<8} {:>12} {:>12} {:>9}\n",
        "work", "each", "counted", "the table", "change"
    );
    let mut same = true;
    for Cost { work, message, packet } in costs {
        for (each, count) in [("message", message), ("packet", packet)] {
            let before = table["works"][work][each].as_f64().unwrap_or(0.0);
            let change = (count / before - 1.0) * 100.0;
            let within = change.abs() <= TOLERANCE;
            same &= within;
            let mark = if within { "" } else { "  <- outside" };
            text += &format!(
                "{work:<16} {each:<8} {count:>12.0} {before:>12.0} {change:>+7.1} %{mark}\n"
            );
        }
    }
    if !same {
        text += &format!(
            "more than {TOLERANCE} % from {TABLE}; if that is intended: \
             cargo xtask bench --instructions --write\n"
        );
    }
    (text, same)
}

/// Runs a program. Returns its stdout and stderr.
pub(super) fn output(cmd: &mut Command) -> Result<(String, String)> {
    let program = cmd.get_program().display().to_string();
    let out = cmd.output().map_err(|e| Error::Failed(format!("{program}: {e}")))?;
    let [stdout, stderr] =
        [out.stdout, out.stderr].map(|s| String::from_utf8_lossy(&s).into_owned());
    if out.status.success() {
        return Ok((stdout, stderr));
    }
    Err(Error::Failed(format!("{program}: {}: {stderr}", out.status)))
}

#[expect(clippy::cast_precision_loss, reason = "counts are small, and the ratio is for comparing")]
fn ratio(all: u64, parts: u64) -> f64 {
    all as f64 / parts as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLCHAIN: [(&str, &str); 2] = [("rustc", "1.88.0"), ("host", "x86_64-unknown-linux")];

    fn toolchain() -> [(&'static str, String); 2] {
        TOOLCHAIN.map(|(name, value)| (name, value.to_owned()))
    }

    fn costs(message: f64) -> [Cost; 1] {
        [Cost { work: "write-8".into(), message, packet: message / 2.0 }]
    }

    #[test]
    fn a_slip_is_outside_the_tolerance_and_so_is_a_gain_that_the_table_does_not_have() {
        let table = table(&toolchain(), &costs(8000.0));
        assert!(compare(&table, &costs(8070.0)).1);
        assert!(!compare(&table, &costs(8100.0)).1);
        assert!(!compare(&table, &costs(7900.0)).1);
        let unknown = [Cost { work: "new".into(), message: 1.0, packet: 1.0 }];
        assert!(!compare(&table, &unknown).1);
    }

    #[test]
    fn a_packet_that_costs_more_is_outside_the_tolerance_where_a_message_costs_the_same() {
        let table = table(&toolchain(), &costs(8000.0));
        let [cost] = costs(8000.0);
        for (packet, within) in [(4035.0, true), (4050.0, false), (3950.0, false)] {
            let (text, same) = compare(&table, &[Cost { packet, ..cost.clone() }]);
            assert_eq!(same, within, "{text}");
            let outside = text.lines().find(|line| line.ends_with("<- outside"));
            assert_eq!(outside.is_some_and(|line| line.contains(" packet ")), !within, "{text}");
        }
    }

    #[test]
    fn a_table_of_another_compiler_is_not_compared() {
        let table = table(&toolchain(), &costs(1.0));
        assert_eq!(check_toolchain(&table, &toolchain()), Ok(()));
        let mut other = toolchain();
        other[0].1 = "1.89.0".into();
        let why = check_toolchain(&table, &other).unwrap_err().to_string();
        assert_eq!(why, "the table is for rustc 1.88.0, this is 1.89.0");
    }

    #[test]
    fn the_count_is_read_from_what_valgrind_says() {
        let said = "==1== Command: x\n==1== \n==1== I refs:        22,512,638\n";
        assert_eq!(instructions(said), Some(22_512_638));
    }
}
