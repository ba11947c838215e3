//! The results of a run, as lines of text and as `docs/en/reference/interop.md`.
//!
//! The page has a section for each kernel, between markers. A run replaces the sections of its own
//! kernels and keeps the others. The content depends neither on the time nor on the place of the
//! run.

mod earlier;

use super::exchange::Op;
use super::{Backend, Requester, SIZES, UC_SIZES, UD_SIZES, faults, features, guest, pingpong};
use crate::pages;
use std::fmt::{self, Write as _};
use std::time::Duration;

/// The outcome of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The cell passed, perhaps with a remark.
    Good(Option<String>),
    /// The cell failed, with the reason.
    Failed(String),
    /// The cell was skipped, with what this machine lacks.
    Skipped(String),
}

/// A cell and its outcome.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of the cell: backend, requester, test.
    pub id: String,
    pub(super) backend: Backend,
    pub(super) requester: Requester,
    pub(super) name: String,
    /// The outcome of the cell.
    pub outcome: Outcome,
}

impl Row {
    /// Creates the row for a backend whose cells were all skipped.
    pub(super) fn left_out(backend: Backend, requester: Requester, why: &str) -> Self {
        let id = format!("{}/{}", backend.name(), requester.name());
        Self {
            id,
            backend,
            requester,
            name: String::new(),
            outcome: Outcome::Skipped(why.to_owned()),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = &self.id;
        match &self.outcome {
            Outcome::Good(None) => write!(f, "{id}: ok"),
            Outcome::Good(Some(remark)) => write!(f, "{id}: ok ({remark})"),
            Outcome::Failed(why) => write!(f, "{id}: FAILED: {why}"),
            Outcome::Skipped(why) => write!(f, "{id}: skipped: {why}"),
        }
    }
}

/// The results of a run with one kernel.
#[derive(Clone, Debug)]
pub struct Report {
    /// The requested kernel version.
    pub kernel: String,
    /// The package of the kernel.
    pub package: String,
    /// The output of `uname -r` in the VM.
    pub release: String,
    /// All cells that were run.
    pub rows: Vec<Row>,
    /// The duration of the run, including booting.
    pub took: Duration,
    /// The observations of two kernels for each fault that was run.
    pub(super) baselines: Vec<(&'static str, String)>,
}

impl Report {
    pub(super) fn new(kernel: &str, package: &str, release: &str) -> Self {
        Self {
            kernel: kernel.into(),
            package: package.into(),
            release: release.into(),
            rows: Vec::new(),
            took: Duration::ZERO,
            baselines: Vec::new(),
        }
    }

    /// Returns the cells that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|r| matches!(r.outcome, Outcome::Failed(_)))
    }

    /// Returns the cells that were skipped.
    pub fn skipped(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|r| matches!(r.outcome, Outcome::Skipped(_)))
    }

    /// Returns the section of the page.
    pub fn section(&self) -> String {
        let mut out = format!("## Linux {}\n\n", self.release);
        let bad = self.failed().count() + self.skipped().count();
        let quality =
            if bad == 0 { "all good".to_owned() } else { format!("{bad} of them not good") };
        let _ =
            writeln!(out, "Package `{}`. {} cells, {quality}.\n", self.package, self.rows.len());
        let rc: Vec<u64> = SIZES.into_iter().chain([8]).collect();
        self.operations(&mut out, "", &Op::ALL, &rc);
        self.operations(&mut out, "uc/", &Op::UC, &UC_SIZES);
        self.operations(&mut out, "ud/", &Op::UD, &UD_SIZES);
        self.features(&mut out);
        self.faults(&mut out);
        self.guest(&mut out);
        self.trouble(&mut out);
        out
    }

    /// Returns the section without rows and tables of which no cell was run.
    pub fn section_of_what_was_run(&self) -> String {
        let whole = self.section();
        let parts = whole.split("\n\n").filter_map(|part| match part.starts_with('|') {
            true => filled(part),
            false => Some(part.to_owned()),
        });
        parts.collect::<Vec<_>>().join("\n\n")
    }

    fn mark(&self, backend: Backend, requester: Requester, name: &str) -> &'static str {
        let row = self
            .rows
            .iter()
            .find(|r| r.backend == backend && r.requester == requester && r.name == name);
        match row.map(|r| &r.outcome) {
            Some(Outcome::Good(None)) => "ok",
            Some(Outcome::Good(Some(_))) => "ok \\*",
            Some(Outcome::Failed(_)) => "FAILED",
            Some(Outcome::Skipped(_)) => "skipped",
            None => "",
        }
    }

    /// Writes the table of the operations of a service, which `prefix` names.
    fn operations(&self, out: &mut String, prefix: &str, ops: &[Op], sizes: &[u64]) {
        out.push_str("| operation | asks | backend |");
        for size in sizes {
            let _ = write!(out, " {} |", size_name(*size));
        }
        out.push_str("\n| --- | --- | --- |");
        out.push_str(&" --- |".repeat(sizes.len()));
        out.push('\n');
        for op in ops {
            for requester in Requester::BOTH {
                for backend in Backend::WITH_KERNEL {
                    let op = format!("{prefix}{}", op.name());
                    let _ = write!(out, "| {op} | {} | {} |", requester.name(), backend.name());
                    for size in sizes {
                        let name = format!("{op}/{size}");
                        let _ = write!(out, " {} |", self.mark(backend, requester, &name));
                    }
                    out.push('\n');
                }
            }
        }
        out.push('\n');
    }

    /// Writes the cells of one name, in the columns of [`column_names`].
    fn columns(&self, out: &mut String, name: &str) {
        for backend in Backend::WITH_KERNEL {
            for requester in Requester::BOTH {
                let _ = write!(out, " {} |", self.mark(backend, requester, name));
            }
        }
        out.push('\n');
    }

    fn features(&self, out: &mut String) {
        let _ = writeln!(out, "| name | what |{}", column_names(2));
        let features = features::all().map(|f| (f.name, f.what));
        let pingpongs = pingpong::ALL.iter().map(|p| (p.name, p.what));
        let shared_interface =
            ("beside", "a second endpoint, beside the kernel's device on its interface");
        for (name, what) in features.chain(pingpongs).chain([shared_interface]) {
            let _ = write!(out, "| `{name}` | {what} |");
            self.columns(out, name);
        }
        out.push('\n');
    }

    fn faults(&self, out: &mut String) {
        let _ = writeln!(out, "| name | what | two kernels |{}", column_names(3));
        for fault in faults::ALL {
            let seen = self.baselines.iter().find(|(name, _)| *name == fault.name);
            let seen = seen.map_or("", |(_, seen)| seen);
            let _ = write!(out, "| `{}` | {} | {seen} |", fault.name, fault.what);
            self.columns(out, fault.name);
        }
        out.push('\n');
    }

    /// Writes the table of our engine in the VM.
    fn guest(&self, out: &mut String) {
        let (backend, requester) = (Backend::Guest, Requester::Ours);
        if !self.rows.iter().any(|row| row.backend == backend) {
            return;
        }
        let _ = writeln!(out, "| name | what | ours asks, guest |\n| --- | --- | --- |");
        for cell in guest::ALL {
            let mark = self.mark(backend, requester, cell.name);
            let _ = writeln!(out, "| `{}` | {} | {mark} |", cell.name, cell.what);
        }
        out.push('\n');
    }

    /// Writes the remarks and all failed or skipped cells in full.
    fn trouble(&self, out: &mut String) {
        for row in &self.rows {
            if row.outcome != Outcome::Good(None) {
                let _ = writeln!(out, "- {row}");
            }
        }
    }
}

/// The label columns of the tables, which are filled in for cells that were not run too.
const LABELS: [&str; 5] = ["operation", "asks", "backend", "name", "what"];

/// Returns a table with only the rows that have more than their labels, or `None` if there are
/// none.
fn filled(table: &str) -> Option<String> {
    let cells =
        |line: &'_ str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = table.lines();
    let head = [lines.next()?, lines.next()?];
    let labels = cells(head[0]).iter().filter(|cell| LABELS.contains(&cell.as_str())).count();
    let is_filled = |line: &&str| cells(line).iter().filter(|c| !c.is_empty()).count() > labels;
    let rows: Vec<_> = lines.filter(is_filled).collect();
    (!rows.is_empty()).then(|| [&head[..], &rows].concat().join("\n"))
}

/// Returns the names of the columns of backends and roles, and the separator line. `before` is the
/// number of other columns before them.
fn column_names(before: usize) -> String {
    let mut out = String::new();
    for backend in Backend::WITH_KERNEL {
        for requester in Requester::BOTH {
            let _ = write!(out, " {} asks, {} |", requester.name(), backend.name());
        }
    }
    let columns = before + Backend::WITH_KERNEL.len() * Requester::BOTH.len();
    out + "\n|" + &" --- |".repeat(columns)
}

fn size_name(size: u64) -> String {
    if size > 1 << 20 { format!("1 MiB + {}", size - (1 << 20)) } else { size.to_string() }
}

/// Returns the page with the sections replaced by these reports. Results of backends without cells
/// in a report are kept.
pub fn update_docs(page: &str, reports: &[Report]) -> String {
    let mut sections: Vec<(String, String)> = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find(BEGIN) {
        rest = &rest[at + BEGIN.len()..];
        let (Some(name), Some(start), Some(end)) =
            (rest.find(" -->"), rest.find('\n'), rest.find(END))
        else {
            break;
        };
        sections.push((rest[..name].to_owned(), rest[start + 1..end].to_owned()));
        rest = &rest[end..];
    }
    for report in reports {
        let old = sections.iter().position(|(kernel, _)| *kernel == report.kernel);
        let old = old.map(|at| sections.remove(at).1).unwrap_or_default();
        let mut report = report.clone();
        earlier::complete(&mut report, &old);
        sections.push((report.kernel.clone(), report.section()));
    }
    sections.sort_by_key(|(kernel, _)| version(kernel));
    let mut out = [INTRODUCTION, &summary(&sections), DIFFERENCES, METHOD].concat();
    for (kernel, text) in sections {
        let _ = write!(out, "\n{BEGIN}{kernel} -->\n{text}{END}\n");
    }
    out
}

/// Returns the numbers of cells in the sections of these kernels.
fn summary(sections: &[(String, String)]) -> String {
    let mut out = format!("\n## Results\n\n{}\n{SUMMARY}", pages::begin("interop"));
    for (kernel, text) in sections {
        let release = text.lines().next().and_then(|line| line.strip_prefix("## Linux "));
        let counts =
            text.lines().find_map(|line| line.strip_prefix("Package `")?.split_once("`. "));
        let (Some(release), Some((_, counts))) = (release, counts) else { continue };
        let mut numbers = counts.split(' ').filter(|word| word.parse::<u32>().is_ok());
        let (cells, bad) = (numbers.next().unwrap_or("?"), numbers.next().unwrap_or("0"));
        let _ = writeln!(out, "| Linux {kernel} | {release} | {cells} | {bad} |");
    }
    out + pages::END + "\n"
}

fn version(kernel: &str) -> Vec<u32> {
    kernel.split('.').map(|n| n.parse().unwrap_or(0)).collect()
}

const BEGIN: &str = "<!-- kernel ";
const END: &str = "<!-- end -->";

const INTRODUCTION: &str = "\
# Interoperability

[中文](../../zh/reference/interop.md)

Whether rxe and the `rdma_rxe` of the Linux kernel understand each other: each as requester and as \
responder, with stock Debian kernels in VMs. In each cell of the tables, the bytes of the message and every \
field of the completions are compared at both ends.
";

const METHOD: &str = "
## How it is tested

`cargo xtask interop` makes this page. It runs rxe and the kernel, each as requester and as responder, over the \
backends `udp`, `packet` and `xdp`, and from an endpoint of layer 2 (`l2`, \
`if`, `pnet`). `cargo xtask test` runs `udp` and `packet` in each role whole with one of the kernels 6.1 and 7.2 \
and a few cells with the other; of the others it runs a few cells. `cargo xtask test --all` runs all of \
`udp`, `packet` and `xdp`.

```
cargo xtask interop                              # kernels 6.1 and 7.2, and rewrites their sections below
cargo xtask interop --all                        # 5.10, 6.1, 6.12 and 7.2
cargo xtask interop --kernel 6.1 --backend udp   # less of it, and rewrites that
cargo xtask interop --kernel 6.1 --filter udp/ours/SEND/1025 --verbose --capture cell.pcap
```

The last line runs one cell and captures what passes the link. A cell is called \
BACKEND/ASKS/NAME: the backend of our end, who asks (`ours`: our engine is the requester and the \
kernel the responder; `kernel`: the other way round), and a name from the tables, for operations \
OPERATION/SIZE in bytes. `--filter` runs the cells whose name contains it, with `$` at its end \
those that end with it. What it needs is in [kernel-vm.md](../project/kernel-vm.md).

`l2` runs the same over QEMU's socket: our end has a MAC and addresses of its own \
([decision 045](../project/decisions/045-endpoints-of-layer-2.md)), and nothing needs a privilege. `if` puts our end \
on the host's interface, beside the host's stack, and in the cell `beside` a second endpoint on the \
interface of the kernel's device: each serves a program while the other is there. `pnet` puts it there by pnet's channel \
([decision 060](../project/decisions/060-pnet.md)). The ping-pong programs \
exchange their queue pair numbers over TCP, which endpoints do not have, so their cells are empty.

`guest` is our engine at both ends: in the VM with AF_XDP in place of the kernel's device, on a network card whose \
driver has zero copy since Linux 6.13, and on the host with UDP sockets; its cells on VLANs are between two \
cards of the VM. They are in a table of their own.

The kernel runs in a VM and its end is driven through libibverbs by `tests/peer/peer.py`; our end \
by `rxe-peer`, the same program on rxe-verbs. In every cell of the first table, the bytes of the \
message are compared at both ends, and 64 bytes before and after it; of both ends' completions, \
every field that verbs define: request, status, queue pair, opcode, length, immediate data. The \
tables of UC (`uc/`) and UD (`ud/`) after it are made in the same way; of a datagram the GRH before \
it is compared too, with the addresses it was sent between. A WRITE over UC has arrived when its \
bytes are there; nothing else tells. In groups (`mcast/`) the kernel's end joins on the interface \
with a socket, as rdma_cm has it do: `rdma_rxe` itself asks the interface for a group's MAC address \
of IPv6, for IPv4 groups too. Where a cell is empty, the kernel has no such thing: memory windows \
came with Linux 5.14, ATOMIC WRITE and FLUSH with 6.2.

Each failing case first runs between two kernels. Then rxe takes the place of one, and both ends \
must see the same completions and end in the same state. Requests are numbered: 1 is the one at fault, \
2 a SEND behind it, 50 a receive posted by the requester, 60 and 61 receives posted by the \
responder. `ok *` has a remark below the tables.
";

const SUMMARY: &str = "
| kernel | version | cells | not good |
| --- | --- | --- | --- |
";

const DIFFERENCES: &str = "
## Where `rdma_rxe` does otherwise

Found in these cells. The tests avoid a problem where a program could avoid it too:

| Linux | what it does | and so |
| --- | --- | --- |
| 6.12, 7.2 | the ICRC of a FLUSH takes everything from BTH on in twice, and a FLUSH with the right \
ICRC is dropped | two kernels understand each other, and nobody else. Our engine accepts both ICRCs, and \
tries the other one when a FLUSH has to be sent again: the first to such a kernel costs a timeout, later \
ones do not |
| 6.1, 6.12, 7.2 | addresses in a memory window are compared with the bounds of its region, not with its \
own | a peer with a window's key reaches all of the region |
| 6.1, 6.12, 7.2 | a receive whose SEND took a key away is marked with the number that the flag has inside \
the kernel | programs see `IBV_WC_IP_CSUM_OK` instead of `IBV_WC_WITH_INV`; the key is there |
| 6.1, 6.12, 7.2 | a SEND with a key that cannot be invalidated is acknowledged | the requester sees \
success, and its next request runs out of retries |
| all | a Q_Key with the high bit set goes into the packet instead of the queue pair's own | such a \
datagram is dropped |
| all | an IPv4 group's datagrams are asked for under a MAC address of IPv6, and the interface does not \
join | programs must join with a socket |
| all | a message longer than its receive is a remote operational error, a receive with a wrong lkey a \
local operation error | the remarks of `long/SEND` and `recv-lkey/SEND` |
| 5.10 | answers to atomics over IPv4 do not leave it; no NAK for a fault of a request that takes no \
receive | atomics are tried over IPv6; the requester runs out of retries |
| 6.1 | of a message that is sent again because the answer came late, the first packet sometimes \
leaves as SEND ONLY (WRITE ONLY), and all others under numbers one too high | its peer can only \
refuse that as an invalid request (`rxe explain changed-request`). Met with perftest on a busy machine, \
one run in ten; its end there has `-u 18`, a timeout of a second |
| 6.1 | a requester whose timer fires while it sends a long message sometimes stops for good, though \
all of it was acknowledged, and reports no error | such a ping-pong is played once more, and the \
harness says so. Met on a busy machine |
| 6.1 | rdma_cm joins no IPv6 group for RoCEv2 (ENOTSUPP) | `mckey` joins IPv4 groups only |
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_run_is_left_out_on_the_terminal() {
        let mut report = Report::new("6.1", "package", "6.1.1");
        assert_eq!(report.section_of_what_was_run().matches("| --- |").count(), 0);
        let why = "no namespaces";
        report.rows.push(Row::left_out(Backend::Udp, Requester::Ours, why));
        let outcome = Outcome::Good(None);
        report.rows.push(Row { name: "SEND/1024".into(), outcome, ..report.rows[0].clone() });
        let said = report.section_of_what_was_run();
        let rows: Vec<_> = said.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 3, "{said}");
        assert!(rows[2].starts_with("| SEND | ours | udp |") && rows[2].contains(" ok "), "{said}");
        assert!(said.ends_with(&format!("- udp/ours: skipped: {why}\n")), "{said}");
        assert!(said.starts_with("## Linux 6.1.1\n\nPackage `package`. 2 cells"), "{said}");
    }

    #[test]
    fn a_run_replaces_its_own_kernels_sections_only() {
        let report = |kernel: &str, release: &str| Report::new(kernel, "package", release);
        let page = update_docs("", &[report("6.12", "6.12.1"), report("6.1", "6.1.1")]);
        assert!(page.find("Linux 6.1.1").unwrap() < page.find("Linux 6.12.1").unwrap());
        let page = update_docs(&page, &[report("6.1", "6.1.2"), report("5.10", "5.10.1")]);
        assert!(!page.contains("Linux 6.1.1"), "{page}");
        for release in ["5.10.1", "6.1.2", "6.12.1"] {
            assert_eq!(page.matches(&format!("## Linux {release}\n")).count(), 1, "{page}");
        }
        assert_eq!(update_docs(&page, &[]), page);
    }

    #[test]
    fn the_page_is_as_it_would_be_written() {
        let page = include_str!("../../../../docs/en/reference/interop.md");
        assert_eq!(update_docs(page, &[]), page);
        let sections = page.matches("\n## Linux ").count();
        let (summary, _) = page.split_once("<!-- to here -->").unwrap();
        assert_eq!(summary.matches("\n| Linux ").count(), sections, "{summary}");
    }
}
