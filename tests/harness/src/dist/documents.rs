//! The installed documents, and the files that their links point to.

use super::Tree;
use super::tree::read;
use crate::links::{leads_to, relinked};
use crate::vm::{Error, Result};
use std::fs;
use std::path::Path;

/// Files in the root of the checkout.
const FILES: [&str; 7] = [
    "README.md",
    "README.zh-CN.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

/// Directories that are installed as a whole: the book and its pictures, the captures and scenarios
/// that its commands read, and the examples.
const DIRECTORIES: [&str; 3] = ["docs", "pcaps", "rxe-verbs/examples"];

/// Returns the documents of the checkout `source`, by their paths in it. A link to a file that is
/// not installed becomes plain text.
///
/// # Errors
/// A file cannot be read.
/// If a file cannot be read.
pub(super) fn documents(source: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    for name in FILES {
        tree.file(name, read(&source.join(name))?);
    }
    for dir in DIRECTORIES {
        add(&mut tree, source, dir)?;
    }
    let paths: Vec<String> = tree.paths().map(str::to_owned).collect();
    let is_there = |to: &str| {
        paths.iter().any(|path| {
            path.strip_prefix(to).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    for (page, bytes) in tree.contents_mut().filter(|(path, _)| path.ends_with(".md")) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let new = relinked(&text, |target| {
            leads_to(page, target).is_none_or(|to| is_there(&to)).then(|| target.to_owned())
        });
        *bytes = new.into_bytes();
    }
    Ok(tree)
}

/// Adds the files of a directory and of its subdirectories.
fn add(tree: &mut Tree, source: &Path, dir: &str) -> Result<()> {
    let failed = |e: std::io::Error| Error::Failed(format!("{dir}: {e}"));
    for entry in fs::read_dir(source.join(dir)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = format!("{dir}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            add(tree, source, &path)?;
        } else {
            tree.file(&path, read(&entry.path())?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::targets;

    #[test]
    fn every_link_of_an_installed_document_leads_to_an_installed_file() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let to = tempfile::tempdir().unwrap();
        documents(&source).unwrap().install(to.path()).unwrap();
        let tree = documents(&source).unwrap();
        let (mut count, mut broken) = (0, Vec::new());
        for (page, bytes) in tree.contents().filter(|(path, _)| path.ends_with(".md")) {
            let text = String::from_utf8_lossy(bytes);
            for target in targets(&text) {
                let Some(path) = leads_to(page, &target) else { continue };
                count += 1;
                if !to.path().join(&path).exists() {
                    broken.push(format!("{page}: {target}"));
                }
            }
        }
        assert!(broken.is_empty() && count > 300, "{count} links, of which\n{}", broken.join("\n"));
        for path in
            ["docs/zh/README.md", "docs/en/project/testing/threads.md", "docs/ladder/nak.svg"]
        {
            assert!(tree.paths().any(|found| found == path), "{path}");
        }
        // A link whose target is not installed.
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert!(
            text(&source.join("docs/en/reference/programs-tried.md"))
                .contains("](../../../tests/c/")
        );
        assert!(
            !text(&to.path().join("docs/en/reference/programs-tried.md"))
                .contains("](../../../tests/c/")
        );
    }
}
