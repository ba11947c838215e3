//! Each attack that docs/en/know/security.md lists has the test that the page names. The Chinese
//! page names it too.

use std::path::{Path, PathBuf};

#[test]
fn the_tests_that_the_table_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let table = std::fs::read_to_string(root.join("docs/en/know/security.md")).unwrap();
    let chinese = std::fs::read_to_string(root.join("docs/zh/know/security.md")).unwrap();
    let parts = ["rxe-core", "rxe-sys", "rxe-net", "rxe-verbs", "rxe-cli", "tests"];
    let mut sources = String::new();
    parts.iter().for_each(|part| read(root.join(part), &mut sources));
    // Attributes and comments may precede the function.
    let is_test = |name: &str| {
        sources.match_indices(&format!("fn {name}(")).any(|(at, _)| {
            let before = &sources[..at];
            before.rfind("#[test]").is_some_and(|test| !before[test..].contains("fn "))
        })
    };
    let mut count = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")) {
        let last = row.trim_end_matches([' ', '|']).rsplit(" | ").next().unwrap();
        for name in last.split('`').skip(1).step_by(2).filter(|n| n.contains('_')) {
            assert!(is_test(name), "no test has the name {name}");
            assert!(chinese.contains(&format!("`{name}`")), "not in the Chinese page: {name}");
            count += 1;
        }
        for case in last.split("case \"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(sources.contains(&format!("\"{case}\"")), "no case has the name {case}");
            assert!(chinese.contains(case), "not in the Chinese page: {case}");
            count += 1;
        }
    }
    assert!(count > 30, "only {count} names found");
}

fn read(directory: PathBuf, sources: &mut String) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            read(path, sources);
        } else if path.extension().is_some_and(|e| e == "rs") {
            sources.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}
