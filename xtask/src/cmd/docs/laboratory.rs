//! The laboratory's page beside the books, and links of their pages that open a scenario there.

use super::super::web;
use super::{place, relative};
use rxe_harness::links::scenario;
use rxe_harness::vm::{Error, Result};
use std::path::Path;

/// The directory of the laboratory's page, beside those of the books.
pub(super) const DIRECTORY: &str = "laboratory";

/// Writes the laboratory's page. Returns whether the page can be built on this machine.
pub(super) fn put(top: &Path, to: &Path, wasm: Option<&Path>) -> Result<bool> {
    match web::put_page(top, &to.join(DIRECTORY), wasm) {
        Ok(_) => Ok(true),
        Err(Error::Missing(why)) => {
            println!("no links that open a conversation in the browser, which need {why}");
            Ok(false)
        }
        Err(why) => Err(why),
    }
}

/// Returns a page with a link in place of each marker ([`scenario`]). `open` is the link's text.
pub(super) fn linked(text: &str, file: &Path, language: &str, open: &str) -> String {
    let from = place(file, language).unwrap_or_default();
    let page = relative(from.parent().unwrap_or(Path::new("")), Path::new(DIRECTORY));
    let link = |line: &str| match scenario(line) {
        Some(name) => {
            format!("[{open}]({}/index.html?lang={language}#scenario/{name})\n", page.display())
        }
        None => format!("{line}\n"),
    };
    text.lines().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_becomes_a_link_to_its_scenario() {
        let page = "a\n\n<!-- laboratory: rnr_nak -->\n<!-- another -->\n";
        let new =
            "a\n\n[打开](../../laboratory/index.html?lang=zh#scenario/rnr_nak)\n<!-- another -->\n";
        assert_eq!(linked(page, Path::new("zh/learn/8-break.md"), "zh", "打开"), new);
    }
}
