//! The settings that `rxe run` passes in environment variables.
//!
//! An invalid value is reported on stderr, and the default is used. With invalid faults no device
//! can be opened, because a test would otherwise pass without the faults.

use std::env;
use std::path::PathBuf;
use std::process;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_net::BackendKind;
use rxe_verbs::device::Identity;
use rxe_verbs::{AckPolicy, AckTimeout, FaultPlan, OpenOptions, SourcePortPolicy};

use crate::stderr;

/// Which explanations are written to stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Explain {
    /// Nothing.
    Off,
    /// Mistakes, each kind once.
    Errors,
    /// Mistakes and other useful information.
    All,
}

/// The values of the variables, read once.
pub(crate) struct Config {
    /// `RXE_BACKEND`: how packets are sent and received.
    pub(crate) backend: BackendKind,
    /// `RXE_SHM`: whether programs on this host exchange packets through shared memory.
    pub(crate) shared_memory: bool,
    /// `RXE_KEEPALIVE`: whether connections probe whether their peers still exist.
    pub(crate) keepalive: bool,
    /// `RXE_REALTIME`: whether the device's threads may have a real-time priority.
    pub(crate) realtime: bool,
    /// `RXE_GSO`: whether the kernel segments (GSO) and coalesces (GRO) packets.
    pub(crate) segmentation: bool,
    /// `RXE_PCAP`: the file to capture to, in which `%p` stands for the process ID.
    pcap: Option<String>,
    /// `RXE_FAULT` and `RXE_SEED`: the seed and the faults to inject, or why they are invalid.
    pub(crate) faults: Result<Option<(u64, FaultPlan)>, String>,
    /// `RXE_EXPLAIN`: which explanations are written.
    pub(crate) explain: Explain,
    /// `RXE_DEVICE`: the names of the only devices to show, separated by commas.
    pub(crate) devices: Option<Vec<String>>,
    /// `RXE_HOST_DEVICES`: whether the host's own devices are shown next to ours.
    pub(crate) host_devices: bool,
    /// `RXE_AS`: the driver whose device names and identity the devices take.
    pub(crate) identity: Option<Identity>,
    /// `RXE_LIDS`: whether LIDs may address peers.
    pub(crate) lids: bool,
    /// `RXE_ACK`: when acknowledgements are sent.
    pub(crate) acks: AckPolicy,
    /// `RXE_SOURCE_PORT`: the UDP source ports of packets.
    pub(crate) source_port: SourcePortPolicy,
    /// `RXE_SHARDS`: the number of shards among which queue pairs are distributed.
    /// If it is not set, each thread that creates queue pairs has a shard.
    pub(crate) shards: Option<u32>,
    /// `RXE_ACK_TIMEOUT`: the minimum acknowledgement timeout of queue pairs.
    pub(crate) ack_timeout: Option<AckTimeout>,
}

/// The settings of this process.
pub(crate) static CONFIG: LazyLock<Config> = LazyLock::new(|| Config {
    backend: chosen("RXE_BACKEND", &BackendKind::ALL.map(|kind| (kind.name(), kind))),
    shared_memory: chosen("RXE_SHM", &[("on", true), ("off", false)]),
    keepalive: chosen("RXE_KEEPALIVE", &[("on", true), ("off", false)]),
    realtime: chosen("RXE_REALTIME", &[("on", true), ("off", false)]),
    segmentation: chosen("RXE_GSO", &[("on", true), ("off", false)]),
    pcap: var("RXE_PCAP"),
    faults: var("RXE_FAULT").map(|text| faults(&text, var("RXE_SEED").as_deref())).transpose(),
    explain: chosen(
        "RXE_EXPLAIN",
        &[("errors", Explain::Errors), ("off", Explain::Off), ("all", Explain::All)],
    ),
    devices: var("RXE_DEVICE").map(|names| names.split(',').map(str::to_owned).collect()),
    host_devices: chosen("RXE_HOST_DEVICES", &[("off", false), ("on", true)]),
    identity: chosen("RXE_AS", &[("rxe", None), ("mlx5", Some(Identity::Mlx5))]),
    lids: chosen("RXE_LIDS", &[("off", false), ("on", true)]),
    acks: chosen("RXE_ACK", &[("adaptive", AckPolicy::Adaptive), ("prompt", AckPolicy::Prompt)]),
    source_port: var("RXE_SOURCE_PORT").map(|value| source_port(&value)).unwrap_or_default(),
    shards: var("RXE_SHARDS").and_then(|value| shards(&value)),
    ack_timeout: var("RXE_ACK_TIMEOUT").and_then(|value| ack_timeout(&value)),
});

impl Config {
    /// Returns the capture file for the next device that is opened.
    /// The first device gets the file of `RXE_PCAP` itself, others get that name with a number
    /// appended.
    pub(crate) fn pcap(&self) -> Option<PathBuf> {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let name = self.pcap.as_ref()?.replace("%p", &process::id().to_string());
        Some(match OPENED.fetch_add(1, Ordering::Relaxed) {
            0 => name.into(),
            n => format!("{name}.{n}").into(),
        })
    }
}

/// Parses the faults, with this seed or, if they need one and none is given, a random one.
fn faults(text: &str, seed: Option<&str>) -> Result<(u64, FaultPlan), String> {
    let plan: FaultPlan = text.parse().map_err(|why| format!("RXE_FAULT={text}: {why}"))?;
    let seed = match seed {
        Some(seed) => seed.parse().map_err(|_| {
            format!("RXE_SEED={seed}: a seed is a whole number from 0 to {}", u64::MAX)
        })?,
        None if !plan.needs_seed() => 0,
        None => {
            let seed = FaultPlan::random_seed().unwrap_or(1);
            stderr::line(&format!(
                "the seed of the faults is {seed} (RXE_SEED={seed} repeats them)"
            ));
            seed
        }
    };
    Ok((seed, plan))
}

fn source_port(value: &str) -> SourcePortPolicy {
    value.parse().unwrap_or_else(|_| {
        stderr::line(&format!(
            "RXE_SOURCE_PORT={value} means nothing: set it to a number from 1 to 65535 or to per-qp; going \
             on with per-qp"
        ));
        SourcePortPolicy::PerQp
    })
}

fn shards(value: &str) -> Option<u32> {
    let count = value.parse().ok().filter(|count| OpenOptions::SHARDS.contains(count));
    if count.is_none() {
        let (least, most) = (OpenOptions::SHARDS.start(), OpenOptions::SHARDS.end());
        stderr::line(&format!(
            "RXE_SHARDS={value} means nothing: set it to a number from {least} to {most}; going on with a \
             shard for each thread that makes queue pairs"
        ));
    }
    count
}

fn ack_timeout(value: &str) -> Option<AckTimeout> {
    // 0 would mean no timeout, and requests to a peer that is gone would never fail.
    let code = value.parse().ok().filter(|code| *code > 0).and_then(AckTimeout::new);
    if code.is_none() {
        stderr::line(&format!(
            "RXE_ACK_TIMEOUT={value} means nothing: set it to a number from 1 to 31; going on with the \
             timeouts of the program"
        ));
    }
    code
}

/// Returns the choice that a variable names. If it is not set or invalid, returns the first one.
fn chosen<T: Copy>(name: &str, choices: &[(&str, T)]) -> T {
    var(name).map_or(choices[0].1, |value| {
        choose(name, &value, choices).unwrap_or_else(|why| {
            stderr::line(&why);
            choices[0].1
        })
    })
}

fn choose<T: Copy>(name: &str, value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let found = choices.iter().find(|(word, _)| *word == value).map(|(_, choice)| *choice);
    found.ok_or_else(|| {
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        let words = words.join(" or ");
        format!("{name}={value} means nothing: set it to {words}; going on with {}", choices[0].0)
    })
}

/// Returns the value of a variable, if it is set and not empty.
/// In a program with more privileges than its user (setuid, file capabilities) all variables are
/// ignored, because the user sets them, and some name files to be written.
pub(crate) fn var(name: &str) -> Option<String> {
    if rxe_sys::has_gained_rights() {
        return None;
    }
    let value = env::var_os(name).filter(|value| !value.is_empty())?;
    value
        .into_string()
        .map_err(|value| {
            let value = value.display();
            stderr::line(&format!("{name}={value} is not valid UTF-8: going on without it"));
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_means_nothing_is_said_with_those_that_do() {
        let choices = [("on", true), ("off", false)];
        assert_eq!(choose("RXE_SHM", "off", &choices), Ok(false));
        assert_eq!(
            choose("RXE_SHM", "no", &choices).unwrap_err(),
            "RXE_SHM=no means nothing: set it to on or off; going on with on"
        );
    }
}
