//! The files of the project.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns all files below a directory with this extension, except build results and hidden files.
pub(crate) fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                found.extend(files(&path, extension));
            }
        } else if path.extension().is_some_and(|ext| ext == extension) {
            found.push(path);
        }
    }
    found
}
