//! `rxe check`: finds errors in the connections of a capture, and their causes.

mod causes;
mod junit;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use rxe_lab::check::Severity;
use rxe_lab::explain::Lang;
use rxe_lab::report::{self, Checked, Checking};

use super::decode::{named, read_all};
use super::explain::{lang, lang_of_environment};
use crate::common::{Error, check_apart, check_file, print, print_error, print_json, write_file};

/// Check the connections of captures: what went wrong, where, and why
///
/// Each finding has frames, the section of the InfiniBand specification, and how sure it is; behind them
/// stand the usual causes of each kind, in the words of `rxe explain`. Exit code 0: no error; 1: errors;
/// 2: a file cannot be read or has no RDMA packet, or the report cannot be written. Losses and other
/// things that the protocol has repaired are warnings, which count as errors with --strict.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The captures, as in `rxe decode`; - reads standard input
    #[arg(value_name = "FILE", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Let warnings count as errors
    #[arg(long)]
    strict: bool,
    /// Print JSON: an array with one object for each file
    #[arg(long)]
    json: bool,
    /// Also write a report for CI systems (JUnit XML) to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    junit: Option<PathBuf>,
    /// The language of the causes; otherwise what LC_ALL, LC_MESSAGES or LANG asks for
    #[arg(long, value_parser = lang())]
    lang: Option<Lang>,
}

/// The exit code for errors in a capture.
const ERRORS: i32 = 1;
/// The exit code if a file cannot be read or checked, or the report cannot be written.
const UNREADABLE: i32 = 2;

impl Args {
    pub(crate) fn run(self) -> Result<(), Error> {
        match self.report() {
            Ok(0) => Ok(()),
            Ok(code) => process::exit(code),
            Err(e) => {
                print_error(&e);
                process::exit(UNREADABLE);
            }
        }
    }

    /// Checks the files and reports. Returns the exit code, or the reason why there is no report.
    fn report(self) -> Result<i32, Error> {
        for output in self.junit.as_deref().into_iter().chain([Path::new("-")]) {
            self.files.iter().try_for_each(|file| check_apart(file, output))?;
        }
        self.junit.as_deref().map_or(Ok(()), check_file)?;
        let lang = self.lang.unwrap_or_else(lang_of_environment);
        let mut all = Vec::new();
        for file in &self.files {
            let checked = check(file);
            // A file of which no frame was read gets its error message only.
            if !self.json && (checked.frames > 0 || checked.error.is_none()) {
                print(&text::text(&checked, lang))?;
            }
            all.push(checked);
        }
        if self.json {
            let files = all.iter().map(|checked| checked.to_json(lang));
            print_json(&files.collect::<Vec<_>>())?;
        }
        if let Some(path) = &self.junit {
            write_file(path, &junit::xml(&all, self.strict, lang))?;
        }
        let errors: Vec<_> =
            all.iter().filter_map(|it| it.error.clone()).map(Error::from).collect();
        errors.iter().for_each(print_error);
        let fails = all.iter().any(|checked| fails(checked, self.strict));
        Ok(match (errors.is_empty(), fails) {
            (false, _) => UNREADABLE,
            (true, true) => ERRORS,
            (true, false) => 0,
        })
    }
}

/// Returns whether the report has errors, or warnings if `strict`.
fn fails(checked: &Checked, strict: bool) -> bool {
    let warnings = if strict { checked.report.count(Severity::Warning) } else { 0 };
    checked.report.count(Severity::Error) + warnings > 0
}

fn check(file: &Path) -> Checked {
    let mut checking = Checking::default();
    let read = read_all(file, |record, frame, since| checking.add(record, frame, since));
    let before = "the frames before it are checked";
    let error = read.err().map(|e| report::failed(&named(file), &e, before));
    let mut checked = checking.finish(file.display().to_string(), error);
    // Standard input and pipes cannot be read twice.
    if fs::metadata(file).is_ok_and(|about| about.is_file()) {
        checked.report = checked.report.once_more(|checker| {
            // An error was found by the first reading too.
            let _ = read_all(file, |record, frame, since| {
                checker.add(record.number, record.interface, since, frame);
            });
        });
    }
    checked
}
