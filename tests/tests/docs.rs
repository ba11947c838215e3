//! Links between the project's Markdown files have existing targets. Each decision is in the index.

mod files;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_link_between_documents_leads_somewhere() {
    let root = root();
    let mut broken = Vec::new();
    for file in files::files(&root, "md") {
        let text = read(&file);
        for target in links(&text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            if path.contains("://") || path.starts_with("mailto:") {
                continue;
            }
            let to = if path.is_empty() { file.clone() } else { sibling(&file, path) };
            let leads = match to.extension() {
                _ if !to.exists() => false,
                Some(ext) if ext == "md" && !anchor.is_empty() => {
                    anchors(&read(&to)).contains(anchor)
                }
                _ => true,
            };
            if !leads {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn every_decision_has_a_number_of_its_own_and_is_in_the_index() {
    let dir = root().join("docs/en/project/decisions");
    let index = read(&dir.join("README.md"));
    let chinese = read(&root().join("docs/zh/project/decisions/README.md"));
    let listed: Vec<&str> = links(&index).collect();
    let mut numbers = HashSet::new();
    for file in files::files(&dir, "md") {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "README.md" {
            continue;
        }
        let number = name.split_once('-').map(|(n, _)| n.to_owned()).unwrap_or_default();
        assert!(number.len() == 3 && number.parse::<u32>().is_ok(), "{name}: NNN-name.md");
        assert!(numbers.insert(number.clone()), "{name}: another page has this number");
        let title = read(&file).lines().next().unwrap_or_default().to_owned();
        assert!(title.starts_with(&format!("# {number}. ")), "{name}: the title lacks its number");
        assert!(listed.contains(&&*name), "{name} is not in docs/en/project/decisions/README.md");
        let line = format!("- [{}]({name})", title.trim_start_matches("# "));
        assert!(
            index.contains(&line),
            "docs/en/project/decisions/README.md has another title for {name}"
        );
        let link = format!("(../../../en/project/decisions/{name})");
        let section = format!("\n### {number}. ");
        assert!(
            chinese.contains(&link) && chinese.contains(&section),
            "{name} has no section in docs/zh/project/decisions/README.md"
        );
    }
}

#[test]
fn every_source_that_a_document_names_is_there() {
    let root = root();
    // The directories to which paths in documents are relative: the root, the package of tests, or
    // a crate.
    let from = ["", "tests", "tests/tests", "rxe-core/src", "rxe-net/src", "rxe-verbs/src"];
    let from = from.map(|dir| root.join(dir));
    let mut missing = Vec::new();
    let mut count = 0;
    for file in files::files(&root, "md") {
        for name in read(&file).split('`').skip(1).step_by(2).filter(|name| is_source(name)) {
            count += 1;
            if !from.iter().any(|dir| dir.join(name).exists()) {
                missing.push(format!("{}: {name}", file.display()));
            }
        }
    }
    assert!(missing.is_empty() && count > 30, "{count} sources:\n{}", missing.join("\n"));
}

/// Returns whether these words are a path to a source file.
fn is_source(words: &str) -> bool {
    let path = words.ends_with(".rs") && words.contains('/');
    path && !words.contains(|c: char| c.is_whitespace() || c == '*' || c == '{')
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sibling(of: &Path, path: &str) -> PathBuf {
    of.parent().unwrap_or(Path::new("")).join(path)
}

/// Returns the targets of `[text](target)`, outside code.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    let prose = text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    prose.flat_map(|line| {
        let outside = line.split('`').step_by(2);
        outside.flat_map(|part| part.split("](").skip(1)).filter_map(|rest| {
            let (target, _) = rest.split_once(')')?;
            Some(target)
        })
    })
}

/// Returns the anchors of a file's headings, as websites that show Markdown name them.
fn anchors(text: &str) -> HashSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}
