//! The pages of the documentation that show layers.

use std::path::Path;

use super::picture::title;
use super::{Graph, LAYERS, Layers, mermaid, text};

/// A page, as it should be.
#[derive(Clone, Debug)]
pub struct Page {
    /// From the top of the workspace.
    pub file: &'static str,
    /// All of it.
    pub text: String,
}

const BEGIN: &str = "<!-- made by `cargo xtask layers --write` -->\n";
const END: &str = "<!-- end -->\n";

const HEAD: &str = "# Layers

Which module of a crate uses which. A module uses modules on lines below its own and nothing else, so \
there are no circles. A test compares the sources with these floors (`xtask/src/layers/table.rs`) and \
with this page; `cargo xtask layers --write` makes the page. A name behind an arrow that a longer way \
of arrows reaches as well is left out.
";

/// The pages that show layers. One page is generated as a whole; in the other, the text between two
/// marks is.
///
/// # Errors
/// A file cannot be read, or has no marks.
pub fn pages(top: &Path) -> Result<Vec<Page>, String> {
    let mut all = HEAD.to_owned();
    let mut core = None;
    for layers in LAYERS {
        let graph = Graph::read(top, layers)?;
        let drawing = text(layers, &graph);
        let lines: Vec<_> = drawing.lines().skip(1).map(|line| &line[2..]).collect();
        all += &format!("\n## {}\n\n```\n{}\n```\n", heading(layers), lines.join("\n"));
        if (layers.name, layers.within) == ("rxe-core", "") {
            core = Some(mermaid(layers, &graph));
        }
    }
    let file = "docs/architecture.md";
    let now = std::fs::read_to_string(top.join(file)).map_err(|e| format!("{file}: {e}"))?;
    let (before, rest) = now.split_once(BEGIN).ok_or(format!("{file} has no {BEGIN}"))?;
    let (_, after) = rest.split_once(END).ok_or(format!("{file} has no {END}"))?;
    let architecture = format!("{before}{BEGIN}{}{END}{after}", core.unwrap_or_default());
    Ok(vec![Page { file: "docs/layers.md", text: all }, Page { file, text: architecture }])
}

fn heading(layers: &Layers) -> String {
    title(layers).replace(", ", ": ")
}
