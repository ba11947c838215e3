//! Draws the layers of a crate.
//! An arrow is left out if a longer path of arrows leads to the same module.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Graph, Layers};

/// Returns a line for each module, layer by layer, with the modules that it uses directly.
pub fn text(layers: &Layers, graph: &Graph) -> String {
    let arrows = reduced(graph);
    let mut out = format!("{}\n", title(layers));
    for &name in layers.layers.iter().copied().flatten() {
        let used: Vec<_> = arrows.iter().filter(|(from, _)| *from == name).map(|a| a.1).collect();
        let arrow = if used.is_empty() { "" } else { " -> " };
        let _ = writeln!(out, "  {name}{arrow}{}", used.join(", "));
    }
    out
}

/// Returns the layers as a Mermaid diagram for Markdown.
pub fn mermaid(layers: &Layers, graph: &Graph) -> String {
    let mut out = String::from("```mermaid\nflowchart TD\n");
    for (at, names) in layers.layers.iter().enumerate() {
        let _ = writeln!(out, "  subgraph floor{at}[\" \"]\n    {}\n  end", names.join("\n    "));
    }
    for (from, to) in reduced(graph) {
        let _ = writeln!(out, "  {from} --> {to}");
    }
    out + "```\n"
}

/// Returns the name of the crate, with that of the module if there is one.
pub(super) fn title(layers: &Layers) -> String {
    if layers.within.is_empty() {
        layers.name.to_owned()
    } else {
        format!("{}, {}", layers.name, layers.within)
    }
}

/// Returns the arrows without those that a longer path replaces.
/// Correct only if there are no cycles.
fn reduced(graph: &Graph) -> Vec<(&str, &str)> {
    let edges = graph.edges();
    let longer = |from: &str, to: &str| {
        let via = edges.iter().filter(|edge| edge.0 == from && edge.1 != to);
        via.into_iter().any(|&(_, via)| reaches(&edges, via, to))
    };
    edges.iter().copied().filter(|&(from, to)| !longer(from, to)).collect()
}

/// Returns whether a path of edges leads from one module to another.
pub(super) fn reaches(edges: &BTreeSet<(&str, &str)>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        if at == to {
            return true;
        }
        let used = edges.iter().filter(|edge| edge.0 == at).map(|edge| edge.1);
        next.extend(used.filter(|&used| seen.insert(used)));
    }
    false
}
