//! The tests that are measured.

use std::fmt;

/// One measurement, which every contender makes in its own way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Test {
    pub(super) op: &'static str,
    pub(super) kind: Kind,
    pub(super) bytes: u32,
    /// The path MTU of RoCE. The MTU of the link is derived from it, for all contenders.
    pub(super) mtu: u32,
    pub(super) place: Place,
    /// The number of queue pairs.
    pub(super) qps: u32,
    /// The percentage of packets that a router between the two ends loses.
    /// `None` without a router.
    pub(super) loss: Option<f64>,
    /// The size of the socket's receive buffer at each end, in bytes.
    /// `None` for the size that a device requests.
    pub(super) recv_buffer: Option<u32>,
    /// Whether processes that are not bound to CPUs are compared with bound ones.
    pub(super) unbound: bool,
}

/// How often processes not bound to CPUs are measured in a round.
/// Their results vary much from run to run.
const UNBOUND_RUNS: u32 = 3;

/// The receive buffer in bytes of a program with the default `net.core.rmem_max`.
const USUAL_RECV_BUFFER: u32 = 208 << 10;

/// The quantity that a test measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Bandwidth in GB/s (in a VM, in MB/s): more is better.
    Bandwidth,
    /// Latency one way, in µs: less is better.
    Latency,
    /// Message rate in millions a second (in a VM, in thousands): more is better.
    Rate,
}

/// The place of the two ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// In two network namespaces, joined by a veth pair.
    Link,
    /// Both ends on one address.
    Host,
    /// In two network namespaces of a VM.
    Vm,
}

impl Test {
    pub(super) const fn bandwidth(op: &'static str, bytes: u32, mtu: u32) -> Self {
        Self {
            op,
            kind: Kind::Bandwidth,
            bytes,
            mtu,
            place: Place::Link,
            qps: 1,
            loss: None,
            recv_buffer: None,
            unbound: false,
        }
    }

    pub(super) const fn latency(op: &'static str, bytes: u32) -> Self {
        Self { kind: Kind::Latency, ..Self::bandwidth(op, bytes, 1024) }
    }

    pub(super) const fn rate(op: &'static str) -> Self {
        Self { kind: Kind::Rate, ..Self::bandwidth(op, 8, 1024) }
    }

    pub(super) const fn on_one_host(self) -> Self {
        Self { place: Place::Host, mtu: 4096, ..self }
    }

    pub(super) const fn with_qps(self, qps: u32) -> Self {
        Self { qps, ..self }
    }

    /// Returns the test with the receive buffer of a system with default settings.
    pub(super) const fn with_usual_recv_buffer(self) -> Self {
        Self { recv_buffer: Some(USUAL_RECV_BUFFER), ..self }
    }

    /// Returns the test that compares processes not bound to CPUs with bound ones.
    pub(super) const fn bound_or_not(self) -> Self {
        Self { unbound: true, ..self }
    }

    /// Returns how often each contender is measured in a round.
    pub(super) const fn runs(self) -> u32 {
        if self.unbound { UNBOUND_RUNS } else { 1 }
    }

    /// Returns whether the packets in flight to one socket may exceed its buffer.
    pub(super) const fn is_crowded(self) -> bool {
        self.qps > 1 || self.recv_buffer.is_some()
    }

    /// Returns the MTU of the link: Ethernet's usual one, or enough for path MTU 4096.
    pub(super) const fn link_mtu(self) -> u32 {
        if self.mtu > 1024 { 4200 } else { 1500 }
    }

    pub(super) const fn unit(self) -> &'static str {
        match (self.kind, self.place) {
            (Kind::Bandwidth, Place::Vm) => "MB/s",
            (Kind::Bandwidth, _) => "GB/s",
            (Kind::Latency, _) => "us",
            (Kind::Rate, Place::Vm) => "k/s",
            (Kind::Rate, _) => "M/s",
        }
    }

    /// Returns the number of messages that take about a second.
    pub(super) fn messages(self) -> u32 {
        match self.kind {
            Kind::Bandwidth => ((1u32 << 31) / self.bytes.max(2048)).max(100),
            Kind::Rate => 1_000_000,
            Kind::Latency => (200_000 / (1 + self.bytes / 1024)).clamp(500, 100_000),
        }
    }

    /// Converts messages a second to the unit of the test.
    pub(super) fn result_of_rate(self, messages_per_second: f64) -> f64 {
        match self.kind {
            Kind::Bandwidth => messages_per_second * f64::from(self.bytes) / 1e9,
            _ => messages_per_second / 1e6,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", size(self.bytes), self.op)?;
        match self.kind {
            Kind::Bandwidth => write!(f, "bandwidth")?,
            Kind::Latency => write!(f, "latency, one way")?,
            Kind::Rate => write!(f, "message rate")?,
        }
        if self.qps > 1 {
            write!(f, ", {} queue pairs", self.qps)?;
        }
        match (self.place, self.kind) {
            (Place::Host, _) => write!(f, ", one host"),
            (Place::Link, Kind::Bandwidth) => write!(f, ", link MTU {}", self.link_mtu()),
            (Place::Link, _) => Ok(()),
            (Place::Vm, _) => write!(f, ", in a VM"),
        }?;
        if let Some(bytes) = self.recv_buffer {
            write!(f, ", receive buffer {}", size(bytes))?;
        }
        if self.unbound {
            write!(f, ", bound to CPUs or not")?;
        }
        if let Some(loss) = self.loss {
            write!(f, ", {loss} % of packets lost")?;
        }
        Ok(())
    }
}

/// Returns the tests of a report, or only the main ones if `quick`.
pub(super) fn all(quick: bool) -> Vec<Test> {
    let mut tests = vec![
        Test::bandwidth("WRITE", 65536, 1024),
        Test::bandwidth("WRITE", 65536, 4096),
        Test::latency("WRITE", 8),
    ];
    if quick {
        return tests;
    }
    tests.extend([
        Test::bandwidth("WRITE", 65536, 4096).bound_or_not(),
        Test::bandwidth("READ", 65536, 1024),
        Test::bandwidth("READ", 65536, 4096),
        Test::bandwidth("SEND", 65536, 1024),
        Test::bandwidth("SEND", 65536, 4096),
        Test::latency("SEND", 8),
        Test::latency("SEND", 65536),
        Test::rate("WRITE"),
        Test::rate("SEND"),
        Test::bandwidth("WRITE", 65536, 4096).with_qps(16),
        Test::bandwidth("WRITE", 65536, 4096).with_qps(64),
        Test::bandwidth("WRITE", 65536, 4096).with_qps(16).bound_or_not(),
        Test::bandwidth("WRITE", 65536, 4096).with_qps(64).bound_or_not(),
        Test::bandwidth("WRITE", 65536, 4096).with_usual_recv_buffer(),
        Test::bandwidth("WRITE", 65536, 4096).with_qps(64).with_usual_recv_buffer(),
    ]);
    let host = [
        Test::bandwidth("WRITE", 65536, 4096),
        Test::bandwidth("READ", 65536, 4096),
        Test::bandwidth("SEND", 65536, 4096),
        Test::latency("WRITE", 8),
        Test::latency("WRITE", 8).bound_or_not(),
        Test::latency("SEND", 8),
        Test::rate("WRITE"),
        Test::rate("SEND"),
    ];
    tests.extend(host.map(Test::on_one_host));
    tests
}

/// Returns whether the test's name contains `only`, if that is given.
pub(super) fn is_named(test: &Test, only: Option<&str>) -> bool {
    only.is_none_or(|text| test.to_string().contains(text))
}

/// Formats a size, such as "64 KiB".
pub(super) fn size(bytes: u32) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}
