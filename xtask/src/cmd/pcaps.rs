//! `cargo xtask pcaps`: captures of two kernels talking, one an operation and one a fault.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use xtask::peer::Peer;
use xtask::scenario::{ALL, End, Gid, Scenario};
use xtask::vm::{Error, Kernel, Net, Result, Spec, Vm};

/// What to capture, and where to.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The kernel of both VMs
    #[arg(long, default_value = "6.1")]
    kernel: String,
    /// The folder; captures go to kernel-VERSION in it
    #[arg(long, default_value = "pcaps")]
    out: PathBuf,
    /// Only scenarios whose name contains this
    filter: Option<String>,
}

/// No capture may be larger, in bytes.
const LARGEST: u64 = 200_000;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let kernel = Kernel::find(&args.kernel)?;
    let net = Net::bridge(1500)?;
    let spec = Spec::default();
    let (a, b) = thread::scope(|s| {
        let a = s.spawn(|| Vm::boot(&net, &kernel, &spec));
        let b = Vm::boot(&net, &kernel, &spec);
        (a.join().unwrap_or_else(|_| Err(Error::Failed("booting panicked".into()))), b)
    });
    let (mut a, mut b) = (a?, b?);
    if a.v4() > b.v4() {
        std::mem::swap(&mut a, &mut b);
    }
    let (mut peer_a, mut peer_b) = (Peer::in_vm(&a)?, Peer::in_vm(&b)?);
    let release = peer_a.call("hello", json!({}))?["version"].as_str().unwrap_or("?").to_owned();
    let (open_a, open_b) = (peer_a.call("open", json!({}))?, peer_b.call("open", json!({}))?);

    let dir = args.out.join(format!("kernel-{}", args.kernel));
    fs::create_dir_all(&dir).map_err(|e| Error::Failed(format!("{}: {e}", dir.display())))?;
    let mut rows = String::new();
    let families: [(&str, Family); 2] =
        [("", |v| format!("::ffff:{}", v.v4())), ("_ipv6", |v| v.v6().to_string())];
    for scenario in ALL {
        for (suffix, address) in families {
            let name = format!("{}{suffix}", scenario.name);
            // IPv6 differs in the frames' headers, not in what is said: one capture each way.
            let wanted = suffix.is_empty() || ["write", "read"].contains(&scenario.name);
            if !wanted || args.filter.as_ref().is_some_and(|f| !name.contains(f.as_str())) {
                continue;
            }
            let gids = [Gid::pick(&open_a, &address(&a))?, Gid::pick(&open_b, &address(&b))?];
            let [gid_a, gid_b] = gids;
            let ends = [
                End::new(&mut peer_a, number(&open_a["ctx"]), gid_a),
                End::new(&mut peer_b, number(&open_b["ctx"]), gid_b),
            ];
            let log = capture(&net, scenario, ends, &dir.join(format!("{name}.pcap")))?;
            let said = statuses(&log);
            println!("{name}: {said}");
            let _ = writeln!(rows, "| `{name}` | {} | {said} |", scenario.what);
        }
    }
    if args.filter.is_none() {
        let text = README.replace("{release}", &release).replace("{rows}\n", &rows);
        let text = text.replace("{version}", &args.kernel);
        let readme = dir.join("README.md");
        fs::write(&readme, text)
            .map_err(|e| Error::Failed(format!("{}: {e}", readme.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

type Family = fn(&Vm) -> String;

/// Holds a conversation, and leaves its capture and its log.
fn capture(net: &Net, scenario: &Scenario, ends: [End<'_>; 2], file: &Path) -> Result<Vec<Value>> {
    let failed = |why: String| Error::Failed(format!("{}: {why}", scenario.name));
    let capture = net.capture(file, "udp port 4791")?;
    let log = scenario.run(ends).map_err(|e| failed(e.to_string()));
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

/// The completions of both ends, in order, and the states of their queue pairs if they were asked.
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

const README: &str = "\
# Two kernels talking

Made by `cargo xtask pcaps --kernel {version}`: two VMs with Linux {release} and its `rdma_rxe` on a \
bridge, tcpdump on the bridge (`udp port 4791`), path MTU 256, the two ends scripted by \
`tests/peer/peer.py`. `a` asks, `b` answers; `a`'s first PSN is 0xfffffc, so that it wraps. The \
scripts are in `xtask/src/scenario.rs`. A file `NAME.jsonl` beside `NAME.pcap` holds every request \
to the two peers and every answer in order (addresses, keys, QPNs, memory patterns, completions): \
enough to play either end again.

| capture | what happens | completions |
| --- | --- | --- |
{rows}
";
