//! What `rxe run` and the environment ask for.

use std::env;
use std::path::PathBuf;
use std::process;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rxe_net::BackendKind;

use crate::explain;

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
    /// `RXE_PCAP`: where to capture to; `%p` stands for the process's number.
    pcap: Option<String>,
    /// `RXE_EXPLAIN`.
    pub(crate) explain: Explain,
    /// `RXE_DEVICE`: the only devices to show, separated by commas.
    pub(crate) devices: Option<Vec<String>>,
}

/// What applies to this process.
pub(crate) static CONFIG: LazyLock<Config> = LazyLock::new(|| Config {
    backend: var("RXE_BACKEND").map_or(BackendKind::default(), |name| {
        name.parse().unwrap_or_else(|e| {
            explain::say(&format!("RXE_BACKEND: {e}; using {}", BackendKind::default()));
            BackendKind::default()
        })
    }),
    pcap: var("RXE_PCAP"),
    explain: match var("RXE_EXPLAIN").as_deref() {
        Some("off") => Explain::Off,
        Some("all") => Explain::All,
        _ => Explain::Errors,
    },
    devices: var("RXE_DEVICE").map(|names| names.split(',').map(str::to_owned).collect()),
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

fn var(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
