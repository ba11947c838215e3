//! Measurements over sizes and over numbers of queue pairs: the plots of the report.

use super::contender::Contender;
use super::link::Link;
use super::near::Near;
use super::plot::{Axis, Line, Plot};
use super::tests::Test;
use xtask::vm::Result;

/// 2 B to 8 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 1..=23;
const QPS: [u32; 6] = [1, 4, 16, 64, 256, 1000];

/// All plots. Who fails has no point there; `failures` says why.
pub(super) fn plots(
    contenders: &[&Contender],
    quick: bool,
    near: &Near,
    failures: &mut Vec<String>,
) -> Result<Vec<Plot>> {
    let mut sweep = Sweep { contenders, quick, near, failures, cpu: Vec::new() };
    let write = |bytes| Test::bandwidth("WRITE", bytes, 4096);
    let send = |bytes| Test { mtu: 4096, ..Test::latency("SEND", bytes) };
    let bandwidth = sweep.sizes("WRITE bandwidth", &write)?;
    let cpu = std::mem::take(&mut sweep.cpu);
    let rate = rates(&bandwidth);
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
            title: "SEND latency over a veth link (median; of `rxe perf` and perftest the 99.9th percentile too)",
            x: Axis::Bytes,
            y: Axis::Latency,
            lines: sweep.sizes("SEND latency", &send)?,
        },
        Plot {
            file: "bandwidth-host",
            title: "WRITE bandwidth on one host",
            x: Axis::Bytes,
            y: Axis::Bandwidth,
            lines: sweep.sizes("WRITE bandwidth, one host", &|b| write(b).on_one_host())?,
        },
        Plot {
            file: "latency-host",
            title: "SEND latency on one host (median; of `rxe perf` and perftest the 99.9th percentile too)",
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
    near: &'a Near,
    failures: &'a mut Vec<String>,
    /// CPU time of the last lines of bandwidth, of messages from 1 KiB on.
    cpu: Vec<Line>,
}

impl Sweep<'_> {
    /// A line for each contender, and one of the 99.9th percentiles of the first and of perftest.
    fn sizes(&mut self, what: &str, test: &dyn Fn(u32) -> Test) -> Result<Vec<Line>> {
        let step = if self.quick { 6 } else { 2 };
        let tests: Vec<_> = SIZES.step_by(step).map(|bit| test(1 << bit)).collect();
        self.lines(what, &tests, |test| test.bytes)
    }

    fn queue_pairs(&mut self) -> Result<Vec<Line>> {
        let tests = QPS.map(|qps| Test::bandwidth("WRITE", 65536, 4096).with_qps(qps));
        let mut lines = self.lines("queue pairs", &tests, |test| test.qps)?;
        // Some have a single queue pair, or none.
        lines.retain(|line| line.points.len() > 1);
        Ok(lines)
    }

    fn lines(&mut self, what: &str, tests: &[Test], x: fn(&Test) -> u32) -> Result<Vec<Line>> {
        let link = Link::new(tests[0].link_mtu())?;
        let mut lines = Vec::new();
        self.cpu.clear();
        for contender in self.contenders {
            let name = contender.name();
            let mut middle = Line { name: name.clone(), points: Vec::new() };
            let mut cpu = Line { name: name.clone(), points: Vec::new() };
            let mut tail = Line { name: format!("{name}, 99.9 %"), points: Vec::new() };
            for test in tests.iter().filter(|test| contender.can(**test)) {
                eprint!("\r\x1b[K{what}: {name}, {}", x(test));
                match self.near.run(|| contender.measure(&link, *test, true)) {
                    Ok(sample) => {
                        let x = f64::from(x(test));
                        middle.points.push((x, sample.value));
                        tail.points.extend(sample.times.map(|times| (x, times.p999)));
                        let large = sample.cpu_per_gb.filter(|_| test.bytes >= 1024);
                        cpu.points.extend(large.map(|cpu| (x, cpu)));
                    }
                    Err(why) => self.failures.push(format!("{name}, {test}: {}", why.trim())),
                }
            }
            // Those of other backends are much like the first one's.
            let has_tail = lines.is_empty() || contender.is_perftest();
            self.cpu.extend([cpu].into_iter().filter(|line| !line.points.is_empty()));
            lines.extend([middle].into_iter().filter(|line| !line.points.is_empty()));
            if has_tail && !tail.points.is_empty() {
                lines.push(tail);
            }
        }
        eprint!("\r\x1b[K");
        Ok(lines)
    }
}

/// Messages a second, from bandwidth over sizes, of messages up to 8 KiB.
fn rates(bandwidth: &[Line]) -> Vec<Line> {
    let rate = |line: &Line| Line {
        name: line.name.clone(),
        points: line
            .points
            .iter()
            .filter(|(bytes, _)| *bytes <= 8192.0)
            .map(|(bytes, gb)| (*bytes, gb * 1e3 / bytes))
            .collect(),
    };
    bandwidth.iter().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_bandwidth_over_size() {
        let line = Line { name: "x".into(), points: vec![(8.0, 0.016), (65536.0, 4.0)] };
        assert_eq!(rates(&[line])[0].points, [(8.0, 2.0)]);
    }
}
