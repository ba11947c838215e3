//! What `rxe run` and the environment ask for. A value that makes no sense is said on stderr, and
//! what is so without it holds.

use std::env;
use std::path::PathBuf;
use std::process;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_net::BackendKind;
use rxe_verbs::AckPolicy;

use crate::stderr;

/// How much a person is told on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Explain {
    /// Nothing.
    Off,
    /// What goes wrong, once per kind.
    Errors,
    /// Everything worth knowing.
    All,
}

/// The variables, read once.
pub(crate) struct Config {
    /// `RXE_BACKEND`.
    pub(crate) backend: BackendKind,
    /// `RXE_SHM`: whether shared memory leads to other programs of this host.
    pub(crate) shared_memory: bool,
    /// `RXE_GSO`: whether the system segments packets (GSO) and merges them (GRO).
    pub(crate) segmentation: bool,
    /// `RXE_PCAP`: where to capture to; `%p` stands for the process's number.
    pcap: Option<String>,
    /// `RXE_EXPLAIN`.
    pub(crate) explain: Explain,
    /// `RXE_DEVICE`: the only devices to show, separated by commas.
    pub(crate) devices: Option<Vec<String>>,
    /// `RXE_LIDS`: whether peers may be told by LID.
    pub(crate) lids: bool,
    /// `RXE_ACK`: when acknowledgements leave.
    pub(crate) acks: AckPolicy,
}

/// What applies to this process.
pub(crate) static CONFIG: LazyLock<Config> = LazyLock::new(|| Config {
    backend: chosen("RXE_BACKEND", &BackendKind::ALL.map(|kind| (kind.name(), kind))),
    shared_memory: chosen("RXE_SHM", &[("on", true), ("off", false)]),
    segmentation: chosen("RXE_GSO", &[("on", true), ("off", false)]),
    pcap: var("RXE_PCAP"),
    explain: chosen(
        "RXE_EXPLAIN",
        &[("errors", Explain::Errors), ("off", Explain::Off), ("all", Explain::All)],
    ),
    devices: var("RXE_DEVICE").map(|names| names.split(',').map(str::to_owned).collect()),
    lids: chosen("RXE_LIDS", &[("off", false), ("on", true)]),
    acks: chosen("RXE_ACK", &[("adaptive", AckPolicy::Adaptive), ("prompt", AckPolicy::Prompt)]),
});

impl Config {
    /// Where the next device that is opened captures to: the first to the file itself, others to
    /// files named after it.
    pub(crate) fn pcap(&self) -> Option<PathBuf> {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let name = self.pcap.as_ref()?.replace("%p", &process::id().to_string());
        Some(match OPENED.fetch_add(1, Ordering::Relaxed) {
            0 => name.into(),
            n => format!("{name}.{n}").into(),
        })
    }
}

/// What a variable chooses; the first if it is not set.
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

/// A variable that is set to something. In a program that has more rights than its user (setuid, file
/// capabilities), no variable counts: they are the user's, and name files to be written.
pub(crate) fn var(name: &str) -> Option<String> {
    if rxe_net::has_gained_rights() {
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
