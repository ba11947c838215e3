//! How tests report that they were skipped.

mod files;

use std::fs;
use std::path::Path;

/// libtest captures the output of macros in a passing test, so the test would be counted as passed.
#[test]
fn no_test_says_by_a_macro_that_it_was_skipped() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut count, mut found) = (0, Vec::new());
    for file in files::files(&root, "rs") {
        // Commands are not tests: their output is shown.
        if file.starts_with(root.join("xtask/src/cmd")) {
            continue;
        }
        count += 1;
        let text = fs::read_to_string(&file).unwrap();
        for line in prints_skipped(&text) {
            found.push(format!("{}:{line}", file.strip_prefix(&root).unwrap().display()));
        }
    }
    assert!(count > 300, "{count} sources");
    assert!(found.is_empty(), "use the crate's `skipped` instead:\n{}", found.join("\n"));
}

#[test]
fn macros_are_found_on_one_line_and_on_several() {
    let print = ["print", "ln!"].concat();
    let text = format!("\n{print}(\"SKIPPED: a: b\");\ne{print}(\n    \"\\nSKIPPED: {{a}}\"\n);\n");
    assert_eq!(prints_skipped(&text), [2, 3]);
    assert!(prints_skipped(&format!("{print}(\"{{line}}\"); // SKIPPED")).is_empty());
}

/// Returns the lines with a macro that prints a text that begins with the marker.
fn prints_skipped(text: &str) -> Vec<usize> {
    let macros = ["print!(", "println!("]
        .into_iter()
        .flat_map(|name| text.match_indices(name).map(|(at, name)| (at, &text[at + name.len()..])));
    let skips = macros.filter(|(_, rest)| {
        let said = rest.trim_start().strip_prefix('"');
        said.is_some_and(|said| said.trim_start_matches("\\n").starts_with("SKIPPED"))
    });
    skips.map(|(at, _)| 1 + text[..at].matches('\n').count()).collect()
}
