//! Measures over message sizes and numbers of queue pairs, for the plots of the report.

use super::contender::{Contender, Sample};
use super::link::Link;
use super::plot::{Axis, Line, Plot};
use super::shared_cache::SharedCacheGate;
use super::tests::Test;
use rxe_harness::vm::Result;

/// Message sizes as exponents of 2: 2 B to 8 MiB, including 64 KiB, the size of the tables.
const SIZES: [u32; 13] = [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 19, 21, 23];
const QPS: [u32; 6] = [1, 4, 16, 64, 256, 1000];

/// Returns all plots.
/// A contender that fails has no point there, and the reason is added to `failures`.
pub(super) fn plots(
    contenders: &[&Contender],
    quick: bool,
    cache_gate: &SharedCacheGate,
    failures: &mut Vec<String>,
) -> Result<Vec<Plot>> {
    let mut sweep = Sweep { contenders, quick, cache_gate, failures, cpu: Vec::new() };
    let write = |bytes| Test::bandwidth("WRITE", bytes, 4096);
    let send = |bytes| Test { mtu: 4096, ..Test::latency("SEND", bytes) };
    let mut bandwidth = sweep.sizes("WRITE bandwidth", &write)?;
    let mut cpu = std::mem::take(&mut sweep.cpu);
    let rate = rates(&bandwidth);
    sweep.add_streams(&mut bandwidth, &mut cpu)?;
    let on_host = sweep.sizes("WRITE bandwidth, one host", &|b| write(b).on_one_host())?;
    let cpu_on_host = std::mem::take(&mut sweep.cpu);
    let rate_on_host = rates(&on_host);
    Ok(vec![
        Plot {
            file: "bandwidth-link",
            title: "WRITE bandwidth over a veth link, MTU 4200",
            x: Axis::Bytes,
            y: Axis::Bandwidth,
            lines: bandwidth,
        },
        Plot {
            file: "rate-link",
            title: "WRITE message rate over a veth link",
            x: Axis::Bytes,
            y: Axis::Rate,
            lines: rate,
        },
        Plot {
            file: "cpu-link",
            title: "CPU time of both ends for a gigabyte, WRITE over a veth link, MTU 4200",
            x: Axis::Bytes,
            y: Axis::Cpu,
            lines: cpu,
        },
        Plot {
            file: "latency-link",
            title: "SEND latency over a veth link: median; of `rxe perf` and perftest 99 % and 99.9 % too",
            x: Axis::Bytes,
            y: Axis::Latency,
            lines: sweep.sizes("SEND latency", &send)?,
        },
        Plot {
            file: "bandwidth-host",
            title: "WRITE bandwidth on one host",
            x: Axis::Bytes,
            y: Axis::Bandwidth,
            lines: on_host,
        },
        Plot {
            file: "rate-host",
            title: "WRITE message rate on one host",
            x: Axis::Bytes,
            y: Axis::Rate,
            lines: rate_on_host,
        },
        Plot {
            file: "cpu-host",
            title: "CPU time of both ends for a gigabyte, WRITE on one host",
            x: Axis::Bytes,
            y: Axis::Cpu,
            lines: cpu_on_host,
        },
        Plot {
            file: "latency-host",
            title: "SEND latency on one host: median; of `rxe perf` and perftest 99 % and 99.9 % too",
            x: Axis::Bytes,
            y: Axis::Latency,
            lines: sweep.sizes("SEND latency, one host", &|b| send(b).on_one_host())?,
        },
        Plot {
            file: "queue-pairs",
            title: "64 KiB WRITE bandwidth over a veth link, MTU 4200",
            x: Axis::QueuePairs,
            y: Axis::Bandwidth,
            lines: sweep.queue_pairs()?,
        },
    ])
}

struct Sweep<'a> {
    contenders: &'a [&'a Contender],
    quick: bool,
    cache_gate: &'a SharedCacheGate,
    failures: &'a mut Vec<String>,
    /// The CPU time of the bandwidth lines measured last, for messages of at least 1 KiB.
    cpu: Vec<Line>,
}

impl Sweep<'_> {
    fn sizes(&mut self, what: &str, test: &dyn Fn(u32) -> Test) -> Result<Vec<Line>> {
        let step = if self.quick { 4 } else { 1 };
        let tests: Vec<_> = SIZES.iter().step_by(step).map(|bit| test(1 << bit)).collect();
        self.lines(what, &tests, |test| test.bytes)
    }

    fn queue_pairs(&mut self) -> Result<Vec<Line>> {
        let tests = QPS.map(|qps| Test::bandwidth("WRITE", 65536, 4096).with_qps(qps));
        self.lines("queue pairs", &tests, |test| test.qps)
    }

    /// Adds horizontal lines for contenders that stream without messages. Each is measured once.
    fn add_streams(&mut self, bandwidth: &mut Vec<Line>, cpu: &mut Vec<Line>) -> Result<()> {
        let tests = ["WRITE", "SEND"].map(|op| Test::bandwidth(op, 65536, 4096));
        let link = Link::new(tests[0].link_mtu())?;
        for contender in self.contenders.iter().filter(|c| c.is_stream()) {
            let Some(test) = tests.into_iter().find(|test| contender.supports(*test)) else {
                continue;
            };
            let name = contender.name();
            eprint!("\r\x1b[KWRITE bandwidth: {name}");
            let Some(sample) = self.measure(&link, contender, test) else { continue };
            bandwidth.push(level(&name, sample.value, bandwidth));
            cpu.extend(sample.cpu_per_gb.map(|value| level(&name, value, cpu)));
        }
        Ok(())
    }

    /// Returns a line for each contender that supports more than one of the tests.
    /// The first contender and perftest get two more lines, with the 99th and 99.9th percentiles of
    /// their latency.
    fn lines(&mut self, what: &str, tests: &[Test], x: fn(&Test) -> u32) -> Result<Vec<Line>> {
        let link = Link::new(tests[0].link_mtu())?;
        let mut lines: Vec<Line> = Vec::new();
        self.cpu.clear();
        for contender in self.contenders {
            let tests: Vec<_> = tests.iter().filter(|test| contender.supports(**test)).collect();
            if tests.len() < 2 {
                continue;
            }
            let name = contender.name();
            let line = |part: &str| Line { name: format!("{name}{part}"), points: Vec::new() };
            let [mut middle, mut cpu] = [line(""), line("")];
            let [mut p99, mut p999] = [line(", 99 %"), line(", 99.9 %")];
            for test in tests {
                eprint!("\r\x1b[K{what}: {name}, {}", x(test));
                let Some(sample) = self.measure(&link, contender, *test) else { continue };
                let x = f64::from(x(test));
                middle.points.push((x, sample.value));
                p99.points.extend(sample.times.map(|times| (x, times.p99)));
                p999.points.extend(sample.times.map(|times| (x, times.p999)));
                let large = sample.cpu_per_gb.filter(|_| test.bytes >= 1024);
                cpu.points.extend(large.map(|cpu| (x, cpu)));
            }
            // The percentiles of other backends are much like those of the first.
            let has_tails = lines.is_empty() || contender.is_perftest();
            let tails = [p99, p999].into_iter().filter(|_| has_tails);
            let is_there = |line: &Line| !line.points.is_empty();
            lines.extend([middle].into_iter().chain(tails).filter(is_there));
            self.cpu.extend([cpu].into_iter().filter(is_there));
        }
        eprint!("\r\x1b[K");
        Ok(lines)
    }

    /// Does one short run.
    fn measure(&mut self, link: &Link, contender: &Contender, test: Test) -> Option<Sample> {
        let measured = self.cache_gate.run(|| contender.measure(link, test, true));
        let failed = |why: String| format!("{}, {test}: {}", contender.name(), why.trim());
        measured.map_err(|why| self.failures.push(failed(why))).ok()
    }
}

/// Returns a line with the same value over the whole range of the other lines.
fn level(name: &str, value: f64, others: &[Line]) -> Line {
    let all = || others.iter().flat_map(|line| &line.points).map(|point| point.0);
    let ends = [all().reduce(f64::min), all().reduce(f64::max)];
    let points = ends.into_iter().flatten().map(|x| (x, value)).collect();
    Line { name: name.to_owned(), points }
}

/// Returns the message rates (M/s) of bandwidth lines over sizes, for messages up to 8 KiB.
/// A bandwidth that is printed as 0 gives no rate.
fn rates(bandwidth: &[Line]) -> Vec<Line> {
    let rate = |line: &Line| Line {
        name: line.name.clone(),
        points: line
            .points
            .iter()
            .filter(|(bytes, gb)| *bytes <= 8192.0 && *gb > 0.0)
            .map(|(bytes, gb)| (*bytes, gb * 1e3 / bytes))
            .collect(),
    };
    bandwidth.iter().map(rate).filter(|line| !line.points.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bandwidth_over_size() {
        let line =
            Line { name: "x".into(), points: vec![(2.0, 0.0), (8.0, 0.016), (65536.0, 4.0)] };
        let long = Line { name: "y".into(), points: vec![(65536.0, 4.0)] };
        let rates = rates(&[line, long]);
        assert_eq!((rates.len(), &rates[0].points[..]), (1, &[(8.0, 2.0)][..]));
    }

    #[test]
    fn a_level_line_is_as_long_as_the_others() {
        let line = |points: &[(f64, f64)]| Line { name: "x".into(), points: points.into() };
        let others = [line(&[(8.0, 0.5), (512.0, 1.0)]), line(&[(2.0, 0.1), (32.0, 0.2)])];
        assert_eq!(level("raw UDP", 3.0, &others).points, [(2.0, 3.0), (512.0, 3.0)]);
        assert!(level("raw UDP", 3.0, &[]).points.is_empty());
    }

    #[test]
    fn the_size_of_the_tables_is_in_all_plots() {
        assert!(SIZES.contains(&16) && SIZES.iter().step_by(4).any(|bit| *bit == 16));
    }
}
