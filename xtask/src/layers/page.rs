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

/// The pages that are generated as a whole, and how they begin.
const WHOLE: [(&str, &str); 2] = [
    (
        "docs/en/project/layers.md",
        "# Layers

[中文](../../zh/project/layers.md)

Which module of a crate uses which. A module uses modules on lines below its own and nothing else, so \
there are no circles. A test compares the sources with these floors (`xtask/src/layers/table.rs`) and \
with this page; `cargo xtask layers --write` makes the page. If a longer path of arrows leads to the \
same module, the direct arrow is left out.
",
    ),
    (
        "docs/zh/project/layers.md",
        "# 模块分层

[English](../../en/project/layers.md)

每个 crate 中，哪个模块使用哪个模块。`rc -> message` 表示 `rc` 使用 `message`。模块只使用下面各行的模块，\
因此没有循环依赖。如果经过更长的箭头也能到达某个模块，就不再列出直接的箭头。没有箭头的行表示该模块\
不使用同级的其他模块。测试比较源码、层次（`xtask/src/layers/table.rs`）和本页；本页由 \
`cargo xtask layers --write` 生成。
",
    ),
];

/// The pages with the drawing of rxe-core between two marks.
const WITH_DRAWING: [&str; 2] =
    ["docs/en/project/architecture.md", "docs/zh/project/architecture.md"];

/// The pages that show layers, in both languages.
///
/// # Errors
/// A file cannot be read, or has no marks.
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
    let mut pages: Vec<Page> =
        WHOLE.map(|(file, head)| Page { file, text: format!("{head}{sections}") }).into();
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
