//! Captures two kernels at both ends of a link that loses packets.

use super::{Args, LARGEST, Side, boot};
use flate2::{Compression, GzBuilder};
use rxe_harness::peer::Peer;
use rxe_harness::scenario::{LOSSY, Scenario};
use rxe_harness::vm::{Error, Kernel, Lossy, Passed, Result};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::Path;

/// The number of runs of each conversation in which one packet in ten is lost.
const RUNS: u64 = 12;

/// The captures of a conversation that is repeated many times.
#[derive(Default)]
struct Captures {
    /// The captured packets at each end.
    taps: [Vec<u8>; 2],
    frames: [u64; 2],
    /// A line of JSON for each repetition.
    log: String,
}

/// Captures each conversation without a loss, then with each of its packets lost in turn.
/// Then follow runs with random losses.
pub(super) fn kernels(args: &Args, kernel: &Kernel) -> Result<()> {
    let link = Lossy::new(1500)?;
    let [a, b] = link.nets();
    let (a, b) = boot(a, b, kernel)?;
    link.join()?;
    let release = a.run(["uname", "-r"])?.ok()?.trim().to_owned();
    let mut ends = [
        Side::open(Peer::in_vm(&a)?, a.v4(), a.v6())?,
        Side::open(Peer::in_vm(&b)?, b.v4(), b.v6())?,
    ];
    let dir = args.out.join(format!("kernel-{}-lossy", args.kernel));
    write(
        &dir.join("README.md"),
        README.replace("{release}", &release).replace("{version}", &args.kernel).as_bytes(),
    )?;
    // The first packet is retransmitted while the peer's MAC address is resolved, so it is not
    // captured.
    Captures::default().hold(&link, &mut ends, &LOSSY[0], [vec![], vec![]])?;
    for scenario in LOSSY {
        let mut captures = Captures::default();
        let mut hold = |lose: [Vec<usize>; 2]| captures.hold(&link, &mut ends, scenario, lose);
        let [requests, responses] = hold([vec![], vec![]])?;
        for nth in 0..requests {
            hold([vec![nth], vec![]])?;
        }
        for nth in 0..responses {
            hold([vec![], vec![nth]])?;
        }
        for run in 0..RUNS {
            let mut draw = draws(run);
            let mut chosen = || (0..200).filter(|_| draw().is_multiple_of(10)).collect();
            hold([chosen(), chosen()])?;
        }
        println!("{}: {} and {} frames", scenario.name, captures.frames[0], captures.frames[1]);
        for (tap, end) in captures.taps.iter().zip(["a", "b"]) {
            let mut out = GzBuilder::new().write(Vec::new(), Compression::best());
            let packed = out.write_all(tap).and_then(|()| out.finish());
            let packed = packed.map_err(|e| Error::Failed(format!("gzip: {e}")))?;
            write(&dir.join(format!("{}-{end}.pcap.gz", scenario.name)), &packed)?;
        }
        write(&dir.join(format!("{}.jsonl", scenario.name)), captures.log.as_bytes())?;
    }
    Ok(())
}

impl Captures {
    /// Runs the conversation once. Returns how many packets each end has sent.
    fn hold(
        &mut self,
        link: &Lossy,
        [a, b]: &mut [Side; 2],
        scenario: &Scenario,
        lose: [Vec<usize>; 2],
    ) -> Result<[usize; 2]> {
        link.lose(lose);
        scenario
            .run_lossy([a.end(false)?, b.end(false)?])
            .map_err(|e| Error::Failed(format!("{}: {e}", scenario.name)))?;
        let passed = link.take();
        let first = self.frames.map(|frames| frames + 1);
        let mut lost = Vec::new();
        for packet in &passed {
            for tap in 0..2 {
                if tap == packet.from || !packet.is_lost {
                    self.frames[tap] += 1;
                    append(&mut self.taps[tap], packet);
                }
            }
            if packet.is_lost {
                let from = ["a", "b"][packet.from];
                lost.push(json!({"from": from, "frame": self.frames[packet.from]}));
            }
        }
        let [a, b] = [0, 1].map(|tap| [first[tap], self.frames[tap]]);
        let line = json!({"a": a, "b": b, "lost": lost});
        self.log.push_str(&format!("{line}\n"));
        Ok([0, 1].map(|end| passed.iter().filter(|packet| packet.from == end).count()))
    }
}

/// Appends a frame to a pcap with nanosecond timestamps.
fn append(file: &mut Vec<u8>, packet: &Passed) {
    if file.is_empty() {
        let head = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 1 << 18, 1];
        file.extend(head.iter().flat_map(|word| word.to_le_bytes()));
    }
    let word = |n: u128| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let len = packet.bytes.len() as u128;
    for n in [packet.at / 1_000_000_000, packet.at % 1_000_000_000, len, len] {
        file.extend(word(n));
    }
    file.extend(&packet.bytes);
}

/// Returns a generator of numbers that depend only on the seed (xorshift).
fn draws(seed: u64) -> impl FnMut() -> u64 {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    }
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |why: String| Error::Failed(format!("{}: {why}", file.display()));
    if bytes.len() as u64 > LARGEST {
        return Err(failed(format!("it has {} bytes", bytes.len())));
    }
    let made = file.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(file, bytes)).map_err(|e| failed(e.to_string()))
}

const README: &str = "\
# Two kernels on a link that loses packets

Made by `cargo xtask pcaps --kernel {version} --only lossy`: two VMs with Linux {release} and its \
`rdma_rxe`, path MTU 256, local ACK timeout 16 (268 ms), and between them a link that loses the packets \
it is told to (`tests/harness/src/vm/lossy.rs`). `NAME-a.pcap.gz` is what passed the requester's end of the link, \
`NAME-b.pcap.gz` what passed the responder's. Each has one conversation many times, with other queue \
pairs: without a loss, then with each of its packets lost in turn, then twelve times with one packet in \
ten lost. A line of `NAME.jsonl` has one of these times: its first and last frame at either end, and the \
frames that were lost, counted in the capture of the end that sent them. The scripts are in \
`tests/harness/src/scenario.rs`. `tests/tests/check/lossy.rs` compares what `rxe check` finds with what was lost.
";
