//! Beside the kernel's rdma_rxe: perftest over either, in turns, in one VM with two network namespaces
//! and a veth pair. An emulated processor is slow; what counts is the ratio.

use std::time::{Duration, Instant};

use xtask::vm::{Cmd, Error, Kernel, Net, Result, Spec, Vm};

use super::contender::{Measured, Sample, perftest};
use super::plot::{Axis, Line, Plot};
use super::report::{Round, Table};
use super::tests::{self, Kind, Place, Test};

/// The two that are compared.
const OURS: &str = "perftest on rxe";
const KERNELS: &str = "perftest on kernel rxe";
/// Lost packets, in percent.
const LOSSES: [f64; 4] = [0.0, 0.1, 1.0, 5.0];
const PORT: u16 = 18515;
const SERVER: &str = "10.1.0.1";

/// Runs the tests whose name contains `only` in a VM with this kernel, and again over a link that loses
/// packets.
pub(super) fn run(
    rxe: &str,
    kernel: &str,
    rounds: u32,
    only: Option<&str>,
) -> Result<(Vec<Table>, Plot)> {
    let net = Net::tap(1500)?;
    let spec = Spec { memory: 3000, rxe: false, ..Spec::default() };
    let vm = Vm::boot(&net, &Kernel::find(kernel)?, &spec)?;
    vm.run(Cmd::sh(SET_UP))?.ok()?;
    let mut tables = Vec::new();
    for test in all_tests().into_iter().filter(|test| tests::is_named(test, only)) {
        let mut table = Table::new(test, vec![OURS.into(), KERNELS.into()]);
        for round in 1..=rounds {
            eprint!("\r\x1b[K{test}: round {round} of {rounds}");
            set_loss(&vm, test.loss)?;
            let (ours, kernels) = (measure(&vm, test, Some(rxe)), measure(&vm, test, None));
            table.push(Round(vec![ours, kernels]));
        }
        eprint!("\r\x1b[K");
        tables.push(table);
    }
    let plot = plot(&tables);
    Ok((tables, plot))
}

/// Two pairs of namespaces, since port 4791 of an address is either's: `a` and `b` with the kernel's
/// devices, `c` and `d` without.
const SET_UP: &str = "set -e
    for end in a b c d; do ip netns add $end; done
    ip link add v0 netns a mtu 4200 type veth peer name v0 netns b mtu 4200
    ip link add v0 netns c mtu 4200 type veth peer name v0 netns d mtu 4200
    for end in a b c d; do
        case $end in a|c) last=1;; *) last=2;; esac
        ip -n $end addr add 10.1.0.$last/24 dev v0
        ip -n $end link set v0 up
        ip -n $end link set lo up
    done
    for end in a b; do ip netns exec $end rdma link add rxe_$end type rxe netdev v0; done";

fn all_tests() -> Vec<Test> {
    let bandwidth = |op| Test::bandwidth(op, 65536, 4096);
    let mut tests = vec![
        bandwidth("WRITE"),
        bandwidth("SEND"),
        bandwidth("READ"),
        Test::latency("WRITE", 8),
        Test::rate("WRITE"),
    ];
    tests.extend(LOSSES[1..].iter().map(|&loss| Test { loss, ..bandwidth("WRITE") }));
    tests.into_iter().map(|test| Test { place: Place::Vm, ..test }).collect()
}

fn set_loss(vm: &Vm, percent: f64) -> Result<()> {
    let change = if percent > 0.0 {
        format!("replace dev v0 root netem limit 10000 loss {percent}%")
    } else {
        "del dev v0 root 2>/dev/null || true".into()
    };
    let all = format!("for end in a b c d; do tc -n $end qdisc {change}; done");
    vm.run(Cmd::sh(all))?.ok().map(drop)
}

/// One run of perftest: over our engine if `rxe` is given, else over the kernel's devices.
fn measure(vm: &Vm, test: Test, rxe: Option<&str>) -> Measured {
    // The emulated processor is some 50 times slower.
    let messages = match test.kind {
        Kind::Bandwidth => 1000,
        Kind::Latency => 3000,
        Kind::Rate => 20_000,
    };
    let program = perftest::command(test, messages, PORT);
    let (first, second) = if rxe.is_some() { ("c", "d") } else { ("a", "b") };
    let command = |end: &str| match rxe {
        Some(rxe) => format!("exec ip netns exec {end} {rxe} run --backend udp -- {program}"),
        None => format!("exec ip netns exec {end} {program} -d rxe_{end} -x 1"),
    };
    let server = vm.spawn(Cmd::sh(command(first))).map_err(|e| e.to_string())?;
    let result = until_listening(vm, first).and_then(|()| {
        let client = vm.spawn(Cmd::sh(format!("{} {SERVER}", command(second))))?;
        let ended = client.wait_timeout(Duration::from_secs(120))?;
        if ended.is_none() {
            client.kill("KILL");
        }
        client.output()
    });
    server.kill("KILL");
    let _ = server.wait_timeout(Duration::from_secs(10));
    let text = result.and_then(xtask::vm::Output::ok).map_err(|e| e.to_string())?;
    let sample = perftest::sample(&text, test);
    // In MB/s and thousand messages a second.
    let scale = if test.kind == Kind::Latency { 1.0 } else { 1000.0 };
    let scaled = sample.map(|sample| Sample { value: sample.value * scale, ..sample });
    scaled.ok_or_else(|| format!("not understood: {text}"))
}

fn until_listening(vm: &Vm, netns: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    let look = format!("ip netns exec {netns} ss -Htln 'sport = :{PORT}' | grep -q .");
    while vm.run(Cmd::sh(look.as_str()))?.code != 0 {
        if Instant::now() > end {
            return Err(Error::Failed("the server does not listen".into()));
        }
    }
    Ok(())
}

fn plot(tables: &[Table]) -> Plot {
    let line = |at: usize, name: &str| {
        let lossy = tables.iter().filter(|t| t.is_like(Test::bandwidth("WRITE", 65536, 4096)));
        let point = |table: &Table| Some((table.loss(), table.median(at)?));
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
