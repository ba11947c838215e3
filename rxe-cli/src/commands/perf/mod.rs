//! `rxe perf`: bandwidth and latency between two hosts, measured and shown as by perftest.
//!
//! The server waits. The client decides what to measure ([`plan`]). They agree over TCP
//! ([`control`]), and both show the results.

mod bw;
mod columns;
mod control;
mod lat;
mod lossy;
mod plan;
mod progress;
mod report;
mod side;
mod stats;

use std::net::IpAddr;

use rxe_core::types::Mtu;
use rxe_verbs::device::DeviceInfo;

use self::control::{ControlChannel, Hello, Message, Welcome};
use self::plan::{Amount, Atomic, Kind, Op, Plan, Transport};
use self::progress::Progress;
use self::report::Report;
use self::side::{Needs, Side};
use crate::common::rendezvous::{self, PORT};
use crate::common::{ACK_TIMEOUT, DeviceArgs, Error, Opened, WireArgs, check_peer, units};

/// Measure bandwidth or latency to a peer that runs the same command
///
/// Start it without HOST on one side, then with the same OPERATION and TEST and the HOST on the
/// other side. Options and columns have the names of perftest's if they mean the same. The side with
/// HOST decides sizes, iterations, depths and queue pairs for both.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum)]
    operation: Op,
    /// Bandwidth or latency
    #[arg(value_enum)]
    test: Kind,
    /// The host where the other side waits; without it, wait here
    host: Option<String>,
    /// Transport service; the client decides if the server does not give it [default: rc]
    #[arg(short = 'c', long, visible_alias = "connection", value_enum, ignore_case = true)]
    transport: Option<Transport>,
    /// Bytes in a message, as in 4096 or 64K [default: 65536; lat: 2; atomic: 8; ud bw: the path MTU]
    #[arg(short, long, value_parser = units::parse_size, value_name = "BYTES")]
    size: Option<u64>,
    /// All sizes from 2 bytes to 8 MiB (ud: to the path MTU)
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Messages of each size [default: 5000 for write bw, else 1000; with -a fewer large ones]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(5..=100_000_000))]
    iters: Option<u64>,
    /// Measure for so many seconds instead
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iters",
          value_parser = clap::value_parser!(u32).range(1..=86400))]
    duration: Option<u32>,
    /// Use this device (or interface); without it, the one that leads to the peer
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV")]
    ib_dev: Option<String>,
    /// Use this port; each device has the one port 1
    #[arg(short = 'i', long = "ib-port", value_name = "PORT", default_value_t = DeviceInfo::PORT)]
    ib_port: u8,
    /// Use this entry of the device's GID table (see `rxe gids`); without it, the best one
    #[arg(short = 'x', long = "gid-index", value_name = "INDEX")]
    gid_idx: Option<usize>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that both links carry]
    #[arg(short, long)]
    mtu: Option<usize>,
    /// Queue pairs
    #[arg(short, long = "qp", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    qps: u32,
    /// Outstanding messages, for each queue pair [default: 128]
    #[arg(short, long, value_parser = clap::value_parser!(u32).range(1..=15000))]
    tx_depth: Option<u32>,
    /// Receives posted, for each queue pair (send only)
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=16384))]
    rx_depth: u32,
    /// Copy messages up to this size when they are posted
    #[arg(short = 'I', long = "inline_size", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=512))]
    inline: u32,
    /// Measure both directions at once, and show the sum
    #[arg(short, long)]
    bidirectional: bool,
    /// Sleep until there is a completion (default: poll)
    #[arg(short, long)]
    events: bool,
    /// One completion for so many messages [default: 100]
    #[arg(short = 'Q', long = "cq-mod", value_parser = clap::value_parser!(u32).range(1..=1024))]
    cq_mod: Option<u32>,
    /// Outstanding READs and atomics, for each queue pair
    #[arg(short, long = "outs", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=128))]
    outs: u8,
    /// Which atomic
    #[arg(
        short = 'A',
        long = "atomic_type",
        value_enum,
        ignore_case = true,
        default_value = "FETCH_AND_ADD"
    )]
    atomic: Atomic,
    /// Acknowledgement timeout: 4.096 µs times 2 to the power of this
    #[arg(short = 'u', long = "qp-timeout", default_value_t = ACK_TIMEOUT, value_parser = clap::value_parser!(u8).range(0..=31))]
    qp_timeout: u8,
    /// Show Gbit/s instead of MiB/s
    #[arg(long = "report_gbits")]
    report_gbits: bool,
    /// Accepted and ignored, for perftest: the clock does not depend on the CPU's frequency here
    #[arg(short = 'F', long = "CPU-freq")]
    cpu_freq: bool,
    #[command(flatten)]
    wire: WireArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        self.wire.check()?;
        match &self.host {
            Some(host) => self.client(host),
            None => self.server(),
        }
    }

    fn client(&self, host: &str) -> Result<(), Error> {
        let plan = self.plan()?;
        let hosts = rendezvous::resolve(host, self.port)?;
        let peer = hosts.first().map(|a| a.ip().to_canonical());
        let opened = self.wire.open(&self.device(), peer, self.mtu)?;
        let limit = self.mtu_limit(&opened)?;
        let plan = plan.fitted(limit)?;
        let hello = Hello::new(limit.bytes(), self.mtu.is_some(), plan.clone());
        let side = Side::new(&opened, &plan, &self.needs())?;
        let mut control = ControlChannel::new(rendezvous::connect(
            &hosts,
            &rendezvous::start_first(&self.command()),
        )?)?;
        let result = self.measure(&opened, &side, &hello, &mut control);
        if let Err(e) = &result {
            // Sending may fail because the peer is gone; return the original error.
            let _ = control.send(&Message::Failed { why: e.to_string() });
        }
        result
    }

    fn measure(
        &self,
        opened: &Opened,
        side: &Side,
        hello: &Hello,
        control: &mut ControlChannel,
    ) -> Result<(), Error> {
        control.hello(hello)?;
        let welcome: Welcome = control.welcomed()?;
        let mtu = mtu_of(welcome.mtu)?;
        let plan = &hello.plan.fitted(mtu)?;
        check_peer(opened.gid, side.peer_gid(&welcome.ends)?, control.host()?)?;
        side.connect(&welcome.ends, mtu)?;
        control.send(&Message::Ends(side.ends()))?;
        control.expect_ready()?;
        let mut report = Report::new(self, opened, plan, mtu, side, &welcome.ends)?;
        for &size in &plan.sizes {
            lat::prepare(side, plan, size)?;
            control.send(&Message::Start { size })?;
            control.expect_ready()?;
            let mut progress = Progress::new(plan, size, self.wire.json);
            let bar = &mut progress;
            let row = match (plan.kind, plan.transport.loses()) {
                (Kind::Bw, false) => bw::run(side, plan, size, true, control, bar),
                (Kind::Bw, true) => lossy::bw::run(side, plan, size, true, control, bar),
                (Kind::Lat, false) => lat::client(side, plan, size, control, bar),
                (Kind::Lat, true) => lossy::lat::client(side, plan, size, control, bar),
            };
            progress.clear();
            report.row(&row?)?;
        }
        control.send(&Message::Bye {})?;
        report.end()?;
        opened.finish_capture()
    }

    fn server(&self) -> Result<(), Error> {
        let device = self.device();
        // Options that name a device or an address are checked before a client connects.
        let named = self.ib_dev.is_some() || self.gid_idx.is_some() || self.wire.address.is_some();
        let early = if named { Some(self.wire.open(&device, None, self.mtu)?) } else { None };
        if early.is_none() {
            DeviceInfo::first()?;
        }
        let listener = rendezvous::listen(self.port)?;
        if !self.wire.json {
            report::waiting(self.port)?;
        }
        let stream = rendezvous::accept(&listener)?;
        drop(listener);
        let (own, peer) = rendezvous::addresses(&stream)?;
        let mut control = ControlChannel::new(stream)?;
        let hello = control.greeted()?;
        let result = self.serve(early, &device, (own, peer), hello, &mut control);
        if let Err(e) = &result {
            // Sending may fail because the peer is gone; return the original error.
            let _ = control.send(&Message::Failed { why: e.to_string() });
        }
        result
    }

    fn serve(
        &self,
        early: Option<Opened>,
        device: &DeviceArgs,
        (own, peer): (IpAddr, IpAddr),
        hello: Hello,
        control: &mut ControlChannel,
    ) -> Result<(), Error> {
        self.check_same_test(&hello.plan)?;
        hello.plan.check()?;
        let opened = match early {
            Some(opened) => opened,
            None => self.wire.open_reached(device, own, peer, self.mtu)?,
        };
        let mtu = self.agree_on_mtu(&hello, &opened)?;
        let plan = hello.plan.fitted(mtu)?;
        let side = Side::new(&opened, &plan, &self.needs())?;
        control.welcome(&Welcome::new(mtu.bytes(), side.ends()))?;
        let ends = match control.receive()? {
            Message::Ends(ends) => ends,
            other => return Err(control::unexpected(&other)),
        };
        check_peer(opened.gid, side.peer_gid(&ends)?, peer)?;
        side.connect(&ends, mtu)?;
        control.send(&Message::Ready {})?;
        let mut report = Report::new(self, &opened, &plan, mtu, &side, &ends)?;
        loop {
            let size = match control.receive()? {
                Message::Start { size } if plan.sizes.contains(&size) => size,
                Message::Bye {} => {
                    report.end()?;
                    return opened.finish_capture();
                }
                other => return Err(control::unexpected(&other)),
            };
            lat::prepare(&side, &plan, size)?;
            control.send(&Message::Ready {})?;
            let mut none = Progress::none();
            let sends = plan.bidirectional;
            let row = match (plan.kind, plan.transport.loses()) {
                (Kind::Bw, false) => bw::run(&side, &plan, size, sends, control, &mut none),
                (Kind::Bw, true) => lossy::bw::run(&side, &plan, size, sends, control, &mut none),
                (Kind::Lat, false) => lat::server(&side, &plan, size, control),
                (Kind::Lat, true) => lossy::lat::server(&side, &plan, size, control),
            };
            report.row(&row?)?;
        }
    }

    /// Returns the plan that the options ask for.
    fn plan(&self) -> Result<Plan, Error> {
        let Self { operation: op, test: kind, .. } = *self;
        let default_size = match (op, kind) {
            (Op::Atomic, _) => 8,
            (_, Kind::Bw) => 65536,
            (_, Kind::Lat) => 2,
        };
        let sizes = match (self.all, self.size) {
            (true, _) => (1..=23).map(|bit| 1 << bit).collect(),
            (false, Some(size)) => vec![u32::try_from(size).unwrap_or(u32::MAX)],
            (false, None) => vec![default_size],
        };
        let default_iters = if (op, kind) == (Op::Write, Kind::Bw) { 5000 } else { 1000 };
        let amount = match self.duration {
            Some(seconds) => Amount::Seconds(seconds),
            None => Amount::Messages {
                n: self.iters.unwrap_or(default_iters),
                fewer_if_large: self.all && self.iters.is_none(),
            },
        };
        let tx_depth = self.tx_depth.unwrap_or(128);
        let plan = Plan {
            op,
            kind,
            transport: self.transport.unwrap_or_default(),
            sizes,
            any_size: self.size.is_none(),
            amount,
            qps: self.qps,
            tx_depth,
            rx_depth: if op == Op::Send { self.rx_depth } else { 1 },
            cq_mod: self.cq_mod.unwrap_or(100).min(tx_depth),
            inline: self.inline,
            outs: self.outs,
            atomic: self.atomic,
            bidirectional: self.bidirectional,
        };
        plan.check()?;
        if self.events && (op, kind) == (Op::Write, Kind::Lat) {
            let what = "write lat polls memory, which causes no events";
            return Err(Error::new(what, "leave -e out, or measure send lat"));
        }
        Ok(plan)
    }

    fn needs(&self) -> Needs {
        Needs { events: self.events, timeout: self.qp_timeout }
    }

    fn check_same_test(&self, plan: &Plan) -> Result<(), Error> {
        let (own, theirs) = ((self.operation, self.test), (plan.op, plan.kind));
        if own == theirs {
            return match self.transport {
                Some(own) if own != plan.transport => {
                    let (own, theirs) = (own.title(), plan.transport.title());
                    let what = format!("the server wants {own}, the client {theirs}");
                    Err(Error::new(what, "give the same --transport on both ends"))
                }
                _ => Ok(()),
            };
        }
        let name = |(op, kind): (Op, Kind)| format!("`rxe perf {} {}`", op.name(), kind.name());
        let what = format!("the server runs {}, the client {}", name(own), name(theirs));
        Err(Error::new(what, "start the same on both ends"))
    }

    /// Returns the path MTU that the user asked for, or the largest that the link carries.
    fn mtu_limit(&self, opened: &Opened) -> Result<Mtu, Error> {
        match self.mtu {
            Some(asked) => opened.check_mtu(asked),
            None => Ok(opened.device.active_mtu()),
        }
    }

    /// Returns the largest path MTU that both ends carry. If both users ask for one, both must be
    /// equal.
    fn agree_on_mtu(&self, hello: &Hello, opened: &Opened) -> Result<Mtu, Error> {
        let own = self.mtu_limit(opened)?;
        if hello.mtu_asked {
            if self.mtu.is_some() && own.bytes() != hello.mtu {
                let what = format!("the server wants path MTU {own}, the client {}", hello.mtu);
                return Err(Error::new(what, "give the same -m on both ends, or on one alone"));
            }
            return opened.check_mtu(hello.mtu);
        }
        Ok(own.min(mtu_of(hello.mtu)?))
    }

    fn device(&self) -> DeviceArgs {
        let Self { ib_dev, ib_port, gid_idx, .. } = self;
        DeviceArgs { ib_dev: ib_dev.clone(), ib_port: *ib_port, gid_idx: *gid_idx }
    }

    fn command(&self) -> String {
        format!("rxe perf {} {}", self.operation.name(), self.test.name())
    }
}

fn mtu_of(bytes: usize) -> Result<Mtu, Error> {
    Mtu::from_bytes(bytes).ok_or_else(|| {
        Error::new(format!("{bytes} is not a path MTU"), "what runs on the other end?")
    })
}
