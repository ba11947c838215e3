//! The goals of this project, beside what a run has reached.

use std::fmt::Write;

use super::report::Table;
use super::tests::{Place, Test};

/// A goal. Works that a name lists with slashes have a figure each.
struct Goal {
    work: &'static str,
    goal: &'static str,
    unit: &'static str,
    reached: Vec<Option<f64>>,
}

const TIMES: &str = " ×";

/// All goals as a table.
pub(super) fn markdown(tables: &[Table]) -> String {
    let mut out = "| work | goal | reached |\n| --- | --- | --- |\n".to_owned();
    for Goal { work, goal, unit, reached } in goals(&Results(tables)) {
        let one =
            |value: &Option<f64>| value.map_or("–".into(), |v| format!("{}{unit}", digits(v)));
        let all: Vec<_> = reached.iter().map(one).collect();
        // Writing to a string does not fail.
        let _ = writeln!(out, "| {work} | {goal} | {} |", all.join(" / "));
    }
    out
}

fn digits(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") }
}

fn goals(all: &Results<'_>) -> Vec<Goal> {
    let link = |op, mtu| Test::bandwidth(op, 65536, mtu);
    let host = |op| link(op, 4096).on_one_host();
    let vm = |op| Test { place: Place::Vm, ..link(op, 4096) };
    let lossy = |loss| Test { loss, ..vm("WRITE") };
    let (udp, shm, perftest) = ("rxe udp", "rxe shm", "perftest on rxe");
    let backends = [udp, "rxe packet", "rxe xdp:driver"];
    let short = Test::latency("SEND", 8);
    let host_rate = |op| Test::rate(op).on_one_host();
    let latency = Test::latency("WRITE", 8);
    let in_vm = |test: Test| all.ratio(Test { place: Place::Vm, ..test }, perftest, KERNEL);
    let hosts = ["WRITE", "READ", "SEND"].map(host);
    let one = |work, goal, reached: Vec<Option<f64>>| Goal { work, goal, unit: TIMES, reached };
    let per = |values: &[Test], ours, theirs| {
        values.iter().map(|test| all.ratio(*test, ours, theirs)).collect::<Vec<_>>()
    };
    let mtus = |op| [1024, 4096].map(|mtu| link(op, mtu));
    let write = link("WRITE", 4096);
    let many = write.with_qps(64);
    vec![
        one(WORKS[0], "≥ 0.8 ×", per(&mtus("WRITE"), udp, "raw UDP, GSO")),
        one(WORKS[1], "≥ 1.5 × / 2 ×", per(&mtus("SEND"), udp, "UCX tcp")),
        one(
            WORKS[2],
            "≥ 0.9 ×",
            [1024, 4096]
                .map(|mtu| {
                    Some(
                        all.median(link("READ", mtu), udp)?
                            / all.median(link("WRITE", mtu), udp)?,
                    )
                })
                .to_vec(),
        ),
        one(WORKS[3], "≥ 0.85 ×", vec![all.ratio(write, "rxe udp, not bound", udp)]),
        Goal {
            work: WORKS[4],
            goal: "≤ 15 %",
            unit: " %",
            reached: vec![all.range(write, "rxe udp, not bound")],
        },
        one(
            WORKS[5],
            "≥ 0.9 ×",
            [udp, perftest]
                .map(|who| Some(all.median(many, who)? / all.median(write, who)?))
                .to_vec(),
        ),
        one(WORKS[6], "≤ 1.2 ×", backends.map(|who| all.ratio(short, who, "raw UDP")).to_vec()),
        one(WORKS[7], "< 1 ×", backends.map(|who| all.ratio(short, who, "UCX tcp")).to_vec()),
        Goal {
            work: WORKS[8],
            goal: "≥ 2 M/s",
            unit: " M/s",
            reached: ["WRITE", "SEND"].map(|op| all.median(Test::rate(op), perftest)).to_vec(),
        },
        one(WORKS[9], "≥ 0.9 ×", per(&["WRITE", "SEND"].map(Test::rate), perftest, udp)),
        one(
            WORKS[10],
            "≥ 1.5 ×",
            vec![all.ratio(link("WRITE", 1024), "rxe xdp:driver", "rxe packet --no-gso")],
        ),
        Goal {
            work: WORKS[11],
            goal: "≥ 12 GB/s",
            unit: " GB/s",
            reached: hosts.map(|test| all.median(test, shm)).to_vec(),
        },
        one(WORKS[12], "≥ 0.95 ×", per(&hosts, shm, "two copies")),
        one(WORKS[13], "≥ 0.95 ×", per(&hosts, perftest, shm)),
        Goal {
            work: WORKS[14],
            goal: "≤ 0.35 µs",
            unit: " µs",
            reached: [shm, perftest].map(|who| all.median(short.on_one_host(), who)).to_vec(),
        },
        Goal {
            work: WORKS[15],
            goal: "≥ 8 M/s",
            unit: " M/s",
            reached: [shm, perftest].map(|who| all.median(host_rate("SEND"), who)).to_vec(),
        },
        one(WORKS[16], "≥ 0.85 ×", vec![all.ratio(host_rate("WRITE"), perftest, shm)]),
        one(
            WORKS[17],
            "≤ 1.3 ×",
            [latency, latency.on_one_host()]
                .map(|test| all.in_median(test, perftest, |times| times.average))
                .to_vec(),
        ),
        one(
            WORKS[18],
            "≤ 3 ×",
            [latency, latency.on_one_host()]
                .map(|test| all.in_median(test, perftest, |times| times.p99))
                .to_vec(),
        ),
        one(
            WORKS[19],
            "≥ 1.5 × / 2 × / 1.5 ×",
            ["WRITE", "SEND", "READ"].map(|op| in_vm(vm(op))).to_vec(),
        ),
        one(WORKS[20], "≤ 1 ×", vec![in_vm(latency)]),
        one(WORKS[21], "≥ 3 ×", vec![in_vm(Test::rate("WRITE"))]),
        one(WORKS[22], "≥ 2 × / 3 ×", vec![in_vm(lossy(0.1)), in_vm(lossy(1.0))]),
        one(
            WORKS[23],
            "≥ 0.3 ×",
            vec![
                all.median(lossy(5.0), perftest)
                    .zip(all.median(vm("WRITE"), perftest))
                    .map(|(lossy, clean)| lossy / clean),
            ],
        ),
    ]
}

const KERNEL: &str = "perftest on kernel rxe";

const WORKS: [&str; 24] = [
    "64 KiB WRITE, link MTU 1500 / 4200, beside raw UDP with GSO",
    "64 KiB SEND, link MTU 1500 / 4200, beside UCX tcp",
    "64 KiB READ, link MTU 1500 / 4200, beside WRITE",
    "64 KiB WRITE, link, not bound to CPUs, beside bound",
    "the same, range from round to round",
    "64 KiB WRITE, link, 64 queue pairs beside one: `rxe perf` / perftest",
    "8 B SEND one way, link, beside raw UDP: `udp` / `packet` / `xdp`",
    "8 B SEND one way, link, beside UCX tcp: `udp` / `packet` / `xdp`",
    "8 B WRITE / SEND rate, link, perftest",
    "the same, beside `rxe perf`",
    "1 KiB packets without segmentation, `xdp` beside `packet`",
    "64 KiB WRITE / READ / SEND, one host",
    "the same, beside two copies",
    "the same, perftest beside `rxe perf`",
    "8 B SEND one way, one host: `rxe perf` / perftest",
    "8 B SEND rate, one host: `rxe perf` / perftest",
    "8 B WRITE rate, one host, perftest beside `rxe perf`",
    "`ib_write_lat -s 8`, average beside typical: link / one host",
    "`ib_write_lat -s 8`, 99 % beside typical: link / one host",
    "64 KiB WRITE / SEND / READ in a VM, beside kernel rxe",
    "8 B WRITE one way in a VM, beside kernel rxe",
    "8 B WRITE rate in a VM, beside kernel rxe",
    "0.1 % / 1 % of packets lost, beside kernel rxe",
    "5 % of packets lost, beside none lost",
];

/// The tables of a run. A figure is missing if its test or its contender was left out or failed.
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

    /// How many times another's value a contender's is: the median of the rounds.
    fn ratio(&self, test: Test, ours: &str, theirs: &str) -> Option<f64> {
        let (table, ours) = self.find(test, ours)?;
        table.times(ours, table.column(theirs)?)
    }

    /// From the least to the greatest value, in percent of the median.
    fn range(&self, test: Test, contender: &str) -> Option<f64> {
        let (table, at) = self.find(test, contender)?;
        let values = table.values(at)?;
        Some((values.max - values.min) / values.median * 100.0)
    }

    /// A part of a latency's distribution in medians of it: the median of the rounds.
    fn in_median(
        &self,
        test: Test,
        contender: &str,
        of: fn(super::contender::Times) -> f64,
    ) -> Option<f64> {
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
        Sample { value, cpu_per_gb: None, times }
    }

    #[test]
    fn a_goal_has_a_figure_for_each_work_and_a_dash_where_none_was_measured() {
        let mut send =
            Table::new(Test::latency("SEND", 8), vec!["rxe udp".into(), "raw UDP".into()]);
        send.push(Round(vec![Ok(sample(6.0)), Ok(sample(4.0))]));
        let host = Test::latency("WRITE", 8).on_one_host();
        let mut write = Table::new(host, vec!["perftest on rxe".into()]);
        write.push(Round(vec![Ok(sample(1.0))]));
        let text = markdown(&[send, write]);
        assert!(text.contains(&format!("| {} | ≤ 1.2 × | 1.50 × / – / – |\n", WORKS[6])), "{text}");
        assert!(text.contains(&format!("| {} | ≤ 1.3 × | – / 2.00 × |\n", WORKS[17])), "{text}");
        assert!(text.contains(&format!("| {} | ≤ 3 × | – / 5.00 × |\n", WORKS[18])), "{text}");
    }

    #[test]
    fn every_goal_is_named() {
        let named: Vec<_> = goals(&Results(&[])).iter().map(|goal| goal.work).collect();
        assert_eq!(named, WORKS);
    }
}
