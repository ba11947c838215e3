//! The contenders: the programs that are measured.

mod copies;
mod iperf;
mod libfabric;
pub(super) mod perftest;
mod raw;
mod rxe;
mod ucx;

use std::process::{Command, Stdio};

use rxe_harness::vm::bpf_is_permitted;

use copies::Copies;

use super::link::{Link, RunResult};
use super::tests::{Kind, Place, Test};
use super::versions::{Version, example};

/// A program, with the way in which it moves bytes.
pub(super) struct Contender {
    method: Method,
    /// The path of our own program.
    rxe: String,
    /// Which of two compared versions this is, if versions are compared.
    version: Option<Version>,
}

#[derive(Clone, Copy, PartialEq)]
enum Method {
    /// `rxe perf` with this backend and further options.
    /// `shm` is between two processes on one host.
    Rxe(&'static str),
    /// `rxe perf` over endpoints of layer 2 on the link, each with its own MAC address.
    Layer2,
    /// `rxe perf` over UDP sockets, with both processes on CPUs that the kernel chooses.
    Unbound,
    /// perftest, unmodified, under `rxe run`.
    Perftest,
    /// perftest under `rxe run`, with both processes on CPUs that the kernel chooses.
    UnboundPerftest,
    /// `ucx_perftest` over this transport.
    Ucx(&'static str),
    /// `fi_pingpong` over libfabric's reliable datagrams over UDP.
    Libfabric,
    /// `iperf3`, one TCP connection.
    Iperf,
    /// Only UDP sockets, with the kernel's segmentation (GSO) or without.
    Udp { gso: bool },
    /// Only copies between two processes on one host.
    Copies(Copies),
}

/// The result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// The value, in the test's unit.
    pub(super) value: f64,
    /// The CPU time of both ends per gigabyte, in seconds. Only for bandwidth.
    pub(super) cpu_per_gb: Option<f64>,
    /// The distribution of latencies, if the program reports it. Only for latency.
    pub(super) times: Option<Times>,
    /// The packets that were retransmitted, in percent of those sent.
    /// Only for the bandwidth of `rxe perf`.
    pub(super) again: Option<f64>,
}

/// Figures of a latency distribution besides the median, in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) average: f64,
    /// The 99th percentile.
    pub(super) p99: f64,
    /// The 99.9th percentile.
    pub(super) p999: f64,
}

/// The result of a run, or why it failed.
pub(super) type Measured = Result<Sample, String>;

/// The figures in a program's output.
#[derive(Default)]
struct Reading {
    /// The value, in the test's unit.
    value: f64,
    /// Bytes moved in the whole run.
    bytes: f64,
    times: Option<Times>,
    /// The retransmitted packets, as in [`Sample`].
    again: Option<f64>,
}

impl Contender {
    /// Returns all contenders, ours first.
    pub(super) fn all(rxe: &str) -> Vec<Self> {
        let all = [
            Method::Rxe("udp"),
            Method::Rxe("packet"),
            Method::Rxe("xdp:driver"),
            Method::Rxe("xdp:generic"),
            Method::Rxe("udp --no-gso"),
            Method::Rxe("packet --no-gso"),
            Method::Layer2,
            Method::Unbound,
            Method::Rxe("shm"),
            Method::Perftest,
            Method::UnboundPerftest,
            Method::Ucx("tcp"),
            Method::Ucx("posix"),
            Method::Libfabric,
            Method::Iperf,
            Method::Udp { gso: true },
            Method::Udp { gso: false },
            Method::Copies(Copies::Two),
            Method::Copies(Copies::Mapped),
        ];
        let made = |method| Self { method, rxe: rxe.to_owned(), version: None };
        all.into_iter().map(made).collect()
    }

    /// Returns two versions of our program on the same backend, the later one first.
    pub(super) fn versions(before: &str, after: &str, backend: &'static str) -> Vec<Self> {
        let of = |rxe: &str, version| Self {
            method: Method::Rxe(backend),
            rxe: rxe.to_owned(),
            version: Some(version),
        };
        vec![of(after, Version::After), of(before, Version::Before)]
    }

    pub(super) fn name(&self) -> String {
        let name = match self.method {
            Method::Rxe(backend) => format!("rxe {backend}"),
            Method::Layer2 => "rxe l2 if".into(),
            Method::Unbound => "rxe udp, not bound".into(),
            Method::Perftest => "perftest on rxe".into(),
            Method::UnboundPerftest => "perftest on rxe, not bound".into(),
            Method::Ucx(transport) => format!("UCX {transport}"),
            Method::Libfabric => "libfabric udp;ofi_rxd".into(),
            Method::Iperf => "iperf3 TCP".into(),
            Method::Udp { gso: true } => "raw UDP, GSO".into(),
            Method::Udp { gso: false } => "raw UDP".into(),
            Method::Copies(copies) => copies.name().into(),
        };
        match self.version {
            None => name,
            Some(Version::Before) => format!("{name}, before"),
            Some(Version::After) => format!("{name}, after"),
        }
    }

    pub(super) fn is_perftest(&self) -> bool {
        self.method == Method::Perftest
    }

    /// Returns whether the program is a stream, on which message sizes have no effect.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.method, Method::Iperf | Method::Udp { .. })
    }

    /// Returns whether the contender's program is installed and permitted.
    pub(super) fn is_there(&self) -> bool {
        let program = match self.method {
            Method::Rxe(backend) if backend.starts_with("xdp") => return bpf_is_permitted(),
            Method::Rxe(_)
            | Method::Layer2
            | Method::Unbound
            | Method::Udp { .. }
            | Method::Copies(_) => {
                return true;
            }
            Method::Perftest | Method::UnboundPerftest => "ib_write_bw",
            Method::Ucx(_) => "ucx_perftest",
            Method::Libfabric => "fi_pingpong",
            Method::Iperf => "iperf3",
        };
        is_installed(program)
    }

    /// Returns advice on what to install.
    pub(super) fn missing_package(&self) -> &'static str {
        match self.method {
            Method::Rxe(_) => "run this as root, outside of any user namespace: it needs CAP_BPF",
            Method::Layer2 | Method::Unbound | Method::Udp { .. } | Method::Copies(_) => "",
            Method::Perftest | Method::UnboundPerftest => "install perftest",
            Method::Ucx(_) => "install ucx-utils",
            Method::Libfabric => "install libfabric-bin",
            Method::Iperf => "install iperf3",
        }
    }

    /// Returns whether the contender supports a test.
    pub(super) fn supports(&self, test: Test) -> bool {
        let on_link = test.place == Place::Link;
        let single = test.qps == 1;
        if test.unbound {
            // Only contenders that run with and without binding are compared.
            let perf = matches!(self.method, Method::Rxe("udp") | Method::Unbound);
            let perftest = matches!(self.method, Method::Perftest | Method::UnboundPerftest);
            // Bandwidth is compared with `rxe perf`, and latency with perftest, which polls memory.
            let fits = if test.kind == Kind::Latency { perftest } else { perf };
            return self.version.is_none() && fits;
        }
        if test.recv_buffer.is_some() {
            // Backend `xdp` receives through rings. Other programs have no option for the buffer,
            // and an older version may not have it.
            return on_link
                && self.version.is_none()
                && matches!(self.method, Method::Rxe("udp" | "packet"));
        }
        match (self.method, test.kind) {
            (Method::Rxe("shm"), _) => !on_link,
            (Method::Rxe("udp" | "packet" | "xdp:driver"), _) => on_link,
            // The other backends run without segmentation.
            (Method::Rxe(_), Kind::Bandwidth) => {
                on_link && single && test.op == "WRITE" && test.mtu == 1024
            }
            (Method::Rxe(backend), _) => on_link && backend == "xdp:generic" && test.bytes == 8,
            (Method::Layer2, Kind::Bandwidth) => {
                on_link && single && test.op == "WRITE" && test.bytes == 65536
            }
            (Method::Layer2, Kind::Latency) => on_link && test.bytes == 8,
            (Method::Layer2, Kind::Rate) => false,
            (Method::Unbound | Method::UnboundPerftest, _) => false,
            (Method::Perftest, _) => true,
            // READ of UCX has only one outstanding request, so its bandwidth is not comparable.
            (Method::Ucx(_), Kind::Bandwidth) if test.op == "READ" => false,
            (Method::Ucx(transport), _) => single && on_link == (transport == "tcp"),
            // Debian's only benchmark for libfabric is a ping-pong.
            (Method::Libfabric, Kind::Latency) => on_link && test.op == "SEND",
            (Method::Libfabric, _) => false,
            // iperf3 streams bytes, so it is compared with the most similar operation.
            (Method::Iperf, kind) => {
                on_link && single && kind == Kind::Bandwidth && test.op == "SEND"
            }
            // Raw UDP sends packets, not messages, so one size is enough.
            (Method::Udp { gso }, Kind::Bandwidth) => {
                on_link && single && test.bytes == 65536 && (gso || test.op == "WRITE")
            }
            (Method::Udp { gso }, Kind::Latency) => on_link && !gso && test.bytes <= test.mtu,
            (Method::Copies(Copies::Two), Kind::Bandwidth) => !on_link && single,
            (Method::Copies(_), Kind::Bandwidth) => !on_link && single && test.op == "WRITE",
            (Method::Copies(method), Kind::Latency) => {
                !on_link && test.bytes == 8 && method == Copies::Two
            }
            (Method::Udp { .. } | Method::Copies(_), Kind::Rate) => false,
        }
    }

    /// Runs the contender once.
    pub(super) fn measure(&self, link: &Link, test: Test, quick: bool) -> Measured {
        let (ran, read) = match self.method {
            Method::Rxe(backend) => rxe::run(&self.rxe, link, test, backend, true)?,
            Method::Layer2 => rxe::run_layer2(&self.rxe, link, test)?,
            Method::Unbound => rxe::run(&self.rxe, link, test, "udp", false)?,
            Method::Perftest => perftest::run(&self.rxe, link, test, true)?,
            Method::UnboundPerftest => perftest::run(&self.rxe, link, test, false)?,
            Method::Ucx(transport) => ucx::run(link, test, transport, quick)?,
            Method::Libfabric => libfabric::run(link, test, quick)?,
            Method::Iperf => iperf::run(link)?,
            Method::Udp { gso } => raw::run(&example(&self.rxe, "raw_udp"), link, test, gso)?,
            Method::Copies(method) => {
                copies::run(&example(&self.rxe, "copies"), link, test, method)?
            }
        };
        let reading = read.ok_or_else(|| format!("not understood: {}", ran.text))?;
        let cpu = ran.cpu.as_secs_f64() * 1e9 / reading.bytes;
        Ok(Sample {
            value: reading.value,
            cpu_per_gb: (test.kind == Kind::Bandwidth && cpu.is_finite()).then_some(cpu),
            times: reading.times,
            again: reading.again,
        })
    }
}

/// Returns whether there is a program of this name.
pub(super) fn is_installed(program: &str) -> bool {
    let mut cmd = Command::new(program);
    cmd.arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    cmd.status().is_ok()
}

/// The run of a program, and the figures in its output.
type Read = Result<(RunResult, Option<Reading>), String>;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the contenders of a report that support this test.
    fn able(test: Test) -> Vec<String> {
        let all = Contender::all("rxe").into_iter();
        all.filter(|c| c.supports(test)).map(|c| c.name()).collect()
    }

    #[test]
    fn who_is_not_bound_stands_beside_who_is_bound() {
        let test = Test::bandwidth("WRITE", 65536, 4096);
        assert_eq!(able(test.bound_or_not()), ["rxe udp", "rxe udp, not bound"]);
        let latency = Test::latency("WRITE", 8).on_one_host();
        assert_eq!(able(latency.bound_or_not()), ["perftest on rxe", "perftest on rxe, not bound"]);
        let is_unbound = |name: &String| name.ends_with("not bound");
        assert!(![able(test), able(latency)].concat().iter().any(is_unbound));
    }

    #[test]
    fn a_receive_buffer_is_for_those_who_have_the_option_and_a_socket() {
        let test = Test::bandwidth("WRITE", 65536, 4096).with_qps(64).with_usual_recv_buffer();
        assert_eq!(able(test), ["rxe udp", "rxe packet"]);
        assert!(!Contender::versions("old", "rxe", "udp").iter().any(|c| c.supports(test)));
    }
}
