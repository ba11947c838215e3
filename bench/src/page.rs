//! Writes the plots of pages of docs/ to files.

use rxe_harness::checkout;
use rxe_harness::vm::{Error, Result};
use std::fs;

use super::plot::Plot;

/// Writes the plots as SVG files.
/// They go to this directory of docs/, where a page shows them, or to target/plots.
pub(super) fn write_plots(directory: &str, plots: &[Plot], in_docs: bool) -> Result<()> {
    if plots.is_empty() {
        return Ok(());
    }
    let root = checkout::root()?;
    let dir = if in_docs { root.join("docs").join(directory) } else { root.join("target/plots") };
    fs::create_dir_all(&dir).map_err(|e| Error::io(&dir, &e))?;
    for plot in plots {
        let path = dir.join(plot.file).with_extension("svg");
        if plot.is_empty() {
            eprintln!("{}: nothing was measured for it, and it is left as it was", path.display());
            continue;
        }
        let svg = plot.svg().map_err(|why| Error::Failed(format!("{}: {why}", path.display())))?;
        fs::write(&path, svg).map_err(|e| Error::io(&path, &e))?;
        eprintln!("{}", path.display());
    }
    Ok(())
}
