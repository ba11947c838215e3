//! The results of the demo, as text and as JSON.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rxe_verbs::Endpoint;
use serde::Serialize;

use super::messages::Seen;
use super::mistake::{self, BYTES, OUTSIDE};
use super::place::Place;
use crate::common::color::{Tone, paint};
use crate::common::{Align, Error, Table, lines, paragraph, units};

/// Without this option, Wireshark 4.0 takes a SEND of 0 or 1 bytes for damaged RPC of NFS.
const NOT_NFS: &str = "--disable-heuristic rpcrdma_infiniband";

/// The backend of endpoints with a MAC address of their own.
pub(super) const L2: &str = "l2";

/// All results of the demo.
#[derive(Serialize)]
pub(super) struct Shown {
    pub(super) this: Process,
    pub(super) peer: Process,
    pub(super) backend: String,
    /// Whether the processes exchange packets through shared memory instead of the backend.
    pub(super) shared_memory: bool,
    pub(super) mtu: usize,
    pub(super) operations: Vec<Done>,
    pub(super) mistake: Mistake,
    /// Packets sent and received by this process.
    pub(super) packets: u64,
    pub(super) pcap: Option<String>,
    pub(super) seconds: f64,
}

/// One of the two processes.
#[derive(Serialize)]
pub(super) struct Process {
    pid: u32,
    device: String,
    address: IpAddr,
    qpn: u32,
    psn: u32,
}

impl Process {
    pub(super) fn of(endpoint: &Endpoint, place: &Place, pid: u32) -> Self {
        let Endpoint { qpn, psn, gid, .. } = endpoint;
        let device = place.device.clone();
        Self { pid, device, address: gid.to_ip(), qpn: qpn.value(), psn: psn.value() }
    }

    /// Returns the process's location in a word: loopback or its device.
    fn place(&self) -> &str {
        if self.address.is_loopback() { "loopback" } else { &self.device }
    }
}

/// The result of one operation.
#[derive(Serialize)]
pub(super) struct Done {
    pub(super) operation: &'static str,
    pub(super) size: usize,
    pub(super) packets_sent: u64,
    pub(super) packets_received: u64,
    pub(super) seconds: f64,
    pub(super) verified: bool,
    pub(super) verified_by: &'static str,
    pub(super) wrong: Option<String>,
}

/// The effects of the deliberate mistake at both ends.
#[derive(Serialize)]
pub(super) struct Mistake {
    operation: &'static str,
    size: usize,
    outside: usize,
    here: Seen,
    peer: Seen,
    as_expected: bool,
}

impl From<(Seen, Seen)> for Mistake {
    fn from((here, peer): (Seen, Seen)) -> Self {
        let as_expected = mistake::is_as_it_should_be(&here, &peer);
        Self { operation: "WRITE", size: BYTES, outside: OUTSIDE, here, peer, as_expected }
    }
}

impl Shown {
    /// Adds the file of the complete capture.
    pub(super) fn captured(self, file: Option<PathBuf>) -> Self {
        Self { pcap: file.map(|path| path.display().to_string()), ..self }
    }

    /// Fails unless every operation was verified and the mistake was refused.
    pub(super) fn verdict(&self) -> Result<(), Error> {
        let wrong = self.operations.iter().find_map(|d| Some((d, d.wrong.as_ref()?)));
        if let Some((Done { operation, size, .. }, wrong)) = wrong {
            let what = format!("{operation} of {size} bytes went wrong: {wrong}");
            return Err(Error::new(what, "this is a bug in rxe"));
        }
        if !self.mistake.as_expected {
            return Err(Error::new("the mistake was not refused", "this is a bug in rxe"));
        }
        Ok(())
    }
}

/// Formats the results as text. `no_pcap` says that the user asked for no capture.
pub(super) fn text(shown: &Shown, no_pcap: bool) -> String {
    let Shown { this, peer, mtu, backend, shared_memory, .. } = shown;
    let places = match [this, peer].map(Process::place) {
        [a, b] if a == b => a.to_owned(),
        [a, b] => format!("{a} and {b}"),
    };
    let over = match backend.as_str() {
        _ if *shared_memory => "shared memory".to_owned(),
        "udp" => format!("UDP sockets on {places}"),
        L2 => format!("Ethernet, as {places}"),
        other => format!("{other} on {places}"),
    };
    let mut out = String::new();
    let first = format!("Two processes, connected (RC) over {over}, path MTU {mtu}:");
    paragraph(&mut out, &first, lines("", "  "));
    out.push('\n');
    let wide =
        [this, peer].map(|p| p.address.to_string().len()).into_iter().max().unwrap_or(0).max(10);
    for (who, p) in [("this process", this), ("its peer", peer)] {
        let Process { pid, address, qpn, psn, .. } = p;
        let address = address.to_string();
        out += &format!(
            "  {who:<12}  {address:<wide$}  QPN 0x{qpn:06x}  PSN 0x{psn:06x}  pid {pid}\n"
        );
    }
    out += "\nEach operation, its packets out and in, and every byte verified:\n\n";
    out += &format!("{}\n", table(&shown.operations));
    out += &mistake_text(&shown.mistake);
    match &shown.pcap {
        Some(path) => {
            let (path, n) = (quoted(path), shown.packets);
            out += &format!(
                "\nAll {n} packets are in a capture. To see them:\n  wireshark {NOT_NFS} {path}\n  \
                 tshark {NOT_NFS} -r {path}\n"
            );
        }
        None if no_pcap => out += "\nNo capture was written (--no-pcap).\n",
        None => out += "\nNo capture was written.\n",
    }
    out
}

fn table(operations: &[Done]) -> Table<7> {
    let mut table = Table::new([
        ("operation", Align::Left),
        ("size", Align::Right),
        ("out", Align::Right),
        ("in", Align::Right),
        ("time", Align::Right),
        ("MB/s", Align::Right),
        ("verified", Align::Left),
    ]);
    for done in operations {
        table.row([
            done.operation.into(),
            size(done.size),
            done.packets_sent.to_string(),
            done.packets_received.to_string(),
            units::duration(Duration::from_secs_f64(done.seconds)),
            throughput(done),
            match &done.wrong {
                None => paint(Tone::Good, &format!("by {}", done.verified_by)),
                Some(wrong) => paint(Tone::Bad, &format!("NO: {wrong}")),
            },
        ]);
    }
    table
}

/// Formats a size in bytes without rounding: one byte more than an MTU matters here.
fn size(bytes: usize) -> String {
    if bytes.is_multiple_of(1024) { units::bytes(bytes as u64) } else { format!("{bytes} B") }
}

/// Formats the throughput in MB/s; empty for messages of less than 4096 bytes.
#[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
fn throughput(done: &Done) -> String {
    if done.size < 4096 || done.seconds <= 0.0 {
        return String::new();
    }
    format!("{:.0}", done.size as f64 / done.seconds / 1e6)
}

fn mistake_text(mistake: &Mistake) -> String {
    let Mistake { operation, size, outside, here, peer, .. } = mistake;
    let mut out = String::new();
    let first = format!(
        "Now a mistake: a {operation} of {size} bytes, of which {outside} lie outside the peer's \
         memory region."
    );
    paragraph(&mut out, &first, lines("", ""));
    for (who, seen) in [("this process", here), ("its peer", peer)] {
        let Seen { request, status, code, meaning, events, qp_state, memory_unchanged } = seen;
        out += &format!(
            "\n  {who}\n    {request} completed with: {}\n",
            paint(Tone::Notice, &format!("{status} ({code})"))
        );
        out += &wrapped("means: ", meaning);
        for event in events {
            out += &wrapped("event: ", event);
        }
        let memory = match memory_unchanged {
            true => paint(Tone::Good, "unchanged, every byte"),
            false => paint(Tone::Bad, "CHANGED"),
        };
        out += &format!("    QP now in {qp_state}; memory {memory}\n");
    }
    out
}

/// Wraps a text into lines of 80 columns. The first line begins with `head`.
fn wrapped(head: &str, text: &str) -> String {
    let mut page = String::new();
    let (first, behind) = (format!("    {head}"), " ".repeat(4 + head.len()));
    paragraph(&mut page, text, lines(&first, &behind));
    page
}

/// Quotes a path for a shell if necessary.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if path.chars().all(plain) { path.into() } else { format!("'{}'", path.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = wrapped("means: ", &"word ".repeat(40));
        assert!(text.lines().count() > 1 && text.lines().all(|l| l.len() <= 80));
        assert!(text.starts_with("    means: word word"));
        assert!(text.lines().nth(1).unwrap().starts_with("           word"));
    }

    #[test]
    fn a_file_name_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("rxe-demo.pcapng"), "rxe-demo.pcapng");
        assert_eq!(quoted("it's mine"), "'it'\\''s mine'");
    }
}
