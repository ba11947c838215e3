//! Compares our engine with the kernel's rdma_rxe: runs perftest over either, in turns, in one VM
//! with network namespaces and veth pairs. An emulated processor is slow, so only the ratio counts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rxe_harness::vm::{Cmd, Error, Kernel, Net, Proc, Result, Spec, Vm};
use tempfile::TempDir;

use super::contender::{Measured, Sample, perftest};
use super::plot::{Axis, Line, Plot};
use super::report::{Round, Table};
use super::shared_cache::SharedCacheGate;
use super::tests::{self, Kind, Place, Test};

/// The names of the two that are compared.
const OURS: &str = "perftest on rxe";
const KERNELS: &str = "perftest on kernel rxe";
/// The percentages of lost packets.
const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 5.0];
/// The greatest percentage of lost packets in profiles.
/// At 1 %, the cost of losses is visible, and the kernel's connections survive.
const PROFILED_LOSS: f64 = 1.0;
const PORT: u16 = 18515;

/// The kernel with which docs/en/project/performance.md compares.
pub(super) const DEFAULT: &str = "7.2";

/// Runs the tests whose name contains `only` in a VM with this kernel.
/// Some of them are over a link that loses packets.
pub(super) fn run(
    rxe: &str,
    kernel: &str,
    rounds: u32,
    only: Option<&str>,
    cache_gate: &SharedCacheGate,
) -> Result<(Vec<Table>, Plot)> {
    let net = Net::tap(1500)?;
    let vm = boot(&net, kernel, Spec::default())?;
    let mut tables = Vec::new();
    for test in all_tests().into_iter().filter(|test| tests::is_named(test, only)) {
        let mut table = Table::new(test, vec![OURS.into(), KERNELS.into()]);
        for round in 1..=rounds {
            eprint!("\r\x1b[K{test}: round {round} of {rounds}");
            let [ours, kernels] =
                [Some(rxe), None].map(|rxe| cache_gate.run(|| measure(&vm, test, round, rxe)));
            table.push(Round(vec![ours, kernels]));
        }
        eprint!("\r\x1b[K");
        tables.push(table);
    }
    let plot = plot(&tables);
    Ok((tables, plot))
}

fn boot(net: &Net, kernel: &str, spec: Spec) -> Result<Vm> {
    let spec = Spec { memory: 3000, rxe: false, ..spec };
    let vm = Vm::boot(net, &Kernel::find(kernel)?, &spec)?;
    vm.run(Cmd::sh(SET_UP))?.ok()?;
    Ok(vm)
}

/// Creates two pairs of namespaces: `a` and `b` with the kernel's devices, `c` and `d` without.
/// Only one of the two engines can use port 4791 of an address.
///
/// The interfaces `v0` of a pair are connected directly, and `w0` by a router, `ab` or `cd`, which
/// loses packets. There, the ends cut large buffers into packets (`gso_max_segs`): otherwise each loss
/// would take a whole buffer.
const SET_UP: &str = "set -e
    for end in a b c d ab cd; do ip netns add $end; ip -n $end link set lo up; done
    join() {
        ip link add v0 netns $1 mtu 4200 type veth peer name v0 netns $3 mtu 4200
        ip link add w0 netns $1 mtu 4200 type veth peer name w1 netns $2 mtu 4200
        ip link add w0 netns $3 mtu 4200 type veth peer name w2 netns $2 mtu 4200
        last=1
        for end in $1 $3; do
            ip -n $end addr add 10.1.0.$last/24 dev v0
            ip -n $end addr add 10.1.1.$last/24 dev w0
            ip -n $end link set v0 up
            ip -n $end link set w0 up gso_max_segs 1
            ip -n $2 link set w$last up
            ip -n $2 route add 10.1.1.$last dev w$last
            ip netns exec $2 sysctl -qw net.ipv4.conf.w$last.proxy_arp=1
            last=2
        done
        ip netns exec $2 sysctl -qw net.ipv4.ip_forward=1
    }
    join a ab b
    join c cd d
    for end in a b; do
        for dev in v0 w0; do
            ip netns exec $end rdma link add rxe_${end}_$dev type rxe netdev $dev
        done
    done";

fn all_tests() -> Vec<Test> {
    let bandwidth = |op| Test::bandwidth(op, 65536, 4096);
    let mut tests = vec![
        bandwidth("WRITE"),
        bandwidth("SEND"),
        bandwidth("READ"),
        Test::latency("WRITE", 8),
        Test::latency("SEND", 8),
        Test::rate("WRITE"),
    ];
    tests.extend(LOSSES.map(|loss| Test { loss: Some(loss), ..bandwidth("WRITE") }));
    tests.into_iter().map(|test| Test { place: Place::Vm, ..test }).collect()
}

/// The output of `perf record` in the VM, with the files that are needed to read it.
pub(super) struct Recording {
    pub(super) samples: PathBuf,
    /// The file with the kernel's symbols.
    pub(super) symbols: PathBuf,
    /// The directory in which the programs' files have the paths that they have in the VM.
    pub(super) files: PathBuf,
    /// The directory of all these files.
    _dir: Rc<TempDir>,
}

/// Samples the tests of [`profiled`] in a VM with this kernel.
/// Each runs over our engine and over the kernel's devices.
pub(super) fn recordings(
    rxe: &str,
    kernel: &str,
    only: Option<&str>,
) -> Result<Vec<(Test, [Recording; 2])>> {
    let failed = |e| Error::Failed(format!("a directory for samples: {e}"));
    let dir = Rc::new(TempDir::new().map_err(failed)?);
    let files = dir.path().join("files");
    // In the mount namespace of `ip netns exec`, programs see the root of this machine as /host.
    fs::create_dir(&files).and_then(|()| symlink("/", files.join("host"))).map_err(failed)?;
    let net = Net::tap(1500)?;
    let spec = Spec { shares: vec![dir.path().to_owned()], ..Spec::default() };
    let vm = boot(&net, kernel, spec)?;
    let symbols = dir.path().join("kallsyms");
    vm.run(Cmd::sh(format!("cat /proc/kallsyms > {}", symbols.display())))?.ok()?;
    profiled(only)
        .map(|test| {
            let record = |rxe: Option<&str>| {
                let kind = if rxe.is_some() { "rxe" } else { "kernel" };
                let samples = dir.path().join(format!("{kind} {test}.data").replace(' ', "-"));
                record(&vm, test, rxe, &samples.display().to_string())?;
                let (symbols, files) = (symbols.clone(), files.clone());
                Ok(Recording { samples, symbols, files, _dir: Rc::clone(&dir) })
            };
            Ok((test, [record(Some(rxe))?, record(None)?]))
        })
        .collect()
}

/// Returns the tests whose name contains `only`, with few losses or none.
fn profiled(only: Option<&str>) -> impl Iterator<Item = Test> {
    let tests =
        all_tests().into_iter().filter(|test| test.loss.is_none_or(|loss| loss <= PROFILED_LOSS));
    tests.filter(move |test| tests::is_named(test, only))
}

/// Samples both CPUs for some seconds while packets are being exchanged.
fn record(vm: &Vm, test: Test, rxe: Option<&str>, file: &str) -> Result<()> {
    let ends = Ends::new(test, 1_000_000, rxe);
    let Ends { first, interface, .. } = ends;
    let counter =
        format!("ip netns exec {first} cat /sys/class/net/{interface}/statistics/rx_packets");
    ends.run(vm, 1, |client| {
        let recorded = until(vm, &format!("[ $({counter}) -gt 1000 ]"), "no packets come");
        let recorded = recorded.and_then(|()| {
            // perf cannot write its pages directly to a shared folder of the host.
            let perf =
                "perf record -q -B -N -a -g -e cpu-clock -F 499 -o /run/perf.data -- sleep 5";
            vm.run(Cmd::sh(format!("{perf} && mv /run/perf.data {file}")))?.ok()
        });
        let ended = client.wait_timeout(Duration::ZERO);
        end(&client);
        recorded?;
        // With losses a connection may fail, and then the samples would be of an idle machine.
        match ended? {
            None => Ok(()),
            Some(code) => Err(Error::Failed(format!("the program ended with {code} meanwhile"))),
        }
    })
}

/// Kills a program, and waits until it has ended.
fn end(program: &Proc) {
    program.kill("KILL");
    let _ = program.wait_timeout(Duration::from_secs(10));
}

/// The two programs of a test.
struct Ends<'a> {
    rxe: Option<&'a str>,
    program: String,
    /// The percentage of packets that the router loses; `None` without a router.
    loss: Option<f64>,
    /// The namespaces of the server, of the router and of the client.
    first: &'static str,
    router: &'static str,
    second: &'static str,
    interface: &'static str,
    /// The server's address.
    address: &'static str,
}

impl<'a> Ends<'a> {
    /// Returns programs over our engine if `rxe` is given, or over the kernel's devices.
    fn new(test: Test, messages: u32, rxe: Option<&'a str>) -> Self {
        let (first, router, second) =
            if rxe.is_some() { ("c", "cd", "d") } else { ("a", "ab", "b") };
        let (interface, address) =
            if test.loss.is_some() { ("w0", "10.1.1.1") } else { ("v0", "10.1.0.1") };
        let program = perftest::command(test, messages, PORT);
        Self { rxe, program, loss: test.loss, first, router, second, interface, address }
    }

    fn command(&self, end: &str) -> String {
        let Self { program, interface, .. } = self;
        let run = format!("exec ip netns exec {end}");
        match self.rxe {
            Some(rxe) => format!("{run} {rxe} run --backend udp -- {program} -d rxe_{interface}"),
            None => format!("{run} {program} -d rxe_{end}_{interface} -x 1"),
        }
    }

    /// Makes the router lose this percentage of packets in either direction. `seed` chooses which
    /// ones, by their order.
    fn lose(&self, vm: &Vm, loss: f64, seed: u32) -> Result<()> {
        const LOSE: &str = include_str!("lose.py");
        let percent = loss.to_string();
        for (interface, seed) in [("w1", 2 * seed), ("w2", 2 * seed + 1)] {
            let seed = seed.to_string();
            let lose = ["python3", "-c", LOSE, interface, &percent, &seed];
            vm.run(Cmd::new("ip").args(["netns", "exec", self.router]).args(lose))?.ok()?;
        }
        Ok(())
    }

    /// Starts both programs, and ends the server when `client` has returned. Both contenders lose the
    /// same packets, by their order, if they have the same `seed`.
    fn run<T>(&self, vm: &Vm, seed: u32, client: impl FnOnce(Proc) -> Result<T>) -> Result<T> {
        if let Some(loss) = self.loss {
            self.lose(vm, loss, seed)?;
        }
        let server = vm.spawn(Cmd::sh(self.command(self.first)))?;
        let result = until_listening(vm, self.first).and_then(|()| {
            client(vm.spawn(Cmd::sh(format!("{} {}", self.command(self.second), self.address)))?)
        });
        end(&server);
        result
    }
}

/// Runs perftest once.
fn measure(vm: &Vm, test: Test, seed: u32, rxe: Option<&str>) -> Measured {
    // The emulated processor is about 50 times slower than this one.
    let messages = match test.kind {
        Kind::Bandwidth => 1000,
        Kind::Latency => 3000,
        Kind::Rate => 20_000,
    };
    let result = Ends::new(test, messages, rxe).run(vm, seed, |client| {
        let ended = client.wait_timeout(Duration::from_secs(120))?;
        if ended.is_none() {
            client.kill("KILL");
        }
        client.output()
    });
    let text = result.and_then(rxe_harness::vm::Output::ok).map_err(|e| e.to_string())?;
    let sample = perftest::sample(&text, test);
    // Results of a VM are in MB/s and in thousands of messages a second.
    let scale = if test.kind == Kind::Latency { 1.0 } else { 1000.0 };
    let scaled = sample.map(|sample| Sample { value: sample.value * scale, ..sample });
    scaled.ok_or_else(|| format!("not understood: {text}"))
}

fn until_listening(vm: &Vm, netns: &str) -> Result<()> {
    let look = format!("ip netns exec {netns} ss -Htln 'sport = :{PORT}' | grep -q .");
    until(vm, &look, "the server does not listen")
}

/// Repeats a command until it succeeds, for up to a minute.
fn until(vm: &Vm, look: &str, otherwise: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    while vm.run(Cmd::sh(look))?.code != 0 {
        if Instant::now() > end {
            return Err(Error::Failed(otherwise.into()));
        }
    }
    Ok(())
}

fn plot(tables: &[Table]) -> Plot {
    let line = |at: usize, name: &str| {
        let lossy = tables.iter().filter(|t| t.is_like(Test::bandwidth("WRITE", 65536, 4096)));
        let point = |table: &Table| Some((table.loss()?, table.median(at)?));
        Line { name: name.into(), points: lossy.filter_map(point).collect() }
    };
    Plot {
        file: "loss",
        title: "64 KiB WRITE over a link that loses packets, in one VM",
        x: Axis::Loss,
        y: Axis::SlowBandwidth,
        lines: vec![line(0, OURS), line(1, KERNELS)],
    }
}

#[cfg(test)]
mod profiles {
    use super::*;

    #[test]
    fn three_profiles_are_of_a_router_that_loses_packets_or_none() {
        let names: Vec<_> = profiled(Some("lost")).map(|test| test.to_string()).collect();
        let lossy = ["0", "0.1", "1"]
            .map(|p| format!("64 KiB WRITE bandwidth, in a VM, {p} % of packets lost"));
        assert_eq!(names, lossy);
        assert!(profiled(None).any(|test| test.loss.is_none()));
    }
}
