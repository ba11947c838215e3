//! Generates the pages of the documentation that show layers.

use std::path::Path;

use super::picture::title;
use super::{Graph, LAYERS, Layers, mermaid, text};

/// A page with its current content.
#[derive(Clone, Debug)]
pub struct Page {
    /// The path relative to the root of the workspace.
    pub file: &'static str,
    /// The complete text of the page.
    pub text: String,
}

const BEGIN: &str = "<!-- made by `cargo xtask layers --write` -->\n";
const END: &str = "<!-- end -->\n";

/// The page that is generated as a whole, and its beginning.
const WHOLE: (&str, &str) = (
        "docs/en/project/layers.md",
        "# Layers

[中文](../../zh/project/layers.md)

Which module of a crate uses which. A module uses modules on lines below its own and nothing else, so \
there are no circles. A test compares the sources with these floors (`xtask/src/layers/table.rs`) and \
with this page; `cargo xtask layers --write` makes the page. If a longer path of arrows leads to the \
same module, the direct arrow is left out.
",
);

/// The pages that have the drawing of rxe-core between two markers.
const WITH_DRAWING: [&str; 2] =
    ["docs/en/project/architecture.md", "docs/zh/project/architecture.md"];

/// Returns the pages that show layers, with their current content.
///
/// # Errors
/// A file cannot be read, or has no markers.
pub fn pages(top: &Path) -> Result<Vec<Page>, String> {
    let mut sections = String::new();
    let mut core = None;
    for layers in LAYERS {
        let graph = Graph::read(top, layers)?;
        let drawing = text(layers, &graph);
        let lines: Vec<_> = drawing.lines().skip(1).map(|line| &line[2..]).collect();
        sections += &format!("\n## {}\n\n```\n{}\n```\n", heading(layers), lines.join("\n"));
        if (layers.name, layers.within) == ("rxe-core", "") {
            core = Some(mermaid(layers, &graph));
        }
    }
    let core = core.unwrap_or_default();
    let (file, head) = WHOLE;
    let mut pages = vec![Page { file, text: format!("{head}{sections}") }];
    for file in WITH_DRAWING {
        let now = std::fs::read_to_string(top.join(file)).map_err(|e| format!("{file}: {e}"))?;
        let (before, rest) = now.split_once(BEGIN).ok_or(format!("{file} has no {BEGIN}"))?;
        let (_, after) = rest.split_once(END).ok_or(format!("{file} has no {END}"))?;
        pages.push(Page { file, text: format!("{before}{BEGIN}{core}{END}{after}") });
    }
    Ok(pages)
}

fn heading(layers: &Layers) -> String {
    title(layers).replace(", ", ": ")
}
