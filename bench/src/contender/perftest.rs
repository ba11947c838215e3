//! perftest, unmodified, under `rxe run`.

use super::{Read, Reading, Sample, Times, words};
use crate::link::{Link, ServerAndClient};
use crate::tests::{Kind, Place, Test};

const PORT: u16 = 18517;

/// Runs perftest once, for about a second. If `bound`, each process has its own CPU.
pub(super) fn run(rxe: &str, link: &Link, test: Test, bound: bool) -> Read {
    let server =
        words(&format!("{rxe} run --backend udp -- {}", command(test, messages(test), PORT)));
    let client = [&server[..], &[link.host()]].concat();
    let one_host = test.place == Place::Host;
    let ran = link.run(&ServerAndClient {
        port: PORT,
        one_host,
        bound,
        ..ServerAndClient::new(&server, &client)
    })?;
    let reading = read(&ran.text, test);
    Ok((ran, reading))
}

/// Returns the messages of each queue pair (`-n`) that are about a second of work.
fn messages(test: Test) -> u32 {
    // perftest has up to 128 messages outstanding, and requests every 100th completion.
    const LEAST: u32 = 128;
    // On one host a second's worth over the link takes less than a tenth of a second, so the slow
    // first messages would count too much.
    let times = if test.place == Place::Host { 8 } else { 1 };
    match test.kind {
        Kind::Latency => test.messages().min(20_000),
        _ => (test.messages() * times / test.qps).max(LEAST),
    }
}

/// Returns the program and its options, without the server's address.
pub(crate) fn command(test: Test, messages: u32, port: u16) -> String {
    let kind = if test.kind == Kind::Latency { "lat" } else { "bw" };
    let Test { bytes, mtu, qps, .. } = test;
    let many = if qps > 1 { format!(" -q {qps}") } else { String::new() };
    let op = test.op.to_lowercase();
    format!("ib_{op}_{kind} -F -s {bytes} -n {messages} -m {mtu} -p {port}{many}")
}

/// Returns the result in perftest's output.
/// Returns `None` also for a value of 0, which perftest prints if the clock with which it counts
/// cycles has jumped.
pub(crate) fn sample(text: &str, test: Test) -> Option<Sample> {
    let Reading { value, times, .. } = read(text, test)?;
    (value > 0.0).then_some(Sample { value, times, ..Sample::default() })
}

/// Reads the line that begins with the size.
/// Then follow the iterations; and for bandwidth, peak and average in MiB/s and the rate in M/s; or
/// for latency, the least, greatest, typical and average time, the deviation, and the 99th and
/// 99.9th percentiles.
fn read(text: &str, test: Test) -> Option<Reading> {
    let [iterations, rest @ ..] = &row(text, test.bytes)?[..] else { return None };
    let bytes = iterations * f64::from(test.bytes);
    match (test.kind, rest) {
        (Kind::Latency, &[_, _, typical, average, _, p99, p999, ..]) => {
            let times = Some(Times { average, p99, p999 });
            Some(Reading { value: typical, bytes, times, again: None })
        }
        (Kind::Bandwidth, &[_, average, ..]) => {
            let value = average * f64::from(1 << 20) / 1e9;
            Some(Reading { value, bytes, ..Reading::default() })
        }
        (Kind::Rate, &[_, _, rate, ..]) => {
            Some(Reading { value: rate, bytes, ..Reading::default() })
        }
        _ => None,
    }
}

/// Returns the numbers that follow the size.
fn row(text: &str, bytes: u32) -> Option<Vec<f64>> {
    text.lines().find_map(|line| {
        let mut fields = line.split_whitespace().map_while(|f| f.parse::<f64>().ok());
        (fields.next()? == f64::from(bytes)).then(|| fields.collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints_is_understood() {
        let bw = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n\
                   65536      5000             2621.44            2500.00            0.040000\n";
        let test = Test::bandwidth("WRITE", 65536, 1024);
        assert!((read(bw, test).unwrap().value - 2.62144).abs() < 1e-9);
        let lat = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n\
                    8       1000          1.20           9.00         1.44     \t       1.50        \t0.30   \t\t2.10    \t\t9.00 \n";
        let read = read(lat, Test::latency("WRITE", 8)).unwrap();
        let times = Times { average: 1.5, p99: 2.1, p999: 9.0 };
        assert_eq!((read.value, read.times), (1.44, Some(times)));
    }
}
