//! The goals of this project, compared with the results of a run.

use std::fmt::Write;

use super::contender::Times;
use super::report::Table;
use super::tests::{Place, Test};

/// A goal. If `work` lists several works with slashes, each has a figure.
struct Goal {
    work: &'static str,
    goal: &'static str,
    unit: &'static str,
    reached: fn(&Results<'_>) -> Vec<Option<f64>>,
}

/// Returns all goals as a Markdown table.
pub(super) fn markdown(tables: &[Table]) -> String {
    let all = Results(tables);
    let mut out = "| work | goal | reached |\n| --- | --- | --- |\n".to_owned();
    for Goal { work, goal, unit, reached } in GOALS {
        let one =
            |value: Option<f64>| value.map_or("–".into(), |v| format!("{}{unit}", digits(v)));
        let figures: Vec<_> = reached(&all).into_iter().map(one).collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "| {work} | {goal} | {} |", figures.join(" / "));
    }
    out
}

fn digits(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

// The unit of ratios.
const TIMES: &str = " ×";

// The names of contenders.
const UDP: &str = "rxe udp";
const BACKENDS: [&str; 3] = [UDP, "rxe packet", "rxe xdp:driver"];
/// The backends that receive through a socket.
const SOCKETS: [&str; 2] = [BACKENDS[0], BACKENDS[1]];
const UNBOUND: &str = "rxe udp, not bound";
const SHM: &str = "rxe shm";
const PERFTEST: &str = "perftest on rxe";
const UNBOUND_PERFTEST: &str = "perftest on rxe, not bound";
const KERNEL: &str = "perftest on kernel rxe";

// The tests.
const MTUS: [u32; 2] = [1024, 4096];
const WRITE: Test = link("WRITE", 4096);
/// Tests of processes that the kernel places on CPUs.
const NOT_BOUND: [Test; 3] =
    [WRITE.bound_or_not(), WRITE.with_qps(16).bound_or_not(), WRITE.with_qps(64).bound_or_not()];
const HOSTS: [&str; 3] = ["WRITE", "READ", "SEND"];
const SHORT: Test = Test::latency("SEND", 8);
/// Tests of programs that poll memory: over the link, and on one host.
const POLLERS: [Test; 2] = [Test::latency("WRITE", 8), Test::latency("WRITE", 8).on_one_host()];

const fn link(op: &'static str, mtu: u32) -> Test {
    Test::bandwidth(op, 65536, mtu)
}

fn host(op: &'static str) -> Test {
    link(op, 4096).on_one_host()
}

fn vm(test: Test) -> Test {
    Test { place: Place::Vm, ..test }
}

/// Returns the WRITE test in a VM with this percentage of packets lost.
fn lossy(loss: f64) -> Test {
    Test { loss: Some(loss), ..vm(WRITE) }
}

const GOALS: &[Goal] = &[
    Goal {
        work: "64 KiB WRITE, link MTU 1500 / 4200, beside raw UDP with GSO",
        goal: "≥ 0.8 ×",
        unit: TIMES,
        reached: |all| all.ratios(MTUS.map(|mtu| link("WRITE", mtu)), UDP, "raw UDP, GSO"),
    },
    Goal {
        work: "64 KiB SEND, link MTU 1500 / 4200, beside UCX tcp",
        goal: "≥ 1.5 × / 2 ×",
        unit: TIMES,
        reached: |all| all.ratios(MTUS.map(|mtu| link("SEND", mtu)), UDP, "UCX tcp"),
    },
    Goal {
        work: "64 KiB READ, link MTU 1500 / 4200, beside WRITE",
        goal: "≥ 0.9 ×",
        unit: TIMES,
        reached: |all| {
            MTUS.map(|mtu| all.quotient((link("READ", mtu), UDP), (link("WRITE", mtu), UDP))).into()
        },
    },
    Goal {
        work: "64 KiB WRITE, link, 1 / 16 / 64 queue pairs, not bound to CPUs, beside bound",
        goal: "≥ 0.85 ×",
        unit: TIMES,
        reached: |all| NOT_BOUND.map(|test| all.ratio(test, UNBOUND, UDP)).into(),
    },
    Goal {
        work: "the same, range of all runs",
        goal: "≤ 15 %",
        unit: " %",
        reached: |all| NOT_BOUND.map(|test| all.range(test, UNBOUND, 0.0)).into(),
    },
    Goal {
        work: "the same, from the 10th to the 90th percentile",
        goal: "≤ 15 %",
        unit: " %",
        reached: |all| NOT_BOUND.map(|test| all.range(test, UNBOUND, 10.0)).into(),
    },
    Goal {
        work: "64 KiB WRITE, link, 64 queue pairs beside one: `udp` / `packet` / `xdp` / perftest",
        goal: "≥ 0.9 ×",
        unit: TIMES,
        reached: |all| {
            let [udp, packet, xdp] = BACKENDS;
            all.beside_one([udp, packet, xdp, PERFTEST], WRITE.with_qps(64), WRITE)
        },
    },
    Goal {
        work: "64 KiB WRITE, link, 64 queue pairs beside one, receive buffer 208 KiB: `udp` / `packet`",
        goal: "≥ 0.9 ×",
        unit: TIMES,
        reached: |all| {
            let one = WRITE.with_usual_recv_buffer();
            all.beside_one(SOCKETS, one.with_qps(64), one)
        },
    },
    Goal {
        work: "the same, beside one with the receive buffer that a device asks for",
        goal: "≥ 0.9 ×",
        unit: TIMES,
        reached: |all| all.beside_one(SOCKETS, WRITE.with_qps(64).with_usual_recv_buffer(), WRITE),
    },
    Goal {
        work: "64 KiB WRITE, link, 64 queue pairs, packets sent again: `udp` / `packet` / `xdp`",
        goal: "< 0.1 %",
        unit: " %",
        reached: |all| BACKENDS.map(|who| all.again(WRITE.with_qps(64), who)).into(),
    },
    Goal {
        work: "the same, receive buffer 208 KiB: `udp` / `packet`",
        goal: "< 0.1 %",
        unit: " %",
        reached: |all| {
            let test = WRITE.with_qps(64).with_usual_recv_buffer();
            SOCKETS.map(|who| all.again(test, who)).into()
        },
    },
    Goal {
        work: "8 B SEND one way, link, beside raw UDP: `udp` / `packet` / `xdp`",
        goal: "≤ 1.2 ×",
        unit: TIMES,
        reached: |all| BACKENDS.map(|who| all.ratio(SHORT, who, "raw UDP")).into(),
    },
    Goal {
        work: "8 B SEND one way, link, beside UCX tcp: `udp` / `packet` / `xdp`",
        goal: "< 1 ×",
        unit: TIMES,
        reached: |all| BACKENDS.map(|who| all.ratio(SHORT, who, "UCX tcp")).into(),
    },
    Goal {
        work: "8 B WRITE / SEND rate, link, perftest",
        goal: "≥ 2 M/s",
        unit: " M/s",
        reached: |all| ["WRITE", "SEND"].map(|op| all.median(Test::rate(op), PERFTEST)).into(),
    },
    Goal {
        work: "the same, beside `rxe perf`",
        goal: "≥ 0.9 ×",
        unit: TIMES,
        reached: |all| all.ratios(["WRITE", "SEND"].map(Test::rate), PERFTEST, UDP),
    },
    Goal {
        work: "1 KiB packets without segmentation, `xdp` beside `packet`",
        goal: "≥ 1.5 ×",
        unit: TIMES,
        reached: |all| {
            vec![all.ratio(link("WRITE", 1024), "rxe xdp:driver", "rxe packet --no-gso")]
        },
    },
    Goal {
        work: "64 KiB WRITE / READ / SEND, one host",
        goal: "≥ 12 GB/s",
        unit: " GB/s",
        reached: |all| HOSTS.map(|op| all.median(host(op), SHM)).into(),
    },
    Goal {
        work: "the same, beside two copies",
        goal: "≥ 0.95 ×",
        unit: TIMES,
        reached: |all| all.ratios(HOSTS.map(host), SHM, "two copies"),
    },
    Goal {
        work: "the same, perftest beside `rxe perf`",
        goal: "≥ 0.95 ×",
        unit: TIMES,
        reached: |all| all.ratios(HOSTS.map(host), PERFTEST, SHM),
    },
    Goal {
        work: "8 B SEND one way, one host: `rxe perf` / perftest",
        goal: "≤ 0.35 µs",
        unit: " µs",
        reached: |all| [SHM, PERFTEST].map(|who| all.median(SHORT.on_one_host(), who)).into(),
    },
    Goal {
        work: "8 B WRITE / SEND rate, one host",
        goal: "≥ 8 M/s",
        unit: " M/s",
        reached: |all| {
            ["WRITE", "SEND"].map(|op| all.median(Test::rate(op).on_one_host(), SHM)).into()
        },
    },
    Goal {
        work: "8 B WRITE / SEND rate, one host, perftest",
        goal: "≥ 8 M/s",
        unit: " M/s",
        reached: |all| {
            ["WRITE", "SEND"].map(|op| all.median(Test::rate(op).on_one_host(), PERFTEST)).into()
        },
    },
    Goal {
        work: "8 B WRITE / SEND rate, one host, perftest beside `rxe perf`",
        goal: "≥ 0.85 ×",
        unit: TIMES,
        reached: |all| {
            let tests = ["WRITE", "SEND"].map(|op| Test::rate(op).on_one_host());
            all.ratios(tests, PERFTEST, SHM)
        },
    },
    Goal {
        work: "8 B SEND one way, one host, perftest beside `rxe perf`",
        goal: "≤ 1.15 ×",
        unit: TIMES,
        reached: |all| vec![all.ratio(SHORT.on_one_host(), PERFTEST, SHM)],
    },
    Goal {
        work: "`ib_write_lat -s 8`, average beside typical: link / one host",
        goal: "≤ 1.3 ×",
        unit: TIMES,
        reached: |all| POLLERS.map(|test| all.in_median(test, PERFTEST, |t| t.average)).into(),
    },
    Goal {
        work: "`ib_write_lat -s 8`, 99 % beside typical: link / one host",
        goal: "≤ 3 ×",
        unit: TIMES,
        reached: |all| POLLERS.map(|test| all.in_median(test, PERFTEST, |t| t.p99)).into(),
    },
    Goal {
        work: "`ib_write_lat -s 8`, one host, not bound to CPUs: average / 99 % beside typical",
        goal: "≤ 1.3 × / 3 ×",
        unit: TIMES,
        reached: |all| {
            let parts: [fn(Times) -> f64; 2] = [|times| times.average, |times| times.p99];
            let test = POLLERS[1].bound_or_not();
            parts.map(|part| all.in_median(test, UNBOUND_PERFTEST, part)).into()
        },
    },
    Goal {
        work: "64 KiB WRITE / SEND / READ in a VM, beside kernel rxe",
        goal: "≥ 1.5 × / 2 × / 1.5 ×",
        unit: TIMES,
        reached: |all| {
            all.ratios(["WRITE", "SEND", "READ"].map(|op| vm(link(op, 4096))), PERFTEST, KERNEL)
        },
    },
    Goal {
        work: "8 B WRITE / SEND one way in a VM, beside kernel rxe",
        goal: "≤ 1 ×",
        unit: TIMES,
        reached: |all| all.ratios([POLLERS[0], SHORT].map(vm), PERFTEST, KERNEL),
    },
    Goal {
        work: "8 B WRITE rate in a VM, beside kernel rxe",
        goal: "≥ 3 ×",
        unit: TIMES,
        reached: |all| vec![all.ratio(vm(Test::rate("WRITE")), PERFTEST, KERNEL)],
    },
    Goal {
        work: "0.1 % / 1 % of packets lost, beside kernel rxe",
        goal: "≥ 2 × / 3 ×",
        unit: TIMES,
        reached: |all| all.ratios([0.1, 1.0].map(lossy), PERFTEST, KERNEL),
    },
    Goal {
        work: "5 % of packets lost, beside none",
        goal: "≥ 0.3 ×",
        unit: TIMES,
        reached: |all| vec![all.quotient((lossy(5.0), PERFTEST), (lossy(0.0), PERFTEST))],
    },
];

/// The tables of a run. A figure is `None` if its test or its contender was left out or failed.
struct Results<'a>(&'a [Table]);

impl Results<'_> {
    fn find(&self, test: Test, contender: &str) -> Option<(&Table, usize)> {
        let table = self.0.iter().find(|table| table.is_of(test))?;
        Some((table, table.column(contender)?))
    }

    fn median(&self, test: Test, contender: &str) -> Option<f64> {
        let (table, at) = self.find(test, contender)?;
        table.median(at)
    }

    /// Returns the ratio of the two contenders' values, as the median of the rounds.
    fn ratio(&self, test: Test, ours: &str, theirs: &str) -> Option<f64> {
        let (table, ours) = self.find(test, ours)?;
        Some(table.times(ours, table.column(theirs)?)?.median)
    }

    fn ratios<const N: usize>(
        &self,
        tests: [Test; N],
        ours: &str,
        theirs: &str,
    ) -> Vec<Option<f64>> {
        tests.map(|test| self.ratio(test, ours, theirs)).into()
    }

    /// Returns the ratio of the medians of two tests, each by its contender.
    fn quotient(&self, (a, ours): (Test, &str), (b, theirs): (Test, &str)) -> Option<f64> {
        Some(self.median(a, ours)? / self.median(b, theirs)?)
    }

    /// Returns the ratios of each contender's median with many queue pairs to that with one.
    fn beside_one<const N: usize>(
        &self,
        who: [&str; N],
        many: Test,
        one: Test,
    ) -> Vec<Option<f64>> {
        who.map(|who| self.quotient((many, who), (one, who))).into()
    }

    /// Returns the range from the least to the greatest value, in percent of the median.
    /// `left_out` percent of the values are left out at either end.
    fn range(&self, test: Test, contender: &str, left_out: f64) -> Option<f64> {
        let (table, at) = self.find(test, contender)?;
        let percentile = |percent| table.percentile(at, percent);
        let range = percentile(100.0 - left_out)? - percentile(left_out)?;
        Some(range / percentile(50.0)? * 100.0)
    }

    /// Returns the packets that were retransmitted, in percent of those sent: the median of the
    /// rounds.
    fn again(&self, test: Test, contender: &str) -> Option<f64> {
        let (table, at) = self.find(test, contender)?;
        Some(table.spread(at, |sample| sample.again)?.median)
    }

    /// Returns the ratio of `of` in perftest's latencies to their median: the median of the rounds.
    fn in_median(&self, test: Test, contender: &str, of: fn(Times) -> f64) -> Option<f64> {
        let (table, at) = self.find(test, contender)?;
        Some(table.spread(at, |sample| Some(of(sample.times?) / sample.value))?.median)
    }
}

#[cfg(test)]
mod tests {
    use super::super::contender::{Sample, Times};
    use super::super::report::Round;
    use super::*;

    fn sample(value: f64) -> Sample {
        let times = Some(Times { average: 2.0 * value, p99: 5.0 * value, p999: 9.0 * value });
        Sample { value, times, ..Sample::default() }
    }

    #[test]
    fn a_goal_has_a_figure_for_each_work_and_a_dash_where_none_was_measured() {
        let mut send =
            Table::new(Test::latency("SEND", 8), vec!["rxe udp".into(), "raw UDP".into()]);
        send.push(Round(vec![Ok(sample(6.0)), Ok(sample(4.0))]));
        let host = Test::latency("WRITE", 8).on_one_host();
        let mut write = Table::new(host, vec!["perftest on rxe".into()]);
        write.push(Round(vec![Ok(sample(1.0))]));
        let mut unbound = Table::new(host.bound_or_not(), vec![UNBOUND_PERFTEST.into()]);
        unbound.push(Round(vec![Ok(sample(3.0))]));
        let text = markdown(&[send, write, unbound]);
        for row in [
            "8 B SEND one way, link, beside raw UDP: `udp` / `packet` / `xdp` | ≤ 1.2 × | 1.50 × / – / –",
            "`ib_write_lat -s 8`, average beside typical: link / one host | ≤ 1.3 × | – / 2.00 ×",
            "`ib_write_lat -s 8`, 99 % beside typical: link / one host | ≤ 3 × | – / 5.00 ×",
            "average / 99 % beside typical | ≤ 1.3 × / 3 × | 2.00 × / 5.00 ×",
        ] {
            assert!(text.contains(&format!("{row} |\n")), "{row} is not in {text}");
        }
    }

    #[test]
    fn many_queue_pairs_are_put_beside_one() {
        let small = WRITE.with_usual_recv_buffer();
        let tests =
            [(WRITE, 4.0), (WRITE.with_qps(64), 3.0), (small, 2.0), (small.with_qps(64), 1.0)];
        let text = markdown(&tests.map(|(test, value)| {
            let mut table = Table::new(test, vec![UDP.into()]);
            table.push(Round(vec![Ok(sample(value))]));
            table
        }));
        for figures in ["0.75 × / – / – / –", "0.50 × / –", "0.25 × / –"] {
            assert!(text.contains(&format!("| ≥ 0.9 × | {figures} |\n")), "{text}");
        }
    }

    #[test]
    fn a_range_is_of_all_runs_and_without_the_ends() {
        let mut table = Table::new(WRITE.bound_or_not(), vec![UNBOUND.into()]);
        for value in [1.0, 2.0, 1.6, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.1, 4.0] {
            table.push(Round(vec![Ok(sample(value))]));
        }
        let text = markdown(&[table]);
        for figures in ["150.0 % / – / –", "25.0 % / – / –"] {
            assert!(text.contains(&format!("| ≤ 15 % | {figures} |\n")), "{text}");
        }
    }

    #[test]
    fn packets_sent_again_are_told_of_each_receive_buffer() {
        let tables = [(WRITE, 9.0), (WRITE.with_usual_recv_buffer(), 0.25)].map(|(test, again)| {
            let mut table = Table::new(test.with_qps(64), vec![UDP.into()]);
            let again = Some(again);
            table.push(Round(vec![Ok(Sample { again, ..sample(2.0) })]));
            table
        });
        let text = markdown(&tables);
        for figures in ["9.00 % / – / –", "0.25 % / –"] {
            assert!(text.contains(&format!("| < 0.1 % | {figures} |\n")), "{text}");
        }
    }
}
