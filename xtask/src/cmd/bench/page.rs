//! Puts results into docs/performance.md, and plots into files.

use std::fs;
use std::path::Path;
use xtask::vm::{Error, Result};

use super::plot::Plot;
use crate::cmd::checkout;

const BEGIN: &str = "<!-- cargo xtask bench --write puts what follows -->";
const END: &str = "<!-- to here -->";

/// Puts the results into their place.
pub(super) fn write_results(markdown: &str) -> Result<()> {
    let path = checkout::root()?.join("docs/performance.md");
    let failed = |why: String| Error::Failed(format!("docs/performance.md: {why}"));
    let text = fs::read_to_string(&path).map_err(|e| failed(e.to_string()))?;
    let new = placed(&text, markdown).ok_or_else(|| failed(format!("no {BEGIN} … {END}")))?;
    fs::write(&path, new).map_err(|e| failed(e.to_string()))
}

fn placed(text: &str, markdown: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{markdown}\n{END}{after}"))
}

/// Makes the files: in docs/performance, where the page shows them, or in target/plots.
pub(super) fn write_plots(plots: &[Plot], in_docs: bool) -> Result<()> {
    if plots.is_empty() {
        return Ok(());
    }
    let root = checkout::root()?;
    let dir = root.join(if in_docs { "docs/performance" } else { "target/plots" });
    let failed = |path: &Path, why: String| Error::Failed(format!("{}: {why}", path.display()));
    fs::create_dir_all(&dir).map_err(|e| failed(&dir, e.to_string()))?;
    for plot in plots {
        let path = dir.join(plot.file).with_extension("svg");
        let svg = plot.svg().map_err(|why| failed(&path, why))?;
        fs::write(&path, svg).map_err(|e| failed(&path, e.to_string()))?;
        eprintln!("{}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_replace_those_of_before_and_nothing_else() {
        let page = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(placed(&page, "new").unwrap(), format!("a\n{BEGIN}\n\nnew\n{END}\nb\n"));
        assert_eq!(placed("no place", "new"), None);
    }
}
