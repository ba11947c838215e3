//! Checks which modules of a crate use which, against a table of layers.
//!
//! A crate (or a module of it, `within`) is a list of layers from top to bottom. A module may use
//! modules on layers below its own and nothing else, so there are no cycles. [`check`] reads the
//! sources, follows every `mod`, and examines each path that begins with `crate`, `super` or
//! `self`, in `use` items, in code and in macros. Tests may use any module.
//!
//! A module without a table must have no cycles among its children either ([`Graph::cycle`]).

mod page;
mod picture;
mod read;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

pub use page::{Page, pages};
pub use picture::{mermaid, text};
use read::Reader;
pub use table::LAYERS;

/// The layers of a crate, or of one of its modules.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    /// The name of the crate's directory.
    pub name: &'static str,
    /// The module whose children these are, such as `a::b`; empty for the whole crate.
    pub within: &'static str,
    /// The children, layer by layer, the highest layer first.
    pub layers: &'static [&'static [&'static str]],
}

/// A use of one module by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The module that uses the other module.
    pub from: String,
    /// The module that is used.
    pub to: String,
    /// The file, relative to the root of the workspace, and the line.
    pub place: (String, usize),
    /// The path that is used, as it resolves.
    pub path: String,
}

/// The modules of a crate and the uses between them.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The modules that are checked.
    pub modules: BTreeSet<String>,
    /// Every use of one module by another.
    pub uses: Vec<Use>,
}

impl Graph {
    /// Reads a crate.
    ///
    /// # Errors
    /// A file is missing or is not valid Rust.
    pub fn read(top: &Path, layers: &Layers) -> Result<Self, String> {
        let within = layers.within.split("::").filter(|name| !name.is_empty());
        let mut reader = Reader::new(top, within.map(str::to_owned).collect());
        for root in ["lib.rs", "main.rs"] {
            let file = Path::new(layers.name).join("src").join(root);
            if top.join(&file).exists() {
                reader.file(&file, &[])?;
            }
        }
        Ok(reader.finish())
    }

    /// Returns the modules of a cycle, if there is one: each uses all others, directly or
    /// indirectly.
    pub fn cycle(&self) -> Option<Vec<&str>> {
        let edges = self.edges();
        let first = self.modules.iter().find(|name| {
            edges.iter().any(|edge| edge.0 == **name && picture::reaches(&edges, edge.1, name))
        })?;
        let on_it = |name: &&String| {
            picture::reaches(&edges, first, name) && picture::reaches(&edges, name, first)
        };
        Some(self.modules.iter().filter(on_it).map(String::as_str).collect())
    }

    /// Returns every pair of a module and one that it uses, once.
    pub fn edges(&self) -> BTreeSet<(&str, &str)> {
        self.uses.iter().map(|one| (&*one.from, &*one.to)).collect()
    }
}

/// Checks a crate against its layers.
///
/// # Errors
/// Returns each use that does not go down, by file and line; each module that is on no layer; and
/// each name on a layer that is not a module.
pub fn check(layers: &Layers, graph: &Graph) -> Result<(), String> {
    let mut wrong = String::new();
    let mut layer_of = BTreeMap::new();
    for (layer, names) in layers.layers.iter().enumerate() {
        for &name in *names {
            if layer_of.insert(name, layer).is_some() {
                let _ = writeln!(wrong, "{}: {name} is on two floors", layers.name);
            }
            if !graph.modules.contains(name) {
                let _ = writeln!(
                    wrong,
                    "{}: there is no module {name}: take it off its floor",
                    layers.name
                );
            }
        }
    }
    for name in &graph.modules {
        if !layer_of.contains_key(&**name) {
            let _ = writeln!(
                wrong,
                "{}: {name} is on no floor: add it to xtask/src/layers/table.rs",
                layers.name
            );
        }
    }
    for Use { from, to, place: (file, line), path } in &graph.uses {
        let (Some(own), Some(other)) = (layer_of.get(&**from), layer_of.get(&**to)) else {
            continue;
        };
        if own >= other {
            let how = if own == other { "beside" } else { "above" };
            let _ = writeln!(wrong, "{file}:{line}: {from} uses {path}, but {to} is {how} {from}");
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the root of the workspace.
    fn top() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
    }

    #[test]
    fn every_use_goes_down() {
        for layers in LAYERS {
            let graph = Graph::read(top(), layers).unwrap();
            assert!(
                graph.edges().len() + 1 >= layers.layers.len(),
                "{}: nothing was read",
                layers.name
            );
            if let Err(wrong) = check(layers, &graph) {
                panic!("{wrong}");
            }
        }
    }

    #[test]
    fn no_module_has_a_cycle_among_its_children() {
        let mut crates: Vec<_> = LAYERS.iter().map(|layers| layers.name).collect();
        crates.dedup();
        for name in crates {
            for within in parents(&top().join(name).join("src"), "") {
                let within: &'static str = within.leak();
                let graph = Graph::read(top(), &Layers { name, within, layers: &[] }).unwrap();
                let cycle = graph.cycle();
                assert!(cycle.is_none(), "{name}, {within}: {cycle:?}");
            }
        }
    }

    /// Returns the modules that have a directory, the crate itself first.
    fn parents(dir: &Path, module: &str) -> Vec<String> {
        let mut all = vec![module.to_owned()];
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.path().is_dir() {
                let colons = if module.is_empty() { "" } else { "::" };
                all.extend(parents(&entry.path(), &format!("{module}{colons}{name}")));
            }
        }
        all
    }

    #[test]
    fn a_cycle_is_found_with_all_that_are_on_it() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a; use crate::d;"),
            ("d.rs", ""),
        ];
        assert_eq!(graph("", &files).cycle(), Some(vec!["a", "b", "c"]));
        assert_eq!(
            graph("", &[("lib.rs", "mod a; mod d;"), files[4], ("a.rs", "use crate::d;")]).cycle(),
            None
        );
    }

    #[test]
    fn the_drawings_in_the_docs_are_current() {
        for Page { file, text } in pages(top()).unwrap() {
            let now = std::fs::read_to_string(top().join(file)).unwrap();
            assert!(now == text, "{file} is old: run `cargo xtask layers --write`");
        }
    }

    /// Reads a crate of these files.
    fn graph(within: &'static str, files: &[(&str, &str)]) -> Graph {
        let dir = tempfile::tempdir().unwrap();
        for (name, source) in files {
            let path = dir.path().join("it/src").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, source).unwrap();
        }
        Graph::read(dir.path(), &Layers { name: "it", within, layers: &[] }).unwrap()
    }

    #[test]
    fn uses_are_found_wherever_they_stand() {
        let files = [
            ("lib.rs", "mod a; mod b; pub mod c; mod d; mod e; pub use d::{Named as Other};"),
            ("a.rs", "use crate::{b::{x, y}, c};\nfn f() {}"),
            ("b/mod.rs", "mod deep;\nfn f() -> super::c::T { todo!() }"),
            (
                "b/deep.rs",
                "use super::super::e::T;\nuse super::f;\nmod inner { use super::super::super::d; }",
            ),
            ("c.rs", "macro_rules! m { () => { $crate::e::f() } }\nfn f() { vec![crate::d::X]; }"),
            ("d.rs", "#[cfg(test)]\nmod tests { use crate::a; }\n#[cfg(test)]\nuse crate::b;"),
            ("e.rs", "fn f(_: crate::Other) { self::f(); }"),
        ];
        let graph = graph("", &files);
        let expected = [
            ("a", "b"),
            ("a", "c"),
            ("b", "c"),
            ("b", "d"),
            ("b", "e"),
            ("c", "d"),
            ("c", "e"),
            ("e", "d"),
        ];
        assert_eq!(graph.edges(), expected.into_iter().collect());
        let place = |from: &str, to: &str| {
            let found = graph.uses.iter().find(|a| a.from == from && a.to == to).unwrap();
            found.place.clone()
        };
        assert_eq!(place("b", "d"), ("it/src/b/deep.rs".into(), 3));
        assert_eq!(place("c", "d"), ("it/src/c.rs".into(), 2));
    }

    #[test]
    fn a_part_of_a_crate_is_looked_at_alone() {
        let files = [
            ("lib.rs", "mod part; mod other;"),
            ("other.rs", ""),
            ("part.rs", "mod a; mod b;"),
            ("part/a.rs", "use super::b; use crate::other; use crate::part::b::x;"),
            ("part/b.rs", ""),
        ];
        let graph = graph("part", &files);
        assert_eq!(graph.modules, ["a", "b"].map(str::to_owned).into());
        assert_eq!(graph.edges(), [("a", "b")].into());
    }

    #[test]
    fn what_does_not_go_down_is_named_by_file_and_line() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", ""),
            ("b.rs", "\nuse crate::a;"),
            ("c.rs", "use crate::b;"),
        ];
        let graph = graph("", &files);
        let check = |layers| check(&Layers { name: "it", within: "", layers }, &graph);
        assert_eq!(check(&[&["c"], &["b"], &["a"]]), Ok(()));
        let wrong = check(&[&["a"], &["b", "c"]]).unwrap_err();
        assert!(wrong.contains("it/src/b.rs:2: b uses crate::a, but a is above b"), "{wrong}");
        assert!(wrong.contains("it/src/c.rs:1: c uses crate::b, but b is beside c"), "{wrong}");
        let wrong = check(&[&["a"], &["b", "z"]]).unwrap_err();
        assert!(wrong.contains("c is on no floor") && wrong.contains("no module z"), "{wrong}");
    }

    #[test]
    fn pictures_leave_out_what_a_longer_way_says() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::{b, c};"),
            ("b.rs", "use crate::c;"),
            ("c.rs", ""),
        ];
        let graph = graph("", &files);
        let layers = Layers { name: "it", within: "", layers: &[&["a"], &["b"], &["c"]] };
        assert_eq!(text(&layers, &graph), "it\n  a -> b\n  b -> c\n  c\n");
        let mermaid = mermaid(&layers, &graph);
        assert!(mermaid.contains("a --> b") && mermaid.contains("b --> c"));
        assert!(!mermaid.contains("a --> c"), "{mermaid}");
    }
}
