//! `rxe check`: what went wrong in the connections of a capture, and why.

mod json;
mod junit;
mod text;

use std::path::{Path, PathBuf};
use std::process;

use rxe_lab::capture::Start;
use rxe_lab::check::{Checker, Report, Severity};
use rxe_lab::frame;

use super::decode::{Printed, failed, open};
use crate::common::{Error, print, print_error, print_json, write_file};

/// Check the connections of captures: what went wrong, where, and why
///
/// Each finding has frames, the section of the InfiniBand specification, how sure it is, and the likely
/// cause. Exit code 0: no fault; 1: faults; 2: a file cannot be read. Losses and other things that the
/// protocol has repaired are warnings, which count as faults with --strict.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The captures, as in `rxe decode`; - reads standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Let warnings count as faults
    #[arg(long)]
    strict: bool,
    /// Print JSON: an array with one object for each file
    #[arg(long)]
    json: bool,
    /// Also write a report for CI systems (JUnit XML) to this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// A file, and what the analyst says of it.
struct Checked {
    name: String,
    report: Report,
    /// Frames that were read.
    frames: u64,
    /// Why there are no more.
    error: Option<Error>,
}

/// The exit code if there are faults.
const FAULTS: i32 = 1;
/// The exit code if a file cannot be read.
const UNREADABLE: i32 = 2;

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        let mut all = Vec::new();
        for file in &self.files {
            let checked = check(file);
            // Of a file that cannot be read at all there is nothing to say but why.
            if !self.json && (checked.frames > 0 || checked.error.is_none()) {
                print(&text::text(&checked))?;
            }
            all.push(checked);
        }
        if self.json {
            print_json(&all.iter().map(json::File::of).collect::<Vec<_>>())?;
        }
        if let Some(path) = &self.junit {
            write_file(path, &junit::xml(&all, self.strict))?;
        }
        let errors: Vec<_> = all.iter().filter_map(|checked| checked.error.as_ref()).collect();
        errors.iter().for_each(print_error);
        if !errors.is_empty() {
            process::exit(UNREADABLE);
        }
        if all.iter().any(|checked| checked.fails(self.strict)) {
            process::exit(FAULTS);
        }
        Ok(())
    }
}

impl Checked {
    /// Whether it has findings that count as faults.
    fn fails(&self, strict: bool) -> bool {
        let warnings = if strict { self.report.count(Severity::Warning) } else { 0 };
        self.report.count(Severity::Fault) + warnings > 0
    }
}

fn check(file: &Path) -> Checked {
    let mut checker = Checker::default();
    let mut frames = 0;
    let read = (|| {
        let mut reader = open(file, Printed::AtTheEnd)?;
        let mut start = Start::default();
        while let Some(record) = reader.next()? {
            frames = record.number;
            let since = start.since(&record);
            checker.add(record.number, record.interface, since, &frame::decode(&record));
        }
        Ok(())
    })();
    let error = read.err().map(|e| failed(file, &e));
    Checked { name: file.display().to_string(), report: checker.finish(), frames, error }
}
