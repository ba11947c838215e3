//! Parts of English pages of docs/ that commands write. The Chinese pages summarise and link to
//! them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::vm::{Error, Result};

/// The line after a part that a command writes.
pub const END: &str = "<!-- to here -->";

/// Returns the line before the part of this command, such as `bench --write`.
pub fn begin(command: &str) -> String {
    format!("<!-- cargo xtask {command} puts what follows -->")
}

/// Returns whether `docs/en/NAME.md` has a part for this command. Commands check this before they
/// spend an hour on the results, because [`write()`] fails without it.
///
/// # Errors
/// The page cannot be read.
/// When the page cannot be read.
pub fn has_place(root: &Path, name: &str, command: &str) -> Result<bool> {
    let path = page(root, name);
    let page = fs::read_to_string(&path).map_err(|e| Error::io(&path, &e))?;
    Ok(around(&page, &begin(command)).is_ok())
}

/// Replaces the part of this command in `docs/en/NAME.md`.
pub fn write(root: &Path, name: &str, command: &str, markdown: &str) -> Result<()> {
    let path = page(root, name);
    let old = fs::read_to_string(&path).map_err(|e| Error::io(&path, &e))?;
    let text = format!("\n{}\n", markdown.trim_end());
    let new = place(&old, &begin(command), &text).map_err(|why| failed(&path, &why))?;
    fs::write(&path, &new).map_err(|e| Error::io(&path, &e))
}

fn page(root: &Path, name: &str) -> PathBuf {
    root.join("docs/en").join(name).with_extension("md")
}

/// Returns the text before a part, in it and after it.
fn around<'a>(page: &'a str, begin: &str) -> std::result::Result<[&'a str; 3], String> {
    let lacks = |what: &str| format!("it has no line {what}");
    let (before, rest) = page.split_once(&format!("{begin}\n")).ok_or_else(|| lacks(begin))?;
    let (text, after) = rest.split_once(END).ok_or_else(|| lacks(END))?;
    Ok([before, text, after])
}

fn place(page: &str, begin: &str, text: &str) -> std::result::Result<String, String> {
    let [before, _, after] = around(page, begin)?;
    Ok(format!("{before}{begin}\n{text}{END}{after}"))
}

fn failed(path: &Path, why: &str) -> Error {
    Error::Failed(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(before: &str, command: &str, text: &str) -> String {
        format!("{before}\n{}\n{text}{END}\nb\n", begin(command))
    }

    #[test]
    fn what_a_command_makes_replaces_what_it_made_before_and_nothing_else() {
        let old = page("a", "bench --fabric", "\nold\n");
        let new = page("a", "bench --fabric", "\nnew\n");
        assert_eq!(place(&old, &begin("bench --fabric"), "\nnew\n"), Ok(new));
        let other = place(&old, &begin("bench"), "new");
        assert_eq!(other, Err(format!("it has no line {}", begin("bench"))));
    }

    #[test]
    fn a_page_says_for_which_commands_it_has_a_place() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("docs/en")).unwrap();
        let text = page("a", "programs --backend xdp", "\nold\n");
        fs::write(root.path().join("docs/en/tried.md"), text).unwrap();
        let has = |command: &str| has_place(root.path(), "tried", command).unwrap();
        assert!(has("programs --backend xdp"));
        assert!(!has("programs --backend packet") && !has("programs"));
        assert!(has_place(root.path(), "absent", "programs").is_err());
    }
}
