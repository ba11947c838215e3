//! `cargo xtask bench --fabric`: reports a simulated fabric of up to 1,000 hosts, with and without
//! congestion control, as tables and plots. `tests/benches/network.rs` does the runs. Their time is
//! virtual, so the figures are the same on every machine.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use rxe_harness::checkout;
use rxe_harness::pages;
use rxe_harness::vm::{Error, Result};
use serde_json::Value;

use super::instructions::{build, output};
use super::page;
use super::plot::{Axis, Line, Plot};

/// The page of docs/ that has the tables.
const PAGE: &str = "project/fabric";

struct Run {
    /// The kind of traffic.
    work: String,
    /// The number of hosts that send.
    hosts: u32,
    /// Whether congestion control is on.
    on: bool,
    figures: Value,
}

/// Does all runs whose name contains `only`, and prints tables.
/// Draws the plots, in docs/ if `write`.
pub(super) fn run(only: Option<&str>, write: bool) -> Result<()> {
    let program = build("network")?;
    let names = output(&mut Command::new(&program))?.0;
    let names: Vec<_> =
        names.lines().filter(|name| only.is_none_or(|o| name.contains(o))).collect();
    let runs = all(&program, &names)?;
    let text = markdown(&runs);
    println!("{text}");
    page::write_plots("fabric", &plots(&runs), write)?;
    if write {
        pages::write(&checkout::root()?, PAGE, "bench --fabric --write", &text)?;
    }
    Ok(())
}

/// Does the runs, as many simultaneously as there are processors.
fn all(program: &Path, names: &[&str]) -> Result<Vec<Run>> {
    let next = Mutex::new(names.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let taken = next.lock().ok().and_then(|mut names| names.next());
            let Some((at, name)) = taken else { return };
            eprintln!("{name}");
            let run = one(program, name);
            if let Ok(mut done) = done.lock() {
                done.push((at, run));
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, run)| run).collect()
}

fn one(program: &Path, name: &str) -> Result<Run> {
    let failed = |why: &str| Error::Failed(format!("{name}: {why}"));
    let out = output(Command::new(program).arg(name))?.0;
    let figures = serde_json::from_str(&out).map_err(|e| failed(&e.to_string()))?;
    let [work, hosts, state] = name.split(' ').collect::<Vec<_>>()[..] else {
        return Err(failed("not WORK HOSTS on|off"));
    };
    let hosts = hosts.parse().map_err(|_| failed("not a number of hosts"))?;
    Ok(Run { work: work.into(), hosts, on: state == "on", figures })
}

impl Run {
    fn figure(&self, name: &str) -> f64 {
        self.figures[name].as_f64().unwrap_or(0.0)
    }

    /// Returns the packets retransmitted, per hundred others.
    fn again(&self) -> f64 {
        100.0 * self.figure("again") / self.figure("requests").max(1.0)
    }

    /// Returns the time to completion at this percentile, in milliseconds.
    fn time(&self, percentile: usize) -> f64 {
        self.figures["completion_time"][percentile].as_f64().unwrap_or(0.0) / 1000.0
    }

    fn row(&self) -> String {
        let state = if self.on { "on" } else { "off" };
        let main = match &*self.work {
            "burst" => milliseconds(self.figure("finished") / 1000.0),
            _ => format!("{:.0} %", 100.0 * self.figure("goodput")),
        };
        format!(
            "| {} | {state} | {main} | {:.1} % | {:.0} kB, {:.0} kB | {:.2} | {}, {} | {} | {} |\n",
            self.hosts,
            self.again(),
            self.figure("mean_queue") / 1000.0,
            self.figure("longest_queue") / 1000.0,
            self.figure("fairness"),
            milliseconds(self.time(50)),
            milliseconds(self.time(99)),
            self.figure("ack_timeouts"),
            self.figure("failed"),
        )
    }
}

fn milliseconds(time: f64) -> String {
    match time {
        t if t >= 100.0 => format!("{t:.0} ms"),
        t if t >= 10.0 => format!("{t:.1} ms"),
        t => format!("{t:.2} ms"),
    }
}

fn markdown(runs: &[Run]) -> String {
    let mut text = String::new();
    for (work, title, hosts, main) in [
        ("incast", "Incast", "senders", "goodput"),
        ("burst", "Burst", "senders", "all have completed after"),
        ("all-to-all", "All-to-all", "hosts", "goodput"),
    ] {
        let _ = write!(
            text,
            "**{title}**\n\n| {hosts} | DCQCN | {main} | sent again | queue: mean, longest | fairness | \
             message: median, 99 % | timeouts | failed |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        );
        runs.iter().filter(|run| run.work == work).for_each(|run| text += &run.row());
        text += "\n";
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn plots(runs: &[Run]) -> Vec<Plot> {
    let over_senders = |work: &str, y: &dyn Fn(&Run) -> f64, on: bool| {
        let runs = runs.iter().filter(|run| run.work == work && run.on == on);
        runs.map(|run| (f64::from(run.hosts), y(run))).collect::<Vec<_>>()
    };
    let both = |work: &str, y: &dyn Fn(&Run) -> f64| {
        [false, true].map(|on| Line { name: name(on), points: over_senders(work, y, on) }).into()
    };
    let times = [(50, "median"), (99, "99 %")].into_iter().flat_map(|(percentile, what)| {
        let over = &over_senders;
        [false, true].map(|on| Line {
            name: format!("{}, {what}", name(on)),
            points: over("incast", &|run| run.time(percentile), on),
        })
    });
    let plot = |file, title, (x, y), lines| Plot { file, title, x, y, lines };
    vec![
        plot(
            "incast-goodput",
            "Incast: goodput",
            (Axis::Senders, Axis::Share),
            both("incast", &|run| 100.0 * run.figure("goodput")),
        ),
        plot(
            "incast-again",
            "Incast: packets sent again",
            (Axis::Senders, Axis::Again),
            both("incast", &Run::again),
        ),
        plot(
            "incast-time",
            "Incast: time of a message of 64 KiB",
            (Axis::Senders, Axis::Completion),
            times.collect(),
        ),
        plot(
            "incast-queue",
            "Incast of 100 senders: the queue in front of the receiver",
            (Axis::Elapsed, Axis::Queue),
            queues(runs, "incast", 100),
        ),
        plot(
            "all-to-all-time",
            "All-to-all among 1,000 hosts: time of a message of 64 KiB",
            (Axis::Completion, Axis::Messages),
            distributions(runs, "all-to-all", 1000),
        ),
    ]
}

fn name(on: bool) -> String {
    if on { "with DCQCN" } else { "without" }.into()
}

fn chosen<'a>(runs: &'a [Run], work: &'a str, hosts: u32) -> impl Iterator<Item = &'a Run> {
    runs.iter().filter(move |run| run.work == work && run.hosts == hosts)
}

/// Returns the lengths of the queue over the first 20 ms.
fn queues(runs: &[Run], work: &str, hosts: u32) -> Vec<Line> {
    let line = |run: &Run| {
        let samples = run.figures["samples"].as_array().into_iter().flatten().take(200);
        let points = (0u32..).zip(samples).map(|(at, sample)| {
            (f64::from(at) / 10.0, sample["queue"].as_f64().unwrap_or(0.0) / 1000.0)
        });
        Line { name: name(run.on), points: points.collect() }
    };
    chosen(runs, work, hosts).map(line).collect()
}

/// Returns the share of messages that have completed, over time.
fn distributions(runs: &[Run], work: &str, hosts: u32) -> Vec<Line> {
    let line = |run: &Run| {
        let points = (0u32..=100).map(|percent| (run.time(percent as usize), f64::from(percent)));
        Line { name: name(run.on), points: points.collect() }
    };
    chosen(runs, work, hosts).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_is_a_row_of_its_table() {
        let times: Vec<_> = (0..=100).map(|percent| f64::from(percent) * 100.0).collect();
        let figures = json!({
            "goodput": 0.876, "requests": 1000, "again": 12, "mean_queue": 45_678,
            "longest_queue": 200_000, "fairness": 0.987, "completion_time": times,
            "ack_timeouts": 3, "failed": 1,
        });
        let run = Run { work: "incast".into(), hosts: 100, on: true, figures };
        let row = "| 100 | on | 88 % | 1.2 % | 46 kB, 200 kB | 0.99 | 5.00 ms, 9.90 ms | 3 | 1 |\n";
        assert_eq!(run.row(), row);
        let text = markdown(&[run]);
        assert!(text.contains(row) && text.starts_with("**Incast**"), "{text}");
    }
}
