//! The contenders: the programs to measure, and how to read their output.

use std::fmt;
use std::process::{Command, Stdio};

use super::link::Link;
use super::versions::Version;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Test {
    pub(super) op: &'static str,
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    /// RoCE's path MTU; the link's follows from it, for all contenders.
    pub(super) mtu: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// In GB/s: more is better.
    Bandwidth,
    /// One way, in µs: less is better.
    Latency,
}

impl Test {
    pub(super) const fn bandwidth(op: &'static str, bytes: u32, mtu: u32) -> Self {
        Self { op, kind: Kind::Bandwidth, bytes, mtu }
    }

    pub(super) const fn latency(op: &'static str, bytes: u32) -> Self {
        Self { op, kind: Kind::Latency, bytes, mtu: 1024 }
    }

    /// Ethernet's usual MTU, or enough for path MTU 4096.
    pub(super) const fn link_mtu(self) -> u32 {
        if self.mtu > 1024 { 4200 } else { 1500 }
    }

    pub(super) const fn unit(self) -> &'static str {
        match self.kind {
            Kind::Bandwidth => "GB/s",
            Kind::Latency => "us",
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.bytes {
            b if b >= 1 << 20 => format!("{} MiB", b >> 20),
            b if b >= 1 << 10 => format!("{} KiB", b >> 10),
            b => format!("{b} B"),
        };
        match self.kind {
            Kind::Bandwidth => {
                write!(f, "{size} {} bandwidth, link MTU {}", self.op, self.link_mtu())
            }
            Kind::Latency => write!(f, "{size} {} latency, one way", self.op),
        }
    }
}

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
    /// `rxe perf` with this backend.
    Rxe(&'static str),
    /// `ucx_perftest` over TCP.
    Ucx,
    /// `fi_pingpong` over libfabric's reliable datagrams over UDP.
    Libfabric,
}

type Measured = Result<f64, String>;

impl Contender {
    /// All there may be: first our own.
    pub(super) fn all(rxe: &str) -> Vec<Self> {
        let all = [How::Rxe("udp"), How::Rxe("packet"), How::Ucx, How::Libfabric];
        all.into_iter().map(|how| Self { how, rxe: rxe.to_owned(), version: None }).collect()
    }

    /// Two versions of our own program, on the same backend.
    pub(super) fn versions(before: &str, after: &str, backend: &'static str) -> Vec<Self> {
        let of = |rxe: &str, version| Self {
            how: How::Rxe(backend),
            rxe: rxe.to_owned(),
            version: Some(version),
        };
        vec![of(before, Version::Before), of(after, Version::After)]
    }

    pub(super) fn name(&self) -> String {
        let name = match self.how {
            How::Rxe("packet") => "rxe packet",
            How::Rxe(_) => "rxe udp",
            How::Ucx => "UCX tcp",
            How::Libfabric => "libfabric udp;ofi_rxd",
        };
        match self.version {
            None => name.into(),
            Some(Version::Before) => format!("{name}, before"),
            Some(Version::After) => format!("{name}, after"),
        }
    }

    /// Whether it is ours, to be compared with the others.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.how, How::Rxe(_)) && self.version != Some(Version::Before)
    }

    /// Whether its program is installed.
    pub(super) fn is_there(&self) -> bool {
        let program = match self.how {
            How::Rxe(_) => return true,
            How::Ucx => "ucx_perftest",
            How::Libfabric => "fi_pingpong",
        };
        let mut cmd = Command::new(program);
        cmd.arg("-h").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        cmd.status().is_ok()
    }

    /// What to install.
    pub(super) fn lacks(&self) -> &'static str {
        match self.how {
            How::Rxe(_) => "",
            How::Ucx => "install ucx-utils",
            How::Libfabric => "install libfabric-bin",
        }
    }

    /// Whether its program has such a test.
    pub(super) fn can(&self, test: Test) -> bool {
        match (self.how, test.kind) {
            // Its READ has only one outstanding request, so its bandwidth is not comparable.
            (How::Ucx, Kind::Bandwidth) => test.op != "READ",
            (How::Rxe(_) | How::Ucx, _) => true,
            // Debian's only program for libfabric is a ping-pong.
            (How::Libfabric, Kind::Latency) => test.op == "SEND",
            (How::Libfabric, Kind::Bandwidth) => false,
        }
    }

    /// In the test's unit.
    pub(super) fn measure(&self, link: &Link, test: Test, quick: bool) -> Measured {
        match self.how {
            How::Rxe(backend) => self.rxe(link, test, backend),
            How::Ucx => ucx(link, test, quick),
            How::Libfabric => libfabric(link, test, quick),
        }
    }

    fn rxe(&self, link: &Link, test: Test, backend: &str) -> Measured {
        let kind = match test.kind {
            Kind::Bandwidth => "bw",
            Kind::Latency => "lat",
        };
        let common = [&self.rxe, "perf", &test.op.to_lowercase(), kind, "--backend", backend];
        let size = format!("-s{} -D1 -m{} --json", test.bytes, test.mtu);
        let client: Vec<_> = size.split(' ').chain([&*link.host()]).map(String::from).collect();
        let common = common.map(String::from);
        let text = link.run(&common, RXE_PORT, &[&common, &client[..]].concat(), &[])?;
        let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let result = |name| json["results"][0][name].as_f64().ok_or(format!("no {name}: {text}"));
        match test.kind {
            Kind::Bandwidth => Ok(result("bw_average_bytes_per_second")? / 1e9),
            Kind::Latency => result("t_typical_usec"),
        }
    }
}

/// `rxe perf`'s default.
const RXE_PORT: u16 = 18515;

fn ucx(link: &Link, test: Test, quick: bool) -> Measured {
    const PORT: u16 = 13337;
    let name = match (test.op, test.kind) {
        ("WRITE", Kind::Bandwidth) => "ucp_put_bw",
        ("WRITE", Kind::Latency) => "ucp_put_lat",
        ("READ", _) => "ucp_get",
        (_, Kind::Bandwidth) => "tag_bw",
        (_, Kind::Latency) => "tag_lat",
    };
    let iterations = match (test.kind, test.bytes) {
        (Kind::Bandwidth, bytes) => (1u32 << 30) / bytes.max(2048),
        (Kind::Latency, 4096..) => 20_000,
        (Kind::Latency, _) => 50_000,
    } / if quick { 4 } else { 1 };
    // UCX looks interfaces up in /sys, which shows those of the namespace that mounted it.
    let own_sys = "mount -t sysfs sysfs /sys 2>/dev/null; exec ucx_perftest \"$@\"";
    let words = |text: &str| {
        let wrapper = ["unshare", "-m", "sh", "-c", own_sys];
        wrapper.into_iter().chain(text.split(' ')).map(String::from).collect::<Vec<_>>()
    };
    let server = words("ucx_perftest -f");
    let client = format!(
        "ucx_perftest {} -t {name} -s {} -n {iterations} -w {} -f -v",
        link.host(),
        test.bytes,
        iterations / 20
    );
    let env = [("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", xtask::vm::LINK)];
    let text = link.run(&server, PORT, &words(&client), &env)?;
    ucx_result(&text, test.kind).ok_or_else(|| format!("not understood: {text}"))
}

/// The last line has: iterations; percentile, average and overall latency in µs; average and overall
/// bandwidth in MiB/s; average and overall rate.
fn ucx_result(text: &str, kind: Kind) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.contains(','))?;
    let fields: Vec<f64> = line.split(',').map_while(|f| f.trim().parse().ok()).collect();
    match (kind, &fields[..]) {
        (Kind::Latency, &[_, typical, ..]) => Some(typical),
        (Kind::Bandwidth, &[_, _, _, _, _, overall, ..]) => {
            Some(overall * f64::from(1 << 20) / 1e9)
        }
        _ => None,
    }
}

fn libfabric(link: &Link, test: Test, quick: bool) -> Measured {
    const PORT: u16 = 47592;
    let iterations = if test.bytes > 4096 { 2000 } else { 10_000 } / if quick { 4 } else { 1 };
    let line = format!("fi_pingpong -p udp;ofi_rxd -e rdm -I {iterations} -S {}", test.bytes);
    let server: Vec<_> = line.split(' ').map(String::from).collect();
    let client = [&server[..], &[link.host()]].concat();
    let text = link.run(&server, PORT, &client, &[])?;
    libfabric_result(&text).ok_or_else(|| format!("not understood: {text}"))
}

/// A line of names, with the average of one way under `usec/xfer`.
fn libfabric_result(text: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.contains("usec/xfer"));
    let column = lines.next()?.split_whitespace().position(|name| name == "usec/xfer")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_others_print_is_understood() {
        let ucx = "20000,29.235,148.017,574.472,422.25,108.80,6756,1741\n";
        assert_eq!(ucx_result(ucx, Kind::Latency), Some(29.235));
        let rate = ucx_result(ucx, Kind::Bandwidth).unwrap();
        assert!((0.1140..0.1141).contains(&rate), "{rate}");
        let fi = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                  64k     10k     =10k     1.2g        9.23s    142.03     461.43       0.00\n";
        assert_eq!(libfabric_result(fi), Some(461.43));
        assert_eq!(libfabric_result("fi_getinfo: no data"), None);
        assert_eq!(ucx_result("error", Kind::Latency), None);
    }
}
