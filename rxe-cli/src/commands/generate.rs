//! `rxe gen`: generates packets from a scenario.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rxe_lab::scenario::{self, Bounds, Generated, ScenarioError};

use crate::common::{Error, NewFile, check_apart, print_bytes, print_error};

/// Make packets from a scenario: operations, or header by header, with faults on purpose
///
/// A scenario is a TOML file with hosts, queue pairs and steps. The engine makes the packets of
/// operations (send, write, read, ...); a packet that is given header by header may break any rule.
/// The same scenario gives the same file, byte for byte. docs/en/reference/commands/gen.md has the format, and
/// pcaps/scenarios/ has a scenario for every opcode and every fault.
///
/// Example: rxe gen pcaps/scenarios/rnr_nak.toml -w rnr.pcap && rxe check rnr.pcap
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The scenario; - reads standard input
    #[arg(value_name = "SCENARIO", value_hint = clap::ValueHint::FilePath)]
    scenario: PathBuf,
    /// Write the capture to this file: pcap with nanoseconds or, if the name ends in .pcapng, pcapng with
    /// comments that say what has completed; - writes pcap to standard output
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    write: PathBuf,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        check_apart(&self.scenario, &self.write)?;
        let generated = read(&self.scenario)?;
        let failed = |e: io::Error| {
            let what = format!("cannot write {}: {e}", self.write.display());
            Error::new(what, "name another file")
        };
        let file = if self.write.extension().is_some_and(|it| it == "pcapng") {
            generated.to_pcapng().map_err(failed)?
        } else {
            generated.to_pcap()
        };
        if self.write.as_os_str() == "-" {
            return print_bytes(&file);
        }
        let new = NewFile::new(&self.write).map_err(failed)?;
        fs::write(new.path(), &file).map_err(failed)?;
        new.finish().map_err(failed)?;
        print_error(&summary(&self.write, &generated));
        Ok(())
    }
}

/// Summarizes the frames, the completions, and the requests that engines refused.
fn summary(path: &Path, generated: &Generated) -> String {
    let frames = &generated.frames;
    let time = match (frames.first(), frames.last()) {
        (Some(first), Some(last)) => last.at.saturating_sub(first.at),
        _ => std::time::Duration::ZERO,
    };
    let s = if frames.len() == 1 { "" } else { "s" };
    let mut text = format!("{}: {} frame{s} in {time:?}", path.display(), frames.len());
    for ((qp, status), count) in &generated.completions {
        text += &format!("\n  {qp}: {count} x {status}");
    }
    for ((whose, what), count) in &generated.unaccepted {
        text += &format!("\n  {whose}: {count} x {what}");
    }
    text
}

/// Reads a scenario and generates its packets. Prints warnings to standard error.
pub(super) fn read(path: &Path) -> Result<Generated, Error> {
    let name = if path.as_os_str() == "-" { Path::new("standard input") } else { path };
    let failed = |e: io::Error| {
        let what = match e.kind() {
            io::ErrorKind::InvalidData => format!("{} is no text", name.display()),
            _ => format!("cannot read {}: {e}", name.display()),
        };
        Error::new(what, "name a scenario, such as those in pcaps/scenarios/")
    };
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    let text = text.map_err(failed)?;
    let located = |e: ScenarioError| {
        let at = format!("{}:{}:{}", name.display(), e.line, e.column);
        Error::new(at, e.text)
    };
    let mut generated = scenario::generate(&text, Bounds::default()).map_err(located)?;
    for warning in generated.warnings.drain(..) {
        print_error(&located(warning));
    }
    Ok(generated)
}
