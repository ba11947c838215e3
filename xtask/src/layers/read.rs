//! Reads the sources of a crate: its modules, and the paths in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Attribute, Item, ItemMod, UseTree};

use super::{Graph, Use};

/// The modules and uses that have been read so far.
pub(super) struct Reader<'a> {
    top: &'a Path,
    within: Vec<String>,
    /// The children of `within`.
    modules: BTreeSet<String>,
    /// The names that `within` itself re-exports, with their paths.
    exports: BTreeMap<String, Vec<String>>,
    uses: Vec<UnresolvedUse>,
}

/// A path that a module uses.
struct UnresolvedUse {
    from: String,
    to: Vec<String>,
    place: (String, usize),
}

impl<'a> Reader<'a> {
    pub(super) fn new(top: &'a Path, within: Vec<String>) -> Self {
        let (modules, exports) = (BTreeSet::new(), BTreeMap::new());
        Self { top, within, modules, exports, uses: Vec::new() }
    }

    /// Reads a file, which is the module `path`, and the modules in it.
    pub(super) fn file(&mut self, file: &Path, path: &[String]) -> Result<(), String> {
        let name = file.display().to_string();
        let source =
            std::fs::read_to_string(self.top.join(file)).map_err(|why| format!("{name}: {why}"))?;
        let parsed = syn::parse_file(&source)
            .map_err(|why| format!("{name}:{}: {why}", why.span().start().line))?;
        // The modules of `lib.rs`, `main.rs` and `mod.rs` are in the same directory, those of other
        // files in a directory with the file's name.
        let stem = file.file_stem().unwrap_or_default();
        let dir = file.parent().unwrap_or(Path::new(""));
        let beside = ["lib", "main", "mod"].iter().any(|name| stem == *name);
        let dir = if beside { dir.to_owned() } else { dir.join(stem) };
        self.items(&parsed.items, &name, &dir, path)
    }

    /// Returns the graph of the modules and uses that have been read.
    pub(super) fn finish(self) -> Graph {
        let mut uses = Vec::new();
        for UnresolvedUse { from, to, place } in &self.uses {
            let Some(target) = self.target(to) else { continue };
            if target != *from {
                let path = format!("crate::{}", to.join("::"));
                uses.push(Use { from: from.clone(), to: target, place: place.clone(), path });
            }
        }
        Graph { modules: self.modules, uses }
    }

    fn items(
        &mut self,
        items: &[Item],
        file: &str,
        dir: &Path,
        path: &[String],
    ) -> Result<(), String> {
        for item in items {
            match item {
                Item::Mod(module) if !is_test(&module.attrs) => {
                    self.module(module, file, dir, path)?;
                }
                Item::Mod(_) => {}
                other => {
                    if path == self.within
                        && let Item::Use(item) = other
                    {
                        self.export(&item.tree, &mut Vec::new());
                    }
                    Paths { reader: self, file, path }.visit_item(other);
                }
            }
        }
        Ok(())
    }

    fn module(
        &mut self,
        module: &ItemMod,
        file: &str,
        dir: &Path,
        path: &[String],
    ) -> Result<(), String> {
        let name = module.ident.to_string();
        if path == self.within {
            self.modules.insert(name.clone());
        }
        let inner = [path, std::slice::from_ref(&name)].concat();
        if !inner.starts_with(&self.within) && !self.within.starts_with(&inner) {
            return Ok(());
        }
        match &module.content {
            Some((_, items)) => self.items(items, file, &dir.join(&name), &inner),
            None => {
                let beside = dir.join(format!("{name}.rs"));
                let inside: PathBuf = dir.join(&name).join("mod.rs");
                let exists = self.top.join(&beside).exists();
                self.file(if exists { &beside } else { &inside }, &inner)
            }
        }
    }

    /// Records the names that a `use` of the module `within` brings into it.
    fn export(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        leaves(tree, before, &mut |path, name, _| {
            self.exports.insert(name.to_owned(), path.to_vec());
        });
    }

    /// Returns the child of `within` to which an absolute path leads.
    fn target(&self, path: &[String]) -> Option<String> {
        let rest = path.strip_prefix(&self.within[..])?;
        let first = rest.first()?;
        if self.modules.contains(first) {
            return Some(first.clone());
        }
        let source = self.exports.get(first)?;
        let source = source.iter().find(|name| !matches!(&***name, "self" | "crate" | "super"))?;
        self.modules.get(source).cloned()
    }
}

/// Calls `each` with the path and the name of everything that a `use` imports.
fn leaves(tree: &UseTree, before: &mut Vec<String>, each: &mut dyn FnMut(&[String], &str, Span)) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, each);
            before.pop();
        }
        UseTree::Name(name) => {
            before.push(name.ident.to_string());
            let end = before.iter().rfind(|name| *name != "self").cloned().unwrap_or_default();
            each(before, &end, name.ident.span());
            before.pop();
        }
        UseTree::Rename(rename) => {
            before.push(rename.ident.to_string());
            each(before, &rename.rename.to_string(), rename.ident.span());
            before.pop();
        }
        UseTree::Glob(glob) => each(before, "*", glob.star_token.spans[0]),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| leaves(tree, before, each));
        }
    }
}

/// Finds the paths in an item that is part of the module `path`.
struct Paths<'r, 'a> {
    reader: &'r mut Reader<'a>,
    file: &'r str,
    path: &'r [String],
}

impl Paths<'_, '_> {
    /// Records a path as written, if it begins with `crate`, `super` or `self`.
    fn found(&mut self, segments: &[String], span: Span) {
        let mut absolute = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.path.to_vec(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(absolute.pop()),
                name => absolute.push(name.to_owned()),
            }
        }
        let Some(from) = self.path.strip_prefix(&self.reader.within[..]).and_then(|p| p.first())
        else {
            return;
        };
        let place = (self.file.to_owned(), span.start().line);
        self.reader.uses.push(UnresolvedUse { from: from.clone(), to: absolute, place });
    }

    /// Records the paths in the arguments of a macro, which are only tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut start = Span::call_site();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if path.is_empty() || colons < 2 {
                        self.found(&path, start);
                        path.clear();
                        start = ident.span();
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.found(&std::mem::take(&mut path), start);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.found(&path, start);
    }
}

impl<'ast> Visit<'ast> for Paths<'_, '_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attrs = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attrs) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut all = Vec::new();
        leaves(&item.tree, &mut Vec::new(), &mut |path, _, span| all.push((path.to_vec(), span)));
        all.iter().for_each(|(path, span)| self.found(path, *span));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if let (Some(first), true) = (path.segments.first(), segments.len() > 1) {
            self.found(&segments, first.ident.span());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        syn::visit::visit_macro(self, call);
    }
}

/// Returns whether an item exists only for tests.
fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().filter(|attr| attr.path().is_ident("cfg")).any(|attr| {
        let syn::Meta::List(list) = &attr.meta else { return false };
        names(list.tokens.clone()).contains(&"test".to_owned())
    })
}

fn names(tokens: TokenStream) -> Vec<String> {
    let mut out = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => out.push(ident.to_string()),
            TokenTree::Group(group) => out.extend(names(group.stream())),
            _ => {}
        }
    }
    out
}
