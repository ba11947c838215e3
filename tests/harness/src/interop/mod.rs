//! `cargo xtask interop`: this engine and a real kernel's `rdma_rxe`, each as requester and as
//! responder.
//!
//! For each kernel one VM is booted, and everything is tested with it: the table of operations and
//! sizes, the features of `features`, the faults of `faults`, and the programs of `pingpong`. A
//! *cell* is one of these tests with one backend and one side as requester. Its name, such as
//! `udp/ours/SEND/1025`, is what `--filter` matches.

mod brief;
mod datagram;
mod end;
mod exchange;
mod faults;
mod feature;
mod features;
mod guest;
mod pingpong;
mod placed;
mod report;
mod shared;
mod shared_interface;
mod unreliable;
mod windows;
mod world;

use crate::vm::{Cmd, Error, Frames, Kernel, Net, Output, Result, Spec, Vm, bpf_is_permitted};
pub use brief::brief;
use exchange::Op;
use faults::Observations;
pub use report::{Outcome, Report, Row, update_docs};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use world::{Setting, World};

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The backends of our side.
    pub backends: Vec<Backend>,
    /// Combinations of backend and requester of which only the [`SMOKE_CELLS`] are run:
    /// [`brief()`], or none.
    pub brief: Vec<(Backend, Requester)>,
    /// The sides that act as requester: [`Requester::BOTH`], except in tests of the harness.
    pub requesters: Vec<Requester>,
    /// A comma-separated list. Only cells are run whose name contains one of these strings, or ends
    /// with it if a `$` follows the string.
    pub filter: Option<String>,
    /// Whether to report each cell on standard error.
    pub verbose: bool,
    /// The file for a capture of the link.
    pub capture: Option<PathBuf>,
    /// The path of our peer, the program `rxe-peer`.
    pub peer: PathBuf,
    /// The path of our command, the program `rxe`.
    pub rxe: PathBuf,
}

/// The backend of our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// UDP sockets.
    Udp,
    /// Packet sockets.
    Packet,
    /// AF_XDP sockets.
    Xdp,
    /// An endpoint of layer 2 at the other end of QEMU's socket: without namespaces and taps.
    L2,
    /// An endpoint of layer 2 on the interface, in addition to the host's network stack.
    Interface,
    /// The same by pnet's channel.
    Pnet,
    /// AF_XDP sockets in the VM, whose driver may support zero copy, instead of the kernel's
    /// device.
    Guest,
}

impl Backend {
    /// The backends that share a link with the host's network stack.
    pub const OF_HOST: [Self; 3] = [Self::Udp, Self::Packet, Self::Xdp];
    /// The backends with the kernel's device at the other end.
    pub const WITH_KERNEL: [Self; 6] =
        [Self::Udp, Self::Packet, Self::Xdp, Self::L2, Self::Interface, Self::Pnet];
    /// All backends. The last removes the kernel's device.
    pub const ALL: [Self; 7] =
        [Self::Udp, Self::Packet, Self::Xdp, Self::L2, Self::Interface, Self::Pnet, Self::Guest];

    /// Returns the name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::L2 => "l2",
            Self::Interface => "if",
            Self::Pnet => "pnet",
            Self::Guest => "guest",
        }
    }
}

/// The side that is the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// Our engine requests, the kernel responds.
    Ours,
    /// The kernel requests, our engine responds.
    Kernel,
    /// A kernel on both sides.
    Baseline,
}

impl Requester {
    /// The two values that involve our engine.
    pub const BOTH: [Self; 2] = [Self::Ours, Self::Kernel];

    /// Returns the name in cells.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Kernel => "kernel",
            Self::Baseline => "baseline",
        }
    }
}

/// The kernels that are tested by default.
pub const KERNELS: [&str; 2] = ["6.1", "7.2"];

/// The message sizes in the table of operations.
pub const SIZES: [u64; 7] = [0, 1, 1023, 1024, 1025, 65536, (1 << 20) + 3];

/// The message sizes over UC. UC does not retransmit packets dropped by a full queue on the path.
pub const UC_SIZES: [u64; 6] = [0, 1, 1023, 1024, 1025, 65536];

/// The message sizes over UD, where a datagram is one packet.
pub const UD_SIZES: [u64; 6] = [0, 1, 1023, 1024, 1025, 4096];

/// Cells that show within a few seconds whether a backend works with a kernel.
pub const SMOKE_CELLS: [&str; 11] = [
    "SEND/1025",
    "WRITE/65536",
    "READ/65536",
    "FETCH_ADD/8",
    "uc/WRITE/65536",
    "ud/SEND/1024",
    "ipv6",
    "pingpong/4096-mtu",
    "beside",
    "driver",
    "zerocopy",
];

/// The remark in cells that work around the quirk [`world::Quirks::mute_atomics`].
const MUTE_ATOMICS: &str = "over IPv6: over IPv4 this kernel's answers to atomics do not leave it, \
                            whoever asks";

/// The MTU of the link, large enough for path MTU 4096.
const LINK_MTU: u32 = 4200;

/// The time limit of both ends for a cell. A cell takes some ten seconds on a busy machine.
const CELL: Duration = Duration::from_secs(240);

/// Runs all chosen cells with one kernel, such as `6.1`.
///
/// # Errors
/// There is no VM: [`Error::Missing`] if this machine cannot run one.
pub fn run(kernel: &str, options: &Options) -> Result<Report> {
    let start = Instant::now();
    let found = Kernel::find(kernel)?;
    // A link has one VM. For our engine in the VM, the kernel needs a VM without a device: deleting
    // the device of another VM may block forever on 5.10 because of objects that other cells left.
    let on = |links: fn(Backend) -> bool| {
        options.backends.iter().copied().filter(|b| links(*b)).collect::<Vec<_>>()
    };
    let l2 = on(|b| b == Backend::L2);
    let guest = on(|b| b == Backend::Guest);
    let of_host = on(|b| !matches!(b, Backend::L2 | Backend::Guest));
    let (mut report, mut left_out) = (None, Vec::new());
    for some in [of_host, guest].into_iter().filter(|some| !some.is_empty()) {
        match unless_missing(Net::tap(LINK_MTU), !l2.is_empty())? {
            Ok(net) => report = Some(run_on(&net, kernel, &found, options, &some, report)?),
            Err(why) => left_out.push((some, why)),
        }
    }
    if !l2.is_empty() {
        let net = Net::socket(LINK_MTU)?;
        report = Some(run_on(&net, kernel, &found, options, &l2, report)?);
    }
    let mut report = report.ok_or_else(|| Error::Failed("no backend is chosen".into()))?;
    for (some, why) in left_out {
        let settings = some.iter().flat_map(|b| options.requesters.iter().map(move |a| (*b, *a)));
        report
            .rows
            .extend(settings.map(|(backend, requester)| Row::left_out(backend, requester, &why)));
    }
    report.took = start.elapsed();
    Ok(report)
}

/// Returns the host's link, or the reason why this machine cannot create it. The reason is returned
/// only if backends on QEMU's socket can run, which needs neither namespaces nor taps.
fn unless_missing<T>(link: Result<T>, others: bool) -> Result<std::result::Result<T, String>> {
    match link {
        Err(Error::Missing(why)) if others => Ok(Err(why)),
        link => link.map(Ok),
    }
}

/// Runs these backends with a VM on this link, and adds the results to the report.
fn run_on(
    net: &Net,
    kernel: &str,
    found: &Kernel,
    options: &Options,
    backends: &[Backend],
    report: Option<Report>,
) -> Result<Report> {
    let guest = backends.contains(&Backend::Guest);
    let vm = Vm::boot(net, found, &Spec { rxe: !guest, xdp: guest, ..Spec::default() })?;
    let release = vm.run(["uname", "-r"])?.ok()?.trim().to_owned();
    let capture = match &options.capture {
        Some(file) => Some(net.capture(file, Frames::Whole)?),
        None => None,
    };
    let report = report.unwrap_or_else(|| Report::new(kernel, &found.name, &release));
    let mut run =
        Run { world: World::new(kernel, &vm, net, options)?, report, baselines: HashMap::new() };
    for backend in backends {
        for requester in &options.requesters {
            if *backend == Backend::Guest && *requester != Requester::Ours {
                continue;
            }
            if *backend == Backend::Xdp && !bpf_is_permitted() {
                run.leave_out(
                    *backend,
                    *requester,
                    "XDP needs CAP_BPF outside of any user namespace",
                );
                continue;
            }
            run.all(Setting { requester: *requester, backend: *backend, v6: false, faulty: false });
        }
    }
    run.world.forget();
    if let Some(capture) = capture {
        capture.stop();
    }
    Ok(run.report)
}

struct Run<'a> {
    world: World<'a>,
    report: Report,
    /// The observations of two kernels for each fault.
    baselines: HashMap<&'static str, Observations>,
}

impl Run<'_> {
    fn all(&mut self, setting: Setting) {
        if setting.backend == Backend::Guest {
            for cell in guest::ALL {
                self.cell(setting, cell.name, |run| (cell.run)(&mut run.world));
            }
            return;
        }
        let mut n = 0;
        for op in Op::ALL {
            let sizes: &[u64] = if op.is_atomic() { &[8] } else { &SIZES };
            for size in sizes {
                n += 16;
                self.cell(setting, &format!("{}/{size}", op.name()), |run| {
                    let mute = op.is_atomic() && !run.world.pair(setting)?.atomics;
                    let setting = Setting { v6: mute, ..setting };
                    let (mut pair, conn) = run.world.steady(setting, "rc")?;
                    exchange::exchange(&mut pair, conn, op, *size, n)?;
                    pair.idle()?;
                    Ok(mute.then(|| MUTE_ATOMICS.to_owned()))
                });
            }
        }
        for (op, size) in Op::UC.into_iter().flat_map(|op| UC_SIZES.map(|size| (op, size))) {
            n += 16;
            self.cell(setting, &format!("uc/{}/{size}", op.name()), |run| {
                let (mut pair, conn) = run.world.steady(setting, "uc")?;
                exchange::exchange(&mut pair, conn, op, size, n)?;
                pair.idle()?;
                Ok(None)
            });
        }
        for (op, size) in Op::UD.into_iter().flat_map(|op| UD_SIZES.map(|size| (op, size))) {
            n += 16;
            self.cell(setting, &format!("ud/{}/{size}", op.name()), |run| {
                datagram::cell(&mut run.world, setting, op, size, n).map(|()| None)
            });
        }
        let quirks = self.world.quirks;
        let l2 = matches!(setting.backend, Backend::L2 | Backend::Interface | Backend::Pnet);
        let features = features::all();
        for feature in features.filter(|f| quirks.have(f.needs, setting.requester)) {
            self.cell(setting, feature.name, |run| {
                run.world.remark = None;
                (feature.run)(&mut run.world, setting)?;
                Ok(run.world.remark.take())
            });
        }
        for fault in faults::ALL {
            // The fault is run between two kernels first.
            if !quirks.have(fault.needs(), Requester::Ours) || !fault.is_possible(setting.requester)
            {
                continue;
            }
            self.cell(setting, fault.name, |run| {
                if run.world.quirks.mute_faults && fault.is_mute(setting.requester) {
                    let observed = fault.play(&mut run.world, setting)?;
                    return fault.compare_with_spec(setting.requester, &observed).map(Some);
                }
                let baseline = run.baseline(fault, setting)?;
                let observed = fault.play(&mut run.world, setting)?;
                faults::compare(fault, setting.requester, &baseline, &observed)
            });
        }
        if (setting.backend, setting.requester) == (Backend::Interface, Requester::Ours) {
            self.cell(setting, "beside", |run| {
                shared_interface::play(&mut run.world).map(|()| None)
            });
        }
        if l2 {
            // The programs exchange their QPNs over TCP, which this backend cannot carry.
            return;
        }
        for pingpong in pingpong::ALL {
            self.cell(setting, pingpong.name, |run| {
                pingpong.play(&mut run.world, setting).map(|()| None)
            });
        }
    }

    fn baseline(&mut self, fault: &faults::Fault, setting: Setting) -> Result<Observations> {
        if let Some(observed) = self.baselines.get(fault.name) {
            return Ok(observed.clone());
        }
        let observed = fault
            .play(&mut self.world, Setting { requester: Requester::Baseline, ..setting })
            .map_err(|e| Error::Failed(format!("between two kernels: {e}")))?;
        self.report.baselines.push((fault.name, observed.to_string()));
        self.baselines.insert(fault.name, observed.clone());
        Ok(observed)
    }

    /// Prints the last lines of the kernel's log, to help explain a failure.
    fn kernel_says(&self) {
        if !self.world.options.verbose {
            return;
        }
        let log = self.world.vm.run(Cmd::sh("dmesg | tail -n 6")).and_then(Output::ok);
        for line in log.unwrap_or_default().lines() {
            eprintln!("           {} kernel: {line}", self.report.kernel);
        }
    }

    /// Records why all cells of a backend and a role are skipped.
    fn leave_out(&mut self, backend: Backend, requester: Requester, why: &str) {
        self.report.rows.push(Row::left_out(backend, requester, why));
    }

    /// Runs a cell if it is chosen. `f` returns a remark.
    fn cell(
        &mut self,
        setting: Setting,
        name: &str,
        f: impl FnOnce(&mut Self) -> Result<Option<String>>,
    ) {
        let (backend, requester) = (setting.backend, setting.requester);
        let id = id(backend, requester, name);
        if !self.world.options.chooses(backend, requester, name) {
            return;
        }
        let start = Instant::now();
        self.world.begin(CELL);
        let outcome = match f(self) {
            Ok(remark) => Outcome::Good(remark),
            Err(why) => {
                // The ends are in an unknown state.
                self.world.forget();
                self.kernel_says();
                match why {
                    Error::Missing(why) => Outcome::Skipped(why),
                    Error::Failed(why) => Outcome::Failed(why),
                }
            }
        };
        let row = Row { id, backend, requester, name: name.to_owned(), outcome };
        if self.world.options.verbose {
            eprintln!("{:7.2} s  {} {row}", start.elapsed().as_secs_f64(), self.report.kernel);
        }
        self.report.rows.push(row);
    }
}

/// Returns the name of a cell.
fn id(backend: Backend, requester: Requester, name: &str) -> String {
    format!("{}/{}/{name}", backend.name(), requester.name())
}

impl Options {
    /// Returns whether this cell is to be run.
    fn chooses(&self, backend: Backend, requester: Requester, name: &str) -> bool {
        if self.brief.contains(&(backend, requester)) && !SMOKE_CELLS.contains(&name) {
            return false;
        }
        let id = id(backend, requester, name);
        match self.filter.as_deref() {
            None => true,
            Some(filters) => filters.split(',').any(|filter| match filter.strip_suffix('$') {
                Some(end) => id.ends_with(end),
                None => id.contains(filter),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_namespaces_the_socket_is_used_if_it_is_chosen_too() {
        let missing = || Err::<(), _>(Error::Missing("no namespace".into()));
        assert_eq!(unless_missing(missing(), true).unwrap(), Err("no namespace".into()));
        assert!(matches!(unless_missing(missing(), false), Err(Error::Missing(_))));
        assert_eq!(unless_missing(Ok(()), true).unwrap(), Ok(()));
        let row = Row::left_out(Backend::Udp, Requester::Ours, "no namespace");
        assert!(matches!(row.outcome, Outcome::Skipped(why) if why == "no namespace"));
    }
}
