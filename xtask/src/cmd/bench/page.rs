//! Puts results into pages of docs/, and plots into files.

use std::fs;
use std::path::Path;
use xtask::vm::{Error, Result};

use super::plot::Plot;
use crate::cmd::checkout;

/// A page of docs/ with a place for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// The name of the page without `.md`, and of the directory of its plots.
    name: &'static str,
    /// The line before the results.
    begin: &'static str,
}

/// How fast this is beside others.
pub(super) const PERFORMANCE: Page =
    Page { name: "performance", begin: "<!-- cargo xtask bench --write puts what follows -->" };
const CAPTURES_BEGIN: &str = "<!-- cargo xtask bench --captures --write puts what follows -->";
/// How fast captures are read.
pub(super) const CAPTURES: Page = Page { name: "performance", begin: CAPTURES_BEGIN };
/// The same in Chinese.
pub(super) const CAPTURES_ZH: Page =
    Page { name: "zh/reference/performance", begin: CAPTURES_BEGIN };
/// Where the time goes.
pub(super) const PROFILES: Page = Page {
    name: "performance",
    begin: "<!-- cargo xtask bench --profile --write puts what follows -->",
};
/// The simulated fabric.
pub(super) const FABRIC: Page =
    Page { name: "fabric", begin: "<!-- cargo xtask bench --fabric --write puts what follows -->" };

/// The line after the results.
const END: &str = "<!-- to here -->";

impl Page {
    /// Puts the results into their place.
    pub(super) fn write_results(self, markdown: &str) -> Result<()> {
        let name = format!("docs/{}.md", self.name);
        let path = checkout::root()?.join(&name);
        let failed = |why: String| Error::Failed(format!("{name}: {why}"));
        let text = fs::read_to_string(&path).map_err(|e| failed(e.to_string()))?;
        let new = self
            .placed(&text, markdown)
            .ok_or_else(|| failed(format!("no {} … {END}", self.begin)))?;
        fs::write(&path, new).map_err(|e| failed(e.to_string()))
    }

    fn placed(self, text: &str, markdown: &str) -> Option<String> {
        let (before, rest) = text.split_once(self.begin)?;
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{}\n\n{markdown}\n{END}{after}", self.begin))
    }

    /// Makes the files: in the page's directory, where the page shows them, or in target/plots.
    pub(super) fn write_plots(self, plots: &[Plot], in_docs: bool) -> Result<()> {
        if plots.is_empty() {
            return Ok(());
        }
        let root = checkout::root()?;
        let dir =
            if in_docs { root.join("docs").join(self.name) } else { root.join("target/plots") };
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_replace_those_of_before_and_nothing_else() {
        let begin = FABRIC.begin;
        let page = format!("a\n{begin}\nold\n{END}\nb\n");
        let new = format!("a\n{begin}\n\nnew\n{END}\nb\n");
        assert_eq!(FABRIC.placed(&page, "new"), Some(new));
        assert_eq!(PERFORMANCE.placed(&page, "new"), None, "it is another page");
    }
}
