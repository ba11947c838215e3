//! Opens captures. A bar on the terminal shows the progress of reading a large one.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use rxe_lab::capture::{CaptureError, Problem, Reader, Record, Start};
use rxe_lab::frame::{self, Frame};

use crate::common::is_piped;

/// The least size in bytes of a file with a progress bar. Shorter files are read too fast.
const LARGE: u64 = 32 << 20;

/// The time at which the command prints its results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Output {
    /// While it reads.
    Meanwhile,
    /// After all frames were read.
    AtTheEnd,
}

/// Opens a capture; `-` is standard input.
pub(in crate::commands) fn open(
    file: &Path,
    output: Output,
) -> Result<Reader<'static>, CaptureError> {
    if file.as_os_str() == "-" {
        return Reader::new(io::stdin());
    }
    let failed = |e| CaptureError { frame: 0, offset: 0, problem: Problem::Io(e) };
    let file = File::open(file).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() || about.len() < LARGE || !has_room(output) {
        return Reader::new(file);
    }
    // The bar is drawn on standard error, and hidden if that is not a terminal.
    let template = " {bytes} of {total_bytes} [{bar:40}] {percent:>3} %, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is right");
    let bar = ProgressBar::new(about.len()).with_style(style.progress_chars("=> "));
    Reader::new(bar.with_finish(ProgressFinish::AndClear).wrap_read(file))
}

/// Reads a whole capture: calls `take` with each frame, and with its time since the first.
///
/// # Errors
/// The file cannot be read, or not to its end.
pub(in crate::commands) fn read_all(
    file: &Path,
    mut take: impl FnMut(&Record<'_>, &Frame<'_>, Duration),
) -> Result<(), CaptureError> {
    let mut reader = open(file, Output::AtTheEnd)?;
    let mut start = Start::default();
    while let Some(record) = reader.next()? {
        take(&record, &frame::decode(&record), start.since(&record));
    }
    Ok(())
}

/// Returns whether a bar on the terminal disturbs nothing.
/// It would disturb lines of output there, or a pager that reads the output.
fn has_room(output: Output) -> bool {
    !is_piped() && (output == Output::AtTheEnd || !io::stdout().is_terminal())
}
