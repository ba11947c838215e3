//! The contenders: the programs to measure.

mod copies;
mod iperf;
mod libfabric;
pub(super) mod perftest;
mod raw;
mod rxe;
mod ucx;

use std::process::{Command, Stdio};

use xtask::vm::bpf_is_permitted;

use super::link::{Link, Ran};
use super::tests::{Kind, Place, Test};
use super::versions::{Version, example};

/// One way to move bytes.
pub(super) struct Contender {
    how: How,
    /// Our own program.
    rxe: String,
    /// The version, if two versions are compared.
    version: Option<Version>,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// `rxe perf` with this backend (and further options), or between two processes on one host.
    Rxe(&'static str),
    /// perftest, unmodified, under `rxe run`.
    Perftest,
    /// `ucx_perftest` over this transport.
    Ucx(&'static str),
    /// `fi_pingpong` over libfabric's reliable datagrams over UDP.
    Libfabric,
    /// `iperf3`, one TCP connection.
    Iperf,
    /// Nothing but UDP sockets; with the system's segmentation or without.
    Udp { gso: bool },
    /// Nothing but the ring in shared memory that packets take on one host.
    Copies,
}

/// What one run gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// In the test's unit.
    pub(super) value: f64,
    /// CPU time of both ends for a gigabyte, in seconds; only for bandwidth.
    pub(super) cpu_per_gb: Option<f64>,
    /// The 99.9th percentile in µs, where the program tells it; only for latency.
    pub(super) tail: Option<f64>,
}

pub(super) type Measured = Result<Sample, String>;

/// What a program's output says.
struct Reading {
    /// In the test's unit.
    value: f64,
    /// Bytes moved in the whole run.
    bytes: f64,
    tail: Option<f64>,
}

impl Contender {
    /// All there may be: first our own.
    pub(super) fn all(rxe: &str) -> Vec<Self> {
        let all = [
            How::Rxe("udp"),
            How::Rxe("packet"),
            How::Rxe("xdp:driver"),
            How::Rxe("xdp:generic"),
            How::Rxe("udp --no-gso"),
            How::Rxe("packet --no-gso"),
            How::Rxe("shm"),
            How::Perftest,
            How::Ucx("tcp"),
            How::Ucx("posix"),
            How::Libfabric,
            How::Iperf,
            How::Udp { gso: true },
            How::Udp { gso: false },
            How::Copies,
        ];
        let made = |how| Self { how, rxe: rxe.to_owned(), version: None };
        all.into_iter().map(made).collect()
    }

    /// Two versions of our own program, on the same backend: first the later one.
    pub(super) fn versions(before: &str, after: &str, backend: &'static str) -> Vec<Self> {
        let of = |rxe: &str, version| Self {
            how: How::Rxe(backend),
            rxe: rxe.to_owned(),
            version: Some(version),
        };
        vec![of(after, Version::After), of(before, Version::Before)]
    }

    pub(super) fn name(&self) -> String {
        let name = match self.how {
            How::Rxe(backend) => format!("rxe {backend}"),
            How::Perftest => "perftest on rxe".into(),
            How::Ucx(transport) => format!("UCX {transport}"),
            How::Libfabric => "libfabric udp;ofi_rxd".into(),
            How::Iperf => "iperf3 TCP".into(),
            How::Udp { gso: true } => "raw UDP, GSO".into(),
            How::Udp { gso: false } => "raw UDP".into(),
            How::Copies => "two copies".into(),
        };
        match self.version {
            None => name,
            Some(Version::Before) => format!("{name}, before"),
            Some(Version::After) => format!("{name}, after"),
        }
    }

    /// Whether its program is installed.
    pub(super) fn is_there(&self) -> bool {
        let program = match self.how {
            How::Rxe(backend) if backend.starts_with("xdp") => return bpf_is_permitted(),
            How::Rxe(_) | How::Udp { .. } | How::Copies => return true,
            How::Perftest => "ib_write_bw",
            How::Ucx(_) => "ucx_perftest",
            How::Libfabric => "fi_pingpong",
            How::Iperf => "iperf3",
        };
        let mut cmd = Command::new(program);
        cmd.arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        cmd.status().is_ok()
    }

    /// What to install.
    pub(super) fn lacks(&self) -> &'static str {
        match self.how {
            How::Rxe(_) => "run this as root, outside of any user namespace: it needs CAP_BPF",
            How::Udp { .. } | How::Copies => "",
            How::Perftest => "install perftest",
            How::Ucx(_) => "install ucx-utils",
            How::Libfabric => "install libfabric-bin",
            How::Iperf => "install iperf3",
        }
    }

    /// Whether its program has such a test.
    pub(super) fn can(&self, test: Test) -> bool {
        let on_link = test.place == Place::Link;
        let single = test.qps == 1;
        match (self.how, test.kind) {
            (How::Rxe("shm"), _) => !on_link,
            (How::Rxe("udp" | "packet" | "xdp:driver"), _) => on_link,
            // Where the system cannot segment.
            (How::Rxe(_), Kind::Bandwidth) => {
                on_link && single && test.op == "WRITE" && test.mtu == 1024
            }
            (How::Rxe(backend), _) => on_link && backend == "xdp:generic" && test.bytes == 8,
            (How::Perftest, _) => true,
            // Its READ has only one outstanding request, so its bandwidth is not comparable.
            (How::Ucx(_), Kind::Bandwidth) if test.op == "READ" => false,
            (How::Ucx(transport), _) => single && on_link == (transport == "tcp"),
            // Debian's only program for libfabric is a ping-pong.
            (How::Libfabric, Kind::Latency) => on_link && test.op == "SEND",
            (How::Libfabric, _) => false,
            // A stream of bytes, beside the operation that is most like it.
            (How::Iperf, kind) => on_link && single && kind == Kind::Bandwidth && test.op == "SEND",
            // It knows packets, not messages: one size is all.
            (How::Udp { gso }, Kind::Bandwidth) => {
                on_link && single && test.bytes == 65536 && (gso || test.op == "WRITE")
            }
            (How::Udp { gso }, Kind::Latency) => on_link && !gso && test.bytes <= test.mtu,
            (How::Copies, Kind::Bandwidth) => !on_link && single && test.op == "WRITE",
            (How::Copies, Kind::Latency) => !on_link && test.bytes == 8,
            (How::Udp { .. } | How::Copies, Kind::Rate) => false,
        }
    }

    /// One run.
    pub(super) fn measure(&self, link: &Link, test: Test, quick: bool) -> Measured {
        let (ran, read) = match self.how {
            How::Rxe(backend) => rxe::run(&self.rxe, link, test, backend)?,
            How::Perftest => perftest::run(&self.rxe, link, test)?,
            How::Ucx(transport) => ucx::run(link, test, transport, quick)?,
            How::Libfabric => libfabric::run(link, test, quick)?,
            How::Iperf => iperf::run(link)?,
            How::Udp { gso } => raw::run(&example(&self.rxe, "raw_udp"), link, test, gso)?,
            How::Copies => copies::run(&example(&self.rxe, "copies"), link, test)?,
        };
        let reading = read.ok_or_else(|| format!("not understood: {}", ran.text))?;
        let cpu = ran.cpu.as_secs_f64() * 1e9 / reading.bytes;
        Ok(Sample {
            value: reading.value,
            cpu_per_gb: (test.kind == Kind::Bandwidth && cpu.is_finite()).then_some(cpu),
            tail: reading.tail,
        })
    }
}

/// What was run, and what its output says.
type Read = Result<(Ran, Option<Reading>), String>;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}
