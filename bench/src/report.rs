//! Reports the results: medians, and ratios within rounds.

use std::fmt;
use std::fs;

use super::contender::{Measured, Sample};
use super::shared_cache::SharedCacheGate;
use super::tests::{Kind, Test};

/// The results of one test for all contenders. The first contender is compared with the others.
pub(super) struct Table {
    test: Test,
    columns: Vec<String>,
    rounds: Vec<Round>,
}

/// The results of all contenders in one round, in the order of the columns.
pub(super) struct Round(pub(super) Vec<Measured>);

/// The median, the least and the greatest of several values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Returns the spread of these values, or `None` if there are none.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let at = |i: usize| values[i.min(values.len() - 1)];
        let median = f64::midpoint(at((values.len() - 1) / 2), at(values.len() / 2));
        Some(Self { median, min, max })
    }

    /// Formats the spread for a table of a page. `digits` formats each number.
    pub(super) fn cell(self, digits: impl Fn(f64) -> String) -> String {
        let [median, min, max] = [self.median, self.min, self.max].map(digits);
        format!("{median} ({min} to {max})")
    }

    /// Returns the spread as a JSON object.
    pub(super) fn json(self) -> serde_json::Value {
        let Self { median, min, max } = self;
        serde_json::json!({ "median": median, "min": min, "max": max })
    }
}

impl Table {
    pub(super) fn new(test: Test, columns: Vec<String>) -> Self {
        Self { test, columns, rounds: Vec::new() }
    }

    /// Returns the ratio of two versions, with a name for it.
    fn compared(&self) -> Option<(String, f64)> {
        let name = format!("{}, {}", self.columns.first()?.replace(", after", ""), self.test);
        Some((name, self.ratio(1)?.median))
    }

    /// Returns whether the test is this one, regardless of place and loss.
    pub(super) fn is_like(&self, test: Test) -> bool {
        Test { place: test.place, loss: test.loss, ..self.test } == test
    }

    /// Returns whether the table shows this test.
    pub(super) fn is_of(&self, test: Test) -> bool {
        self.test == test
    }

    /// Returns the index of a contender's column.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// Returns the ratio of `ours` to `theirs`, round by round.
    pub(super) fn times(&self, ours: usize, theirs: usize) -> Option<Spread> {
        let times = |round: &Round| {
            Some(round.0[ours].as_ref().ok()?.value / round.0[theirs].as_ref().ok()?.value)
        };
        Spread::of(self.rounds.iter().filter_map(times).collect())
    }

    /// Returns the percentage of packets that a router between the two ends lost.
    pub(super) fn loss(&self) -> Option<f64> {
        self.test.loss
    }

    /// Returns the median of a column.
    pub(super) fn median(&self, at: usize) -> Option<f64> {
        Some(self.values(at)?.median)
    }

    pub(super) fn push(&mut self, round: Round) {
        self.rounds.push(round);
    }

    pub(super) fn has_failures(&self) -> bool {
        self.rounds.iter().any(|round| round.0.iter().any(std::result::Result::is_err))
    }

    /// Returns the spread of a figure of a column's samples.
    pub(super) fn spread(
        &self,
        at: usize,
        what: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|r| what(r.0[at].as_ref().ok()?)).collect())
    }

    /// Returns the percentile of a column's values, interpolated between two values.
    pub(super) fn percentile(&self, at: usize, percent: f64) -> Option<f64> {
        let value = |round: &Round| Some(round.0[at].as_ref().ok()?.value);
        let mut values: Vec<_> = self.rounds.iter().filter_map(value).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let place = f64::from(u32::try_from(last).ok()?) * percent / 100.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let below = place as usize;
        let above = values[(below + 1).min(last)];
        Some(values[below] + (above - values[below]) * place.fract())
    }

    /// Returns the spread of a column's values.
    pub(super) fn values(&self, at: usize) -> Option<Spread> {
        self.spread(at, |sample| Some(sample.value))
    }

    /// Returns how many times better the first contender is than another, round by round.
    fn ratio(&self, theirs: usize) -> Option<Spread> {
        match self.test.kind {
            Kind::Bandwidth | Kind::Rate => self.times(0, theirs),
            Kind::Latency => self.times(theirs, 0),
        }
    }

    /// Returns CPU seconds per gigabyte or the 99.9th percentile in µs, by the test.
    fn extra(&self, at: usize) -> Option<Spread> {
        self.spread(at, |sample| sample.cpu_per_gb.or(sample.times.map(|times| times.p999)))
    }

    fn extra_name(&self) -> &'static str {
        match self.test.kind {
            Kind::Bandwidth if self.extra(0).is_none() => "",
            Kind::Bandwidth => "CPU s/GB",
            Kind::Latency => "99.9 %",
            Kind::Rate => "",
        }
    }

    /// Returns the percentage of retransmitted packets, if a socket buffer may overflow.
    fn again(&self, at: usize) -> Option<Spread> {
        self.spread(at, |sample| sample.again.filter(|_| self.test.is_crowded()))
    }

    /// Returns whether any contender has counted retransmitted packets.
    fn has_again(&self) -> bool {
        (0..self.columns.len()).any(|at| self.again(at).is_some())
    }

    fn failures(&self) -> impl Iterator<Item = (&str, &String)> {
        self.rounds.iter().flat_map(|round| {
            let all = self.columns.iter().zip(&round.0);
            all.filter_map(|(column, r)| Some((&**column, r.as_ref().err()?)))
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.test)?;
        let first = self.columns.first().map_or(String::new(), |first| format!("{first} is"));
        let (unit, extra) = (self.test.unit(), self.extra_name());
        let (range, width) = ("least to greatest", first.len());
        let again = if self.has_again() { "  again %" } else { "" };
        writeln!(f, "  {:<26} {unit:>8}  {range:<19} {first:>width$}  {extra:>9}{again}", "")?;
        for (at, name) in self.columns.iter().enumerate() {
            let Some(v) = self.values(at) else {
                writeln!(f, "  {name:<26}   failed")?;
                continue;
            };
            let range = format!("{:.2} to {:.2}", v.min, v.max);
            let times = (at > 0).then(|| self.ratio(at)).flatten();
            let times = times.map_or(String::new(), |r| format!("{:.2}x", r.median));
            let extra = self.extra(at).map_or(String::new(), |e| format!("{:.2}", e.median));
            let again = self.again(at).map_or(String::new(), |a| format!("  {:>7.3}", a.median));
            let value = v.median;
            writeln!(
                f,
                "  {name:<26} {value:>8.2}  {range:<19} {times:>width$}  {extra:>9}{again}"
            )?;
        }
        for (name, why) in self.failures() {
            writeln!(f, "  {name} failed: {}", why.trim())?;
        }
        Ok(())
    }
}

/// Compares two versions in a few lines: names the tests that are more than 2 % slower, by the
/// median.
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

/// Returns all results as one JSON object.
pub(super) fn json(tables: &[Table], cache_gate: &SharedCacheGate) -> serde_json::Value {
    let spread = |s: Option<Spread>| s.map(Spread::json);
    let tests = tables.iter().map(|table| {
        let results = table.columns.iter().enumerate().map(|(at, name)| {
            serde_json::json!({
                "name": name,
                "value": spread(table.values(at)),
                "first_is_times_as_good": spread((at > 0).then(|| table.ratio(at)).flatten()),
                "cpu_seconds_per_gb": spread(table.spread(at, |sample| sample.cpu_per_gb)),
                "sent_again_percent": spread(table.again(at)),
                "percentile_99_9_usec": spread(table.spread(at, |sample| Some(sample.times?.p999))),
            })
        });
        serde_json::json!({
            "test": table.test.to_string(),
            "unit": table.test.unit(),
            "results": results.collect::<Vec<_>>(),
            "failures": table.failures().map(|(n, why)| format!("{n}: {why}")).collect::<Vec<_>>(),
        })
    });
    serde_json::json!({
        "machine": machine(),
        "cpus": cache_gate.to_string().trim_start(),
        "tests": tests.collect::<Vec<_>>(),
    })
}

/// Returns the tables for docs/en/project/performance.md.
pub(super) fn markdown(tables: &[Table], cache_gate: &SharedCacheGate) -> String {
    use fmt::Write;
    let rounds = tables.iter().map(|table| table.rounds.len()).min().unwrap_or_default();
    let mut out = format!(
        "Machine: {}. Median of {rounds} rounds, in brackets the least and the greatest. \"Times as \
         good\" is what the first row of a test is beside the others, within a round: bandwidth and \
         rate first/other, latency other/first.{cache_gate}\n",
        machine()
    );
    for table in tables {
        let unit = table.test.unit().replace('u', "µ");
        let mut names = vec!["times as good"];
        let extra = match table.extra_name() {
            "" => None,
            "99.9 %" => Some("99.9th percentile"),
            _ => Some("CPU s/GB"),
        };
        names.extend(extra);
        // Some tests have several runs in each round.
        let runs = match table.rounds.len() {
            same if same == rounds => String::new(),
            more => format!(", {more} rounds"),
        };
        let has_again = table.has_again();
        names.extend(has_again.then_some("sent again, %"));
        let (lines, names) = (" --- |".repeat(names.len()), names.join(" | "));
        let _ = write!(out, "\n**{}{runs}**\n\n", table.test);
        let _ = write!(out, "| | {unit} | {names} |\n| --- | --- |{lines}\n");
        for (at, name) in table.columns.iter().enumerate() {
            let spread = |s: Option<Spread>, digits: usize, unless: &str| {
                s.map_or(unless.into(), |spread| spread.cell(|value| format!("{value:.digits$}")))
            };
            let value = spread(table.values(at), 2, "failed");
            let times = spread((at > 0).then(|| table.ratio(at)).flatten(), 2, "");
            let _ = write!(out, "| {name} | {value} | {times} |");
            if extra.is_some() {
                let extra = table.extra(at).map_or(String::new(), |e| format!("{:.2}", e.median));
                let _ = write!(out, " {extra} |");
            }
            if has_again {
                let _ = write!(out, " {} |", spread(table.again(at), 3, ""));
            }
            out.push('\n');
        }
    }
    out
}

/// Describes the machine in a line.
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

    fn sample(value: f64) -> Measured {
        Ok(Sample { value, ..Sample::default() })
    }

    #[test]
    fn ratios_are_taken_within_rounds_and_more_is_better() {
        let table = |test| {
            let mut table = Table::new(test, vec!["rxe udp".into(), "UCX tcp".into()]);
            // The machine is twice as fast in the second round.
            for (ours, theirs) in [(2.0, 1.0), (4.0, 2.0), (1.0, 1.0)] {
                table.push(Round(vec![sample(ours), sample(theirs)]));
            }
            table.push(Round(vec![sample(9.0), Err("gone".into())]));
            table
        };
        let bandwidth = table(Test::bandwidth("WRITE", 65536, 1024));
        assert_eq!(bandwidth.ratio(1), Some(Spread { median: 2.0, min: 1.0, max: 2.0 }));
        assert_eq!(bandwidth.values(0).map(|v| v.median), Some(3.0));
        assert!(bandwidth.has_failures());
        let latency = table(Test::latency("WRITE", 8));
        assert_eq!(latency.ratio(1), Some(Spread { median: 0.5, min: 0.5, max: 1.0 }));
        let text = markdown(&[latency], &SharedCacheGate::new());
        assert!(text.contains("**8 B WRITE latency, one way**"), "{text}");
        assert!(text.contains("| UCX tcp | 1.00 (1.00 to 2.00) | 0.50 (0.50 to 1.00) |"), "{text}");
    }

    #[test]
    fn a_percentile_lies_between_two_values() {
        let table = |values: &[f64]| {
            let mut table = Table::new(Test::latency("WRITE", 8), vec!["rxe udp".into()]);
            values.iter().for_each(|value| table.push(Round(vec![sample(*value)])));
            table
        };
        let nine = table(&[9.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.0]);
        let percentiles = [0.0, 12.5, 50.0, 100.0].map(|p| nine.percentile(0, p));
        assert_eq!(percentiles, [1.0, 2.0, 5.0, 9.0].map(Some));
        assert_eq!(table(&[1.0, 3.0]).percentile(0, 25.0), Some(1.5));
        assert_eq!(table(&[]).percentile(0, 50.0), None);
    }

    #[test]
    fn a_test_with_more_rounds_than_others_says_so() {
        let table = |test: Test| {
            let mut table = Table::new(test, vec!["rxe udp".into()]);
            (0..2 * test.runs()).for_each(|_| table.push(Round(vec![sample(1.0)])));
            table
        };
        let test = Test::bandwidth("WRITE", 65536, 4096);
        let text = markdown(&[test, test.bound_or_not()].map(table), &SharedCacheGate::new());
        assert!(text.contains(" Median of 2 rounds, in brackets "), "{text}");
        assert!(text.contains("**64 KiB WRITE bandwidth, link MTU 4200**"), "{text}");
        assert!(text.contains(", link MTU 4200, bound to CPUs or not, 6 rounds**"), "{text}");
    }

    #[test]
    fn what_was_sent_again_is_told_where_a_socket_may_be_too_small() {
        let table = |test| {
            let mut table = Table::new(test, vec!["rxe udp".into(), "perftest on rxe".into()]);
            for again in [0.0, 0.004, 0.25] {
                let ours = Sample { value: 2.0, again: Some(again), ..Sample::default() };
                table.push(Round(vec![Ok(ours), sample(1.0)]));
            }
            table
        };
        let test = Test::bandwidth("WRITE", 65536, 4096);
        let one = markdown(&[table(test)], &SharedCacheGate::new());
        assert!(one.contains("\n| | GB/s | times as good |\n| --- | --- | --- |\n"), "{one}");
        let crowded = test.with_qps(64).with_usual_recv_buffer();
        let many = markdown(&[table(crowded)], &SharedCacheGate::new());
        assert!(many.contains("64 queue pairs, link MTU 4200, receive buffer 208 KiB**"), "{many}");
        assert!(many.contains("| times as good | sent again, % |\n| --- | --- | --- | --- |\n"));
        assert!(many.contains("| rxe udp | 2.00 (2.00 to 2.00) |  | 0.004 (0.000 to 0.250) |\n"));
        assert!(
            many.ends_with("| perftest on rxe | 1.00 (1.00 to 1.00) | 2.00 (2.00 to 2.00) |  |\n")
        );
        let text = table(test.with_qps(64)).to_string();
        assert!(text.contains(" again %\n") && text.contains("  0.004\n"), "{text}");
    }

    #[test]
    fn what_is_slower_than_before_is_named() {
        let table = |ratios: &[f64]| {
            let columns = vec!["rxe udp, after".into(), "rxe udp, before".into()];
            let mut table = Table::new(Test::bandwidth("WRITE", 65536, 1024), columns);
            let round = |ratio: &f64| Round(vec![sample(2.0 * ratio), sample(2.0)]);
            ratios.iter().for_each(|ratio| table.push(round(ratio)));
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
