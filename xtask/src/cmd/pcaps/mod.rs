//! `cargo xtask pcaps`: captures two kernels, and our engine and a kernel, with one capture for
//! each operation and each fault.

mod lossy;

use super::interop::build;
use rxe_harness::peer::Peer;
use rxe_harness::scenario::{ALL, End, Gid, Scenario};
use rxe_harness::vm::{Error, Frames, HOST_V4, HOST_V6, Kernel, LINK, Net, Result, Spec, Vm};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// The captures to create, and the directory for them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The kernel of the VMs
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// Only two kernels, two on a link that loses packets, our engine and a kernel, or XRC between two of
    /// our engines
    #[arg(long, value_name = "WHO")]
    only: Option<Who>,
    /// The directory, in which captures go to kernel-VERSION, kernel-VERSION-lossy,
    /// ours-kernel-VERSION and kernel-VERSION-ours
    #[arg(long, default_value = "pcaps")]
    out: PathBuf,
    /// Only scenarios whose name contains this
    filter: Option<String>,
}

/// The maximum size of a capture in bytes.
const LARGEST: u64 = 200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Who {
    Kernels,
    Lossy,
    Ours,
    Xrc,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let wanted = |who| args.only.is_none_or(|only| only == who);
    if [Who::Kernels, Who::Lossy, Who::Ours].into_iter().any(wanted) {
        let kernel = Kernel::find(&args.kernel)?;
        if wanted(Who::Kernels) {
            kernels(args, &kernel)?;
        }
        if wanted(Who::Lossy) && args.filter.is_none() {
            lossy::kernels(args, &kernel)?;
        }
        if wanted(Who::Ours) {
            ours(args, &kernel)?;
        }
    }
    if wanted(Who::Xrc) {
        xrc(args)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Captures XRC between two of our engines on a veth pair. No kernel's `rdma_rxe` supports XRC.
fn xrc(args: &Args) -> Result<()> {
    let bin = build()?;
    let (net, far) = Net::pair(1500)?;
    for net in [&net, &far] {
        // Without segmentation, each captured frame is one packet.
        let set = net.command("ip").args(["link", "set", LINK, "gso_max_segs", "1"]).status();
        if !set.is_ok_and(|s| s.success()) {
            return Err(Error::Failed("ip cannot set gso_max_segs".into()));
        }
    }
    let peer = |net: &Net| {
        let mut cmd = net.command(bin.join("rxe-peer"));
        cmd.args(["--device", LINK]);
        Peer::on_host(cmd)
    };
    let mut a = Side::open(peer(&net)?, HOST_V4, HOST_V6)?;
    let [x, y, z, _] = HOST_V4.octets();
    let far_v6 = Ipv6Addr::from(u128::from(HOST_V6) - 1 + 11);
    let mut b = Side::open(peer(&far)?, Ipv4Addr::new(x, y, z, 11), far_v6)?;
    every(args, &net, [&mut a, &mut b], "ours-xrc", README_XRC)
}

/// The names of the scenarios that are captured over XRC.
const OVER_XRC: [&str; 9] = [
    "send",
    "send_imm",
    "write",
    "write_imm",
    "read",
    "cas",
    "fetch_add",
    "rnr_late",
    "write_wrong_rkey",
];

/// Captures two VMs on a bridge.
fn kernels(args: &Args, kernel: &Kernel) -> Result<()> {
    let net = Net::bridge(1500)?;
    let (mut a, mut b) = boot(&net, &net, kernel)?;
    if a.v4() > b.v4() {
        std::mem::swap(&mut a, &mut b);
    }
    let release = a.run(["uname", "-r"])?.ok()?.trim().to_owned();
    let [mut a, mut b] = [
        Side::open(Peer::in_vm(&a)?, a.v4(), a.v6())?,
        Side::open(Peer::in_vm(&b)?, b.v4(), b.v6())?,
    ];
    let readme = README.replace("{release}", &release);
    let dir = format!("kernel-{}", args.kernel);
    every(args, &net, [&mut a, &mut b], &dir, &readme)
}

/// Boots two VMs at the same time.
fn boot(a: &Net, b: &Net, kernel: &Kernel) -> Result<(Vm, Vm)> {
    let spec = Spec::default();
    let (a, b) = thread::scope(|s| {
        let a = s.spawn(|| Vm::boot(a, kernel, &spec));
        let b = Vm::boot(b, kernel, &spec);
        (a.join().unwrap_or_else(|_| Err(Error::Failed("booting panicked".into()))), b)
    });
    Ok((a?, b?))
}

/// Captures a VM on a tap, and our engine on the host's end of it.
/// The tap has no offloads, so each captured frame is one packet.
fn ours(args: &Args, kernel: &Kernel) -> Result<()> {
    let bin = build()?;
    let net = Net::tap(1500)?;
    let vm = Vm::boot(&net, kernel, &Spec::default())?;
    let release = vm.run(["uname", "-r"])?.ok()?.trim().to_owned();
    let mut cmd = net.command(bin.join("rxe-peer"));
    cmd.args(["--device", LINK]);
    let mut host = Side::open(Peer::on_host(cmd)?, HOST_V4, HOST_V6)?;
    let mut guest = Side::open(Peer::in_vm(&vm)?, vm.v4(), vm.v6())?;
    let readme = README_OURS.replace("{release}", &release);
    let (asks, answers) = ("our engine asks (`a`) and Linux", "Linux");
    let text = readme.replace("{who}", &format!("{asks} {release} answers (`b`)"));
    let dir = format!("ours-kernel-{}", args.kernel);
    every(args, &net, [&mut host, &mut guest], &dir, &text)?;
    let text = readme
        .replace("{who}", &format!("{answers} {release} asks (`a`) and our engine answers (`b`)"));
    let dir = format!("kernel-{}-ours", args.kernel);
    every(args, &net, [&mut guest, &mut host], &dir, &text)
}

/// A peer, with its open device and its addresses.
struct Side {
    peer: Peer,
    open: Value,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl Side {
    fn open(mut peer: Peer, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<Self> {
        let open = peer.call("open", json!({}))?;
        Ok(Self { peer, open, v4, v6 })
    }

    fn end(&mut self, v6: bool) -> Result<End<'_>> {
        let address = if v6 { self.v6.to_string() } else { format!("::ffff:{}", self.v4) };
        let gid = Gid::pick(&self.open, &address)?;
        Ok(End::new(&mut self.peer, number(&self.open["ctx"]), gid))
    }
}

/// Captures every scenario. The first of the sides is the requester.
fn every(args: &Args, net: &Net, sides: [&mut Side; 2], dir: &str, readme: &str) -> Result<()> {
    let dir = args.out.join(dir);
    fs::create_dir_all(&dir).map_err(|e| Error::Failed(format!("{}: {e}", dir.display())))?;
    let mut rows = String::new();
    let [a, b] = sides;
    for scenario in ALL {
        for (suffix, v6) in [("", false), ("_ipv6", true)] {
            let name = format!("{}{suffix}", scenario.name);
            // IPv6 changes only the headers of frames, not the conversation, so one capture of each
            // direction is enough.
            let wanted = !v6 || ["write", "read"].contains(&scenario.name);
            let xrc = dir.ends_with("ours-xrc");
            let wanted = wanted && (!xrc || OVER_XRC.contains(&scenario.name));
            if !wanted || args.filter.as_ref().is_some_and(|f| !name.contains(f.as_str())) {
                continue;
            }
            let ends = [a.end(v6)?, b.end(v6)?];
            let run = if xrc { Scenario::run_xrc } else { Scenario::run };
            let hold = |ends| run(scenario, ends);
            let log = capture(net, scenario.name, ends, &dir.join(format!("{name}.pcap")), hold)?;
            let said = statuses(&log);
            println!("{name}: {said}");
            let _ = writeln!(rows, "| `{name}` | {} | {said} |", scenario.what);
        }
    }
    if args.filter.is_some() {
        return Ok(());
    }
    let text = readme.replace("{rows}\n", &rows).replace("{version}", &args.kernel);
    let readme = dir.join("README.md");
    fs::write(&readme, text).map_err(|e| Error::Failed(format!("{}: {e}", readme.display())))
}

/// Runs a conversation, and writes its capture and its log.
fn capture<'e>(
    net: &Net,
    name: &str,
    ends: [End<'e>; 2],
    file: &Path,
    hold: impl FnOnce([End<'e>; 2]) -> Result<Vec<Value>>,
) -> Result<Vec<Value>> {
    let failed = |why: String| Error::Failed(format!("{name}: {why}"));
    let capture = net.capture(file, Frames::Whole)?;
    let log = hold(ends).map_err(|e| failed(e.to_string()));
    thread::sleep(Duration::from_millis(100));
    capture.stop();
    let log = log?;
    let size = fs::metadata(file).map_or(0, |m| m.len());
    if size > LARGEST {
        return Err(failed(format!("the capture has {size} bytes")));
    }
    let lines: String = log.iter().map(|line| format!("{line}\n")).collect();
    let beside = file.with_extension("jsonl");
    fs::write(&beside, lines).map_err(|e| failed(format!("{}: {e}", beside.display())))?;
    Ok(log)
}

/// Returns the completions of both ends in order, and the queried states of QPs.
fn statuses(log: &[Value]) -> String {
    let of = |end: &str| {
        let mut said: Vec<String> = Vec::new();
        for line in log.iter().filter(|l| l["end"] == end) {
            for wc in line["answer"]["wcs"].as_array().into_iter().flatten() {
                let status = wc["status"].as_str().unwrap_or("?");
                match said.last_mut().map(|s| (s.clone(), s)) {
                    Some((last, s)) if last == status => *s = format!("{status} …"),
                    Some((last, _)) if last == format!("{status} …") => {}
                    _ => said.push(status.to_owned()),
                }
            }
            if line["request"]["cmd"] == "query_qp" {
                said.push(format!("(QP {})", line["answer"]["state"].as_str().unwrap_or("?")));
            }
        }
        if said.is_empty() { "nothing".to_owned() } else { said.join(", ") }
    };
    format!("a: {}; b: {}", of("a"), of("b"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

const README_XRC: &str = "\
# XRC between two of our engines

Made by `cargo xtask pcaps --only xrc`: two of our engines (`rxe-peer`, backend udp) in two network \
namespaces on a veth pair, tcpdump on it (`udp port 4791`), path MTU 256, the same scripts \
(`tests/harness/src/scenario.rs`) as over RC. `a` asks by an initiator QP, `b` answers by a target QP; every \
request names the one shared receive queue of `b`. `a`'s first PSN is 0xfffffc, so that it wraps. \
`NAME.jsonl` beside `NAME.pcap` holds every request to the two peers and every answer in order.

tshark 4.0 calls no packet malformed. It reads the BTH and names the opcode in the details (`-V`: \
\"Extended Reliable Connection (XRC) - RDMA WRITE Only (170)\"), though the summary says \"Unknown \
OpCode\". What follows the BTH it does not take apart, but shows as \"Unknown/Vendor Specific Data\", \
ICRC included. There XRCETH comes first, in requests only: a byte that is 0 and 24 bits of the \
shared receive queue's number; then the headers that the same operation has over RC (its opcode is \
this one less 0xA0). Opcode, destination, PSN and those bytes:

```
tshark -r write.pcap -T fields -e infiniband.bth.opcode -e infiniband.bth.destqp \
    -e infiniband.bth.psn -e infiniband.vendor
```

| capture | what happens | completions |
| --- | --- | --- |
{rows}
";

const README_OURS: &str = "\
# Our engine and a kernel talking

Made by `cargo xtask pcaps --kernel {version} --only ours`: {who}. A VM with Linux {release} and its \
`rdma_rxe` on a tap, our engine (`rxe-peer`, backend udp) on the host's end of it, tcpdump on the tap \
(`udp port 4791`), path MTU 256, the same scripts (`tests/harness/src/scenario.rs`) as between two kernels; \
`a`'s first PSN is 0xfffffc, so that it wraps. `NAME.jsonl` beside `NAME.pcap` holds every request to \
the two peers and every answer in order.

| capture | what happens | completions |
| --- | --- | --- |
{rows}
";

const README: &str = "\
# Two kernels talking

Made by `cargo xtask pcaps --kernel {version}`: two VMs with Linux {release} and its `rdma_rxe` on a \
bridge, tcpdump on the bridge (`udp port 4791`), path MTU 256, the two ends scripted by \
`tests/peer/peer.py`. `a` asks, `b` answers; `a`'s first PSN is 0xfffffc, so that it wraps. The \
scripts are in `tests/harness/src/scenario.rs`. A file `NAME.jsonl` beside `NAME.pcap` holds every request \
to the two peers and every answer in order (addresses, keys, QPNs, memory patterns, completions): \
enough to play either end again.

| capture | what happens | completions |
| --- | --- | --- |
{rows}
";
