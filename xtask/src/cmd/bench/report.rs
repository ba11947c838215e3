//! The results: medians, and ratios within rounds.

use std::fmt;
use std::fs;
use std::path::Path;
use xtask::vm::{Error, Result};

use super::contender::{Kind, Test};

/// One test, all contenders.
pub(super) struct Table {
    test: Test,
    columns: Vec<Column>,
    rounds: Vec<Round>,
}

/// A contender.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// Whether it is ours, to be compared with the others.
    pub(super) ours: bool,
}

/// Every contender's result, one after the other.
pub(super) struct Round(pub(super) Vec<std::result::Result<f64, String>>);

/// Median, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let at = |i: usize| values[i.min(values.len() - 1)];
        let median = f64::midpoint(at((values.len() - 1) / 2), at(values.len() / 2));
        Some(Self { median, min, max })
    }
}

impl Table {
    pub(super) fn new(test: Test, columns: Vec<Column>) -> Self {
        Self { test, columns, rounds: Vec::new() }
    }

    /// The ratio of two versions, and a name for it.
    pub(super) fn compared(&self) -> Option<(String, f64)> {
        let (ours, others) = self.sides();
        let (&after, &before) = (ours.first()?, others.first()?);
        let name = format!("{}, {}", self.columns[after].name.replace(", after", ""), self.test);
        Some((name, self.ratio(after, before)?.median))
    }

    pub(super) fn push(&mut self, round: Round) {
        self.rounds.push(round);
    }

    pub(super) fn has_failures(&self) -> bool {
        self.rounds.iter().any(|round| round.0.iter().any(std::result::Result::is_err))
    }

    fn values(&self, at: usize) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|round| round.0[at].clone().ok()).collect())
    }

    /// How many times better `ours` is than `theirs`, round by round: bandwidth ours/theirs, latency
    /// theirs/ours.
    fn ratio(&self, ours: usize, theirs: usize) -> Option<Spread> {
        let ratio = |round: &Round| {
            let (ours, theirs) = (round.0[ours].as_ref().ok()?, round.0[theirs].as_ref().ok()?);
            Some(match self.test.kind {
                Kind::Bandwidth => ours / theirs,
                Kind::Latency => theirs / ours,
            })
        };
        Spread::of(self.rounds.iter().filter_map(ratio).collect())
    }

    /// The columns that are ours, and the others.
    fn sides(&self) -> (Vec<usize>, Vec<usize>) {
        (0..self.columns.len()).partition(|&at| self.columns[at].ours)
    }

    fn failures(&self) -> impl Iterator<Item = (&str, &String)> {
        self.rounds.iter().flat_map(|round| {
            let all = self.columns.iter().zip(&round.0);
            all.filter_map(|(column, r)| Some((&*column.name, r.as_ref().err()?)))
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.test, self.test.unit())?;
        let (ours, others) = self.sides();
        for at in 0..self.columns.len() {
            write!(f, "  {:<22}", self.columns[at].name)?;
            match self.values(at) {
                Some(v) => write!(f, " {:>8.2}  ({:.2} to {:.2})", v.median, v.min, v.max)?,
                None => write!(f, "   failed")?,
            }
            for &other in others.iter().filter(|_| ours.contains(&at)) {
                if let Some(r) = self.ratio(at, other) {
                    let name = &self.columns[other].name;
                    write!(f, "   {:.2}x {name} ({:.2} to {:.2})", r.median, r.min, r.max)?;
                }
            }
            writeln!(f)?;
        }
        for (name, why) in self.failures() {
            writeln!(f, "  {name} failed: {}", why.trim())?;
        }
        Ok(())
    }
}

/// The difference of two versions in one line: the tests that are more than 2 % slower, by the median.
pub(super) fn verdict(tables: &[Table]) -> String {
    let compared = tables.iter().filter_map(Table::compared);
    let slower: Vec<_> = compared
        .filter(|(_, ratio)| *ratio < 0.98)
        .map(|(name, ratio)| format!("\n  {ratio:.2}x {name}"))
        .collect();
    if slower.is_empty() {
        return "nothing is more than 2 % slower (medians of the ratios)".into();
    }
    format!("more than 2 % slower (medians of the ratios):{}", slower.concat())
}

/// All as one object.
pub(super) fn json(tables: &[Table]) -> serde_json::Value {
    let spread = |s: Option<Spread>| {
        s.map(|s| serde_json::json!({ "median": s.median, "min": s.min, "max": s.max }))
    };
    let tests = tables.iter().map(|table| {
        let (ours, others) = table.sides();
        let results = table.columns.iter().enumerate().map(|(at, column)| {
            let ratio = |&other: &usize| {
                (table.columns[other].name.clone(), serde_json::json!(spread(table.ratio(at, other))))
            };
            let ratios: serde_json::Map<_, _> =
                others.iter().filter(|_| ours.contains(&at)).map(ratio).collect();
            serde_json::json!({ "name": column.name, "value": spread(table.values(at)), "times": ratios })
        });
        serde_json::json!({
            "test": table.test.to_string(),
            "unit": table.test.unit(),
            "results": results.collect::<Vec<_>>(),
            "failures": table.failures().map(|(n, why)| format!("{n}: {why}")).collect::<Vec<_>>(),
        })
    });
    serde_json::json!({ "machine": machine(), "tests": tests.collect::<Vec<_>>() })
}

const BEGIN: &str = "<!-- cargo xtask bench --write puts what follows -->";
const END: &str = "<!-- to here -->";

/// Puts the results into their place in docs/performance.md.
pub(super) fn write(tables: &[Table], rounds: u32) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md");
    let failed = |why: String| Error::Failed(format!("docs/performance.md: {why}"));
    let text = fs::read_to_string(&path).map_err(|e| failed(e.to_string()))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| failed(format!("{BEGIN} … {END} is not there")))?;
    let new = format!("{before}{BEGIN}\n\n{}\n{END}{after}", markdown(tables, rounds));
    fs::write(&path, new).map_err(|e| failed(e.to_string()))
}

fn markdown(tables: &[Table], rounds: u32) -> String {
    use fmt::Write;
    let mut out = format!(
        "Machine: {}. Median of {rounds} rounds, in brackets the least and the greatest. \"Times \
         as good\" is within a round: bandwidth ours/theirs, latency theirs/ours.\n\n\
         | test | ours | beside | times as good | ours | theirs |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        machine()
    );
    let spread = |s: Option<Spread>, unit: &str| {
        s.map_or("failed".into(), |s| {
            format!("{:.2}{unit} ({:.2} to {:.2})", s.median, s.min, s.max)
        })
    };
    for table in tables {
        let unit = format!(" {}", table.test.unit().replace('u', "µ"));
        let (ours, others) = table.sides();
        for &us in &ours {
            if others.is_empty() {
                let (name, value) = (&table.columns[us].name, spread(table.values(us), &unit));
                let _ = writeln!(out, "| {} | {name} | | | {value} | |", table.test);
            }
            for &them in &others {
                let _ = writeln!(
                    out,
                    "| {} | {} | {} | {} | {} | {} |",
                    table.test,
                    table.columns[us].name,
                    table.columns[them].name,
                    spread(table.ratio(us, them), ""),
                    spread(table.values(us), &unit),
                    spread(table.values(them), &unit),
                );
            }
        }
    }
    out
}

/// The machine, in a line.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| cpuinfo.lines().find_map(|l| l.strip_prefix(name)?.split_once(": "));
    let model = field("model name").map_or("unknown CPU", |(_, model)| model.trim());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let is_vm = cpuinfo.lines().any(|l| l.starts_with("flags") && l.contains(" hypervisor"));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: String =
        kernel.trim().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let vm = if is_vm { ", a virtual machine" } else { "" };
    format!("{model}, {cpus} CPUs{vm}, Linux {version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds_and_more_is_better() {
        let table = |test| {
            let column = |name: &str, ours| Column { name: name.into(), ours };
            let mut table =
                Table::new(test, vec![column("rxe udp", true), column("UCX tcp", false)]);
            // The machine was twice as fast in the second round.
            for (ours, theirs) in [(2.0, 1.0), (4.0, 2.0), (1.0, 1.0)] {
                table.push(Round(vec![Ok(ours), Ok(theirs)]));
            }
            table.push(Round(vec![Ok(9.0), Err("gone".into())]));
            table
        };
        let bandwidth = table(Test::bandwidth("WRITE", 65536, 1024));
        assert_eq!(bandwidth.ratio(0, 1), Some(Spread { median: 2.0, min: 1.0, max: 2.0 }));
        assert_eq!(bandwidth.values(0).map(|v| v.median), Some(3.0));
        assert!(bandwidth.has_failures());
        let latency = table(Test::latency("WRITE", 8));
        assert_eq!(latency.ratio(0, 1), Some(Spread { median: 0.5, min: 0.5, max: 1.0 }));
        let text = markdown(&[latency], 4);
        assert!(
            text.contains("| 8 B WRITE latency, one way | rxe udp | UCX tcp | 0.50 "),
            "{text}"
        );
    }
    #[test]
    fn what_is_slower_than_before_is_named() {
        let table = |ratios: &[f64]| {
            let column = |name: &str, ours| Column { name: name.into(), ours };
            let columns = vec![column("rxe udp, before", false), column("rxe udp, after", true)];
            let mut table = Table::new(Test::bandwidth("WRITE", 65536, 1024), columns);
            ratios.iter().for_each(|ratio| table.push(Round(vec![Ok(2.0), Ok(2.0 * ratio)])));
            table
        };
        let even = table(&[0.97, 0.99, 1.2]);
        assert!(verdict(&[even]).starts_with("nothing"));
        let text = verdict(&[table(&[0.9, 0.95, 1.2])]);
        assert!(
            text.ends_with("\n  0.95x rxe udp, 64 KiB WRITE bandwidth, link MTU 1500"),
            "{text}"
        );
    }
}
